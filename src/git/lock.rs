//! One lock per repository: for commands that touch its list of worktrees, which fail when two run
//! concurrently, and for all other operations that must not run twice at the same time.
//!
//! The lock is a [lease](crate::lease), which works on any volume. The holder also has a kernel
//! lock on a second file, and every `git` that it starts inherits that one: if the holder is killed
//! while a command runs, the next holder waits until the command has ended. On a volume without
//! kernel locks, that cannot be detected.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::Git;
use crate::disk::locks::try_lock;
use crate::lease::{Lease, LeaseDir, LeaseError, Request, Wait};

/// Maximum time to wait for another holder.
pub(crate) const WAIT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(10);

#[derive(Debug, thiserror::Error)]
pub(crate) enum LockError {
    #[error("the repository is in use: {owner}; waited {} s", waited.as_secs())]
    Busy { owner: String, waited: Duration },
    #[error("the lock of the repository was lost: others thought that this process was dead")]
    Lost,
    #[error("stopped while waiting for the repository")]
    Stopped,
    #[error("cannot lock the repository in `{}`: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

impl LockError {
    /// Converts the error of a lease in `dir` after a wait.
    pub(crate) fn of_lease(error: LeaseError, dir: &Path, waited: Duration) -> LockError {
        match error {
            LeaseError::Busy(blocker) => LockError::Busy { owner: blocker.to_string(), waited },
            LeaseError::Stopped => LockError::Stopped,
            LeaseError::Io(source) => LockError::Io { path: dir.to_owned(), source },
        }
    }
}

/// The lock, held until it is dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    dir: PathBuf,
    lease: Lease,
    kernel: Option<Arc<File>>,
}

impl Lock {
    /// Takes the lock of the repository whose files of orchestrate are in `home`. After `wait`,
    /// fails with the holder.
    pub(crate) fn take(home: &Path, purpose: &str, wait: Duration) -> Result<Lock, LockError> {
        let dir = home.join("leases/repository");
        let until = Instant::now() + wait;
        let request = Request::new(purpose);
        let mut lease = LeaseDir::new(dir.clone())
            .acquire(&request, &Wait::at_most(wait))
            .map_err(|error| LockError::of_lease(error, &dir, wait))?;
        lease.forget_dead();
        let left = until.saturating_duration_since(Instant::now());
        let kernel = take_kernel(&home.join("lock.kernel"), left)?;
        Ok(Lock { dir, lease, kernel })
    }

    /// Returns a `git` for a directory. Each of its commands holds the kernel lock while it runs.
    pub(crate) fn git(&self, dir: &Path) -> Result<Git, LockError> {
        self.check()?;
        Ok(Git::at(dir).holding(self.kernel.clone()))
    }

    /// Fails if this process slept long enough to lose the lock: it must not continue.
    pub(crate) fn check(&self) -> Result<(), LockError> {
        match self.lease.check() {
            Ok(true) => Ok(()),
            Ok(false) => Err(LockError::Lost),
            Err(source) => Err(LockError::Io { path: self.dir.clone(), source }),
        }
    }
}

/// Takes a kernel lock that every `git` which gets it inherits, so that it becomes free only after
/// the last one has ended. Returns `None` if the volume does not support locks.
pub(crate) fn take_kernel(path: &Path, wait: Duration) -> Result<Option<Arc<File>>, LockError> {
    let failed = |source| LockError::Io { path: path.to_owned(), source };
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let file = options.open(path).map_err(failed)?;
    let until = Instant::now() + wait;
    loop {
        match try_lock(&file) {
            Ok(true) => return Ok(Some(Arc::new(file))),
            Ok(false) if Instant::now() < until => std::thread::sleep(POLL),
            Ok(false) => {
                let owner = "another `git`, maybe of a process that was killed".to_owned();
                return Err(LockError::Busy { owner, waited: wait });
            }
            Err(error) => {
                let none = [Errno::ENOLCK, Errno::ENOSYS, Errno::EOPNOTSUPP].map(|e| e as i32);
                return match error.raw_os_error() {
                    Some(code) if none.contains(&code) => Ok(None),
                    _ => Err(failed(error)),
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_lock_names_its_holder() {
        let dir = tempfile::tempdir().unwrap();
        let held = Lock::take(dir.path(), "making `a`", WAIT).unwrap();
        assert!(held.git(dir.path()).is_ok());
        let soon = Duration::from_millis(50);
        let busy = Lock::take(dir.path(), "making `b`", soon).unwrap_err().to_string();
        assert!(busy.contains("making `a`"), "{busy}");
        assert!(busy.contains(&format!("process {}", std::process::id())), "{busy}");
        drop(held);
        drop(Lock::take(dir.path(), "making `b`", soon).unwrap());
    }

    #[test]
    fn a_child_of_a_former_holder_delays_the_next_one() {
        let dir = tempfile::tempdir().unwrap();
        let git = Lock::take(dir.path(), "first", WAIT).unwrap().git(dir.path()).unwrap();
        let soon = Duration::from_millis(50);
        let busy = Lock::take(dir.path(), "second", soon).unwrap_err().to_string();
        assert!(busy.contains("another `git`"), "{busy}");
        drop(git);
        Lock::take(dir.path(), "second", soon).unwrap();
    }
}
