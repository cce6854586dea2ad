//! The functions of [`std::fs`] for files that another machine may create or remove. Their
//! `NotFound` is confirmed by a listing, see `absence`.
//!
//! Code outside of `disk` that has no [`Disk`](super::Disk) uses this module in place of `std::fs`,
//! and [`OnVolume`] in place of the methods of [`Path`] that ask whether a file exists.

pub(crate) use std::fs::{DirBuilder, DirEntry, File, OpenOptions, canonicalize, copy};
use std::fs::{Metadata, ReadDir};
use std::io;
use std::path::{Path, PathBuf};

use super::absence::confirmed;

pub(crate) fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    confirmed(&[path.as_ref()], || std::fs::read(&path))
}

pub(crate) fn read_to_string(path: impl AsRef<Path>) -> io::Result<String> {
    confirmed(&[path.as_ref()], || std::fs::read_to_string(&path))
}

pub(crate) fn read_dir(path: impl AsRef<Path>) -> io::Result<ReadDir> {
    confirmed(&[path.as_ref()], || std::fs::read_dir(&path))
}

pub(crate) fn open(path: impl AsRef<Path>) -> io::Result<File> {
    confirmed(&[path.as_ref()], || File::open(&path))
}

pub(crate) fn metadata(path: impl AsRef<Path>) -> io::Result<Metadata> {
    confirmed(&[path.as_ref()], || std::fs::metadata(&path))
}

pub(crate) fn symlink_metadata(path: impl AsRef<Path>) -> io::Result<Metadata> {
    confirmed(&[path.as_ref()], || std::fs::symlink_metadata(&path))
}

pub(crate) fn read_link(path: impl AsRef<Path>) -> io::Result<PathBuf> {
    confirmed(&[path.as_ref()], || std::fs::read_link(&path))
}

pub(crate) fn write(path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) -> io::Result<()> {
    confirmed(&[parent(path.as_ref())], || std::fs::write(&path, &bytes))
}

pub(crate) fn create_dir(path: impl AsRef<Path>) -> io::Result<()> {
    confirmed(&[parent(path.as_ref())], || std::fs::create_dir(&path))
}

/// Creates a directory and its parents. A cache may deny that the directory exists while the
/// server refuses to create it again.
pub(crate) fn create_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    match std::fs::create_dir_all(&path) {
        Err(_) if path.as_ref().is_present_dir() => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            confirmed(&[parent(path.as_ref())], || std::fs::create_dir_all(&path))
        }
        created => created,
    }
}

pub(crate) fn remove_file(path: impl AsRef<Path>) -> io::Result<()> {
    confirmed(&[path.as_ref()], || std::fs::remove_file(&path))
}

pub(crate) fn remove_dir(path: impl AsRef<Path>) -> io::Result<()> {
    confirmed(&[path.as_ref()], || std::fs::remove_dir(&path))
}

pub(crate) fn remove_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    confirmed(&[path.as_ref()], || std::fs::remove_dir_all(&path))
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

/// Questions about a path. An error counts as "no", and so does a link that leads nowhere.
pub(crate) trait OnVolume {
    fn is_present(&self) -> bool;
    fn is_present_file(&self) -> bool;
    fn is_present_dir(&self) -> bool;
}

impl OnVolume for Path {
    fn is_present(&self) -> bool {
        metadata(self).is_ok()
    }

    fn is_present_file(&self) -> bool {
        metadata(self).is_ok_and(|file| file.is_file())
    }

    fn is_present_dir(&self) -> bool {
        metadata(self).is_ok_and(|file| file.is_dir())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_those_of_the_standard_library() {
        let dir = tempfile::tempdir().unwrap();
        let (inner, file, link) =
            (dir.path().join("a/b"), dir.path().join("a/b/file"), dir.path().join("link"));
        assert!(!inner.is_present() && read(&file).is_err() && remove_file(&file).is_err());
        create_dir_all(&inner).unwrap();
        create_dir_all(&inner).unwrap();
        write(&file, "text").unwrap();
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        assert!(inner.is_present_dir() && !inner.is_present_file());
        assert!(file.is_present_file() && !file.is_present_dir() && !link.is_present());
        assert!(symlink_metadata(&link).is_ok());
        assert_eq!(create_dir_all(&file).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(read_dir(&inner).unwrap().count(), 1);
        remove_dir_all(dir.path().join("a")).unwrap();
        assert_eq!(read_to_string(&file).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
