//! Messages to the user on stderr, separate from data on stdout.
//!
//! **Invariant:** untrusted text never moves the cursor or changes the text direction, and a closed
//! stderr is not an error. Lines drawn at the end of the terminal are erased before any other
//! output; otherwise the next redraw would erase that output instead.

use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::sync::{Mutex, MutexGuard};

use crate::base::ansi;
use crate::base::text::sanitize;

/// The lines currently drawn at the end of the terminal.
static DRAWN: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn drawn() -> MutexGuard<'static, Vec<String>> {
    DRAWN.lock().unwrap_or_else(|poison| poison.into_inner())
}

/// A writer for untrusted bytes to stdout: makes them safe if stdout is a terminal, and otherwise
/// leaves them unchanged.
pub(crate) struct Tamed<W: Write> {
    out: W,
    /// True if stdout is a terminal.
    tames: bool,
    /// The start of a character or escape sequence whose end has not arrived yet.
    rest: Vec<u8>,
}

impl Tamed<std::io::StdoutLock<'static>> {
    pub(crate) fn stdout() -> Self {
        let out = std::io::stdout();
        let tames = out.is_terminal();
        Tamed { out: out.lock(), tames, rest: Vec::new() }
    }
}

impl<W: Write> Write for Tamed<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if !self.tames {
            return self.out.write(bytes);
        }
        let all = [std::mem::take(&mut self.rest), bytes.to_vec()].concat();
        let mut text = String::new();
        let mut chunks = all.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            text.push_str(chunk.valid());
            if chunks.peek().is_none() && begins_letter(chunk.invalid()) {
                self.rest = chunk.invalid().to_vec();
            } else if !chunk.invalid().is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
            }
        }
        let cut = ansi::unfinished(&text).filter(|at| text.len() - at <= SEQUENCE_MAX);
        if let Some(at) = cut {
            self.rest.splice(..0, text.split_off(at).into_bytes());
        }
        self.out.write_all(sanitize(&text).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}

/// Maximum length of an unfinished escape sequence that is held back for the next write.
const SEQUENCE_MAX: usize = 4096;

/// Returns true if the bytes are an incomplete UTF-8 character.
fn begins_letter(bytes: &[u8]) -> bool {
    let length = match bytes.first() {
        Some(0xc2..=0xdf) => 2,
        Some(0xe0..=0xef) => 3,
        Some(0xf0..=0xf4) => 4,
        _ => 0,
    };
    bytes.len() < length
}

/// Prints a message, made safe for a terminal.
pub(crate) fn talk(text: impl Display) {
    let mut text = sanitize(&text.to_string());
    if !text.ends_with('\n') {
        text.push('\n');
    }
    put(&text);
}

/// Prints trusted text unchanged, in place of the drawn lines.
pub(crate) fn put(text: &str) {
    let mut drawn = drawn();
    write(&(erasing(&drawn) + text));
    drawn.clear();
}

/// Draws lines at the end of the terminal, in place of the drawn ones. No line may be wider than
/// the terminal.
pub(crate) fn draw(lines: Vec<String>) {
    let mut drawn = drawn();
    if lines != *drawn {
        let new: String = lines.iter().map(|line| format!("{line}\n")).collect();
        write(&(erasing(&drawn) + &new));
        *drawn = lines;
    }
}

/// Erases the drawn lines.
pub(crate) fn erase() {
    put("");
}

fn erasing(drawn: &[String]) -> String {
    match drawn.len() {
        0 => String::new(),
        lines => format!("\x1b[{lines}A\x1b[J"),
    }
}

/// Writes the text with one call, because other processes may write there too. Ignores errors: a
/// closed stderr must not stop the program.
fn write(text: &str) {
    if !text.is_empty() {
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_letters_and_a_pipe_gets_bytes() {
        let bytes = "é\x1b[2J€\u{9b}x\n".as_bytes();
        let bytes = [bytes, b"\xff\xe2\x82"].concat();
        let written = |tames: bool, size: usize| {
            let mut tamed = Tamed { out: Vec::new(), tames, rest: Vec::new() };
            bytes.chunks(size).for_each(|piece| tamed.write_all(piece).unwrap());
            tamed.out
        };
        for size in 1..bytes.len() {
            assert_eq!(written(false, size), bytes);
            let text = String::from_utf8(written(true, size)).unwrap();
            assert_eq!(text, "é€\u{fffd}x\n\u{fffd}");
        }
    }
}
