//! Finds the constructs of a script that evaluate text: arithmetic, computed names of variables,
//! and scripts that are built from values.
//!
//! Bash executes `$(…)` in a value that it evaluates, for example `a[$(date)]` in `((value))`. The
//! search over-approximates: it does not follow values through a script, and it also finds
//! constructs in quotes and in here-documents.

use std::ops::Range;

use super::place::{NAME, VALUE};

/// A construct that evaluates text.
#[derive(Debug)]
pub(super) struct Evaluation {
    /// Byte offset in the script.
    pub(crate) at: usize,
    pub(crate) construct: String,
    /// The part of the script that it runs as a script of its own, if it does.
    pub(crate) script: Option<Range<usize>>,
}

/// Shells. They run the argument after `-c`, or else their standard input.
const SHELLS: [&str; 11] =
    ["sh", "bash", "rbash", "dash", "ash", "ksh", "mksh", "zsh", "fish", "csh", "tcsh"];

/// Other programs that run an argument as a script, with the letter of the option before it.
const RUN_OPTION: [(&str, char); 6] =
    [("su", 'c'), ("runuser", 'c'), ("sg", 'c'), ("flock", 'c'), ("script", 'c'), ("env", 'S')];

/// Commands that run all of their arguments as a script.
const RUN_ARGUMENTS: [&str; 7] = ["eval", "trap", "alias", "compgen", "complete", "ssh", "watch"];

/// Commands that evaluate the subscripts of the variables that they set.
const SET_VARIABLES: [&str; 5] = ["read", "unset", "mapfile", "readarray", "getopts"];

/// Commands that declare variables. Their options make integers, lists, and references.
const DECLARE: [&str; 5] = ["declare", "typeset", "local", "readonly", "export"];

/// Variables that bash evaluates when a script sets or uses them.
const EVALUATED: [&str; 6] = ["RANDOM", "SRANDOM", "OPTIND", "HISTCMD", "DIRSTACK", "PS4"];

/// Comparisons of numbers. `[` compares without evaluation, `[[` evaluates both sides.
const COMPARISONS: [&str; 6] = ["-eq", "-ne", "-lt", "-le", "-gt", "-ge"];

/// Words after which a command begins.
const BEFORE_COMMAND: [&str; 9] =
    ["then", "do", "else", "!", "sudo", "exec", "env", "nohup", "command"];

/// Maximum number of arguments that are read of one command. More count as computed.
const MAX_ARGUMENTS: usize = 200;

/// Finds all constructs in a script without comments that evaluate text, in order.
pub(super) fn find(code: &str) -> Vec<Evaluation> {
    let mut found = symbols(code);
    let lists = code.contains("=(");
    let mut in_test = false;
    let mut before = "";
    for (at, word) in words(code) {
        // The end of a test is not sought: quotes could contain `]]`.
        in_test |= word == "[[";
        let arguments = || arguments(code, at + word.len());
        let any = |test: &dyn Fn(&Argument) -> bool| arguments().iter().any(test);
        let is = |list: &[&str]| list.contains(&word);
        let mut script = None;
        let evaluates = match word {
            "let" => true,
            "-v" | "-R" if in_test || ["[", "test", "!", "printf"].contains(&before) => {
                arguments().first().is_some_and(Argument::is_computed_name)
            }
            "wait" => any(&|word| word.has_option("p")),
            _ if is(&COMPARISONS) => in_test,
            _ if is(&SET_VARIABLES) => any(&|word| word.is_computed_name()),
            _ if is(&DECLARE) => any(&|word| {
                word.is_computed_name() || word.has_option("aAin") || lists && word.is_computed()
            }),
            _ if is_evaluated(word) => true,
            _ => {
                script = script_of(word, arguments);
                script.is_some()
            }
        };
        if evaluates {
            found.push(Evaluation { at, construct: word.to_owned(), script });
        }
        before = word;
    }
    found.sort_by_key(|found| found.at);
    found
}

/// Returns the lines in which a shell runs its standard input, each with the shell's name.
pub(super) fn shell_lines(code: &str) -> Vec<(Range<usize>, &str)> {
    let mut lines = Vec::new();
    let mut before = "";
    for (at, word) in words(code) {
        let starts = code[..at].trim_end_matches([' ', '\t']);
        let starts = starts.is_empty() || starts.ends_with(['|', ';', '&', '(', '`', '\n']);
        let command = starts || BEFORE_COMMAND.contains(&before);
        before = word;
        let sourced = [".", "source"].contains(&word);
        if !command || !sourced && !SHELLS.contains(&program(word)) {
            continue;
        }
        let rest = code[at + word.len()..].trim_start_matches([' ', '\t']);
        let first = arguments(code, at + word.len()).first().map(|first| first.text);
        let redirected = rest.starts_with('<');
        let input = first.is_some_and(|first| ["-s", "-", "/dev/stdin"].contains(&first));
        if redirected || input || !sourced && first.is_none() {
            let begin = code[..at].rfind('\n').map_or(0, |newline| newline + 1);
            let end = code[at..].find('\n').map_or(code.len(), |newline| at + newline);
            lines.push((begin..end, program(word)));
        }
    }
    lines
}

