//! Parses tokens into a tree of nodes: blocks balance, functions exist and get the right number of
//! arguments, and variables are declared.
//!
//! **Invariant:** the tree is at most [`MAX_BLOCKS`] blocks of [`MAX_GROUPS`] parentheses deep, so
//! that walking it cannot exhaust the stack.

use std::sync::Arc;

use serde_json::Value;

use super::functions::Function;
use super::lex::{self, Action, Head, Lexeme, Segment, Span, Token};
use super::{Fault, Source};

/// Maximum depth of nested blocks.
const MAX_BLOCKS: usize = 32;
/// Maximum depth of nested parentheses.
const MAX_GROUPS: usize = 16;

#[derive(Clone, Debug)]
pub(super) enum Node {
    Text(String, Span),
    /// Writes a value, unless it only sets a variable.
    Write(Pipe),
    If {
        branches: Vec<(Pipe, Vec<Node>)>,
        otherwise: Vec<Node>,
    },
    With {
        pipe: Pipe,
        body: Vec<Node>,
        otherwise: Vec<Node>,
    },
    Range {
        pipe: Pipe,
        body: Vec<Node>,
        otherwise: Vec<Node>,
    },
}

/// Commands, each of which gets the value of the previous one as its last argument.
#[derive(Clone, Debug)]
pub(super) struct Pipe {
    pub at: Span,
    pub sets: Sets,
    pub commands: Vec<Command>,
}

/// The variables that a pipe sets. Variables are slots, counted from the outermost; a declaration
/// takes the next slot, and the end of a block frees its slots.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Sets {
    Nothing,
    /// `$x := …` declares one; `range $i, $v := …` two.
    Declared(usize),
    /// `$x = …`
    Slot(usize),
}

#[derive(Clone, Debug)]
pub(super) struct Command {
    pub at: Span,
    pub does: Does,
}

#[derive(Clone, Debug)]
pub(super) enum Does {
    Value(Operand),
    Call(Function, Vec<Operand>),
}

#[derive(Clone, Debug)]
pub(super) struct Operand {
    pub at: Span,
    pub start: Start,
    pub fields: Vec<String>,
}

#[derive(Clone, Debug)]
pub(super) enum Start {
    Dot,
    Root,
    Slot(usize),
    Literal(Arc<Value>),
    Group(Box<Pipe>),
}

pub(super) fn parse(source: &Source) -> Result<Vec<Node>, Fault> {
    let segments = lex::segments(source)?.into_iter();
    let mut parser = Parser { source, segments, variables: Vec::new(), blocks: 0, groups: 0 };
    match parser.list(None)? {
        (nodes, Stop::Text) => Ok(nodes),
        (_, Stop::End(at)) => Err(source.fault(at, "`end` closes nothing")),
        (_, Stop::Else(tokens)) => Err(source.fault(tokens.at, "`else` belongs to nothing")),
    }
}

/// The word that opens a block, and its position.
type Opener = (&'static str, Span);

/// The cause of the end of a list of nodes.
enum Stop {
    Text,
    End(Span),
    Else(Tokens),
}

/// The tokens of one action, read from left to right.
struct Tokens {
    at: Span,
    tokens: std::collections::VecDeque<Lexeme>,
}

impl Tokens {
    fn peek(&self) -> Option<&Token> {
        self.ahead(0)
    }

    fn ahead(&self, count: usize) -> Option<&Token> {
        self.tokens.get(count).map(|lexeme| &lexeme.token)
    }

    fn take(&mut self, token: &Token) -> bool {
        let found = self.peek() == Some(token);
        if found {
            self.tokens.pop_front();
        }
        found
    }

    fn take_word(&mut self, word: &str) -> bool {
        let found = matches!(self.peek(), Some(Token::Word(found)) if found == word);
        if found {
            self.tokens.pop_front();
        }
        found
    }

    /// Returns the position of the next token, or of the whole action after the last one.
    fn here(&self) -> Span {
        self.tokens.front().map_or(self.at, |lexeme| lexeme.at)
    }
}

struct Parser<'s> {
    source: &'s Source,
    segments: std::vec::IntoIter<Segment>,
    /// The names of the variables in scope, by slot.
    variables: Vec<String>,
    blocks: usize,
    groups: usize,
}

