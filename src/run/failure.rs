//! The failure of an operation: a message, a hint, and the class of exit codes it belongs to.
//!
//! **Invariant:** a failure is data. Only the front ends print it.

use std::fmt::Display;

use crate::workflow::Problem;

/// The class of a failure. It determines the exit code of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// The operation was valid and did not succeed.
    Failed,
    /// The input is invalid, or names something that does not exist.
    Invalid,
    /// The run was cancelled.
    Cancelled,
    /// Another process owns the run, the checkout, or the question.
    Owned,
    /// Stored state is damaged.
    Damaged,
    /// A program that the operation needs was not found.
    ProgramMissing,
    /// A signal stopped the process: 128 plus its number.
    Stopped(u8),
}

impl Class {
    pub(crate) fn exit_code(self) -> u8 {
        match self {
            Class::Failed => 1,
            Class::Invalid => 2,
            Class::Cancelled => 4,
            Class::Owned => 5,
            Class::Damaged => 7,
            Class::ProgramMissing => 127,
            Class::Stopped(code) => code,
        }
    }

    /// Returns the class of an exit code other than 0.
    pub(crate) fn of_exit_code(code: u8) -> Class {
        match code {
            2 => Class::Invalid,
            4 => Class::Cancelled,
            5 => Class::Owned,
            7 => Class::Damaged,
            127 => Class::ProgramMissing,
            129.. => Class::Stopped(code),
            _ => Class::Failed,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Failure {
    pub class: Class,
    message: String,
    hint: Option<String>,
    /// Problems in a text that the user wrote, printed with their source lines.
    text: Option<Box<InvalidText>>,
}

/// A text that the user wrote, and its problems.
#[derive(Debug)]
pub(crate) struct InvalidText {
    pub file: String,
    pub text: String,
    pub problems: Vec<Problem>,
}

impl Failure {
    pub(crate) fn new(class: Class, message: impl Display) -> Self {
        Failure { class, message: message.to_string(), hint: None, text: None }
    }

    /// Returns the failure of a valid operation.
    pub(crate) fn failed(message: impl Display) -> Self {
        Failure::new(Class::Failed, message)
    }

    /// Returns the failure for invalid input.
    pub(crate) fn invalid(message: impl Display) -> Self {
        Failure::new(Class::Invalid, message)
    }

    /// Returns the failure for something that another process owns.
    pub(crate) fn owned(message: impl Display) -> Self {
        Failure::new(Class::Owned, message)
    }

    /// Returns the failure for damaged state.
    pub(crate) fn damaged(message: impl Display) -> Self {
        Failure::new(Class::Damaged, message)
    }

    /// Returns the failure for an invalid text: a workflow, settings, a spell.
    pub(crate) fn in_text(problems: Vec<Problem>, file: &str, text: &str) -> Self {
        let first = problems.iter().find(|problem| problem.is_error()).or(problems.first());
        let message = first.map(|problem| problem.message.clone()).unwrap_or_default();
        let hint = first.and_then(|problem| problem.hint.clone());
        let text = InvalidText { file: file.to_owned(), text: text.to_owned(), problems };
        Failure { class: Class::Invalid, message, hint, text: Some(Box::new(text)) }
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
    pub(crate) fn with_message(self, message: String) -> Self {
        Failure { message, ..self }
    }

    pub(crate) fn exit_code(&self) -> u8 {
        self.class.exit_code()
    }

    /// Returns the message, which is one sentence.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn hint_text(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    pub(crate) fn invalid_text(&self) -> Option<&InvalidText> {
        self.text.as_deref()
    }

    /// Returns the message, preceded by the name of the file if the failure concerns a text.
    pub(crate) fn located(&self) -> String {
        match self.invalid_text() {
            Some(InvalidText { file, .. }) => format!("`{file}`: {}", self.message),
            None => self.message.clone(),
        }
    }

    /// Returns the message and the hint in one line.
    pub(crate) fn sentence(&self) -> String {
        let hint = self.hint.as_ref().map(|hint| format!("; {hint}"));
        format!("{}{}", self.message, hint.unwrap_or_default())
    }
}
