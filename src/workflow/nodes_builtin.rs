//! What commands of bash itself take a word for: some reckon with it, some take it for the name of
//! a variable. In both, bash executes commands that stand in the word.

/// What a word must be to be only what it looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    Number,
    Name,
}

/// Of a long command its beginning and its end are looked at, so many bytes of each.
const NEAR: usize = 512;

/// After these a command begins.
const BEFORE: [&str; 12] =
    ["if", "then", "elif", "else", "while", "until", "do", "{", "!", "time", "command", "builtin"];

/// Variables that bash reckons with whenever they are set.
const INTEGERS: [&str; 3] = ["RANDOM=", "OPTIND=", "HISTCMD="];

/// How a command that is cut off before a value takes that value.
pub fn read_as(command: &[u8]) -> Option<Reading> {
    let words = match command.len() > 2 * NEAR {
        true => words(&[&command[..NEAR], b" ", &command[command.len() - NEAR..]].concat()),
        false => words(command),
    };
    let (current, before) = words.split_last()?;
    let redirected = |word: &String| word.ends_with(['<', '>']);
    if current.contains(['<', '>']) || before.last().is_some_and(redirected) {
        return None;
    }
    if INTEGERS.iter().any(|name| current.starts_with(name)) {
        return Some(Reading::Number);
    }
    let begin = before.iter().rposition(|word| BEFORE.contains(&word.as_str()));
    let before = &before[begin.map_or(0, |at| at + 1)..];
    let begin = before.iter().position(|word| !word.contains('='))?;
    let (name, before) = (before[begin].as_str(), &before[begin + 1..]);
    let last = before.last().map_or("", String::as_str);
    match name {
        "let" => Some(Reading::Number),
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
        for (numbers, names, others) in [(
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
            ][..],
        )] {
            for (commands, wanted) in
                [(numbers, Some(Reading::Number)), (names, Some(Reading::Name)), (others, None)]
            {
                for command in commands {
                    assert_eq!(read_as(command.as_bytes()), wanted, "{command}");
                }
            }
        }
        let long = format!("let {} n=", "a=1 ".repeat(NEAR));
        assert_eq!(read_as(long.as_bytes()), Some(Reading::Number));
    }
}
