//! One contract for every queue, on the real disk and on a simulated one; and a sweep of crashes
//! over every operation.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::disk::sim::SimDisk;
use crate::disk::{Disk, RealDisk};

fn task(number: u64, priority: u8) -> Task {
    let id = TaskId::new(1_000 + number, u128::from(number));
    let name = TaskName { priority, id, label: format!("t{number}"), attempt: 1, crashes: 0 };
    let Value::Object(document) = json!({ "schema": "task/v1", "number": number }) else {
        unreachable!()
    };
    Task { name, agent: "qa".into(), batch: "day".into(), crash_limit: 3, document }
}

fn done() -> Map<String, Value> {
    Map::from_iter([("success".to_owned(), Value::Bool(true))])
}

fn open(disk: &Arc<dyn Disk>, root: &Path, me: &str, seed: u64) -> FsQueue {
    let queue = FsQueue::open(disk.clone(), Layout::new(root), me, seed, true).unwrap();
    queue.open_agent("qa").unwrap();
    queue
}

fn take(queue: &FsQueue) -> Option<Box<Claim>> {
    match queue.claim("qa").unwrap() {
        Claimed::Task(claim) => Some(claim),
        Claimed::Nothing => None,
        Claimed::Quarantined { name, reason } => panic!("{name:?} was put aside: {reason}"),
    }
}

fn finish(queue: &FsQueue, claim: &Claim, end: End) -> io::Result<Ending> {
    let finish = Finish { claim: claim.clone(), end, status: done() };
    queue.complete(&[finish]).pop().unwrap()
}

/// What every queue must do.
fn contract(disk: Arc<dyn Disk>, root: &Path) {
    let one = open(&disk, root, "one", 1);
    let two = open(&disk, root, "two", 2);
    // First in, first out within a priority; 0 before 9.
    for (number, priority) in [(1, 5), (2, 5), (3, 0), (4, 9)] {
        one.enqueue(&[task(number, priority)]).unwrap();
    }
    let order: Vec<_> = one.waiting("qa").unwrap().iter().map(|n| n.label.clone()).collect();
    assert_eq!(order, ["t3", "t1", "t2", "t4"]);
    // Two claim at once: each task goes to one of them, whatever they have listed before.
    let first = take(&one).unwrap();
    let second = take(&two).unwrap();
    assert_eq!((first.task.name.label.as_str(), second.task.name.label.as_str()), ("t3", "t1"));
    assert_eq!(first.task.document["number"], 3);
    // What is completed is there with its status; a second completion is fenced.
    assert_eq!(finish(&one, &first, End::Processed).unwrap(), Ending::Committed);
    assert_eq!(finish(&one, &first, End::Failed).unwrap(), Ending::Fenced);
    let ended = two.ended(End::Processed, "day").unwrap();
    assert_eq!(ended.len(), 1);
    assert_eq!(two.status(End::Processed, "day", &ended[0].0).unwrap(), Some(done()));
    assert!(two.ended(End::Failed, "day").unwrap().is_empty());
    // Released: it comes again as a later attempt that does not count as a crash.
    assert_eq!(two.release(&second).unwrap(), Ending::Committed);
    assert_eq!(finish(&two, &second, End::Processed).unwrap(), Ending::Fenced);
    let again = std::iter::from_fn(|| take(&one)).find(|c| c.task.name.label == "t1");
    let again = again.unwrap();
    assert_eq!((again.name.task.attempt, again.name.task.crashes), (2, 0));
    // The dead: what they held comes back, and after too many deaths it is poison.
    let reaped = two.reap("one").unwrap();
    assert_eq!(reaped.len(), 3, "{reaped:?}");
    assert_eq!(finish(&one, &again, End::Processed).unwrap(), Ending::Fenced);
    for worker in ["three", "four"] {
        let doomed = open(&disk, root, worker, 3);
        while take(&doomed).is_some() {}
        two.reap(worker).unwrap();
    }
    assert!(two.waiting("qa").unwrap().is_empty());
    let failed = two.ended(End::Failed, "day").unwrap();
    assert_eq!(failed.len(), 3);
    for (name, by) in &failed {
        let status = two.status(End::Failed, "day", name).unwrap().unwrap();
        assert_eq!((by.as_str(), status["error"]["reason"].as_str()), ("two", Some("crash_limit")));
    }
    // Cancelled before anybody claimed it.
    one.enqueue(&[task(5, 5)]).unwrap();
    let name = one.waiting("qa").unwrap().remove(0);
    assert_eq!(two.cancel_waiting("qa", &name).unwrap(), Ending::Committed);
    assert_eq!(one.cancel_waiting("qa", &name).unwrap(), Ending::Fenced);
    assert!(take(&one).is_none());
}

