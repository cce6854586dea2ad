//! What was seen before and has not changed since, so that looking again costs little.
//!
//! **Invariant:** something is remembered only by the stamps of the files that it was read from,
//! and only if those were not touched just now: a change in the same tick of the clock would leave
//! the same stamp.

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::RunView;
use crate::engine::Run;
use crate::fleet::intake::is_dropped;
use crate::ids::RunId;
use crate::queue::{FsQueue, Queue, TaskName};
use crate::store;
use crate::time::{Clock, SystemClock, Time};
use crate::workflow::Plan;

/// A file touched later than this may be touched again without a trace.
const TICK_MS: u64 = 100;
/// How long this machine's clock counts on from what the volume's clock said.
const CLOCK_GOOD_FOR: Duration = Duration::from_secs(60);

/// By what a change of a file is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamp {
    path: PathBuf,
    ino: u64,
    size: u64,
    modified: (i64, i64),
}

impl Stamp {
    /// The stamp of a file; nothing, if it is not there or was touched just now.
    fn of(path: &Path, now: Time) -> Option<Stamp> {
        let file = std::fs::metadata(path).ok()?;
        let touched = Time(file.mtime() * 1000 + file.mtime_nsec() / 1_000_000);
        (now.ms_since(touched) > TICK_MS).then(|| Stamp {
            path: path.to_owned(),
            ino: file.ino(),
            size: file.size(),
            modified: (file.mtime(), file.mtime_nsec()),
        })
    }
}

/// An inbox: the tasks that wait, in the order of claims, and how many files were dropped.
#[derive(Default)]
pub struct Waiting {
    pub names: Vec<TaskName>,
    pub dropped: usize,
}

/// What was seen of the beat of a member on another machine.
struct Heard {
    beat: Option<Vec<u8>>,
    /// When it was seen to change.
    moved: Option<Instant>,
}

/// A run that is not over, and its plan.
type Opened = Arc<(Plan, Run)>;

/// What one who looks again and again remembers.
#[derive(Default)]
pub struct Memory {
    over: Mutex<HashMap<RunId, (Stamp, RunView)>>,
    open: Mutex<HashMap<RunId, (Vec<Stamp>, Opened)>>,
    inboxes: Mutex<HashMap<String, (Stamp, Arc<Waiting>)>>,
    counts: Mutex<HashMap<PathBuf, (Stamp, usize)>>,
    /// The runs that tasks are, by their files. A name is never used again.
    pub(super) runs: Mutex<HashMap<String, Option<RunId>>>,
    beats: Mutex<HashMap<String, Heard>>,
    /// The volume's clock in milliseconds, and when it said so.
    clock: Mutex<Option<(i64, Instant)>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Memory {
    /// A run that is over, as it was shown before.
    pub(super) fn over(&self, id: &RunId, state: &Path) -> Option<RunView> {
        let stamp = Stamp::of(state, SystemClock.now())?;
        lock(&self.over).get(id).filter(|(known, _)| *known == stamp).map(|(_, view)| view.clone())
    }

    /// The stamp must have been taken before the file was read.
    pub(super) fn keep_over(&self, id: &RunId, stamp: Option<Stamp>, view: &RunView) {
        if let Some(stamp) = stamp {
            lock(&self.over).insert(id.clone(), (stamp, view.clone()));
        }
    }

    pub(super) fn stamp(path: &Path) -> Option<Stamp> {
        Stamp::of(path, SystemClock.now())
    }

    /// A run that is not over: what it is made of, read again only if a journal or its state was
    /// written.
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

    /// What waits in an inbox.
    pub(super) fn waiting(&self, queue: &FsQueue, agent: &str) -> io::Result<Arc<Waiting>> {
        let dir = queue.layout.inbox(agent);
        let stamp = Memory::stamp(&dir);
        if let (Some(stamp), Some((known, waiting))) = (&stamp, lock(&self.inboxes).get(agent))
            && known == stamp
        {
            return Ok(waiting.clone());
        }
        let names = queue.waiting(agent)?;
        let waiting = Arc::new(Waiting { names, dropped: dropped_in(&dir) });
        if let Some(stamp) = stamp {
            lock(&self.inboxes).insert(agent.to_owned(), (stamp, waiting.clone()));
        }
        Ok(waiting)
    }

    /// How many there are in a directory, counted by `count`.
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

    /// How many milliseconds ago a heartbeat was seen to change, by this machine's clock; nothing,
    /// as long as no change was seen.
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

    /// What the volume's clock says now. Asks the volume seldom and counts on by this machine's
    /// own clock; nothing, where this process may not write there.
    pub(super) fn volume_now_ms(&self, queue: &FsQueue) -> Option<i64> {
        let mut clock = lock(&self.clock);
        if clock.is_none_or(|(_, asked)| asked.elapsed() > CLOCK_GOOD_FOR) {
            *clock = queue.volume_now_ms().ok().map(|now| (now, Instant::now()));
        }
        let (then, asked) = (*clock)?;
        Some(then.saturating_add(i64::try_from(asked.elapsed().as_millis()).ok()?))
    }
}

/// The stamps of the files that say where a run stands, or nothing if one was touched just now.
fn of_run(root: &Path) -> Option<Vec<Stamp>> {
    let now = SystemClock.now();
    let entries = std::fs::read_dir(root).ok()?.flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> =
        names.filter(|name| name.starts_with("journal") || name == store::STATE).collect();
    names.sort();
    names.iter().map(|name| Stamp::of(&root.join(name), now)).collect()
}

/// How many files people dropped into an inbox and nobody has taken in yet.
pub(super) fn dropped_in(inbox: &Path) -> usize {
    let entries = std::fs::read_dir(inbox).into_iter().flatten().flatten();
    entries.filter(|entry| is_dropped(&entry.file_name())).count()
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
