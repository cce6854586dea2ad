//! Splits the text of a spell into plain text and actions, and an action into tokens.
//!
//! A name may contain `-` in the middle, so `{{.a-}}` has no trim marker: a trim marker needs a
//! space before it, as in Go.

use serde_json::Number;

use super::{Fault, Source};

/// A byte range in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub start: usize,
    pub end: usize,
}

impl Span {
    pub(super) fn to(self, other: Span) -> Span {
        Span { start: self.start, end: other.end }
    }
}

#[derive(Debug)]
pub(super) enum Segment {
    Text(String, Span),
    Action(Action),
}

/// The content between `{{` and `}}`.
#[derive(Debug)]
pub(super) struct Action {
    pub at: Span,
    pub tokens: Vec<Lexeme>,
}

#[derive(Debug)]
pub(super) struct Lexeme {
    pub token: Token,
    pub at: Span,
}

#[derive(Debug, PartialEq)]
pub(super) enum Token {
    /// `.`, `.a.b`, `$`, `$.a`, `$x`, `$x.a`
    Path(Head, Vec<String>),
    /// `.a.b` directly after a `)`
    Fields(Vec<String>),
    Text(String),
    Number(Number),
    Word(String),
    Bar,
    Open,
    Close,
    Comma,
    Declare,
    Assign,
}

/// The start of a path.
#[derive(Debug, PartialEq)]
pub(super) enum Head {
    Dot,
    Root,
    Variable(String),
}

/// Splits a spell and removes the whitespace that trim markers delete.
pub(super) fn segments(source: &Source) -> Result<Vec<Segment>, Fault> {
    let text: &str = &source.text;
    let mut segments = Vec::new();
    let (mut from, mut trim) = (0, false);
    while let Some(open) = text[from..].find("{{").map(|found| from + found) {
        let mut lexer = Lexer { source, text, open, at: open + 2 };
        let mut plain = trimmed_start(&text[from..open], trim);
        if lexer.rest().starts_with('-') && lexer.rest()[1..].starts_with(is_space) {
            lexer.at += 1;
            plain = plain.trim_end_matches(is_space);
        }
        push(&mut segments, plain, Span { start: from, end: open });
        match lexer.comment()? {
            Some(trims) => trim = trims,
            None => {
                let tokens;
                (tokens, trim) = lexer.action()?;
                let at = Span { start: open, end: lexer.at };
                segments.push(Segment::Action(Action { at, tokens }));
            }
        }
        from = lexer.at;
    }
    let end = text.len();
    push(&mut segments, trimmed_start(&text[from..], trim), Span { start: from, end });
    Ok(segments)
}

fn push(segments: &mut Vec<Segment>, text: &str, at: Span) {
    if !text.is_empty() {
        segments.push(Segment::Text(text.to_owned(), at));
    }
}

fn trimmed_start(text: &str, trim: bool) -> &str {
    if trim { text.trim_start_matches(is_space) } else { text }
}

fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n')
}

fn in_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns the length of the name at the start of `text`: a `-` belongs to it only between its
/// other characters.
fn name_len(text: &str) -> usize {
    let all = text.find(|c| !in_name(c) && c != '-').unwrap_or(text.len());
    if text.starts_with('-') { 0 } else { text[..all].trim_end_matches('-').len() }
}

/// Reads one action, starting after its `{{`.
struct Lexer<'s> {
    source: &'s Source,
    text: &'s str,
    open: usize,
    at: usize,
}

