//! One command of a script: its words without their quotes, what is redirected, where it ends, and
//! where its output goes then.
//!
//! Continued lines, quotes and redirections are read here and nowhere else. A command is read once,
//! from its beginning on, however many values stand in it.

use std::collections::HashMap;

use super::builtin;

/// Of words of the same kind in a row, so many are kept: the first ones, and the last.
const ALIKE: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quote {
    Single,
    Double,
    /// `$'…'`.
    Escaped,
}

/// What a command is as far as it was read.
#[derive(Clone, Debug, Default)]
pub(super) struct Command {
    /// Its words. Of many arguments in a row that are nothing special, some are left out.
    pub words: Vec<String>,
    /// What there is of the word in which the reading ended.
    pub current: String,
    /// The sign before that word, if it says what is redirected: `<`, `<<<`, `>`.
    pub sign: Option<String>,
    /// Whether its input comes from somewhere of its own.
    pub input: bool,
    /// Whether its output goes somewhere of its own.
    pub output: bool,
    /// Where the commands begin that its output goes to: `> >(…)`.
    pub into: Option<usize>,
    /// Whether there is a word that is not complete.
    begun: bool,
    /// Whether nothing stands behind the sign yet.
    fresh: bool,
    quote: Option<Quote>,
    escaped: bool,
    /// How many parentheses are open in the word.
    depth: usize,
    /// Which file is redirected, by its number.
    number: String,
    alike: (Kind, usize),
    /// How far it was read.
    at: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    Plain,
    Setting,
    #[default]
    Special,
}

/// A script, with what is known of its brackets.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub text: &'a [u8],
    /// Where the parenthesis is closed that is opened here.
    pub closed: &'a HashMap<usize, usize>,
}

/// Where a command ends, and what with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// A pipe; the next command begins here.
    Pipe(usize),
    /// Anything else, here.
    Other(usize),
}

impl Command {
    /// A command that begins at a place and was not read.
    pub(super) fn begun(at: usize) -> Command {
        Command { at, ..Command::default() }
    }

    /// Reads a text that is one command, or what there is of one.
    pub(super) fn read(text: &[u8]) -> Command {
        let mut command = Command::default();
        command.go_on(Source { text, closed: &HashMap::new() }, text.len());
        command
    }

    pub(super) fn is_read_to(&self, at: usize) -> bool {
        self.at > at
    }

    /// Whether the word in which the reading ended is a text that it reads: `<<< VALUE`.
    pub(super) fn is_given_text(&self) -> bool {
        self.sign.as_deref() == Some("<<<")
    }

    /// Goes on reading up to a place.
    pub(super) fn go_on(&mut self, source: Source, to: usize) {
        while self.at < to {
            self.next(source, to);
        }
    }

    /// Reads all of a command; in backticks, one that is not escaped ends it.
    pub(super) fn whole(source: Source, begin: usize, ticked: bool) -> (Command, End) {
        let mut command = Command::begun(begin);
        let end = loop {
            let Some(byte) = source.text.get(command.at).copied() else {
                break End::Other(command.at);
            };
            if let Some(end) = command.ends(source.text, byte, ticked) {
                break end;
            }
            if byte == b'`' && command.quote != Some(Quote::Single) && !command.escaped {
                command.skip_ticks(source.text);
            } else {
                command.next(source, source.text.len());
            }
        };
        command.complete();
        (command, end)
    }

    /// What this byte ends the command with.
    fn ends(&self, text: &[u8], byte: u8, ticked: bool) -> Option<End> {
        if self.quote == Some(Quote::Single) || self.escaped {
            return None;
        }
        let here = Some(End::Other(self.at));
        if byte == b'`' && ticked {
            return here;
        }
        if self.quote.is_some() || self.depth > 0 {
            return None;
        }
        let next = text.get(self.at + 1).copied();
        match byte {
            b'\n' | b';' | b')' => here,
            b'#' if !self.begun && (self.sign.is_none() || !self.fresh) => here,
            // A sign of two: `&>`, `>&`, `>|`.
            b'&' if next == Some(b'>') || (self.sign.is_some() && self.fresh) => None,
            b'|' if self.sign.as_deref() == Some(">") && self.fresh => None,
            b'|' if next == Some(b'|') => here,
            b'|' => Some(End::Pipe(self.at + 1 + usize::from(next == Some(b'&')))),
            b'&' => here,
            _ => None,
        }
    }

