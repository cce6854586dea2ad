//! The reading of a shell script, byte by byte, with a mark in place of each value.

use std::collections::{BTreeSet, HashMap};

use super::builtin::{self, Reading};
use super::{Edit, Layout, MARK, NAME, Shell, Spot, Unsafe};

/// What the scanner is inside of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Inside {
    Parentheses,
    /// The elements of a list: `a=(…)`.
    List,
    Backticks,
    Double,
    /// A here-document in which values are expanded.
    Here,
    Arithmetic,
    /// Parentheses of its own in there.
    Nested,
    /// `$[ … ]`.
    Bracket,
    /// Which element of a list: `a[…]`.
    Subscript,
    /// `${ … }`.
    Brace,
    /// Which part of a text: `${a:…}`.
    Slice,
}

/// One thing that the scanner is inside of, and what that means for what stands there.
#[derive(Clone, Copy)]
struct Frame {
    inside: Inside,
    /// Whether in double quotes.
    quoted: bool,
    /// Whether an arithmetic expression.
    reckoned: bool,
    /// Whether it may be arithmetic, for all that can be told.
    doubtful: bool,
    /// Whether it is an expansion that takes a pattern, in which single quotes are quotes.
    pattern: bool,
    /// How many `case` are open in it, whose patterns end with a parenthesis.
    cases: usize,
    /// Where the command begins that goes on behind it; nothing, where another one does.
    back: Option<usize>,
}

/// A here-document that begins after this line.
struct Pending {
    /// The line that ends it.
    word: Vec<u8>,
    /// Where that is named, with its quotes.
    named: (usize, usize),
    /// Whether nothing is expanded in it.
    quoted: bool,
    /// Whether tabs before its lines are left out.
    bare: bool,
    /// Whether a shell reads it as script.
    script: bool,
}

/// What is known of the backticks around the cursor.
#[derive(Default)]
struct Ticks {
    depth: usize,
    /// Whether there was a backslash in them that means something there.
    escapes: bool,
    /// The values in them.
    marks: Vec<usize>,
}

pub struct Scanner<'a> {
    text: &'a [u8],
    shell: Shell,
    at: usize,
    /// Where the text begins in the whole script.
    base: usize,
    inside: Vec<Frame>,
    /// Where the command begins that the cursor is in; beyond the end, where it is in none.
    command: usize,
    /// How many here-documents this one is in.
    depth: usize,
    layout: Layout,
    /// Where the parenthesis is closed that is opened here, as far as brackets alone tell.
    closed: HashMap<usize, usize>,
    pending: Vec<Pending>,
    ticks: Ticks,
    /// Whether a shell may read the rest in another way.
    lost: bool,
    /// Variables that are reckoned with, in which bash executes commands.
    numbers: BTreeSet<String>,
    /// Values that a variable is set to: their numbers, and whether they are quoted.
    set: Vec<(usize, String, bool)>,
}

impl<'a> Scanner<'a> {
    pub fn new(text: &'a [u8], shell: Shell) -> Self {
        Scanner {
            text,
            shell,
            at: 0,
            base: 0,
            inside: Vec::new(),
            command: 0,
            depth: 0,
            layout: Layout::default(),
            closed: pairs(text),
            pending: Vec::new(),
            ticks: Ticks::default(),
            lost: false,
            numbers: builtin::numbers(text),
            set: Vec::new(),
        }
    }

    pub fn scan(mut self) -> Layout {
        self.walk();
        // What is set to a value and reckoned with anywhere is reckoned with here.
        for (mark, name, quoted) in std::mem::take(&mut self.set) {
            if self.numbers.contains(&name) {
                self.layout.spots[mark] = Some(Spot::Arithmetic { quoted });
            }
        }
        self.layout.edits.sort_by_key(|edit| edit.at);
        self.layout
    }

