//! What commands take a word for: some reckon with it, some take it for the name of a variable, and
//! in both bash executes commands that stand in the word. Some read it as script.

use std::collections::BTreeSet;

/// What a word must be to be only what it looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    Number,
    Name,
    /// No word is.
    Script,
}

/// Of a long command its beginning and its end are looked at, so many bytes of each.
const NEAR: usize = 512;

/// After these a command begins.
const BEFORE: [&str; 12] =
    ["if", "then", "elif", "else", "while", "until", "do", "{", "!", "time", "command", "builtin"];

/// Variables that bash reckons with whenever they are set.
const INTEGERS: [&str; 3] = ["RANDOM=", "OPTIND=", "HISTCMD="];

/// Variables in which bash executes commands.
const SCRIPTS: [&str; 5] = ["PS0=", "PS1=", "PS2=", "PS4=", "PROMPT_COMMAND="];

/// Programs that read a script: from an argument behind `-c`, else from their input.
const SHELLS: [&str; 8] = ["sh", "bash", "dash", "ash", "ksh", "mksh", "zsh", "su"];

/// How numbers are compared in `[[ … ]]`.
const COMPARISONS: [&str; 6] = ["-eq", "-ne", "-lt", "-le", "-gt", "-ge"];

/// Commands that declare variables.
const DECLARE: [&str; 6] = ["declare", "typeset", "local", "integer", "readonly", "export"];

pub fn compares(word: &[u8]) -> bool {
    COMPARISONS.iter().any(|one| word == one.as_bytes())
}

fn is_shell(word: &str) -> bool {
    SHELLS.contains(&word.rsplit('/').next().unwrap_or(word))
}

/// The words of a command that is cut off, of a long one those at both of its ends.
fn words_near(command: &[u8]) -> Vec<String> {
    match command.len() > 2 * NEAR {
        true => words(&[&command[..NEAR], b" ", &command[command.len() - NEAR..]].concat()),
        false => words(command),
    }
}

/// Whether a command can begin behind this much of one.
pub fn begins_command(before: &[u8]) -> bool {
    let words = words(before);
    let complete = before.last().is_none_or(u8::is_ascii_whitespace);
    let last = words.iter().rev().find(|word| !word.is_empty());
    complete && last.is_none_or(|word| BEFORE.contains(&word.as_str()))
}

/// Whether a command that is cut off before a here-document reads its input as script.
pub fn reads_script(command: &[u8]) -> bool {
    let words = words_near(command);
    let Some(at) = words.iter().rposition(|word| is_shell(word)) else { return false };
    let redirects = |word: &String| word.contains(['<', '>']);
    let rest = words[at + 1..].iter().filter(|word| !word.is_empty() && !redirects(word));
    // With a script of its own, its input is only input; behind `-s` are arguments.
    let (options, others): (Vec<_>, Vec<_>) = rest.partition(|word| word.starts_with(['-', '+']));
    let has = |letter| options.iter().any(|word| !word.starts_with("--") && word.contains(letter));
    !has('c') && (has('s') || has('o') || others.is_empty())
}

/// Whether the rest of a line pipes into a shell.
pub fn pipes_into_shell(rest: &[u8]) -> bool {
    rest.split(|byte| *byte == b'|').skip(1).any(reads_script)
}

/// The variables that a script reckons with outside of arithmetic expressions: those declared as
/// integers, set by `let`, and compared as numbers in `[[ … ]]`.
pub fn numbers(script: &[u8]) -> BTreeSet<String> {
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
            names.for_each(|word| variables(word, &mut found));
        }
    }
    let text = String::from_utf8_lossy(script);
    for test in text.split("[[").skip(1) {
        let test = test.split("]]").next().unwrap_or_default();
        if test.split_ascii_whitespace().any(|word| compares(word.as_bytes())) {
            variables(test, &mut found);
        }
    }
    found
}

/// Whether a command may be one that declares numbers.
fn may_declare(command: &[u8]) -> bool {
    DECLARE
        .iter()
        .chain(&["let"])
        .any(|word| command.windows(word.len()).any(|text| text == word.as_bytes()))
}

