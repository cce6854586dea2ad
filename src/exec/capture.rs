//! Captures the output of a child: a limited part in memory, the whole of it in files.
//!
//! A stream is processed once: unmasked into the tee, masked into memory up to the mode's limit,
//! and masked into the log. The log is written from the beginning once that limit is exceeded, or
//! after a moment as a draft for readers that follow it. Memory stays bounded for any output.
//!
//! **Invariant:** nothing unmasked reaches the head, the tail or the log. Only the tee, which is
//! the user's own file, and the listener at the tap get the original bytes.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::mask::{Mask, Masker};
use super::tail::Tail;
use super::whole::{WHOLE_BYTES, Whole, WholeText};

pub(crate) const TEXT_BYTES: usize = 8192;
pub(crate) const LINES: usize = 10_000;
pub(crate) const LINES_BYTES: usize = 8 << 20;
pub(crate) const JSON_BYTES: usize = 1 << 20;
/// Size of the beginning to keep if otherwise only the end is kept.
const BEGINNING_BYTES: usize = 4096;

/// Time that a stream may be in memory only before readers that follow its log see it. Most
/// children end sooner and need no file.
const UNSEEN: Duration = Duration::from_millis(100);

/// The part of a stream that is kept in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The first 8192 bytes.
    Text,
    /// The first 10,000 lines, of at most 8 MiB together.
    Lines,
    /// Everything, up to 1 MiB as the child wrote it.
    Json,
    /// Everything as text; beyond 32 KiB in the file of [`Capture::whole`].
    Whole,
    /// Only the first and the last lines; everything is logged.
    Tail,
}

/// Determines when the stream is written to the log.
enum Logging {
    /// Once memory cannot hold it.
    AtLimit,
    /// A moment after it began, and immediately from then on; as a draft, until memory is full.
    Soon(Option<Instant>),
    /// Immediately.
    Live(Option<Arc<Draft>>),
}

type Tap = Box<dyn FnMut(&[u8])>;
type Filter = Box<dyn FnMut(&[u8], &mut Vec<u8>)>;

/// Captures one stream.
pub(crate) struct Capture {
    mode: Mode,
    masker: Option<Masker>,
    masked: Vec<u8>,
    /// The file and its display name.
    tee: Option<(File, String)>,
    tap: Option<Tap>,
    filter: Option<(Filter, Vec<u8>)>,
    whole: Option<Whole>,
    log: Log,
    logging: Logging,
    head: Vec<u8>,
    /// Unmasked input of the JSON parser: a mask could break the syntax, so values are masked
    /// later.
    raw: Vec<u8>,
    newlines: usize,
    total_bytes: u64,
    truncated: bool,
    tail: Tail,
    error: Option<io::Error>,
}

impl Capture {
    pub(crate) fn new(mode: Mode, mask: Mask) -> Capture {
        Capture {
            mode,
            masker: (!mask.is_empty()).then(|| mask.masker()),
            masked: Vec::new(),
            tee: None,
            tap: None,
            filter: None,
            whole: None,
            log: Log::Nowhere,
            logging: Logging::AtLimit,
            head: Vec::new(),
            raw: Vec::new(),
            newlines: 0,
            total_bytes: 0,
            truncated: false,
            tail: Tail::default(),
            error: None,
        }
    }

    /// Also writes the whole stream, unmasked, into this file.
    pub(crate) fn tee(mut self, file: File, name: &str) -> Capture {
        self.tee = Some((file, name.to_owned()));
        self
    }

    /// Also passes the whole stream, unmasked, to a listener as it arrives. The listener must mask
    /// everything it stores.
    pub(crate) fn tap(mut self, hear: impl FnMut(&[u8]) + 'static) -> Capture {
        self.tap = Some(Box::new(hear));
        self
    }