    fn walk(&mut self) {
        while let Some(byte) = self.text.get(self.at).copied() {
            let last = self.inside.last().map(|frame| frame.inside);
            let quoted = self.inside.last().is_some_and(|frame| frame.quoted);
            let next = self.text.get(self.at + 1).copied();
            self.at += 1;
            match byte {
                MARK | NAME => {
                    let here = self.inside.len() == 1 && last == Some(Inside::Here);
                    let plain = if here { Spot::HereDocument } else { Spot::Double };
                    self.mark(byte, quoted.then_some(plain));
                }
                b'\\' => self.escape(quoted, next),
                b'"' if last == Some(Inside::Double) => self.close(),
                b'"' if last == Some(Inside::Here) => {}
                b'"' => self.open(Inside::Double),
                b'`' if last == Some(Inside::Backticks) => self.close(),
                b'`' => {
                    self.open_command(Inside::Backticks, Some(self.command));
                    self.ticks.depth += 1;
                }
                b'$' if next == Some(b'$') => self.at += 1,
                b'$' if next == Some(MARK) => {
                    // The dollar is one, and no part of the value.
                    self.special();
                    self.edit(self.at - 1, 0, "\\");
                }
                b'$' if next == Some(b'\'') && !quoted => {
                    self.at += 1;
                    self.dollar_quotes();
                }
                b'$' if next == Some(b'(') && self.is_arithmetic(self.at) => {
                    self.at += 2;
                    self.open(Inside::Arithmetic);
                }
                b'$' if next == Some(b'(') => {
                    let doubtful = self.is_doubtful(self.at);
                    self.at += 1;
                    self.open_command(Inside::Parentheses, Some(self.command));
                    self.doubt(doubtful);
                }
                b'$' if next == Some(b'[') => {
                    self.at += 1;
                    self.open(Inside::Bracket);
                }
                b'$' if next == Some(b'{') => self.expansion(),
                b'}' if last == Some(Inside::Brace) => self.close(),
                b'}' if last == Some(Inside::Slice) => {
                    self.close();
                    self.close();
                }
                b']' if matches!(last, Some(Inside::Bracket | Inside::Subscript)) => {
                    self.close();
                    self.part();
                }
                b'[' if self.is_reckoned() && !matches!(last, Some(Inside::Double)) => {
                    self.open(Inside::Subscript);
                }
                b'\'' if quoted && self.inside.last().is_some_and(|frame| frame.pattern) => {
                    self.skip_to(b'\'', Spot::Refused(Unsafe::Pattern));
                }
                b'\'' if quoted && last == Some(Inside::Brace) => self.doubtful_quote(),
                _ if self.is_reckoned() && is_first(byte) => self.reckoned_name(),
                _ if quoted => {}
                b'\'' => self.skip_to(b'\'', Spot::Single),
                b'(' if self.is_arithmetic(self.at - 1) => {
                    self.at += 1;
                    self.open(Inside::Arithmetic);
                }
                b'(' if self.is_reckoned() => self.open(Inside::Nested),
                b'(' if last == Some(Inside::Brace) => {}
                // A list is part of its command.
                b'(' if self.text[..self.at - 1].ends_with(b"=") => self.open(Inside::List),
                b'(' => {
                    let doubtful = self.is_doubtful(self.at - 1);
                    self.open_command(Inside::Parentheses, None);
                    self.doubt(doubtful);
                }
                b')' if last == Some(Inside::Arithmetic) => {
                    self.at += usize::from(next == Some(b')'));
                    self.close();
                }
                b')' if last == Some(Inside::Parentheses) && self.cases() > 0 => {
                    self.ends_command();
                }
                b')' if matches!(
                    last,
                    Some(Inside::Parentheses | Inside::Nested | Inside::List)
                ) =>
                {
                    self.close();
                }
                b'[' if self.is_element() => self.open(Inside::Subscript),
                b'#' if self.reads_commands() && self.begins_word(self.at - 1) => {
                    self.skip_to(b'\n', Spot::Comment);
                    self.here_documents();
                    self.command = self.at;
                }
                b'<' if next == Some(b'<') && !self.is_reckoned() => self.redirection(),
                b'\n' => {
                    self.here_documents();
                    self.ends_command();
                }
                b'&' if next == Some(b'>') || self.text[..self.at - 1].ends_with(b">") => {}
                b';' | b'|' | b'&' | b')' => self.ends_command(),
                b'c' | b'e' => self.case(),
                _ => {}
            }
        }
    }