impl Parser<'_> {
    fn fault<T>(&self, at: Span, message: impl Into<String>) -> Result<T, Fault> {
        Err(self.source.fault(at, message))
    }

    /// Reads nodes up to the end of the block that `opener` opened, or of the text.
    fn list(&mut self, opener: Option<Opener>) -> Result<(Vec<Node>, Stop), Fault> {
        let declared = self.variables.len();
        let mut nodes = Vec::new();
        while let Some(segment) = self.segments.next() {
            let Action { at, tokens } = match segment {
                Segment::Text(text, at) => {
                    nodes.push(Node::Text(text, at));
                    continue;
                }
                Segment::Action(action) => action,
            };
            let mut tokens = Tokens { at, tokens: tokens.into() };
            let stop = if tokens.take_word("end") {
                self.nothing_more(&tokens, "end")?;
                Stop::End(at)
            } else if tokens.take_word("else") {
                Stop::Else(tokens)
            } else {
                nodes.push(self.node(tokens)?);
                continue;
            };
            self.variables.truncate(declared);
            return Ok((nodes, stop));
        }
        match opener {
            None => Ok((nodes, Stop::Text)),
            Some((word, at)) => self.fault(at, format!("`{word}` is opened here but has no `end`")),
        }
    }

    fn node(&mut self, mut tokens: Tokens) -> Result<Node, Fault> {
        let at = tokens.at;
        let Some(first) = tokens.peek() else {
            return self.fault(at, "there is nothing between `{{` and `}}`");
        };
        let word = match first {
            Token::Word(word) => word.clone(),
            _ => String::new(),
        };
        let parse = match word.as_str() {
            "if" => Self::conditional,
            "with" => Self::with,
            "range" => Self::range,
            "define" | "template" | "block" => {
                let fault = self.source.fault(at, format!("`{word}` is not part of spells"));
                return Err(fault.hint("`{{include \"name\"}}` puts in another spell"));
            }
            "break" | "continue" => {
                return self.fault(at, format!("`{word}` is not part of spells"));
            }
            _ => return Ok(Node::Write(self.whole_pipe(&mut tokens, 1)?)),
        };
        tokens.tokens.pop_front();
        if self.blocks == MAX_BLOCKS {
            let message = format!("blocks are nested deeper than {MAX_BLOCKS}");
            return self.fault(at, message);
        }
        self.blocks += 1;
        let declared = self.variables.len();
        let node = parse(self, tokens)?;
        self.variables.truncate(declared);
        self.blocks -= 1;
        Ok(node)
    }

    fn conditional(&mut self, mut tokens: Tokens) -> Result<Node, Fault> {
        let opener = ("if", tokens.at);
        let mut branches = Vec::new();
        loop {
            let condition = self.whole_pipe(&mut tokens, 1)?;
            let (body, stop) = self.list(Some(opener))?;
            branches.push((condition, body));
            match stop {
                Stop::Else(more) => tokens = more,
                _ => return Ok(Node::If { branches, otherwise: Vec::new() }),
            }
            if !tokens.take_word("if") {
                let otherwise = self.last_list(opener, &tokens)?;
                return Ok(Node::If { branches, otherwise });
            }
        }
    }

    fn with(&mut self, mut tokens: Tokens) -> Result<Node, Fault> {
        let opener = ("with", tokens.at);
        let pipe = self.whole_pipe(&mut tokens, 1)?;
        let (body, otherwise) = self.body(opener)?;
        Ok(Node::With { pipe, body, otherwise })
    }

    fn range(&mut self, mut tokens: Tokens) -> Result<Node, Fault> {
        let opener = ("range", tokens.at);
        let declared = self.variables.len();
        let pipe = self.whole_pipe(&mut tokens, 2)?;
        if let Sets::Slot(_) = pipe.sets {
            return self.fault(pipe.at, "`range` declares its variables, with `:=`");
        }
        let (body, stop) = self.list(Some(opener))?;
        // Without a round, they have no value.
        self.variables.truncate(declared);
        let otherwise = match stop {
            Stop::Else(tokens) => self.last_list(opener, &tokens)?,
            _ => Vec::new(),
        };
        Ok(Node::Range { pipe, body, otherwise })
    }

    fn body(&mut self, opener: Opener) -> Result<(Vec<Node>, Vec<Node>), Fault> {
        match self.list(Some(opener))? {
            (body, Stop::Else(tokens)) => Ok((body, self.last_list(opener, &tokens)?)),
            (body, _) => Ok((body, Vec::new())),
        }
    }

    /// Reads the nodes after an `else` up to its `end`.
    fn last_list(&mut self, opener: Opener, tokens: &Tokens) -> Result<Vec<Node>, Fault> {
        self.nothing_more(tokens, "else")?;
        match self.list(Some(opener))? {
            (_, Stop::Else(tokens)) => {
                self.fault(tokens.at, format!("the `{}` has an `else` already", opener.0))
            }
            (nodes, _) => Ok(nodes),
        }
    }

    fn nothing_more(&self, tokens: &Tokens, word: &str) -> Result<(), Fault> {
        match tokens.peek() {
            None => Ok(()),
            Some(_) => self.fault(tokens.here(), format!("nothing may follow `{word}` here")),
        }
    }

    /// Reads a pipe that is the rest of an action. It may declare up to `most` variables.
    fn whole_pipe(&mut self, tokens: &mut Tokens, most: usize) -> Result<Pipe, Fault> {
        let start = tokens.here();
        let (declared, assigned) = self.targets(tokens, most)?;
        let mut pipe = self.pipe(tokens)?;
        if tokens.peek().is_some() {
            return self.fault(tokens.here(), "a `)` without its `(`");
        }
        pipe.at = start.to(pipe.at);
        pipe.sets = match assigned {
            Some(slot) => Sets::Slot(slot),
            None if declared.is_empty() => Sets::Nothing,
            None => Sets::Declared(declared.len()),
        };
        // Only now: a variable is not in scope in its own value.
        self.variables.extend(declared);
        Ok(pipe)
    }

    /// Reads `$x :=`, `$i, $v :=` or `$x =`. Returns the names to declare, or the slot to set.
    fn targets(
        &self,
        tokens: &mut Tokens,
        most: usize,
    ) -> Result<(Vec<String>, Option<usize>), Fault> {
        let name = |token: Option<&Token>| match token {
            Some(Token::Path(Head::Variable(name), fields)) if fields.is_empty() => {
                Some(name.clone())
            }
            _ => None,
        };
        let Some(first) = name(tokens.peek()) else { return Ok((Vec::new(), None)) };
        let here = tokens.here();
        let (names, length) = match (tokens.ahead(1), name(tokens.ahead(2)), tokens.ahead(3)) {
            (Some(Token::Declare), ..) => (vec![first], 2),
            (Some(Token::Assign), ..) => {
                let slot = self.slot(&first, here)?;
                tokens.tokens.drain(..2);
                return Ok((Vec::new(), Some(slot)));
            }
            (Some(Token::Comma), Some(second), Some(Token::Declare)) => (vec![first, second], 4),
            _ => return Ok((Vec::new(), None)),
        };
        if names.len() > most {
            return self.fault(here, "only `range` has two variables");
        }
        tokens.tokens.drain(..length);
        Ok((names, None))
    }

    fn slot(&self, name: &str, at: Span) -> Result<usize, Fault> {
        match self.variables.iter().rposition(|variable| variable == name) {
            Some(slot) => Ok(slot),
            None => {
                let fault = self.source.fault(at, format!("`${name}` was not declared"));
                Err(fault.hint(format!("declare it with `{{{{${name} := …}}}}`")))
            }
        }
    }

    /// Reads commands up to the end of the action or a `)`.
    fn pipe(&mut self, tokens: &mut Tokens) -> Result<Pipe, Fault> {
        let mut commands = vec![self.command(tokens, false)?];
        while tokens.take(&Token::Bar) {
            commands.push(self.command(tokens, true)?);
        }
        let at = commands[0].at.to(commands[commands.len() - 1].at);
        Ok(Pipe { at, sets: Sets::Nothing, commands })
    }

    /// Reads one command; `piped` is true if it gets a value from the previous one.
    fn command(&mut self, tokens: &mut Tokens, piped: bool) -> Result<Command, Fault> {
        let start = tokens.here();
        let function = match tokens.peek() {
            Some(Token::Word(word)) if literal(word).is_none() => Some(self.function(word, start)?),
            _ => None,
        };
        let Some(function) = function else {
            return self.plain_command(tokens, piped);
        };
        tokens.tokens.pop_front();
        let mut operands = Vec::new();
        let mut at = start;
        while !matches!(tokens.peek(), None | Some(Token::Bar | Token::Close)) {
            if function == Function::Include && !operands.is_empty() {
                operands.extend(argument_name(tokens));
            }
            let operand = self.operand(tokens)?;
            at = at.to(operand.at);
            operands.push(operand);
        }
        let count = operands.len() + usize::from(piped);
        if let Some(message) = function.miscount(count) {
            return self.fault(at, message);
        }
        if function == Function::Include
            && let Some(message) = misincludes(&operands, count)
        {
            return self.fault(at, message);
        }
        Ok(Command { at, does: Does::Call(function, operands) })
    }

    /// Reads a command that is only a value.
    fn plain_command(&mut self, tokens: &mut Tokens, piped: bool) -> Result<Command, Fault> {
        let operand = self.operand(tokens)?;
        if piped {
            return self.fault(operand.at, "only a function can stand behind `|`");
        }
        if !matches!(tokens.peek(), None | Some(Token::Bar | Token::Close)) {
            let fault = self.source.fault(tokens.here(), "a value is followed by another");
            return Err(fault.hint("a function stands before its values: `{{eq .a .b}}`"));
        }
        Ok(Command { at: operand.at, does: Does::Value(operand) })
    }

    fn function(&self, word: &str, at: Span) -> Result<Function, Fault> {
        Function::named(word).ok_or_else(|| {
            let fault = self.source.fault(at, format!("`{word}` is no function"));
            if ["if", "else", "end", "range", "with"].contains(&word) {
                return fault.hint(format!("`{word}` stands first in its action"));
            }
            let names: Vec<_> = Function::ALL.iter().map(|(name, ..)| *name).collect();
            fault.hint(format!("variables begin with a dot; functions are {}", names.join(" ")))
        })
    }

    fn operand(&mut self, tokens: &mut Tokens) -> Result<Operand, Fault> {
        let Some(Lexeme { token, at }) = tokens.tokens.pop_front() else {
            return self.fault(tokens.at, "a value is missing");
        };
        let made = |value: Value| (Start::Literal(Arc::new(value)), Vec::new());
        let (start, fields) = match token {
            Token::Path(Head::Dot, fields) => (Start::Dot, fields),
            Token::Path(Head::Root, fields) => (Start::Root, fields),
            Token::Path(Head::Variable(name), fields) => {
                (Start::Slot(self.slot(&name, at)?), fields)
            }
            Token::Text(text) => made(Value::String(text)),
            Token::Number(number) => made(Value::Number(number)),
            Token::Word(word) => match literal(&word) {
                Some(value) => made(value),
                None => {
                    self.function(&word, at)?;
                    let fault = self.source.fault(at, format!("`{word}` is no value"));
                    return Err(fault.hint(format!("put it in parentheses: `({word} …)`")));
                }
            },
            Token::Open => return self.group(tokens, at),
            Token::Close | Token::Bar => return self.fault(at, "a value is missing here"),
            Token::Fields(_) | Token::Comma | Token::Declare | Token::Assign => {
                return self.fault(at, "this means nothing here");
            }
        };
        Ok(Operand { at, start, fields })
    }

    fn group(&mut self, tokens: &mut Tokens, open: Span) -> Result<Operand, Fault> {
        if self.groups == MAX_GROUPS {
            let message = format!("parentheses are nested deeper than {MAX_GROUPS}");
            return self.fault(open, message);
        }
        self.groups += 1;
        let pipe = self.pipe(tokens)?;
        self.groups -= 1;
        let mut at = open.to(tokens.here());
        if !tokens.take(&Token::Close) {
            return self.fault(open, "`(` is opened here but never closed");
        }
        let mut fields = Vec::new();
        if let Some(Token::Fields(names)) = tokens.peek() {
            fields.clone_from(names);
            at = open.to(tokens.here());
            tokens.tokens.pop_front();
        }
        Ok(Operand { at, start: Start::Group(Box::new(pipe)), fields })
    }
}