    /// Captures only the bytes that `filter` appends to its output. Nothing else sees the original
    /// stream.
    pub(crate) fn filter(mut self, filter: impl FnMut(&[u8], &mut Vec<u8>) + 'static) -> Capture {
        self.filter = Some((Box::new(filter), Vec::new()));
        self
    }

    /// Captures all of it as masked text: in this file if it is long.
    pub(crate) fn whole(mut self, path: PathBuf) -> Capture {
        self.whole = Some(Whole::new(path));
        self
    }

    /// Sets the log that gets the whole masked stream if memory cannot hold it.
    pub(crate) fn log(mut self, path: PathBuf) -> Capture {
        self.log = Log::Unopened(path, false);
        self
    }

    /// Sets the log, which is appended to.
    pub(crate) fn log_on(mut self, path: PathBuf) -> Capture {
        self.log = Log::Unopened(path, true);
        self
    }

    /// Writes the stream to the log immediately, for readers that follow it.
    pub(crate) fn live(mut self) -> Capture {
        self.logging = Logging::Live(None);
        self
    }

    /// Writes the stream to the log after a short delay, for readers that follow it. Removes the
    /// log in the end if memory holds everything.
    pub(crate) fn soon(mut self) -> Capture {
        self.logging = Logging::Soon(None);
        self
    }

    /// Returns the time when [`Capture::catch_up`] must be called.
    pub(crate) fn due(&self) -> Option<Instant> {
        match self.logging {
            Logging::Soon(due) if !self.truncated => due,
            _ => None,
        }
    }

    /// Begins a draft if it is due.
    pub(crate) fn catch_up(&mut self) {
        if self.due().is_none_or(|due| Instant::now() < due) {
            return;
        }
        // The draft only serves readers that follow the log: a failure to write it must not fail a
        // step.
        self.logging = match self.log.write(&self.head) {
            Ok(()) => Logging::Live(Some(Arc::new(Draft::at(self.log.path())))),
            Err(_) => {
                drop(Draft::at(self.log.path()));
                self.log.close();
                Logging::AtLimit
            }
        };
    }

