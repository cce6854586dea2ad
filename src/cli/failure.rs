//! A failure of a verb: its message for people and for programs, and the exit code.
//!
//! **Invariant:** every failure of a verb is printed in one place, [`Failure::tell`]: always on
//! stderr, and with `--json` also as one document on stdout.

use std::fmt::Display;
use std::io::Write;

use serde_json::{Value, json};

use super::common;
use crate::view::stderr::talk;
use crate::workflow::{Problem, Severity};

#[derive(Debug)]
pub(crate) struct Failure {
    pub code: u8,
    message: String,
    hint: Option<String>,
    /// Problems in a text that the user wrote, printed with their source lines.
    faults: Option<Box<Faults>>,
    /// True if its document is on stdout already.
    written: bool,
}

#[derive(Debug)]
struct Faults {
    file: String,
    text: String,
    problems: Vec<Problem>,
}

impl Failure {
    pub(crate) fn new(code: u8, message: impl Display) -> Self {
        let message = message.to_string();
        Failure { code, message, hint: None, faults: None, written: false }
    }

    pub(crate) fn hint(self, hint: impl Display) -> Self {
        Failure { hint: Some(hint.to_string()), ..self }
    }

    /// Returns the failure with one more hint.
    pub(crate) fn and_hint(self, more: impl Display) -> Self {
        let hint = self.hint.as_ref().map(|hint| format!("{hint}; ")).unwrap_or_default();
        self.hint(format!("{hint}{more}"))
    }

    /// Returns the failure with another message.
    pub(crate) fn told_as(self, message: String) -> Self {
        Failure { message, ..self }
    }

    /// Returns the failure for an invalid text: a workflow, settings, a spell.
    pub(crate) fn in_text(problems: Vec<Problem>, file: &str, text: &str) -> Self {
        let first = problems.iter().find(|problem| problem.is_error()).or(problems.first());
        let message = first.map(|problem| problem.message.clone()).unwrap_or_default();
        let hint = first.and_then(|problem| problem.hint.clone());
        let faults = Faults { file: file.to_owned(), text: text.to_owned(), problems };
        Failure { code: 2, message, hint, faults: Some(Box::new(faults)), written: false }
    }

    /// Returns the failure, marked so that [`Failure::tell`] does not write its document to stdout
    /// again.
    pub(crate) fn written(self) -> Self {
        Failure { written: true, ..self }
    }

    /// Returns the message, which is one sentence.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Returns the message, preceded by the name of the file if the failure concerns a text.
    pub(crate) fn located(&self) -> String {
        match self.faults.as_deref() {
            Some(Faults { file, .. }) => format!("`{file}`: {}", self.message),
            None => self.message.clone(),
        }
    }

    /// Returns the message and the hint in one line.
    pub(crate) fn sentence(&self) -> String {
        let hint = self.hint.as_ref().map(|hint| format!("; {hint}"));
        format!("{}{}", self.message, hint.unwrap_or_default())
    }

    fn for_people(&self) -> String {
        if let Some(Faults { file, text, problems }) = self.faults.as_deref() {
            return common::show(problems, file, text);
        }
        let hint = self.hint.as_ref().map(|hint| format!("  = hint: {hint}\n"));
        format!("error: {}\n{}", self.message, hint.unwrap_or_default())
    }

    fn for_programs(&self) -> Value {
        let mut error = json!({ "code": self.code, "message": self.message, "hint": self.hint });
        if let Some(Faults { file, problems, .. }) = self.faults.as_deref() {
            error["problems"] =
                problems.iter().map(|problem| problem_json(file, problem)).collect();
        }
        json!({ "schema": "error/v1", "error": error })
    }

    /// Prints the failure on stderr, and with `json` also as a document on stdout.
    pub(crate) fn tell(&self, json: bool) {
        if json && !self.written {
            // A closed stdout must not change the failure's exit code.
            let _ = writeln!(std::io::stdout(), "{}", self.for_programs());
        }
        talk(self.for_people());
    }
}

/// Returns a problem of a text as JSON.
pub(super) fn problem_json(file: &str, problem: &Problem) -> Value {
    let file = problem.elsewhere.as_ref().map_or(file, |(file, _)| file);
    json!({
        "file": file,
        "line": problem.place.map(|place| place.line),
        "column": problem.place.map(|place| place.column),
        "severity": if problem.severity == Severity::Error { "error" } else { "warning" },
        "message": problem.message,
        "hint": problem.hint,
        "lint": problem.lint,
    })
}
