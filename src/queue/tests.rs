//! One contract for every queue, on the real disk and on a simulated one; what it does about
//! errors; races; and a sweep of crashes over every operation.

mod contract;
mod crash;
mod errors;
mod files;
mod races;
mod tricks;
mod turns;

use std::io;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::*;
use crate::base::ids::TaskAttempt;
use crate::disk::sim::SimDisk;
use crate::disk::{Disk, RealDisk};

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => panic!("it is an object"),
    }
}

fn task(number: u64, priority: u8) -> Task {
    let id = TaskId::new(1_000 + number, u128::from(number));
    let name = TaskName {
        priority,
        id,
        label: format!("t{number}"),
        attempt: TaskAttempt::FIRST,
        crashes: 0,
    };
    let document = object(json!({ "schema": "task/v1", "number": number, "ticket": "secret" }));
    Task { name, agent: "qa".into(), batch: "day".into(), crash_limit: 3, document }
}

fn done() -> Map<String, Value> {
    object(json!({ "success": true, "ticket": "secret" }))
}

/// Opens a queue that is durable on the simulated disk. On the real one that only takes time,
/// except where it is what a test is about.
fn open(disk: &Arc<dyn Disk>, root: &Path, me: &str) -> Queue {
    open_as(disk, root, me, root.is_relative())
}

fn open_as(disk: &Arc<dyn Disk>, root: &Path, me: &str, durable: bool) -> Queue {
    let seed = me.bytes().fold(7, |seed, byte| seed * 31 + u64::from(byte));
    let queue = Queue::open(disk.clone(), Layout::new(root), me, seed, durable).unwrap();

    queue.open_agent("qa").unwrap();
    queue
}

fn take(queue: &Queue) -> Option<Claim> {
    match queue.claim("qa").unwrap() {
        Claimed::Task(claim) => Some(*claim),
        Claimed::Nothing => None,
        Claimed::Quarantined { name, reason } => panic!("{name:?} was put aside: {reason}"),
    }
}

fn finish(queue: &Queue, claim: &Claim, end: End) -> io::Result<Ending> {
    Ok(queue.complete_one(Finish { claim: claim.clone(), end, status: done() })?)
}

fn labels(names: &[TaskName]) -> Vec<&str> {
    names.iter().map(|name| name.label.as_str()).collect()
}

/// Plays the same on both disks.
fn on_every_disk(play: impl Fn(&Arc<dyn Disk>, &Path)) {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::default());
    play(&disk, Path::new("ws"));
    let dir = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::default());
    play(&disk, dir.path());
}
