//! Where in a file a character of a value was written: a text may be in quotes, over several
//! lines, in a block, or folded.
//!
//! YAML changes nothing but white space and escapes, so what is not white space stands in the file
//! in the order of the value. It is compared all the way.
//!
//! **Invariant:** a place is told only if what stands there is what was asked for. Where that
//! cannot be seen (an alias, an escape that is not known here), there is none.

use super::problem::Place;

/// How a value is written.
#[derive(Clone, Copy, PartialEq)]
enum Style {
    /// As it is: plain, or in a block.
    Bare,
    Single,
    Double,
}

/// The place of what begins at a byte of a value and is so many characters long. `begin` is where
/// the value begins.
pub fn place(lines: &[&str], begin: Place, value: &str, at: usize, len: usize) -> Option<Place> {
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
    // White space, or the end: right behind what stands before it, if that is in the same line.
    let behind = value.get(offset..at)?;
    (!behind.contains('\n')).then(|| (seen.line, seen.column + behind.chars().count()))
}

fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r')
}

/// A character of a value, and where it is written.
#[derive(Clone, Copy)]
struct Seen {
    what: char,
    line: usize,
    column: usize,
}

/// What is written from a place on, without white space.
struct Written<'a> {
    lines: &'a [&'a str],
    style: Style,
    /// The line, counted from one, and what is left of it, with the column it begins at.
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

    /// The next character of the line.
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

    /// What a backslash stands for; nothing, if it only ends a line.
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
    use crate::workflow::yaml;

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
