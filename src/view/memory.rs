//! Cache of earlier scans, so that repeated scans are cheap.
//!
//! **Invariant:** a cached value is valid only for the stamps of the files it was read from, and it
//! is cached only if those were not modified just now: another change in the same clock tick would
//! leave the same stamp.

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::RunView;
use crate::base::ids::RunId;
use crate::base::time::{Clock, SystemClock, Time};
use crate::disk::fs;
use crate::engine::Run;
use crate::free_task::intake::count_dropped;
use crate::queue::{Queue, TaskName};
use crate::store;
use crate::workflow::Plan;

/// A file modified less than this long ago may change again without a new stamp.
const TICK_MS: u64 = 100;
/// Time for which this machine's clock extrapolates the volume's clock.
const CLOCK_GOOD_FOR: Duration = Duration::from_secs(60);

/// Identifies a version of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    path: PathBuf,
    ino: u64,
    size: u64,
    modified: (i64, i64),
}

impl Stamp {
    /// Returns the stamp of a file; `None` if it does not exist or was modified just now.
    fn of(path: &Path, now: Time) -> Option<Stamp> {
        let file = fs::metadata(path).ok()?;
        let touched = Time(file.mtime() * 1000 + file.mtime_nsec() / 1_000_000);
        (now.ms_since(touched) > TICK_MS).then(|| Stamp {
            path: path.to_owned(),
            ino: file.ino(),
            size: file.size(),
            modified: (file.mtime(), file.mtime_nsec()),
        })
    }
}

/// An inbox: the waiting tasks in claim order, and the number of dropped files.
#[derive(Default)]
pub(super) struct Waiting {
    pub names: Vec<TaskName>,
    pub dropped: usize,
}

/// Observation of the heartbeat of a member on another machine.
struct Heard {
    beat: Option<Vec<u8>>,
    /// Time of the last observed change.
    moved: Option<Instant>,
}

/// A run that has not ended, and its plan.
type Opened = Arc<(Plan, Run)>;

