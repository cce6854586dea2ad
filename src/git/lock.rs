//! One lock per repository: for commands that touch its list of worktrees, which fail when two run
//! concurrently, and for all other operations that must not run twice at the same time.
//!
//! The lock token is one file, `free.<word>` or `held.<word>`. A process takes it by a rename,
//! which exactly one of several processes wins on any volume, even where kernel locks are local to
//! a machine or missing. [`super::heartbeat`] shows the holder, and a dead holder loses the token
//! by the same kind of rename. The holder also has a kernel lock on a second file, and every `git`
//! that it starts holds that one, too: if the holder is killed while a command runs, the next
//! holder waits until the command has ended. On a volume without such locks, that cannot be
//! detected.
//!
//! **Invariant:** every rename targets a name that never existed, so after an error, a listing of
//! the target shows whether the rename happened.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::Git;
use super::heartbeat::{self, Presence, Watch, new_word};
use crate::disk::fs;
use crate::disk::{self, faulty::has_locks, locks::try_lock};

/// Maximum time to wait for another holder.
pub(crate) const WAIT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(10);
const FREE: &str = "free.";
const HELD: &str = "held.";

#[derive(Debug, thiserror::Error)]
pub(crate) enum LockError {
    #[error("the repository is in use: {owner}; waited {} s", waited.as_secs())]
    Busy { owner: String, waited: Duration },
    #[error("the lock of the repository was lost: others thought that this process was dead")]
    Lost,
    #[error("cannot lock the repository in `{}`: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// The lock, held until it is dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    batons: PathBuf,
    me: Presence,
    held: Option<Arc<File>>,
}

/// Content of the lock token's directory.
enum Baton {
    Free(String),
    Held(String),
}

impl Lock {
    /// Takes the lock of the repository with this common directory. After `wait`, fails with the
    /// holder.
    pub(crate) fn take(common: &Path, doing: &str, wait: Duration) -> Result<Lock, LockError> {
        let home = common.join("coven");
        Lock::take_in(&home, doing, wait).map_err(|error| match error {
            Trouble::Busy { owner } => LockError::Busy { owner, waited: wait },
            Trouble::Io(source) => LockError::Io { path: home, source },
        })
    }

    fn take_in(home: &Path, doing: &str, wait: Duration) -> Result<Lock, Trouble> {
        let (owners, batons) = (owners(home), home.join("lock"));
        let me = Presence::enter(&owners, doing)?;
        let target = batons.join(format!("{HELD}{}", me.word));
        let mut watch = Watch::new();
        let until = Instant::now() + wait;
        loop {
            let mut owner = String::from("somebody");
            match baton(&batons)? {
                None => lay(home, &batons)?,
                Some(Baton::Free(name)) => {
                    if moved(&batons.join(name), &target)? {
                        break;
                    }
                }
                Some(Baton::Held(word)) => {
                    let sight = watch.look(&owners, &word);
                    let name = format!("{HELD}{word}");
                    if sight.dead && moved(&batons.join(name), &target)? {
                        heartbeat::forget(&owners, &word);
                        break;
                    }
                    owner = sight.owner.map_or(owner, |owner| owner.to_string());
                }
            }
            if Instant::now() >= until {
                return Err(Trouble::Busy { owner });
            }
            std::thread::sleep(POLL);
        }
        // From here on, dropping the value releases the lock token on every path.
        let mut lock = Lock { batons, me, held: None };
        lock.held = kernel_lock(&home.join("lock.kernel"), until)?;
        Ok(lock)
    }

    /// Returns a `git` for a directory. Each of its commands holds the kernel lock while it runs.
    pub(crate) fn git(&self, dir: &Path) -> Result<Git, LockError> {
        self.is_held()?;
        Ok(Git::at(dir).holding(self.held.clone()))
    }

    /// Fails if this process slept long enough to lose the lock: it must not continue.
    pub(crate) fn is_held(&self) -> Result<(), LockError> {
        let mine = self.batons.join(format!("{HELD}{}", self.me.word));
        match listed(&mine) {
            Ok(true) => Ok(()),
            Ok(false) => Err(LockError::Lost),
            Err(source) => Err(LockError::Io { path: mine, source }),
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let mine = self.batons.join(format!("{HELD}{}", self.me.word));
        let free = self.batons.join(format!("{FREE}{}", new_word()));
        // If this fails, other processes eventually see that this process is gone.
        let _ = moved(&mine, &free);
    }
}

enum Trouble {
    Busy { owner: String },
    Io(io::Error),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Trouble {
        Trouble::Io(error)
    }
}

/// Directory with the heartbeat files of processes that hold something of a repository.
pub(crate) fn owners(home: &Path) -> PathBuf {
    home.join("owners")
}

fn baton(batons: &Path) -> io::Result<Option<Baton>> {
    let entries = match fs::read_dir(batons) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if let Some(word) = name.strip_prefix(HELD) {
            return Ok(Some(Baton::Held(word.to_owned())));
        }
        if name.starts_with(FREE) {
            return Ok(Some(Baton::Free(name)));
        }
    }
    Ok(None)
}

/// Creates the lock token, in a directory that is renamed into place as a whole: the rename fails
/// if a directory with a token already exists, so there is never a second one.
fn lay(home: &Path, batons: &Path) -> io::Result<()> {
    let word = new_word();
    let scratch = home.join(format!("lock.{word}"));
    fs::create_dir(&scratch)?;
    File::create(scratch.join(format!("{FREE}{word}")))?;
    let laid = disk::rename(&scratch, batons);
    if laid.is_err() {
        let _ = fs::remove_dir_all(&scratch);
    }
    match laid {
        Err(error) if !is_taken(&error) => Err(error),
        _ => Ok(()),
    }
}

