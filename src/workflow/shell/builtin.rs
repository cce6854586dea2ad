//! What commands take a word for: some reckon with it, some take it for the name of a variable or
//! for a list in parentheses, and in all of these bash executes commands that stand in the word.
//! Some read it as script.

use std::collections::BTreeSet;

use super::command::Command;

/// What a word must be to be only what it looks like; what is asked most of comes last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reading {
    /// What a variable is declared with: a list, if the variable is one.
    Declared,
    /// A text that is a list if it is in parentheses.
    List,
    Name,
    /// Whole numbers with white space between them.
    Numbers,
    Number,
    /// No word is.
    Script,
}

/// After these a command begins.
const BEFORE: [&str; 13] = [
    "if", "then", "elif", "else", "while", "until", "do", "{", "!", "time", "command", "builtin",
    "coproc",
];

/// Variables that bash reckons with whenever they are set.
pub(super) const INTEGERS: [&str; 4] = ["RANDOM", "SRANDOM", "OPTIND", "HISTCMD"];

/// Variables that are lists from the beginning.
pub(super) const LISTS: [&str; 2] = ["DIRSTACK", "COMP_WORDS"];

/// Variables in which bash executes commands.
const SCRIPTS: [&str; 5] = ["PS0=", "PS1=", "PS2=", "PS4=", "PROMPT_COMMAND="];

/// Programs that read a script: from an argument behind `-c`, else from their input.
const SHELLS: [&str; 21] = [
    "sh", "bash", "rbash", "dash", "ash", "ksh", "ksh93", "rksh", "mksh", "lksh", "oksh", "pdksh",
    "yash", "posh", "zsh", "rzsh", "fish", "csh", "tcsh", "su", "$0",
];

/// Variables that name a shell.
const SHELL_NAMES: [&str; 2] = ["SHELL", "BASH"];

/// Programs that hand one of their arguments to a shell, as script.
const HANDERS: [&str; 8] = ["env", "flock", "script", "ssh", "watch", "su", "runuser", "sg"];

/// Programs that read commands from their input, to run them later.
const LATER: [&str; 2] = ["at", "batch"];

/// The input of a command by the name of a file.
const INPUT: [&str; 3] = ["/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"];

/// Variables that name a file which a shell reads as script before it does anything else.
const PROFILES: [&str; 2] = ["BASH_ENV=", "ENV="];

/// Programs that run another one, which their arguments name, with their own input.
const RUNNERS: [&str; 42] = [
    "sudo",
    "doas",
    "env",
    "exec",
    "nohup",
    "nice",
    "ionice",
    "chrt",
    "taskset",
    "numactl",
    "timeout",
    "time",
    "gtimeout",
    "stdbuf",
    "unbuffer",
    "setsid",
    "flock",
    "ssh",
    "docker",
    "podman",
    "nerdctl",
    "kubectl",
    "chroot",
    "nsenter",
    "unshare",
    "runuser",
    "setpriv",
    "gosu",
    "su-exec",
    "tini",
    "dumb-init",
    "systemd-run",
    "bwrap",
    "firejail",
    "prlimit",
    "chronic",
    "strace",
    "ltrace",
    "busybox",
    "toybox",
    "script",
    "sg",
];

/// How numbers are compared in `[[ … ]]`.
const COMPARISONS: [&str; 6] = ["-eq", "-ne", "-lt", "-le", "-gt", "-ge"];

/// Commands that declare variables.
const DECLARE: [&str; 6] = ["declare", "typeset", "local", "integer", "readonly", "export"];

pub(super) fn compares(word: &[u8]) -> bool {
    COMPARISONS.iter().any(|one| word == one.as_bytes())
}

