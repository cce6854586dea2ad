//! Where in a shell script values stand, in every dialect that has scripts.
//!
//! A value comes to a script in a variable, and an expansion of that variable stands where the
//! value stood: as one quoted word where the shell reads words, and as the author's own quotes need
//! it elsewhere. In a comment nothing is put in. A here-document in which nothing is expanded is
//! opened up for it: what the author wrote in it is escaped instead. Where no expansion would stay
//! a value, the script is refused before it is started.
//!
//! The reading of the shell here is a rough one: quotes, substitutions, comments, here-documents,
//! and commands that read script or arithmetic. Where it is wrong, a value may be split into words
//! or its place may read oddly.
//!
//! **Invariant:** a value is never part of a script, however wrong the reading is: the script has
//! names of variables, numbers and plain names only.

mod builtin;
mod command;
mod outlet;
mod scan;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use crate::template::nodes::{NodeRef, NodeText, Piece, Var, name_length};
use crate::template::spell::{self, Sketched};
pub(crate) use builtin::Reading;
use command::Command;
use scan::Scanner;

/// Which shell runs a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shell {
    /// Whatever `sh` is on the machine.
    Sh,
    Bash,
}

/// Where a value is no word of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spot {
    Double,
    Single,
    /// In `$'…'`.
    Escaped,
    HereDocument,
    /// In a here-document in which nothing was expanded, before it was opened up.
    HereText,
    Comment,
    /// What bash reckons with, and executes commands in; whether in double quotes.
    Arithmetic {
        quoted: bool,
    },
    /// Where bash takes a word for the name of a variable.
    Name,
    /// What bash reckons with once it was printed and read, word for word.
    Numbers(Quotes),
    /// Where bash takes a word for a list, if it is in parentheses.
    List(Quotes),
    Refused(Unsafe),
}

/// What a word stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quotes {
    None,
    Double,
    Single,
    Escaped,
}

impl Spot {
    /// Where a command takes a word for this, which would be in nothing special or in that.
    fn of(reading: Reading, plain: Option<Spot>) -> Spot {
        let quotes = match plain {
            None => Quotes::None,
            Some(Spot::Single) => Quotes::Single,
            Some(Spot::Escaped) => Quotes::Escaped,
            Some(_) => Quotes::Double,
        };
        match reading {
            Reading::Number => Spot::Arithmetic { quoted: plain.is_some() },
            Reading::Numbers => Spot::Numbers(quotes),
            Reading::Name => Spot::Name,
            Reading::Script => Spot::Refused(Unsafe::Script),
            Reading::List | Reading::Declared => Spot::List(quotes),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Spot::Double => "in double quotes",
            Spot::Single | Spot::Escaped => "in single quotes",
            Spot::HereDocument | Spot::HereText => "in a here-document",
            Spot::Comment => "in a comment",
            Spot::Arithmetic { .. } => "in arithmetic",
            Spot::Numbers(_) => "where it is read for arithmetic",
            Spot::Name => "where a variable is named",
            Spot::List(_) => "where bash looks for a list",
            Spot::Refused(why) => why.place(),
        }
    }
}

/// Where nothing can be put that would be a value and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unsafe {
    /// A shell reads it as script: behind `eval`, `sh -c`, `trap`.
    Script,
    /// A here-document ends with it.
    HereEnd,
    /// In backticks that have backslashes in them: what is escaped there depends on how deep.
    Backticks,
    /// Behind a backslash in `$'…'`.
    Escape,
    /// In or behind quotes that not every shell reads in the same way: `$'…'`, and `'` within
    /// `"${…}"`.
    Quotes,
    /// In `((…)`, which may be arithmetic.
    Parentheses,
    /// In single quotes within an expansion that is in double quotes.
    Pattern,
}

