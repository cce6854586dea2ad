//! The disk in few verbs, so that a simulation can crash after every one of them.
//!
//! **Invariant:** a write is on the medium only after [`Disk::sync`], a name only after
//! [`Disk::sync_dir`]; [`replace`] does both, in the order that leaves the old or the new
//! content whole, whatever happens.

mod real;
#[cfg(test)]
pub mod sim;

use std::io;
use std::path::{Path, PathBuf};

pub use real::{RealDisk, rename};

/// What we ask of a disk.
pub trait Disk: Send + Sync {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    /// Adds bytes at the end, making the file if there is none.
    fn append(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    fn truncate(&self, path: &Path, len: u64) -> io::Result<()>;
    /// Writes the whole content, not atomically.
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    fn sync(&self, path: &Path) -> io::Result<()>;
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Makes a directory, if there is none; its parent exists.
    fn make_dir(&self, dir: &Path) -> io::Result<()>;
    /// Makes a directory and its parents, their names synced.
    fn make_dirs(&self, dir: &Path) -> io::Result<()>;
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    fn remove(&self, path: &Path) -> io::Result<()>;
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

fn temporary(path: &Path) -> PathBuf {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    path.with_file_name(format!(".{}.tmp", name.unwrap_or_default()))
}
