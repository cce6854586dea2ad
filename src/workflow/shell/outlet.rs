//! Where what a command prints goes: into a shell as script, or into variables by `read`.
//!
//! Only `echo` and `printf` are followed, which print what they are given, and only to who reads it
//! first: what another program makes of it cannot be told.

use std::collections::HashMap;

use super::builtin;

/// So many bytes are looked at, in each direction.
pub const NEAR: usize = 4096;

/// What a command may be behind of: words that begin one, and settings.
const OPENERS: [&str; 10] =
    ["{", "(", "!", "while", "until", "if", "then", "do", "time", "command"];

/// Where the output of a command goes.
#[derive(Debug, PartialEq, Eq)]
pub enum Goes<'a> {
    /// To what stands around the command.
    Out,
    /// To the command that begins here.
    Piped(&'a [u8]),
    /// To a file, or nobody can tell.
    Elsewhere,
}

/// Who reads it.
#[derive(Debug, PartialEq, Eq)]
pub enum Reader {
    /// A shell, as script.
    Script,
    /// These variables.
    Names(Vec<String>),
}

/// Whether a command that is cut off before a value prints that value as it is.
pub fn prints(command: &[u8]) -> bool {
    let head = &command[..command.len().min(512)];
    let has = |word: &[u8]| head.windows(word.len()).any(|text| text == word);
    if !has(b"echo") && !has(b"printf") {
        return false;
    }
    let words = builtin::words_near(command);
    let Some((current, before)) = words.split_last() else { return false };
    if current.contains(['<', '>']) || before.iter().any(|word| word.contains(['<', '>'])) {
        return false;
    }
    let mut words = before.iter().map(String::as_str).skip_while(|word| is_opener(word));
    match words.next() {
        Some("echo") => true,
        Some("printf") => match words.next() {
            // It is the format.
            None => !current.starts_with("-v"),
            Some("-v") => false,
            Some(format) => builtin::prints_text(format),
        },
        _ => false,
    }
}

/// Whether what stands behind this much of a command is a text that it reads: `<<< VALUE`.
pub fn is_given_text(command: &[u8]) -> bool {
    let near = &command[command.len().saturating_sub(NEAR)..];
    if !near.windows(3).any(|sign| sign == b"<<<") {
        return false;
    }
    let words = builtin::words_near(command);
    let Some((current, before)) = words.split_last() else { return false };
    current.contains("<<<") || before.last().is_some_and(|word| word.ends_with("<<<"))
}

fn is_opener(word: &str) -> bool {
    OPENERS.contains(&word) || builtin::is_setting(word)
}

/// Where the output of a command goes that goes on at a place, in these quotes or none.
pub fn goes<'a>(
    text: &'a [u8],
    at: usize,
    mut quote: Option<u8>,
    closed: &HashMap<usize, usize>,
) -> Goes<'a> {
    let (begin, mut at) = (at, at);
    while let Some(byte) = text.get(at).copied() {
        if at - begin > NEAR {
            return Goes::Elsewhere;
        }
        let next = text.get(at + 1).copied();
        at += 1;
        match byte {
            b'\\' if quote != Some(b'\'') => at += 1,
            b'(' if quote != Some(b'\'') => match closed.get(&(at - 1)) {
                Some(end) => at = end + 1,
                None => return Goes::Elsewhere,
            },
            _ if quote == Some(byte) => quote = None,
            _ if quote.is_some() => {}
            b'\'' | b'"' => quote = Some(byte),
            // What it complains of is another matter.
            b'>' if text[..at - 1].ends_with(b" 2") => at += usize::from(next == Some(b'&')),
            b'<' | b'>' => return Goes::Elsewhere,
            b'|' if next == Some(b'|') => return Goes::Out,
            b'|' => return Goes::Piped(&text[at + usize::from(next == Some(b'&'))..]),
            b'\n' | b';' | b'&' | b')' | b'`' => return Goes::Out,
            _ => {}
        }
    }
    Goes::Out
}

/// Who reads the input of a command that begins here; of a loop or a group, its first command.
pub fn reader(command: &[u8]) -> Option<Reader> {
    let start = command.iter().position(|byte| !byte.is_ascii_whitespace())?;
    let command = &command[start..];
    // A parenthesis opens a group, whether or not a blank follows.
    if let Some(group) = command.strip_prefix(b"(") {
        return reader(group);
    }
    let ends = |byte: &u8| b"\n;|&)`".contains(byte);
    let end = command.iter().take(NEAR).position(ends).unwrap_or(command.len().min(NEAR));
    let words = builtin::words(&command[..end]);
    let mut words = words.iter().map(String::as_str).skip_while(|word| is_opener(word));
    match words.next()? {
        "read" => Some(Reader::Names(names(words, "adinNptu", "REPLY"))),
        "mapfile" | "readarray" => Some(Reader::Names(names(words, "dnOsuCc", "MAPFILE"))),
        _ => builtin::reads_script(&command[..end]).then_some(Reader::Script),
    }
}

