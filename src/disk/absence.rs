//! Confirms that a name is absent on a volume that several machines share.
//!
//! A machine that looked up a missing name caches that result: for 30 to 60 s its kernel answers
//! ENOENT from the cache, even if another machine has created the name since. This applies to every
//! call that takes a path, and to every directory on the path. Opening and listing a directory
//! refreshes the kernel's knowledge of the names in it.
//!
//! **Invariant:** a call of a [`Confirming`] disk returns `NotFound` only if a listing confirms it:
//! of the directory that should contain the name or, if that directory is not found, of the next
//! one above it, and so on up to one that can be opened. So no caller can act on a stale answer. On
//! a local volume ENOENT is reliable, and nothing is added.
//!
//! Code that opens paths by itself uses [`confirmed`]; code that only checks for existence uses
//! [`exists`].

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::statfs::statfs;

use super::{Disk, RealDisk, Visit, machine};

/// Number of retries for a name that is listed. A name that is listed and still not found was
/// removed meanwhile, or is a dangling link.
const TRIES: usize = 3;

/// A disk whose `NotFound` is confirmed by a listing.
pub(crate) struct Confirming(Arc<dyn Disk>);

impl Confirming {
    pub(crate) fn new(disk: Arc<dyn Disk>) -> Self {
        Confirming(disk)
    }
}

/// Makes a call that requires `names` to exist. Retries if it returns `NotFound` although all of
/// them are listed. For code that has no [`Disk`].
pub(crate) fn confirmed<T>(names: &[&Path], call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    confirm(&RealDisk::default(), names, call)
}

/// Returns true if the path exists. A dangling link counts as absent.
pub(crate) fn exists(path: &Path) -> io::Result<bool> {
    match machine().mode(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => Ok(false),
        Err(error) => Err(error),
    }
}

/// Opens a file that another machine may have created.
pub(crate) fn open(path: &Path, how: &OpenOptions) -> io::Result<File> {
    confirmed(&[path], || how.open(path))
}

/// Returns true if the volume of a path shows changes by other machines with a delay.
pub(crate) fn is_remote(path: &Path) -> bool {
    /// NFS, SMB (three), FUSE, 9P, Ceph, AFS, Lustre, OCFS2, VirtualBox shared folders. FUSE may be
    /// local, too; then it is only slightly slower.
    const REMOTE: [i64; 11] = [
        0x6969,
        0x517b,
        0xff53_4d42,
        0xfe53_4d42,
        0x6573_5546,
        0x0102_1997,
        0x00c3_6400,
        0x5346_414f,
        0x0bd0_0bd0,
        0x7461_636f,
        0x786f_4256,
    ];
    // Compare 32 bits: the platforms differ in the width and sign of the type.
    let is = |kind: i64| REMOTE.iter().any(|remote| *remote as u32 == kind as u32);
    for place in path.ancestors() {
        match statfs(super::real::or_here(place)) {
            Ok(volume) => return is(volume.filesystem_type().0),
            Err(Errno::ENOENT | Errno::ENOTDIR) => {}
            // A volume that cannot report its type is not trusted.
            Err(_) => return true,
        }
    }
    false
}

fn confirm<T>(
    disk: &dyn Disk,
    names: &[&Path],
    mut call: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    for _ in 0..TRIES {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::NotFound && doubts(disk, names)? => {}
            done => return done,
        }
    }
    call()
}

/// Returns true if a call that requires `names` may have returned a wrong `NotFound`.
fn doubts(disk: &dyn Disk, names: &[&Path]) -> io::Result<bool> {
    let Some(first) = names.first() else { return Ok(false) };
    if !disk.is_shared(first) {
        return Ok(false);
    }
    for name in names {
        if !is_listed(disk, name)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns true if the parent directory lists the name. Lists directories upwards until one can be
/// opened, and then downwards again.
fn is_listed(disk: &dyn Disk, path: &Path) -> io::Result<bool> {
    // A path without a name of its own, such as `/` or `..`, counts as listed.
    let Some(name) = path.file_name().map(|name| name.to_string_lossy()) else { return Ok(true) };
    let dir = parent(path);
    let mut looked_above = false;
    loop {
        let mut found = false;
        let listed = disk.scan(dir, &mut |listed| {
            found = listed == name;
            if found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied};
        match listed.map_err(|error| (error.kind(), error)) {
            Ok(()) => return Ok(found),
            Err((NotFound, _)) if looked_above || !is_listed(disk, dir)? => return Ok(false),
            Err((NotFound, _)) => looked_above = true,
            // Without the right to list, absence cannot be disproved.
            Err((NotADirectory | PermissionDenied, _)) => return Ok(false),
            Err((_, error)) => return Err(error),
        }
    }
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

impl Disk for Confirming {
    fn is_shared(&self, path: &Path) -> bool {
        self.0.is_shared(path)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        confirm(&*self.0, &[path], || self.0.read(path))
    }

    fn read_regular(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        confirm(&*self.0, &[path], || self.0.read_regular(path, limit))
    }

    fn append(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        confirm(&*self.0, &[parent(path)], || self.0.append(path, bytes))
    }

    fn truncate(&self, path: &Path, len: u64) -> io::Result<()> {
        confirm(&*self.0, &[path], || self.0.truncate(path, len))
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        confirm(&*self.0, &[parent(path)], || self.0.write(path, bytes))
    }

    fn write_new(&self, files: &[(PathBuf, Vec<u8>)], sync: bool) -> Vec<io::Result<()>> {
        let again = |(result, file): (io::Result<()>, &(PathBuf, Vec<u8>))| {
            let mut first = Some(result);
            confirm(&*self.0, &[parent(&file.0)], || match first.take() {
                Some(result) => result,
                None => {
                    let mut results = self.0.write_new(std::slice::from_ref(file), sync);
                    results.pop().unwrap_or(Ok(()))
                }
            })
        };
        self.0.write_new(files, sync).into_iter().zip(files).map(again).collect()
    }

    fn overwrite(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        confirm(&*self.0, &[parent(path)], || self.0.overwrite(path, bytes))
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        confirm(&*self.0, &[path], || self.0.sync(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        confirm(&*self.0, &[from, parent(to)], || self.0.rename(from, to))
    }

    fn try_rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.try_rename(from, to)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        confirm(&*self.0, &[from, parent(to)], || self.0.link(from, to))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        confirm(&*self.0, &[dir], || self.0.sync_dir(dir))
    }

    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        confirm(&*self.0, &[parent(dir)], || self.0.make_dir(dir))
    }

    fn make_dirs(&self, dir: &Path) -> io::Result<()> {
        confirm(&*self.0, &[parent(dir)], || self.0.make_dirs(dir))
    }

    fn scan(&self, dir: &Path, visit: Visit) -> io::Result<()> {
        confirm(&*self.0, &[dir], || self.0.scan(dir, visit))
    }

    fn list_dirs(&self, dir: &Path) -> io::Result<Vec<String>> {
        confirm(&*self.0, &[dir], || self.0.list_dirs(dir))
    }

    fn mode(&self, path: &Path) -> io::Result<u32> {
        confirm(&*self.0, &[path], || self.0.mode(path))
    }

    fn changed_ms(&self, path: &Path) -> io::Result<Option<i64>> {
        confirm(&*self.0, &[path], || self.0.changed_ms(path))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        confirm(&*self.0, &[path], || self.0.remove(path))
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        confirm(&*self.0, &[dir], || self.0.remove_dir(dir))
    }
}