/// Returns the arguments of a command line that are run as a script, each with the program that
/// runs it.
pub(super) fn scripts_of(argv: &[String]) -> Vec<(usize, String)> {
    for (number, word) in argv.iter().enumerate() {
        let (name, rest) = (program(word), &argv[number + 1..]);
        if let Some(letter) = run_option(name) {
            let has_letter = |word: &String| has_option(word, letter);
            let options = if SHELLS.contains(&name) { options_of_shell(rest) } else { rest.len() };
            let Some(option) = rest[..options].iter().position(has_letter) else { continue };
            let is_option = |word: &&String| word.starts_with('-');
            let script = option + rest[option..].iter().take_while(is_option).count();
            return vec![(number + 1 + script, name.to_owned())];
        }
        if name == "ssh" {
            let host = rest.iter().position(|word| !word.starts_with('-'));
            let command = host.map_or(rest.len(), |host| host + 1);
            return (command..rest.len()).map(|at| (number + 1 + at, name.to_owned())).collect();
        }
    }
    Vec::new()
}

/// Returns the number of words before the first operand of a shell: what follows that is data.
fn options_of_shell(words: &[String]) -> usize {
    let mut at = 0;
    while let Some(word) = words.get(at).filter(|word| word.starts_with(['-', '+'])) {
        let takes_next = match word.strip_prefix("--") {
            Some(name) => ["rcfile", "init-file"].contains(&name),
            None => word.ends_with(['o', 'O']),
        };
        at += 1 + usize::from(takes_next);
    }
    at.min(words.len())
}

/// Returns the part of a script that a command runs as a script of its own, if values may be in it.
fn script_of<'a>(word: &str, arguments: impl Fn() -> Vec<Argument<'a>>) -> Option<Range<usize>> {
    if RUN_ARGUMENTS.contains(&word) {
        let all = arguments();
        let computed = all.iter().any(Argument::is_computed);
        return computed.then(|| all[0].at..all[all.len() - 1].end());
    }
    let letter = run_option(program(word))?;
    let all = arguments();
    let option = all.iter().position(|word| has_option(word.text, letter))?;
    let mut script = all[option..].iter().take(2);
    script.find(|word| word.is_computed()).map(|word| word.at..word.end())
}

fn run_option(program: &str) -> Option<char> {
    let other = RUN_OPTION.iter().find(|(name, _)| *name == program);
    SHELLS.contains(&program).then_some('c').or(other.map(|(_, letter)| *letter))
}

/// Returns the name of a program without its directory. `$SHELL` is a shell.
fn program(word: &str) -> &str {
    let name = word.trim_matches(['$', '{', '}', '\\']);
    let name = name.rsplit('/').next().unwrap_or(name);
    if ["SHELL", "BASH"].contains(&name) { "sh" } else { name }
}

fn has_option(word: &str, letter: char) -> bool {
    word.starts_with('-') && !word.starts_with("--") && word.contains(letter)
}

/// Returns true if a word sets an evaluated variable to something other than a number.
fn is_evaluated(word: &str) -> bool {
    let rest = EVALUATED.iter().find_map(|name| word.strip_prefix(name));
    let digits = |value: &str| !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit());
    rest.is_some_and(|rest| match rest.trim_start_matches('+').strip_prefix('=') {
        Some(value) => !digits(value),
        None => rest.is_empty(),
    })
}

/// Returns all words with their offsets, without regard to quotes.
fn words(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let parts = |c: char| c.is_ascii_whitespace() || ";|&()<>\"'`".contains(c);
    let words = code.split(parts).filter(|word| !word.is_empty());
    words.map(|word| (word.as_ptr() as usize - code.as_ptr() as usize, word))
}

/// One argument of a command.
struct Argument<'a> {
    at: usize,
    text: &'a str,
}

impl Argument<'_> {
    fn end(&self) -> usize {
        self.at + self.text.len()
    }

    /// Returns true if a shell expands something in it.
    fn is_computed(&self) -> bool {
        let (mut single, mut double) = (false, false);
        self.text.bytes().any(|byte| {
            single ^= byte == b'\'' && !double;
            double ^= byte == b'"' && !single;
            !single && is_expansion(byte)
        })
    }

    /// Returns true if it may be the name of a variable that is computed, or that has a computed
    /// subscript.
    fn is_computed_name(&self) -> bool {
        let start = self.text.trim_start_matches('"').bytes().next();
        start.is_some_and(is_expansion) || self.text.contains('[') && self.is_computed()
    }

    fn has_option(&self, letters: &str) -> bool {
        letters.chars().any(|letter| has_option(self.text, letter))
    }
}

