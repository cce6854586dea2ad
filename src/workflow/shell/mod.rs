//! Shell scripts with values: the place of each value, and the constructs that evaluate text.
//!
//! A value reaches a script in a variable, and an expansion of that variable stands at its place.
//! [`Layout`] tells how each expansion is quoted, and which values must not look like code because
//! the script evaluates text.
//!
//! **Invariant:** a value is never part of a script, however wrong the reading of the script is:
//! the script contains only the author's text and expansions of variables.

mod evaluate;
mod place;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::ops::Range;

use crate::template::nodes::{NodeText, Piece, Var, name_length};
use crate::template::spell::{self, Sketched};
pub(crate) use place::Place;
use place::{NAME, VALUE};

/// A construct of a script that evaluates text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Evaluation {
    /// Line of the script, from 1.
    pub(crate) line: usize,
    pub(crate) construct: String,
}

/// One value of a script.
#[derive(Clone, Debug)]
pub(crate) struct ValueUse {
    pub(crate) place: Place,
    /// The construct that runs the value as part of a script: `eval`, `trap`, `sh -c`.
    pub(crate) run_by: Option<Evaluation>,
    /// The shell that reads the value from its standard input: `bash <<< VALUE`.
    pub(crate) read_by: Option<String>,
}

impl ValueUse {
    /// Returns the program or builtin that runs the value as part of a script.
    pub(crate) fn runner(&self) -> Option<&str> {
        let run_by = self.run_by.as_ref().map(|by| by.construct.as_str());
        run_by.or(self.read_by.as_deref())
    }
}

/// The values of a script, in order, and its first construct that evaluates text.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    pub(crate) values: Vec<ValueUse>,
    pub(crate) evaluates: Option<Evaluation>,
}

impl Layout {
    /// Reads the script of a node.
    pub(crate) fn of_node(script: &NodeText) -> Layout {
        let mut text = String::new();
        for piece in script.pieces() {
            match piece {
                Piece::Text(written) => push_text(&mut text, written),
                Piece::Var(var) if var.is_user_text() => text.push(NAME.into()),
                Piece::Var(_) | Piece::Ref(_) => text.push(VALUE.into()),
            }
        }
        Layout::read(&text)
    }

    /// Reads a rendered script.
    pub(crate) fn of_pieces(pieces: &[spell::Piece]) -> Layout {
        let mut text = String::new();
        for piece in pieces {
            match piece {
                spell::Piece::Text(written) => push_text(&mut text, written),
                spell::Piece::Value(_) => text.push(VALUE.into()),
            }
        }
        Layout::read(&text)
    }

    fn read(text: &str) -> Layout {
        let placed = place::read(text.as_bytes());
        let code = String::from_utf8_lossy(&placed.code);
        let found = evaluate::find(&code);
        let shells = evaluate::shell_lines(&code);
        let line = |at: usize| text[..at].matches('\n').count() + 1;
        let evaluation = |found: &evaluate::Evaluation| Evaluation {
            line: line(found.at),
            construct: found.construct.clone(),
        };
        let scripts: Vec<_> = found.iter().filter(|found| found.script.is_some()).collect();
        let values = placed.places.iter().map(|value| {
            let runs = |found: &&&evaluate::Evaluation| {
                found.script.as_ref().is_some_and(|script| script.contains(&value.at))
            };
            let reads = |(line, _): &&(Range<usize>, &str)| line.contains(&value.anchor);
            ValueUse {
                place: value.place,
                run_by: scripts.iter().find(runs).map(|found| evaluation(found)),
                read_by: shells.iter().find(reads).map(|(_, shell)| (*shell).to_owned()),
            }
        });
        Layout { values: values.collect(), evaluates: found.first().map(evaluation) }
    }
}

/// Appends the author's text. It cannot contain a mark.
fn push_text(text: &mut String, written: &str) {
    text.extend(written.chars().map(|c| if c == '\0' || c == '\u{1}' { ' ' } else { c }));
}

/// A script of a node that was read. Its comments contain no references.
pub(crate) struct Script {
    pub(crate) text: NodeText,
    layout: Layout,
}

impl Script {
    pub(crate) fn read(text: NodeText) -> Script {
        let layout = Layout::of_node(&text);
        let is_comment = |index: usize| layout.values[index].place == Place::Comment;
        if !(0..layout.values.len()).any(is_comment) {
            return Script { text, layout };
        }
        let text = text.with_plain(is_comment);
        Script { layout: Layout::of_node(&text), text }
    }

    /// Returns the values with their byte offsets in the text.
    pub(crate) fn values(&self) -> impl Iterator<Item = (usize, &Piece, &ValueUse)> {
        let values = self.text.placed().filter(|(_, piece)| !matches!(piece, Piece::Text(_)));
        values.zip(&self.layout.values).map(|((at, piece), used)| (at, piece, used))
    }
}

/// The use of one value in a spell that is a script, with a fault at its position.
pub(crate) struct SpellValue {
    pub(crate) fault: spell::Fault,
    pub(crate) used: ValueUse,
}

/// Returns the values of a spell that is a script, for each of its possible renderings.
pub(crate) fn values_of_spell(script: &spell::Spell) -> Vec<SpellValue> {
    let mut found = Vec::new();
    for shape in script.sketches() {
        let mut text = String::new();
        let mut faults = Vec::new();
        for piece in shape {
            match piece {
                Sketched::Text(written) => push_text(&mut text, &written),
                Sketched::Value(fault) => {
                    text.push(VALUE.into());
                    faults.push(fault);
                }
            }
        }
        let values = faults.into_iter().zip(Layout::read(&text).values);
        found.extend(values.map(|(fault, used)| SpellValue { fault, used }));
    }
    found
}

/// Returns the arguments of a command line that are run as a script, each with the program that
/// runs it.
pub(crate) fn scripts_of(argv: &[String]) -> Vec<(usize, String)> {
    evaluate::scripts_of(argv)
}
/// Returns the variables that a script without references in comments names in braces: `${NAME}`,
/// `${NAME:-x}`, `${#NAME}`.
pub(crate) fn in_braces(script: &NodeText) -> BTreeSet<Var> {
    let source = script.source();
    let mut plain = String::new();
    let mut rest = source.as_str();
    while let Some(at) = rest.find("${") {
        let inside = rest[at + 2..].trim_start_matches(['!', '#']);
        let name = &inside[..name_length(inside, false)];
        plain.push_str(&rest[..at]);
        // Without braces, the parser finds it in a comment like any other.
        rest = match Var::named(name) {
            Some(var) => {
                plain.push_str(&var.to_string());
                &inside[name.len()..]
            }
            None => {
                plain.push_str("${");
                &rest[at + 2..]
            }
        };
    }
    plain.push_str(rest);
    Script::read(NodeText::parse(&plain)).text.vars().collect()
}
