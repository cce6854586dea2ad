//! Prints the failure of a command.
//!
//! **Invariant:** every failure of a command is printed by [`print`]: always on stderr, and with
//! `--json` also as one document on stdout.

use std::io::Write;

use serde_json::{Value, json};

use crate::run::failure::{Failure, InvalidText};
use crate::view::stderr::talk;
use crate::workflow::{Problem, Severity};

/// Prints a failure on stderr, and with `json` also as a document on stdout.
pub(super) fn print(failure: &Failure, json: bool) {
    if json {
        // A closed stdout must not change the failure's exit code.
        let _ = writeln!(std::io::stdout(), "{}", document(failure));
    }
    talk(text(failure));
}

/// Prints a failure on stderr only: its document is on stdout already. Returns the exit code.
pub(super) fn print_text(failure: &Failure) -> u8 {
    print(failure, false);
    failure.exit_code()
}

fn text(failure: &Failure) -> String {
    if let Some(InvalidText { file, text, problems }) = failure.invalid_text() {
        return problems_text(problems, file, text);
    }
    let hint = failure.hint_text().map(|hint| format!("  = hint: {hint}\n"));
    format!("error: {}\n{}", failure.message(), hint.unwrap_or_default())
}

fn document(failure: &Failure) -> Value {
    let (code, message) = (failure.exit_code(), failure.message());
    let mut error = json!({ "code": code, "message": message, "hint": failure.hint_text() });
    if let Some(InvalidText { file, problems, .. }) = failure.invalid_text() {
        error["problems"] = problems.iter().map(|problem| problem_json(file, problem)).collect();
    }
    json!({ "schema": "error/v1", "error": error })
}

/// Renders problems with their source lines. After 100 problems, only prints the number of the
/// others.
pub(super) fn problems_text(problems: &[Problem], file: &str, text: &str) -> String {
    const SHOWN: usize = 100;
    let shown = problems.iter().take(SHOWN).map(|problem| problem.show(file, text));
    let mut shown = shown.collect::<Vec<_>>().join("\n");
    if problems.len() > SHOWN {
        shown.push_str(&format!("\nand {} more problems\n", problems.len() - SHOWN));
    }
    shown
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
