//! Heartbeats: a ticket file shows that its owner is alive, and a monitor reads the tickets of
//! others.
//!
//! A ticket starts with a counter that a thread increments. On one kernel, a monitor checks the
//! owner's process instead. Across machines that share a volume, an owner counts as dead if its
//! counter did not change for its time to live, on the monitor's own clock. Clocks of different
//! machines are never compared.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::death_watch::DeathWatch;
use crate::base::host::{self, Thread};
use crate::base::process::{Process, uptime_ms};
use crate::base::time::Time;
use crate::disk::{self, Disk};

/// Interval between two heartbeats.
const INTERVAL: Duration = Duration::from_secs(2);
/// Minimum time without a heartbeat after which an owner counts as dead.
const TTL_MS: u64 = 30_000;
/// Silence that is worth a message: a live owner sends at least two heartbeats in this time.
const NOTABLE: Duration = Duration::from_secs(5);

/// The process that holds a lease or waits for it, and its purpose.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Owner {
    #[serde(flatten, deserialize_with = "crate::base::json::flattened")]
    pub process: Process,
    pub purpose: String,
    pub since: Time,
    /// Time without a heartbeat after which the owner counts as dead, if it is above the default.
    #[serde(default)]
    pub ttl_ms: u64,
    /// Data of the module that uses the lease.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub details: Value,
}

impl Owner {
    /// Returns true if the owner's process runs. A process that is not visible from here counts as
    /// running.
    pub(crate) fn may_live(&self) -> bool {
        !self.process.is_beside(&Process::this()) || self.process.lives_here()
    }
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Process { pid, host, .. } = &self.process;
        write!(f, "process {pid} on {host} ({}, since {})", self.purpose, self.since.to_second())
    }
}

/// The ticket of this process. A thread keeps its counter running until this value is dropped,
/// which removes the ticket.
pub(super) struct Heartbeat {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    ended: Arc<AtomicBool>,
    thread: Option<Thread>,
}

impl Heartbeat {
    /// Writes a ticket and starts its heartbeat.
    pub(super) fn start(
        disk: &Arc<dyn Disk>,
        path: PathBuf,
        owner: &Owner,
    ) -> io::Result<Heartbeat> {
        let owner = serde_json::to_string(owner).map_err(io::Error::other)?;
        disk::swap(&**disk, &path, format!("{}\n{owner}\n", counter(0)).as_bytes())?;
        let ended = Arc::new(AtomicBool::new(false));
        let mut heartbeat = Heartbeat { disk: disk.clone(), path, ended, thread: None };
        let (disk, path, ended) =
            (heartbeat.disk.clone(), heartbeat.path.clone(), heartbeat.ended.clone());
        heartbeat.thread = Some(host::spawn(move || {
            for count in 1.. {
                let is_over = || ended.load(Ordering::SeqCst);
                host::park(INTERVAL, &is_over);
                if is_over() || !beat(&*disk, &path, count) {
                    return;
                }
            }
        }));
        Ok(heartbeat)
    }
}

/// Formats the counter with a constant length, so that a reader never sees a part of it.
fn counter(count: u64) -> String {
    format!("{count:012}")
}

/// Writes one heartbeat. Returns false if the ticket is gone: others thought that this process was
/// dead, and a ticket that reappears would delay them. Does not retry if the volume does not
/// answer: the monitors cannot read then either.
fn beat(disk: &dyn Disk, path: &Path, count: u64) -> bool {
    match disk.read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return false,
        Err(_) => {}
        Ok(_) => drop(disk.overwrite(path, counter(count).as_bytes())),
    }
    true
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.wake();
            thread.join();
        }
        let _ = self.disk.remove(&self.path);
    }
}

/// State of an owner, as far as a monitor knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Liveness {
    Alive,
    /// An owner on another machine that was not observed long enough.
    Unknown,
    Dead,
}

/// One reading of a ticket.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    /// The owner, or `None` if the ticket is missing or unreadable.
    pub owner: Option<Owner>,
    pub liveness: Liveness,
    /// Time without a heartbeat of an owner on another machine, if it is long.
    pub silence: Option<Duration>,
}

/// Monitors the heartbeats of other owners.
pub(super) struct HeartbeatMonitor {
    this: Process,
    /// One watch per time to live.
    watches: HashMap<u64, DeathWatch>,
    /// Last change of each owner's ticket, and true if a change was observed.
    changes: HashMap<String, Change>,
}

