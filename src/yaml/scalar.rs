//! Maps a character of a YAML value to its place in the file. The value may be quoted, span several
//! lines, or be a literal or folded block.
//!
//! YAML changes only white space and escapes, so all other characters appear in the file in the
//! order of the value. The two are compared from the start of the value.
//!
//! **Invariant:** a place is returned only if the file has the requested character there. If that
//! cannot be established (an alias, an escape that is not supported here), the result is `None`.

use super::problem::Place;

/// The quoting of a value in the file.
#[derive(Clone, Copy, PartialEq)]
enum Style {
    /// Verbatim: plain, or in a block.
    Bare,
    Single,
    Double,
}

/// Returns the place of the `len` characters at byte offset `at` of a value that starts at `begin`.
pub(crate) fn place(
    lines: &[&str],
    begin: Place,
    value: &str,
    at: usize,
    len: usize,
) -> Option<Place> {
    let styles = [Style::Bare, Style::Single, Style::Double];
    let found = styles.into_iter().find_map(|style| find(lines, begin, style, value, at));
    found.map(|(line, column)| Place { line, column, len: len.max(1) })
}

fn find(
    lines: &[&str],
    begin: Place,
    style: Style,
    value: &str,
    at: usize,
) -> Option<(usize, usize)> {
    let mut written = Written::new(lines, begin, style)?;
    let mut last: Option<(usize, Seen)> = None;
    for (offset, wanted) in value.char_indices().filter(|(_, c)| !is_space(*c)) {
        if offset > at {
            break;
        }
        let seen = written.next().filter(|seen| seen.what == wanted)?;
        last = Some((offset, seen));
    }
    let (offset, seen) = last?;
    // White space or the end of the value: directly after the preceding character, if that is on
    // the same line.
    let behind = value.get(offset..at)?;
    (!behind.contains('\n')).then(|| (seen.line, seen.column + behind.chars().count()))
}

fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r')
}

/// A character of a value, and its position in the file.
#[derive(Clone, Copy)]
struct Seen {
    what: char,
    line: usize,
    column: usize,
}

/// Iterator over the characters in the file from a place on, without white space.
struct Written<'a> {
    lines: &'a [&'a str],
    style: Style,
    /// The line, counted from one; the rest of it; and the column at which that rest starts.
    line: usize,
    left: std::iter::Peekable<std::str::Chars<'a>>,
    column: usize,
}

impl<'a> Written<'a> {
    fn new(lines: &'a [&'a str], begin: Place, style: Style) -> Option<Written<'a>> {
        let line = lines.get(begin.line.checked_sub(1)?)?;
        let from = line.char_indices().nth(begin.column.checked_sub(1)?)?.0;
        let left = line[from..].chars().peekable();
        let mut written = Written { lines, style, line: begin.line, left, column: begin.column };
        let quote = match style {
            Style::Bare => return Some(written),
            Style::Single => '\'',
            Style::Double => '"',
        };
        (written.char()? == quote).then_some(written)
    }

    /// Returns the next character of the line.
    fn char(&mut self) -> Option<char> {
        let c = self.left.next()?;
        self.column += 1;
        Some(c)
    }

    fn next(&mut self) -> Option<Seen> {
        loop {
            let (line, column) = (self.line, self.column);
            let Some(c) = self.char() else {
                self.left = self.lines.get(self.line)?.chars().peekable();
                (self.line, self.column) = (self.line + 1, 1);
                continue;
            };
            let what = match (self.style, c) {
                (Style::Single, '\'') => {
                    self.left.next_if_eq(&'\'')?;
                    self.column += 1;
                    c
                }
                (Style::Double, '"') => return None,
                (Style::Double, '\\') => match self.escaped()? {
                    Some(c) => c,
                    None => continue,
                },
                (_, c) => c,
            };
            if !is_space(what) {
                return Some(Seen { what, line, column });
            }
        }
    }

    /// Returns the character that an escape stands for; `Some(None)` for an escaped line end, and
    /// `None` if the escape is unknown.
    fn escaped(&mut self) -> Option<Option<char>> {
        let Some(c) = self.char() else { return Some(None) };
        let digits = match c {
            'n' | 't' | 'r' => return Some(Some(' ')),
            '"' | '\\' | '/' | ' ' | '\t' => return Some(Some(c)),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => return None,
        };
        let mut code = 0;
        for _ in 0..digits {
            code = code * 16 + self.char()?.to_digit(16)?;
        }
        char::from_u32(code).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::yaml;

    /// Where `$x` stands in the value of `a`, by what is written.
    fn found(text: &str) -> Option<(usize, usize)> {
        let node = yaml::parse(text).unwrap();
        let value = node.get("a").unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let at = value.text().unwrap().find("$x").unwrap();
        place(&lines, value.place, value.text().unwrap(), at, 2).map(|at| (at.line, at.column))
    }

    #[test]
    fn a_reference_is_found_however_its_text_is_written() {
        for (text, wanted) in [
            ("a: $x", (1, 4)),
            ("a: b $x", (1, 6)),
            ("a: b\n  c $x", (2, 5)),
            ("a: '$x'", (1, 5)),
            ("a: 'it''s $x'", (1, 11)),
            ("a: 'b\n\n  $x'", (3, 3)),
            ("a: \"$x\"", (1, 5)),
            ("a: \"\\\"b\\n\\t$x\"", (1, 12)),
            ("a: \"b \\\n  \\u00e9$x\"", (2, 9)),
            ("{\"a\": \"b\\n$x\"}", (1, 11)),
            ("a: |\n  b\n  $x\n", (3, 3)),
            ("a: |2-\n\n   b\n    c $x\n", (4, 7)),
            ("a: |\n  'b\n  \"$x\"\n", (3, 4)),
            ("a: |\n  \"b $x\"\n", (2, 6)),
            ("a: >\n  b\n  c\n\n  d é $x\n", (5, 7)),
            ("a: >-\n  b\n    $x\n  c\n", (3, 5)),
            ("a: &b !!str |\n  # $x\n", (2, 5)),
            ("a: | # why\r\n  b\r\n  $x\r\n", (3, 3)),
        ] {
            assert_eq!(found(text), Some(wanted), "{text:?}");
        }
    }

    #[test]
    fn no_place_is_better_than_a_wrong_one() {
        assert_eq!(found("b: &b |\n  c\n  $x\na: *b\n"), None);
        assert_eq!(found("a: \"\\_ $x\""), None);
    }
}