    /// Captures the next bytes. A file error is kept for [`Capture::finish`], because the child's
    /// output must be read in any case.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let Some((mut filter, mut passed)) = self.filter.take() else { return self.take(bytes) };
        passed.clear();
        filter(bytes, &mut passed);
        self.take(&passed);
        self.filter = Some((filter, passed));
    }

    fn take(&mut self, bytes: &[u8]) {
        self.total_bytes += bytes.len() as u64;
        if let Some(hear) = &mut self.tap {
            hear(bytes);
        }
        if let Some((file, name)) = &mut self.tee
            && let Err(error) = file.write_all(bytes)
        {
            let name = std::mem::take(name);
            self.tee = None;
            self.fail(|| format!("cannot write the output file `{name}`"), error);
        }
        match &mut self.masker {
            None => self.keep(bytes),
            Some(masker) => {
                if self.mode == Mode::Json && self.total_bytes <= JSON_BYTES as u64 {
                    self.raw.extend_from_slice(bytes);
                }
                let mut masked = std::mem::take(&mut self.masked);
                masked.clear();
                masker.feed(bytes, &mut masked);
                self.keep(&masked);
                self.masked = masked;
            }
        }
    }

    /// Ends the stream. Fails if any file could not be written completely.
    pub(crate) fn finish(mut self) -> io::Result<Captured> {
        if let Some(mut masker) = self.masker.take() {
            let mut masked = Vec::new();
            masker.finish(&mut masked);
            self.keep(&masked);
        }
        let whole = self.whole.take().map(|whole| {
            let path = whole.path().to_owned();
            whole.finish().map_err(|error| unkept(&path, &error))
        });
        if let Some(error) = self.error {
            return Err(error);
        }
        let whole = whole.transpose()?.unwrap_or_default();
        let lines = if self.mode == Mode::Lines { split_lines(&self.head) } else { Vec::new() };
        Ok(Captured {
            head: self.head,
            raw: self.raw,
            lines,
            truncated: if self.mode == Mode::Whole { whole.file.is_some() } else { self.truncated },
            whole,
            total_bytes: self.total_bytes,
            tail: self.tail.lines(),
            logged: matches!(self.log, Log::Open(..)),
            draft: match self.logging {
                Logging::Live(draft) => draft,
                _ => None,
            },
        })
    }

    fn keep(&mut self, masked: &[u8]) {
        self.tail.push(masked);
        if let Some(whole) = &mut self.whole
            && let Err(error) = whole.push(masked)
        {
            let path = whole.path().to_owned();
            self.whole = None;
            self.error.get_or_insert(unkept(&path, &error));
        }
        let logs_all = self.is_live() || self.mode == Mode::Tail || self.truncated;
        if logs_all && !masked.is_empty() {
            self.write_log(masked);
        }
        if self.mode == Mode::Tail {
            let room = BEGINNING_BYTES.saturating_sub(self.head.len()).min(masked.len());
            self.head.extend_from_slice(&masked[..room]);
            return;
        }
        if self.truncated {
            return;
        }
        self.head.extend_from_slice(masked);
        if let Logging::Soon(due @ None) = &mut self.logging
            && !masked.is_empty()
        {
            *due = Some(Instant::now() + UNSEEN);
        }
        let Some(limit) = self.passed_limit(masked) else { return };
        self.truncated = true;
        if !self.is_live() {
            let head = std::mem::take(&mut self.head);
            self.write_log(&head);
            self.head = head;
        }
        if let Logging::Live(Some(draft)) = &self.logging {
            draft.keep();
        }
        cut(&mut self.head, limit);
    }

    fn is_live(&self) -> bool {
        matches!(self.logging, Logging::Live(_))
    }

    /// Returns the length to cut the head to, if these last bytes exceeded its limit.
    fn passed_limit(&mut self, added: &[u8]) -> Option<usize> {
        let limit = match self.mode {
            Mode::Text => TEXT_BYTES,
            Mode::Whole => WHOLE_BYTES,
            Mode::Json if self.total_bytes > JSON_BYTES as u64 => return Some(JSON_BYTES),
            // Asterisks may be longer than the value they hide: the length of the original decides.
            Mode::Json | Mode::Tail => return None,
            Mode::Lines => self.end_of_lines(added).unwrap_or(self.head.len()).min(LINES_BYTES),
        };
        (self.head.len() > limit).then_some(limit)
    }

    /// Returns the position after the last line to keep, once that many lines have arrived.
    fn end_of_lines(&mut self, added: &[u8]) -> Option<usize> {
        let before = self.head.len() - added.len();
        let missing = LINES - self.newlines;
        if missing == 0 {
            return Some(before);
        }
        let mut ends = added.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
        let mut seen = 0;
        let end = ends.by_ref().inspect(|_| seen += 1).nth(missing - 1);
        self.newlines += seen;
        end.map(|(at, _)| before + at + 1)
    }

    fn write_log(&mut self, masked: &[u8]) {
        if let Err(error) = self.log.write(masked) {
            if !self.truncated
                && let Logging::Live(Some(_)) = self.logging
            {
                // Drop the draft; memory still has everything.
                self.log.close();
                self.logging = Logging::AtLimit;
                return;
            }
            let path = self.log.path();
            self.fail(|| format!("cannot write the log `{}`", path.display()), error);
            self.log = Log::Nowhere;
        }
    }

    /// Keeps only the first error, which is the cause of the later ones.
    fn fail(&mut self, what: impl FnOnce() -> String, error: io::Error) {
        if self.error.is_none() {
            self.error = Some(io::Error::new(error.kind(), format!("{}: {error}", what())));
        }
    }
}

