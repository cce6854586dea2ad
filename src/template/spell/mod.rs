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

/// Of so many ways through its conditions a spell is looked at without its values.
const MAX_SKETCHES: usize = 8;

/// The key of an object for what it stands for as a whole.
pub const FACE: &str = "$face";

/// An object with fields that stands for `face` wherever it is used as a whole.
pub fn with_face(mut fields: Map<String, Value>, face: Value) -> Value {
    fields.insert(FACE.to_owned(), face);
    Value::Object(fields)
}

/// What is told of a spell that is included by way of `chain`, which begins with it.
pub fn includes_itself(name: &str, chain: &[&str]) -> String {
    let circle: Vec<&str> = chain.iter().chain(chain.first()).copied().collect();
    format!("`{name}` includes itself: {}", circle.join(" → "))
}

/// What is told of an include that is nested too deep.
pub fn too_deep() -> String {
    format!("includes are nested deeper than {MAX_INCLUDES}")
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

/// What a spell reads, each with a fault at its place for whoever does not have it.
pub struct Reads {
    /// The paths of variables.
    pub paths: Vec<(Vec<String>, Fault)>,
    /// The names of spells that it includes, with the variables that are given with them.
    pub includes: Vec<(String, Vec<String>, Fault)>,
}

/// A part of what a spell may render to.
#[derive(Clone, Debug)]
pub enum Sketched {
    Text(String),
    /// A value, with a fault at its place for whoever cannot have it there.
    Value(Fault),
}

impl Spell {
    /// Reads a spell; `file` is what faults call it.
    pub fn parse(file: &str, text: &str) -> Result<Spell, Fault> {
        Spell::parse_in(file, text, None)
    }

    /// Reads a spell that is written in another text, from this line and column on.
    pub fn parse_in(
        file: &str,
        text: &str,
        within: Option<(usize, usize)>,
    ) -> Result<Spell, Fault> {
        let source = Source { file: file.into(), text: text.into(), within };
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

    /// What it may render to, whatever its values are: as if each condition held, and as if none
    /// did, with those between for chains of them.
    pub fn sketches(&self) -> Vec<Vec<Sketched>> {
        let ways = parse::ways(&self.nodes).min(MAX_SKETCHES);
        let sketch = |way: usize| {
            let mut pieces = Vec::new();
            self.sketch(&self.nodes, way, &mut pieces);
            pieces
        };
        (0..ways).map(sketch).collect()
    }

    fn sketch(&self, nodes: &[Node], way: usize, pieces: &mut Vec<Sketched>) {
        for node in nodes {
            match node {
                Node::Text(text, _) => pieces.push(Sketched::Text(text.clone())),
                Node::Write(pipe) if pipe.sets == parse::Sets::Nothing => {
                    pieces.push(Sketched::Value(self.source.fault(pipe.at, "")));
                }
                Node::Write(_) => {}
                Node::If { branches, otherwise } => {
                    let body = branches.get(way).map_or(otherwise, |(_, body)| body);
                    self.sketch(body, way, pieces);
                }
                Node::With { body, otherwise, .. } | Node::Range { body, otherwise, .. } => {
                    self.sketch(if way == 0 { body } else { otherwise }, way, pieces);
                }
            }
        }
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
    /// cannot find it. A name that is made of values is known only when it is rendered.
    pub fn included(&self) -> Vec<(Option<String>, Fault)> {
        let found = parse::included(&self.nodes).into_iter();
        found.map(|(name, at)| (name, self.source.fault(at, ""))).collect()
    }

    /// What it reads that must be there for it to render, where the paths are `known` that have a
    /// value. What stands in a guard need not be there, nor what is behind one that cannot hold.
    pub fn reads(&self, known: &dyn Fn(&[String]) -> bool) -> Reads {
        let parse::Reads { paths, includes } = parse::reads(&self.nodes, known);
        let fault = |at| self.source.fault(at, "");
        Reads {
            paths: paths.into_iter().map(|(path, at)| (path, fault(at))).collect(),
            includes: includes
                .into_iter()
                .map(|(name, given, at)| (name, given, fault(at)))
                .collect(),
        }
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
    within: Option<(usize, usize)>,
}

impl Source {
    /// What it is, for a sentence about it as a whole.
    fn called(&self) -> String {
        let of = |name: &str| name.split_once(" of ").map(|(key, of)| format!("`{key}` of {of}"));
        let written = self.within.and_then(|_| of(&self.file));
        written.unwrap_or_else(|| "the spell".into())
    }

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
            within: self.within,
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
    /// The line and column where the text begins, where it is written in another one.
    pub within: Option<(usize, usize)>,
}

impl Fault {
    /// A fault of a spell as a whole.
    pub fn of_whole(file: &str, text: &str, message: String, hint: &str) -> Fault {
        let source = Source { file: file.into(), text: text.into(), within: None };
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
