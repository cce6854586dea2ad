//! Talk: what people are told beside data, on standard error.
//!
//! **Invariant:** nothing that strangers wrote moves a cursor, and nobody who listens is no reason
//! to fail.

use std::fmt::Display;
use std::io::Write;

/// A letter of somebody else's text, as a terminal may have it.
pub fn tame(letter: char) -> char {
    if letter.is_control() { char::REPLACEMENT_CHARACTER } else { letter }
}

/// Text that somebody else wrote, fit for a terminal: of what moves a cursor only tabs and ends of
/// lines are left.
pub fn harmless(text: &str) -> String {
    text.chars().map(|c| if matches!(c, '\n' | '\t') { c } else { tame(c) }).collect()
}

/// Text that somebody else wrote, fit for one line of ours: whatever begins a line there does not
/// begin one here.
pub fn folded(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join(" ").chars().map(tame).collect()
}

/// Tells it, in one write, as others may write there too.
pub fn talk(text: impl Display) {
    let mut text = harmless(&text.to_string());
    if !text.ends_with('\n') {
        text.push('\n');
    }
    let _ = std::io::stderr().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moves_a_cursor_is_replaced() {
        let text = "a\tb\r\nc\x1b[2Jd\u{9b}e\u{7f}";
        assert_eq!(harmless(text), "a\tb\u{fffd}\nc\u{fffd}[2Jd\u{fffd}e\u{fffd}");
        assert_eq!(folded("\na\tb \r\n\n  c\x1bd\n"), "a\u{fffd}b c\u{fffd}d");
    }
}