/// Error messages for the arguments of `include`.
pub(super) const WANTS_NAME: &str = "`include` wants the name of a spell first";
pub(super) const WANTS_VALUE: &str = "`include` wants a value behind every name";
pub(super) const WANTS_TEXT: &str = "`include` wants names as text before their values";

/// Takes the name of an argument of the form `name=value`, which means `"name" value`.
fn argument_name(tokens: &mut Tokens) -> Option<Operand> {
    let tokens = &mut tokens.tokens;
    let (Token::Word(name), Token::Assign) = (&tokens.front()?.token, &tokens.get(1)?.token) else {
        return None;
    };
    let start = Start::Literal(Arc::new(Value::String(name.clone())));
    let at = tokens[0].at;
    tokens.drain(..2);
    Some(Operand { at, start, fields: Vec::new() })
}

/// Returns an error message for invalid literal arguments of an include; `count` is the total
/// number of arguments.
fn misincludes(operands: &[Operand], count: usize) -> Option<&'static str> {
    let no_text = |operand: &Operand| match &operand.start {
        Start::Literal(value) => !value.is_string(),
        _ => false,
    };
    let mut keys = operands.iter().skip(1).step_by(2);
    match operands.first() {
        Some(name) if no_text(name) => Some(WANTS_NAME),
        _ if count.is_multiple_of(2) => Some(WANTS_VALUE),
        _ if keys.any(no_text) => Some(WANTS_TEXT),
        _ => None,
    }
}