/// The captured stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct Captured {
    /// The beginning, masked, within the limit.
    pub head: Vec<u8>,
    /// The same unmasked, in mode [`Mode::Json`] with a mask; only [`Captured::json`] reads it.
    raw: Vec<u8>,
    /// The whole text, in mode [`Mode::Whole`] only.
    pub whole: WholeText,
    /// The head as lines, in mode [`Mode::Lines`] only.
    pub lines: Vec<String>,
    /// True if the stream exceeded the limit.
    pub truncated: bool,
    /// Length of the original stream.
    pub total_bytes: u64,
    /// The last lines, masked, each truncated.
    pub tail: Vec<String>,
    /// True if the whole stream is in the log, even if only as a draft.
    pub logged: bool,
    draft: Option<Arc<Draft>>,
}

impl Captured {
    /// Returns the first lines, in mode [`Mode::Tail`].
    pub(crate) fn first_lines(&self) -> Vec<String> {
        let whole = self.head.len() < BEGINNING_BYTES;
        let mut lines: Vec<String> = self.text().lines().map(str::to_owned).collect();
        if !whole {
            lines.pop();
        }
        lines
    }

    /// Returns the head as text; invalid UTF-8 is replaced.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.head).into_owned()
    }

    /// Returns the stream as JSON. Its values are not masked.
    pub(crate) fn json(&self) -> serde_json::Result<serde_json::Value> {
        serde_json::from_slice(if self.raw.is_empty() { &self.head } else { &self.raw })
    }

    /// Writes the head to a log, unless the log already has everything.
    pub(crate) fn write_log(&self, path: &Path) -> io::Result<()> {
        self.keep_draft();
        if self.logged {
            return Ok(());
        }
        create(path)?.write_all(&self.head)
    }

    /// Turns a draft into a permanent log: nothing else contains its content.
    pub(crate) fn keep_draft(&self) {
        self.draft.iter().for_each(|draft| draft.keep());
    }
}

/// A log for readers that follow it. Removed with its last owner, unless it is kept.
#[derive(Debug)]
struct Draft {
    path: PathBuf,
    is_kept: AtomicBool,
}

impl Draft {
    fn at(path: PathBuf) -> Draft {
        Draft { path, is_kept: AtomicBool::new(false) }
    }

    fn keep(&self) {
        self.is_kept.store(true, Ordering::Relaxed);
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.is_kept.load(Ordering::Relaxed) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Describes the error of a file that was to hold a whole stream.
fn unkept(path: &Path, error: &io::Error) -> io::Error {
    let message = format!("cannot keep the output in `{}`: {error}", path.display());
    io::Error::new(error.kind(), message)
}

/// A file that is created by the first write. Not buffered, because users follow it.
enum Log {
    Nowhere,
    /// The path, and true to append to an existing file.
    Unopened(PathBuf, bool),
    Open(PathBuf, File),
}

impl Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if let Log::Unopened(path, stays) = self {
            let file = if *stays { go_on(path)? } else { create(path)? };
            *self = Log::Open(std::mem::take(path), file);
        }
        match self {
            Log::Open(_, file) => file.write_all(bytes),
            _ => Ok(()),
        }
    }

    /// Resets the log to its state before the first write.
    fn close(&mut self) {
        if let Log::Open(path, _) = self {
            *self = Log::Unopened(std::mem::take(path), false);
        }
    }

    fn path(&self) -> PathBuf {
        match self {
            Log::Nowhere => PathBuf::new(),
            Log::Unopened(path, _) | Log::Open(path, _) => path.clone(),
        }
    }
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o644).open(path)
}

fn go_on(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o644).open(path)
}

/// Shortens to at most `limit` bytes without splitting a character. Returns true if it had to.
pub(crate) fn cut(bytes: &mut Vec<u8>, limit: usize) -> bool {
    if bytes.len() <= limit {
        return false;
    }
    bytes.truncate(limit);
    let back = bytes.iter().rev().take(4).position(|byte| byte & 0xc0 != 0x80);
    let Some(start) = back.map(|back| bytes.len() - 1 - back) else {
        return true;
    };
    if std::str::from_utf8(&bytes[start..]).is_err_and(|e| e.error_len().is_none()) {
        bytes.truncate(start);
    }
    bytes.shrink_to_fit();
    true
}

