//! The one primitive, a rename to a name that only this process can choose, and the handling of
//! errors.
//!
//! **Invariant:** a rename happened if and only if its target is listed, no matter what the call
//! returned.

use std::collections::BTreeSet;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::{Ending, Queue};
use crate::base::host;

/// Errors of a volume that temporarily does not answer.
const TRANSIENT: [Errno; 20] = [
    Errno::EIO,
    Errno::EINTR,
    Errno::EAGAIN,
    Errno::ETIMEDOUT,
    Errno::ENOTCONN,
    Errno::ESTALE,
    Errno::ECONNREFUSED,
    Errno::ECONNRESET,
    Errno::ECONNABORTED,
    Errno::EHOSTDOWN,
    Errno::EHOSTUNREACH,
    Errno::ENETDOWN,
    Errno::ENETUNREACH,
    Errno::EREMOTEIO,
    Errno::ESHUTDOWN,
    Errno::ENOLINK,
    // These concern this machine, not the volume, and the task is not at fault either.
    Errno::EMFILE,
    Errno::ENFILE,
    Errno::ENOMEM,
    Errno::ENOBUFS,
];

/// Returns true if the same call may succeed later.
pub(crate) fn is_transient(error: &io::Error) -> bool {
    error.raw_os_error().is_some_and(|code| TRANSIENT.contains(&Errno::from_raw(code)))
}

/// Exponential backoff with a total time limit.
pub(super) struct Patience {
    until: Instant,
    next: Duration,
}

impl Patience {
    pub(super) fn new(total: Duration) -> Self {
        Patience { until: host::instant() + total, next: Duration::from_millis(1) }
    }

    /// Waits if `error` is transient. Returns `error` if it is not, or if the time limit has
    /// passed.
    pub(super) fn wait(&mut self, error: io::Error) -> io::Result<()> {
        if is_transient(&error) { self.wait_anyway(error) } else { Err(error) }
    }

    /// Waits after any error. Returns `error` if the time limit has passed.
    pub(super) fn wait_anyway(&mut self, error: io::Error) -> io::Result<()> {
        if host::instant() >= self.until {
            return Err(error);
        }
        host::nap(self.next);
        self.next = (self.next * 2).min(Duration::from_millis(250));
        Ok(())
    }
}

/// Result of a search for a name in its directory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Listed {
    Yes,
    No,
    /// The directory does not exist.
    Nowhere,
}

impl Queue {
    /// Renames a file to a name that only this process can choose. Returns `Fenced` if another
    /// process moved the file first. Syncs nothing.
    pub(super) fn move_unique(&self, from: &Path, to: &Path) -> io::Result<Ending> {
        let mut patience = Patience::new(self.patience);
        loop {
            let error = match self.disk.rename(from, to) {
                Ok(()) => return Ok(Ending::Committed),
                Err(error) => error,
            };
            let target = self.is_listed(to)?;
            if target == Listed::Yes {
                return Ok(Ending::Committed);
            }
            if error.kind() != io::ErrorKind::NotFound {
                patience.wait(error)?;
            } else if self.is_listed(from)? != Listed::Yes {
                return self.need_volume().map(|()| Ending::Fenced);
            } else if target == Listed::Nowhere {
                // The target directory was removed.
                self.make_dir(parent(to))?;
            } else {
                // A stale cache; it is refreshed after a while.
                patience.wait_anyway(stale(from))?;
            }
        }
    }

    fn is_listed(&self, path: &Path) -> io::Result<Listed> {
        let file = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let mut found = Listed::No;
        let there = self.scan(parent(path), &mut |name| {
            if name != file {
                return ControlFlow::Continue(());
            }
            found = Listed::Yes;
            ControlFlow::Break(())
        })?;
        Ok(if there { found } else { Listed::Nowhere })
    }

    /// Writes one file that must not exist yet.
    pub(super) fn write_one(&self, path: &Path, bytes: Vec<u8>, sync: bool) -> io::Result<()> {
        let mut results = self.disk.write_new(&[(path.to_owned(), bytes)], sync);
        results.pop().unwrap_or_else(|| Err(io::Error::other("the disk gave no answer")))
    }

    /// In durable mode, syncs each directory once. Returns the directories that failed. A failed
    /// sync is never retried: a disk may forget the data it failed to write and then report
    /// success.
    pub(super) fn sync_dirs<'a>(&self, dirs: impl IntoIterator<Item = &'a Path>) -> Unsynced {
        let mut failed = Unsynced::default();
        if self.durable {
            let dirs: BTreeSet<&Path> = dirs.into_iter().collect();
            for dir in dirs {
                if let Err(error) = self.disk.sync_dir(dir) {
                    failed.0.push((dir.to_owned(), error));
                }
            }
        }
        failed
    }
}

/// Directories that could not be synced.
#[derive(Default)]
pub(super) struct Unsynced(Vec<(PathBuf, io::Error)>);

impl Unsynced {
    /// Returns the error of `dir` if it could not be synced.
    pub(super) fn check(&self, dir: &Path) -> io::Result<()> {
        match self.0.iter().find(|(other, _)| other == dir) {
            Some((_, error)) => Err(again(error)),
            None => Ok(()),
        }
    }

    /// Returns the first error, if any.
    pub(super) fn check_all(self) -> io::Result<()> {
        self.0.into_iter().next().map_or(Ok(()), |(_, error)| Err(error))
    }
}

/// Returns a copy of an error, for another caller.
pub(super) fn again(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

fn stale(path: &Path) -> io::Error {
    io::Error::other(format!("`{}` is listed but cannot be moved", path.display()))
}

pub(super) fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}
