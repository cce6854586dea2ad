//! Tracks the quote state of a script, to find the place of each value in it.
//!
//! The reading is rough: quotes, substitutions, here-documents, and comments. Where it is wrong, a
//! value may be split into words, or its variable's name may appear instead of it.

use std::collections::{HashMap, VecDeque};

/// Stands for a value in a script.
pub(super) const VALUE: u8 = 0;
/// Stands for a variable that stays in a script by its name: `$ARGUMENTS`.
pub(super) const NAME: u8 = 1;

/// The place of a value in a script. It decides how an expansion is quoted there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Outside of quotes.
    Word,
    DoubleQuotes,
    HereDocument,
    Arithmetic,
    SingleQuotes,
    /// In `$'…'`.
    AnsiQuotes,
    /// In a here-document whose delimiter is quoted.
    QuotedHereDocument,
    /// In the delimiter of a here-document.
    Delimiter,
    AfterBackslash,
    AfterDollar,
    Comment,
}

impl Place {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Place::Word => "outside of quotes",
            Place::DoubleQuotes => "in double quotes",
            Place::HereDocument => "in a here-document",
            Place::Arithmetic => "in arithmetic",
            Place::SingleQuotes => "in single quotes",
            Place::AnsiQuotes => "in `$'…'`",
            Place::QuotedHereDocument => "in a here-document whose delimiter is quoted",
            Place::Delimiter => "in the delimiter of a here-document",
            Place::AfterBackslash => "after a backslash",
            Place::AfterDollar => "after a `$`",
            Place::Comment => "in a comment",
        }
    }

    /// Returns the fix if a shell expands nothing at this place, so that no value can be put there.
    pub(crate) fn fix(self) -> Option<&'static str> {
        match self {
            Place::Word | Place::DoubleQuotes | Place::HereDocument => None,
            Place::Arithmetic | Place::Comment => None,
            Place::SingleQuotes => Some("close the quotes before it: `'…'VALUE'…'`"),
            Place::AnsiQuotes => Some("close the quotes before it: `$'…'VALUE$'…'`"),
            Place::QuotedHereDocument => {
                Some("remove the quotes from the delimiter, and write `\\$` for other `$`")
            }
            Place::Delimiter => Some("use a fixed word as the delimiter"),
            Place::AfterBackslash => {
                Some("remove the backslash, or write `\\\\` for a literal one: there is no escape")
            }
            Place::AfterDollar => Some("write `\\$` for a literal `$`"),
        }
    }
}

/// One value of a script.
pub(super) struct PlacedValue {
    /// Byte offset in the script.
    pub(crate) at: usize,
    pub(crate) place: Place,
    /// Offset of the `<<` of the here-document that contains the value, or else its own offset.
    pub(crate) anchor: usize,
}

/// A script, read.
pub(super) struct Placed {
    pub(crate) places: Vec<PlacedValue>,
    /// The script with blanks in place of comments and of line continuations.
    pub(crate) code: Vec<u8>,
}

/// A construct that the cursor is inside of.
enum Frame {
    /// Commands, up to this byte: `)`, a backquote, or 0 for the end of the script. `cases` counts
    /// the open `case` commands, whose patterns end with `)` too.
    Commands {
        close: u8,
        cases: usize,
    },
    Double,
    /// `${…}`. In double quotes, single quotes are literal unless it contains a pattern.
    Brace {
        quoted: bool,
        pattern: bool,
    },
    /// `$((…))`, `((…))`, or `$[…]`, with the number of open brackets in it. The last two can be
    /// commands in other shells than bash, so values in them are quoted.
    Arithmetic {
        close: u8,
        open: usize,
        quoted: bool,
    },
    Here(HereDocument),
}

struct HereDocument {
    operator: usize,
    delimiter: Vec<u8>,
    quoted: bool,
    strip_tabs: bool,
}

struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
    frames: Vec<Frame>,
    /// Here-documents that begin after this line.
    pending: VecDeque<HereDocument>,
    /// The closing parenthesis of each opening one, by brackets alone.
    closing: HashMap<usize, usize>,
    placed: Placed,
}