/// The cache of a process that scans repeatedly.
#[derive(Default)]
pub(crate) struct Memory {
    over: Mutex<HashMap<RunId, (Stamp, RunView)>>,
    open: Mutex<HashMap<RunId, (Vec<Stamp>, Opened)>>,
    inboxes: Mutex<HashMap<String, (Stamp, Arc<Waiting>)>>,
    counts: Mutex<HashMap<PathBuf, (Stamp, usize)>>,
    /// The runs that tasks represent, by file name. A name is never reused.
    pub(super) runs: Mutex<HashMap<String, Option<RunId>>>,
    beats: Mutex<HashMap<String, Heard>>,
    /// The volume's clock in milliseconds, and the time of that reading.
    clock: Mutex<Option<(i64, Instant)>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Memory {
    /// Returns the cached view of an ended run.
    pub(super) fn over(&self, id: &RunId, state: &Path) -> Option<RunView> {
        let stamp = Stamp::of(state, SystemClock.now())?;
        lock(&self.over).get(id).filter(|(known, _)| *known == stamp).map(|(_, view)| view.clone())
    }

    /// Caches the view of an ended run. The stamp must have been taken before the file was read.
    pub(super) fn keep_over(&self, id: &RunId, stamp: Option<Stamp>, view: &RunView) {
        if let Some(stamp) = stamp {
            lock(&self.over).insert(id.clone(), (stamp, view.clone()));
        }
    }

    pub(super) fn stamp(path: &Path) -> Option<Stamp> {
        Stamp::of(path, SystemClock.now())
    }

    /// Returns a run that has not ended; reads it again only if a journal or its state was written.
    pub(super) fn open<E>(
        &self,
        id: &RunId,
        root: &Path,
        read: impl FnOnce() -> Result<(Plan, Run), E>,
    ) -> Result<Opened, E> {
        let stamps = of_run(root);
        if let (Some(stamps), Some((known, run))) = (&stamps, lock(&self.open).get(id))
            && known == stamps
        {
            return Ok(run.clone());
        }
        let run = Arc::new(read()?);
        if let Some(stamps) = stamps {
            lock(&self.open).insert(id.clone(), (stamps, run.clone()));
        }
        Ok(run)
    }

    /// Returns the content of an inbox.
    pub(super) fn waiting(&self, queue: &Queue, agent: &str) -> io::Result<Arc<Waiting>> {
        let dir = queue.layout.inbox(agent);
        let stamp = Memory::stamp(&dir);
        if let (Some(stamp), Some((known, waiting))) = (&stamp, lock(&self.inboxes).get(agent))
            && known == stamp
        {
            return Ok(waiting.clone());
        }
        let inbox = queue.inbox_listing(agent)?;
        let dropped = count_dropped(&inbox.foreign);
        let waiting = Arc::new(Waiting { names: inbox.entries, dropped });
        if let Some(stamp) = stamp {
            lock(&self.inboxes).insert(agent.to_owned(), (stamp, waiting.clone()));
        }
        Ok(waiting)
    }

    /// Returns the number of entries in a directory, computed by `count` if it is not cached.
    pub(super) fn count(
        &self,
        dir: &Path,
        count: impl FnOnce() -> io::Result<usize>,
    ) -> io::Result<usize> {
        let stamp = Memory::stamp(dir);
        if let (Some(stamp), Some((known, count))) = (&stamp, lock(&self.counts).get(dir))
            && known == stamp
        {
            return Ok(*count);
        }
        let count = count()?;
        if let Some(stamp) = stamp {
            lock(&self.counts).insert(dir.to_owned(), (stamp, count));
        }
        Ok(count)
    }

    /// Returns the milliseconds since the last observed change of a heartbeat, by this machine's
    /// clock; `None` if no change has been observed.
    pub(super) fn beat_moved_ms(&self, who: &str, now: Option<Vec<u8>>) -> Option<u64> {
        let mut beats = lock(&self.beats);
        let Some(heard) = beats.get_mut(who) else {
            beats.insert(who.to_owned(), Heard { beat: now, moved: None });
            return None;
        };
        if heard.beat != now {
            *heard = Heard { beat: now, moved: Some(Instant::now()) };
        }
        heard.moved.and_then(|moved| u64::try_from(moved.elapsed().as_millis()).ok())
    }

    /// Returns the current time of the volume's clock. Asks the volume rarely and extrapolates with
    /// this machine's clock; `None` if this process may not write to the volume.
    pub(super) fn volume_now_ms(&self, queue: &Queue) -> Option<i64> {
        let mut clock = lock(&self.clock);
        if clock.is_none_or(|(_, asked)| asked.elapsed() > CLOCK_GOOD_FOR) {
            *clock = queue.volume_now_ms().ok().map(|now| (now, Instant::now()));
        }
        let (then, asked) = (*clock)?;
        Some(then.saturating_add(i64::try_from(asked.elapsed().as_millis()).ok()?))
    }
}

/// Returns the stamps of the files with a run's state; `None` if one was modified just now.
fn of_run(root: &Path) -> Option<Vec<Stamp>> {
    let now = SystemClock.now();
    let entries = fs::read_dir(root).ok()?.flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> =
        names.filter(|name| name.starts_with("journal") || name == store::STATE).collect();
    names.sort();
    names.iter().map(|name| Stamp::of(&root.join(name), now)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_touched_just_now_is_not_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x");
        std::fs::write(&file, "a").unwrap();
        let now = SystemClock.now();
        assert_eq!(Stamp::of(&file, now), None);
        let later = Time(now.0 + 1000);
        let first = Stamp::of(&file, later);
        assert!(first.is_some() && first == Stamp::of(&file, later));
        std::fs::write(&file, "ab").unwrap();
        assert_ne!(first, Stamp::of(&file, later));
        assert_eq!(Stamp::of(&dir.path().join("y"), later), None);
    }

    #[test]
    fn a_heartbeat_that_changes_is_seen_by_looking_twice() {
        let memory = Memory::default();
        let beat = |text: &str| Some(text.into());
        assert_eq!(memory.beat_moved_ms("a", beat("1")), None);
        assert_eq!(memory.beat_moved_ms("a", beat("1")), None);
        assert!(memory.beat_moved_ms("a", beat("2")).is_some());
        assert!(memory.beat_moved_ms("a", beat("2")).is_some());
        assert_eq!(memory.beat_moved_ms("b", beat("2")), None);
    }
}