    /// At a backtick: goes behind its pair.
    fn skip_ticks(&mut self, text: &[u8]) {
        self.put(b'`');
        self.at += 1;
        while let Some(byte) = text.get(self.at).copied() {
            self.at += if byte == b'\\' { 2 } else { 1 };
            if byte == b'`' {
                break;
            }
        }
    }

    /// Reads on by a byte, or behind what stands in parentheses.
    fn next(&mut self, source: Source, to: usize) {
        let byte = source.text[self.at];
        self.at += 1;
        if std::mem::take(&mut self.escaped) {
            // A line that is continued: nothing is there.
            if byte != b'\n' {
                self.put(byte);
            }
            return;
        }
        match (self.quote, byte) {
            (Some(Quote::Single | Quote::Escaped), b'\'') | (Some(Quote::Double), b'"') => {
                self.quote = None;
            }
            (Some(Quote::Single), _) => self.put(byte),
            (_, b'\\') => self.escaped = true,
            (Some(Quote::Escaped), _) => self.put(byte),
            (None, b'(') if self.depth == 0 => self.parenthesis(source, to),
            (_, b'(') if self.current.ends_with('$') => self.parenthesis(source, to),
            (Some(Quote::Double), _) => self.put(byte),
            (None, b'"') => self.quote(Quote::Double),
            (None, b'\'') if self.current.ends_with('$') => {
                self.current.pop();
                self.quote(Quote::Escaped);
            }
            (None, b'\'') => self.quote(Quote::Single),
            (None, _) if self.depth > 0 => {
                self.depth += usize::from(byte == b'(');
                self.depth -= usize::from(byte == b')');
                self.put(byte);
            }
            (None, _) if byte.is_ascii_whitespace() => self.blank(),
            (None, b'<' | b'>' | b'&' | b'|') => self.signed(byte),
            (None, b'-') if self.fresh && self.sign.as_deref() == Some("<<") => {
                self.sign = Some("<<-".to_owned());
            }
            (None, _) => self.put(byte),
        }
    }

    fn quote(&mut self, quote: Quote) {
        (self.begun, self.fresh, self.quote) = (true, false, Some(quote));
    }

    fn put(&mut self, byte: u8) {
        (self.begun, self.fresh) = (true, false);
        self.current.push(char::from(byte));
    }

    fn redirects(&self) -> Option<&str> {
        self.sign.as_deref()
    }

    /// Behind a parenthesis that opens: goes behind its pair, if that is known.
    fn parenthesis(&mut self, source: Source, to: usize) {
        if self.fresh {
            // `<(…)` is a word, and the sign part of it.
            let sign = self.sign.take().unwrap_or_default();
            self.number.clear();
            sign.bytes().for_each(|byte| self.put(byte));
        }
        if self.current == ">" && self.writes() {
            self.into = Some(self.at);
        }
        self.put(b'(');
        match source.closed.get(&(self.at - 1)) {
            Some(end) if *end < to => {
                self.put(b')');
                self.at = end + 1;
            }
            _ => self.depth += 1,
        }
    }

    /// A sign that redirects, or a part of one.
    fn redirect(&mut self, byte: u8) {
        let digits = self.begun && self.current.bytes().all(|b| b.is_ascii_digit());
        let named = self.current.starts_with('{') && self.current.ends_with('}');
        if digits || named || self.current == "&" {
            self.number = std::mem::take(&mut self.current);
            self.begun = false;
        }
        self.complete();
        (self.sign, self.fresh) = (Some(char::from(byte).to_string()), true);
    }

    fn signed(&mut self, byte: u8) {
        match (&mut self.sign, byte) {
            (Some(sign), _) if self.fresh && sign.len() < 3 => sign.push(char::from(byte)),
            // What is read from is what a command prints: `< <(`.
            (Some(_), b'<' | b'>') if !self.begun => self.put(byte),
            (_, b'<' | b'>') => self.redirect(byte),
            _ => self.put(byte),
        }
    }

    fn blank(&mut self) {
        // The word that a sign asks for may stand behind blanks.
        match self.begun {
            true => self.complete(),
            false => self.fresh = false,
        }
    }

