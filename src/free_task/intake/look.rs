//! Inspects a dropped file: its type, its writers, and its content.
//!
//! **Invariant:** no function here blocks on another process. Links are not followed, reading a
//! pipe does not block, and no read exceeds the requested limit.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::errno::Errno;
use nix::libc;

use crate::disk;
use crate::disk::fs;
use crate::queue::is_transient;

/// `fcntl` command that selects the signal for a broken lease; `libc` does not define it.
const F_SETSIG: libc::c_int = 10;

/// The type of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    /// Not a regular file; a description of the type.
    Other(&'static str),
    /// A regular file that cannot be read; the error of the system.
    Locked(String),
}

/// A snapshot of a file's metadata. While two snapshots are equal, the file was not written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Look {
    pub kind: Kind,
    pub size: u64,
    pub modified: (i64, i64),
    /// Number of hard links to the file.
    pub names: u64,
    identity: (u64, u64),
}

/// Presence of processes that have a file open for writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writers {
    None,
    Some,
    /// The kernel does not report it: another user owns the file, or the volume has no leases.
    Unknown,
}

/// Inspects a file. Returns `None` if it does not exist, and a handle only if it can be read.
pub(super) fn look(path: &Path) -> io::Result<Option<(Look, Option<File>)>> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    match disk::open(path, OpenOptions::new().read(true).custom_flags(flags)) {
        // Use the handle: metadata by path may be stale on a network volume.
        Ok(file) => {
            let look = of(&file.metadata()?);
            let readable = look.kind == Kind::File;
            Ok(Some((look, readable.then_some(file))))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        // The volume does not answer at the moment, which says nothing about the file.
        Err(error) if is_transient(&error) => Err(error),
        Err(error) => match fs::symlink_metadata(path) {
            Ok(known) => {
                let look = of(&known);
                let locked = look.kind == Kind::File;
                let kind = if locked { Kind::Locked(error.to_string()) } else { look.kind };
                Ok(Some((Look { kind, ..look }, None)))
            }
            Err(gone) if gone.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(_) => Err(error),
        },
    }
}

fn of(known: &std::fs::Metadata) -> Look {
    let kind = known.file_type();
    let kind = match () {
        () if kind.is_file() => Kind::File,
        () if kind.is_dir() => Kind::Other("a directory"),
        () if kind.is_symlink() => Kind::Other("a symbolic link"),
        () if kind.is_fifo() => Kind::Other("a pipe"),
        () if kind.is_socket() => Kind::Other("a socket"),
        () => Kind::Other("a device"),
    };
    Look {
        kind,
        size: known.size(),
        modified: (known.mtime(), known.mtime_nsec()),
        names: known.nlink(),
        identity: (known.dev(), known.ino()),
    }
}

/// Asks the kernel for writers: it grants a read lease only on a file that no process has open for
/// writing. The lease is released at once.
pub(super) fn writers(file: &File) -> Writers {
    let fd = file.as_raw_fd();
    // A process that opens the file in between breaks the lease, and the kernel sends a signal. The
    // default signal would end this process; this one is ignored.
    // SAFETY: three calls on a descriptor that `file` keeps open, with plain numbers.
    let (named, leased) = unsafe {
        let named = libc::fcntl(fd, F_SETSIG, libc::SIGURG);
        let leased =
            if named == 0 { libc::fcntl(fd, libc::F_SETLEASE, libc::F_RDLCK) } else { named };
        (named, leased)
    };
    let error = Errno::last();
    if leased == 0 {
        // SAFETY: as above.
        unsafe { libc::fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK) };
        return Writers::None;
    }
    if named == 0 && error == Errno::EAGAIN { Writers::Some } else { Writers::Unknown }
}

/// Reads a file from its start. Returns `None` if it is longer than `limit`.
pub(super) fn read(mut file: &File, limit: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    file.by_ref().take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= limit).then_some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_writer_is_noticed_until_it_closes_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.task");
        let mut writer = File::create(&path).unwrap();
        writer.write_all(b"half").unwrap();
        let (_, file) = look(&path).unwrap().unwrap();
        let file = file.unwrap();
        assert_eq!(writers(&file), Writers::Some);
        drop(writer);
        assert_eq!(writers(&file), Writers::None);
        assert_eq!(read(&file, 4).unwrap().unwrap(), b"half");
        // Nothing is left behind that a later writer would wait for.
        File::create(&path).unwrap();
    }

    #[test]
    fn two_looks_differ_once_something_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.task");
        assert!(look(&path).unwrap().is_none());
        std::fs::write(&path, "a").unwrap();
        let before = look(&path).unwrap().unwrap().0;
        assert_eq!(look(&path).unwrap().unwrap().0, before);
        std::fs::write(&path, "ab").unwrap();
        assert_ne!(look(&path).unwrap().unwrap().0, before);
        assert_eq!(read(&File::open(&path).unwrap(), 1).unwrap(), None);
    }
}