/// The name of a program, without where it is.
fn base(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

/// Whether a word names a shell: by its name, or by a variable that has it, `${SHELL:-/bin/sh}`.
fn is_shell(word: &str) -> bool {
    if word.strip_prefix('$').is_some_and(|name| SHELL_NAMES.contains(&name)) {
        return true;
    }
    match word.strip_prefix("${").and_then(|word| word.strip_suffix('}')) {
        Some(inside) => {
            let end = inside.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let (name, usual) = inside.split_at(end.unwrap_or(inside.len()));
            let usual = usual.trim_start_matches(':').trim_start_matches(['-', '=', '+']);
            name == "0" || SHELL_NAMES.contains(&name) || (!usual.is_empty() && is_shell(usual))
        }
        None => SHELLS.contains(&base(word)),
    }
}

/// Whether what a command does may depend on this word, wherever it stands.
pub(super) fn is_special(word: &str) -> bool {
    word.starts_with(['-', '+'])
        || is_shell(word)
        || HANDERS.contains(&base(word))
        || RUNNERS.contains(&base(word))
        || BEFORE.contains(&word)
        || PROFILES.iter().any(|name| word.starts_with(name))
}

/// Whether a word sets a variable for its command.
pub(super) fn is_setting(word: &str) -> bool {
    let name = word.split_once('=').map_or("", |(name, _)| name);
    !name.is_empty() && name.bytes().all(is_word)
}

/// Whether a command can begin behind this much of one.
pub(super) fn begins_command(before: &[u8]) -> bool {
    let complete = before.last().is_none_or(u8::is_ascii_whitespace);
    complete && words(before).last().is_none_or(|word| BEFORE.contains(&word.as_str()))
}

/// Whether a command is read behind this much of a definition: `function NAME`, `coproc NAME`.
pub(super) fn begins_body(before: &[u8]) -> bool {
    matches!(words(before).as_slice(), [first, _] if first == "function" || first == "coproc")
}

/// Whether a command reads a file as script, in the shell itself.
pub(super) fn sources(name: &str) -> bool {
    matches!(name, "." | "source")
}

/// The words of a text.
fn words(text: &[u8]) -> Vec<String> {
    let command = Command::read(text);
    let current = (!command.current.is_empty()).then_some(command.current);
    command.words.into_iter().chain(current).collect()
}

/// The words from the name of the program on: behind words that begin a command, and settings.
pub(super) fn program(words: &[String]) -> &[String] {
    let mut at = 0;
    while let Some(word) = words.get(at).map(String::as_str) {
        at += match word {
            "function" => 2,
            "coproc" if words.get(at + 2).is_some_and(|word| word == "{") => 2,
            "command" | "builtin" | "time" => {
                let options = words[at + 1..].iter().take_while(|word| word.starts_with('-'));
                1 + options.count()
            }
            _ if BEFORE.contains(&word) || assigned(word).is_some() => 1,
            _ => break,
        };
    }
    words.get(at..).unwrap_or_default()
}

/// What a shell does, by the words behind its name.
#[derive(Default)]
struct Started {
    /// Whether the first argument is script.
    script: bool,
    /// Whether its input is, whatever is behind.
    input: bool,
    /// The first argument that is no option.
    first: Option<String>,
    /// Whether what follows is the value of an option.
    asks: bool,
}

fn started(arguments: &[String]) -> Started {
    let mut found = Started::default();
    let mut only_arguments = false;
    for word in arguments {
        if std::mem::take(&mut found.asks) {
            continue;
        }
        if only_arguments || !word.starts_with(['-', '+']) {
            found.first = Some(word.clone());
            break;
        }
        match word.strip_prefix("--") {
            Some("") => only_arguments = true,
            Some("command") => found.script = true,
            Some(long) => found.asks = matches!(long, "rcfile" | "init-file"),
            None if word == "-" => only_arguments = true,
            None => {
                found.script |= word.starts_with('-') && word.contains('c');
                found.input |= word.contains('s');
                found.asks = word.ends_with(['o', 'O']);
            }
        }
    }
    found
}

/// Whether a command reads its input as script.
pub(super) fn reads_script(command: &Command) -> bool {
    let own = program(&command.words);
    let Some(name) = own.first().map(|word| base(word)) else { return false };
    let is_input = |word: &String| INPUT.contains(&word.as_str());
    match name {
        "." | "source" => return own.get(1).is_some_and(is_input),
        _ if LATER.contains(&name) => return !own.iter().any(|word| word.starts_with("-f")),
        // Others may have the name of a shell among their arguments: `grep bash`.
        _ if !is_shell(&own[0]) && !RUNNERS.contains(&name) => return false,
        _ => {}
    }
    let names_input = |file: &str| INPUT.contains(&file);
    let profile = |word: &String| {
        PROFILES.iter().any(|name| word.strip_prefix(name).is_some_and(names_input))
    };
    let Some(at) = command.words.iter().rposition(|word| is_shell(word)) else {
        return starts_shell(own);
    };
    if command.words[..at].iter().any(profile) {
        return true;
    }
    let arguments = &command.words[at + 1..];
    let found = started(arguments);
    match base(&command.words[at]) {
        // What is no option is whose shell it is.
        "su" => !arguments.iter().any(|word| word.starts_with("-c") || word == "--command"),
        // With a script of its own, its input is only input; behind `-s` are arguments.
        _ => !found.script && (found.input || found.first.as_ref().is_none_or(is_input)),
    }
}

/// Whether a program that runs others starts a shell by itself, as no other one is named.
fn starts_shell(own: &[String]) -> bool {
    match base(&own[0]) {
        "ssh" => {
            let (host, commanded) = host_of(&own[1..]);
            host && !commanded
        }
        "sudo" | "doas" => {
            let shell = |word: &String| {
                matches!(word.as_str(), "--shell" | "--login") || letters(word).contains(['s', 'i'])
            };
            own.last().is_some_and(shell)
        }
        _ => false,
    }
}

/// Whether the words behind `ssh` name a host, and whether a command for it.
fn host_of(arguments: &[String]) -> (bool, bool) {
    let mut words = arguments.iter().map(String::as_str);
    let host = loop {
        match words.next() {
            Some(word) if letters(word).ends_with(SSH_OPTIONS) => _ = words.next(),
            Some(word) if word.starts_with('-') => {}
            other => break other,
        }
    };
    (host.is_some(), words.next().is_some())
}

/// The letters of a word of short options.
fn letters(word: &str) -> &str {
    let letters = word.strip_prefix('-').filter(|letters| !letters.starts_with('-'));
    letters.unwrap_or_default()
}

/// The variables that a script reckons with outside of arithmetic expressions: those declared as
/// integers, and those in `let`.
pub(super) fn numbers(script: &[u8]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let ends = |byte: &u8| b"\n;&|()`".contains(byte);
    for command in script.split(ends) {
        if !may_declare(command) {
            continue;
        }
        let text = String::from_utf8_lossy(command);
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let Some(at) = words.iter().position(|word| DECLARE.contains(word) || *word == "let")
        else {
            continue;
        };
        let (name, rest) = (words[at], &words[at + 1..]);
        let integer = rest.iter().any(|word| word.starts_with('-') && word.contains('i'));
        if integer || matches!(name, "let" | "integer") {
            let names = rest.iter().filter(|word| !word.starts_with('-'));
            names.for_each(|word| match name {
                "let" => variables(word, &mut found),
                _ => variables(word.split('=').next().unwrap_or_default(), &mut found),
            });
        }
    }
    found
}

/// The variables that a script has for lists, as far as commands say so.
pub(super) fn lists(script: &[u8]) -> BTreeSet<String> {
    let mut found: BTreeSet<String> = LISTS.map(str::to_owned).into();
    for command in script.split(|byte| b"\n;&|()`".contains(byte)) {
        let text = String::from_utf8_lossy(command);
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let list = |word: &&str| {
            word.starts_with(['-', '+']) && !word.starts_with("--") && word.contains(['a', 'A'])
        };
        let at = words.iter().position(|word| {
            DECLARE.contains(word) || matches!(*word, "read" | "mapfile" | "readarray")
        });
        let Some(at) = at else { continue };
        let (name, rest) = (words[at], &words[at + 1..]);
        if matches!(name, "mapfile" | "readarray") || rest.iter().any(list) {
            let names = rest.iter().filter(|word| !word.starts_with('-'));
            names.for_each(|word| variables(word.split('=').next().unwrap_or(word), &mut found));
        }
    }
    found
}

/// The functions that a script defines.
pub(super) fn functions(script: &[u8]) -> BTreeSet<String> {
    let text = String::from_utf8_lossy(script);
    let last = |text: &str| -> Option<String> {
        let text = text.trim_end_matches([' ', '\t']);
        let begin = text.rfind(|c: char| !is_of_function(c)).map_or(0, |at| at + 1);
        let name = text.get(begin..).unwrap_or_default();
        (!name.is_empty()).then(|| name.to_owned())
    };
    let mut found: BTreeSet<String> = text
        .match_indices('(')
        .filter(|(at, _)| text[at + 1..].trim_start().starts_with(')'))
        .filter_map(|(at, _)| last(&text[..at]))
        .collect();
    for (at, word) in text.match_indices("function ") {
        let name = text[at + word.len()..].trim_start();
        let end = name.find(|c: char| !is_of_function(c)).unwrap_or(name.len());
        found.insert(name[..end].to_owned());
    }
    found
}

fn is_of_function(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':')
}

