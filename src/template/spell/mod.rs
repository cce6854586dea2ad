//! Spells: templates for prompts, with the syntax of Go's `text/template`.
//!
//! [`Spell::parse`] parses a text once and rejects unbalanced blocks. [`Spell::render`] fills it
//! from a JSON object whose keys are the variables of the spell. A function provides included
//! spells, so this module reads no files.
//!
//! A missing variable is a [`Fault`] with its position. It reads as empty only in guards: the
//! condition of `if`, `else if` and `with`, and the operand of `default`.
//!
//! # Results of steps
//!
//! The result of a step has fields, but stands for a simpler value when it is used as a whole: a
//! script for its trimmed output, an agent for its answer. Such an object stores that value, its
//! face, under the key [`FACE`], which no field path can spell; [`with_face`] creates one.
//! Everything except a field path sees the face: printing, conditions, comparisons, `range`, `len`
//! and all other functions.
//!
//! **Invariant:** a value is never parsed as a template. Output is either text of the spell's
//! author or a value, and [`Spell::pieces`] distinguishes them.
//!
//! **Invariant:** rendering terminates. Output, rounds and includes, depths and created values are
//! bounded.

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

/// Maximum size of a rendered spell, and of the result of one function.
pub(crate) const MAX_OUTPUT: usize = 1 << 20;
/// Maximum number of `range` rounds and includes of one rendering, in total.
pub(crate) const MAX_ROUNDS: usize = 100_000;
/// Maximum depth of nested includes.
pub(crate) const MAX_INCLUDES: usize = 5;

/// Maximum number of paths through its conditions for which a spell is analyzed without its values.
const MAX_SKETCHES: usize = 8;

/// The key of the value that an object stands for as a whole.
pub(crate) const FACE: &str = "$face";

/// Creates an object with fields that stands for `face` when it is used as a whole.
pub(crate) fn with_face(mut fields: Map<String, Value>, face: Value) -> Value {
    fields.insert(FACE.to_owned(), face);
    Value::Object(fields)
}

/// Returns the error message for a spell that includes itself through `chain`, which starts with
/// it.
pub(crate) fn includes_itself(name: &str, chain: &[&str]) -> String {
    let circle: Vec<&str> = chain.iter().chain(chain.first()).copied().collect();
    format!("`{name}` includes itself: {}", circle.join(" → "))
}

/// Returns the error message for an include that is nested too deep.
pub(crate) fn too_deep() -> String {
    format!("includes are nested deeper than {MAX_INCLUDES}")
}

/// Finds a spell to include by its name. Returns its file name, for faults, and its text.
pub(crate) type Includes<'i> = &'i dyn Fn(&str) -> Option<(String, String)>;

/// Finds no spell, for callers without includes.
#[cfg(any(test, fuzzing))]
pub(crate) fn no_includes(_: &str) -> Option<(String, String)> {
    None
}

/// A parsed spell: its blocks balance and its functions exist.
#[derive(Clone, Debug)]
pub(crate) struct Spell {
    source: Source,
    nodes: Vec<Node>,
}

/// A part of a rendered spell: the author's text, or a printed value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Text(String),
    Value(String),
}

/// The inputs of a spell, each with a fault at its position for a caller that lacks it.
pub(crate) struct Reads {
    /// The paths of variables.
    pub paths: Vec<(Vec<String>, Fault)>,
    /// The names of included spells, with the variables passed to them.
    pub includes: Vec<(String, Vec<String>, Fault)>,
}

/// A part of a possible rendering of a spell.
#[derive(Clone, Debug)]
pub(crate) enum Sketched {
    Text(String),
    /// A value, with a fault at its position for a caller that does not allow it there.
    Value(Fault),
}

impl Spell {
    /// Parses a spell; `file` is its name in faults.
    pub(crate) fn parse(file: &str, text: &str) -> Result<Spell, Fault> {
        Spell::parse_in(file, text, None)
    }