fn literal(word: &str) -> Option<Value> {
    match word {
        "true" => Some(Value::Bool(true)),
        "false" => Some(Value::Bool(false)),
        "nil" => Some(Value::Null),
        _ => None,
    }
}

/// Returns the number of paths through the longest chain of conditions; at least two if there is
/// any block.
pub(super) fn ways(nodes: &[Node]) -> usize {
    let of = |node: &Node| match node {
        Node::Text(..) | Node::Write(_) => 1,
        Node::If { branches, otherwise } => {
            let bodies = branches.iter().map(|(_, body)| body).chain([otherwise]);
            bodies.map(|body| ways(body)).max().unwrap_or(1).max(branches.len() + 1)
        }
        Node::With { body, otherwise, .. } | Node::Range { body, otherwise, .. } => {
            ways(body).max(ways(otherwise)).max(2)
        }
    };
    nodes.iter().map(of).max().unwrap_or(1)
}

/// Returns true if the variable `.name` is written anywhere, directly or through functions.
pub(super) fn writes(nodes: &[Node], name: &str) -> bool {
    nodes.iter().any(|node| match node {
        Node::Text(..) => false,
        Node::Write(pipe) => pipe.sets == Sets::Nothing && uses(pipe, name),
        Node::If { branches, otherwise } => {
            branches.iter().any(|(_, body)| writes(body, name)) || writes(otherwise, name)
        }
        Node::With { body, otherwise, .. } | Node::Range { body, otherwise, .. } => {
            writes(body, name) || writes(otherwise, name)
        }
    })
}

