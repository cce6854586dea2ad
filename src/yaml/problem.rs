//! Problems of a workflow, as data, and their display with the source line.

use std::fmt::Write as _;
use std::sync::Arc;

use super::scalar;
use crate::template::spell::Fault;

/// A place in the author's text. Lines and columns count from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub line: usize,
    pub column: usize,
    pub len: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Severity {
    Error,
    Warning,
}

/// One problem, worded as a fragment that follows `error: `.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Problem {
    pub severity: Severity,
    pub message: String,
    pub place: Option<Place>,
    pub hint: Option<String>,
    /// Name and text of the file that contains the problem, if it is not the file that was read.
    pub elsewhere: Option<(Arc<str>, Arc<str>)>,
    /// Position within a value of the file, until [`located`] maps it to a place in the file.
    pub inside: Option<Inside>,
    /// Lint id with which the author can allow it, see [`crate::workflow::lint`].
    pub lint: Option<&'static str>,
}

/// A position within a text that is a value of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Inside {
    value: Arc<str>,
    /// Byte offset, and length in characters.
    at: usize,
    len: usize,
}

/// The position of a problem: a value of the file, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct At {
    place: Place,
    inside: Option<Inside>,
}

impl At {
    /// Returns a position `at` bytes into a text that starts at `place`, `len` characters long.
    pub(crate) fn inside(place: Place, value: &Arc<str>, at: usize, len: usize) -> At {
        At { place, inside: Some(Inside { value: value.clone(), at, len }) }
    }
}

impl From<Place> for At {
    fn from(place: Place) -> At {
        At { place, inside: None }
    }
}

impl Problem {
    pub(crate) fn error(message: impl Into<String>) -> Self {
        let (severity, message) = (Severity::Error, message.into());
        let (place, hint, elsewhere, inside, lint) = (None, None, None, None, None);
        Problem { severity, message, place, hint, elsewhere, inside, lint }
    }

    pub(crate) fn warning(message: impl Into<String>) -> Self {
        Problem { severity: Severity::Warning, ..Problem::error(message) }
    }

    /// Returns the same problem as a warning.
    pub(crate) fn into_warning(self) -> Self {
        Problem { severity: Severity::Warning, ..self }
    }

    pub(crate) fn at(self, at: impl Into<At>) -> Self {
        let At { place, inside } = at.into();
        Problem { place: Some(place), inside, ..self }
    }

    pub(crate) fn hint(self, hint: impl Into<String>) -> Self {
        Problem { hint: Some(hint.into()), ..self }
    }

    pub(crate) fn lint(self, id: &'static str) -> Self {
        Problem { lint: Some(id), ..self }
    }

    pub(crate) fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }

    /// Formats the problem with its source line.
    pub(crate) fn show(&self, file: &str, text: &str) -> String {
        let (file, text) = match &self.elsewhere {
            Some((file, text)) => (&**file, &**text),
            None => (file, text),
        };
        let label = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        // The message may quote a name, which may contain any character.
        let mut message: String = self.message.chars().take(MESSAGE).map(printable).collect();
        if self.message.chars().nth(MESSAGE).is_some() {
            message.push('…');
        }
        let mut out = format!("{label}: {message}\n");
        let width = self.place.map_or(1, |place| place.line.to_string().len());
        let gutter = " ".repeat(width);
        match self.place {
            Some(place) => draw(&mut out, place, file, text, &gutter),
            None => _ = writeln!(out, "{gutter}--> {file}"),
        }
        if let Some(hint) = &self.hint {
            _ = writeln!(out, "{gutter} = hint: {hint}");
        }
        if let Some(id) = self.lint {
            _ = writeln!(out, "{gutter} = lint: {id}");
        }
        out
    }
}

/// Converts a fault of a spell. It is shown with the file and text of the fault, or, for a spell
/// written in the file that is read, at its place in that file.
impl From<&Fault> for Problem {
    fn from(fault: &Fault) -> Problem {
        let place = Place { line: fault.line, column: fault.column, len: fault.len };
        let hint = fault.hint.clone();
        let problem = Problem { hint, ..Problem::error(fault.message.clone()).at(place) };
        match fault.within {
            Some((line, column)) => {
                let before = fault.text.split_inclusive('\n').take(fault.line - 1);
                let before: usize = before.map(str::len).sum();
                let at = fault.text[before..].char_indices().nth(fault.column - 1);
                let at = at.map_or(fault.text.len(), |(at, _)| before + at);
                let value = Place { line, column, len: 1 };
                problem.at(At::inside(value, &fault.text, at, fault.len))
            }
            None => {
                let elsewhere = Some((fault.file.clone(), fault.text.clone()));
                Problem { elsewhere, ..problem }
            }
        }
    }
}

