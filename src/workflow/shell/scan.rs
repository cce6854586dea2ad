//! The reading of a shell script, byte by byte, with a mark in place of each value.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use super::builtin::{self, Reading};
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
        }
    }

    pub fn scan(mut self) -> Layout {
        self.walk();
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
            let single = spot == Some(Spot::Single);
            let outlet = if kept { None } else { self.outlet(self.at - 1, single) };
            if outlet.is_none() && !kept {
                let targets = self.made(self.at - 1, single);
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
        let Some(outlet) = self.outlet(dollar, false) else {
            let targets = self.made(dollar, false);
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

    /// What becomes of what stands at a place, in single quotes or as the frames say, if its
    /// command prints it, or reads it as its input.
    fn outlet(&self, at: usize, single: bool) -> Option<Outlet> {
        /// So many substitutions in each other are followed.
        const DEEP: usize = 4;
        let (mut level, mut command, mut at) = (self.inside.len(), self.command, at);
        let mut quote = single.then_some(b'\'');
        let before = self.text.get(command..at)?;
        if outlet::is_given_text(before) {
            return self.redirected(command, before).map(Outlet::of);
        }
        for _ in 0..DEEP {
            if !outlet::prints(self.text.get(command..at)?) {
                return None;
            }
            let double = level.checked_sub(1).map(|last| self.inside[last].inside);
            let double = (double == Some(Inside::Double)).then_some(b'"');
            match outlet::goes(self.text, at, quote.take().or(double), &self.closed) {
                Goes::Piped(next) => return outlet::reader(next).map(Outlet::of),
                Goes::Elsewhere => return None,
                Goes::Out => {}
            }
            let commands =
                |frame: &Frame| matches!(frame.inside, Inside::Parentheses | Inside::Backticks);
            let index = self.inside[..level].iter().rposition(commands)?;
            let frame = &self.inside[index];
            let back = frame.back?;
            let opened = if frame.inside == Inside::Backticks { 1 } else { 2 };
            let begin = frame.begin.checked_sub(opened)?;
            let outer = self.text.get(back..begin)?;
            if self.text[begin] == b'<' {
                return self.redirected(back, outer).map(Outlet::of);
            }
            let around = index.checked_sub(1).map(|around| &self.inside[around]);
            let reading = match around.is_some_and(|frame| frame.reckoned) {
                true => Some(Reading::Number),
                false => builtin::read_as(outer).filter(|reading| *reading != Reading::Declared),
            };
            let targets = builtin::targets(outer, &self.functions);
            let tested = around.is_some_and(|frame| frame.tested);
            if reading.is_some() || tested || !targets.is_empty() {
                let reading = reading.map(word_for_word);
                return Some(Outlet { reading, targets, tested });
            }
            (level, command, at) = (index, back, begin);
        }
        None
    }

    /// The variables that are set to what a program makes of what stands at a place, in single
    /// quotes or as the frames say.
    fn made(&self, at: usize, single: bool) -> Vec<String> {
        /// So many substitutions in each other, and pipes behind each other, are followed.
        const DEEP: usize = 4;
        if !self.hands_on {
            return Vec::new();
        }
        let (mut level, mut command, mut at) = (self.inside.len(), self.command, at);
        let mut quote = single.then_some(b'\'');
        for _ in 0..DEEP {
            let double = level.checked_sub(1).map(|last| self.inside[last].inside);
            let double = (double == Some(Inside::Double)).then_some(b'"');
            let mut goes = outlet::goes(self.text, at, quote.take().or(double), &self.closed);
            for _ in 0..DEEP {
                let Goes::Piped(next) = goes else { break };
                if let Some(Reader::Names(names)) = outlet::reader(next) {
                    return names;
                }
                command = self.text.len() - next.len();
                goes = outlet::goes(self.text, command, None, &self.closed);
            }
            let commands =
                |frame: &Frame| matches!(frame.inside, Inside::Parentheses | Inside::Backticks);
            let index = self.inside[..level].iter().rposition(commands);
            let (Goes::Out, Some(index)) = (goes, index) else { return Vec::new() };
            let frame = &self.inside[index];
            let last = self.text.get(command..).unwrap_or_default();
            let last = &last[..last.len().min(outlet::NEAR)];
            let end = last.iter().position(|byte| b"\n;|&)`".contains(byte));
            let opened = if frame.inside == Inside::Backticks { 1 } else { 2 };
            let (Some(back), Some(begin)) = (frame.back, frame.begin.checked_sub(opened)) else {
                return Vec::new();
            };
            if builtin::prints_numbers(&last[..end.unwrap_or(last.len())]) {
                return Vec::new();
            }
            let outer = self.text.get(back..begin).unwrap_or_default();
            if self.text[begin] == b'<' {
                return match self.redirected(back, outer) {
                    Some(Reader::Names(names)) => names,
                    _ => Vec::new(),
                };
            }
            if index.checked_sub(1).is_some_and(|around| self.inside[around].reckoned) {
                return vec![RECKONED.to_owned()];
            }
            let targets = builtin::targets(outer, &self.functions);
            if !targets.is_empty() {
                return targets;
            }
            (level, command, at) = (index, back, begin);
        }
        Vec::new()
    }

    /// Who reads the input of a command that is cut off before where that comes from.
    fn redirected(&self, begin: usize, command: &[u8]) -> Option<Reader> {
        let words = builtin::words_near(command);
        let (current, before) = words.split_last()?;
        let first = before.iter().find(|word| !word.is_empty()).unwrap_or(current);
        let redirects = |word: &String| word.ends_with('<');
        let input = outlet::is_given_text(command)
            || redirects(current)
            || before.last().is_some_and(redirects);
        match first.as_str() {
            "done" => outlet::of_loop(&self.text[..begin]),
            // A file that is open from then on, to whoever reads from it.
            "exec" => outlet::reader(command)
                .or_else(|| Some(Reader::Names(outlet::read_anywhere(self.text)))),
            // The file that it reads, or its input by the name of a file.
            "." | "source" => {
                let file = before.iter().skip_while(|word| *word != first).nth(1);
                let script = match input {
                    true => file.is_some_and(|file| builtin::INPUT.contains(&file.as_str())),
                    false => file.is_none(),
                };
                script.then_some(Reader::Script)
            }
            _ if input => outlet::reader(command),
            // What stands there is the name of a file, which a shell reads.
            _ => builtin::reads_script(command).then_some(Reader::Script),
        }
    }

    /// The variables that are set to what stands at a place.
    fn targets(&self, at: usize) -> Vec<String> {
        let command = self.text.get(self.command..at);
        let mut targets =
            command.map_or_else(Vec::new, |command| builtin::targets(command, &self.functions));
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
            let words = builtin::words(self.text.get(begin..at)?);
            let (current, words) = words.split_last()?;
            let named = words.last().is_some_and(|test| builtin::is_of_variables(test));
            return named.then(|| builtin::named(current));
        }
        builtin::read_as(self.text.get(self.command..at)?)
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
            within.functions.clone_from(&self.functions);
            let there = |scope: &Range<usize>| scope.contains(&body.0);
            let maps = self.maps.iter().filter(|(_, scopes)| scopes.iter().any(there));
            let all = || std::iter::once(0..usize::MAX).collect();
            within.maps = maps.map(|(name, _)| (name.clone(), all())).collect();
            within.walk();
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