impl Lexer<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn span(&self, start: usize) -> Span {
        Span { start, end: self.at }
    }

    fn skip_space(&mut self) {
        self.at = self.text.len() - self.rest().trim_start_matches(is_space).len();
    }

    fn unclosed(&self) -> Fault {
        let at = Span { start: self.open, end: self.open + 2 };
        self.source.fault(at, "`{{` is opened here but never closed").hint("close it with `}}`")
    }

    /// Consumes the end of the action, if it is here. Returns true if it trims the following text.
    fn end(&mut self) -> Option<bool> {
        let spaced = self.text[..self.at].ends_with(is_space);
        let trims = self.rest().starts_with("-}}") && spaced;
        if trims || self.rest().starts_with("}}") {
            self.at += if trims { 3 } else { 2 };
            return Some(trims);
        }
        None
    }

    /// Consumes a comment, if the action is one. Returns true if it trims the following text.
    fn comment(&mut self) -> Result<Option<bool>, Fault> {
        let start = self.at;
        self.skip_space();
        if !self.rest().starts_with("/*") {
            self.at = start;
            return Ok(None);
        }
        let begun = self.at;
        let Some(length) = self.rest()[2..].find("*/") else {
            let at = Span { start: begun, end: begun + 2 };
            return Err(self.source.fault(at, "a comment is opened here but never closed"));
        };
        self.at += length + 4;
        self.skip_space();
        match self.end() {
            Some(trims) => Ok(Some(trims)),
            None => {
                let at = Span { start: begun, end: begun + 2 };
                let message = "a comment must be all there is between `{{` and `}}`";
                Err(self.source.fault(at, message))
            }
        }
    }

    fn action(&mut self) -> Result<(Vec<Lexeme>, bool), Fault> {
        let mut tokens = Vec::new();
        loop {
            self.skip_space();
            if let Some(trims) = self.end() {
                return Ok((tokens, trims));
            }
            let start = self.at;
            let token = self.token(&tokens)?;
            tokens.push(Lexeme { token, at: self.span(start) });
        }
    }

    fn token(&mut self, before: &[Lexeme]) -> Result<Token, Fault> {
        let start = self.at;
        let Some(c) = self.rest().chars().next() else { return Err(self.unclosed()) };
        if self.rest().starts_with("{{") {
            return Err(self.unclosed());
        }
        let glued = before.last().is_some_and(|last| last.at.end == start);
        let signed = c == '-' && self.rest()[1..].starts_with(|c: char| c.is_ascii_digit());
        match c {
            '.' if glued && before.last().is_some_and(|last| last.token == Token::Close) => {
                Ok(Token::Fields(self.fields()?))
            }
            '.' => Ok(Token::Path(Head::Dot, self.fields()?)),
            '$' => self.variable(),
            '"' => self.quoted(),
            '`' => self.raw(),
            '|' => Ok(self.passing(1, Token::Bar)),
            '(' => Ok(self.passing(1, Token::Open)),
            ')' => Ok(self.passing(1, Token::Close)),
            ',' => Ok(self.passing(1, Token::Comma)),
            ':' if self.rest().starts_with(":=") => Ok(self.passing(2, Token::Declare)),
            '=' => Ok(self.passing(1, Token::Assign)),
            c if c.is_ascii_digit() || signed => self.number(),
            c if in_name(c) => {
                let word = self.rest()[..name_len(self.rest())].to_owned();
                Ok(self.passing(word.len(), Token::Word(word)))
            }
            c => Err(self.stray(c)),
        }
    }

    fn passing(&mut self, length: usize, token: Token) -> Token {
        self.at += length;
        token
    }

    fn stray(&self, c: char) -> Fault {
        let at = Span { start: self.at, end: self.at + c.len_utf8() };
        let fault = self.source.fault(at, format!("`{c}` means nothing here"));
        match c {
            '-' => fault.hint("a trim marker wants a space before it: ` -}}`"),
            '}' => fault.hint("an action ends with `}}`"),
            '\'' => fault.hint("text stands in double quotes or back-ticks"),
            _ => fault,
        }
    }

    /// Reads `.a.b` or a single dot.
    fn fields(&mut self) -> Result<Vec<String>, Fault> {
        let mut names = Vec::new();
        while self.rest().starts_with('.') {
            let length = name_len(&self.rest()[1..]);
            if length == 0 && names.is_empty() {
                self.at += 1;
                break;
            }
            if length == 0 {
                let at = Span { start: self.at, end: self.at + 1 };
                return Err(self.source.fault(at, "a name must follow the dot"));
            }
            names.push(self.rest()[1..=length].to_owned());
            self.at += 1 + length;
        }
        Ok(names)
    }

    fn variable(&mut self) -> Result<Token, Fault> {
        self.at += 1;
        let name = self.rest()[..name_len(self.rest())].to_owned();
        self.at += name.len();
        let head = if name.is_empty() { Head::Root } else { Head::Variable(name) };
        let dotted = self.rest().starts_with('.');
        let fields = if dotted { self.fields()? } else { Vec::new() };
        if dotted && fields.is_empty() {
            let at = Span { start: self.at - 1, end: self.at };
            return Err(self.source.fault(at, "a name must follow the dot"));
        }
        Ok(Token::Path(head, fields))
    }

    fn number(&mut self) -> Result<Token, Fault> {
        let start = self.at;
        let part = |c: char| in_name(c) || matches!(c, '.' | '+' | '-');
        let mut length = self.rest().find(|c| !part(c)).unwrap_or(self.rest().len());
        // `{{.n | default 1-}}` is probably a trim marker without its space.
        length = self.rest()[..length].trim_end_matches('-').len();
        let text = self.rest()[..length].to_owned();
        self.at += length;
        match serde_json::from_str(&text) {
            Ok(number) => Ok(Token::Number(number)),
            Err(_) => Err(self.source.fault(self.span(start), format!("`{text}` is no number"))),
        }
    }

    fn raw(&mut self) -> Result<Token, Fault> {
        match self.rest()[1..].find('`') {
            Some(length) => {
                let text = self.rest()[1..=length].to_owned();
                Ok(self.passing(length + 2, Token::Text(text)))
            }
            None => Err(self.open_text()),
        }
    }

    fn open_text(&self) -> Fault {
        let at = Span { start: self.at, end: self.at + 1 };
        self.source.fault(at, "a text is opened here but never closed")
    }

    fn quoted(&mut self) -> Result<Token, Fault> {
        let mut text = String::new();
        let mut chars = self.text[self.at + 1..].char_indices();
        while let Some((offset, c)) = chars.next() {
            match c {
                '"' => return Ok(self.passing(offset + 2, Token::Text(text))),
                '\n' => return Err(self.open_text()),
                '\\' => {
                    let at = self.at + 1 + offset;
                    let (c, length) = escape(&self.text[at + 1..]).ok_or_else(|| {
                        let message = "`\\` is followed by none of `n t r \" ' \\ uHHHH`";
                        self.source.fault(Span { start: at, end: at + 1 }, message)
                    })?;
                    text.push(c);
                    for _ in 0..length {
                        chars.next();
                    }
                }
                c => text.push(c),
            }
        }
        Err(self.open_text())
    }
}

/// Returns the character for the escape `text`, which follows a backslash, and its length.
fn escape(text: &str) -> Option<(char, usize)> {
    match text.chars().next()? {
        'n' => Some(('\n', 1)),
        't' => Some(('\t', 1)),
        'r' => Some(('\r', 1)),
        c @ ('"' | '\'' | '\\') => Some((c, 1)),
        'u' => {
            let digits = text.get(1..5).filter(|digits| digits.is_ascii())?;
            Some((char::from_u32(u32::from_str_radix(digits, 16).ok()?)?, 5))
        }
        _ => None,
    }
}