    /// Parses a spell that is embedded in another text, starting at this line and column.
    pub(crate) fn parse_in(
        file: &str,
        text: &str,
        within: Option<(usize, usize)>,
    ) -> Result<Spell, Fault> {
        let source = Source { file: file.into(), text: text.into(), within };
        let nodes = parse::parse(&source)?;
        Ok(Spell { source, nodes })
    }

    /// Fills the spell from `data`, an object whose keys are the variables.
    pub(crate) fn render(&self, data: &Value, includes: Includes) -> Result<String, Fault> {
        let pieces = self.pieces(data, includes)?;
        Ok(pieces
            .iter()
            .map(|piece| match piece {
                Piece::Text(text) | Piece::Value(text) => text.as_str(),
            })
            .collect())
    }

    /// Renders like [`render`](Self::render), in pieces: a caller that must not mix values into the
    /// author's text, because a shell reads it, can keep them apart.
    pub(crate) fn pieces(&self, data: &Value, includes: Includes) -> Result<Vec<Piece>, Fault> {
        render::render(self, data, includes)
    }

    /// Returns possible renderings for unknown values: one as if each condition were true, one as
    /// if none were, and those in between for chains of conditions.
    pub(crate) fn sketches(&self) -> Vec<Vec<Sketched>> {
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

    /// Returns the value of the spell: the value of its action if it is a single action, else its
    /// rendered text. So a list stays a list.
    pub(crate) fn value(&self, data: &Value, includes: Includes) -> Result<Value, Fault> {
        match render::value(self, data, includes)? {
            Some(value) => Ok(value),
            None => self.render(data, includes).map(Value::String),
        }
    }

    /// Returns the literal names it includes, each with a fault at its position for a caller that
    /// cannot find the spell. A name computed from values is `None`: it is known only at rendering.
    pub(crate) fn included(&self) -> Vec<(Option<String>, Fault)> {
        let found = parse::included(&self.nodes).into_iter();
        found.map(|(name, at)| (name, self.source.fault(at, ""))).collect()
    }

    /// Returns the inputs that must exist for it to render. `known` reports whether a path has a
    /// value. Paths in a guard may be missing, and so may everything after a guard that cannot be
    /// true.
    pub(crate) fn reads(&self, known: &dyn Fn(&[String]) -> bool) -> Reads {
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

    /// Returns its name in faults.
    pub(crate) fn file(&self) -> &str {
        &self.source.file
    }

    /// Returns its source text.
    pub(crate) fn text(&self) -> &str {
        &self.source.text
    }

    /// Returns true if the spell writes the variable `.name` anywhere.
    pub(crate) fn writes(&self, name: &str) -> bool {
        parse::writes(&self.nodes, name)
    }
}

/// Spells are equal if their files and texts are equal.
impl PartialEq for Spell {
    fn eq(&self, other: &Spell) -> bool {
        self.source.file == other.source.file && self.source.text == other.source.text
    }
}

/// The text of a spell and its name.
#[derive(Clone, Debug)]
struct Source {
    file: Arc<str>,
    text: Arc<str>,
    within: Option<(usize, usize)>,
}

impl Source {
    /// Returns a name for messages about it as a whole.
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

/// The reason why a spell cannot be parsed or rendered, and its position; lines and columns start
/// at one.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    pub file: Arc<str>,
    /// The whole text of the file, to display the line.
    pub text: Arc<str>,
    pub line: usize,
    pub column: usize,
    /// Number of characters affected.
    pub len: usize,
    pub message: String,
    pub hint: Option<String>,
    /// The line and column where the text begins, if it is embedded in another text.
    pub within: Option<(usize, usize)>,
}

impl Fault {
    /// Creates a fault of a spell as a whole.
    pub(crate) fn of_whole(file: &str, text: &str, message: String, hint: &str) -> Fault {
        let source = Source { file: file.into(), text: text.into(), within: None };
        source.fault(Span { start: 0, end: 0 }, message).hint(hint)
    }

    fn hint(mut self, hint: impl Into<String>) -> Fault {
        self.hint = Some(hint.into());
        self
    }

    /// Adds that the file of the fault was included at the position of `by`.
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

/// Omits the text, which may be long.
impl fmt::Debug for Fault {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

impl std::error::Error for Fault {}
