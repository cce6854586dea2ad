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
}

impl Spot {
    pub fn name(&self) -> &'static str {
        match self {
            Spot::Double => "in double quotes",
            Spot::Single => "in single quotes",
            Spot::HereDocument | Spot::HereText(_) => "in a here-document",
            Spot::Comment => "in a comment",
            Spot::Arithmetic { .. } => "in arithmetic",
        }
    }
}

/// What the scanner is inside of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Inside {
    Parentheses,
    Backticks,
    Double,
    Arithmetic,
    /// Parentheses of its own in there.
    Nested,
}

/// Stands for a variable or reference in what is scanned.
const MARK: u8 = 0;

/// The references of a script that are no words of their own.
pub fn misplaced(script: &NodeText) -> Vec<(&NodeRef, Spot)> {
    let misplaced = |spot: &Spot| !matches!(spot, Spot::Arithmetic { .. });
    let refs = script.values().zip(spots(script)).filter_map(|(piece, spot)| match piece {
        Piece::Ref(reference) => Some((reference, spot.filter(misplaced)?)),
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
    inside: Vec<Inside>,
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
        Scanner { text, at: 0, inside, spots, closed: pairs(text), last_lines, pending }
    }

    fn scan(mut self) -> Vec<Option<Spot>> {
        while let Some(byte) = self.text.get(self.at).copied() {
            let double = self.inside.last() == Some(&Inside::Double);
            let next = self.text.get(self.at + 1).copied();
            self.at += 1;
            match byte {
                MARK => {
                    let spot = self.spot(double);
                    self.spots.push(spot);
                }
                b'\\' => {
                    // What is escaped is no sign; a reference is one all the same.
                    self.at += usize::from(next.is_some_and(|byte| byte != MARK));
                }
                b'"' if double => _ = self.inside.pop(),
                b'"' => self.inside.push(Inside::Double),
                b'`' if self.inside.last() == Some(&Inside::Backticks) => _ = self.inside.pop(),
                b'`' => self.inside.push(Inside::Backticks),
                b'$' if next == Some(b'\'') && !double => {
                    self.at += 1;
                    self.skip_escaped();
                }
                b'$' if next == Some(b'(') && self.is_arithmetic(self.at) => {
                    self.at += 2;
                    self.inside.push(Inside::Arithmetic);
                }
                b'$' if next == Some(b'(') => {
                    self.at += 1;
                    self.inside.push(Inside::Parentheses);
                }
                _ if double => {}
                b'\'' => self.skip_to(b'\'', Spot::Single),
                b'(' if self.is_arithmetic(self.at - 1) => {
                    self.at += 1;
                    self.inside.push(Inside::Arithmetic);
                }
                b'(' if self.is_reckoned() => self.inside.push(Inside::Nested),
                b'(' => self.inside.push(Inside::Parentheses),
                b')' if self.inside.last() == Some(&Inside::Arithmetic) => {
                    self.at += usize::from(next == Some(b')'));
                    self.inside.pop();
                }
                b')' if self.inside.last() == Some(&Inside::Parentheses)
                    || self.inside.last() == Some(&Inside::Nested) =>
                {
                    self.inside.pop();
                }
                b'#' if self.begins_word() => {
                    self.skip_to(b'\n', Spot::Comment);
                    self.here_documents();
                }
                b'<' if next == Some(b'<') => self.redirection(),
                b'\n' => self.here_documents(),
                _ => {}
            }
        }
        self.spots
    }

    /// Whether the parenthesis at a place and the next one are closed as a pair, too.
    fn is_arithmetic(&self, at: usize) -> bool {
        let closed = |at: usize| self.closed.get(&at).copied();
        self.text.get(at..at + 2) == Some(b"((")
            && closed(at).is_some_and(|end| closed(at + 1) == Some(end - 1))
    }

    /// Whether what stands at the cursor is an arithmetic expression.
    fn is_reckoned(&self) -> bool {
        let around = self.inside.iter().rev().find(|inside| **inside != Inside::Double);
        matches!(around, Some(Inside::Arithmetic | Inside::Nested))
    }

    /// What a mark before the cursor is in.
    fn spot(&self, double: bool) -> Option<Spot> {
        if self.is_reckoned() || self.is_compared() {
            return Some(Spot::Arithmetic { quoted: double });
        }
        double.then_some(Spot::Double)
    }

    /// Whether the mark before the cursor is compared as a number in `[[ … ]]`.
    fn is_compared(&self) -> bool {
        const NEAR: usize = 256;
        let part = |byte: &u8| b" \t\"".contains(byte);
        let before = &self.text[self.at.saturating_sub(NEAR)..self.at - 1];
        let after = &self.text[self.at..self.text.len().min(self.at + NEAR)];
        let skip = after.iter().take_while(|byte| part(byte)).count();
        let end = before.len() - before.iter().rev().take_while(|byte| part(byte)).count();
        let is = |word: &[u8]| COMPARISONS.iter().any(|one| word == one.as_bytes());
        let near = end.checked_sub(3).is_some_and(|from| is(&before[from..end]))
            || after.get(skip..skip + 3).is_some_and(is);
        let last = |sign: &[u8]| before.windows(2).rposition(|two| two == sign);
        near && last(b"[[").is_some_and(|open| last(b"]]").is_none_or(|close| close < open))
    }

    /// Goes behind the next `end`; what is referred to until there is in that spot.
    fn skip_to(&mut self, end: u8, spot: Spot) {
        while let Some(byte) = self.text.get(self.at).copied() {
            self.at += 1;
            match byte {
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
                MARK => self.spots.push(Some(Spot::Single)),
                b'\\' if self.text.get(self.at) != Some(&MARK) => self.at += 1,
                b'\'' => return,
                _ => {}
            }
        }
    }

    /// Whether the byte before the cursor is the first of a word.
    fn begins_word(&self) -> bool {
        let before = |back: usize| self.at.checked_sub(back).map(|at| self.text[at]);
        let parts = |byte: u8| byte.is_ascii_whitespace() || b";&|(".contains(&byte);
        // A space that is escaped is part of a word.
        before(2).is_none_or(|byte| parts(byte) && (byte == b'\n' || before(3) != Some(b'\\')))
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
            let spot = match quoted {
                true => Spot::HereText(String::from_utf8_lossy(word).into_owned()),
                false => Spot::HereDocument,
            };
            while self.at < self.text.len() {
                let rest = &self.text[self.at..];
                let end = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
                let line = &rest[..end];
                let marks = line.iter().filter(|byte| **byte == MARK);
                self.spots.extend(marks.map(|_| Some(spot.clone())));
                self.at = (self.at + end + 1).min(self.text.len());
                if bare(line) == word {
                    break;
                }
            }
        }
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
        let found = found.map(|(reference, spot)| {
            let spot = match spot {
                Spot::Double => 'D',
                Spot::Single => 'S',
                Spot::HereDocument => 'H',
                Spot::HereText(_) => 'T',
                Spot::Comment => 'C',
                Spot::Arithmetic { .. } => 'A',
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
        const SCRAPS: [&str; 20] = [
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
        for scrap in ["<<A\n", "<<EOF\nEOF\n", "\"$(", "`", "(", "'", "#\n", "<<"] {
            let script = scrap.repeat(40_000) + "$a.output";
            misplaced(&NodeText::parse(&script));
        }
        let many: String = (0..20_000).map(|n| format!("cat <<E{n}\n")).collect();
        misplaced(&NodeText::parse(&many));
    }
}
