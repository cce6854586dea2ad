//! A whole stream as text, without its last newline: in memory if it is short, else in its own file
//! with its beginning in memory.
//!
//! **Invariant:** an existing file is never written to: it may belong to another process that
//! performs the same work and was declared dead too early or wakes up too late.
//!
//! **Invariant:** the text does not depend on how the stream is split into pieces: an incomplete
//! character or a newline at the end of a piece waits for the next piece.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// The longest text that is in memory only.
pub(crate) const WHOLE_BYTES: usize = 32 << 10;
/// No reader follows the file, so writes are buffered.
const BUFFER: usize = 64 << 10;
/// Maximum number of names to try.
const MOST: u32 = 1000;

/// A text that was captured as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WholeText {
    /// The whole text, or its beginning if it is in a file.
    pub head: String,
    pub file: Option<TextFile>,
    /// True if the text had invalid UTF-8, which was replaced.
    pub replaced: bool,
}

/// A text in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TextFile {
    pub path: PathBuf,
    pub bytes: u64,
    pub sha256: String,
}

impl WholeText {
    /// Stores a text that is already in memory, as if it was captured.
    pub(crate) fn keep(text: &str, path: &Path) -> io::Result<WholeText> {
        let mut whole = Whole::new(path.to_owned());
        whole.put(text)?;
        whole.finish()
    }
}

/// Captures one stream.
pub(super) struct Whole {
    path: PathBuf,
    head: String,
    file: Option<Spill>,
    /// The first bytes of an incomplete character.
    part: Vec<u8>,
    /// True if the last character so far is a newline that has not been stored.
    newline: bool,
    /// True if invalid UTF-8 was replaced.
    replaced: bool,
}

struct Spill {
    file: BufWriter<File>,
    digest: Sha256,
    bytes: u64,
}

impl Spill {
    fn put(&mut self, text: &str) -> io::Result<()> {
        self.digest.update(text);
        self.bytes += text.len() as u64;
        self.file.write_all(text.as_bytes())
    }
}

impl Whole {
    /// Creates an empty text that goes into the file `path` if it becomes long.
    pub(super) fn new(path: PathBuf) -> Whole {
        Whole {
            path,
            head: String::new(),
            file: None,
            part: Vec::new(),
            newline: false,
            replaced: false,
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Captures the next bytes. Invalid UTF-8 is replaced.
    pub(super) fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.part.is_empty() {
            return self.push_on(bytes);
        }
        let mut together = std::mem::take(&mut self.part);
        together.extend_from_slice(bytes);
        self.push_on(&together)
    }

    fn push_on(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        loop {
            let error = match std::str::from_utf8(bytes) {
                Ok(text) => return self.put_line(text),
                Err(error) => error,
            };
            let (text, rest) = bytes.split_at(error.valid_up_to());
            self.put_line(std::str::from_utf8(text).unwrap_or_default())?;
            let Some(wrong) = error.error_len() else {
                self.part = rest.to_vec();
                return Ok(());
            };
            self.replaced = true;
            self.put_line("\u{fffd}")?;
            bytes = &rest[wrong..];
        }
    }

    /// Stores text without a newline at its end, which may be the last one.
    fn put_line(&mut self, text: &str) -> io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        if std::mem::take(&mut self.newline) {
            self.put("\n")?;
        }
        let line = text.strip_suffix('\n');
        self.newline = line.is_some();
        self.put(line.unwrap_or(text))
    }

    fn put(&mut self, text: &str) -> io::Result<()> {
        if let Some(file) = &mut self.file {
            return file.put(text);
        }
        self.head.push_str(text);
        if self.head.len() <= WHOLE_BYTES {
            return Ok(());
        }
        let file = BufWriter::with_capacity(BUFFER, create(&mut self.path)?);
        let file = self.file.insert(Spill { file, digest: Sha256::new(), bytes: 0 });
        file.put(&self.head)?;
        let end = (0..=WHOLE_BYTES).rev().find(|at| self.head.is_char_boundary(*at));
        self.head.truncate(end.unwrap_or(0));
        self.head.shrink_to_fit();
        Ok(())
    }

    /// Ends the text. A newline at its end is omitted.
    pub(super) fn finish(mut self) -> io::Result<WholeText> {
        if !self.part.is_empty() {
            self.replaced = true;
            self.put_line("\u{fffd}")?;
        }
        let Whole { path, head, file, replaced, .. } = self;
        let Some(mut spill) = file else { return Ok(WholeText { head, file: None, replaced }) };
        spill.file.flush()?;
        let sha256 = spill.digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        let file = TextFile { path, bytes: spill.bytes, sha256 };
        Ok(WholeText { head, file: Some(file), replaced })
    }
}

