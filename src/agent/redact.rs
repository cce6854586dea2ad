//! Redacts secrets before a text is truncated or folded: a truncated secret, or one whose lines
//! were joined, would no longer be recognized.

use std::borrow::Cow;

use serde_json::Value;

use super::{TURN_BYTES, Turn};
use crate::base::ansi;

/// Redacts the secrets in a text.
pub(crate) type Hide = Box<dyn Fn(&str) -> String + Send>;

/// The redactor. All provider output to display must pass through it, except the answer: the code
/// that stores the answer redacts it.
#[derive(Default)]
pub(crate) struct Veil(Option<Hide>);

impl Veil {
    pub(crate) fn of(hide: Hide) -> Veil {
        Veil(Some(hide))
    }

    /// Returns the redacted text, without escape sequences.
    pub(super) fn text<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let text = ansi::strip(text);
        match &self.0 {
            Some(hide) => hide(&text).into(),
            None => text,
        }
    }

    /// Returns at most `bytes` bytes of the redacted text, cut at a character boundary.
    pub(super) fn shortened(&self, text: &str, bytes: usize) -> String {
        shortened(&self.text(text), bytes)
    }

    pub(super) fn said(&self, text: &str) -> Option<Turn> {
        let text = self.text(text);
        let text = text.trim();
        (!text.is_empty()).then(|| Turn::Said(shortened(text, TURN_BYTES)))
    }

    pub(super) fn called(&self, tool: &str, input: &Value) -> Turn {
        Turn::Called { tool: self.shortened(tool, 100), input: self.brief(input) }
    }

    pub(super) fn tool_failed(&self, why: &str) -> Turn {
        let why = self.text(why);
        Turn::ToolFailed(match why.trim() {
            "" => "no reason given".into(),
            why => shortened(why, 500),
        })
    }

    /// Returns a summary of a tool's input: the first of the fields that describe it, else all
    /// fields.
    pub(super) fn brief(&self, input: &Value) -> String {
        const TELLING: [&str; 12] = [
            "command",
            "cmd",
            "file_path",
            "filePath",
            "path",
            "notebook_path",
            "pattern",
            "query",
            "url",
            "description",
            "prompt",
            "text",
        ];
        let told = TELLING.iter().find_map(|key| input.get(key)?.as_str());
        let text = match (told, input) {
            (Some(text), _) => text.to_owned(),
            (None, Value::String(text)) => text.clone(),
            (None, Value::Null) => String::new(),
            (None, other) => other.to_string(),
        };
        let folded = self.text(&text).split_whitespace().collect::<Vec<_>>().join(" ");
        // Redact again: folding may create a secret that was not there before.
        self.shortened(&folded, 160)
    }
}

/// Truncates a text that is already redacted to at most `bytes` bytes.
pub(super) fn shortened(text: &str, bytes: usize) -> String {
    match cut_at(text, bytes) {
        end if end == text.len() => text.to_owned(),
        end => format!("{}…", &text[..end]),
    }
}

pub(super) fn cut_at(text: &str, bytes: usize) -> usize {
    if text.len() <= bytes {
        return text.len();
    }
    (0..=bytes).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}
