//! The last lines of a stream, each truncated, for error messages about a child.
//!
//! Only the end of each piece is scanned, so following a gigabyte costs almost nothing.

use std::collections::VecDeque;

use super::capture::cut;

const LINES: usize = 10;
const LINE_BYTES: usize = 1024;

#[derive(Default)]
pub(super) struct Tail {
    /// Finished lines, newest last.
    lines: VecDeque<Vec<u8>>,
    /// The unfinished line, truncated.
    open: Vec<u8>,
    /// True if `open` is a line with at least one byte.
    begun: bool,
}

impl Tail {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        let mut rest = self.skip_to_last_lines(bytes);
        while let Some(end) = newline(rest) {
            self.extend(&rest[..end]);
            self.end_line();
            rest = &rest[end + 1..];
        }
        self.extend(rest);
    }

    pub(super) fn lines(mut self) -> Vec<String> {
        if self.begun {
            self.end_line();
        }
        self.lines.into_iter().map(shown).collect()
    }

    /// Drops everything before the last lines if these bytes end more lines than are kept.
    fn skip_to_last_lines<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let mut before = bytes;
        for _ in 0..=LINES {
            match last_newline(before) {
                Some(at) => before = &before[..at],
                None => return bytes,
            }
        }
        self.lines.clear();
        self.open.clear();
        self.begun = false;
        &bytes[before.len() + 1..]
    }

    fn extend(&mut self, part: &[u8]) {
        let room = LINE_BYTES - self.open.len();
        self.open.extend_from_slice(&part[..part.len().min(room)]);
        self.begun |= !part.is_empty();
    }

    fn end_line(&mut self) {
        if self.lines.len() == LINES {
            self.lines.pop_front();
        }
        self.lines.push_back(std::mem::take(&mut self.open));
        self.begun = false;
    }
}

fn shown(mut line: Vec<u8>) -> String {
    if line.len() == LINE_BYTES {
        cut(&mut line, LINE_BYTES);
    }
    let line = line.strip_suffix(b"\r").unwrap_or(&line);
    String::from_utf8_lossy(line).into_owned()
}

/// Block size of the search: `contains` is fast, and only one block is searched byte by byte.
const BLOCK: usize = 256;

fn newline(bytes: &[u8]) -> Option<usize> {
    let block = bytes.chunks(BLOCK).position(|block| block.contains(&b'\n'))? * BLOCK;
    bytes[block..].iter().position(|byte| *byte == b'\n').map(|at| block + at)
}

fn last_newline(bytes: &[u8]) -> Option<usize> {
    let block = bytes.rchunks(BLOCK).position(|block| block.contains(&b'\n'))?;
    bytes[..bytes.len() - block * BLOCK].iter().rposition(|byte| *byte == b'\n')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail(pieces: &[&[u8]]) -> Vec<String> {
        let mut tail = Tail::default();
        pieces.iter().for_each(|piece| tail.push(piece));
        tail.lines()
    }

    #[test]
    fn the_last_ten_lines_stay_however_they_come() {
        let text: String = (0..100).map(|n| format!("line {n}\r\n")).collect();
        let wanted: Vec<String> = (90..100).map(|n| format!("line {n}")).collect();
        for at in 0..text.len() {
            let (a, b) = text.as_bytes().split_at(at);
            assert_eq!(tail(&[a, b]), wanted, "{at}");
        }
        let bytes: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
        assert_eq!(tail(&bytes), wanted);
    }

    #[test]
    fn an_unfinished_line_counts_and_blanks_stay() {
        assert_eq!(tail(&[b"a\n", b"\n", b"b"]), ["a", "", "b"]);
        assert_eq!(tail(&[b""]), Vec::<String>::new());
    }

    #[test]
    fn a_long_line_is_cut() {
        let lines = tail(&[&[b'x'; 700], &[b'x'; 700], b"\nend"]);
        assert_eq!((lines[0].len(), lines[1].as_str()), (LINE_BYTES, "end"));
    }
}