fn is_expansion(byte: u8) -> bool {
    [b'$', b'`', VALUE, NAME].contains(&byte)
}

/// Returns the arguments of the command whose name ends at `at`, without redirections.
fn arguments(code: &str, mut at: usize) -> Vec<Argument<'_>> {
    let bytes = code.as_bytes();
    let mut found = Vec::new();
    let mut redirected = false;
    while found.len() < MAX_ARGUMENTS {
        at += bytes[at..].iter().take_while(|byte| b" \t".contains(byte)).count();
        let end = argument_end(bytes, at);
        if end == at {
            return found;
        }
        let text = &code[at..end];
        let operator =
            text.trim_start_matches(|c: char| c.is_ascii_digit()).starts_with(['<', '>']);
        if !operator && !redirected {
            found.push(Argument { at, text });
        }
        redirected = operator && text.ends_with(['<', '>', '-']);
        at = end;
    }
    found.push(Argument { at, text: "$" });
    found
}

/// Returns the end of the argument that begins at `at`; `at` itself at the end of a command.
fn argument_end(bytes: &[u8], at: usize) -> usize {
    let (mut quote, mut depth, mut end) = (0, 0, at);
    while let Some(byte) = bytes.get(end).copied() {
        let after_redirection = end > at && b"<>".contains(&bytes[end - 1]);
        match byte {
            b'\\' if quote != b'\'' => end += 1,
            b'\'' | b'"' | b'`' if quote == 0 => quote = byte,
            byte if byte == quote => quote = 0,
            _ if quote != 0 => {}
            b'(' => depth += 1,
            b')' if depth > 0 => depth -= 1,
            _ if depth > 0 => {}
            b'&' if after_redirection => {}
            b' ' | b'\t' | b'\n' | b';' | b'|' | b'&' | b')' => break,
            _ => {}
        }
        end += 1;
    }
    end.min(bytes.len())
}

/// Finds arithmetic, subscripts, slices, and expansions that evaluate text.
fn symbols(code: &str) -> Vec<Evaluation> {
    let mut found = Vec::new();
    let mut add = |at, construct: &str| {
        found.push(Evaluation { at, construct: construct.to_owned(), script: None });
    };
    for (at, _) in code.match_indices("((") {
        add(at, "((");
    }
    for (at, _) in code.match_indices("$[") {
        add(at, "$[");
    }
    for (at, _) in code.match_indices("${") {
        if let Some(construct) = expansion(&code[at + 2..]) {
            add(at, construct);
        }
    }
    for (at, _) in code.match_indices("]=").chain(code.match_indices("]+=")) {
        let line = code[..at].rfind('\n').map_or(0, |newline| newline + 1);
        let open = code[line..at].rfind('[').map(|open| line + open);
        if let Some(open) = open.filter(|open| !is_literal(&code[open + 1..at])) {
            add(open, "[…]=");
        }
    }
    found
}

/// Returns the construct that an expansion evaluates, if it does; `text` follows `${`.
fn expansion(text: &str) -> Option<&'static str> {
    let inside = text.trim_start_matches(['!', '#']);
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let length = inside.bytes().take_while(is_name).count();
    let special = length == 0 && inside.starts_with(['?', '@', '*', '-', '$']);
    let mut rest = &inside[length + usize::from(special)..];
    let listed = ["[@]}", "[*]}", "@}", "*}"].iter().any(|all| rest.starts_with(all));
    if text.starts_with('!') && !listed && length > 0 {
        return Some("${!…}");
    }
    if let Some(subscript) = rest.strip_prefix('[') {
        let end = subscript.find(']').unwrap_or(subscript.len());
        if !is_literal(&subscript[..end]) {
            return Some("${…[…]}");
        }
        rest = subscript[end..].trim_start_matches(']');
    }
    if rest.starts_with("@P") {
        return Some("${…@P}");
    }
    let slice = rest.strip_prefix(':').filter(|slice| !slice.starts_with(['-', '=', '+', '?']))?;
    let end = slice.find('}').unwrap_or(slice.len());
    let digits = |c: char| c.is_ascii_digit() || " :-".contains(c);
    (!slice[..end].chars().all(digits)).then_some("${…:…}")
}

/// Returns true if bash evaluates nothing in a subscript.
fn is_literal(subscript: &str) -> bool {
    ["@", "*"].contains(&subscript) || subscript.bytes().all(|byte| byte.is_ascii_digit())
}