impl Unsafe {
    /// Where it is.
    pub(crate) fn place(self) -> &'static str {
        match self {
            Unsafe::Script => "where a shell reads it as script",
            Unsafe::HereEnd => "where the end of a here-document is named",
            Unsafe::Backticks => "in backticks that have backslashes in them",
            Unsafe::Escape => "behind a backslash in `$'…'`",
            Unsafe::Quotes => {
                "in or behind quotes that shells read in different ways (`$'…'`, `\"${…'…}\"`)"
            }
            Unsafe::Parentheses => "in `((`, which may be arithmetic or two subshells",
            Unsafe::Pattern => "in single quotes within `\"${…}\"`",
        }
    }

    /// How to write it instead.
    pub(crate) fn cure(self) -> &'static str {
        match self {
            Unsafe::Script => {
                "give it to the script as an argument: `sh -c 'echo \"$1\"' sh VALUE`; if it is \
                 meant to be run, say so: `command=VALUE`, then `eval \"$command\"`"
            }
            Unsafe::HereEnd => "name it with a word of your own",
            Unsafe::Backticks => "write `$(…)` in place of the backticks",
            Unsafe::Escape => "leave out the backslash: a value is never read as an escape",
            Unsafe::Quotes => "use double quotes, or `printf`",
            Unsafe::Parentheses => "put a space between the parentheses: `( (`",
            Unsafe::Pattern => "put it into a variable first: `value=VALUE`",
        }
    }
}

/// A script as it has to be for values to stand in it.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    /// Where each value stands; nothing, where it is a word of its own.
    pub spots: Vec<Option<Spot>>,
    /// Variables of the workflow that bash takes for more than text, by their names.
    pub ours: Vec<(Var, Reading)>,
    /// The numbers of values that are reckoned with after another program had them.
    passed: BTreeSet<usize>,
    /// Variables of the workflow that are, by their names.
    ours_passed: Vec<Var>,
    /// The numbers of values that stand behind a backslash.
    escaped: Vec<usize>,
    /// What the author wrote and has to be written in another way, in order.
    edits: Vec<Edit>,
}

/// At a place, so many bytes are replaced.
#[derive(Debug)]
struct Edit {
    at: usize,
    cut: usize,
    put: String,
}

/// Stands for a value in what is scanned.
const MARK: u8 = 0;
/// Stands for a variable that the script has by its name, and that stays one.
const NAME: u8 = 1;

impl Layout {
    /// Reads a script of a node.
    pub(crate) fn of_node(script: &NodeText) -> Layout {
        let mut sketch = Vec::new();
        for piece in script.pieces() {
            match piece {
                Piece::Text(text) => sketch.extend(text.bytes().map(unmarked)),
                Piece::Var(var) if var.is_user_text() => sketch.push(NAME),
                Piece::Var(_) | Piece::Ref(_) => sketch.push(MARK),
            }
        }
        Scanner::new(&sketch, Shell::Bash).scan()
    }

    /// Reads a script that is a spell, rendered.
    pub(crate) fn of_pieces(pieces: &[spell::Piece]) -> Layout {
        let mut sketch = Vec::new();
        for piece in pieces {
            match piece {
                spell::Piece::Text(text) => sketch.extend(text.bytes().map(unmarked)),
                spell::Piece::Value(_) => sketch.push(MARK),
            }
        }
        Scanner::new(&sketch, Shell::Sh).scan()
    }

    /// A part of the author's text as it has to be written; it begins `at` so many bytes, where a
    /// value counts as one.
    pub(crate) fn mend(&self, at: usize, text: &str) -> String {
        let first = self.edits.partition_point(|edit| edit.at < at);
        let (mut out, mut done) = (String::new(), 0);
        for edit in &self.edits[first..] {
            let Some(begin) = edit.at.checked_sub(at).filter(|begin| *begin < text.len()) else {
                break;
            };
            out.push_str(&text[done..begin]);
            out.push_str(&edit.put);
            done = begin + edit.cut;
        }
        out.push_str(&text[done..]);
        out
    }

    /// A script of a node, with the author's text as it has to be written.
    pub(crate) fn mend_node(&self, script: NodeText) -> NodeText {
        script.with_texts(|at, text| self.mend(at, text))
    }

