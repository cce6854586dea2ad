//! Builds HTML piece by piece.
//!
//! **Invariant:** only literals of this program become markup; everything else is text.
//! [`Html::raw`] accepts only literals, so a name, an output, or a path always reaches a page
//! escaped. Characters that move a cursor or change the text direction are shown as `\u{fffd}`: a
//! text that a user approves must read as it is.

use crate::base::ansi;
use crate::base::text::sanitize_char;
use std::fmt::{Display, Write as _};

/// A piece of a page.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Html(String);

/// An attribute: a literal name and any value.
pub(crate) type Attribute<'a> = (&'static str, &'a dyn Display);

impl Html {
    /// Appends markup from a literal.
    pub(crate) fn raw(&mut self, markup: &'static str) -> &mut Html {
        self.0.push_str(markup);
        self
    }

    /// Returns true if the piece contains this markup. Escaped text never matches.
    pub(crate) fn has(&self, markup: &'static str) -> bool {
        self.0.contains(markup)
    }

    /// Appends untrusted text, escaped.
    pub(crate) fn text(&mut self, text: impl Display) -> &mut Html {
        let mut out = Escaping(&mut self.0);
        // Writing to a string does not fail.
        let _ = write!(out, "{text}");
        self
    }

    pub(crate) fn open(&mut self, tag: &'static str, attributes: &[Attribute]) -> &mut Html {
        self.0.push('<');
        self.0.push_str(tag);
        for (name, value) in attributes {
            self.0.push(' ');
            self.0.push_str(name);
            self.0.push_str("=\"");
            self.text(value);
            self.0.push('"');
        }
        self.0.push('>');
        self
    }

    pub(crate) fn close(&mut self, tag: &'static str) -> &mut Html {
        self.0.push_str("</");
        self.0.push_str(tag);
        self.0.push('>');
        self
    }

    /// Appends an element with attributes and text.
    pub(crate) fn element(
        &mut self,
        tag: &'static str,
        attributes: &[Attribute],
        text: impl Display,
    ) -> &mut Html {
        self.open(tag, attributes).text(text).close(tag)
    }

    /// Appends an element with text and no attributes.
    pub(crate) fn plain(&mut self, tag: &'static str, text: impl Display) -> &mut Html {
        self.element(tag, &[], text)
    }

    pub(crate) fn add(&mut self, piece: &Html) -> &mut Html {
        self.0.push_str(&piece.0);
        self
    }

    /// Appends a picture from [`crate::graph::svg`], which escapes its text itself.
    pub(crate) fn picture(&mut self, svg: &str) -> &mut Html {
        self.0.push_str(svg);
        self
    }

    pub(crate) fn into_string(self) -> String {
        self.0
    }
}

/// A writer that escapes the text written to it.
struct Escaping<'a>(&'a mut String);

impl std::fmt::Write for Escaping<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        for letter in text.chars() {
            match letter {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                '\n' | '\t' => self.0.push(letter),
                letter if is_treacherous(letter) => self.0.push('\u{fffd}'),
                letter => self.0.push(letter),
            }
        }
        Ok(())
    }
}

/// Returns true for characters that are not text: they control a terminal or change the order of
/// the text around them.
fn is_treacherous(letter: char) -> bool {
    sanitize_char(letter) != letter
        || matches!(letter, '\u{2028}' | '\u{2029}' | '\u{fffe}' | '\u{ffff}')
}

/// Converts terminal output to text: removes colors and titles, and keeps only the last state of a
/// line that overwrites itself.
pub(crate) fn printed(text: &str) -> String {
    let text = ansi::strip(text);
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let (line, end) = match line.strip_suffix('\n') {
            Some(line) => (line, "\n"),
            None => (line, ""),
        };
        let line = line.trim_end_matches('\r');
        out.push_str(line.rsplit('\r').next().unwrap_or_default());
        out.push_str(end);
    }
    out
}

/// Encodes one part of a URL path. Letters, digits, and `-._~` stay unchanged.
pub(crate) fn part(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(byte as char);
            }
            byte => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_text_in_elements_and_in_attributes() {
        let mut html = Html::default();
        let hostile = "</script><img src=x onerror='a(\"b\")'>&";
        html.element("p", &[("title", &hostile)], hostile);
        let shown = "&lt;/script&gt;&lt;img src=x onerror=&#39;a(&quot;b&quot;)&#39;&gt;&amp;";
        assert_eq!(html.into_string(), format!("<p title=\"{shown}\">{shown}</p>"));
    }

    #[test]
    fn what_steers_or_turns_is_shown() {
        let mut html = Html::default();
        html.text("a\u{0}b\u{7}\u{202e}txt.exe\u{2066}\u{9b}\u{2028}c\nd\te");
        let shown = "a\u{fffd}b\u{fffd}\u{fffd}txt.exe\u{fffd}\u{fffd}\u{fffd}c\nd\te";
        assert_eq!(html.into_string(), shown);
    }

    #[test]
    fn colours_titles_and_progress_are_left_out() {
        for (text, shown) in
            [("\u{1b}[1;31mred\u{1b}[0m\n", "red\n"), ("10%\r50%\r100%\r\nnext", "100%\nnext")]
        {
            assert_eq!(printed(text), shown, "{text:?}");
        }
    }

    #[test]
    fn a_part_of_an_address_cannot_leave_it() {
        assert_eq!(part("a/../b?c#d e%ä"), "a%2F..%2Fb%3Fc%23d%20e%25%C3%A4");
    }
}
