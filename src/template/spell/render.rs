//! Walks the tree of a spell and renders it.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::functions::{self, Function};
use super::lex::Span;
use super::parse::{
    Command, Does, Node, Operand, Pipe, Sets, Start, WANTS_NAME, WANTS_TEXT, WANTS_VALUE,
};
use super::value::{face, field, print, truth};
use super::{
    Fault, Includes, MAX_INCLUDES, MAX_OUTPUT, MAX_ROUNDS, Piece, Source, Spell, includes_itself,
    too_deep,
};
use crate::template::kind;

pub(super) fn render(spell: &Spell, data: &Value, includes: Includes) -> Result<Vec<Piece>, Fault> {
    let mut shared = Shared { data, includes, known: HashMap::new(), rounds: 0 };
    Frame::new(&mut shared, spell, Vec::new(), Vec::new()).run(&spell.nodes)
}

/// Returns the value of a spell that is a single action, or `None` for any other spell.
pub(super) fn value(
    spell: &Spell,
    data: &Value,
    includes: Includes,
) -> Result<Option<Value>, Fault> {
    let [Node::Write(pipe)] = spell.nodes.as_slice() else { return Ok(None) };
    if pipe.sets != Sets::Nothing {
        return Ok(None);
    }
    let mut shared = Shared { data, includes, known: HashMap::new(), rounds: 0 };
    let mut frame = Frame::new(&mut shared, spell, Vec::new(), Vec::new());
    let value = frame.pipe(pipe, &Val::Root, Missing::Fault)?;
    let value = frame.owned(&value);
    let bytes = print(&value).len();
    if bytes > MAX_OUTPUT {
        return frame.fault(pipe.at, format!("the value has more than {MAX_OUTPUT} bytes"));
    }
    Ok(Some(value))
}

/// A value during rendering. Cheap to clone.
#[derive(Clone)]
enum Val<'d> {
    /// All variables together.
    Root,
    /// A part of the data.
    Of(&'d Value),
    /// Created by a function, or a literal of the spell.
    Made(Arc<Value>),
}

impl From<Value> for Val<'_> {
    fn from(value: Value) -> Self {
        Val::Made(Arc::new(value))
    }
}

/// The value of a missing variable in guards.
const NOTHING: Val<'static> = Val::Of(&Value::Null);

/// Determines whether a missing variable is a fault or reads as empty.
#[derive(Clone, Copy, PartialEq)]
enum Missing {
    Fault,
    Empty,
}

/// The state that a rendering shares with its includes.
struct Shared<'d> {
    data: &'d Value,
    includes: Includes<'d>,
    known: HashMap<String, Arc<Spell>>,
    /// Number of rounds and includes so far.
    rounds: usize,
}