#[test]
fn the_contract_holds_on_a_simulated_disk() {
    contract(Arc::new(SimDisk::default()), Path::new("ws"));
}

#[test]
fn the_contract_holds_on_a_real_disk() {
    let dir = tempfile::tempdir().unwrap();
    contract(Arc::new(RealDisk::default()), dir.path());
}

#[test]
fn a_file_that_is_no_sealed_task_is_put_aside_and_never_run() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::default());
    let queue = open(&disk, Path::new("ws"), "one", 1);
    let name = task(1, 5).name;
    disk.write(&queue.layout.inbox("qa").join(name.file()), b"").unwrap();
    assert!(matches!(queue.claim("qa").unwrap(), Claimed::Quarantined { .. }));
    assert_eq!(queue.claim("qa").unwrap(), Claimed::Nothing);
    assert_eq!(disk.list(&queue.layout.end(End::Failed, "unreadable")).unwrap().len(), 2);
}

/// A worker that executes all it can claim until the disk fails under it.
fn work(disk: &Arc<dyn Disk>, me: &str, seed: u64, executed: &mut Vec<u64>) -> std::io::Result<()> {
    let queue = FsQueue::open(disk.clone(), Layout::new(Path::new("ws")), me, seed, true)?;
    queue.open_agent("qa")?;
    while let Claimed::Task(claim) = queue.claim("qa")? {
        executed.push(claim.task.document["number"].as_u64().unwrap());
        finish(&queue, &claim, End::Processed)?;
    }
    Ok(())
}

/// Plays: three tasks are put out and executed, and the machine crashes after `crash` operations;
/// then another worker reaps and drains. Gives how many operations a calm run takes.
fn play(crash: Option<usize>, power_cut: bool, seed: u64) -> usize {
    let sim = Arc::new(SimDisk::default());
    let disk: Arc<dyn Disk> = sim.clone();
    if let Some(crash) = crash {
        sim.crash_after(crash);
    }
    let mut acknowledged = BTreeSet::new();
    let mut executed = Vec::new();
    let begun = (|| {
        let queue = FsQueue::open(disk.clone(), Layout::new(Path::new("ws")), "boss", seed, true)?;
        queue.open_agent("qa")?;
        for number in 1..=3 {
            queue.enqueue(&[task(number, 5)])?;
            acknowledged.insert(number);
        }
        work(&disk, "first", seed + 1, &mut executed)
    })();
    if crash.is_none() {
        begun.unwrap();
    } else if power_cut {
        sim.restart(seed);
    } else {
        sim.restart_whole();
    }
    let operations = sim.operations();
    open(&disk, Path::new("ws"), "reaper", seed + 2).reap("first").unwrap();
    work(&disk, "second", seed + 3, &mut executed).unwrap();
    check(&disk, &acknowledged, &executed, crash, seed);
    operations
}

/// Every acknowledged task ended once, with a whole status, having been executed.
fn check(
    disk: &Arc<dyn Disk>,
    acknowledged: &BTreeSet<u64>,
    executed: &[u64],
    crash: Option<usize>,
    seed: u64,
) {
    let queue = open(disk, Path::new("ws"), "checker", 9);
    let mut ended: BTreeMap<String, u32> = BTreeMap::new();
    for (name, _) in queue.ended(End::Processed, "day").unwrap() {
        *ended.entry(name.task.label.clone()).or_default() += 1;
        let status = queue.status(End::Processed, "day", &name).unwrap();
        assert!(status.is_some(), "crash {crash:?}, seed {seed}: no status for {name:?}");
    }
    for number in acknowledged {
        let count = ended.get(&format!("t{number}")).copied().unwrap_or(0);
        assert_eq!(count, 1, "crash {crash:?}, seed {seed}: task {number} ended {count} times");
        assert!(executed.contains(number));
    }
    assert!(ended.values().all(|count| *count == 1), "crash {crash:?}, seed {seed}: {ended:?}");
    assert!(queue.claims("qa").unwrap().is_empty() && queue.waiting("qa").unwrap().is_empty());
}

#[test]
fn a_crash_after_any_operation_loses_nothing_and_ends_nothing_twice() {
    let operations = play(None, true, 1);
    assert!(operations > 30, "{operations}");
    for crash in 0..operations {
        play(Some(crash), false, crash as u64);
        for seed in 0..8 {
            play(Some(crash), true, seed * 1_000 + crash as u64);
        }
    }
}