/// All names in a text.
fn variables(text: &str, found: &mut BTreeSet<String>) {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let names =
        words.filter(|word| word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_'));
    found.extend(names.map(str::to_owned));
}

/// How a command that is cut off before a value takes that value.
pub fn read_as(command: &[u8]) -> Option<Reading> {
    let words = words_near(command);
    let (current, before) = words.split_last()?;
    let redirected = |word: &String| word.ends_with(['<', '>']);
    if current.contains(['<', '>']) || before.last().is_some_and(redirected) {
        let text =
            current.contains("<<<") || before.last().is_some_and(|word| word.ends_with("<<<"));
        return (text && reads_script(command)).then_some(Reading::Script);
    }
    if INTEGERS.iter().any(|name| current.starts_with(name)) {
        return Some(Reading::Number);
    }
    if SCRIPTS.iter().any(|name| current.starts_with(name)) || is_script_of_shell(before) {
        return Some(Reading::Script);
    }
    let begin = before.iter().rposition(|word| BEFORE.contains(&word.as_str()));
    let before = &before[begin.map_or(0, |at| at + 1)..];
    let begin = before.iter().position(|word| !word.contains('='))?;
    let (name, before) = (before[begin].as_str(), &before[begin + 1..]);
    let last = before.last().map_or("", String::as_str);
    match name {
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
fn is_script_of_shell(before: &[String]) -> bool {
    let Some(at) = before.iter().rposition(|word| is_shell(word)) else { return false };
    let option = |word: &String| word.starts_with(['-', '+']);
    let script = |word: &String| option(word) && !word.starts_with("--") && word.contains('c');
    let rest = &before[at + 1..];
    rest.iter().position(script).is_some_and(|at| rest[at + 1..].iter().all(option))
}

/// The options of `read` whose value is no name.
const READ_OPTIONS: [char; 7] = ['d', 'i', 'n', 'N', 'p', 't', 'u'];

/// Whether a test is one of a variable by its name.
pub fn is_of_variables(test: &str) -> bool {
    matches!(test, "-v" | "-R")
}

/// What the rest of a word is that names a variable and begins like this.
pub fn named(begun: &str) -> Reading {
    let open = begun.rfind('[').is_some_and(|open| !begun[open..].contains(']'));
    if open { Reading::Number } else { Reading::Name }
}

fn declared(command: &str, options: &[String], begun: &str) -> Option<Reading> {
    let has = |letter| options.iter().any(|word| word.starts_with('-') && word.contains(letter));
    match begun.contains('=') {
        true if command == "integer" || has('i') => Some(Reading::Number),
        true if has('n') => Some(Reading::Name),
        true => None,
        false if begun.starts_with('-') || matches!(command, "readonly" | "export") => None,
        false => Some(named(begun)),
    }
}

/// The words of a command without their quotes; the last one is cut off. A list in parentheses is
/// part of its word.
pub fn words(command: &[u8]) -> Vec<String> {
    let mut words: Vec<Vec<u8>> = Vec::new();
    let mut word: Option<Vec<u8>> = None;
    let (mut quote, mut escaped, mut depth) = (None, false, 0_usize);
    for byte in command.iter().copied() {
        let blank = byte.is_ascii_whitespace() && quote.is_none() && depth == 0;
        if blank && !escaped {
            words.extend(word.take());
            continue;
        }
        if escaped && byte == b'\n' {
            escaped = false;
            continue;
        }
        let word = word.get_or_insert_default();
        match byte {
            _ if escaped => word.push(byte),
            b'\\' if quote != Some(b'\'') => {
                escaped = true;
                continue;
            }
            _ if quote == Some(byte) => quote = None,
            b'\'' | b'"' if quote.is_none() => quote = Some(byte),
            _ => {
                if quote.is_none() {
                    depth += usize::from(byte == b'(');
                    depth = depth.saturating_sub(usize::from(byte == b')'));
                }
                word.push(byte);
            }
        }
        escaped = false;
    }
    words.push(word.unwrap_or_default());
    words.into_iter().map(|word| String::from_utf8_lossy(&word).into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
                "getopts ab ",
                "mapfile ",
            ][..],
            &[
                "",
                "echo ",
                "echo let ",
                "n=",
                "declare n=",
                "local n=\"it is ",
                "export PATH=a:",
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
            ][..],
        )] {
            for (commands, wanted) in [
                (scripts, Some(Reading::Script)),
                (numbers, Some(Reading::Number)),
                (names, Some(Reading::Name)),
                (others, None),
            ] {
                for command in commands {
                    assert_eq!(read_as(command.as_bytes()), wanted, "{command}");
                }
            }
        }
        let long = format!("let {} n=", "a=1 ".repeat(NEAR));
        assert_eq!(read_as(long.as_bytes()), Some(Reading::Number));
    }
}
