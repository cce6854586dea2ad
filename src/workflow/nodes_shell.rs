//! Where in a shell script references stand.
//!
//! What a reference stands for comes to the script in a variable, and an expansion of that variable
//! stands where the reference stood: as one quoted word where the shell reads words, and as the
//! author's own quotes need it elsewhere. In a comment nothing is put in, and nothing needs to
//! be there: it is what people read.
//!
//! The reading of the shell here is a rough one: quotes, substitutions, comments and
//! here-documents. Where it is wrong, a value may be split into words; it is never read as script.

use std::collections::HashMap;

use super::nodes_builtin::{self, Reading};
use crate::template::nodes::{NodeRef, NodeText, Piece};
use crate::template::spell;

/// Where a reference is no word of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spot {
    Double,
    Single,
    HereDocument,
    /// A here-document in which nothing is expanded, up to this line.
    HereText(String),
    Comment,
    /// What bash reckons with, and executes commands in; whether in double quotes.
    Arithmetic {
        quoted: bool,
    },
    /// Where bash takes a word for the name of a variable.
    Name,
}

impl Spot {
    pub fn name(&self) -> &'static str {
        match self {
            Spot::Double => "in double quotes",
            Spot::Single => "in single quotes",
            Spot::HereDocument | Spot::HereText(_) => "in a here-document",
            Spot::Comment => "in a comment",
            Spot::Arithmetic { .. } => "in arithmetic",
            Spot::Name => "where a variable is named",
        }
    }
}

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
    /// Where the command begins that goes on behind it; nothing, where another one does.
    back: Option<usize>,
}

/// Stands for a variable or reference in what is scanned.
const MARK: u8 = 0;

/// The references of a script that are no words of their own, each with where it begins.
pub fn misplaced(script: &NodeText) -> Vec<(usize, &NodeRef, Spot)> {
    let values = script.placed().filter(|(_, piece)| !matches!(piece, Piece::Text(_)));
    let refs = values.zip(spots(script)).filter_map(|((at, piece), spot)| match piece {
        Piece::Ref(reference) => Some((at, reference, spot?)),
        _ => None,
    });
    refs.collect()
}

/// Where each variable and reference of a script stands; nothing, where it is a word of its own.
pub fn spots(script: &NodeText) -> Vec<Option<Spot>> {
    Scanner::new(&sketch(script)).scan()
}

/// A script whose comments refer to nothing.
pub fn without_comments(script: NodeText) -> NodeText {
    let spots = spots(&script);
    script.with_plain(|index| spots.get(index) == Some(&Some(Spot::Comment)))
}

/// Where the values of a script stand that is a spell, rendered; nothing, where one is a word of
/// its own.
pub fn spots_of_values(pieces: &[spell::Piece]) -> Vec<Option<Spot>> {
    let mut sketch = Vec::new();
    for piece in pieces {
        match piece {
            spell::Piece::Text(text) => sketch.extend(text.bytes().map(unmarked)),
            spell::Piece::Value(_) => sketch.push(MARK),
        }
    }
    Scanner::new(&sketch).scan()
}

fn unmarked(byte: u8) -> u8 {
    if byte == MARK { b' ' } else { byte }
}

/// A script with a mark for each variable and reference.
fn sketch(script: &NodeText) -> Vec<u8> {
    let mut sketch = Vec::new();
    for piece in script.pieces() {
        match piece {
            Piece::Text(text) => sketch.extend(text.bytes().map(unmarked)),
            Piece::Var(_) | Piece::Ref(_) => sketch.push(MARK),
        }
    }
    sketch
}

struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
    inside: Vec<Frame>,
    /// Where the command begins that the cursor is in; beyond the end, where it is in none.
    command: usize,
    /// How many here-documents this one is in.
    depth: usize,
    /// One for each mark so far.
    spots: Vec<Option<Spot>>,
    /// Where the parenthesis is closed that is opened here, as far as brackets alone tell.
    closed: HashMap<usize, usize>,
    /// Where the last line of each text begins, without the tabs before it.
    last_lines: HashMap<&'a [u8], usize>,
    /// The here-documents that begin after this line, and whether nothing is expanded in them.
    pending: Vec<(&'a [u8], bool)>,
}