    /// A value or a variable before the cursor, in nothing special or in this.
    fn mark(&mut self, byte: u8, plain: Option<Spot>) {
        let number = self.layout.spots.len();
        let mut spot = self.spot(plain);
        // A name that no shell expands here stays one, and the script's own business.
        let named = byte == NAME;
        let kept = named && matches!(plain, Some(Spot::Single | Spot::Escaped | Spot::HereText));
        let doubtful = self.inside.last().is_some_and(|frame| frame.doubtful);
        if kept && matches!(spot, Some(Spot::Refused(_))) {
            spot = plain;
        } else if self.lost && !named {
            spot = Some(Spot::Refused(Unsafe::Quotes));
        } else if doubtful && !matches!(spot, Some(Spot::Refused(_))) {
            spot = Some(Spot::Refused(Unsafe::Parentheses));
        }
        if self.ticks.depth > 0 && !named {
            self.ticks.marks.push(number);
            if self.ticks.escapes {
                spot = Some(Spot::Refused(Unsafe::Backticks));
            }
        }
        if matches!(spot, None | Some(Spot::Double | Spot::Single | Spot::Escaped))
            && let Some(name) = self.assigned()
        {
            self.set.push((number, name, spot.is_some()));
        }
        self.layout.spots.push(spot);
    }

    /// Behind a backslash.
    fn escape(&mut self, quoted: bool, next: Option<u8>) {
        if next.is_some_and(|next| b"$`\\\n".contains(&next) || next == MARK || next == b'"') {
            self.special();
        }
        match next {
            // In quotes it is a backslash; elsewhere it quotes a value, which is quoted anyway.
            Some(MARK) if quoted => self.edit(self.at - 1, 0, "\\"),
            Some(MARK) => self.edit(self.at - 1, 1, ""),
            Some(NAME) => {
                self.layout.spots.push(None);
                self.at += 1;
            }
            Some(_) => self.at += 1,
            None => {}
        }
    }

    /// A sign that means something else in backticks: what they hold is read twice.
    fn special(&mut self) {
        if self.ticks.depth > 0 {
            self.ticks.escapes = true;
            for mark in self.ticks.marks.drain(..) {
                self.layout.spots[mark] = Some(Spot::Refused(Unsafe::Backticks));
            }
        }
    }

    fn edit(&mut self, at: usize, cut: usize, put: &str) {
        self.layout.edits.push(Edit { at: self.base + at, cut, put: put.to_owned() });
    }

    /// Goes into something. What is quoted or reckoned with stays so in quotes and expansions.
    fn open(&mut self, inside: Inside) {
        self.enter(inside, Some(self.command));
    }

    /// Goes into something that begins with a command.
    fn open_command(&mut self, inside: Inside, back: Option<usize>) {
        self.enter(inside, back);
        self.command = self.at;
    }

    fn enter(&mut self, inside: Inside, back: Option<usize>) {
        let around = self.inside.last();
        let was_quoted = around.is_some_and(|frame| frame.quoted);
        let was_reckoned = around.is_some_and(|frame| frame.reckoned);
        let doubtful = around.is_some_and(|frame| frame.doubtful);
        let (quoted, reckoned) = match inside {
            Inside::Parentheses | Inside::Backticks | Inside::List => (false, false),
            Inside::Double | Inside::Here => (true, was_reckoned),
            Inside::Brace => (was_quoted, was_reckoned),
            Inside::Slice | Inside::Subscript => (was_quoted, true),
            Inside::Arithmetic | Inside::Nested | Inside::Bracket => (false, true),
        };
        let (pattern, cases) = (false, 0);
        self.inside.push(Frame { inside, quoted, reckoned, doubtful, pattern, cases, back });
    }

    fn doubt(&mut self, doubtful: bool) {
        if let Some(frame) = self.inside.last_mut() {
            frame.doubtful |= doubtful;
        }
    }

    fn close(&mut self) {
        let Some(frame) = self.inside.pop() else { return };
        self.command = frame.back.unwrap_or(self.at);
        if frame.inside == Inside::Backticks {
            self.ticks.depth -= 1;
            if self.ticks.depth == 0 {
                self.ticks = Ticks::default();
            }
        }
    }