/// One spell during its rendering.
struct Frame<'f, 'd> {
    shared: &'f mut Shared<'d>,
    source: &'f Source,
    /// Values passed by `include`, which override the data; the last value of a name wins.
    given: Vec<(String, Val<'d>)>,
    /// The variables by slot.
    variables: Vec<Val<'d>>,
    /// The files of the including spells, and of this one.
    chain: Vec<Arc<str>>,
    pieces: Vec<Piece>,
    length: usize,
}

impl<'f, 'd> Frame<'f, 'd> {
    fn new(
        shared: &'f mut Shared<'d>,
        spell: &'f Spell,
        given: Vec<(String, Val<'d>)>,
        mut chain: Vec<Arc<str>>,
    ) -> Self {
        chain.push(spell.source.file.clone());
        let (variables, pieces) = (Vec::new(), Vec::new());
        Frame { shared, source: &spell.source, given, variables, chain, pieces, length: 0 }
    }

    fn run(mut self, nodes: &[Node]) -> Result<Vec<Piece>, Fault> {
        self.nodes(nodes, &Val::Root)?;
        Ok(self.pieces)
    }

    fn fault<T>(&self, at: Span, message: impl Into<String>) -> Result<T, Fault> {
        Err(self.source.fault(at, message))
    }

    /// Writes nodes. Variables that they declare go out of scope at the end.
    fn nodes(&mut self, nodes: &[Node], dot: &Val<'d>) -> Result<(), Fault> {
        let declared = self.variables.len();
        for node in nodes {
            match node {
                Node::Text(text, at) => self.write(*at, Piece::Text(text.clone()))?,
                Node::Write(pipe) => {
                    let value = self.pipe(pipe, dot, Missing::Fault)?;
                    if pipe.sets == Sets::Nothing {
                        let text = print(&self.solid(&value)).into_owned();
                        self.write(pipe.at, Piece::Value(text))?;
                    }
                }
                block => {
                    let declared = self.variables.len();
                    self.block(block, dot)?;
                    self.variables.truncate(declared);
                }
            }
        }
        self.variables.truncate(declared);
        Ok(())
    }

    fn write(&mut self, at: Span, piece: Piece) -> Result<(), Fault> {
        let (Piece::Text(text) | Piece::Value(text)) = &piece;
        self.length += text.len();
        if self.length > MAX_OUTPUT {
            let what = self.source.called();
            return self.fault(at, format!("{what} renders to more than {MAX_OUTPUT} bytes"));
        }
        // An empty value is still a value: in a script it is a word.
        if !matches!(&piece, Piece::Text(text) if text.is_empty()) {
            self.pieces.push(piece);
        }
        Ok(())
    }

    fn block(&mut self, node: &Node, dot: &Val<'d>) -> Result<(), Fault> {
        match node {
            Node::Text(..) | Node::Write(_) => Ok(()),
            Node::If { branches, otherwise } => {
                for (condition, body) in branches {
                    let value = self.pipe(condition, dot, Missing::Empty)?;
                    if truth(&self.solid(&value)) {
                        return self.nodes(body, dot);
                    }
                }
                self.nodes(otherwise, dot)
            }
            Node::With { pipe, body, otherwise } => {
                let value = self.pipe(pipe, dot, Missing::Empty)?;
                match truth(&self.solid(&value)) {
                    true => self.nodes(body, &value),
                    false => self.nodes(otherwise, dot),
                }
            }
            Node::Range { pipe, body, otherwise } => {
                let value = self.commands(&pipe.commands, dot, Missing::Fault)?;
                let rounds = self.rounds(pipe.at, &value)?;
                if rounds.is_empty() {
                    return self.nodes(otherwise, dot);
                }
                for (key, item) in rounds {
                    self.round(pipe.sets, body, key, &item)?;
                }
                Ok(())
            }
        }
    }

    fn round(
        &mut self,
        sets: Sets,
        body: &[Node],
        key: Val<'d>,
        item: &Val<'d>,
    ) -> Result<(), Fault> {
        let declared = self.variables.len();
        if sets == Sets::Declared(2) {
            self.variables.push(key);
        }
        if sets != Sets::Nothing {
            self.variables.push(item.clone());
        }
        self.nodes(body, item)?;
        self.variables.truncate(declared);
        Ok(())
    }

    /// Returns the keys and items for `range`; those of an object are sorted by key.
    fn rounds(&mut self, at: Span, value: &Val<'d>) -> Result<Vec<(Val<'d>, Val<'d>)>, Fault> {
        let solid = self.solid(value);
        let length = match &*solid {
            Value::Null => 0,
            Value::Array(items) => items.len(),
            Value::Object(map) => map.len(),
            other => {
                let fault =
                    self.source.fault(at, format!("`range` cannot go over {}", kind(other)));
                return Err(fault.hint("it goes over a list or an object"));
            }
        };
        self.count(at, length)?;
        let part = |item: &Value, of: Option<&'d Value>| match of {
            Some(item) => Val::Of(item),
            None => item.clone().into(),
        };
        // Parts of the data are borrowed, not copied.
        let lasting = match value {
            Val::Of(data) => Some(face(data)),
            _ => None,
        };
        Ok(match &*solid {
            Value::Array(items) => {
                let item = |(index, item): (usize, &Value)| {
                    let of = lasting.and_then(|list| list.get(index));
                    (Value::from(index).into(), part(item, of))
                };
                items.iter().enumerate().map(item).collect()
            }
            Value::Object(map) => {
                let mut keys: Vec<&String> = map.keys().collect();
                keys.sort();
                let item = |key: &String| {
                    let of = lasting.and_then(|object| object.get(key));
                    (Value::from(key.as_str()).into(), part(&map[key], of))
                };
                keys.into_iter().map(item).collect()
            }
            _ => Vec::new(),
        })
    }

