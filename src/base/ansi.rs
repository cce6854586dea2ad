//! Terminal escape sequences in text that other programs printed.
//!
//! **Invariant:** a sequence without an end hides nothing past its line.

use std::borrow::Cow;

const ESCAPE: char = '\u{1b}';

/// Returns `text` without its escape sequences: colors, cursor movements, titles, links.
pub(crate) fn strip(text: &str) -> Cow<'_, str> {
    let Some(first) = text.find(ESCAPE) else { return Cow::Borrowed(text) };
    let mut out = text[..first].to_owned();
    let mut rest = &text[first..];
    while let Some(at) = rest.find(ESCAPE) {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let line = rest.find('\n').unwrap_or(rest.len());
        rest = &rest[length(rest.as_bytes()).unwrap_or(line)..];
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// Returns the start of an escape sequence that the end of `text` cuts off, for a reader that gets
/// text in pieces.
pub(crate) fn unfinished(text: &str) -> Option<usize> {
    let line = text.rfind('\n').map_or(0, |at| at + 1);
    let mut at = line;
    while let Some(found) = text[at..].find(ESCAPE) {
        at += found;
        at += match length(&text.as_bytes()[at..]) {
            Some(length) => length,
            None => return Some(at),
        };
    }
    None
}

/// Removes escape sequences from bytes that arrive in pieces.
#[derive(Default)]
pub(crate) struct Stripper {
    /// A sequence whose end has not arrived.
    pending: Vec<u8>,
}

impl Stripper {
    /// Appends these bytes to `out`, without escape sequences.
    pub(crate) fn feed(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let all = [std::mem::take(&mut self.pending), bytes.to_vec()].concat();
        let mut rest = all.as_slice();
        while let Some(at) = rest.iter().position(|byte| *byte == ESCAPE as u8) {
            out.extend_from_slice(&rest[..at]);
            rest = &rest[at..];
            match length(rest) {
                Some(length) => rest = &rest[length..],
                None => {
                    self.pending = rest.to_vec();
                    return;
                }
            }
        }
        out.extend_from_slice(rest);
    }
}

/// Returns the length of the sequence that `text` starts with, or `None` if its line ends before
/// it.
fn length(text: &[u8]) -> Option<usize> {
    let line = text.iter().position(|byte| *byte == b'\n');
    let text = &text[..line.unwrap_or(text.len())];
    let body = &text[1..];
    let length = match body.first() {
        // Parameters, then one final letter. Any other character ends the sequence before it.
        Some(b'[') => {
            let rest = &body[1..];
            let is_final = |byte: &u8| !(0x20..=0x3f).contains(byte);
            let end = rest.iter().position(is_final);
            end.map(|end| end + 2 + usize::from((0x40..=0x7e).contains(&rest[end])))
        }
        // A string, which ends with BEL or `ESC \`.
        Some(b']' | b'P' | b'^' | b'_') => {
            let end = body.iter().position(|byte| matches!(byte, 0x07 | 0x1b));
            let end = end.map(|end| end + 1);
            end.map(|end| match &text[end..] {
                [0x07, ..] => end + 1,
                [0x1b, b'\\', ..] => end + 2,
                _ => end,
            })
        }
        Some(b'(' | b')' | b'*' | b'+') => {
            body.get(1).map(|byte| 2 + usize::from(byte.is_ascii_graphic()))
        }
        Some(byte) => Some(1 + usize::from(byte.is_ascii_graphic())),
        None => None,
    };
    // A sequence ends at the end of its line at the latest.
    length.or_else(|| line.map(|_| text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_are_removed_and_text_stays() {
        for (text, plain) in [
            ("plain [32m äöü", "plain [32m äöü"),
            ("\u{1b}[1;31mred\u{1b}[0m\n", "red\n"),
            ("a\u{1b}[2J\u{1b}[1;1Hb\u{1b}", "ab"),
            ("\u{1b}]0;title\u{7}a\u{1b}]8;;http://x\u{1b}\\b", "ab"),
            ("\u{1b}]title\u{1b}[0mb", "b"),
            ("\u{1b}(Bplain\u{1b}", "plain"),
            ("\u{1b}]no end\nnext line", "\nnext line"),
            ("\u{1b}[31", ""),
            ("\u{1b}[31é", "é"),
            ("äöü\u{1b}[Kß", "äöüß"),
            ("a\u{1b}\u{1b}[0mb", "ab"),
        ] {
            assert_eq!(strip(text), plain, "{text:?}");
        }
    }

    #[test]
    fn pieces_of_bytes_are_stripped_as_the_whole() {
        let text = b"a\xff\x1b[1;31mred\x1b[0m \x1b]0;t\x1b\\b\x1b(B\xe9\n\x1b[3\nend \x1b[";
        for size in [1, 2, 3, 100] {
            let (mut stripper, mut out) = (Stripper::default(), Vec::new());
            text.chunks(size).for_each(|piece| stripper.feed(piece, &mut out));
            assert_eq!(out, b"a\xffred b\xe9\n\nend ", "by {size}");
        }
    }

    #[test]
    fn a_sequence_that_is_cut_off_is_found() {
        for (text, at) in [
            ("a\u{1b}[0m", None),
            ("a\u{1b}", Some(1)),
            ("a\u{1b}[3", Some(1)),
            ("a\u{1b}]0;ti", Some(1)),
            ("\u{1b}[3\nb", None),
            ("\u{1b}[3\n\u{1b}[0m\u{1b}(", Some(8)),
        ] {
            assert_eq!(unfinished(text), at, "{text:?}");
        }
    }
}