    /// A rendered spell, with the author's text as it has to be written.
    pub(crate) fn mend_pieces(&self, pieces: &mut [spell::Piece]) {
        let mut at = 0;
        for piece in pieces {
            at += match piece {
                spell::Piece::Value(_) => 1,
                spell::Piece::Text(text) => {
                    let length = text.len();
                    *text = self.mend(at, text);
                    length
                }
            };
        }
    }
}

fn unmarked(byte: u8) -> u8 {
    if byte == MARK || byte == NAME { b' ' } else { byte }
}

/// A script of a node that was read. Its comments refer to nothing.
pub(crate) struct Script {
    pub text: NodeText,
    layout: Layout,
}

impl Script {
    pub(crate) fn read(text: NodeText) -> Script {
        let layout = Layout::of_node(&text);
        if !layout.spots.contains(&Some(Spot::Comment)) {
            return Script { text, layout };
        }
        let text = text.with_plain(|index| layout.spots.get(index) == Some(&Some(Spot::Comment)));
        Script { layout: Layout::of_node(&text), text }
    }

    /// The references that are no words of their own, each with where it begins.
    pub(crate) fn misplaced(&self) -> Vec<(usize, &NodeRef, Spot)> {
        let refs = self.values().filter_map(|(at, piece, spot)| match piece {
            Piece::Ref(reference) => Some((at, reference, spot?)),
            _ => None,
        });
        refs.collect()
    }

    /// The values that would be script, each with where it begins, and why.
    pub(crate) fn refused(&self) -> Vec<(usize, String, Unsafe)> {
        let refused = self.values().filter_map(|(at, piece, spot)| match (piece, spot) {
            // Where the work is done is no stranger's word.
            (Piece::Var(var), Some(Spot::Refused(Unsafe::Script))) if !var.is_user_text() => None,
            (piece, Some(Spot::Refused(why))) => Some((at, piece.to_string(), why)),
            _ => None,
        });
        let by_name = self.read_by_name().into_iter().filter_map(|(at, var, reading)| {
            let script = reading == Reading::Script && var.is_user_text();
            script.then(|| (at, var.name().to_owned(), Unsafe::Script))
        });
        refused.chain(by_name).collect()
    }

    /// The variables that bash takes for more than text, each with where it begins and where it
    /// stands.
    pub(crate) fn reckoned(&self) -> Vec<(usize, String, Spot)> {
        let placed = self.values().filter_map(|(at, piece, spot)| match (piece, spot?) {
            (
                Piece::Var(var),
                spot @ (Spot::Arithmetic { .. } | Spot::Numbers(_) | Spot::Name | Spot::List(_)),
            ) => Some((at, var.to_string(), spot)),
            _ => None,
        });
        let by_name = self.read_by_name().into_iter().filter_map(|(at, var, reading)| {
            let spot = Spot::of(reading, None);
            (reading != Reading::Script).then(|| (at, var.name().to_owned(), spot))
        });
        placed.chain(by_name).collect()
    }

    /// The variables that it has by their names alone, where bash takes them for this.
    fn read_by_name(&self) -> Vec<(usize, Var, Reading)> {
        if self.layout.ours.is_empty() {
            return Vec::new();
        }
        let source = self.text.source();
        let ours = self.layout.ours.iter();
        ours.map(|(var, reading)| (named_at(&source, *var), *var, *reading)).collect()
    }

    /// The values that bash reckons with after another program had them, each with where it begins.
    /// What they are then cannot be checked.
    pub(crate) fn passed(&self) -> Vec<(usize, String)> {
        let values = self.values().enumerate().filter(|(number, (_, piece, _))| {
            let stranger = !matches!(piece, Piece::Var(var) if !var.is_user_text());
            stranger && self.layout.passed.contains(number)
        });
        let values = values.map(|(_, (at, piece, _))| (at, piece.to_string()));
        let source = self.text.source();
        let ours = self.layout.ours_passed.iter().filter(|var| var.is_user_text());
        values.chain(ours.map(|var| (named_at(&source, *var), var.name().to_owned()))).collect()
    }