    /// Whether commands are what stands at the cursor.
    fn reads_commands(&self) -> bool {
        let inside = self.inside.last().map(|frame| frame.inside);
        matches!(inside, None | Some(Inside::Parentheses | Inside::Backticks | Inside::List))
    }

    /// Behind what ends a command.
    fn ends_command(&mut self) {
        if self.reads_commands()
            && self.inside.last().map(|frame| frame.inside) != Some(Inside::List)
        {
            self.command = self.at;
        }
    }

    fn cases(&self) -> usize {
        self.inside.last().map_or(0, |frame| frame.cases)
    }

    /// Behind the first letter of what may be `case` or `esac`: their patterns have a closing
    /// parenthesis without an opening one.
    fn case(&mut self) {
        const NEAR: usize = 64;
        let word = self.text.get(self.at - 1..self.at + 3);
        let opens = match word {
            Some(b"case") => true,
            Some(b"esac") => false,
            _ => return,
        };
        let after = self.text.get(self.at + 3);
        let whole = after.is_none_or(|byte| byte.is_ascii_whitespace() || b";&|)`".contains(byte));
        let from = self.command.max((self.at - 1).saturating_sub(NEAR));
        let before = self.text.get(from..self.at - 1).unwrap_or_default();
        if !whole || !self.begins_word(self.at - 1) || !builtin::begins_command(before) {
            return;
        }
        if let Some(frame) = self.inside.last_mut() {
            frame.cases = if opens { frame.cases + 1 } else { frame.cases.saturating_sub(1) };
        }
    }

    /// Behind the dollar of `${`.
    fn expansion(&mut self) {
        self.at += 1;
        self.open(Inside::Brace);
        let of = |at: usize| self.text.get(at).copied();
        let mut at = self.at + usize::from(matches!(of(self.at), Some(b'!' | b'#')));
        if matches!(of(at), Some(b'@' | b'*')) {
            at += 1;
        }
        while let Some(byte) = of(at).filter(|byte| is_word(*byte) || *byte == MARK) {
            // A value is part of the variable's name.
            if byte == MARK {
                self.layout.spots.push(Some(Spot::Name));
            }
            at += 1;
        }
        if self.is_reckoned() {
            let name = &self.text[self.at..at];
            self.numbers.insert(String::from_utf8_lossy(name).into_owned());
        }
        self.at = at;
        self.part();
    }

    /// Behind the name or the subscript of an expansion: what part of it is meant.
    fn part(&mut self) {
        let Some(frame) = self.inside.last_mut().filter(|frame| frame.inside == Inside::Brace)
        else {
            return;
        };
        let part = match self.text.get(self.at..).unwrap_or_default() {
            [b'[', ..] => Inside::Subscript,
            [b':', after, ..] if !b"-=?+".contains(after) => Inside::Slice,
            [b'#' | b'%' | b'/' | b'^' | b',' | b'@', ..] => {
                frame.pattern = true;
                return;
            }
            _ => return,
        };
        self.at += 1;
        self.open(part);
    }

    /// Behind the first letter of a variable that is reckoned with.
    fn reckoned_name(&mut self) {
        let begin = self.at - 1;
        while self.text.get(self.at).copied().is_some_and(is_word) {
            self.at += 1;
        }
        let name = String::from_utf8_lossy(&self.text[begin..self.at]).into_owned();
        self.numbers.insert(name);
    }

    /// The variable that the word before the cursor sets.
    fn assigned(&self) -> Option<String> {
        const NEAR: usize = 512;
        let from = self.command.max((self.at - 1).saturating_sub(NEAR));
        let words = builtin::words(self.text.get(from..self.at - 1)?);
        let name = words.last()?.split('=').next()?;
        let name = name.strip_suffix('+').unwrap_or(name);
        let sets = words.last()?.contains('=') && name.bytes().all(is_word);
        sets.then(|| name.to_owned())
    }

    /// Whether the bracket before the cursor says which element of a list is set.
    fn is_element(&self) -> bool {
        const NEAR: usize = 256;
        let open = self.at - 1;
        let before = self.text[..open].iter().rev().take(NEAR);
        let name = before.take_while(|byte| is_word(**byte)).count();
        let mut depth = 1_usize;
        let closes = |byte: &u8| {
            depth += usize::from(*byte == b'[');
            depth -= usize::from(*byte == b']');
            depth == 0
        };
        let rest = &self.text[self.at..self.text.len().min(self.at + NEAR)];
        let Some(end) = rest.iter().position(closes) else { return false };
        let set = rest[end + 1..].starts_with(b"=") || rest[end + 1..].starts_with(b"+=");
        set && self.reads_commands() && self.begins_word(open - name)
    }

