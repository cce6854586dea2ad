//! Change notifications for browsers. One thread watches the workspace for all connections, and
//! only while at least one is open.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::disk::fs::{self, OnVolume as _};
use crate::disk::hint::{Bell, Hints};
use crate::queue::Layout;
use crate::run::project::runs_in;
use crate::store::{JOURNAL, STATE};

/// Poll interval, for changes without a notification (for example from another machine).
const LOOK: Duration = Duration::from_secs(2);
/// Pause after a change, so that changes in quick succession cause one notification.
const GATHER: Duration = Duration::from_millis(150);
/// Number of newest runs that are watched.
const RUNS: usize = 50;

pub(crate) struct Live {
    state_dir: PathBuf,
    layout: Layout,
    /// Rings after each change.
    pub bell: Bell,
    /// Rings to start a scan.
    wake: Arc<Bell>,
    watching: AtomicUsize,
    over: AtomicBool,
}

impl Live {
    pub(crate) fn start(workspace: &Path, state_dir: &Path) -> Arc<Live> {
        let live = Arc::new(Live {
            state_dir: state_dir.to_owned(),
            layout: Layout::new(workspace),
            bell: Bell::default(),
            wake: Arc::default(),
            watching: AtomicUsize::new(0),
            over: AtomicBool::new(false),
        });
        let own = live.clone();
        std::thread::spawn(move || own.watch());
        live
    }

    /// Ends the watcher thread and all streams.
    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
        self.wake.ring();
        self.bell.ring();
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Registers a viewer until the returned value is dropped.
    pub(crate) fn join(self: &Arc<Live>) -> Onlooker {
        self.watching.fetch_add(1, Ordering::SeqCst);
        self.wake.ring();
        Onlooker(self.clone())
    }

    fn watch(&self) {
        let mut seen = 0;
        let mut hints: Option<Hints> = None;
        while !self.is_over() {
            let heard = self.wake.rings();
            if self.watching.load(Ordering::SeqCst) == 0 {
                // Without viewers, watch nothing and wait for the next one.
                hints = None;
                self.wake.wait(heard, Duration::from_secs(3600));
                continue;
            }
            let dirs = self.dirs();
            let ringing = self.wake.clone();
            let hints = hints.get_or_insert_with(|| Hints::new(move |_, _| ringing.ring()));
            dirs.iter().filter(|dir| dir.is_present_dir()).for_each(|dir| {
                hints.add(dir);
            });
            let now = self.fingerprint(&dirs);
            if std::mem::replace(&mut seen, now) != now {
                self.bell.ring();
                std::thread::sleep(GATHER);
                continue;
            }
            self.wake.wait(heard, LOOK);
        }
    }

    /// Returns the directories where changes are visible.
    fn dirs(&self) -> Vec<PathBuf> {
        let mut dirs = vec![self.state_dir.clone(), self.layout.workers(), self.layout.pause()];
        for parent in [self.layout.inboxes(), self.layout.all_claimed()] {
            let inside = fs::read_dir(&parent).into_iter().flatten().flatten();
            dirs.extend(
                inside.map(|entry| entry.path()).filter(|path| path.is_present_dir()).take(64),
            );
            dirs.push(parent);
        }
        dirs.extend(runs_in(&self.state_dir).into_iter().take(RUNS).flat_map(|id| {
            let root = self.state_dir.join(id.as_str());
            [root.join("control"), root]
        }));
        dirs
    }

    /// Returns a hash that differs after a change.
    fn fingerprint(&self, dirs: &[PathBuf]) -> u64 {
        let mut hasher = DefaultHasher::new();
        let mut add = |path: &Path| {
            if let Ok(file) = fs::metadata(path) {
                (path, file.ino(), file.len(), file.mtime(), file.mtime_nsec()).hash(&mut hasher);
            }
        };
        for dir in dirs {
            add(dir);
            add(&dir.join(STATE));
            add(&dir.join(JOURNAL));
        }
        hasher.finish()
    }
}

pub(crate) struct Onlooker(Arc<Live>);

impl Drop for Onlooker {
    fn drop(&mut self) {
        self.0.watching.fetch_sub(1, Ordering::SeqCst);
    }
}