/// Stands for what a function or script was called with.
pub(super) const ARGUMENTS: &str = "@";

/// The variables that a command, cut off before a value, sets to that value.
pub(super) fn targets(command: &Command, functions: &BTreeSet<String>) -> Vec<String> {
    if command.sign.is_some() {
        return Vec::new();
    }
    let current = &command.current;
    let (name, rest) = match program(&command.words).split_first() {
        Some((name, rest)) => (name.as_str(), rest),
        None => ("", &[][..]),
    };
    let plain = |word: &&String| !word.is_empty() && word.bytes().all(is_word);
    let plain = |words: &[String]| words.iter().filter(plain).cloned().collect::<Vec<_>>();
    match name {
        "for" | "select" if rest.get(1).is_some_and(|word| word == "in") => plain(&rest[..1]),
        "printf" if rest.first().is_some_and(|word| word == "-v") && rest.len() > 1 => {
            // Where nothing is behind the name, it is the format itself.
            match rest.get(2).is_none_or(|format| prints_text(format)) {
                true => plain(&rest[1..2]),
                false => Vec::new(),
            }
        }
        "getopts" if rest.len() > 1 => plain(&[&rest[1..2], &[OPTION.to_owned()]].concat()),
        "set" => vec![ARGUMENTS.to_owned()],
        name if functions.contains(name) => vec![ARGUMENTS.to_owned()],
        _ => assigned(current).into_iter().collect(),
    }
}