/// Reads a script in which [`VALUE`] and [`NAME`] stand for values.
pub(super) fn read(text: &[u8]) -> Placed {
    let placed = Placed { places: Vec::new(), code: text.to_vec() };
    let mut scanner = Scanner {
        text,
        at: 0,
        frames: vec![Frame::Commands { close: 0, cases: 0 }],
        pending: VecDeque::new(),
        closing: parentheses(text),
        placed,
    };
    while scanner.at < text.len() {
        scanner.step();
    }
    scanner.placed
}

fn parentheses(text: &[u8]) -> HashMap<usize, usize> {
    let (mut open, mut pairs) = (Vec::new(), HashMap::new());
    for (at, byte) in text.iter().enumerate() {
        match byte {
            b'(' => open.push(at),
            b')' => pairs.extend(open.pop().map(|begin| (begin, at))),
            _ => {}
        }
    }
    pairs
}

impl Scanner<'_> {
    fn peek(&self) -> u8 {
        self.text.get(self.at).copied().unwrap_or(b'\n')
    }

    fn top(&mut self) -> &mut Frame {
        self.frames.last_mut().expect("the frame of the script is never popped")
    }

    fn step(&mut self) {
        let (begin, byte) = (self.at, self.text[self.at]);
        self.at += 1;
        if let Frame::Here(HereDocument { quoted: true, .. }) = self.top() {
            match byte {
                VALUE | NAME => self.place(Place::QuotedHereDocument),
                b'\n' => self.line_end(),
                _ => {}
            }
            return;
        }
        match byte {
            VALUE | NAME => {
                let place = self.here();
                self.place(place);
            }
            b'\n' => self.line_end(),
            b'\\' => self.escape(),
            b'$' => self.dollar(),
            b'`' => self.backquote(),
            b'"' => self.double_quote(),
            b'\'' => self.single_quote(),
            b'(' | b'[' => self.open(byte),
            b')' | b']' | b'}' => self.close(byte),
            _ => self.command_text(begin, byte),
        }
    }

    /// Returns the place of a value at the cursor.
    fn here(&mut self) -> Place {
        match self.top() {
            Frame::Commands { .. } | Frame::Brace { quoted: false, .. } => Place::Word,
            Frame::Arithmetic { quoted: false, .. } => Place::Word,
            Frame::Double | Frame::Brace { .. } => Place::DoubleQuotes,
            Frame::Arithmetic { .. } => Place::Arithmetic,
            Frame::Here(_) => Place::HereDocument,
        }
    }

    /// Records the value before the cursor.
    fn place(&mut self, place: Place) {
        let at = self.at - 1;
        let document = self.frames.iter().find_map(|frame| match frame {
            Frame::Here(document) => Some(document.operator),
            _ => None,
        });
        self.placed.places.push(PlacedValue { at, place, anchor: document.unwrap_or(at) });
    }

    fn escape(&mut self) {
        match self.peek() {
            VALUE | NAME => {
                self.at += 1;
                self.place(Place::AfterBackslash);
            }
            b'\n' if matches!(self.top(), Frame::Here(_)) => {}
            b'\n' => {
                let end = (self.at + 1).min(self.text.len());
                self.placed.code[self.at - 1..end].fill(b' ');
                self.at = end;
            }
            _ => self.at += 1,
        }
    }

    fn dollar(&mut self) {
        let quoted = !matches!(self.here(), Place::Word);
        match self.peek() {
            VALUE => {
                self.at += 1;
                self.place(Place::AfterDollar);
            }
            b'$' => self.at += 1,
            b'\'' if !quoted => self.ansi_quotes(),
            b'(' if self.is_arithmetic(self.at) => {
                self.at += 2;
                self.frames.push(Frame::Arithmetic { close: b')', open: 0, quoted: true });
            }
            b'(' => {
                self.at += 1;
                self.frames.push(Frame::Commands { close: b')', cases: 0 });
            }
            b'[' => {
                self.at += 1;
                self.frames.push(Frame::Arithmetic { close: b']', open: 0, quoted });
            }
            b'{' => {
                self.at += 1;
                let name = |byte: &&u8| byte.is_ascii_alphanumeric() || **byte == b'_';
                let length = self.text[self.at..].iter().take_while(name).count();
                let after = self.text.get(self.at + length);
                let pattern = length > 0 && after.is_some_and(|byte| b"#%/^,".contains(byte));
                self.frames.push(Frame::Brace { quoted, pattern });
            }
            _ => {}
        }
    }

    /// Returns true if the two parentheses at `at` are closed by two adjacent ones.
    fn is_arithmetic(&self, at: usize) -> bool {
        let close = |at| self.closing.get(&at);
        self.text.get(at + 1) == Some(&b'(')
            && close(at + 1).is_some_and(|inner| close(at) == Some(&(inner + 1)))
    }

    /// An unescaped backquote ends the innermost backquotes, whatever else is open in them.
    fn backquote(&mut self) {
        let is_open = |frame: &Frame| matches!(frame, Frame::Commands { close: b'`', .. });
        match self.frames.iter().rposition(is_open) {
            Some(open) => self.frames.truncate(open),
            None => self.frames.push(Frame::Commands { close: b'`', cases: 0 }),
        }
    }

    fn double_quote(&mut self) {
        match self.top() {
            Frame::Double => _ = self.frames.pop(),
            Frame::Commands { .. } | Frame::Brace { .. } => self.frames.push(Frame::Double),
            Frame::Arithmetic { .. } | Frame::Here(_) => {}
        }
    }

    fn single_quote(&mut self) {
        match self.top() {
            Frame::Commands { .. } | Frame::Brace { quoted: false, .. } => {}
            Frame::Brace { pattern: true, .. } => {}
            _ => return,
        }
        while self.at < self.text.len() {
            self.at += 1;
            match self.text[self.at - 1] {
                b'\'' => return,
                VALUE | NAME => self.place(Place::SingleQuotes),
                _ => {}
            }
        }
    }

    fn ansi_quotes(&mut self) {
        self.at += 1;
        while self.at < self.text.len() {
            self.at += 1;
            match self.text[self.at - 1] {
                b'\'' => return,
                VALUE | NAME => self.place(Place::AnsiQuotes),
                b'\\' if ![VALUE, NAME].contains(&self.peek()) => self.at += 1,
                _ => {}
            }
        }
    }

    fn open(&mut self, byte: u8) {
        let arithmetic = self.is_arithmetic(self.at - 1);
        match self.top() {
            Frame::Commands { .. } if byte == b'(' && arithmetic => {
                self.at += 1;
                self.frames.push(Frame::Arithmetic { close: b')', open: 0, quoted: false });
            }
            Frame::Commands { .. } if byte == b'(' => {
                self.frames.push(Frame::Commands { close: b')', cases: 0 });
            }
            Frame::Arithmetic { close, open, .. } if (*close == b')') == (byte == b'(') => {
                *open += 1
            }
            _ => {}
        }
    }

    fn close(&mut self, byte: u8) {
        match self.top() {
            Frame::Commands { close, cases: 0 } if *close == byte => _ = self.frames.pop(),
            Frame::Brace { .. } if byte == b'}' => _ = self.frames.pop(),
            Frame::Arithmetic { close, open, .. } if *close == byte && *open > 0 => *open -= 1,
            Frame::Arithmetic { close, .. } if *close == byte => {
                self.frames.pop();
                self.at += usize::from(byte == b')' && self.peek() == b')');
            }
            _ => {}
        }
    }

    /// Reads comments, here-document operators, and `case` outside of quotes.
    fn command_text(&mut self, begin: usize, byte: u8) {
        let Frame::Commands { close, cases } = self.top() else { return };
        let (backquotes, open_cases) = (*close == b'`', *cases);
        let rest = &self.text[begin..];
        match byte {
            b'#' if self.starts_word(begin) => self.comment(backquotes),
            b'<' if rest.starts_with(b"<<<") => self.at += 2,
            b'<' if self.peek() == b'<' => self.here_operator(begin),
            b'c' if rest.starts_with(b"case") && self.starts_word(begin) && opens_case(rest) => {
                if let Frame::Commands { cases, .. } = self.top() {
                    *cases += 1;
                }
            }
            b'e' if rest.starts_with(b"esac") && open_cases > 0 && self.starts_word(begin) => {
                if let Frame::Commands { cases, .. } = self.top() {
                    *cases -= 1;
                }
            }
            _ => {}
        }
    }

    fn starts_word(&self, at: usize) -> bool {
        let before = |back: usize| at.checked_sub(back).map(|at| self.text[at]);
        let parts = |byte: u8| byte.is_ascii_whitespace() || b";&|(`".contains(&byte);
        // An escaped blank is part of a word.
        before(1).is_none_or(|byte| parts(byte) && (byte == b'\n' || before(2) != Some(b'\\')))
    }

    fn comment(&mut self, backquotes: bool) {
        let begin = self.at - 1;
        while self.peek() != b'\n' && !(backquotes && self.peek() == b'`') {
            self.at += 1;
            if [VALUE, NAME].contains(&self.text[self.at - 1]) {
                self.place(Place::Comment);
            }
        }
        self.placed.code[begin..self.at].fill(b' ');
    }

    /// Reads the operator `<<` and the delimiter after it.
    fn here_operator(&mut self, operator: usize) {
        self.at += 1;
        let strip_tabs = self.peek() == b'-';
        self.at += usize::from(strip_tabs);
        while matches!(self.peek(), b' ' | b'\t') {
            self.at += 1;
        }
        let (mut delimiter, mut quote, mut quoted, mut fixed) = (Vec::new(), 0, false, true);
        loop {
            let byte = self.peek();
            match byte {
                b'\n' => break,
                b' ' | b'\t' | b';' | b'&' | b'|' | b'<' | b'>' | b'(' | b')' if quote == 0 => {
                    break;
                }
                b'\'' | b'"' if quote == 0 => (quote, quoted) = (byte, true),
                byte if byte == quote => quote = 0,
                b'\\' if quote != b'\'' => quoted = true,
                _ => delimiter.push(byte),
            }
            self.at += 1;
            if [VALUE, NAME].contains(&byte) {
                self.place(Place::Delimiter);
                fixed = false;
            }
        }
        if fixed && (quoted || !delimiter.is_empty()) {
            self.pending.push_back(HereDocument { operator, delimiter, quoted, strip_tabs });
        }
    }

    /// At the start of a line: ends and begins here-documents.
    fn line_end(&mut self) {
        loop {
            let is_here = |frame: &Frame| matches!(frame, Frame::Here(_));
            let document = self.frames.iter().rposition(is_here);
            if let Some(at) = document.filter(|at| self.is_delimiter(*at)) {
                let rest = &self.text[self.at..];
                let line = rest.iter().position(|byte| *byte == b'\n').map(|end| end + 1);
                self.at += line.unwrap_or(rest.len());
                self.frames.truncate(at);
            } else if let Frame::Commands { .. } = self.top()
                && let Some(document) = self.pending.pop_front()
            {
                self.frames.push(Frame::Here(document));
            } else {
                return;
            }
        }
    }

    /// Returns true if the line at the cursor ends the here-document of this frame.
    fn is_delimiter(&self, frame: usize) -> bool {
        let Frame::Here(document) = &self.frames[frame] else { return false };
        let mut line = &self.text[self.at..];
        while document.strip_tabs && line.first() == Some(&b'\t') {
            line = &line[1..];
        }
        let after = line.strip_prefix(&document.delimiter[..]);
        self.at < self.text.len() && after.is_some_and(|rest| matches!(rest, [] | [b'\n', ..]))
    }
}

/// Maximum number of words between `case` and `in`.
const MAX_SUBJECT_WORDS: usize = 64;

/// Returns true if a text that starts with `case` is `case WORD in`.
fn opens_case(text: &[u8]) -> bool {
    let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    words.next() == Some(b"case") && words.take(MAX_SUBJECT_WORDS).any(|word| word == b"in")
}