    /// Whether the parenthesis at a place and the next one are closed as a pair, too.
    fn is_arithmetic(&self, at: usize) -> bool {
        let closed = |at: usize| self.closed.get(&at).copied();
        self.text.get(at..at + 2) == Some(b"((")
            && closed(at).is_some_and(|end| closed(at + 1) == Some(end - 1))
    }

    /// Whether two parentheses that look like no arithmetic may be one: something in them hides
    /// brackets from whoever looks at brackets alone.
    fn is_doubtful(&self, at: usize) -> bool {
        const NEAR: usize = 4096;
        if self.text.get(at..at + 2) != Some(b"((") || self.is_arithmetic(at) {
            return false;
        }
        let end = self.closed.get(&at).copied().unwrap_or(self.text.len());
        let within = &self.text[at..end.min(at + NEAR)];
        within.iter().any(|byte| b"'\"\\`{".contains(byte))
    }

    /// Whether what stands at the cursor is an arithmetic expression.
    fn is_reckoned(&self) -> bool {
        self.inside.last().is_some_and(|frame| frame.reckoned)
    }

    /// What a mark before the cursor is in, where it is nothing special or this.
    fn spot(&self, plain: Option<Spot>) -> Option<Spot> {
        let quoted = plain.is_some();
        let reading = match self.text.get(self.command..self.at - 1) {
            _ if self.is_reckoned() => Some(Reading::Number),
            None => None,
            Some(command) => self.tested().or_else(|| builtin::read_as(command)),
        };
        match reading {
            Some(Reading::Number) => Some(Spot::Arithmetic { quoted }),
            Some(Reading::Name) => Some(Spot::Name),
            Some(Reading::Script) => Some(Spot::Refused(Unsafe::Script)),
            None => plain,
        }
    }

    /// How the mark before the cursor is read by `[[ … ]]` around it.
    fn tested(&self) -> Option<Reading> {
        const NEAR: usize = 512;
        let before = &self.text[self.at.saturating_sub(NEAR)..self.at - 1];
        let after = &self.text[self.at..self.text.len().min(self.at + NEAR)];
        let last = |sign: &[u8]| before.windows(2).rposition(|two| two == sign);
        let open = last(b"[[").filter(|open| last(b"]]").is_none_or(|close| close < *open))?;
        let begin = open.max(last(b"&&").unwrap_or(0)).max(last(b"||").unwrap_or(0)) + 2;
        let ends = |two: &[u8]| matches!(two, b"]]" | b"&&" | b"||");
        let after = &after[..after.windows(2).position(ends).unwrap_or(after.len())];
        let words = builtin::words(&before[begin..]);
        let (current, words) = words.split_last()?;
        if words.last().is_some_and(|test| builtin::is_of_variables(test)) {
            return Some(builtin::named(current));
        }
        let compared = words.iter().any(|word| builtin::compares(word.as_bytes()))
            || after.split(u8::is_ascii_whitespace).any(builtin::compares);
        compared.then_some(Reading::Number)
    }

    /// Goes behind the next `end`; what is referred to until there is in that spot.
    fn skip_to(&mut self, end: u8, spot: Spot) {
        while let Some(byte) = self.text.get(self.at).copied() {
            self.at += 1;
            match byte {
                MARK | NAME if spot == Spot::Single => self.mark(byte, Some(spot)),
                MARK | NAME => self.layout.spots.push(Some(spot)),
                b'\\' | b'`' if spot == Spot::Single => self.special(),
                byte if byte == end => return,
                _ => {}
            }
        }
    }