impl<'a> Scanner<'a> {
    fn new(text: &'a [u8]) -> Self {
        let mut last_lines = HashMap::new();
        let mut begin = 0;
        for line in text.split(|byte| *byte == b'\n') {
            last_lines.insert(bare(line), begin);
            begin += line.len() + 1;
        }
        let (inside, spots, pending) = (Vec::new(), Vec::new(), Vec::new());
        let (at, command, depth) = (0, 0, 0);
        Scanner {
            text,
            at,
            inside,
            command,
            depth,
            spots,
            closed: pairs(text),
            last_lines,
            pending,
        }
    }

    fn scan(mut self) -> Vec<Option<Spot>> {
        while let Some(byte) = self.text.get(self.at).copied() {
            let last = self.inside.last().map(|frame| frame.inside);
            let quoted = self.inside.last().is_some_and(|frame| frame.quoted);
            let next = self.text.get(self.at + 1).copied();
            self.at += 1;
            match byte {
                MARK => {
                    let here = self.inside.len() == 1 && last == Some(Inside::Here);
                    let plain = if here { Spot::HereDocument } else { Spot::Double };
                    let spot = self.spot(quoted.then_some(plain));
                    self.spots.push(spot);
                }
                b'\\' => {
                    // What is escaped is no sign; a reference is one all the same.
                    self.at += usize::from(next.is_some_and(|byte| byte != MARK));
                }
                b'"' if last == Some(Inside::Double) => self.close(),
                b'"' if last == Some(Inside::Here) => {}
                b'"' => self.open(Inside::Double),
                b'`' if last == Some(Inside::Backticks) => self.close(),
                b'`' => self.open_command(Inside::Backticks, Some(self.command)),
                b'$' if next == Some(b'\'') && !quoted => {
                    self.at += 1;
                    self.skip_escaped();
                }
                b'$' if next == Some(b'(') && self.is_arithmetic(self.at) => {
                    self.at += 2;
                    self.open(Inside::Arithmetic);
                }
                b'$' if next == Some(b'(') => {
                    self.at += 1;
                    self.open_command(Inside::Parentheses, Some(self.command));
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
                _ if quoted => {}
                b'\'' => self.skip_to(b'\'', &Spot::Single),
                b'(' if self.is_arithmetic(self.at - 1) => {
                    self.at += 1;
                    self.open(Inside::Arithmetic);
                }
                b'(' if self.is_reckoned() => self.open(Inside::Nested),
                b'(' if last == Some(Inside::Brace) => {}
                // A list is part of its command.
                b'(' if self.text[..self.at - 1].ends_with(b"=") => self.open(Inside::List),
                b'(' => self.open_command(Inside::Parentheses, None),
                b')' if last == Some(Inside::Arithmetic) => {
                    self.at += usize::from(next == Some(b')'));
                    self.close();
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
                    self.skip_to(b'\n', &Spot::Comment);
                    self.here_documents();
                    self.command = self.at;
                }
                b'<' if next == Some(b'<') => self.redirection(),
                b'\n' => {
                    self.here_documents();
                    self.ends_command();
                }
                b'&' if next == Some(b'>') || self.text[..self.at - 1].ends_with(b">") => {}
                b';' | b'|' | b'&' | b')' => self.ends_command(),
                _ => {}
            }
        }
        self.spots
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
        let (quoted, reckoned) = match inside {
            Inside::Parentheses | Inside::Backticks | Inside::List => (false, false),
            Inside::Double | Inside::Here => (true, was_reckoned),
            Inside::Brace => (was_quoted, was_reckoned),
            Inside::Slice | Inside::Subscript => (was_quoted, true),
            Inside::Arithmetic | Inside::Nested | Inside::Bracket => (false, true),
        };
        self.inside.push(Frame { inside, quoted, reckoned, back });
    }

    fn close(&mut self) {
        if let Some(frame) = self.inside.pop() {
            self.command = frame.back.unwrap_or(self.at);
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

    /// Behind the dollar of `${`.
    fn expansion(&mut self) {
        self.at += 1;
        self.open(Inside::Brace);
        let of = |at: usize| self.text.get(at).copied();
        let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        let mut at = self.at + usize::from(matches!(of(self.at), Some(b'!' | b'#')));
        if matches!(of(at), Some(b'@' | b'*')) {
            at += 1;
        }
        while of(at).is_some_and(word) {
            at += 1;
        }
        self.at = at;
        self.part();
    }

    /// Behind the name or the subscript of an expansion: what part of it is meant.
    fn part(&mut self) {
        if self.inside.last().map(|frame| frame.inside) != Some(Inside::Brace) {
            return;
        }
        let part = match self.text.get(self.at..).unwrap_or_default() {
            [b'[', ..] => Inside::Subscript,
            [b':', after, ..] if !b"-=?+".contains(after) => Inside::Slice,
            _ => return,
        };
        self.at += 1;
        self.open(part);
    }

    /// Whether the bracket before the cursor says which element of a list is set.
    fn is_element(&self) -> bool {
        const NEAR: usize = 256;
        let open = self.at - 1;
        let word = |byte: &&u8| byte.is_ascii_alphanumeric() || **byte == b'_';
        let name = self.text[..open].iter().rev().take(NEAR).take_while(word).count();
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
            Some(command) => self.tested().or_else(|| nodes_builtin::read_as(command)),
        };
        match reading {
            Some(Reading::Number) => Some(Spot::Arithmetic { quoted }),
            Some(Reading::Name) => Some(Spot::Name),
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
        let words = nodes_builtin::words(&before[begin..]);
        let (current, words) = words.split_last()?;
        if words.last().is_some_and(|test| nodes_builtin::is_of_variables(test)) {
            return Some(nodes_builtin::named(current));
        }
        let compares = |word: &[u8]| COMPARISONS.iter().any(|one| word == one.as_bytes());
        let compared = words.iter().any(|word| compares(word.as_bytes()))
            || after.split(u8::is_ascii_whitespace).any(compares);
        compared.then_some(Reading::Number)
    }

    /// Goes behind the next `end`; what is referred to until there is in that spot.
    fn skip_to(&mut self, end: u8, spot: &Spot) {
        while let Some(byte) = self.text.get(self.at).copied() {
            self.at += 1;
            match byte {
                MARK if *spot == Spot::Single => self.spots.push(self.spot(Some(Spot::Single))),
                MARK => self.spots.push(Some(spot.clone())),
                byte if byte == end => return,
                _ => {}
            }
        }
    }

    /// Goes behind the next single quote that is not escaped.
    fn skip_escaped(&mut self) {
        while let Some(byte) = self.text.get(self.at).copied() {
            self.at += 1;
            match byte {
                MARK => self.spots.push(self.spot(Some(Spot::Single))),
                b'\\' if self.text.get(self.at) != Some(&MARK) => self.at += 1,
                b'\'' => return,
                _ => {}
            }
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
        self.at += 1;
        let rest = &self.text[self.at..];
        if rest.first() == Some(&b'<') {
            self.at += 1;
            return;
        }
        let rest = rest.strip_prefix(b"-").unwrap_or(rest);
        let rest = bare(rest);
        let rest = &rest[rest.iter().position(|byte| *byte != b' ').unwrap_or(rest.len())..];
        let quote = rest.first().copied().filter(|byte| b"'\"".contains(byte));
        let word = if quote.is_some() { &rest[1..] } else { rest };
        let ends = |byte: &u8| match quote {
            Some(quote) => *byte == quote || *byte == b'\n',
            None => !byte.is_ascii_alphanumeric() && *byte != b'_',
        };
        let word = &word[..word.iter().position(ends).unwrap_or(word.len())];
        // A shift by a number is none, nor is one whose end never comes.
        let named = quote.is_some() || word.first().is_some_and(|byte| !byte.is_ascii_digit());
        let ends = self.last_lines.get(word).is_some_and(|line| *line > self.at);
        if named && ends && !word.is_empty() {
            self.at = self.text.len() - rest.len() + usize::from(quote.is_some()) * 2 + word.len();
            self.at = self.at.min(self.text.len());
            self.pending.push((word, quote.is_some()));
        }
    }

    /// At the beginning of a line: goes behind the here-documents that begin here.
    fn here_documents(&mut self) {
        for (word, quoted) in std::mem::take(&mut self.pending) {
            let begin = self.at;
            let text = Spot::HereText(String::from_utf8_lossy(word).into_owned());
            while self.at < self.text.len() {
                let rest = &self.text[self.at..];
                let end = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
                let line = &rest[..end];
                if quoted {
                    let marks = line.iter().filter(|byte| **byte == MARK);
                    self.spots.extend(marks.map(|_| Some(text.clone())));
                }
                self.at = (self.at + end + 1).min(self.text.len());
                if bare(line) == word {
                    break;
                }
            }
            if !quoted {
                self.here_document(&self.text[begin..self.at]);
            }
        }
    }

    /// A here-document in which values are expanded.
    fn here_document(&mut self, text: &'a [u8]) {
        /// So many may be in each other.
        const DEEPEST: usize = 8;
        let marks = text.iter().filter(|byte| **byte == MARK).count();
        if marks == 0 || self.depth == DEEPEST {
            self.spots.extend((0..marks).map(|_| Some(Spot::HereDocument)));
            return;
        }
        let mut within = Scanner::new(text);
        within.depth = self.depth + 1;
        within.command = usize::MAX;
        within.open(Inside::Here);
        self.spots.extend(within.scan());
    }
}

/// How numbers are compared in `[[ … ]]`.
const COMPARISONS: [&str; 6] = ["-eq", "-ne", "-lt", "-le", "-gt", "-ge"];

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
fn bare(line: &[u8]) -> &[u8] {
    &line[line.iter().position(|byte| *byte != b'\t').unwrap_or(line.len())..]
}

/// How many lines of a script are this one, tabs before it left out.
pub fn lines_like(script: &str, line: &str) -> usize {
    script.lines().filter(|other| other.trim_start_matches('\t') == line).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// The references that are misplaced, each with the first letter of its spot.
    fn misplaced_in(script: &str) -> String {
        let text = NodeText::parse(script);
        let found = misplaced(&text).into_iter();
        let found = found.map(|(_, reference, spot)| {
            let spot = match spot {
                Spot::Double => 'D',
                Spot::Single => 'S',
                Spot::HereDocument => 'H',
                Spot::HereText(_) => 'T',
                Spot::Comment => 'C',
                Spot::Arithmetic { .. } => 'A',
                Spot::Name => 'N',
            };
            format!("{}{spot}", reference.node)
        });
        found.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn references_in_quotes_are_found() {
        for (script, wanted) in [
            ("echo $a.output", ""),
            ("v=$a.output; echo \"$v\" $b.output", ""),
            ("echo \"$a.output\"", "aD"),
            ("echo \"it is: $a.output.x!\" $b.output", "aD"),
            ("echo '$a.output'", "aS"),
            ("echo \\\"$a.output", ""),
            ("echo \"a \\\" $a.output\"", "aD"),
            ("echo \"$(cat $a.output)\" \"$b.output\"", "bD"),
            ("echo \"$(echo \"$a.output\")\" $b.output", "aD"),
            ("echo \"`cat $a.output`\" $b.output", ""),
            ("echo \"it's\" $a.output", ""),
            ("(cd x; echo $a.output) \"$b.output\"", "bD"),
            ("case $a.output in x) echo \"$b.output\";; esac", "bD"),
            ("echo $ARGUMENTS \"$ARGUMENTS\" $a.output", ""),
            ("echo a#\"b $a.output", "aD"),
            ("x=${y#*/} z=\"$a.output\"", "aD"),
            ("echo $'it\\'s' $a.output $'$b.output'", "bS"),
            ("echo x\\ #\"$a.output\"", "aD"),
        ] {
            assert_eq!(misplaced_in(script), wanted, "{script}");
        }
    }

    #[test]
    fn what_is_reckoned_with_is_found() {
        let found = |script: &str| -> String {
            let letter = |spot: Option<Spot>| match spot {
                None => 'w',
                Some(Spot::Arithmetic { quoted: true }) => 'Q',
                Some(Spot::Arithmetic { quoted: false }) => 'A',
                Some(Spot::Name) => 'N',
                Some(_) => 'x',
            };
            spots(&NodeText::parse(script)).into_iter().map(letter).collect()
        };
        for (script, wanted) in [
            ("echo $(( $a.output + 1 )) $b.output", "Aw"),
            ("echo \"$(( ($a.output) * 2 ))\" \"$b.output\"", "Ax"),
            ("echo $(( \"$a.output\" )) $b.output", "Qw"),
            ("(( $a.output > 3 )) && echo $b.output", "Aw"),
            ("((n += $a.output))\n(echo $b.output)", "Aw"),
            ("echo $((echo $a.output) | cat) $b.output", "ww"),
            ("((cd x; ls $a.output) ; echo $b.output)", "ww"),
            ("echo $(( $(echo $a.output) + $b.output ))", "wA"),
            ("[[ $a.output -gt 5 ]] && echo $b.output", "Aw"),
            ("[[ -n $a.output && 5 -le \"$b.output\" ]]; echo $c.output", "wQw"),
            ("[[ x ]]; [ $a.output -gt 5 ]", "w"),
            ("echo $(( 1 + 2", ""),
            ("echo $[ $a.output + 1 ] \"$[ n[$b.output] ]\" $c.output", "AAw"),
            ("let n=$a.output+1; echo $b.output", "Aw"),
            ("let 'n=$a.output' \"m=$b.output\"\necho $c.output", "QQw"),
            ("echo ${s:$a.output} \"${s:0:$b.output}\" ${s:-$c.output} $d.output", "AQww"),
            ("echo ${n[$a.output]} ${#n[@]} ${n[@]:$b.output:1} $c.output", "AAw"),
            ("echo $(( ${x:-$a.output} )) \"${x:-$b.output}\"", "Ax"),
            ("n[$a.output]=1 m=([$b.output]+=x $c.output) k[1]=$d.output", "AAww"),
            ("[ $a.output = x ]; ls x[$b.output] \"n[$c.output]=1\"", "wwx"),
            ("f() { local -i n=$a.output; }\ncase x in y) let n=$b.output ;; esac", "AA"),
            ("declare -ai n=(1 $a.output) && echo $b.output", "Aw"),
            ("x=$(let n=$a.output; echo $b.output) y=$c.output", "Aww"),
            ("read -r x <<< $a.output 2>&1; read $b.output; printf -v $c.output x", "wNN"),
            ("[[ -v $a.output || \"1$b.output\" -eq 1 ]] && test -v 'n[$c.output]'", "NQQ"),
            ("cat <<E\n$(( $a.output )) $(echo $b.output) let $c.output\nE\n", "Awx"),
            ("echo \"${x%(*}\" ${x/ #/} ${y%(*} $a.output \"$b.output\"", "wx"),
            ("echo a; echo let $a.output", "w"),
        ] {
            assert_eq!(found(script), wanted, "{script}");
        }
    }

    #[test]
    fn comments_and_here_documents_are_no_place_either() {
        for (script, wanted) in [
            ("# don't $a.output\necho $b.output", "aC"),
            ("echo x # isn't it\necho $a.output", ""),
            ("cat <<EOF\n$a.output's\nEOF\necho $b.output", "aH"),
            ("cat <<-'END' > x; echo $c.output\n\t\"$a.output\n\tEND\necho $b.output", "aT"),
            ("cat <<A <<B\n$a.output\nA\n$b.output\nB\n$c.output", "aH bH"),
            ("echo $((1<<2)) $((x<<y)) $a.output\necho \"$b.output\"", "bD"),
            ("cat <<<$a.output\necho $b.output", ""),
            ("cat <<EOF\n$a.output", ""),
            ("cat <<EOF # it's\n$a.output\nEOF\n$b.output", "aH"),
        ] {
            assert_eq!(misplaced_in(script), wanted, "{script}");
        }
    }

    #[test]
    fn a_comment_refers_to_nothing() {
        let script = "# uses $a.output.f\necho $b.output # and $c.output\necho \"$d.output\"";
        let text = without_comments(NodeText::parse(script));
        let refs: Vec<_> = text.refs().map(|reference| reference.node.as_str()).collect();
        assert_eq!(refs, ["b", "d"]);
        assert_eq!(text.source(), script);
    }

    #[test]
    fn whatever_is_written_can_be_scanned() {
        const SCRAPS: [&str; 27] = [
            "${",
            "$[",
            "x[",
            "]=",
            "}",
            "[[",
            "let ",
            "\"",
            "'",
            "`",
            "$(",
            ")",
            "(",
            "\\",
            "#",
            " ",
            "\n",
            "<<",
            "<<-",
            "EOF",
            "\t",
            "$a.output",
            "$b.output",
            "é",
            "\0",
            "<",
            "''",
        ];
        let mut random = Random::new(3);
        for _ in 0..20_000 {
            let script: String =
                (0..random.below(24)).map(|_| SCRAPS[random.below(SCRAPS.len())]).collect();
            let text = NodeText::parse(&script);
            assert_eq!(spots(&text).len(), text.values().count(), "{script}");
        }
    }

    #[test]
    fn long_scripts_take_no_long_time() {
        for scrap in [
            "${",
            "$[",
            "${x[",
            "x[1]=",
            "<<A\n",
            "<<EOF\nEOF\n",
            "\"$(",
            "`",
            "(",
            "'",
            "#\n",
            "<<",
        ] {
            let script = scrap.repeat(40_000) + "$a.output";
            misplaced(&NodeText::parse(&script));
        }
        misplaced(&NodeText::parse(&"let n=$a.output+".repeat(2_000)));
        let many: String = (0..20_000).map(|n| format!("cat <<E{n}\n")).collect();
        misplaced(&NodeText::parse(&many));
    }
}
