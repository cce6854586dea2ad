//! Heartbeat files: one shows to other processes that this process holds something, and a monitor
//! detects whether they still do.
//!
//! The file starts with a number that a thread increments. On the same kernel, the process itself
//! is checked; across machines that share a volume, a process counts as dead if its number did not
//! change for a whole lease. Times of different machines are never compared.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::base::process::{Process, uptime_ms};
use crate::base::random;
use crate::base::time::{Clock, SystemClock, Time};
use crate::disk::fs;
use crate::queue::watch::DeathWatch;

const BEAT: Duration = Duration::from_secs(2);
/// Time without a heartbeat after which a process counts as dead.
const LEASE_MS: u64 = 30_000;

/// The owner of a heartbeat file, and its purpose.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Owner {
    #[serde(flatten, deserialize_with = "crate::base::json::flattened")]
    pub process: Process,
    pub doing: String,
    pub since: Time,
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Owner { process, doing, since } = self;
        write!(
            f,
            "process {} on {} ({doing}, since {since})",
            process.pid,
            process.host,
            since = since.to_second()
        )
    }
}

/// Returns a unique random token.
pub(crate) fn new_word() -> String {
    random::word(random::chance())
}

/// Heartbeat of this process, visible to others as long as this value lives.
#[derive(Debug)]
pub(crate) struct Presence {
    pub word: String,
    path: PathBuf,
    beats: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Presence {
    pub(crate) fn enter(dir: &Path, doing: &str) -> io::Result<Presence> {
        fs::create_dir_all(dir)?;
        let word = new_word();
        let path = dir.join(&word);
        let process = Process::this();
        let owner = Owner { process, doing: doing.to_owned(), since: SystemClock.now() };
        let owner = serde_json::to_string(&owner).map_err(io::Error::other)?;
        fs::write(&path, format!("{}\n{owner}\n", number(0)))?;
        let (end, ended) = mpsc::channel::<()>();
        let beaten = path.clone();
        let beat = move || {
            for count in 1.. {
                match ended.recv_timeout(BEAT) {
                    Err(RecvTimeoutError::Timeout) => beat(&beaten, count),
                    _ => return,
                }
            }
        };
        let thread = std::thread::Builder::new().name("presence".into()).spawn(beat)?;
        Ok(Presence { word, path, beats: Some((end, thread)) })
    }
}

/// Formats the heartbeat with a constant length, so that a reader never sees a part of it.
fn number(count: u64) -> String {
    format!("{count:012}")
}

/// Writes one heartbeat. Does not recreate the file if another process removed it, and does not
/// retry if the volume does not answer: the monitors cannot read it then either.
fn beat(path: &Path, count: u64) {
    let file = OpenOptions::new().write(true).open(path);
    let _ = file.and_then(|file| file.write_all_at(number(count).as_bytes(), 0));
}

impl Drop for Presence {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.beats.take() {
            drop(end);
            let _ = thread.join();
        }
        let _ = fs::remove_file(&self.path);
    }
}

/// Monitors the heartbeats of other processes.
pub(crate) struct Watch {
    this: Process,
    deaths: DeathWatch,
}

/// State of another process.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sight {
    pub owner: Option<Owner>,
    pub dead: bool,
}

impl Watch {
    pub(crate) fn new() -> Watch {
        Watch::with_lease(LEASE_MS)
    }

    /// Creates a monitor for processes that may be silent longer, because they check on themselves.
    /// The lease is at least the default.
    pub(crate) fn with_lease(lease_ms: u64) -> Watch {
        let lease_ms = lease_ms.max(LEASE_MS);
        Watch { this: Process::this(), deaths: DeathWatch::new(lease_ms) }
    }

    pub(crate) fn look(&mut self, dir: &Path, word: &str) -> Sight {
        let bytes = fs::read(dir.join(word)).ok();
        let owner = bytes.as_deref().and_then(read_owner);
        let dead = match &owner {
            Some(owner) if owner.process.is_beside(&self.this) => !owner.process.lives_here(),
            _ => self.deaths.read(word, bytes, uptime_ms()).is_some(),
        };
        Sight { owner, dead }
    }
}

impl Default for Watch {
    fn default() -> Watch {
        Watch::new()
    }
}

fn read_owner(bytes: &[u8]) -> Option<Owner> {
    let text = std::str::from_utf8(bytes).ok()?;
    serde_json::from_str(text.split_once('\n')?.1).ok()
}

/// Removes the heartbeat file of a dead process. Call it only after no lock holds the process's
/// token: a token without a heartbeat file belongs to an unknown process, which may be alive.
pub(crate) fn forget(dir: &Path, word: &str) {
    let _ = fs::remove_file(dir.join(word));
}

/// Removes the heartbeat files of dead processes of this kernel, except for tokens in use.
pub(crate) fn sweep(dir: &Path, in_use: &dyn Fn(&str) -> bool) {
    let mut watch = Watch::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(word) = name.to_str().filter(|word| !in_use(word)) else { continue };
        let sight = watch.look(dir, word);
        if sight.owner.is_some() && sight.dead {
            forget(dir, word);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_who_is_there_is_seen_and_one_who_left_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let here = Presence::enter(dir.path(), "testing").unwrap();
        let sight = Watch::new().look(dir.path(), &here.word);
        assert!(!sight.dead);
        assert_eq!(sight.owner.as_ref().unwrap().doing, "testing");
        let path = here.path.clone();
        beat(&path, 7);
        assert!(fs::read_to_string(&path).unwrap().starts_with("000000000007\n{"));
        drop(here);
        assert!(!path.exists());
        beat(&path, 8);
        assert!(!path.exists(), "a beat brings nothing back");
    }

    #[test]
    fn the_dead_of_this_kernel_are_known_at_once_and_those_of_others_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let this = Process::this();
        let leave = |word: &str, process: Process| {
            let owner = Owner { process, doing: "x".into(), since: Time(0) };
            let owner = serde_json::to_string(&owner).unwrap();
            fs::write(dir.path().join(word), format!("{}\n{owner}\n", number(1))).unwrap();
        };
        leave("gone", Process { start_time: this.start_time + 1, ..this.clone() });
        leave("far", Process { boot_id: "other".into(), ..this.clone() });
        let mut watch = Watch::new();
        assert!(watch.look(dir.path(), "gone").dead);
        assert!(!watch.look(dir.path(), "far").dead && !watch.look(dir.path(), "none").dead);
        sweep(dir.path(), &|word| word == "gone");
        assert!(dir.path().join("gone").exists());
        sweep(dir.path(), &|_| false);
        assert!(!dir.path().join("gone").exists() && dir.path().join("far").exists());
    }
}