    /// The references that stand behind a backslash, which does not keep them out; each with where
    /// it begins.
    pub(crate) fn escaped(&self) -> Vec<(usize, String)> {
        let escaped = |(number, _): &(usize, _)| self.layout.escaped.contains(number);
        let values = self.values().enumerate().filter(escaped);
        values.map(|(_, (at, piece, _))| (at, piece.to_string())).collect()
    }

    /// The values, each with where it begins in the text, and where it stands.
    fn values(&self) -> impl Iterator<Item = (usize, &Piece, Option<Spot>)> {
        let values = self.text.placed().filter(|(_, piece)| !matches!(piece, Piece::Text(_)));
        values.zip(&self.layout.spots).map(|((at, piece), spot)| (at, piece, *spot))
    }
}

/// Where a script first has a variable by its name alone.
fn named_at(source: &str, var: Var) -> usize {
    let word = |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_');
    let at = source.match_indices(var.name()).map(|(at, _)| at).find(|at| {
        let before = at.checked_sub(1).and_then(|at| source.as_bytes().get(at));
        let after = source.as_bytes().get(at + var.name().len());
        !word(before) && !word(after) && before != Some(&b'$')
    });
    at.unwrap_or_default()
}

/// How to reckon with a value that may be no number.
pub(crate) const RECKON: &str = "`number=$(printf %d \"$value\")` makes a number of anything";

/// The values of a script that is a spell which would be script, whatever they are; each with a
/// fault at its place.
pub(crate) fn refused_in_spell(script: &spell::Spell) -> Vec<spell::Fault> {
    let mut faults: Vec<spell::Fault> = Vec::new();
    for shape in script.sketches() {
        let mut sketch = Vec::new();
        let mut values = Vec::new();
        for piece in shape {
            match piece {
                Sketched::Text(text) => sketch.extend(text.bytes().map(unmarked)),
                Sketched::Value(at) => {
                    sketch.push(MARK);
                    values.push(at);
                }
            }
        }
        let layout = Scanner::new(&sketch, Shell::Sh).scan();
        for (fault, spot) in values.into_iter().zip(layout.spots) {
            let Some(Spot::Refused(why)) = spot else { continue };
            let message = format!("a value stands {}", why.place());
            let fault = spell::Fault { message, hint: Some(why.cure().to_owned()), ..fault };
            if !faults.contains(&fault) {
                faults.push(fault);
            }
        }
    }
    faults
}

/// The words of a command line that a shell reads as script, each by its number and with who reads
/// it.
pub(crate) fn scripts_of(argv: &[String]) -> Vec<(usize, String)> {
    let mut command = Command::default();
    let mut found = Vec::new();
    for (number, word) in argv.iter().enumerate() {
        command.current.clone_from(word);
        if builtin::read_as(&command) == Some(Reading::Script) {
            found.push((number, builtin::interpreter(&command)));
        }
        command.push(word.clone());
    }
    found
}

/// The variables that a script, whose comments refer to nothing, names in braces: `${NAME}`,
/// `${NAME:-x}`, `${#NAME}`.
pub(crate) fn in_braces(script: &NodeText) -> BTreeSet<Var> {
    let source = script.source();
    let mut plain = String::new();
    let mut rest = source.as_str();
    while let Some(at) = rest.find("${") {
        let inside = rest[at + 2..].trim_start_matches(['!', '#']);
        let name = &inside[..name_length(inside, false)];
        plain.push_str(&rest[..at]);
        // Read without its braces, it is found in a comment as any other.
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

/// A variable of whoever asked, as it stands in a here-document that was opened up: its name, as in
/// any other quotes in which nothing is expanded.
pub(crate) fn escaped_name(var: Var) -> String {
    format!("\\{var}")
}
