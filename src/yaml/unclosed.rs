//! Finds the quotes and brackets that are open at a place in a text that is not valid YAML.

use super::problem::Place;

/// The quotes and brackets that are open at a place.
#[derive(Default)]
pub(crate) struct Open {
    /// Brackets, from the outside in.
    pub brackets: Vec<(char, Place)>,
    pub quote: Option<(char, Place)>,
    /// The quote that was opened last, closed or not.
    pub last_quote: Option<(char, Place)>,
}

impl Open {
    /// Scans a text up to a place. The result is a best effort, because the text is not valid YAML.
    pub(crate) fn before(lines: &[&str], end: Place) -> Open {
        let mut open = Open::default();
        let mut text: Option<usize> = None;
        for (index, line) in lines.iter().enumerate().take(end.line) {
            let own = indent(line);
            if text.is_some_and(|begun| own > begun || line.trim().is_empty()) {
                continue;
            }
            text = None;
            let last = index + 1 == end.line;
            let limit = if last { end.column - 1 } else { usize::MAX };
            open.line(line, index + 1, limit);
            if open.quote.is_none() && open.brackets.is_empty() && begins_text(line) {
                text = Some(own);
            }
        }
        open
    }

    fn line(&mut self, line: &str, number: usize, limit: usize) {
        // `fresh`: a value may start here. `before`: the preceding character.
        let (mut fresh, mut before) = (true, ' ');
        let mut signs = line.chars().enumerate().take(limit).peekable();
        while let Some((at, sign)) = signs.next() {
            let place = Place { line: number, column: at + 1, len: 1 };
            match self.quote {
                Some(('"', _)) if sign == '\\' => _ = signs.next(),
                Some(('\'', _))
                    if sign == '\'' && signs.peek().is_some_and(|(_, c)| *c == '\'') =>
                {
                    _ = signs.next();
                }
                Some((quote, _)) => {
                    if sign == quote {
                        self.quote = None;
                    }
                }
                None if sign == '#' && before.is_whitespace() => return,
                None => self.plain(sign, place, fresh),
            }
            let parts = matches!(sign, ',' | '[' | '{')
                || (sign.is_whitespace() && matches!(before, ':' | '-' | '?'));
            fresh = parts || (fresh && sign.is_whitespace());
            before = sign;
        }
    }

    fn plain(&mut self, sign: char, place: Place, fresh: bool) {
        match sign {
            '"' | '\'' if fresh => {
                self.quote = Some((sign, place));
                self.last_quote = self.quote;
            }
            '[' | '{' if fresh => self.brackets.push((sign, place)),
            ']' | '}' => drop(self.brackets.pop()),
            _ => {}
        }
    }
}

pub(crate) fn indent(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
}

/// Returns true if a line starts a block text: `key: |`.
pub(crate) fn begins_text(line: &str) -> bool {
    let line = line.split(" #").next().unwrap_or(line).trim_end();
    let sign = line.trim_end_matches(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-'));
    sign.ends_with(": |") || sign.ends_with(": >") || sign.ends_with("- |") || sign.ends_with("- >")
}