fn uses(pipe: &Pipe, name: &str) -> bool {
    let used = |operand: &Operand| match &operand.start {
        Start::Dot | Start::Root => operand.fields.first().is_some_and(|first| first == name),
        Start::Group(pipe) => uses(pipe, name),
        Start::Slot(_) | Start::Literal(_) => false,
    };
    pipe.commands.iter().any(|command| match &command.does {
        Does::Value(operand) => used(operand),
        Does::Call(_, operands) => operands.iter().any(used),
    })
}

/// Calls `see` with every pipe, and with true if it must have a value. A condition need not have
/// one.
fn pipes<'n>(nodes: &'n [Node], see: &mut dyn FnMut(&'n Pipe, bool)) {
    for node in nodes {
        match node {
            Node::Text(..) => {}
            Node::Write(pipe) => see(pipe, true),
            Node::If { branches, otherwise } => {
                for (condition, body) in branches {
                    see(condition, false);
                    pipes(body, see);
                }
                pipes(otherwise, see);
            }
            Node::With { pipe, body, otherwise } => {
                see(pipe, false);
                pipes(body, see);
                pipes(otherwise, see);
            }
            Node::Range { pipe, body, otherwise } => {
                see(pipe, true);
                pipes(body, see);
                pipes(otherwise, see);
            }
        }
    }
}

