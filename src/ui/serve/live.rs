//! Who looks on is told when something has changed, once for all: one thread watches the workspace
//! for everybody, and only while somebody is there.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::fleet::hint::{Bell, Hints};
use crate::queue::Layout;
use crate::store::{JOURNAL, STATE};
use crate::ui::board::runs_in;

/// How often is looked where no hint comes, as from another machine.
const LOOK: Duration = Duration::from_secs(2);
/// What happens at once is told at once.
const GATHER: Duration = Duration::from_millis(150);
/// How many of the newest runs are watched.
const RUNS: usize = 50;

pub struct Live {
    state_dir: PathBuf,
    layout: Layout,
    /// Rings when something has changed.
    pub bell: Bell,
    /// Rings when the watcher is to look.
    wake: Arc<Bell>,
    watching: AtomicUsize,
    over: AtomicBool,
}

impl Live {
    pub fn start(workspace: &Path, state_dir: &Path) -> Arc<Live> {
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

    /// Ends everything that goes on.
    pub fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
        self.wake.ring();
        self.bell.ring();
    }

    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Somebody looks on, as long as what is returned lives.
    pub fn join(self: &Arc<Live>) -> Onlooker {
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
                // Nobody looks: nothing is watched, and nothing wakes us.
                hints = None;
                self.wake.wait(heard, Duration::from_secs(3600));
                continue;
            }
            let dirs = self.dirs();
            let ringing = self.wake.clone();
            let hints = hints.get_or_insert_with(|| Hints::new(move |_, _| ringing.ring()));
            dirs.iter().filter(|dir| dir.is_dir()).for_each(|dir| {
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

    /// Where changes show.
    fn dirs(&self) -> Vec<PathBuf> {
        let mut dirs = vec![self.state_dir.clone(), self.layout.workers(), self.layout.pause()];
        for parent in [self.layout.inboxes(), self.layout.all_claimed()] {
            let inside = std::fs::read_dir(&parent).into_iter().flatten().flatten();
            dirs.extend(inside.map(|entry| entry.path()).filter(|path| path.is_dir()).take(64));
            dirs.push(parent);
        }
        dirs.extend(runs_in(&self.state_dir).into_iter().take(RUNS).flat_map(|id| {
            let root = self.state_dir.join(id.as_str());
            [root.join("control"), root]
        }));
        dirs
    }

    /// What differs if something has changed.
    fn fingerprint(&self, dirs: &[PathBuf]) -> u64 {
        let mut hasher = DefaultHasher::new();
        let mut add = |path: &Path| {
            if let Ok(file) = std::fs::metadata(path) {
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

pub struct Onlooker(Arc<Live>);

impl Drop for Onlooker {
    fn drop(&mut self) {
        self.0.watching.fetch_sub(1, Ordering::SeqCst);
    }
}
