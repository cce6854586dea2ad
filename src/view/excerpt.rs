//! Excerpts of long texts: the beginning and the end, the length, and the location of the whole.
//!
//! **Invariant:** only the shown parts are read, and only from a regular file: a link that an agent
//! left in place of a log is not followed, and a pipe does not block.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::path::{Component, Path};

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use serde::Serialize;

use crate::disk::fs;

/// Maximum length of the shown beginning and end of a text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub head: usize,
    pub tail: usize,
}

impl Room {
    /// For reading: the beginning identifies the text, the end has the result.
    pub(crate) const USUAL: Room = Room { head: 16 << 10, tail: 16 << 10 };
    /// For a diff under review: as much as a user reads at once.
    pub(crate) const CHANGE: Room = Room { head: 128 << 10, tail: 16 << 10 };
    /// For one of many texts.
    pub(crate) const LITTLE: Room = Room { head: 1 << 10, tail: 3 << 10 };

    fn all(self) -> usize {
        self.head + self.tail
    }
}

/// A part of a text.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Excerpt {
    /// The whole text, or its beginning.
    pub text: String,
    /// Its end, if a part in between is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tail: Option<String>,
    /// Length of the whole text.
    pub bytes: u64,
    /// Length of the part that is left out.
    #[serde(skip_serializing_if = "is_none_left_out")]
    pub left_out: u64,
    /// File with the whole text, relative to the run's directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

fn is_none_left_out(bytes: &u64) -> bool {
    *bytes == 0
}

impl Excerpt {
    /// Returns an excerpt of a text in memory.
    pub(crate) fn of(text: &str, room: Room) -> Excerpt {
        let bytes = text.len() as u64;
        if text.len() <= room.all() {
            return Excerpt { text: text.to_owned(), bytes, ..Excerpt::default() };
        }
        let fits = |at: &usize| text.is_char_boundary(*at);
        let head = (0..=room.head).rev().find(fits).unwrap_or(0);
        let tail = (text.len() - room.tail..=text.len()).find(fits).unwrap_or(text.len());
        Excerpt {
            text: text[..head].to_owned(),
            tail: Some(text[tail..].to_owned()),
            bytes,
            left_out: (tail - head) as u64,
            file: None,
        }
    }

    /// Returns an excerpt of a file in the run's directory; `None` if it cannot be read.
    pub(crate) fn of_file(root: &Path, file: &str, room: Room) -> Option<Excerpt> {
        let mut open = open(root, file).ok()?;
        let bytes = open.metadata().ok()?.len();
        let mut read = |from: u64, most: usize| -> io::Result<String> {
            let mut part = Vec::new();
            open.seek(SeekFrom::Start(from))?;
            (&mut open).take(most as u64).read_to_end(&mut part)?;
            Ok(String::from_utf8_lossy(&part).into_owned())
        };
        let file = Some(file.to_owned());
        if bytes <= room.all() as u64 {
            let text = read(0, room.all()).ok()?;
            return Some(Excerpt { text, bytes, file, ..Excerpt::default() });
        }
        let (text, tail) = (read(0, room.head).ok()?, read(bytes - room.tail as u64, room.tail));
        let left_out = bytes - room.all() as u64;
        // The cut may split a character; drop its remains.
        let tail = tail.ok()?.trim_start_matches('\u{fffd}').to_owned();
        let text = text.trim_end_matches('\u{fffd}').to_owned();
        Some(Excerpt { text, tail: Some(tail), bytes, left_out, file })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Returns the length of the shown parts.
    pub(crate) fn size(&self) -> usize {
        self.text.len() + self.tail.as_ref().map_or(0, String::len)
    }
}

/// Opens a regular file by a path that stays in the directory: no part of it may be a link.
pub(crate) fn open(root: &Path, file: &str) -> io::Result<File> {
    let outside =
        || io::Error::new(io::ErrorKind::InvalidInput, "it is not in the run's directory");
    let mut at: OwnedFd = fs::open(root)?.into();
    let mut parts = Path::new(file).components().peekable();
    if parts.peek().is_none() {
        return Err(outside());
    }
    while let Some(part) = parts.next() {
        let Component::Normal(name) = part else { return Err(outside()) };
        let mut flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        if parts.peek().is_some() {
            flags |= OFlag::O_DIRECTORY;
        }
        at = openat(&at, name, flags, Mode::empty())?;
    }
    let open = File::from(at);
    match open.metadata()?.is_file() {
        true => Ok(open),
        false => Err(io::Error::new(io::ErrorKind::InvalidData, "it is no regular file")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Room = Room { head: 4, tail: 3 };

    #[test]
    fn a_long_text_shows_its_ends() {
        let whole = Excerpt::of("1234567", SMALL);
        assert_eq!((whole.text.as_str(), whole.tail, whole.left_out), ("1234567", None, 0));
        let cut = Excerpt::of("123ä5678ß", SMALL);
        assert_eq!((cut.text.as_str(), cut.tail.as_deref()), ("123", Some("8ß")));
        assert_eq!((cut.bytes, cut.left_out), (11, 5));
    }

    #[test]
    fn a_huge_file_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let huge = File::create(dir.path().join("huge")).unwrap();
        huge.set_len(100 << 30).unwrap();
        let cut = Excerpt::of_file(dir.path(), "huge", SMALL).unwrap();
        assert_eq!((cut.text.len(), cut.bytes, cut.left_out), (4, 100 << 30, (100 << 30) - 7));
        assert_eq!(cut.file.as_deref(), Some("huge"));
    }

    #[test]
    fn what_is_no_file_of_the_run_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("secret"), "x").unwrap();
        let root = dir.path().join("run");
        std::fs::create_dir(&root).unwrap();
        std::os::unix::fs::symlink("../secret", root.join("link")).unwrap();
        nix::unistd::mkfifo(&root.join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        std::os::unix::fs::symlink("..", root.join("logs")).unwrap();
        for name in ["link", "logs/secret", "pipe", "../secret", "/etc/passwd", "", ".", "absent"] {
            assert_eq!(Excerpt::of_file(&root, name, SMALL), None, "{name}");
        }
    }
}