    /// Whether the sign says where the output goes.
    fn writes(&self) -> bool {
        self.redirects().is_some_and(|sign| sign.starts_with('>'))
            && matches!(self.number.as_str(), "" | "1" | "&")
    }

    fn complete(&mut self) {
        let word = std::mem::take(&mut self.current);
        if !std::mem::take(&mut self.begun) {
            return;
        }
        if self.sign.is_none() {
            return self.push(word);
        }
        let out = matches!(word.as_str(), "/dev/stdout" | "/dev/fd/1" | "/proc/self/fd/1")
            || (word == "1" && self.redirects() == Some(">&"));
        self.output |= self.writes() && !out;
        self.input |= self.redirects().is_some_and(|sign| sign.starts_with('<'))
            && matches!(self.number.as_str(), "" | "0");
        (self.sign, self.fresh) = (None, false);
        self.number.clear();
    }

    /// Puts a complete word behind the others.
    pub(super) fn push(&mut self, word: String) {
        let kind = match () {
            () if builtin::is_special(&word) => Kind::Special,
            () if builtin::is_setting(&word) => Kind::Setting,
            () => Kind::Plain,
        };
        self.alike = if self.alike.0 == kind { (kind, self.alike.1 + 1) } else { (kind, 1) };
        if kind != Kind::Special && self.alike.1 > ALIKE {
            self.words.pop();
        }
        self.words.push(word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_its_words() {
        for (text, words, current, sign) in [
            ("a 'b c' \"d\\\"e\" ", "a|b c|d\"e", "", None),
            ("a \\\n  b \\\nc", "a|b", "c", None),
            ("a\\\nb ", "ab", "", None),
            ("2>/dev/null a <x b", "a", "b", None),
            ("a 3<x >>y <<<z 'w<", "a", "w<", None),
            ("a <<< ", "a", "", Some("<<<")),
            ("a <<<\"x ", "a", "x ", Some("<<<")),
            ("a &>x >&2 b 2>", "a|b", "", Some(">")),
            ("a <<-EOF b ", "a|b", "", None),
            ("a=(1 2) b < <(c d) e ", "a=(1 2)|b|e", "", None),
            (". <(x y) ", ".|<(x y)", "", None),
            ("a $'b\\'c d' e ", "a|b'c d|e", "", None),
        ] {
            let command = Command::read(text.as_bytes());
            assert_eq!(command.words.join("|"), words, "{text}");
            assert_eq!((command.current.as_str(), command.redirects()), (current, sign), "{text}");
        }
        let many = format!("env {} sh -c ", "V=1 x ".repeat(9) + &"y ".repeat(900));
        let command = Command::read(many.as_bytes());
        assert!(command.words.len() < 50 && command.words.ends_with(&["sh".into(), "-c".into()]));
    }

    #[test]
    fn where_a_command_ends_is_known() {
        for (text, wanted) in [
            ("a | b", End::Pipe(3)),
            ("a |& b", End::Pipe(4)),
            ("a \"|\" '|' \\| \\\n| b", End::Pipe(16)),
            ("a `x | y` | b", End::Pipe(11)),
            ("a >| x | b", End::Pipe(8)),
            ("a 2>&1 &>x | b", End::Pipe(12)),
            ("a || b", End::Other(2)),
            ("a # | b", End::Other(2)),
            ("a#b | c", End::Pipe(5)),
            ("a; b | c", End::Other(1)),
            ("a & b", End::Other(2)),
            ("a", End::Other(1)),
        ] {
            let source = Source { text: text.as_bytes(), closed: &HashMap::new() };
            assert_eq!(Command::whole(source, 0, false).1, wanted, "{text}");
        }
        let whole = |text: &str| {
            let source = Source { text: text.as_bytes(), closed: &HashMap::from([(5, 7)]) };
            Command::whole(source, 0, false).0
        };
        assert!(whole("a >x").output && whole("a >&2").output && !whole("a 2>x >&1").output);
        assert!(whole("a <x").input && whole("a 0<x").input && !whole("a 3<x").input);
        assert_eq!(whole("a > >(b)").into, Some(6));
        assert_eq!(whole("a < <(b)").into, None);
    }
}
