//! The reading of a shell script, byte by byte, with a mark in place of each value.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::rc::Rc;

use super::builtin::{self, Reading};
use super::command::{Command, End, Source};
use super::outlet::{self, Goes, Reader};
use super::{Edit, Layout, MARK, NAME, Shell, Spot, Unsafe};
use crate::template::nodes::Var;

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
    /// Which one of a map, `declare -A`: a text, as it is.
    Key,
    /// `${ … }`.
    Brace,
    /// Which part of a text: `${a:…}`.
    Slice,
    /// `[[ … ]]`.
    Test,
}

/// One thing that the scanner is inside of, and what that means for what stands there.
#[derive(Clone, Copy)]
struct Frame {
    inside: Inside,
    /// Whether in double quotes.
    quoted: bool,
    /// Whether an arithmetic expression.
    reckoned: bool,
    /// Whether a word of `[[ … ]]`.
    tested: bool,
    /// Whether it may be arithmetic, for all that can be told.
    doubtful: bool,
    /// Whether it is an expansion that takes a pattern, in which single quotes are quotes.
    pattern: bool,
    /// How many `case` are open in it, whose patterns end with a parenthesis.
    cases: usize,
    /// Where it begins, behind what opens it.
    begin: usize,
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

/// What stands between two `&&` or `||` of `[[ … ]]`.
#[derive(Default)]
struct Clause {
    begin: usize,
    /// Whether numbers are compared in it.
    compared: bool,
    /// The values in it, and whether they are quoted; the variables in it.
    marks: Vec<(usize, bool)>,
    names: Vec<String>,
}

/// How a value comes to a variable.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Whole,
    /// By a command that declares the variable.
    Declared,
    /// Printed and read again, word for word.
    Printed,
    /// By its name, which is what the variable is set to: arithmetic looks it up.
    Named,
    /// Through another program, which may make anything of it.
    Program,
}

/// A value that variables are set to.
struct Set {
    mark: usize,
    targets: Vec<String>,
    plain: Option<Spot>,
    way: Way,
}

/// A variable that others are set to.
struct Flow {
    name: String,
    targets: Vec<String>,
    way: Way,
}

/// What becomes of what a command prints.
#[derive(Default)]
struct Outlet {
    reading: Option<Reading>,
    targets: Vec<String>,
    /// Whether it is a word of `[[ … ]]`.
    tested: bool,
}

impl Outlet {
    fn of(reader: Reader) -> Outlet {
        match reader {
            Reader::Script => Outlet { reading: Some(Reading::Script), ..Outlet::default() },
            Reader::Names(targets) => Outlet { targets, ..Outlet::default() },
        }
    }
}

/// What is known of a script once it was gone through: where what stands around a command ends,
/// and what is behind it.
#[derive(Default)]
struct Outline {
    groups: Vec<Group>,
    /// The numbers of groups, by where they begin and behind where they end.
    begins: HashMap<usize, usize>,
    ends: HashMap<usize, usize>,
    /// Where the here-documents end that begin here.
    documents: HashMap<usize, usize>,
}

/// Commands that are one: `(…)`, `{ …; }`, `if … fi`, `while … done`.
struct Group {
    /// Behind what closes it; nothing, where nothing does.
    end: Option<usize>,
    /// Whether a command in it reads what the group is given as script.
    script: bool,
}

/// A group that the cursor is in.
struct Open {
    number: usize,
    begin: usize,
    closes: &'static [u8],
    /// How many frames it is in.
    level: usize,
}

/// What opens a group where a command begins, and what closes it.
const GROUPS: [(&[u8], &[u8]); 7] = [
    (b"{", b"}"),
    (b"if", b"fi"),
    (b"while", b"done"),
    (b"until", b"done"),
    (b"for", b"done"),
    (b"select", b"done"),
    (b"case", b"esac"),
];

pub(super) struct Scanner<'a> {
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
    /// The `[[ … ]]` around the cursor.
    tests: Vec<Clause>,
    /// Variables whose values are more than values somewhere: bash executes commands in them.
    read: BTreeMap<String, Reading>,
    /// Variables that are lists.
    lists: BTreeSet<String>,
    /// Variables that are maps, each with where it is one.
    maps: BTreeMap<String, Vec<Range<usize>>>,
    functions: BTreeSet<String>,
    /// Whether what a command prints may go anywhere but out.
    hands_on: bool,
    flows: Vec<Flow>,
    set: Vec<Set>,
    /// Whether it only goes through the script, to know what is behind a place.
    outlining: bool,
    outline: Outline,
    /// How many groups were opened.
    opened: usize,
    open: Vec<Open>,
    /// Commands by where they begin, as far as they were read.
    begun: RefCell<HashMap<usize, Command>>,
    /// Commands by where they begin, with where they end.
    whole: RefCell<HashMap<usize, Rc<(Command, End)>>>,
}