/// The variables that a command is told to read into. What follows one of these options is no
/// other one, but for `-a`, whose value is such a variable.
fn names<'a>(words: impl Iterator<Item = &'a str>, options: &str, usual: &str) -> Vec<String> {
    let (mut found, mut skip) = (Vec::new(), false);
    for word in words {
        if word.contains(['<', '>']) {
            break;
        }
        let option = word.strip_prefix('-').and_then(|letters| letters.chars().last());
        if !std::mem::take(&mut skip) && option.is_none() && !word.is_empty() {
            found.push(word.to_owned());
        }
        skip = option.is_some_and(|last| last != 'a' && options.contains(last));
    }
    if found.is_empty() {
        found.push(usual.to_owned());
    }
    found
}

/// Every variable that a script reads into.
pub fn read_anywhere(script: &[u8]) -> Vec<String> {
    let commands = script.split(|byte| b"\n;|&()`".contains(byte));
    let names = commands.filter_map(|command| match reader(command)? {
        Reader::Names(names) => Some(names),
        Reader::Script => None,
    });
    names.flatten().collect()
}

/// Who reads the input of the loop that ends behind this much of a script.
pub fn of_loop(before: &[u8]) -> Option<Reader> {
    let near = &before[before.len().saturating_sub(NEAR)..];
    let mut open = Vec::new();
    let mut at = 0;
    for word in near.split(|byte| byte.is_ascii_whitespace() || *byte == b';') {
        match word {
            b"while" | b"until" => open.push(Some(at)),
            b"for" | b"select" => open.push(None),
            b"done" => _ = open.pop(),
            _ => {}
        }
        at += word.len() + 1;
    }
    reader(&near[open.pop().flatten()?..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(names: &str) -> Option<Reader> {
        Some(Reader::Names(names.split(' ').map(str::to_owned).collect()))
    }

    #[test]
    fn what_prints_a_value_is_known() {
        for command in ["echo ", "echo -n \"it is ", "if echo ", "x=1 printf ", "printf '%s\\n' "] {
            assert!(prints(command.as_bytes()), "{command}");
        }
        for command in
            ["cat ", "printf -v n %s ", "printf %d ", "echo > ", "echo a >&2 ", "my echo ", ""]
        {
            assert!(!prints(command.as_bytes()), "{command}");
        }
    }

    #[test]
    fn the_way_of_the_output_is_known() {
        let pairs = HashMap::from([(2, 6)]);
        let goes = |text: &'static str, quote| goes(text.as_bytes(), 0, quote, &pairs);
        assert_eq!(goes(" | cat", None), Goes::Piped(b" cat"));
        assert_eq!(goes(" |& cat", None), Goes::Piped(b" cat"));
        assert_eq!(goes("|\" | cat", Some(b'"')), Goes::Piped(b" cat"));
        assert_eq!(goes(" $(a|b) | cat", None), Goes::Piped(b" cat"));
        assert_eq!(goes(" 2>&1 2> x | cat", None), Goes::Piped(b" cat"));
        for text in ["", " || cat", "; cat | x", " && x | y", "\\| x", ") | x", " '|' x"] {
            assert_eq!(goes(text, None), Goes::Out, "{text}");
        }
        assert_eq!(goes(" > x | y", None), Goes::Elsewhere);
    }

    #[test]
    fn who_reads_is_known() {
        for (command, wanted) in [
            (" read n; x", read("n")),
            ("while IFS= read -r a b; do", read("a b")),
            ("{ read -d '' -p x n\n }", read("n")),
            ("(read -ra list", read("list")),
            ("( until ! read", read("REPLY")),
            ("mapfile -t lines && x", read("lines")),
            ("sh", Some(Reader::Script)),
            ("/bin/bash -s x | y", Some(Reader::Script)),
            ("sudo -u me bash", Some(Reader::Script)),
            ("bash x.sh", None),
            ("grep -v bash", None),
            ("wc -l | read n", None),
        ] {
            assert_eq!(reader(command.as_bytes()), wanted, "{command}");
        }
        let script = "for x in a; do while read n; do while read m; do :; done < y; x; ";
        assert_eq!(of_loop(script.as_bytes()), read("n"));
        assert_eq!(of_loop(b"while read n; do :; done; for x in a; do :; "), None);
    }
}