    fn count(&mut self, at: Span, rounds: usize) -> Result<(), Fault> {
        self.shared.rounds = self.shared.rounds.saturating_add(rounds);
        if self.shared.rounds > MAX_ROUNDS {
            let what = self.source.called();
            let message =
                format!("{what} has more than {MAX_ROUNDS} rounds of `range` and includes");
            return self.fault(at, message);
        }
        Ok(())
    }

    /// Returns the value of a pipe, and stores it in the pipe's variable, if any.
    fn pipe(&mut self, pipe: &Pipe, dot: &Val<'d>, missing: Missing) -> Result<Val<'d>, Fault> {
        let value = self.commands(&pipe.commands, dot, missing)?;
        match pipe.sets {
            Sets::Nothing => {}
            Sets::Declared(_) => self.variables.push(value.clone()),
            Sets::Slot(slot) => self.variables[slot] = value.clone(),
        }
        Ok(value)
    }

    fn commands(
        &mut self,
        commands: &[Command],
        dot: &Val<'d>,
        missing: Missing,
    ) -> Result<Val<'d>, Fault> {
        let is_default =
            |command: &Command| matches!(command.does, Does::Call(Function::Default, _));
        let guarded = commands.iter().rposition(is_default).unwrap_or(0);
        let mut piped = None;
        for (index, command) in commands.iter().enumerate() {
            // Everything that is piped into a `default` is its operand.
            let missing = if index < guarded { Missing::Empty } else { missing };
            let value = match &command.does {
                Does::Value(operand) => self.operand(operand, dot, missing)?,
                Does::Call(function, operands) => {
                    self.call(command.at, *function, operands, piped, dot, missing)?
                }
            };
            piped = Some(value);
        }
        Ok(piped.unwrap_or(NOTHING))
    }

    fn call(
        &mut self,
        at: Span,
        function: Function,
        operands: &[Operand],
        piped: Option<Val<'d>>,
        dot: &Val<'d>,
        missing: Missing,
    ) -> Result<Val<'d>, Fault> {
        if let Function::And | Function::Or = function {
            return self.decide(function, operands, piped, dot, missing);
        }
        let mut values = Vec::with_capacity(operands.len() + 1);
        for (index, operand) in operands.iter().enumerate() {
            let guard = function == Function::Default && index == 1;
            let missing = if guard { Missing::Empty } else { missing };
            values.push(self.operand(operand, dot, missing)?);
        }
        values.extend(piped);
        match function {
            Function::Default => {
                let given = values.pop().unwrap_or(NOTHING);
                let fallback = values.pop().unwrap_or(NOTHING);
                Ok(if truth(&self.solid(&given)) { given } else { fallback })
            }
            Function::Index => self.index(at, &values, missing),
            Function::Include => self.include(at, &values),
            _ => {
                let solid: Vec<_> = values.iter().map(|value| self.solid(value)).collect();
                let solid: Vec<&Value> = solid.iter().map(|value| &**value).collect();
                match functions::call(function, &solid) {
                    Ok(value) => Ok(value.into()),
                    Err(message) => self.fault(at, message),
                }
            }
        }
    }

