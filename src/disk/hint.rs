//! Change hints: a hint only reports that something may have changed. The receiver scans to learn
//! the actual state.
//!
//! inotify reports a change made on this machine at once. It does not report changes made on other
//! machines and, on some volumes, no change at all. Every waiter therefore also polls
//! ([`Patience`]).

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use crate::base::host;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};

/// Wakes all waiting threads. A ring between a scan and the wait after it is not lost.
#[derive(Default)]
pub(crate) struct Bell {
    rings: Mutex<u64>,
    rung: Condvar,
}

impl Bell {
    fn lock(&self) -> MutexGuard<'_, u64> {
        self.rings.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    pub(crate) fn ring(&self) {
        *self.lock() += 1;
        self.rung.notify_all();
        host::poke();
    }

    /// Number of rings so far. Read it before a scan.
    pub(crate) fn rings(&self) -> u64 {
        *self.lock()
    }

    /// Waits until the number of rings exceeds `heard`, or until the timeout.
    pub(crate) fn wait(&self, heard: u64, time: Duration) {
        host::wait(time, &mut || *self.lock() > heard, || {
            let quiet = |rings: &mut u64| *rings <= heard;
            let waited = self.rung.wait_timeout_while(self.lock(), time, quiet);
            drop(waited.unwrap_or_else(|poison| poison.into_inner()));
        });
    }
}

/// A change in a watched directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Came(String),
    Went(String),
    /// A file was written, or the event queue overflowed.
    Other,
}

/// inotify events to report. Opening a directory is not among them: a scan would wake itself.
const TOLD: AddWatchFlags = AddWatchFlags::IN_CREATE
    .union(AddWatchFlags::IN_MOVED_TO)
    .union(AddWatchFlags::IN_MOVED_FROM)
    .union(AddWatchFlags::IN_DELETE)
    .union(AddWatchFlags::IN_CLOSE_WRITE)
    .union(AddWatchFlags::IN_MODIFY)
    .union(AddWatchFlags::IN_ATTRIB);

/// Watches directories until it is dropped.
pub(crate) struct Hints {
    watcher: Option<Watcher>,
}

/// The inotify instance; a thread reads its events.
struct Watcher {
    line: Arc<Inotify>,
    dirs: Arc<Mutex<HashMap<WatchDescriptor, PathBuf>>>,
    over: Arc<EventFd>,
}

impl Hints {
    /// Starts the watcher. If there is none (no inotify instance left, or an unsupported file
    /// system), callers depend on polling alone; that is logged once.
    pub(crate) fn new(tell: impl Fn(&Path, Change) + Send + 'static) -> Hints {
        #[cfg(test)]
        if host::is_simulated() {
            return Hints { watcher: None };
        }
        Hints { watcher: Watcher::start(tell).map_err(degraded).ok() }
    }

    /// Adds a directory. Returns true if its changes will be reported.
    pub(crate) fn add(&mut self, dir: &Path) -> bool {
        let Some(watcher) = &self.watcher else { return false };
        match watcher.add(dir) {
            Ok(()) => true,
            Err(error) => {
                degraded(error);
                self.watcher = None;
                false
            }
        }
    }

    pub(crate) fn are_told(&self) -> bool {
        self.watcher.is_some()
    }
}

impl Watcher {
    fn start(tell: impl Fn(&Path, Change) + Send + 'static) -> Result<Watcher, Errno> {
        let line = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let over = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let (line, over) = (Arc::new(line), Arc::new(over));
        let watcher = Watcher { line, over, dirs: Arc::default() };
        let (line, over, dirs) = (watcher.line.clone(), watcher.over.clone(), watcher.dirs.clone());
        std::thread::spawn(move || {
            while wait(&line, &over) {
                for event in line.read_events().unwrap_or_default() {
                    let dir = lock(&dirs).get(&event.wd).cloned();
                    hear(&event, dir.as_deref(), &tell);
                }
            }
        });
        Ok(watcher)
    }

    fn add(&self, dir: &Path) -> Result<(), Errno> {
        // Held until the path is stored; otherwise the first event would have an unknown directory.
        let mut dirs = lock(&self.dirs);
        let watched = self.line.add_watch(dir, TOLD | AddWatchFlags::IN_ONLYDIR)?;
        dirs.insert(watched, dir.to_owned());
        Ok(())
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let _ = self.over.write(1);
    }
}

/// Waits for an event. Returns false if the watcher was dropped.
fn wait(line: &Inotify, over: &EventFd) -> bool {
    let mut fds = [
        PollFd::new(line.as_fd(), PollFlags::POLLIN),
        PollFd::new(over.as_fd(), PollFlags::POLLIN),
    ];
    match poll(&mut fds, PollTimeout::NONE) {
        Ok(_) => !fds[1].any().unwrap_or(true),
        Err(error) => error == Errno::EINTR,
    }
}