fn split_lines(head: &[u8]) -> Vec<String> {
    let text = head.strip_suffix(b"\n").unwrap_or(head);
    if head.is_empty() {
        return Vec::new();
    }
    text.split(|byte| *byte == b'\n')
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
        .map(|line| String::from_utf8_lossy(line).into_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn captured(mode: Mode, pieces: &[&[u8]]) -> Captured {
        let mut capture = Capture::new(mode, Mask::default());
        pieces.iter().for_each(|piece| capture.push(piece));
        capture.finish().unwrap()
    }

    fn mask() -> Mask {
        Mask::new(["s3cret".to_owned()])
    }

    #[test]
    fn text_of_exactly_8192_bytes_is_whole_and_one_more_is_cut() {
        let whole = captured(Mode::Text, &[&[b'x'; 8192]]);
        assert_eq!((whole.truncated, whole.text().len()), (false, 8192));
        let more = captured(Mode::Text, &[&[b'x'; 8192], b"y"]);
        assert_eq!((more.truncated, more.text().len(), more.total_bytes), (true, 8192, 8193));
    }

    #[test]
    fn a_cut_never_splits_a_character() {
        for lead in 0..4 {
            let bytes = [&b"abc"[..lead], "€".repeat(3000).as_bytes()].concat();
            let text = captured(Mode::Text, &[&bytes]).text();
            assert!(text.len() > 8192 - 3 && text.ends_with('€'), "{lead}");
        }
    }

    #[test]
    fn bytes_that_are_not_utf8_are_replaced_in_text_and_kept_in_the_tee() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let mut capture = Capture::new(Mode::Text, mask()).tee(File::create(&path).unwrap(), "out");
        capture.push(b"a\xff s3c");
        capture.push(b"ret\n");
        let captured = capture.finish().unwrap();
        assert_eq!(captured.text(), "a\u{fffd} ***\n");
        assert_eq!(captured.head, b"a\xff ***\n");
        assert_eq!(fs::read(&path).unwrap(), b"a\xff s3cret\n");
    }

    #[test]
    fn lines_have_no_phantom_last_one_and_keep_inner_blanks() {
        let lines = |text: &str| captured(Mode::Lines, &[text.as_bytes()]).lines;
        assert_eq!(lines(""), Vec::<String>::new());
        assert_eq!(lines("\n"), [""]);
        assert_eq!(lines("a\r\n\nb"), ["a", "", "b"]);
        assert_eq!(lines("a\n\n"), ["a", ""]);
    }

    #[test]
    fn ten_thousand_lines_are_whole_and_one_byte_more_is_cut() {
        let text = "l\n".repeat(LINES);
        let whole = captured(Mode::Lines, &[text.as_bytes()]);
        assert_eq!((whole.lines.len(), whole.truncated), (LINES, false));
        for pieces in
            [[&text[..777], &text[777..], "x"], [&text, "x\ny", ""], [&text[..9], &text[9..], "\n"]]
        {
            let more = captured(Mode::Lines, &pieces.map(str::as_bytes));
            assert_eq!((more.lines.len(), more.truncated), (LINES, true));
        }
    }

    #[test]
    fn endless_lines_are_cut_by_bytes() {
        let piece = vec![b'x'; 1 << 20];
        let captured = captured(Mode::Lines, &[&piece[..]; 9]);
        assert_eq!((captured.head.len(), captured.truncated), (LINES_BYTES, true));
    }

    #[test]
    fn json_is_cut_by_what_the_child_wrote_not_by_what_is_shown() {
        let mut capture = Capture::new(Mode::Json, Mask::new(["a".to_owned()]));
        capture.push(&vec![b'a'; JSON_BYTES]);
        let whole = capture.finish().unwrap();
        assert_eq!((whole.truncated, whole.head.len()), (false, 3 * JSON_BYTES));
        let more = captured(Mode::Json, &[&vec![b'x'; JSON_BYTES], b"x"]);
        assert_eq!((more.truncated, more.head.len()), (true, JSON_BYTES));
    }

    #[test]
    fn a_log_appears_with_the_whole_masked_stream_once_the_limit_is_passed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut capture = Capture::new(Mode::Text, mask()).log(path.clone());
        capture.push(b"s3cret ");
        capture.push(&[b'x'; 8000]);
        assert!(!path.exists());
        capture.push(&[b'y'; 8000]);
        assert_eq!(fs::read(&path).unwrap().len(), 16004, "followed while it grows");
        capture.push(b"s3c");
        capture.push(b"ret!");
        let captured = capture.finish().unwrap();
        let log = fs::read(&path).unwrap();
        assert!(captured.logged && log.starts_with(b"*** xxx") && log.ends_with(b"yyy***!"));
        assert_eq!(captured.total_bytes, 16014);
    }

    #[test]
    fn the_whole_text_is_masked_and_so_is_its_log() {
        let dir = tempfile::tempdir().unwrap();
        let paths = [dir.path().join("text"), dir.path().join("log")];
        let mut capture =
            Capture::new(Mode::Whole, mask()).whole(paths[0].clone()).log(paths[1].clone());
        capture.push(b"s3cret ");
        capture.push(&vec![b'x'; WHOLE_BYTES]);
        capture.push(b"s3c");
        capture.push(b"ret\n");
        let captured = capture.finish().unwrap();
        let wanted = format!("*** {}***", "x".repeat(WHOLE_BYTES));
        assert!(fs::read_to_string(&paths[0]).unwrap() == wanted);
        assert!(fs::read_to_string(&paths[1]).unwrap() == format!("{wanted}\n"));
        assert!(captured.truncated && wanted.starts_with(&captured.whole.head));
        assert_eq!(captured.whole.file.unwrap().bytes, wanted.len() as u64);
    }

    #[test]
    fn a_short_whole_text_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("text");
        let mut capture = Capture::new(Mode::Whole, mask()).whole(path.clone()).log(path.clone());
        capture.push(b"a s3cret\n");
        let captured = capture.finish().unwrap();
        assert_eq!((captured.whole.head.as_str(), captured.truncated), ("a ***", false));
        assert!(!path.exists());
    }

    #[test]
    fn a_whole_text_that_cannot_be_kept_is_told_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        let mut capture =
            Capture::new(Mode::Whole, mask()).whole(dir.path().join("file/below/text"));
        capture.push(&vec![b'x'; 2 * WHOLE_BYTES]);
        let error = capture.finish().unwrap_err().to_string();
        assert!(error.starts_with("cannot keep the output in `"), "{error}");
    }

    #[test]
    fn a_secret_across_the_limit_does_not_leave_its_head() {
        let mut capture = Capture::new(Mode::Text, mask());
        capture.push(&[b'x'; 8190]);
        capture.push(b"s3cret");
        assert!(capture.finish().unwrap().text().ends_with("xx**"));
    }

    #[test]
    fn the_tail_mode_logs_from_the_first_byte_and_keeps_the_first_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let silent = Capture::new(Mode::Tail, mask()).log(path.clone());
        assert!(!silent.finish().unwrap().logged && !path.exists());
        let mut capture = Capture::new(Mode::Tail, mask()).log(path.clone());
        capture.push(b"e s3cret\n");
        assert_eq!(fs::read(&path).unwrap(), b"e ***\n");
        let captured = capture.finish().unwrap();
        assert_eq!(captured.tail, ["e ***"]);
        assert!(captured.logged && !captured.truncated);
        assert_eq!(captured.first_lines(), ["e ***"]);
        let mut capture = Capture::new(Mode::Tail, mask()).log(path);
        (0..4096).for_each(|number| capture.push(format!("line {number}\n").as_bytes()));
        let lines = capture.finish().unwrap().first_lines();
        assert!(lines[0] == "line 0" && lines.len() < 500);
        let last = lines.last().unwrap();
        assert_eq!(last, &format!("line {}", lines.len() - 1), "none is cut");
    }

    #[test]
    fn a_filter_decides_what_is_taken_in() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tee");
        let odd = |bytes: &[u8], out: &mut Vec<u8>| {
            out.extend(bytes.iter().filter(|byte| **byte != b'-'));
        };
        let file = File::create(&path).unwrap();
        let mut capture = Capture::new(Mode::Text, mask()).tee(file, "tee").filter(odd);
        capture.push(b"a-b");
        capture.push(b"--s3c-ret");
        let captured = capture.finish().unwrap();
        assert_eq!((captured.text().as_str(), captured.total_bytes), ("ab***", 8));
        assert_eq!(fs::read(&path).unwrap(), b"abs3cret");
    }

    #[test]
    fn an_error_of_a_file_is_told_at_the_end() {
        let mut capture = Capture::new(Mode::Tail, mask()).log("/no/such/folder/x".into());
        capture.push(b"x");
        capture.push(b"y");
        let error = capture.finish().unwrap_err().to_string();
        assert!(error.starts_with("cannot write the log `/no/such/folder/x`: "), "{error}");
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut capture = Capture::new(Mode::Text, mask()).tee(full, "full");
        capture.push(b"x");
        assert_eq!(capture.finish().unwrap_err().kind(), io::ErrorKind::StorageFull);
    }

    /// A capture whose draft is due at once.
    fn drafted(mode: Mode, path: &Path, bytes: &[u8]) -> Capture {
        let mut capture = Capture::new(mode, mask()).log(path.to_owned()).soon();
        capture.push(bytes);
        assert!(!path.exists() && capture.due().is_some(), "not yet");
        capture.logging = Logging::Soon(Some(Instant::now()));
        capture.catch_up();
        capture
    }

    #[test]
    fn a_draft_is_there_while_the_child_runs_and_goes_with_what_was_taken_in() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut capture = drafted(Mode::Text, &path, b"a s3cret\n");
        assert_eq!((fs::read(&path).unwrap(), capture.due()), (b"a ***\n".to_vec(), None));
        capture.push(b"more\n");
        assert_eq!(fs::read(&path).unwrap(), b"a ***\nmore\n");
        let captured = capture.finish().unwrap();
        assert_eq!(captured.text(), "a ***\nmore\n");
        assert!(path.exists(), "whoever reads it has it whole");
        drop(captured);
        assert!(!path.exists());
    }

    #[test]
    fn a_draft_stays_where_memory_is_too_small_or_somebody_wants_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut capture = drafted(Mode::Text, &path, b"first\n");
        capture.push(&[b'x'; 9000]);
        drop(capture.finish().unwrap());
        assert_eq!(fs::read(&path).unwrap().len(), 9006);
        fs::remove_file(&path).unwrap();
        let captured = drafted(Mode::Json, &path, b"not json").finish().unwrap();
        captured.write_log(&path).unwrap();
        drop(captured);
        assert_eq!(fs::read(&path).unwrap(), b"not json");
    }

    #[test]
    fn a_draft_that_cannot_be_written_fails_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut capture = drafted(Mode::Text, &dir.path().join("no/log"), b"text");
        capture.push(b" and more");
        assert_eq!(capture.finish().unwrap().text(), "text and more");
    }

    #[test]
    fn the_head_can_be_logged_later() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        captured(Mode::Json, &[b"not json"]).write_log(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"not json");
    }
}
