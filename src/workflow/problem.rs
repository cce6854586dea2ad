//! What is wrong with a workflow, as data, and how it is shown in place.

use std::fmt::Write as _;
use std::sync::Arc;

use super::scalar;
use crate::template::spell::Fault;

/// A place in the author's text; lines and columns count from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub line: usize,
    pub column: usize,
    pub len: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    Error,
    Warning,
}

/// One fault, worded as a fragment that follows `error: `.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    pub severity: Severity,
    pub message: String,
    pub place: Option<Place>,
    pub hint: Option<String>,
    /// The file it is in, and its text, where that is not the file that was read.
    pub elsewhere: Option<(Arc<str>, Arc<str>)>,
    /// Its place within a text that is a value of the file, until that is found in the file.
    pub inside: Option<Inside>,
    /// By which it can be allowed, see [`super::lint`].
    pub lint: Option<&'static str>,
}

/// A place in a text that is a value of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inside {
    value: Arc<str>,
    /// Where it is, in bytes, and how many characters long.
    at: usize,
    len: usize,
}

/// Where something is: a value of the file, or something in one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct At {
    place: Place,
    inside: Option<Inside>,
}

impl At {
    /// So many bytes after the beginning of a text that begins at `place`.
    pub fn inside(place: Place, value: &Arc<str>, at: usize, len: usize) -> At {
        At { place, inside: Some(Inside { value: value.clone(), at, len }) }
    }
}

impl From<Place> for At {
    fn from(place: Place) -> At {
        At { place, inside: None }
    }
}

impl Problem {
    pub fn error(message: impl Into<String>) -> Self {
        let (severity, message) = (Severity::Error, message.into());
        let (place, hint, elsewhere, inside, lint) = (None, None, None, None, None);
        Problem { severity, message, place, hint, elsewhere, inside, lint }
    }

    pub fn warning(message: impl Into<String>) -> Self {
        Problem { severity: Severity::Warning, ..Problem::error(message) }
    }

    /// The same, as something that nobody is kept from.
    pub fn as_warning(self) -> Self {
        Problem { severity: Severity::Warning, ..self }
    }

    pub fn at(self, at: impl Into<At>) -> Self {
        let At { place, inside } = at.into();
        Problem { place: Some(place), inside, ..self }
    }

    pub fn hint(self, hint: impl Into<String>) -> Self {
        Problem { hint: Some(hint.into()), ..self }
    }

    pub fn lint(self, id: &'static str) -> Self {
        Problem { lint: Some(id), ..self }
    }

    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }

    /// Draws the problem with the line it is about.
    pub fn show(&self, file: &str, text: &str) -> String {
        let (file, text) = match &self.elsewhere {
            Some((file, text)) => (&**file, &**text),
            None => (file, text),
        };
        let label = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        // It may quote a name, and a name may be anything.
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

/// What is wrong with a spell; it is shown with the file and the text of the fault, or in the file
/// that is read, where it is written in that.
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
    /// Finds the place in the whole text, which has these lines, of what is inside of a value.
    /// Where it cannot be told, it stays at the beginning of the value.
    fn located(mut self, lines: &[&str]) -> Problem {
        if let (Some(Inside { value, at, len }), Some(begin)) = (self.inside.take(), self.place) {
            self.place = scalar::place(lines, begin, &value, at, len).or(self.place);
        }
        self
    }
}

/// Finds the places in the whole text of what is inside of values.
pub fn located(text: &str, problems: Vec<Problem>) -> Vec<Problem> {
    if problems.iter().all(|problem| problem.inside.is_none()) {
        return problems;
    }
    let lines: Vec<&str> = text.lines().collect();
    problems.into_iter().map(|problem| problem.located(&lines)).collect()
}

/// The same, in the order of the text: what is found within a value may stand behind what was found
/// of it as a whole.
pub fn in_order(text: &str, problems: Vec<Problem>) -> Vec<Problem> {
    let mut found = located(text, problems);
    found.sort_by_key(|problem| (!problem.is_error(), problem.place));
    found
}

/// How many characters of a message are shown.
const MESSAGE: usize = 2000;

fn draw(out: &mut String, place: Place, file: &str, text: &str, gutter: &str) {
    _ = writeln!(out, "{gutter}--> {file}:{}:{}", place.line, place.column);
    let Some(line) = text.lines().nth(place.line.saturating_sub(1)) else { return };
    // A line of a megabyte would bury the message; the head of it is enough to find the place.
    let shown: String = line.chars().take(240).map(printable).collect();
    let start = place.column.saturating_sub(1);
    let room = shown.chars().count().saturating_sub(start).max(1);
    let carets = "^".repeat(place.len.clamp(1, room));
    _ = writeln!(out, "{gutter} |");
    _ = writeln!(out, "{} | {shown}", place.line);
    _ = writeln!(out, "{gutter} | {}{carets}", " ".repeat(start.min(240)));
}

/// A character without what could move the cursor or change colours.
fn printable(c: char) -> char {
    match c {
        '\t' => ' ',
        c if c.is_control() => char::REPLACEMENT_CHARACTER,
        c => c,
    }
}

/// The candidate nearest to `word`, when one is near enough to have been meant.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let length = word.chars().count();
    let limit = (length / 3).min(3);
    candidates
        .into_iter()
        // Lengths that differ by more cannot be near, and a key of a megabyte is not worth a table.
        .filter(|candidate| candidate.chars().count().abs_diff(length) <= limit)
        .map(|candidate| (distance(word, candidate), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// How many single-character edits, or swaps of neighbours, lie between two words.
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