/// Whether a format of `printf` prints an argument as it is. All else makes a number of it, or one
/// character.
pub(super) fn prints_text(format: &str) -> bool {
    // What the format is cannot be told.
    if format.contains(['$', '\0', '\u{1}']) {
        return true;
    }
    let flags = |c: char| c.is_ascii_digit() || "-+ #0'.*".contains(c);
    let mut parts = format.split('%').skip(1);
    parts.any(|part| part.trim_start_matches(flags).starts_with(['s', 'b', 'q', 'Q', '(']))
}

/// Whether a command prints whole numbers, whatever it reads.
pub(super) fn prints_numbers(command: &Command) -> bool {
    let Some((name, rest)) = program(&command.words).split_first() else { return false };
    let has = |letter| {
        rest.iter()
            .any(|word| word.starts_with('-') && !word.starts_with("--") && word.contains(letter))
    };
    let digits = |word: &String| {
        word.contains("[0-9]") && word.chars().all(|c| "[0-9]+*^$\\{},".contains(c))
    };
    match name.as_str() {
        "wc" | "cksum" | "nproc" => true,
        "printf" => rest.first().is_some_and(|format| !prints_text(format)),
        "grep" => has('c') || (has('o') && rest.iter().any(digits)),
        "tr" => {
            let sets = ["0-9", "[0-9]", "[:digit:]"];
            has('d') && has('c') && rest.last().is_some_and(|set| sets.contains(&set.as_str()))
        }
        "sed" => rest.len() == 1 && rest[0] == "s/[^0-9]//g",
        _ => false,
    }
}

