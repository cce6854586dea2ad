//! Hints: something may have changed. What is true is found by looking; a hint only says when.
//!
//! A change made on this machine rings at once, through `notify`. One made on another does not,
//! and on some volumes none does, so whoever waits for a hint also looks by itself from time to
//! time ([`Patience`]).

use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use notify::event::{EventKind, ModifyKind, RenameMode};
use notify::{RecommendedWatcher, RecursiveMode, Watcher};

/// Wakes everybody who waits. A ring between looking and waiting is not missed.
#[derive(Default)]
pub struct Bell {
    rings: Mutex<u64>,
    rung: Condvar,
}

impl Bell {
    fn lock(&self) -> MutexGuard<'_, u64> {
        self.rings.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    pub fn ring(&self) {
        *self.lock() += 1;
        self.rung.notify_all();
    }

    /// How often it has rung; taken before looking.
    pub fn rings(&self) -> u64 {
        *self.lock()
    }

    /// Waits until it has rung more often than that, or the time is over.
    pub fn wait(&self, heard: u64, time: Duration) {
        let quiet = |rings: &mut u64| *rings <= heard;
        let waited = self.rung.wait_timeout_while(self.lock(), time, quiet);
        drop(waited.unwrap_or_else(|poison| poison.into_inner()));
    }
}

/// What happened in a watched directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Came(String),
    Went(String),
    /// Something was written, or more happened than could be told.
    Other,
}

/// Watches directories as long as it lives.
pub struct Hints {
    watcher: Option<RecommendedWatcher>,
}

impl Hints {
    /// Begins to watch. Without a watcher (no more of them, or a file system that has none) all
    /// goes on by looking, which is said once.
    pub fn new(tell: impl Fn(&Path, Change) + Send + 'static) -> Hints {
        let heard = move |event: notify::Result<notify::Event>| {
            let Ok(event) = event else { return };
            for path in &event.paths {
                let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
                let (Some(dir), Some(name)) = (path.parent(), name) else { continue };
                match event.kind {
                    EventKind::Access(access) if !is_close_after_write(access) => {}
                    EventKind::Create(_) | EventKind::Modify(ModifyKind::Name(RenameMode::To)) => {
                        tell(dir, Change::Came(name));
                    }
                    EventKind::Remove(_)
                    | EventKind::Modify(ModifyKind::Name(RenameMode::From)) => {
                        tell(dir, Change::Went(name));
                    }
                    EventKind::Modify(ModifyKind::Name(_)) => {}
                    _ => tell(dir, Change::Other),
                }
            }
            if event.need_rescan() {
                tell(Path::new(""), Change::Other);
            }
        };
        let watcher = notify::recommended_watcher(heard);
        Hints { watcher: watcher.map_err(|error| degraded(&error)).ok() }
    }

    /// Adds a directory. Says whether its changes will be told.
    pub fn add(&mut self, dir: &Path) -> bool {
        let Some(watcher) = &mut self.watcher else { return false };
        match watcher.watch(dir, RecursiveMode::NonRecursive) {
            Ok(()) => true,
            Err(error) => {
                degraded(&error);
                self.watcher = None;
                false
            }
        }
    }

    pub fn are_told(&self) -> bool {
        self.watcher.is_some()
    }
}

fn is_close_after_write(access: notify::event::AccessKind) -> bool {
    use notify::event::{AccessKind, AccessMode};
    access == AccessKind::Close(AccessMode::Write)
}

fn degraded(error: &notify::Error) {
    tracing::warn!("changes of directories are not told ({error}); they are looked for instead");
}

/// How long to wait before looking again: short while work flows, longer and longer when not.
pub struct Patience {
    least: Duration,
    most: Duration,
    now: Duration,
    drawn: u64,
}

impl Patience {
    pub fn new(least: Duration, most: Duration, seed: u64) -> Patience {
        Patience { least, most: most.max(least), now: least, drawn: seed | 1 }
    }

    /// Work flows.
    pub fn reset(&mut self) {
        self.now = self.least;
    }

    /// The next wait, give or take three tenths, so that many do not look at the same time.
    pub fn next_wait(&mut self) -> Duration {
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
    use std::sync::Arc;
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
        assert_eq!(told.recv().unwrap(), (a, Change::Went("y".into())));
    }
}