/// Returns the included names with their positions; `None` for a name that is computed from values.
pub(super) fn included(nodes: &[Node]) -> Vec<(Option<String>, Span)> {
    let mut found = Vec::new();
    pipes(nodes, &mut |pipe, _| included_in(pipe, &mut found));
    found
}

fn included_in(pipe: &Pipe, found: &mut Vec<(Option<String>, Span)>) {
    for command in &pipe.commands {
        let (function, operands) = match &command.does {
            Does::Call(function, operands) => (Some(*function), operands.as_slice()),
            Does::Value(operand) => (None, std::slice::from_ref(operand)),
        };
        if function == Some(Function::Include) {
            let name = operands.first().and_then(|operand| match &operand.start {
                Start::Literal(name) => name.as_str().map(str::to_owned),
                _ => None,
            });
            found.push((name, command.at));
        }
        for operand in operands {
            if let Start::Group(pipe) = &operand.start {
                included_in(pipe, found);
            }
        }
    }
}

/// The inputs of a spell when it is rendered.
#[derive(Default)]
pub(super) struct Reads {
    /// Paths of variables, with their positions.
    pub paths: Vec<(Vec<String>, Span)>,
    /// Spells that it includes by literal names: the name, the variables passed to it, and the
    /// position.
    pub includes: Vec<(String, Vec<String>, Span)>,
}

/// Returns the inputs of a spell; `known` reports whether a variable exists. Variables in a guard
/// may be missing, and a block is read only if its guard can be true.
pub(super) fn reads(nodes: &[Node], known: &dyn Fn(&[String]) -> bool) -> Reads {
    let mut reading = Reading { known, found: Reads::default() };
    reading.nodes(nodes, true);
    reading.found
}

struct Reading<'k> {
    known: &'k dyn Fn(&[String]) -> bool,
    found: Reads,
}