impl<'a> Scanner<'a> {
    pub(super) fn new(text: &'a [u8], shell: Shell) -> Self {
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
            tests: Vec::new(),
            read: builtin::numbers(text)
                .into_iter()
                .chain(builtin::INTEGERS.map(str::to_owned))
                .chain([RECKONED.to_owned()])
                .map(|name| (name, Reading::Number))
                .collect(),
            lists: builtin::lists(text),
            maps: maps(text),
            functions: builtin::functions(text),
            hands_on: text.iter().any(|byte| b"|(`".contains(byte)),
            flows: by_name(text),
            set: Vec::new(),
            outlining: false,
            outline: Outline::default(),
            opened: 0,
            open: Vec::new(),
            begun: RefCell::default(),
            whole: RefCell::default(),
        }
    }

    pub(super) fn scan(mut self) -> Layout {
        self.read();
        self.settle();
        self.layout.edits.sort_by_key(|edit| edit.at);
        self.layout
    }

    /// What is read as more than a value anywhere is so where it is set, however many variables
    /// are in between.
    fn settle(&mut self) {
        let mut left: Vec<String> = self.read.keys().cloned().collect();
        let mut from: HashMap<&str, Vec<(&str, Way)>> = HashMap::new();
        for Flow { name, targets, way } in &self.flows {
            for target in targets {
                from.entry(target).or_default().push((name, *way));
                if *way == Way::Declared && self.lists.contains(target) {
                    self.read.entry(name.clone()).or_insert(Reading::List);
                    left.push(name.clone());
                }
            }
        }
        while let Some(target) = left.pop() {
            let Some(reading) = self.read.get(&target).copied() else { continue };
            for (name, way) in from.get(target.as_str()).into_iter().flatten() {
                let Some(reading) = asked_of(reading, *way) else { continue };
                if self.read.get(*name).is_none_or(|known| *known < reading) {
                    self.read.insert((*name).to_owned(), reading);
                    left.push((*name).to_owned());
                }
            }
        }
        let passed = self.passed(&from);
        for Set { mark, targets, plain, way } in &self.set {
            let read = |name: &String| {
                let read = self.read.get(name).and_then(|read| asked_of(*read, *way));
                let list = *way == Way::Declared && self.lists.contains(name);
                read.max(list.then_some(Reading::List))
            };
            if let Some(reading) = targets.iter().filter_map(read).max() {
                self.layout.spots[*mark] = Some(Spot::of(reading, *plain));
            } else if targets.iter().any(|name| self.is_passed(name, *way, &passed)) {
                self.layout.passed.insert(*mark);
            }
        }
        let ours =
            self.read.iter().filter_map(|(name, reading)| Some((Var::named(name)?, *reading)));
        self.layout.ours = ours.collect();
        let passed = passed.iter().filter(|name| !self.read.contains_key(**name));
        self.layout.ours_passed = passed.filter_map(|name| Var::named(name)).collect();
    }

    /// The variables that are reckoned with only after another program had them; `from` says what
    /// each one is set to.
    fn passed<'f>(&self, from: &HashMap<&'f str, Vec<(&'f str, Way)>>) -> BTreeSet<&'f str> {
        let mut passed = BTreeSet::new();
        let mut left: Vec<&str> = from.keys().copied().collect();
        while let Some(target) = left.pop() {
            for (name, way) in from.get(target).into_iter().flatten() {
                if self.is_passed(target, *way, &passed) && passed.insert(name) {
                    left.push(name);
                }
            }
        }
        passed
    }

    /// Whether what comes to a variable in this way is reckoned with after a program had it.
    fn is_passed(&self, target: &str, way: Way, passed: &BTreeSet<&str>) -> bool {
        let reckoned = matches!(self.read.get(target), Some(Reading::Number | Reading::Numbers));
        passed.contains(target) || (way == Way::Program && reckoned)
    }

    /// Goes through the script, twice if what is behind a place may matter for what stands there.
    fn read(&mut self) {
        if self.text.iter().any(|byte| b"|<>".contains(byte)) {
            let (command, inside) = (self.command, self.inside.clone());
            self.outlining = true;
            self.walk();
            self.outlining = false;
            (self.at, self.command, self.inside) = (0, command, inside);
            (self.layout, self.ticks) = Default::default();
            (self.lost, self.opened) = (false, 0);
            self.pending.clear();
            self.tests.clear();
            self.open.clear();
            self.whole.get_mut().clear();
        }
        self.walk();
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
                b'$' if next.is_some_and(|next| is_word(next) || b"@*".contains(&next)) => {
                    self.variable();
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
                b']' if matches!(last, Some(Inside::Bracket | Inside::Subscript | Inside::Key)) => {
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
                _ if self.is_tested() && is_first(byte) => self.tested_name(),
                _ if quoted => {}
                b'\'' => self.skip_to(b'\'', Spot::Single),
                b'[' if next == Some(b'[') && self.begins_test() => {
                    self.at += 1;
                    self.open(Inside::Test);
                    self.tests.push(Clause { begin: self.at, ..Clause::default() });
                }
                b']' if last == Some(Inside::Test)
                    && next == Some(b']')
                    && self.begins_word(self.at - 1) =>
                {
                    self.at += 1;
                    self.ends_clause();
                    self.tests.pop();
                    self.close();
                }
                b'&' | b'|' if last == Some(Inside::Test) && next == Some(byte) => {
                    self.at += 1;
                    self.ends_clause();
                }
                b'-' if last == Some(Inside::Test) => self.comparison(),
                b'(' | b')' | b'<' | b'>' | b'&' | b'|' if last == Some(Inside::Test) => {}
                b'(' if self.is_arithmetic(self.at - 1) => {
                    self.at += 1;
                    self.open(Inside::Arithmetic);
                }
                b'(' if self.is_reckoned() => self.open(Inside::Nested),
                b'(' if last == Some(Inside::Brace) => {}
                // A list is part of its command.
                b'(' if self.text[..self.at - 1].ends_with(b"=") => {
                    self.note_list(self.at - 2);
                    self.open(Inside::List);
                }
                // What a command reads or writes as a file, which is part of it.
                b'(' if matches!(self.text[..self.at - 1].last(), Some(b'<' | b'>')) => {
                    self.open_command(Inside::Parentheses, Some(self.command));
                }
                b'(' => {
                    let doubtful = self.is_doubtful(self.at - 1);
                    self.open_command(Inside::Parentheses, None);
                    self.opens(self.at - 1, b")");
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
                b'[' if self.is_element() => {
                    let list = self.list_before(self.at - 1).to_owned();
                    self.note_list(self.at - 1);
                    self.open(self.subscript(&list));
                }
                b'#' if self.reads_commands() && self.begins_word(self.at - 1) => {
                    self.ends_command();
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
                b'{' | b'}' | b'a'..=b'z' => self.reserved(),
                _ => {}
            }
        }
    }

    /// A value or a variable before the cursor, in nothing special or in this.
    fn mark(&mut self, byte: u8, plain: Option<Spot>) {
        if self.outlining {
            return;
        }
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
        let plain = matches!(spot, None | Some(Spot::Double | Spot::Single | Spot::Escaped));
        if plain && !self.is_key() {
            let tested = self.is_tested();
            if let Some(clause) = self.tests.last_mut().filter(|_| tested) {
                clause.marks.push((number, spot.is_some()));
            }
            let targets = self.targets(self.at - 1);
            if !targets.is_empty() {
                let declared = self.reading(self.at - 1) == Some(Reading::Declared);
                let way = if declared { Way::Declared } else { Way::Whole };
                self.set.push(Set { mark: number, targets, plain: spot, way });
            }
            let outlet = if kept { None } else { self.outlet(self.at - 1) };
            if outlet.is_none() && !kept {
                let targets = self.made(self.at - 1);
                self.set.push(Set { mark: number, targets, plain: spot, way: Way::Program });
            }
            let outlet = outlet.unwrap_or_default();
            if !outlet.targets.is_empty() {
                let (targets, plain, way) = (outlet.targets, spot, Way::Printed);
                self.set.push(Set { mark: number, targets, plain, way });
            }
            if let Some(clause) = self.tests.last_mut().filter(|_| outlet.tested) {
                clause.marks.push((number, spot.is_some()));
            }
            if let Some(reading) = outlet.reading {
                spot = Some(Spot::of(reading, spot));
            }
        }
        self.layout.spots.push(spot);
    }

    /// Whether the bracket before the cursor begins a test.
    fn begins_test(&self) -> bool {
        let blank = self.text.get(self.at + 1).is_some_and(u8::is_ascii_whitespace);
        blank && self.reads_commands() && self.begins_word(self.at - 1)
    }

    fn is_tested(&self) -> bool {
        self.inside.last().is_some_and(|frame| frame.tested)
    }

    /// Behind a dash in a test: what may compare numbers.
    fn comparison(&mut self) {
        let word = self.text.get(self.at - 1..self.at + 2).unwrap_or_default();
        let whole = self.text.get(self.at + 2).is_none_or(u8::is_ascii_whitespace);
        let compares = whole && builtin::compares(word) && self.begins_word(self.at - 1);
        if let Some(clause) = self.tests.last_mut().filter(|_| compares) {
            clause.compared = true;
        }
    }

    /// Behind the first letter of a word in a test, which is a variable if numbers are compared.
    fn tested_name(&mut self) {
        let begin = self.at - 1;
        while self.text.get(self.at).copied().is_some_and(is_word) {
            self.at += 1;
        }
        let name = String::from_utf8_lossy(&self.text[begin..self.at]).into_owned();
        if let Some(clause) = self.tests.last_mut() {
            clause.names.push(name);
        }
    }

    /// Behind what ends a part of a test: now it is known whether numbers were compared in it.
    fn ends_clause(&mut self) {
        let begin = self.at;
        let Some(clause) = self.tests.last_mut() else { return };
        let clause = std::mem::replace(clause, Clause { begin, ..Clause::default() });
        if clause.compared {
            for (mark, quoted) in clause.marks {
                self.layout.spots[mark] = Some(Spot::Arithmetic { quoted });
            }
            clause.names.into_iter().for_each(|name| self.note(name, Reading::Number));
        }
    }

    /// A variable is read as this somewhere.
    fn note(&mut self, name: String, reading: Reading) {
        let known = self.read.entry(name).or_insert(reading);
        *known = (*known).max(reading);
    }

    /// A list is named before a place.
    fn note_list(&mut self, end: usize) {
        let before = self.text[..end].strip_suffix(b"+").unwrap_or(&self.text[..end]);
        self.lists.insert(name_at_end(before).to_owned());
    }

    /// The list whose elements are named at a bracket: before it, or before the parenthesis that
    /// they stand in.
    fn list_before(&self, bracket: usize) -> &'a str {
        let name = name_at_end(&self.text[..bracket]);
        match self.inside.last() {
            Some(frame) if name.is_empty() && frame.inside == Inside::List => {
                let before = &self.text[..frame.begin.saturating_sub(2)];
                name_at_end(before.strip_suffix(b"+").unwrap_or(before))
            }
            _ => name,
        }
    }

    /// What stands in the brackets behind the name of a list.
    fn subscript(&self, list: &str) -> Inside {
        let there = |scope: &Range<usize>| scope.contains(&self.at);
        match self.maps.get(list).is_some_and(|scopes| scopes.iter().any(there)) {
            true => Inside::Key,
            false => Inside::Subscript,
        }
    }

    /// Whether what stands at the cursor is a key of a map.
    fn is_key(&self) -> bool {
        let frames = self.inside.iter().rev();
        let mut frames =
            frames.skip_while(|frame| matches!(frame.inside, Inside::Double | Inside::Brace));
        frames.next().is_some_and(|frame| frame.inside == Inside::Key)
    }

    /// Behind a dollar, before the name of a variable.
    fn variable(&mut self) {
        let dollar = self.at - 1;
        let begin = self.at;
        self.at += 1;
        if is_first(self.text[begin]) {
            while self.text.get(self.at).copied().is_some_and(is_word) {
                self.at += 1;
            }
        }
        self.used(begin, self.at, dollar);
    }

    /// A variable between two places is expanded, by what begins with a dollar.
    fn used(&mut self, begin: usize, end: usize, dollar: usize) {
        if self.outlining {
            return;
        }
        let name = &self.text[begin..end];
        let name = match name.first() {
            Some(first) if is_first(*first) => String::from_utf8_lossy(name).into_owned(),
            // All that a function was called with is one.
            Some(_) => builtin::ARGUMENTS.to_owned(),
            None => return,
        };
        if self.is_key() {
            return;
        }
        let reading = match self.is_reckoned() {
            true => Some(Reading::Number),
            false => self.reading(dollar),
        };
        match reading {
            Some(Reading::Declared) | None => {}
            Some(Reading::Script) if Var::named(&name).is_none() => {}
            Some(reading) => self.note(name.clone(), reading),
        }
        let tested = self.is_tested();
        if let Some(clause) = self.tests.last_mut().filter(|_| tested) {
            clause.names.push(name.clone());
        }
        let targets = self.targets(dollar);
        if !targets.is_empty() {
            let declared = reading == Some(Reading::Declared);
            let way = if declared { Way::Declared } else { Way::Whole };
            self.flows.push(Flow { name: name.clone(), targets, way });
        }
        let Some(outlet) = self.outlet(dollar) else {
            let targets = self.made(dollar);
            self.flows.push(Flow { name, targets, way: Way::Program });
            return;
        };
        match outlet.reading {
            Some(Reading::Script) if Var::named(&name).is_none() => {}
            Some(reading) => self.note(name.clone(), reading),
            None => {}
        }
        if let Some(clause) = self.tests.last_mut().filter(|_| outlet.tested) {
            clause.names.push(name.clone());
        }
        if !outlet.targets.is_empty() {
            self.flows.push(Flow { name, targets: outlet.targets, way: Way::Printed });
        }
    }

    /// What becomes of what stands at a place if its command prints it, or reads it as its input.
    fn outlet(&self, at: usize) -> Option<Outlet> {
        /// So many substitutions in each other are followed.
        const DEEP: usize = 4;
        let (mut level, mut command, mut at) = (self.inside.len(), self.command, at);
        if self.so_far(command, at, Command::is_given_text)? {
            return self.given(command, at).map(Outlet::of);
        }
        for _ in 0..DEEP {
            if !self.so_far(command, at, outlet::prints)? {
                return None;
            }
            let around = self.substitution(level);
            match self.goes_on(command, around, level) {
                Goes::Piped(next) => return self.reader(next).map(Outlet::of),
                Goes::Elsewhere => return None,
                Goes::Out => {}
            }
            let index = around?;
            let (back, begin) = self.outer(index)?;
            if self.text[begin] == b'<' {
                return self.given(back, begin).map(Outlet::of);
            }
            let around = index.checked_sub(1).map(|around| &self.inside[around]);
            let reading = match around.is_some_and(|frame| frame.reckoned) {
                true => Some(Reading::Number),
                false => self.so_far(back, begin, builtin::read_as)?,
            };
            let reading = reading.filter(|reading| *reading != Reading::Declared);
            let targets = self.so_far(back, begin, |c| builtin::targets(c, &self.functions))?;
            let tested = around.is_some_and(|frame| frame.tested);
            if reading.is_some() || tested || !targets.is_empty() {
                let reading = reading.map(word_for_word);
                return Some(Outlet { reading, targets, tested });
            }
            (level, command, at) = (index, back, begin);
        }
        None
    }

    /// The variables that are set to what a program makes of what stands at a place.
    fn made(&self, at: usize) -> Vec<String> {
        /// So many substitutions in each other, and pipes behind each other, are followed.
        const DEEP: usize = 4;
        if !self.hands_on || self.text.get(self.command..at).is_none() {
            return Vec::new();
        }
        let (mut level, mut command) = (self.inside.len(), self.command);
        for _ in 0..DEEP {
            let around = self.substitution(level);
            let mut goes = self.goes_on(command, around, level);
            for _ in 0..DEEP {
                let Goes::Piped(next) = goes else { break };
                if let Some(names) = outlet::names_read(&self.text[next..]) {
                    return names;
                }
                command = next;
                goes = self.goes(command);
            }
            let (Goes::Out, Some(index)) = (goes, around) else { return Vec::new() };
            let Some((back, begin)) = self.outer(index) else { return Vec::new() };
            if builtin::prints_numbers(&self.whole(command).0) {
                return Vec::new();
            }
            if self.text[begin] == b'<' {
                return match self.given(back, begin) {
                    Some(Reader::Names(names)) => names,
                    _ => Vec::new(),
                };
            }
            if index.checked_sub(1).is_some_and(|around| self.inside[around].reckoned) {
                return vec![RECKONED.to_owned()];
            }
            let targets = self.so_far(back, begin, |c| builtin::targets(c, &self.functions));
            if let Some(targets) = targets.filter(|targets| !targets.is_empty()) {
                return targets;
            }
            (level, command) = (index, back);
        }
        Vec::new()
    }

    /// The innermost substitution around what stands in so many frames.
    fn substitution(&self, level: usize) -> Option<usize> {
        let holds = |frame: &Frame| {
            frame.back.is_some() && matches!(frame.inside, Inside::Parentheses | Inside::Backticks)
        };
        self.inside[..level].iter().rposition(holds)
    }

    /// Where the command begins that a substitution is part of, and where the substitution does.
    fn outer(&self, index: usize) -> Option<(usize, usize)> {
        let frame = &self.inside[index];
        let opened = if frame.inside == Inside::Backticks { 1 } else { 2 };
        let (back, begin) = (frame.back?, frame.begin.checked_sub(opened)?);
        (back <= begin).then_some((back, begin))
    }

    /// What there is to say of a command that begins here, as far as it goes up to a place.
    fn so_far<R>(&self, begin: usize, at: usize, say: impl FnOnce(&Command) -> R) -> Option<R> {
        if begin > at {
            return None;
        }
        let mut begun = self.begun.borrow_mut();
        let command = begun.entry(begin).or_insert_with(|| Command::begun(begin));
        if command.is_read_to(at) {
            *command = Command::begun(begin);
        }
        command.go_on(self.source(), at);
        Some(say(command))
    }

    fn source(&self) -> Source<'_> {
        Source { text: self.text, closed: &self.closed }
    }

    /// All of the command that begins here.
    fn whole(&self, begin: usize) -> Rc<(Command, End)> {
        let ticked = |frame: &Frame| frame.inside == Inside::Backticks && frame.begin <= begin;
        let read = || Rc::new(Command::whole(self.source(), begin, self.inside.iter().any(ticked)));
        Rc::clone(self.whole.borrow_mut().entry(begin).or_insert_with(read))
    }

    /// Where the first word behind a place is, on this line or, as behind a pipe, a later one.
    fn skip_blanks(&self, mut at: usize) -> usize {
        loop {
            at = match self.text.get(at..).unwrap_or_default() {
                [b'\n', ..] => self.outline.documents.get(&(at + 1)).copied().unwrap_or(at + 1),
                [b'\\', b'\n', ..] => at + 2,
                [b'#', rest @ ..] => at + 1 + rest.iter().take_while(|b| **b != b'\n').count(),
                [byte, ..] if byte.is_ascii_whitespace() => at + 1,
                _ => return at,
            };
        }
    }

    fn group(&self, number: Option<&usize>) -> Option<&Group> {
        self.outline.groups.get(*number?)
    }

    /// Where the output of the command or group goes that begins here.
    fn goes(&self, begin: usize) -> Goes {
        match self.group(self.outline.begins.get(&self.skip_blanks(begin))) {
            Some(Group { end: Some(end), .. }) => self.goes_behind(*end),
            Some(_) => Goes::Out,
            None => self.goes_behind(begin),
        }
    }

    /// Where the output goes of what is a command from here on, or whose last part begins here.
    fn goes_behind(&self, at: usize) -> Goes {
        let whole = self.whole(at);
        match whole.as_ref() {
            (Command { into: Some(into), .. }, _) => Goes::Piped(self.skip_blanks(*into)),
            (Command { output: true, .. }, _) => Goes::Elsewhere,
            (_, End::Pipe(next)) => Goes::Piped(self.skip_blanks(*next)),
            (_, End::Other(_)) => Goes::Out,
        }
    }

    /// Where the output of a command goes that stands in so many frames, and in this substitution:
    /// also by the groups that it is in.
    fn goes_on(&self, command: usize, around: Option<usize>, level: usize) -> Goes {
        let mut goes = self.goes(command);
        let least = around.map_or(0, |index| index + 1);
        for open in self.open.iter().rev().skip_while(|open| open.level > level) {
            let end = self.outline.groups.get(open.number).and_then(|group| group.end);
            match (goes, end) {
                (Goes::Out, Some(end)) if open.level >= least => goes = self.goes_behind(end),
                _ => break,
            }
        }
        goes
    }

    /// Whether the command or group that begins here reads its input as script.
    fn reads_script(&self, begin: usize) -> bool {
        match self.group(self.outline.begins.get(&self.skip_blanks(begin))) {
            Some(group) => group.script,
            None => builtin::reads_script(&self.whole(begin).0),
        }
    }

    /// Whether what a command is given to read comes to a shell as script: to the command itself,
    /// to the group that ends where it begins, or to what it is piped into.
    fn feeds_shell(&self, command: usize) -> bool {
        /// So many pipes behind each other are followed.
        const STAGES: usize = 64;
        if self.text.get(command..).is_none() {
            return false;
        }
        let word = self.skip_blanks(command);
        let behind = self.text[word..].iter().position(|byte| !is_word(*byte) && *byte != b'}');
        let behind = behind.map_or(self.text.len(), |length| word + length);
        let ends = &self.outline.ends;
        let ended = self.group(ends.get(&command).or_else(|| ends.get(&behind)));
        if self.reads_script(command) || ended.is_some_and(|group| group.script) {
            return true;
        }
        let level = self.inside.len();
        let mut goes = self.goes_on(command, self.substitution(level), level);
        for _ in 0..STAGES {
            match goes {
                Goes::Piped(next) if self.reads_script(next) => return true,
                Goes::Piped(next) => goes = self.goes(next),
                _ => break,
            }
        }
        false
    }

    /// Who reads what is piped into what begins here.
    fn reader(&self, begin: usize) -> Option<Reader> {
        match outlet::names_read(self.text.get(begin..)?) {
            _ if self.reads_script(begin) => Some(Reader::Script),
            names => names.map(Reader::Names),
        }
    }

    /// Who reads what a command is given at a place: a text, or what another command prints, as its
    /// input or as a file.
    fn given(&self, begin: usize, at: usize) -> Option<Reader> {
        let (first, input, file) = self.so_far(begin, at, |command| {
            let input = matches!(command.sign.as_deref(), Some("<" | "<<<"));
            let sources =
                matches!(builtin::program(&command.words), [only] if builtin::sources(only));
            let file = sources || builtin::reads_script(command);
            (command.words.first().cloned().unwrap_or_default(), input, file)
        })?;
        match first.as_str() {
            _ if input && self.feeds_shell(begin) => Some(Reader::Script),
            "done" => outlet::of_loop(&self.text[..begin]).map(Reader::Names),
            // A file that is open from then on, to whoever reads from it.
            "exec" => Some(Reader::Names(outlet::read_anywhere(self.text))),
            _ if input => outlet::names_read(&self.text[begin..]).map(Reader::Names),
            // What stands there is the name of a file, which a shell reads.
            _ => file.then_some(Reader::Script),
        }
    }

    /// The variables that are set to what stands at a place.
    fn targets(&self, at: usize) -> Vec<String> {
        let targets = self.so_far(self.command, at, |c| builtin::targets(c, &self.functions));
        let mut targets = targets.unwrap_or_default();
        let frames = self.inside.iter().rev();
        let frames = frames.take_while(|f| matches!(f.inside, Inside::Double | Inside::Brace));
        // `${name:=VALUE}` sets what it names.
        for frame in frames.filter(|frame| frame.inside == Inside::Brace) {
            let text = &self.text[frame.begin..];
            let name = text.iter().take_while(|byte| is_word(**byte)).count();
            if name > 0 && (text[name..].starts_with(b"=") || text[name..].starts_with(b":=")) {
                targets.push(String::from_utf8_lossy(&text[..name]).into_owned());
            }
        }
        targets
    }

    /// Behind a backslash.
    fn escape(&mut self, quoted: bool, next: Option<u8>) {
        if next.is_some_and(|next| b"$`\\\n".contains(&next) || next == MARK || next == b'"') {
            self.special();
        }
        match next {
            // In quotes it is a backslash; elsewhere it quotes a value, which is quoted anyway.
            Some(MARK) => {
                self.layout.escaped.push(self.layout.spots.len());
                match quoted {
                    true => self.edit(self.at - 1, 0, "\\"),
                    false => self.edit(self.at - 1, 1, ""),
                }
            }
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
        let tested = match inside {
            Inside::Test => true,
            Inside::Double | Inside::Brace => around.is_some_and(|frame| frame.tested),
            _ => false,
        };
        let (quoted, reckoned) = match inside {
            Inside::Parentheses | Inside::Backticks | Inside::List | Inside::Test => (false, false),
            Inside::Double | Inside::Here => (true, was_reckoned),
            Inside::Brace => (was_quoted, was_reckoned),
            Inside::Slice | Inside::Subscript => (was_quoted, true),
            Inside::Key => (was_quoted, false),
            Inside::Arithmetic | Inside::Nested | Inside::Bracket => (false, true),
        };
        let (pattern, cases) = (false, 0);
        let begin = self.at;
        let frame =
            Frame { inside, quoted, reckoned, tested, doubtful, pattern, cases, begin, back };
        self.inside.push(frame);
    }

    fn doubt(&mut self, doubtful: bool) {
        if let Some(frame) = self.inside.last_mut() {
            frame.doubtful |= doubtful;
        }
    }

    fn close(&mut self) {
        if self.inside.last().is_some_and(|frame| frame.inside == Inside::Parentheses) {
            self.notes_command();
            self.closes(b")");
        }
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
            self.notes_command();
            self.command = self.at;
        }
    }

    /// At the end of a command: whether it reads the input of the group that it is in as script.
    fn notes_command(&mut self) {
        let begin = self.command;
        let Some(open) = self.open.last().filter(|_| self.outlining && begin <= self.at) else {
            return;
        };
        let whole = self.whole(begin);
        if builtin::reads_script(&whole.0) && !whole.0.input && !self.is_piped_into(begin) {
            self.outline.groups[open.number].script = true;
        }
    }

    /// Whether what begins here reads what another command prints.
    fn is_piped_into(&self, begin: usize) -> bool {
        let before = self.text[..begin].trim_ascii_end();
        (before.ends_with(b"|") && !before.ends_with(b"||")) || before.ends_with(b"|&")
    }

    /// A group is opened at a place.
    fn opens(&mut self, begin: usize, closes: &'static [u8]) {
        let (number, level) = (self.opened, self.inside.len());
        self.opened += 1;
        self.open.push(Open { number, begin, closes, level });
        if self.outlining {
            self.outline.groups.push(Group { end: None, script: false });
            self.outline.begins.insert(begin, number);
        }
    }

    /// Behind what closes a group; those in it that nothing closed are closed by nothing.
    fn closes(&mut self, closes: &[u8]) {
        let level = self.inside.len();
        let stays = |open: &Open| open.level < level || (open.level == level && closes != b")");
        while self.open.last().is_some_and(|open| open.closes != closes && !stays(open)) {
            self.open.pop();
        }
        let closed = self.open.pop_if(|open| open.closes == closes && open.level == level);
        let Some(Open { number, begin, .. }) = closed.filter(|_| self.outlining) else { return };
        self.outline.groups[number].end = Some(self.at);
        self.outline.ends.insert(self.at, number);
        let script = self.outline.groups[number].script && !self.is_piped_into(begin);
        if let Some(around) = self.open.last().filter(|_| script) {
            self.outline.groups[around.number].script = true;
        }
    }

    fn cases(&self) -> usize {
        self.inside.last().map_or(0, |frame| frame.cases)
    }

    /// Behind the first letter of what may open or close a group.
    fn reserved(&mut self) {
        const NEAR: usize = 64;
        let begin = self.at - 1;
        let rest = &self.text[begin..self.text.len().min(begin + 7)];
        let ends = |byte: &u8| byte.is_ascii_whitespace() || b";&|<>()`".contains(byte);
        let word = &rest[..rest.iter().position(ends).unwrap_or(rest.len())];
        let closes = GROUPS.iter().find(|(opens, _)| *opens == word).map(|(_, closes)| *closes);
        if closes.is_none() && !GROUPS.iter().any(|(_, closes)| *closes == word) {
            return;
        }
        let from = self.command.max(begin.saturating_sub(NEAR));
        let before = self.text.get(from..begin).unwrap_or_default();
        let body = word == b"{" && builtin::begins_body(before);
        if !self.reads_commands()
            || !self.begins_word(begin)
            || !(builtin::begins_command(before) || body)
        {
            return;
        }
        // The patterns of `case` have a closing parenthesis without an opening one.
        if let Some(frame) = self.inside.last_mut() {
            match word {
                b"case" => frame.cases += 1,
                b"esac" => frame.cases = frame.cases.saturating_sub(1),
                _ => {}
            }
        }
        match closes {
            Some(closes) => self.opens(begin, closes),
            None => {
                let behind = begin + word.len();
                let at = std::mem::replace(&mut self.at, behind);
                self.closes(word);
                self.at = at;
            }
        }
    }

    /// Behind the dollar of `${`.
    fn expansion(&mut self) {
        self.at += 1;
        self.open(Inside::Brace);
        let of = |at: usize| self.text.get(at).copied();
        let dollar = self.at - 2;
        let sign = of(self.at).filter(|sign| matches!(sign, b'!' | b'#'));
        let begin = self.at + usize::from(sign.is_some());
        let mut at = begin;
        if matches!(of(at), Some(b'@' | b'*' | b'?' | b'$' | b'-' | b'!' | b'#')) {
            at += 1;
        }
        while let Some(byte) = of(at).filter(|byte| is_word(*byte) || *byte == MARK) {
            // A value is part of the variable's name.
            if byte == MARK {
                self.layout.spots.push(Some(Spot::Name));
            }
            at += 1;
        }
        let name = &self.text[begin..at];
        let rest = &self.text[at..self.text.len().min(at + 2)];
        let known = !name.is_empty() && !name.contains(&MARK);
        // Of some the value is not what is given: their length, or something in their place.
        let given = sign != Some(b'#') && !matches!(rest, [b'+', ..] | [b':', b'+']);
        if known && given && name.iter().all(|byte| is_word(*byte) || b"@*".contains(byte)) {
            let name = String::from_utf8_lossy(name).into_owned();
            match (sign, rest) {
                (Some(b'!'), [b'}' | b':', ..]) => self.note(name, Reading::Name),
                (Some(_), _) => {}
                (None, [b'@', b'P']) if Var::named(&name).is_some() => {
                    self.note(name, Reading::Script);
                }
                (None, _) => self.used(begin, at, dollar),
            }
        }
        self.at = at;
        self.part();
    }

    /// Behind the name or the subscript of an expansion: what part of it is meant.
    fn part(&mut self) {
        if self.inside.last().is_none_or(|frame| frame.inside != Inside::Brace) {
            return;
        }
        let part = match self.text.get(self.at..).unwrap_or_default() {
            [b'[', ..] => {
                let name = name_at_end(&self.text[..self.at]);
                self.subscript(name)
            }
            [b':', after, ..] if !b"-=?+".contains(after) => Inside::Slice,
            [b'#' | b'%' | b'/' | b'^' | b',' | b'@', ..] => {
                self.inside.last_mut().into_iter().for_each(|frame| frame.pattern = true);
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
        self.note(name, Reading::Number);
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
        if self.is_key() {
            return plain;
        }
        let reading = match self.is_reckoned() {
            true => Some(Reading::Number),
            false => self.reading(self.at - 1),
        };
        match reading {
            Some(Reading::Declared) | None => plain,
            Some(reading) => Some(Spot::of(reading, plain)),
        }
    }

    /// What the command takes the word for that goes on at a place.
    fn reading(&self, at: usize) -> Option<Reading> {
        if self.is_tested() {
            let begin = self.tests.last()?.begin;
            let command = Command::read(self.text.get(begin..at)?);
            let named = command.words.last().is_some_and(|test| builtin::is_of_variables(test));
            return named.then(|| builtin::named(&command.current));
        }
        if self.so_far(self.command, at, Command::is_given_text)? {
            return self.feeds_shell(self.command).then_some(Reading::Script);
        }
        self.so_far(self.command, at, builtin::read_as)?
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
        let script = !self.outlining && self.feeds_shell(self.command);
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
        let (begin, any) = (self.at, !self.pending.is_empty());
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
            if !self.outlining {
                self.here_document(&pending, (begin, end), last);
            }
        }
        if any && self.outlining {
            self.outline.documents.insert(begin, self.at);
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
            within.functions.clone_from(&self.functions);
            let there = |scope: &Range<usize>| scope.contains(&body.0);
            let maps = self.maps.iter().filter(|(_, scopes)| scopes.iter().any(there));
            let all = || std::iter::once(0..usize::MAX).collect();
            within.maps = maps.map(|(name, _)| (name.clone(), all())).collect();
            within.read();
            let before = self.layout.spots.len();
            self.layout.spots.append(&mut within.layout.spots);
            self.layout.edits.append(&mut within.layout.edits);
            self.layout.escaped.extend(within.layout.escaped.iter().map(|mark| before + mark));
            self.set.extend(within.set.drain(..).map(|set| Set { mark: before + set.mark, ..set }));
            self.flows.append(&mut within.flows);
            self.lists.append(&mut within.lists);
            within.read.into_iter().for_each(|(name, reading)| self.note(name, reading));
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

/// The maps of a script, each with where it is one: a function or group that has ended took what it
/// declared with it.
fn maps(text: &[u8]) -> BTreeMap<String, Vec<Range<usize>>> {
    let mut maps: BTreeMap<String, Vec<Range<usize>>> = BTreeMap::new();
    let mut left = builtin::maps(text).into_iter().peekable();
    if left.peek().is_none() {
        return maps;
    }
    let (mut open, mut at) = (vec![Vec::new()], 0);
    let mut end = |declared: Vec<(String, usize)>, end: usize| {
        for (name, begin) in declared {
            maps.entry(name).or_default().push(begin..end);
        }
    };
    for word in text.split(|byte| byte.is_ascii_whitespace() || *byte == b';') {
        while let Some(declared) = left.next_if(|(_, declared)| *declared <= at) {
            open.last_mut().into_iter().for_each(|group| group.push(declared.clone()));
        }
        match word {
            b"{" => open.push(Vec::new()),
            b"}" if open.len() > 1 => end(open.pop().unwrap_or_default(), at),
            _ => {}
        }
        at += word.len() + 1;
    }
    open.into_iter().flatten().chain(left).for_each(|one| end(vec![one], usize::MAX));
    maps
}

/// Stands for what is reckoned with at once.
const RECKONED: &str = "(";

/// What comes to variables by the names of others, and to those of `getopts` from the arguments.
fn by_name(script: &[u8]) -> Vec<Flow> {
    let mut flows = Vec::new();
    for (name, value, stands) in builtin::aliases(script) {
        if stands {
            let (name, targets) = (name.clone(), vec![value.clone()]);
            flows.push(Flow { name, targets, way: Way::Whole });
        }
        flows.push(Flow { name: value, targets: vec![name], way: Way::Named });
    }
    if script.windows(8).any(|word| word == b"getopts ") {
        let (name, targets) = (builtin::ARGUMENTS.to_owned(), vec![builtin::OPTION.to_owned()]);
        flows.push(Flow { name, targets, way: Way::Whole });
    }
    flows
}

/// What a value must be that comes in this way to what is read as that.
fn asked_of(reading: Reading, way: Way) -> Option<Reading> {
    match (reading, way) {
        // What a script does with a variable of its own by `eval` is its author's business.
        (Reading::Script, _) | (_, Way::Program) => None,
        (reading, Way::Printed) => Some(word_for_word(reading)),
        (Reading::Number | Reading::Numbers, Way::Named) => Some(reading),
        (_, Way::Named) => None,
        (reading, Way::Whole | Way::Declared) => Some(reading),
    }
}

/// What of a text must be so that each word of it is only what it looks like.
fn word_for_word(reading: Reading) -> Reading {
    if reading == Reading::Number { Reading::Numbers } else { reading }
}

/// The name that a text ends with, or nothing.
fn name_at_end(text: &[u8]) -> &str {
    const NEAR: usize = 256;
    let name = text.iter().rev().take(NEAR).take_while(|byte| is_word(**byte)).count();
    std::str::from_utf8(&text[text.len() - name..]).unwrap_or_default()
}

/// A line without the tabs before it.
fn without_tabs(line: &[u8]) -> &[u8] {
    &line[line.iter().position(|byte| *byte != b'\t').unwrap_or(line.len())..]
}
