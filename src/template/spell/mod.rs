//! Spells: templates for prompts, in the spelling of Go's `text/template`.
//!
//! [`Spell::parse`] reads a text once and refuses one that does not balance. [`Spell::render`]
//! fills it from a JSON object whose keys are the variables of the spell. Other spells come in
//! through a function, so that nothing here knows a file.
//!
//! A variable that is missing is a [`Fault`] with its place. It reads as empty only in guards: the
//! condition of `if`, `else if` and `with`, and the operand of `default`.
//!
//! # Results of steps
//!
//! The result of a step has fields, but stands for something simpler wherever it is used as a
//! whole: a script for its trimmed output, an agent for what it answered. An object says so by the
//! key [`FACE`], which no field path can spell; [`with_face`] makes one. Everything but a field
//! path sees the face: printing, conditions, comparisons, `range`, `len` and all other functions.
//!
//! **Invariant:** a value is never read as a template. What is written is either text of the
//! spell's author or a value, and [`Spell::pieces`] tells them apart.
//!
//! **Invariant:** rendering ends. Output, rounds and includes, depths and made values are bounded.

mod functions;
mod lex;
mod parse;
mod render;
#[cfg(test)]
mod tests;
mod value;

use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value};

use lex::Span;
use parse::Node;

/// How many bytes a spell may render to, and the most that one function may make.
pub const MAX_OUTPUT: usize = 1 << 20;
/// How many rounds of `range` and how many includes one rendering may have, together.
pub const MAX_ROUNDS: usize = 100_000;
/// How deep includes may be nested.
pub const MAX_INCLUDES: usize = 5;

/// The key of an object for what it stands for as a whole.
pub const FACE: &str = "$face";

/// An object with fields that stands for `face` wherever it is used as a whole.
pub fn with_face(mut fields: Map<String, Value>, face: Value) -> Value {
    fields.insert(FACE.to_owned(), face);
    Value::Object(fields)
}

/// Finds a spell to include by its name: its file, to say where a fault is, and its text.
pub type Includes<'i> = &'i dyn Fn(&str) -> Option<(String, String)>;

/// No spell can be included.
pub fn no_includes(_: &str) -> Option<(String, String)> {
    None
}

/// A spell that was read whole: its blocks balance and its functions exist.
#[derive(Clone, Debug)]
pub struct Spell {
    source: Source,
    nodes: Vec<Node>,
}

/// A part of a rendered spell: what its author wrote, or what a value printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    Text(String),
    Value(String),
}

impl Spell {
    /// Reads a spell; `file` is what faults call it.
    pub fn parse(file: &str, text: &str) -> Result<Spell, Fault> {
        let source = Source { file: file.into(), text: text.into() };
        let nodes = parse::parse(&source)?;
        Ok(Spell { source, nodes })
    }

    /// Fills the spell from `data`, an object whose keys are the variables.
    pub fn render(&self, data: &Value, includes: Includes) -> Result<String, Fault> {
        let pieces = self.pieces(data, includes)?;
        Ok(pieces
            .iter()
            .map(|piece| match piece {
                Piece::Text(text) | Piece::Value(text) => text.as_str(),
            })
            .collect())
    }

    /// As [`render`](Self::render), in pieces: who must not mix values into the author's text,
    /// because a shell reads it, can keep them apart.
    pub fn pieces(&self, data: &Value, includes: Includes) -> Result<Vec<Piece>, Fault> {
        render::render(self, data, includes)
    }

    /// What the spell stands for: the value of its one action, where it is nothing else, and what
    /// it renders to otherwise. So a list stays a list.
    pub fn value(&self, data: &Value, includes: Includes) -> Result<Value, Fault> {
        match render::value(self, data, includes)? {
            Some(value) => Ok(value),
            None => self.render(data, includes).map(Value::String),
        }
    }

    /// The names that it includes as they are written, each with a fault at its place for whoever
    /// cannot find it. Names that are made of values are known only when it is rendered.
    pub fn included(&self) -> Vec<(String, Fault)> {
        let found = parse::included(&self.nodes).into_iter();
        found.map(|(name, at)| (name, self.source.fault(at, ""))).collect()
    }

    /// The variables that must be there for it to render, each once, with a fault at its first
    /// place. What stands in a guard or behind one need not be.
    pub fn needs(&self) -> Vec<(String, Fault)> {
        let found = parse::needs(&self.nodes).into_iter();
        found.map(|(name, at)| (name, self.source.fault(at, ""))).collect()
    }

    /// What it is called.
    pub fn file(&self) -> &str {
        &self.source.file
    }

    /// What it was read from.
    pub fn text(&self) -> &str {
        &self.source.text
    }

    /// Says whether the spell writes the variable `.name` anywhere.
    pub fn writes(&self, name: &str) -> bool {
        parse::writes(&self.nodes, name)
    }
}

/// Two spells are one if they were read from the same.
impl PartialEq for Spell {
    fn eq(&self, other: &Spell) -> bool {
        self.source.file == other.source.file && self.source.text == other.source.text
    }
}

/// The text of a spell and what it is called.
#[derive(Clone, Debug)]
struct Source {
    file: Arc<str>,
    text: Arc<str>,
}

impl Source {
    fn fault(&self, at: Span, message: impl Into<String>) -> Fault {
        let before = &self.text[..at.start];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let spanned = self.text[at.start..at.end].lines().next().unwrap_or_default();
        Fault {
            file: self.file.clone(),
            text: self.text.clone(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            len: spanned.chars().count().max(1),
            message: message.into(),
            hint: None,
        }
    }
}

/// Why a spell cannot be read or rendered, and where; lines and columns count from one.
#[derive(Clone, PartialEq, Eq)]
pub struct Fault {
    pub file: Arc<str>,
    /// The whole text of the file, to show the line from.
    pub text: Arc<str>,
    pub line: usize,
    pub column: usize,
    /// How many characters it is about.
    pub len: usize,
    pub message: String,
    pub hint: Option<String>,
}

impl Fault {
    /// A fault of a spell as a whole.
    pub fn of_whole(file: &str, text: &str, message: String, hint: &str) -> Fault {
        let source = Source { file: file.into(), text: text.into() };
        source.fault(Span { start: 0, end: 0 }, message).hint(hint)
    }

    fn hint(mut self, hint: impl Into<String>) -> Fault {
        self.hint = Some(hint.into());
        self
    }

    /// Adds that the file of the fault was included at the place of `by`.
    fn included(mut self, by: &Fault) -> Fault {
        let note = format!("included at {}:{}:{}", by.file, by.line, by.column);
        self.hint = Some(match self.hint {
            Some(hint) => format!("{hint}; {note}"),
            None => note,
        });
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        write!(out, "{}:{}:{}: {}", self.file, self.line, self.column, self.message)?;
        match &self.hint {
            Some(hint) => write!(out, " ({hint})"),
            None => Ok(()),
        }
    }
}

/// Without the text, which may be long.
impl fmt::Debug for Fault {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

impl std::error::Error for Fault {}