impl Reading<'_> {
    /// Walks nodes; `root` is true if the dot is the set of all variables.
    fn nodes(&mut self, nodes: &[Node], root: bool) {
        for node in nodes {
            match node {
                Node::Text(..) => {}
                Node::Write(pipe) => self.pipe(pipe, root),
                Node::Range { pipe, body, otherwise } => {
                    self.pipe(pipe, root);
                    self.nodes(body, false);
                    self.nodes(otherwise, root);
                }
                Node::With { pipe, body, otherwise } => match self.guard(pipe, root) {
                    Guard::Open => {
                        self.nodes(body, false);
                        self.nodes(otherwise, root);
                    }
                    Guard::Shut => self.nodes(otherwise, root),
                    Guard::Unclear => {}
                },
                Node::If { branches, otherwise } => self.branches(branches, otherwise, root),
            }
        }
    }

    fn branches(&mut self, branches: &[(Pipe, Vec<Node>)], otherwise: &[Node], root: bool) {
        for (condition, body) in branches {
            match self.guard(condition, root) {
                Guard::Open => self.nodes(body, root),
                Guard::Shut => {}
                Guard::Unclear => return,
            }
        }
        self.nodes(otherwise, root);
    }

    /// Classifies a condition. Unknown variables read as empty, so a condition that is only such a
    /// variable is certainly false; any other condition with an unknown variable is unclear.
    fn guard(&self, condition: &Pipe, root: bool) -> Guard {
        let mut paths = Vec::new();
        paths_in(condition, root, &mut paths);
        let plain = match condition.commands.as_slice() {
            [Command { does: Does::Value(operand), .. }] => {
                !matches!(operand.start, Start::Group(_))
            }
            _ => false,
        };
        match paths.iter().all(|(path, _)| (self.known)(path)) {
            true => Guard::Open,
            false if plain => Guard::Shut,
            false => Guard::Unclear,
        }
    }

    fn pipe(&mut self, pipe: &Pipe, root: bool) {
        let guards = |command: &Command| match &command.does {
            Does::Call(function, _) => {
                matches!(function, Function::Default | Function::And | Function::Or)
            }
            Does::Value(_) => false,
        };
        if pipe.commands.iter().any(guards) {
            return;
        }
        for command in &pipe.commands {
            let (function, operands) = match &command.does {
                Does::Call(function, operands) => (Some(*function), operands.as_slice()),
                Does::Value(operand) => (None, std::slice::from_ref(operand)),
            };
            let text = |operand: &Operand| match &operand.start {
                Start::Literal(value) => value.as_str().map(str::to_owned),
                _ => None,
            };
            if function == Some(Function::Include)
                && let Some(name) = operands.first().and_then(text)
            {
                let given = operands[1..].iter().step_by(2).map(text);
                if let Some(given) = given.collect() {
                    self.found.includes.push((name, given, command.at));
                }
            }
            for operand in operands {
                match &operand.start {
                    Start::Group(pipe) => self.pipe(pipe, root),
                    _ => self.found.paths.extend(path_of(operand, root)),
                }
            }
        }
    }
}

/// The possible values of a condition: may be true, certainly false, or unclear.
enum Guard {
    Open,
    Shut,
    Unclear,
}

/// Returns the path of a variable, if an operand is one.
fn path_of(operand: &Operand, root: bool) -> Option<(Vec<String>, Span)> {
    let from_root = match operand.start {
        Start::Root => true,
        Start::Dot => root,
        _ => false,
    };
    (from_root && !operand.fields.is_empty()).then(|| (operand.fields.clone(), operand.at))
}

fn paths_in(pipe: &Pipe, root: bool, found: &mut Vec<(Vec<String>, Span)>) {
    for command in &pipe.commands {
        let operands = match &command.does {
            Does::Call(_, operands) => operands.as_slice(),
            Does::Value(operand) => std::slice::from_ref(operand),
        };
        for operand in operands {
            match &operand.start {
                Start::Group(pipe) => paths_in(pipe, root, found),
                _ => found.extend(path_of(operand, root)),
            }
        }
    }
}