/// The variable that `getopts` sets to the value of an option.
pub(super) const OPTION: &str = "OPTARG";

/// The variables that a script sets to the name of another one, each with that name and whether it
/// stands for the other one from then on.
pub(super) fn aliases(script: &[u8]) -> Vec<(String, String, bool)> {
    let mut found = Vec::new();
    for command in script.split(|byte| b"\n;&|()`".contains(byte)) {
        if !command.contains(&b'=') {
            continue;
        }
        let text = String::from_utf8_lossy(command);
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let declares = words.iter().any(|word| DECLARE.contains(word));
        let stands =
            declares && words.iter().any(|word| word.starts_with('-') && word.contains('n'));
        for word in words {
            let Some((name, value)) = word.split_once('=') else { continue };
            let value = value.trim_matches(['"', '\'']);
            if is_name(name) && is_name(value) {
                found.push((name.to_owned(), value.to_owned(), stands));
            }
        }
    }
    found
}

/// The variables that a script declares as maps from texts to texts, each with where.
pub(super) fn maps(script: &[u8]) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    let mut at = 0;
    for line in script.split_inclusive(|byte| *byte == b'\n') {
        let commented = |at: &usize| {
            line[*at] == b'#' && at.checked_sub(1).is_none_or(|at| line[at].is_ascii_whitespace())
        };
        let end = (0..line.len()).find(commented).unwrap_or(line.len());
        let (code, comment) = line.split_at(end);
        for command in code.split_inclusive(|byte| b";&|()`\n".contains(byte)) {
            let (names, within) = declared_maps(command);
            found.extend(names.into_iter().map(|name| (name, at + within)));
            at += command.len();
        }
        at += comment.len();
    }
    found
}

/// The maps that a command, with what ends it, declares, and where in it.
fn declared_maps(command: &[u8]) -> (Vec<String>, usize) {
    let text = String::from_utf8_lossy(command);
    let words = text.split(|c: char| c.is_ascii_whitespace() || ";&|()`".contains(c));
    let words = words.filter(|word| !word.is_empty());
    let mut words = words.skip_while(|word| BEFORE.contains(word));
    let Some(declare) = words.next().filter(|word| DECLARE.contains(word)) else {
        return Default::default();
    };
    let (options, names): (Vec<_>, Vec<_>) = words.partition(|word| word.starts_with('-'));
    let map = |word: &&str| !word.starts_with("--") && word.contains('A');
    if !options.iter().any(map) {
        return Default::default();
    }
    let names = names.iter().map(|word| word.split('=').next().unwrap_or(word));
    let names = names.filter(|name| is_name(name)).map(str::to_owned).collect();
    (names, text.find(declare).unwrap_or_default())
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && text.bytes().all(is_word)
}