fn hear(event: &InotifyEvent, dir: Option<&Path>, tell: &impl Fn(&Path, Change)) {
    let any = |flags: AddWatchFlags| event.mask.intersects(flags);
    if any(AddWatchFlags::IN_Q_OVERFLOW) {
        return tell(Path::new(""), Change::Other);
    }
    // Events about the directory itself have no name.
    let (Some(dir), Some(name)) = (dir, &event.name) else { return };
    let name = name.to_string_lossy().into_owned();
    if any(AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO) {
        tell(dir, Change::Came(name));
    } else if any(AddWatchFlags::IN_DELETE | AddWatchFlags::IN_MOVED_FROM) {
        tell(dir, Change::Went(name));
    } else if any(TOLD) {
        tell(dir, Change::Other);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poison| poison.into_inner())
}

fn degraded(error: Errno) {
    tracing::warn!("changes of directories are not told ({error}); they are looked for instead");
}

/// A scan is followed by a pause of this many times its duration.
const SHARE: u32 = 20;
/// Upper bound of the pause after a slow scan, as a multiple of `Patience::most`.
const LONGEST: u32 = 15;

/// Poll interval: short while there is work, doubling while there is none.
pub(crate) struct Patience {
    least: Duration,
    most: Duration,
    now: Duration,
    drawn: u64,
}

impl Patience {
    pub(crate) fn new(least: Duration, most: Duration, seed: u64) -> Patience {
        Patience { least, most: most.max(least), now: least, drawn: seed | 1 }
    }

    /// Resets the interval, because there is work.
    pub(crate) fn reset(&mut self) {
        self.now = self.least;
    }

    /// Returns the wait after a scan of this duration. Scans take at most a twentieth of the time,
    /// however long the listing. The wait is capped, because the cause of a slow scan (a paused
    /// process, an unavailable volume) does not predict the next one.
    pub(crate) fn wait_after(&mut self, took: Duration) -> Duration {
        let longest = self.most * LONGEST;
        self.next_wait().max(took.saturating_mul(SHARE).min(longest))
    }

    /// Returns the next wait, with a jitter of 30%, so that many processes do not scan at the same
    /// time.
    pub(crate) fn next_wait(&mut self) -> Duration {
        let wait = self.now;
        self.now = (self.now * 2).min(self.most);
        self.drawn ^= self.drawn << 13;
        self.drawn ^= self.drawn >> 7;
        self.drawn ^= self.drawn << 17;
        wait.mul_f64(0.7 + 0.6 * (self.drawn % 1000) as f64 / 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_ring_before_the_wait_is_heard() {
        let bell = Arc::new(Bell::default());
        let heard = bell.rings();
        bell.ring();
        bell.wait(heard, Duration::from_secs(3600));
        let heard = bell.rings();
        bell.wait(heard, Duration::from_millis(1));
        let other = bell.clone();
        let ringing = std::thread::spawn(move || other.ring());
        bell.wait(heard, Duration::from_secs(3600));
        ringing.join().unwrap();
    }

    #[test]
    fn waits_grow_to_the_most_and_begin_anew() {
        let ms = Duration::from_millis;
        let mut patience = Patience::new(ms(100), ms(2000), 7);
        let waits: Vec<_> = (0..8).map(|_| patience.next_wait()).collect();
        assert!(waits[0] <= ms(130) && waits[0] >= ms(70), "{waits:?}");
        assert!(waits[7] <= ms(2600) && waits[7] >= ms(1400), "{waits:?}");
        patience.reset();
        assert!(patience.next_wait() <= ms(130));
    }

    #[test]
    fn a_slow_look_makes_for_a_longer_wait_but_not_for_blindness() {
        let (ms, secs) = (Duration::from_millis, Duration::from_secs);
        let mut patience = Patience::new(ms(100), ms(2000), 7);
        assert!(patience.wait_after(ms(1)) <= ms(130));
        assert_eq!(patience.wait_after(ms(500)), secs(10));
        // It was paused for minutes in the middle of a look.
        assert_eq!(patience.wait_after(secs(600)), secs(30));
        assert_eq!(patience.wait_after(Duration::MAX), secs(30));
    }

    #[test]
    fn a_rename_into_and_out_of_a_directory_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let (a, b) = (root.join("a"), root.join("b"));
        std::fs::create_dir(&a).unwrap();
        std::fs::create_dir(&b).unwrap();
        std::fs::write(b.join("x"), "").unwrap();
        let (tell, told) = mpsc::channel();
        let tell = std::sync::Mutex::new(tell);
        let mut hints = Hints::new(move |dir, change| {
            let _ = tell.lock().unwrap().send((dir.to_owned(), change));
        });
        assert!(hints.add(&a));
        crate::disk::rename(&b.join("x"), &a.join("y")).unwrap();
        assert_eq!(told.recv().unwrap(), (a.clone(), Change::Came("y".into())));
        crate::disk::rename(&a.join("y"), &b.join("z")).unwrap();
        assert_eq!(told.recv().unwrap(), (a.clone(), Change::Went("y".into())));
        // Looking is no change, and after the last ear is gone nothing is told.
        assert_eq!(std::fs::read_dir(&a).unwrap().count(), 0);
        std::fs::write(a.join("z"), "").unwrap();
        assert_eq!(told.recv().unwrap(), (a.clone(), Change::Came("z".into())));
        assert_eq!(told.recv().unwrap(), (a, Change::Other));
        drop(hints);
        assert!(told.recv().is_err(), "its thread has ended");
    }
}
