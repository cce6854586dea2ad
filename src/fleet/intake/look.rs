//! Looking at a file that somebody dropped: what it is, whether it is still being written, what
//! it says.
//!
//! **Invariant:** nothing here waits for anybody. A link is not followed, a pipe is not waited
//! for, and no more is read than was asked for.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::errno::Errno;
use nix::libc;

use crate::disk;

/// Chooses the signal that tells of a broken lease; `libc` does not name it.
const F_SETSIG: libc::c_int = 10;

/// What a file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    File,
    /// Something else, in words.
    Other(&'static str),
    /// It may not be read; the system's words.
    Locked(String),
}

/// What a file looked like. While two looks are equal, nothing was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    pub kind: Kind,
    pub size: u64,
    pub modified: (i64, i64),
    /// How many names the file has, here or elsewhere.
    pub names: u64,
    identity: (u64, u64),
}

/// Whether somebody has a file open for writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writers {
    None,
    Some,
    /// The system does not say: it is another user's file, or on a volume without leases.
    Unknown,
}

/// Looks at a file. Nothing, if there is none; a handle, if it can be read.
pub fn look(path: &Path) -> io::Result<Option<(Look, Option<File>)>> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    match disk::open(path, OpenOptions::new().read(true).custom_flags(flags)) {
        // From the handle: what a name says may be old on a network volume.
        Ok(file) => {
            let look = of(&file.metadata()?);
            let readable = look.kind == Kind::File;
            Ok(Some((look, readable.then_some(file))))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => match path.symlink_metadata() {
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

/// Asks the kernel who writes: it gives a read lease only on a file that nobody has open for
/// writing. The lease is given back at once.
pub fn writers(file: &File) -> Writers {
    let fd = file.as_raw_fd();
    // Whoever opens the file in between breaks the lease, of which the kernel tells by a signal.
    // The usual one would end this process; this one does nothing.
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

/// Reads a file from its beginning. Nothing, if it is longer than `limit`.
pub fn read(mut file: &File, limit: u64) -> io::Result<Option<Vec<u8>>> {
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