    /// Behind `$'`: goes behind the next single quote that is not escaped.
    fn dollar_quotes(&mut self) {
        while let Some(byte) = self.text.get(self.at).copied() {
            self.at += 1;
            match byte {
                MARK if self.shell == Shell::Sh => {
                    self.layout.spots.push(Some(Spot::Refused(Unsafe::Quotes)));
                }
                MARK | NAME => self.mark(byte, Some(Spot::Escaped)),
                b'\\' => {
                    self.special();
                    match self.text.get(self.at).copied() {
                        Some(MARK) => {
                            self.layout.spots.push(Some(Spot::Refused(Unsafe::Escape)));
                        }
                        Some(NAME) => self.layout.spots.push(None),
                        Some(b'\'') => self.lost |= self.shell == Shell::Sh,
                        _ => {}
                    }
                    self.at += 1;
                }
                b'\'' => return,
                _ => {}
            }
        }
    }

    /// Behind a single quote within an expansion in double quotes: some shells look for its pair,
    /// others do not, which is one only where nothing between them ends anything.
    fn doubtful_quote(&mut self) {
        let ends = |byte: &u8| b"'}\"`\\\n".contains(byte);
        let end = self.text[self.at..].iter().position(ends);
        match end.map(|end| self.text[self.at + end]) {
            Some(b'\'') => {
                let end = self.at + end.unwrap_or_default();
                while self.at < end {
                    self.at += 1;
                    if [MARK, NAME].contains(&self.text[self.at - 1]) {
                        self.mark(self.text[self.at - 1], Some(Spot::Double));
                    }
                }
                self.at += 1;
            }
            _ => self.lost = true,
        }
    }

    /// Whether the byte at a place is the first of a word.
    fn begins_word(&self, at: usize) -> bool {
        let before = |back: usize| at.checked_sub(back).map(|at| self.text[at]);
        let parts = |byte: u8| byte.is_ascii_whitespace() || b";&|(`".contains(&byte);
        // A space that is escaped is part of a word.
        before(1).is_none_or(|byte| parts(byte) && (byte == b'\n' || before(2) != Some(b'\\')))
    }

    /// Behind `<`, before another one: a here-document, or a text by `<<<`.
    fn redirection(&mut self) {
        let script = self.text.get(self.command..self.at - 1).is_some_and(builtin::reads_script);
        self.at += 1;
        if self.text.get(self.at) == Some(&b'<') {
            self.at += 1;
            return;
        }
        let bare = self.text.get(self.at) == Some(&b'-');
        self.at += usize::from(bare);
        while matches!(self.text.get(self.at), Some(b' ' | b'\t')) {
            self.at += 1;
        }
        let begin = self.at;
        let Some((word, quoted)) = self.here_end() else { return };
        let named = (begin, self.at);
        let line = &self.text[self.at..];
        let line = &line[..line.iter().position(|byte| *byte == b'\n').unwrap_or(line.len())];
        let script = script || builtin::pipes_into_shell(line);
        self.pending.push(Pending { word, named, quoted, bare, script });
    }

    /// Reads the word that ends a here-document, and says whether any of it is quoted.
    fn here_end(&mut self) -> Option<(Vec<u8>, bool)> {
        let (mut word, mut quote, mut quoted) = (Vec::new(), None, false);
        while let Some(byte) = self.text.get(self.at).copied().filter(|byte| *byte != b'\n') {
            let next = self.text.get(self.at + 1).copied();
            match (quote, byte) {
                (None, byte) if byte.is_ascii_whitespace() || b";&|<>()".contains(&byte) => break,
                (_, MARK | NAME) => {
                    self.layout.spots.push(Some(Spot::Refused(Unsafe::HereEnd)));
                    word.push(byte);
                }
                (Some(quote_is), byte) if byte == quote_is => quote = None,
                (None, b'\'' | b'"') => (quote, quoted) = (Some(byte), true),
                (None, b'$') if matches!(next, Some(b'\'' | b'"')) => {}
                (None | Some(b'"'), b'\\') => {
                    quoted = true;
                    let kept =
                        quote.is_some() && !next.is_some_and(|next| b"$`\"\\".contains(&next));
                    if kept {
                        word.push(b'\\');
                    }
                    let special = |next: &u8| [MARK, NAME, b'\n'].contains(next);
                    if let Some(next) = next.filter(|next| !kept && !special(next)) {
                        word.push(next);
                        self.at += 1;
                    }
                }
                (_, byte) => word.push(byte),
            }
            self.at += 1;
        }
        let known = !word.iter().any(|byte| [MARK, NAME].contains(byte));
        ((quoted || !word.is_empty()) && known).then_some((word, quoted))
    }

