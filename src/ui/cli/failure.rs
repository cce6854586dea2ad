//! A refusal: what is said about it, to people and to programs, and the exit code.
//!
//! **Invariant:** everything that a verb refuses is told in one place, [`Failure::tell`]: on
//! standard error always, and with `--json` as one document on standard output.

use std::fmt::Display;
use std::io::Write;

use serde_json::{Value, json};

use super::common;
use crate::ui::talk::talk;
use crate::workflow::{Problem, Severity};

#[derive(Debug)]
pub struct Failure {
    pub code: u8,
    message: String,
    hint: Option<String>,
    /// What is wrong with a text of somebody's, drawn in place.
    faults: Option<Box<Faults>>,
    /// Its document is on standard output already.
    written: bool,
}

#[derive(Debug)]
struct Faults {
    file: String,
    text: String,
    problems: Vec<Problem>,
}

impl Failure {
    pub fn new(code: u8, message: impl Display) -> Self {
        let message = message.to_string();
        Failure { code, message, hint: None, faults: None, written: false }
    }

    pub fn hint(self, hint: impl Display) -> Self {
        Failure { hint: Some(hint.to_string()), ..self }
    }

    /// The same with more to be done.
    pub fn and_hint(self, more: impl Display) -> Self {
        let hint = self.hint.as_ref().map(|hint| format!("{hint}; ")).unwrap_or_default();
        self.hint(format!("{hint}{more}"))
    }

    /// The same in other words.
    pub fn told_as(self, message: String) -> Self {
        Failure { message, ..self }
    }

    /// A text that is not what it must be: a workflow, settings, a spell.
    pub fn in_text(problems: Vec<Problem>, file: &str, text: &str) -> Self {
        let first = problems.iter().find(|problem| problem.is_error()).or(problems.first());
        let message = first.map(|problem| problem.message.clone()).unwrap_or_default();
        let hint = first.and_then(|problem| problem.hint.clone());
        let faults = Faults { file: file.to_owned(), text: text.to_owned(), problems };
        Failure { code: 2, message, hint, faults: Some(Box::new(faults)), written: false }
    }

    /// What programs are told of it is on standard output already.
    pub fn written(self) -> Self {
        Failure { written: true, ..self }
    }

    /// What is wrong, in a sentence.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The same with the file that it is wrong in.
    pub fn located(&self) -> String {
        match self.faults.as_deref() {
            Some(Faults { file, .. }) => format!("`{file}`: {}", self.message),
            None => self.message.clone(),
        }
    }

    /// What is wrong and what to do about it, in one line.
    pub fn sentence(&self) -> String {
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

    /// Tells it: to people, and where `json` says so to programs.
    pub fn tell(&self, json: bool) {
        if json && !self.written {
            // Nobody to tell is no reason to fail otherwise.
            let _ = writeln!(std::io::stdout(), "{}", self.for_programs());
        }
        talk(self.for_people());
    }
}

/// A problem of a text, for programs.
pub fn problem_json(file: &str, problem: &Problem) -> Value {
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