    /// Evaluates `and` and `or`: returns the value that decides, without evaluating later operands.
    fn decide(
        &mut self,
        function: Function,
        operands: &[Operand],
        piped: Option<Val<'d>>,
        dot: &Val<'d>,
        missing: Missing,
    ) -> Result<Val<'d>, Fault> {
        let mut value = NOTHING;
        for operand in operands {
            value = self.operand(operand, dot, missing)?;
            if truth(&self.solid(&value)) == (function == Function::Or) {
                return Ok(value);
            }
        }
        Ok(piped.unwrap_or(value))
    }

    fn index(&mut self, at: Span, values: &[Val<'d>], missing: Missing) -> Result<Val<'d>, Fault> {
        let mut value = values[0].clone();
        for key in &values[1..] {
            let key = print(&self.solid(key)).into_owned();
            value = match (self.field(&value, &key), missing) {
                (Some(found), _) => found,
                (None, Missing::Empty) => return Ok(NOTHING),
                (None, Missing::Fault) => return self.fault(at, format!("there is no `{key}`")),
            };
        }
        Ok(value)
    }

    fn operand(
        &mut self,
        operand: &Operand,
        dot: &Val<'d>,
        missing: Missing,
    ) -> Result<Val<'d>, Fault> {
        let mut value = match &operand.start {
            Start::Dot => dot.clone(),
            Start::Root => Val::Root,
            Start::Slot(slot) => self.variables[*slot].clone(),
            Start::Literal(value) => Val::Made(value.clone()),
            Start::Group(pipe) => self.commands(&pipe.commands, dot, missing)?,
        };
        for (index, name) in operand.fields.iter().enumerate() {
            value = match (self.field(&value, name), missing) {
                (Some(found), _) => found,
                (None, Missing::Empty) => return Ok(NOTHING),
                (None, Missing::Fault) => return Err(self.missing(operand, index, &value)),
            };
        }
        Ok(value)
    }

    /// Returns the fault for a path whose part `index` is missing in `value`.
    fn missing(&self, operand: &Operand, index: usize, value: &Val<'d>) -> Fault {
        let written = &self.source.text[operand.at.start..operand.at.end];
        let name = &operand.fields[index];
        let solid = match value {
            Val::Root => self.solid(value),
            Val::Of(value) => Cow::Borrowed(*value),
            Val::Made(value) => Cow::Borrowed(&**value),
        };
        let message = match &*solid {
            _ if matches!(value, Val::Root) => format!("variable `.{name}` is missing"),
            Value::Object(_) => format!("`{written}` is missing: there is no `{name}`"),
            Value::Array(items) => {
                let length = items.len();
                format!("`{written}` is missing: there is no `{name}` in a list of {length}")
            }
            other => format!("`{written}` is missing: {} has no `{name}`", kind(other)),
        };
        let known = match &*solid {
            Value::Object(map) => names(map),
            _ => String::new(),
        };
        let guard = format!("where it may be missing, write `{{{{if {written}}}}}` or `default`");
        self.source.fault(operand.at, message).hint(format!("{known}{guard}"))
    }

    fn field(&self, value: &Val<'d>, name: &str) -> Option<Val<'d>> {
        match value {
            Val::Root => self.variable(name),
            Val::Of(value) => field(value, name).map(Val::Of),
            Val::Made(value) => field(value, name).map(|found| found.clone().into()),
        }
    }

    /// Returns a variable of the spell. `-` and `_` are equivalent, so that a step `run-tests` is
    /// also found as `.run_tests`; the exact name wins.
    fn variable(&self, name: &str) -> Option<Val<'d>> {
        let given = |same: &dyn Fn(&str) -> bool| {
            self.given.iter().rev().find(|(key, _)| same(key)).map(|(_, value)| value.clone())
        };
        let data = self.shared.data;
        let folded = name.replace('-', "_");
        let same = |key: &str| key.replace('-', "_") == folded;
        given(&|key| key == name)
            .or_else(|| data.get(name).map(Val::Of))
            .or_else(|| given(&same))
            .or_else(|| {
                data.as_object()?.iter().find(|(key, _)| same(key)).map(|(_, v)| Val::Of(v))
            })
    }

    /// Returns the face of a value.
    fn solid<'v>(&self, value: &'v Val<'d>) -> Cow<'v, Value> {
        match value {
            Val::Of(value) => Cow::Borrowed(face(value)),
            Val::Made(value) => Cow::Borrowed(face(value)),
            Val::Root => {
                let mut map = self.shared.data.as_object().cloned().unwrap_or_default();
                for (key, value) in &self.given {
                    map.insert(key.clone(), self.owned(value));
                }
                Cow::Owned(Value::Object(map))
            }
        }
    }

    fn owned(&self, value: &Val<'d>) -> Value {
        match value {
            Val::Root => self.solid(value).into_owned(),
            Val::Of(value) => (*value).clone(),
            Val::Made(value) => (**value).clone(),
        }
    }

    /// Renders another spell, with additional variables.
    fn include(&mut self, at: Span, values: &[Val<'d>]) -> Result<Val<'d>, Fault> {
        self.count(at, 1)?;
        let here = self.source.fault(at, "");
        let text = |value: &Val<'d>| self.solid(value).as_str().map(str::to_owned);
        let Some(name) = text(&values[0]) else {
            return self.fault(at, WANTS_NAME);
        };
        let mut given = self.given.clone();
        for pair in values[1..].chunks(2) {
            let [key, value] = pair else {
                return self.fault(at, WANTS_VALUE);
            };
            let Some(key) = text(key) else {
                return self.fault(at, WANTS_TEXT);
            };
            let value = match value {
                // Resolve it now: in the included spell, it would mean that spell's variables.
                Val::Root => self.owned(value).into(),
                other => other.clone(),
            };
            given.push((key, value));
        }
        let spell = self.find(at, &name)?;
        let chain = self.chain.clone();
        let pieces = Frame::new(self.shared, &spell, given, chain)
            .run(&spell.nodes)
            .map_err(|fault| fault.included(&here))?;
        let whole: String = pieces
            .into_iter()
            .map(|piece| match piece {
                Piece::Text(text) | Piece::Value(text) => text,
            })
            .collect();
        Ok(Value::String(whole).into())
    }

    fn find(&mut self, at: Span, name: &str) -> Result<Arc<Spell>, Fault> {
        let spell = match self.shared.known.get(name) {
            Some(spell) => spell.clone(),
            None => {
                let Some((file, text)) = (self.shared.includes)(name) else {
                    return self.fault(at, format!("no spell is called `{name}`"));
                };
                let spell = Spell::parse(&file, &text)
                    .map_err(|fault| fault.included(&self.source.fault(at, "")))?;
                let spell = Arc::new(spell);
                self.shared.known.insert(name.to_owned(), spell.clone());
                spell
            }
        };
        let file = &spell.source.file;
        if let Some(first) = self.chain.iter().position(|link| link == file) {
            let chain: Vec<&str> = self.chain[first..].iter().map(|link| &**link).collect();
            return self.fault(at, includes_itself(name, &chain));
        }
        if self.chain.len() > MAX_INCLUDES {
            return self.fault(at, too_deep());
        }
        Ok(spell)
    }
}

/// Returns the first names of an object, as the beginning of a hint.
fn names(map: &Map<String, Value>) -> String {
    const SHOWN: usize = 12;
    let mut names: Vec<String> =
        map.keys().filter(|key| *key != super::FACE).map(|key| format!("`{key}`")).collect();
    if names.is_empty() {
        return String::new();
    }
    let more = if names.len() > SHOWN { " …" } else { "" };
    names.truncate(SHOWN);
    format!("there is {}{more}; ", names.join(", "))
}