fn is_taken(error: &io::Error) -> bool {
    let codes = [Errno::ENOTEMPTY as i32, Errno::EEXIST as i32];
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

/// Renames a file. Returns false if another process did so first. The rename happened if its target
/// exists, even if the call returned an error.
fn moved(from: &Path, to: &Path) -> io::Result<bool> {
    match disk::rename(from, to) {
        Ok(()) => Ok(true),
        Err(error) if listed(to)? => {
            tracing::debug!("a rename said that it failed, and happened: {error}");
            Ok(true)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns true if the directory lists the name; a lookup of the name alone may be outdated on a
/// network volume.
fn listed(path: &Path) -> io::Result<bool> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else { return Ok(false) };
    for entry in fs::read_dir(dir)? {
        if entry?.file_name() == name {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Takes only a kernel lock, for commands in one directory: every `git` that gets it holds it, so
/// it becomes free only after the last one has ended.
pub(crate) fn take_kernel(path: &Path, wait: Duration) -> Result<Option<Arc<File>>, LockError> {
    kernel_lock(path, Instant::now() + wait).map_err(|error| match error {
        Trouble::Busy { owner } => LockError::Busy { owner, waited: wait },
        Trouble::Io(source) => LockError::Io { path: path.to_owned(), source },
    })
}

/// Takes a kernel lock. Returns `None` if the volume does not support locks.
fn kernel_lock(path: &Path, until: Instant) -> Result<Option<Arc<File>>, Trouble> {
    let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    let file = open?;
    if !has_locks() {
        return Ok(None);
    }
    loop {
        match try_lock(&file) {
            Ok(true) => return Ok(Some(Arc::new(file))),
            Ok(false) if Instant::now() < until => std::thread::sleep(POLL),
            Ok(false) => {
                let owner = "another `git`, maybe of a process that was killed".to_owned();
                return Err(Trouble::Busy { owner });
            }
            Err(error) => {
                let none = [Errno::ENOLCK, Errno::ENOSYS, Errno::EOPNOTSUPP].map(|e| e as i32);
                return match error.raw_os_error() {
                    Some(code) if none.contains(&code) => Ok(None),
                    _ => Err(error.into()),
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::process::Process;
    use crate::base::time::Time;
    use crate::git::heartbeat::Owner;

    const SOON: Duration = Duration::from_millis(50);

    #[test]
    fn one_holds_the_lock_and_others_are_told_who() {
        let dir = tempfile::tempdir().unwrap();
        let held = Lock::take(dir.path(), "making `a`", WAIT).unwrap();
        assert!(held.git(dir.path()).is_ok());
        let busy = Lock::take(dir.path(), "making `b`", SOON).unwrap_err().to_string();
        assert!(busy.contains("making `a`"), "{busy}");
        assert!(busy.contains(&format!("process {}", std::process::id())), "{busy}");
        drop(held);
        drop(Lock::take(dir.path(), "making `b`", SOON).unwrap());
        let left: Vec<_> = fs::read_dir(dir.path().join("coven/owners")).unwrap().collect();
        assert!(left.is_empty());
    }

    /// Gives the baton to somebody.
    fn give(home: &Path, process: Process) {
        let owner = Owner { process, doing: "x".into(), since: Time(0) };
        let owner = serde_json::to_string(&owner).unwrap();
        fs::write(owners(home).join("ghost"), format!("000000000001\n{owner}\n")).unwrap();
        let Ok(Some(Baton::Free(name))) = baton(&home.join("lock")) else { panic!("it is free") };
        let lock = home.join("lock");
        disk::rename(&lock.join(name), &lock.join("held.ghost")).unwrap();
    }

    #[test]
    fn the_dead_of_this_machine_lose_it_and_the_unknown_keep_it() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("coven");
        drop(Lock::take(dir.path(), "first", WAIT).unwrap());
        let this = Process::this();
        give(&home, Process { start_time: this.start_time + 1, ..this.clone() });
        drop(Lock::take(dir.path(), "second", SOON).unwrap());
        assert!(!owners(&home).join("ghost").exists());
        give(&home, Process { boot_id: "far".into(), host: "elsewhere".into(), ..this });
        let busy = Lock::take(dir.path(), "third", SOON).unwrap_err().to_string();
        assert!(busy.contains("on elsewhere"), "{busy}");
    }

    #[test]
    fn one_whose_baton_was_taken_goes_no_further() {
        let dir = tempfile::tempdir().unwrap();
        let held = Lock::take(dir.path(), "sleeping", WAIT).unwrap();
        let lock = dir.path().join("coven/lock");
        let mine = lock.join(format!("held.{}", held.me.word));
        disk::rename(&mine, &lock.join("held.other")).unwrap();
        assert!(matches!(held.git(dir.path()), Err(LockError::Lost)));
        drop(held);
        assert!(lock.join("held.other").exists(), "what another holds is left alone");
    }

    #[test]
    fn many_at_once_take_turns() {
        let dir = tempfile::tempdir().unwrap();
        let inside = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..5 {
                        let lock = Lock::take(dir.path(), "racing", WAIT).unwrap();
                        let order = std::sync::atomic::Ordering::SeqCst;
                        assert_eq!(inside.fetch_add(1, order), 0);
                        inside.fetch_sub(1, order);
                        drop(lock);
                    }
                });
            }
        });
        let names = fs::read_dir(dir.path().join("coven/lock")).unwrap().count();
        assert_eq!(names, 1);
    }
}
