//! Writes to a path that the user names. It may be anything: a file, a link to one, a pipe, a
//! device.
//!
//! **Invariant:** only a regular file is ever replaced, and a link stays a link.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::{Disk, replace_by};
use crate::base::random::{chance, word};

/// Maximum number of links that lead from one to the next, as in the kernel.
const LINKS: usize = 40;

/// Writes the whole content to a path that the user names. Replaces a file atomically, and follows
/// a link to the file to replace. Writes into anything that is not a file.
pub(crate) fn put_out(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let target = where_to(path)?;
    match target.metadata() {
        Ok(known) if known.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        Ok(known) if !known.is_file() => write_to(&target, known.file_type().is_fifo(), bytes),
        _ => {
            let name = target.file_name().unwrap_or_default().to_string_lossy();
            let way = target.with_file_name(format!(".{name}.{}.tmp", word(chance())));
            let replaced = replace_by(disk, &way, &target, bytes);
            if replaced.is_err() {
                let _ = disk.remove(&way);
            }
            replaced
        }
    }
}

/// Follows links to the final path, which need not exist.
pub(crate) fn where_to(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..LINKS {
        match path.read_link() {
            Ok(next) => path = path.parent().unwrap_or(Path::new("")).join(next),
            Err(_) => return Ok(path),
        }
    }
    Err(nix::errno::Errno::ELOOP.into())
}

/// Writes to a pipe or a device. Fails for a pipe without a reader, instead of blocking forever.
fn write_to(path: &Path, pipe: bool, bytes: &[u8]) -> io::Result<()> {
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let opened = OpenOptions::new().write(true).custom_flags(flags.bits()).open(path);
    let mut file = opened.map_err(|error| match error.raw_os_error() {
        Some(code) if pipe && code == nix::errno::Errno::ENXIO as i32 => {
            io::Error::other("it is a pipe, and nobody reads from it")
        }
        _ => error,
    })?;
    fcntl(&file, FcntlArg::F_SETFL(OFlag::empty()))?;
    file.write_all(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;
    use crate::disk::RealDisk;

    #[test]
    fn a_link_stays_one_and_leads_to_what_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("file"), "old").unwrap();
        symlink("file", at("link")).unwrap();
        symlink("link", at("again")).unwrap();
        symlink("new", at("ahead")).unwrap();
        symlink("round", at("round")).unwrap();
        let put = |name: &str| put_out(&RealDisk::default(), &at(name), b"new");
        put("again").unwrap();
        put("ahead").unwrap();
        assert!(put("round").is_err());
        for name in ["link", "again", "ahead"] {
            assert!(at(name).is_symlink(), "{name}");
        }
        assert_eq!(std::fs::read(at("file")).unwrap(), b"new");
        assert_eq!(std::fs::read(at("new")).unwrap(), b"new");
    }

    #[test]
    fn a_pipe_is_written_to_and_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        let put = || put_out(&RealDisk::default(), &pipe, b"text");
        assert!(put().unwrap_err().to_string().contains("nobody reads"));
        // It has a reader as long as this is open.
        let flags = OFlag::O_NONBLOCK.bits();
        let mut reader = OpenOptions::new().read(true).custom_flags(flags).open(&pipe).unwrap();
        put().unwrap();
        let mut heard = [0; 4];
        io::Read::read_exact(&mut reader, &mut heard).unwrap();
        assert_eq!(&heard, b"text");
        assert!(pipe.symlink_metadata().unwrap().file_type().is_fifo());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");
    }
}