/// Creates a file with this name, or with the next one that is free: `text-2.txt`.
fn create(path: &mut PathBuf) -> io::Result<File> {
    fs::create_dir_all(path.parent().unwrap_or(path))?;
    let wanted = path.clone();
    let stem = wanted.file_stem().unwrap_or_default().to_string_lossy();
    let ending = wanted.extension().unwrap_or_default().to_string_lossy();
    for number in 2.. {
        match File::create_new(&*path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < MOST => {
                *path = wanted.with_file_name(format!("{stem}-{number}.{ending}"));
            }
            made => return made,
        }
    }
    unreachable!("the last try gives what came of it")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes of a stream in pieces of some length: the head, and what is in the file.
    fn taken(stream: &[u8], piece: usize) -> (String, Option<String>) {
        let dir = tempfile::tempdir().unwrap();
        let mut whole = Whole::new(dir.path().join("deep/er/text"));
        stream.chunks(piece).for_each(|piece| whole.push(piece).unwrap());
        let text = whole.finish().unwrap();
        let Some(file) = text.file else { return (text.head, None) };
        let written = fs::read(&file.path).unwrap();
        let sum: String = Sha256::digest(&written).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!((file.bytes, file.sha256), (written.len() as u64, sum));
        (text.head, Some(String::from_utf8(written).unwrap()))
    }

    #[test]
    fn one_newline_is_left_out_and_the_pieces_do_not_matter() {
        for (stream, wanted) in [
            (&b""[..], ""),
            (b"\n", ""),
            (b"\n\n", "\n"),
            (b"a", "a"),
            (b"a\n", "a"),
            (b"a\r\n", "a\r"),
            (b"\n a\n\nb \n\n", "\n a\n\nb \n"),
            ("é끝😀\n".as_bytes(), "é끝😀"),
            (b"a\xffb\xf0\x9f\n", "a\u{fffd}b\u{fffd}"),
            (b"\xe2\x82", "\u{fffd}"),
            (b"x\n\xe2\x82", "x\n\u{fffd}"),
            (b"\xe2\x82\xe2\x82\xac\xac", "\u{fffd}€\u{fffd}"),
        ] {
            let lossy = String::from_utf8_lossy(stream).into_owned();
            assert_eq!(lossy.strip_suffix('\n').unwrap_or(&lossy), wanted);
            for piece in 1..=stream.len().max(1) {
                assert_eq!(taken(stream, piece), (wanted.to_owned(), None), "{piece}");
            }
        }
    }

    #[test]
    fn a_long_text_is_in_a_file_and_its_head_ends_with_a_character() {
        let fits = format!("{}\n", "x".repeat(WHOLE_BYTES));
        assert_eq!(taken(fits.as_bytes(), 4096), (fits.trim_end().to_owned(), None));
        for lead in ["", "a", "ab"] {
            let text = format!("{lead}{}", "€".repeat(WHOLE_BYTES / 2));
            for piece in [1000, 4096, 1 << 20] {
                let (head, file) = taken(format!("{text}\n").as_bytes(), piece);
                assert!(head.len() > WHOLE_BYTES - 3 && text.starts_with(&head), "{lead}");
                assert!(file.as_ref() == Some(&text));
            }
        }
    }

    #[test]
    fn a_newline_after_the_last_that_fits_is_not_too_much_but_two_are() {
        let text = "x".repeat(WHOLE_BYTES);
        assert!(taken(format!("{text}\n").as_bytes(), 5).1.is_none());
        let two = taken(format!("{text}\n\n").as_bytes(), 5).1.unwrap();
        assert!(two == format!("{text}\n"));
    }

    #[test]
    fn a_text_that_is_known_is_kept_the_same_way() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("text.1.txt");
        let short = WholeText::keep("a\n", &path).unwrap();
        assert_eq!((short.head.as_str(), short.file.is_none()), ("a\n", true));
        let long = WholeText::keep(&"y".repeat(WHOLE_BYTES + 1), &path).unwrap();
        assert_eq!(long.file.unwrap().bytes, WHOLE_BYTES as u64 + 1);
        assert_eq!(long.head.len(), WHOLE_BYTES);

        // Whoever comes next takes another name.
        for name in ["text.1-2.txt", "text.1-3.txt"] {
            let next = WholeText::keep(&"z".repeat(WHOLE_BYTES + 1), &path).unwrap();
            assert_eq!(next.file.unwrap().path, dir.path().join(name));
        }
        assert!(fs::read(&path).unwrap().starts_with(b"y"));
    }
}
