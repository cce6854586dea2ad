//! The disk in few verbs, so that a simulation can crash after every one of them.
//!
//! **Invariant:** a write is on the medium only after [`Disk::sync`], a name only after
//! [`Disk::sync_dir`]; [`replace`] does both, in the order that leaves the old or the new
//! content whole, whatever happens. [`swap`] does so for readers, and not for the power.
//!
//! **Invariant:** the disk that [`machine`] gives never answers `NotFound` because of a stale
//! cache: see `absence`.

mod absence;
pub mod faulty;
mod ignore;
pub mod locks;
mod output;
mod real;
#[cfg(test)]
pub mod sim;

use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crate::random::{chance, word};
pub use absence::{Confirming, confirmed, exists, is_remote, open};
pub use faulty::machine;
pub use ignore::keep_from_git;
pub use output::{put_out, where_to};
pub use real::{RealDisk, rename};

/// Looks at one name after the other, until it has seen enough.
pub type Visit<'a> = &'a mut dyn FnMut(&str) -> ControlFlow<()>;

/// What we ask of a disk.
pub trait Disk: Send + Sync {
    /// Whether a cache may answer `NotFound` for a name that another machine has made.
    fn is_shared(&self, _path: &Path) -> bool {
        false
    }
    /// Reads a file. What is none, as a pipe or a device, is [`no_file`]: nobody is waited for.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    /// Reads a regular file of at most `limit` bytes. Anything else is [`no_file`]: a link is not
    /// followed, and whoever left a pipe or a device there cannot make us wait.
    fn read_regular(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>>;
    /// Adds bytes at the end, making the file if there is none.
    fn append(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    fn truncate(&self, path: &Path, len: u64) -> io::Result<()>;
    /// Writes the whole content, not atomically.
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    /// Writes files that are not there yet, not atomically, and syncs them if asked to. One
    /// result for each.
    fn write_new(&self, files: &[(PathBuf, Vec<u8>)], sync: bool) -> Vec<io::Result<()>>;
    /// Writes over the beginning of a file, making it if there is none. Nothing is cut off, so a
    /// record of constant length is never seen empty.
    fn overwrite(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    fn sync(&self, path: &Path) -> io::Result<()>;
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// The same for a caller that looks for its target itself: `NotFound` may be wrong.
    fn try_rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.rename(from, to)
    }
    /// Gives a file a second name, unless that name is taken.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Makes a directory, if there is none; its parent exists. The group may write to it at most.
    fn make_dir(&self, dir: &Path) -> io::Result<()>;
    /// Makes a directory and its parents, their names synced.
    fn make_dirs(&self, dir: &Path) -> io::Result<()>;
    /// All names in a directory, sorted.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        self.scan(dir, &mut |name| {
            names.push(name.to_owned());
            ControlFlow::Continue(())
        })?;
        names.sort_unstable();
        Ok(names)
    }
    /// Visits the names in a directory, in no order, without keeping them.
    fn scan(&self, dir: &Path, visit: Visit) -> io::Result<()>;
    /// The directories in a directory, sorted. A link to one is none.
    fn list_dirs(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// Who may do what with a file or a directory: the mode's last twelve bits.
    fn mode(&self, path: &Path) -> io::Result<u32>;
    /// When a file was last changed or given a name, in milliseconds since 1970, by the clock of
    /// the volume; nothing, where the disk has no clock.
    fn changed_ms(&self, _path: &Path) -> io::Result<Option<i64>> {
        Ok(None)
    }
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Removes a directory, if it is empty.
    fn remove_dir(&self, dir: &Path) -> io::Result<()>;
}

#[cfg(test)]
thread_local! {
    static SIMULATED: std::cell::RefCell<Option<std::sync::Arc<dyn Disk>>> =
        const { std::cell::RefCell::new(None) };
}

/// Gives this thread a disk instead of the machine's.
#[cfg(test)]
pub fn simulate(disk: Option<std::sync::Arc<dyn Disk>>) {
    SIMULATED.with(|here| *here.borrow_mut() = disk);
}

#[cfg(test)]
fn simulated() -> Option<std::sync::Arc<dyn Disk>> {
    SIMULATED.with(|here| here.borrow().clone())
}

/// What [`Disk::read_regular`] says of something that is not what it reads.
pub fn no_file(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Replaces a file's content as one step: readers, and whoever comes after a crash, see the old
/// or the new.
pub fn replace(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_by(disk, &temporary(path), path, bytes)
}

/// The same, by way of a file that the caller names.
pub fn replace_by(disk: &dyn Disk, way: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    disk.write(way, bytes)?;
    disk.sync(way)?;
    disk.rename(way, path)?;
    disk.sync_dir(path.parent().unwrap_or(Path::new("")))
}

/// Replaces a file's content for those who read it: they see the old or the new, and any number
/// may do so at once. Nothing is synced, so this is for what can be made again.
pub fn swap(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> io::Result<()> {
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