struct Change {
    content: Option<Vec<u8>>,
    at_ms: u64,
    observed: bool,
}

impl HeartbeatMonitor {
    pub(super) fn new() -> HeartbeatMonitor {
        let (watches, changes) = (HashMap::new(), HashMap::new());
        HeartbeatMonitor { this: Process::this(), watches, changes }
    }

    /// Reads the ticket of an owner, which may be missing.
    pub(super) fn read(&mut self, disk: &dyn Disk, path: &Path, word: &str) -> Reading {
        let content = match disk.read(path) {
            Ok(content) => Some(content),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(_) => {
                // The volume does not answer: an outage is no sign of death.
                self.watches.values_mut().for_each(|watch| watch.keep(|known| known != word));
                return Reading { owner: None, liveness: Liveness::Unknown, silence: None };
            }
        };
        let owner = content.as_deref().and_then(parse_ticket);
        if let Some(owner) = owner.as_ref().filter(|owner| owner.process.is_beside(&self.this)) {
            let lives = owner.process.lives_here();
            let liveness = if lives { Liveness::Alive } else { Liveness::Dead };
            return Reading { owner: Some(owner.clone()), liveness, silence: None };
        }
        let now_ms = uptime_ms();
        let ttl_ms = owner.as_ref().map_or(0, |owner| owner.ttl_ms).max(TTL_MS);
        let watch = self.watches.entry(ttl_ms).or_insert_with(|| DeathWatch::new(ttl_ms));
        let is_dead = watch.read(word, content.clone(), now_ms).is_some();
        let fresh = || Change { content: content.clone(), at_ms: now_ms, observed: false };
        let change = self.changes.entry(word.to_owned()).or_insert_with(fresh);
        if change.content != content {
            *change = Change { content, at_ms: now_ms, observed: true };
        }
        let liveness = match (is_dead, change.observed) {
            (true, _) => Liveness::Dead,
            (false, true) => Liveness::Alive,
            (false, false) => Liveness::Unknown,
        };
        let silence = Duration::from_millis(now_ms.saturating_sub(change.at_ms));
        Reading { owner, liveness, silence: Some(silence).filter(|silence| *silence >= NOTABLE) }
    }
}

/// Parses a ticket: the counter, a line break, and the owner as JSON.
pub(super) fn parse_ticket(content: &[u8]) -> Option<Owner> {
    let text = std::str::from_utf8(content).ok()?;
    serde_json::from_str(text.split_once('\n')?.1).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::RealDisk;

    fn owner(process: Process) -> Owner {
        let (purpose, details) = ("testing".into(), Value::Null);
        Owner { process, purpose, since: Time(0), ttl_ms: 0, details }
    }

    #[test]
    fn a_ticket_shows_its_owner_and_disappears_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::default());
        let path = dir.path().join("1-me");
        let heartbeat = Heartbeat::start(&disk, path.clone(), &owner(Process::this())).unwrap();
        let reading = HeartbeatMonitor::new().read(&*disk, &path, "me");
        assert_eq!(reading.liveness, Liveness::Alive);
        assert_eq!(reading.owner.unwrap().purpose, "testing");
        assert!(beat(&*disk, &path, 7));
        assert!(std::fs::read_to_string(&path).unwrap().starts_with("000000000007\n{"));
        drop(heartbeat);
        assert!(!path.exists());
        assert!(!beat(&*disk, &path, 8) && !path.exists(), "a heartbeat restores nothing");
    }

    #[test]
    fn a_dead_process_of_this_kernel_is_known_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::default();
        let this = Process::this();
        let read = |monitor: &mut HeartbeatMonitor, process: Process| {
            let path = dir.path().join("1-other");
            let owner = serde_json::to_string(&owner(process)).unwrap();
            std::fs::write(&path, format!("{}\n{owner}\n", counter(1))).unwrap();
            monitor.read(&disk, &path, "other").liveness
        };
        let gone = Process { start_time: this.start_time + 1, ..this.clone() };
        let far = Process { boot_id: "other".into(), ..this };
        let mut monitor = HeartbeatMonitor::new();
        assert_eq!(read(&mut monitor, gone), Liveness::Dead);
        assert_eq!(read(&mut monitor, far), Liveness::Unknown);
        let missing = dir.path().join("1-missing");
        assert_eq!(monitor.read(&disk, &missing, "missing").liveness, Liveness::Unknown);
    }
}
