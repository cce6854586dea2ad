//! What nobody may see is hidden before a text is cut or folded: half a secret, or one whose lines
//! were joined, is not known again by whoever hides what is whole.

use std::borrow::Cow;

use serde_json::Value;

use super::{TURN_BYTES, Turn};
use crate::ansi;

/// Hides what nobody may see in a text.
pub type Hide = Box<dyn Fn(&str) -> String + Send>;

/// The one way from what a provider said to what is shown of it. The answer alone goes past it:
/// that is hidden by whoever keeps it.
#[derive(Default)]
pub struct Veil(Option<Hide>);

impl Veil {
    pub fn of(hide: Hide) -> Veil {
        Veil(Some(hide))
    }

    /// All of a text, without escape sequences.
    pub(super) fn text<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let text = ansi::strip(text);
        match &self.0 {
            Some(hide) => hide(&text).into(),
            None => text,
        }
    }

    /// At most so many bytes of it, at the border of a character.
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

    /// What a tool was asked to do: of the fields that say it, the first; else all of them.
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
        // Folded, a text may hold what it did not hold before.
        self.shortened(&folded, 160)
    }
}

/// At most so many bytes of a text from which nothing has to be hidden any more.
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