    /// At the beginning of a line: goes behind the here-documents that begin here.
    fn here_documents(&mut self) {
        for pending in std::mem::take(&mut self.pending) {
            let begin = self.at;
            // Without its end it goes on to the end of the script, as shells have it.
            let mut end = self.text.len();
            let mut last = None;
            while self.at < self.text.len() {
                let rest = &self.text[self.at..];
                let length = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
                let line = &rest[..length];
                let tabs = if pending.bare { line.len() - without_tabs(line).len() } else { 0 };
                let from = self.at;
                self.at = (self.at + length + 1).min(self.text.len());
                if line[tabs..] == pending.word {
                    end = from;
                    last = Some(from + tabs);
                    break;
                }
            }
            self.here_document(&pending, (begin, end), last);
        }
    }

    /// A here-document between two places, and where the line is that ends it.
    fn here_document(&mut self, pending: &Pending, body: (usize, usize), last: Option<usize>) {
        /// So many may be in each other.
        const DEEPEST: usize = 8;
        let text = &self.text[body.0..body.1];
        let marks: Vec<u8> =
            text.iter().copied().filter(|byte| [MARK, NAME].contains(byte)).collect();
        let why = match pending {
            _ if self.lost => Some(Unsafe::Quotes),
            Pending { script: true, .. } => Some(Unsafe::Script),
            _ if self.ticks.depth > 0 => Some(Unsafe::Backticks),
            _ => None,
        };
        if let Some(why) = why {
            let spots = marks.iter().map(|byte| match byte {
                // Its name is what stays in quotes.
                &NAME if pending.quoted => None,
                _ => Some(Spot::Refused(why)),
            });
            self.layout.spots.extend(spots);
        } else if pending.quoted {
            self.layout.spots.extend(marks.iter().map(|_| Some(Spot::HereText)));
            if marks.contains(&MARK) {
                self.open_up(pending, body, last);
            } else {
                // It stays as it is, and so do names in it.
                let kept = self.layout.spots.len() - marks.len();
                self.layout.spots[kept..].fill(None);
            }
        } else if marks.is_empty() || self.depth == DEEPEST {
            self.layout.spots.extend(marks.iter().map(|_| Some(Spot::HereDocument)));
        } else {
            let mut within = Scanner::new(text, self.shell);
            within.depth = self.depth + 1;
            within.base = self.base + body.0;
            within.command = usize::MAX;
            within.open(Inside::Here);
            within.walk();
            self.layout.spots.append(&mut within.layout.spots);
            self.layout.edits.append(&mut within.layout.edits);
            self.numbers.append(&mut within.numbers);
        }
    }

    /// Lets values be expanded in a here-document, and nothing else: what is special is escaped.
    fn open_up(&mut self, pending: &Pending, body: (usize, usize), last: Option<usize>) {
        let plain = |byte: &u8| is_word(*byte) || *byte == b'-' || *byte == b'.';
        let mut word = String::from_utf8_lossy(&pending.word).into_owned();
        if word.is_empty() || !pending.word.iter().all(plain) {
            word = "ORCHESTRATE_END".to_owned();
            while self.text.windows(word.len()).any(|text| text == word.as_bytes()) {
                word.push('_');
            }
        }
        let (begin, end) = pending.named;
        self.edit(begin, end - begin, &word);
        for at in body.0..body.1 {
            if b"\\$`".contains(&self.text[at]) {
                self.edit(at, 0, "\\");
            }
        }
        if let Some(at) = last.filter(|_| word.as_bytes() != pending.word) {
            self.edit(at, pending.word.len(), &word);
        }
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Whether a name of a variable can begin with it.
fn is_first(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_'
}

/// Every opening parenthesis with its closing one.
fn pairs(text: &[u8]) -> HashMap<usize, usize> {
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

/// A line without the tabs before it.
fn without_tabs(line: &[u8]) -> &[u8] {
    &line[line.iter().position(|byte| *byte != b'\t').unwrap_or(line.len())..]
}