impl Problem {
    /// Replaces a position within a value by its place in the whole text, which has these lines. If
    /// that is unknown, the place remains the start of the value.
    fn located(mut self, lines: &[&str]) -> Problem {
        if let (Some(Inside { value, at, len }), Some(begin)) = (self.inside.take(), self.place) {
            self.place = scalar::place(lines, begin, &value, at, len).or(self.place);
        }
        self
    }
}

/// Replaces positions within values by places in the whole text.
pub(crate) fn located(text: &str, problems: Vec<Problem>) -> Vec<Problem> {
    if problems.iter().all(|problem| problem.inside.is_none()) {
        return problems;
    }
    let lines: Vec<&str> = text.lines().collect();
    problems.into_iter().map(|problem| problem.located(&lines)).collect()
}

/// Does the same, then sorts errors before warnings and each by place: a position within a value
/// may come after the value's own place.
pub(crate) fn in_order(text: &str, problems: Vec<Problem>) -> Vec<Problem> {
    let mut found = located(text, problems);
    found.sort_by_key(|problem| (!problem.is_error(), problem.place));
    found
}

/// Maximum number of characters of a message to show.
const MESSAGE: usize = 2000;

fn draw(out: &mut String, place: Place, file: &str, text: &str, gutter: &str) {
    _ = writeln!(out, "{gutter}--> {file}:{}:{}", place.line, place.column);
    let Some(line) = text.lines().nth(place.line.saturating_sub(1)) else { return };
    // A very long line would bury the message; its start is enough to find the place.
    let shown: String = line.chars().take(240).map(printable).collect();
    let start = place.column.saturating_sub(1);
    let room = shown.chars().count().saturating_sub(start).max(1);
    let carets = "^".repeat(place.len.clamp(1, room));
    _ = writeln!(out, "{gutter} |");
    _ = writeln!(out, "{} | {shown}", place.line);
    _ = writeln!(out, "{gutter} | {}{carets}", " ".repeat(start.min(240)));
}

/// Replaces characters that could move the cursor or change colours.
fn printable(c: char) -> char {
    match c {
        '\t' => ' ',
        c if c.is_control() => char::REPLACEMENT_CHARACTER,
        c => c,
    }
}

/// Returns the candidate nearest to `word`, if one is near enough to have been meant.
pub(crate) fn nearest<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let length = word.chars().count();
    let limit = (length / 3).min(3);
    candidates
        .into_iter()
        // Lengths that differ by more cannot be near. This also avoids a huge table for a huge key.
        .filter(|candidate| candidate.chars().count().abs_diff(length) <= limit)
        .map(|candidate| (distance(word, candidate), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Returns the edit distance of two words, ignoring case. A swap of neighbours counts as one edit.
fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.to_lowercase().chars().collect();
    let b: Vec<char> = b.to_lowercase().chars().collect();
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let change = usize::from(a[i - 1] != b[j - 1]);
                let mut best =
                    (rows[i - 1][j] + 1).min(rows[i][j - 1] + 1).min(rows[i - 1][j - 1] + change);
                if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                    best = best.min(rows[i - 2][j - 2] + 1);
                }
                best
            };
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_shown_in_place() {
        let text = "steps:\n  - name: Build\n    on: { failure: { goto: Diagnoze } }\n";
        let problem = Problem::error("step `Build` goes to `Diagnoze`, but no step has that name")
            .at(Place { line: 3, column: 28, len: 8 })
            .hint("did you mean `Diagnose`?");
        assert_eq!(
            problem.show("w.yaml", text),
            "\
error: step `Build` goes to `Diagnoze`, but no step has that name
 --> w.yaml:3:28
  |
3 |     on: { failure: { goto: Diagnoze } }
  |                            ^^^^^^^^
  = hint: did you mean `Diagnose`?
"
        );
    }

    #[test]
    fn a_suggestion_is_near_or_absent() {
        let words = ["timeout_sec", "retries", "command"];
        assert_eq!(nearest("timeout_secs", words), Some("timeout_sec"));
        assert_eq!(nearest("comand", words), Some("command"));
        assert_eq!(nearest("reteirs", words), Some("retries"));
        assert_eq!(nearest("zebra", words), None);
    }
}