/// The variable that a word sets which begins like this.
fn assigned(begun: &str) -> Option<String> {
    let (name, _) = begun.split_once('=')?;
    let name = name.strip_suffix('+').unwrap_or(name);
    let name = name.split('[').next().unwrap_or(name);
    (!name.is_empty() && name.bytes().all(is_word)).then(|| name.to_owned())
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Whether a command may be one that declares numbers.
fn may_declare(command: &[u8]) -> bool {
    DECLARE
        .iter()
        .chain(&["let"])
        .any(|word| command.windows(word.len()).any(|text| text == word.as_bytes()))
}

/// All names in a text, but those of which only the length is meant.
fn variables(text: &str, found: &mut BTreeSet<String>) {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '#');
    let names =
        words.filter(|word| word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_'));
    found.extend(names.map(str::to_owned));
}

/// How a command that is cut off before a value takes that value.
pub(super) fn read_as(command: &Command) -> Option<Reading> {
    let (words, current) = (&command.words, command.current.as_str());
    if command.sign.is_some() {
        let script = command.is_given_text() && reads_script(command);
        return script.then_some(Reading::Script);
    }
    if assigned(current).is_some_and(|name| INTEGERS.contains(&name.as_str())) {
        return Some(Reading::Number);
    }
    if SCRIPTS.iter().any(|name| current.starts_with(name)) || is_script_of_shell(words) {
        return Some(Reading::Script);
    }
    let own = program(words);
    if is_handed(own, current) {
        return Some(Reading::Script);
    }
    let (name, before) = own.split_first()?;
    let last = before.last().map_or("", String::as_str);
    match name.as_str() {
        "let" => Some(Reading::Number),
        "eval" | "alias" => Some(Reading::Script),
        "trap" if before.iter().all(|word| word.starts_with('-')) => Some(Reading::Script),
        "mapfile" | "readarray" | "complete" | "compgen" if matches!(last, "-C" | "-W") => {
            Some(Reading::Script)
        }
        "mapfile" | "readarray" if !last.starts_with('-') && !current.starts_with('-') => {
            Some(named(current))
        }
        "getopts" if before.len() == 1 => Some(named(current)),
        "wait" if last == "-p" => Some(named(current)),
        "declare" | "typeset" | "local" | "integer" | "readonly" | "export" => {
            declared(name, before, current)
        }
        "unset" => Some(named(current)),
        "printf" if last == "-v" || current.starts_with("-v") => Some(named(current)),
        "test" | "[" if is_of_variables(last) => Some(named(current)),
        "read" => {
            let takes = |option: &str| option.starts_with('-') && option.ends_with(READ_OPTIONS);
            let option = current.starts_with('-') && !current.starts_with("-a");
            (!takes(last) && !option).then(|| named(current))
        }
        _ => None,
    }
}

/// Whether what follows these words is the script of a shell: `bash -euo pipefail -c`.
fn is_script_of_shell(words: &[String]) -> bool {
    let script = |at: usize| {
        let found = started(&words[at + 1..]);
        found.script && found.first.is_none() && !found.asks
    };
    (0..words.len()).any(|at| is_shell(&words[at]) && script(at))
}

/// The program that reads the script of a command: the last shell that it names, else itself.
pub(super) fn interpreter(command: &Command) -> String {
    let shell = command.words.iter().rev().find(|word| is_shell(word));
    let program = || program(&command.words).first();
    shell.or_else(program).map_or("", |word| base(word)).to_owned()
}

/// Whether a program hands a word that begins like this to a shell, as script: `flock FILE -c`,
/// `script -qc`, `env -S`, `watch`, `ssh HOST`.
fn is_handed(before: &[String], current: &str) -> bool {
    let hands = |word: &String| HANDERS.contains(&base(word));
    // Others may have the name of one among their arguments: `grep watch`.
    let first = before.first().map_or("", |word| base(word));
    let runs = HANDERS.contains(&first) || RUNNERS.contains(&first);
    let Some(at) = before.iter().rposition(hands).filter(|_| runs) else { return false };
    let (rest, last) = (&before[at + 1..], before.last().map_or("", String::as_str));
    match base(&before[at]) {
        "env" => {
            last == "--split-string"
                || current.starts_with("--split-string=")
                || letters(last).ends_with('S')
                || letters(current).contains('S')
        }
        "watch" => {
            let exec = |word: &String| word == "--exec" || letters(word).contains('x');
            let option = last == "--interval" || letters(last).ends_with('n');
            !rest.iter().any(exec) && !option && !current.starts_with('-')
        }
        // What follows the host is read by the shell there.
        "ssh" => host_of(rest).0,
        _ => {
            last == "--command"
                || current.starts_with("--command=")
                || letters(last).ends_with('c')
                || letters(current).starts_with('c')
        }
    }
}

/// The options of `ssh` that have a value.
const SSH_OPTIONS: [char; 22] = [
    'B', 'b', 'c', 'D', 'E', 'e', 'F', 'I', 'i', 'J', 'L', 'l', 'm', 'O', 'o', 'P', 'p', 'Q', 'R',
    'S', 'W', 'w',
];

/// The options of `read` whose value is no name.
const READ_OPTIONS: [char; 7] = ['d', 'i', 'n', 'N', 'p', 't', 'u'];

/// Whether a test is one of a variable by its name.
pub(super) fn is_of_variables(test: &str) -> bool {
    matches!(test, "-v" | "-R")
}

/// What the rest of a word is that names a variable and begins like this.
pub(super) fn named(begun: &str) -> Reading {
    let open = begun.rfind('[').is_some_and(|open| !begun[open..].contains(']'));
    if open { Reading::Number } else { Reading::Name }
}

fn declared(command: &str, options: &[String], begun: &str) -> Option<Reading> {
    let has = |letter| options.iter().any(|word| word.starts_with('-') && word.contains(letter));
    match begun.contains('=') {
        true if command == "integer" || has('i') => Some(Reading::Number),
        true if has('n') => Some(Reading::Name),
        // The elements of a list that is written out are words.
        true if begun.contains("=(") => None,
        true if has('a') || has('A') => Some(Reading::List),
        true => Some(Reading::Declared),
        false if begun.starts_with('-') || matches!(command, "readonly" | "export") => None,
        false => Some(named(begun)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_command_sets_is_known() {
        let functions = functions(b"f() { :; }\nfunction g-h { :; }\nk () (:)\nx=$(y)");
        assert_eq!(functions.iter().map(String::as_str).collect::<Vec<_>>(), ["f", "g-h", "k"]);
        for (command, wanted) in [
            ("n=", "n"),
            ("local n=\"x", "n"),
            ("a=(1 ", "a"),
            ("a[1]+=", "a"),
            ("for n in 1 ", "n"),
            ("printf -v n %s ", "n"),
            ("set -- ", "@"),
            ("f x ", "@"),
            ("if g-h ", "@"),
            ("echo n=", "n"),
            ("printf %s ", ""),
            ("printf -v n ", "n"),
            ("printf -v n '%-5s' ", "n"),
            ("printf -v n %d ", ""),
            ("getopts x: o -x ", "o OPTARG"),
            ("echo ", ""),
        ] {
            assert_eq!(
                targets(&Command::read(command.as_bytes()), &functions).join(" "),
                wanted,
                "{command}"
            );
        }
        let script = b"x; declare -A a b=(1); local -gA c\n# declare -A d\nif typeset -A e";
        let found: Vec<_> = maps(script).into_iter().map(|(name, _)| name).collect();
        assert_eq!(found, ["a", "b", "c", "e"]);
        assert_eq!(maps(script)[0].1, 3);
        let found = lists(b"read -ra x <<< 1; local -A y=; mapfile z");
        assert!(["x", "y", "z"].iter().all(|name| found.contains(*name)), "{found:?}");
    }

    #[test]
    fn a_value_is_read_as_its_command_reads_it() {
        for (scripts, numbers, names, others) in [(
            &[
                "eval ",
                "eval \"echo ",
                "x=1 eval 'a ",
                "then eval ",
                "sh -c ",
                "sh -c 'echo ",
                "/bin/bash -euo pipefail -c \"",
                "exec sh -c ",
                "sudo env A=b sh -lc ",
                "find . -exec sh -c 'x ",
                "su me -c ",
                "trap ",
                "trap -- 'rm ",
                "alias ll=",
                "PS4=",
                "bash <<< ",
                "bash -s <<<\"",
                "mapfile -C ",
                "bash /dev/stdin <<< ",
                "BASH_ENV=/dev/stdin bash -c : <<< ",
                "$SHELL -c ",
                "flock file -c ",
                "sudo flock file -c ",
                "script -qc ",
                "env -S \"bash -c '",
                "watch -n 5 ",
                "watch \"ls ",
                "ssh -p 22 host ",
                "ssh host \"cat ",
                "sh -c \\\n  ",
                "trap \\\n ",
                "2>/dev/null eval ",
                "</dev/null eval 'a < ",
                "2>/dev/null trap ",
                "eval if ",
                "command -p eval ",
                "function f { eval ",
                "bash -c -o pipefail ",
                "bash --norc -c ",
                "bash +x -cx ",
                "su -s /bin/bash me -c ",
                "rbash -c ",
                "fish --command ",
                "${SHELL:-/bin/sh} -c ",
                "\"$0\" -c ",
                "sh -c \"wc -l < ",
            ][..],
            &[
                "let n=",
                "let 'n = ",
                "x=1 let a \"b+",
                "then let ",
                "function f { let ",
                "declare -i n=",
                "declare -r -i m=1 n=1+",
                "typeset -ai n=(1 ",
                "local -i n=\"",
                "integer n=",
                "printf -v \"a[",
                "unset a[",
                "declare a[",
                "test -v 'a[",
                "RANDOM=",
                "SRANDOM=",
                "coproc let x=",
                "builtin let \\\n n=",
            ][..],
            &[
                "read ",
                "read -r x y",
                "read -p '' ",
                "read -a ",
                "printf -v ",
                "printf -v n_",
                "test -v ",
                "if [ -v \"",
                "[ a = b -a -v ",
                "unset -v ",
                "declare ",
                "local -n r=",
                "wait -p ",
                "wait -n -p ",
                "getopts ab ",
                "mapfile ",
            ][..],
            &[
                "",
                "echo ",
                "echo let ",
                "n=",
                "export ",
                "declare -a n=(1 ",
                "read -r x <<< ",
                "read -r x <<<\"",
                "read -p \"your name, ",
                "read -t ",
                "printf '%s' ",
                "printf -v x '%s' ",
                "test -n ",
                "[ 1 -gt ",
                "let n=1 > ",
                "sh -c 'echo $1' sh ",
                "sh -c 'echo $1' sh a ",
                "bash ",
                "bash script -c ".trim_end_matches("-c "),
                "evaluate ",
                "trap 'x' ",
                "cat <<< ",
                "bash x.sh <<< ",
                "sh -c 'cat' <<< ",
                "flock ",
                "flock file cat ",
                "grep watch ",
                "watch -n ",
                "watch -x ls ",
                "ssh ",
                "ssh -p ",
                "env A=",
                "env cat ",
                "bash x.sh -c ",
                "bash -o ",
                "${SHELLS} -c ",
                "sh > ",
                "if_eval ",
            ][..],
        )] {
            for (commands, wanted) in [
                (scripts, Some(Reading::Script)),
                (numbers, Some(Reading::Number)),
                (names, Some(Reading::Name)),
                (others, None),
            ] {
                for command in commands {
                    assert_eq!(read_as(&Command::read(command.as_bytes())), wanted, "{command}");
                }
            }
        }
        for (command, wanted) in [
            ("declare n=", Reading::Declared),
            ("local n=\"it is ", Reading::Declared),
            ("export PATH=a:", Reading::Declared),
            ("declare -a n=", Reading::List),
            ("readonly -A 'n=", Reading::List),
        ] {
            assert_eq!(read_as(&Command::read(command.as_bytes())), Some(wanted), "{command}");
        }
        let long = format!("let {} n=", "a=1 ".repeat(512));
        assert_eq!(read_as(&Command::read(long.as_bytes())), Some(Reading::Number));
    }
}
