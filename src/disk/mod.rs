//! The disk in a few operations, so that a simulation can crash after every one of them.
//!
//! **Invariant:** a write is on the medium only after [`Disk::sync`], a name only after
//! [`Disk::sync_dir`]. [`replace`] does both, in the order that leaves the old or the new content
//! complete after any failure. [`swap`] guarantees this to readers, but not after a power failure.
//!
//! **Invariant:** the disk that [`machine`] returns never answers `NotFound` because of a stale
//! cache: see `absence`.

mod absence;
pub(crate) mod fs;
pub(crate) mod hint;
mod ignore;
pub(crate) mod locks;
mod output;
mod real;
#[cfg(test)]
pub(crate) mod sim;

use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::base::random::{chance, word};
pub(crate) use absence::{Confirming, confirmed, exists, is_remote, open};
pub(crate) use ignore::keep_from_git;
pub(crate) use output::{put_out, where_to};
pub(crate) use real::{RealDisk, rename};

/// Callback that receives one name after the other, until it returns `Break`.
pub(crate) type Visit<'a> = &'a mut dyn FnMut(&str) -> ControlFlow<()>;

/// Operations of a disk.
pub(crate) trait Disk: Send + Sync {
    /// Returns true if a cache may answer `NotFound` for a name that another machine has created.
    fn is_shared(&self, _path: &Path) -> bool {
        false
    }
    /// Reads a file. Fails with [`no_file`] for anything else, such as a pipe or a device, so that
    /// the call never blocks.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    /// Reads a regular file of at most `limit` bytes. Fails with [`no_file`] for anything else: a
    /// link is not followed, and a pipe or a device cannot block the call.
    fn read_regular(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>>;
    /// Appends bytes. Creates the file if it does not exist.
    fn append(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    fn truncate(&self, path: &Path, len: u64) -> io::Result<()>;
    /// Writes the whole content, not atomically.
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    /// Writes files that must not exist yet, not atomically, and syncs them if `sync` is true.
    /// Returns one result per file, in order.
    fn write_new(&self, files: &[(PathBuf, Vec<u8>)], sync: bool) -> Vec<io::Result<()>>;
    /// Overwrites the beginning of a file. Creates the file if it does not exist. Truncates
    /// nothing, so a reader never sees a record of constant length empty.
    fn overwrite(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    fn sync(&self, path: &Path) -> io::Result<()>;
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Like [`rename`](Self::rename), for a caller that checks its target itself: `NotFound` may be
    /// wrong.
    fn try_rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.rename(from, to)
    }
    /// Gives a file a second name. Fails if that name is taken.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Creates a directory if it does not exist; its parent must exist. At most the owner and the
    /// group may write to it.
    fn make_dir(&self, dir: &Path) -> io::Result<()>;
    /// Creates a directory and its parents, and syncs their names.
    fn make_dirs(&self, dir: &Path) -> io::Result<()>;
    /// Returns all names in a directory, sorted.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        self.scan(dir, &mut |name| {
            names.push(name.to_owned());
            ControlFlow::Continue(())
        })?;
        names.sort_unstable();
        Ok(names)
    }
    /// Visits the names in a directory, in no order, without storing them.
    fn scan(&self, dir: &Path, visit: Visit) -> io::Result<()>;
    /// Returns the subdirectories of a directory, sorted. A link to a directory does not count.
    fn list_dirs(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// Returns the permissions of a file or a directory: the last twelve bits of its mode.
    fn mode(&self, path: &Path) -> io::Result<u32>;
    /// Returns the time of the last change of a file or its name, in milliseconds since 1970 by the
    /// clock of the volume, or `None` if the disk has no clock.
    fn changed_ms(&self, _path: &Path) -> io::Result<Option<i64>> {
        Ok(None)
    }
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Removes an empty directory.
    fn remove_dir(&self, dir: &Path) -> io::Result<()>;
}

#[cfg(test)]
thread_local! {
    static SIMULATED: std::cell::RefCell<Option<Arc<dyn Disk>>> =
        const { std::cell::RefCell::new(None) };
}

/// Makes [`machine`] return this disk in this thread.
#[cfg(test)]
pub(crate) fn simulate(disk: Option<Arc<dyn Disk>>) {
    SIMULATED.with(|here| *here.borrow_mut() = disk);
}

#[cfg(test)]
fn simulated() -> Option<Arc<dyn Disk>> {
    SIMULATED.with(|here| here.borrow().clone())
}

/// Returns the disk of this machine.
pub(crate) fn machine() -> Arc<dyn Disk> {
    #[cfg(test)]
    if let Some(disk) = simulated() {
        return disk;
    }
    Arc::new(Confirming::new(Arc::new(RealDisk::default())))
}

/// Returns the error of [`Disk::read`] and [`Disk::read_regular`] for anything that they do not
/// read.
pub(crate) fn no_file(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Returns the default, such as no names, in place of `NotFound`.
pub(crate) fn none_if_absent<T: Default>(found: io::Result<T>) -> io::Result<T> {
    match found {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(T::default()),
        found => found,
    }
}

/// Replaces a file's content atomically: readers, also after a crash, see the old or the new
/// content.
pub(crate) fn replace(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_by(disk, &temporary(path), path, bytes)
}

/// Like [`replace`], with a temporary file that the caller names.
pub(crate) fn replace_by(disk: &dyn Disk, way: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    disk.write(way, bytes)?;
    disk.sync(way)?;
    disk.rename(way, path)?;
    disk.sync_dir(path.parent().unwrap_or(Path::new("")))
}

/// Replaces a file's content atomically for readers. Any number of callers may do so concurrently.
/// Nothing is synced, so use it only for content that can be recreated.
pub(crate) fn swap(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let way = path.with_file_name(format!(".{name}.{}.tmp", word(chance())));
    let swapped = disk.write(&way, bytes).and_then(|()| disk.rename(&way, path));
    if swapped.is_err() {
        let _ = disk.remove(&way);
    }
    swapped
}

fn temporary(path: &Path) -> PathBuf {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    path.with_file_name(format!(".{}.tmp", name.unwrap_or_default()))
}
