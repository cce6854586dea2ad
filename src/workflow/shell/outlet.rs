//! Where what a command prints goes: into a shell as script, or into variables by `read`.
//!
//! Only `echo` and `printf` are followed, which print what they are given, and only to who reads it
//! first: what another program makes of it cannot be told.

use std::collections::HashMap;

use super::builtin;
use super::command::{Command, Source};

/// So many bytes of a command that reads, and of the loop that it is in, are looked at.
const NEAR: usize = 4096;

/// Where the output of a command goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Goes {
    /// To what stands around the command.
    Out,
    /// To the command that begins here.
    Piped(usize),
    /// To a file, or nobody can tell.
    Elsewhere,
}

/// Who reads it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reader {
    /// A shell, as script.
    Script,
    /// These variables.
    Names(Vec<String>),
}

/// Whether a command that is cut off before a value prints that value as it is.
pub(super) fn prints(command: &Command) -> bool {
    let mut words = builtin::program(&command.words).iter().map(String::as_str);
    match words.next() {
        _ if command.sign.is_some() => false,
        Some("echo") => true,
        Some("printf") => match words.next() {
            // It is the format.
            None => !command.current.starts_with("-v"),
            Some("-v") => false,
            Some(format) => builtin::prints_text(format),
        },
        _ => false,
    }
}

/// The variables that a command which begins here reads into; of a loop or a group, its first
/// command.
pub(super) fn names_read(command: &[u8]) -> Option<Vec<String>> {
    let start = command.iter().position(|byte| !byte.is_ascii_whitespace())?;
    let command = &command[start..];
    // A parenthesis opens a group, whether or not a blank follows.
    if let Some(group) = command.strip_prefix(b"(") {
        return names_read(group);
    }
    let text = &command[..command.len().min(NEAR)];
    let (command, _) = Command::whole(Source { text, closed: &HashMap::new() }, 0, true);
    let (name, words) = builtin::program(&command.words).split_first()?;
    let words = words.iter().map(String::as_str);
    match name.as_str() {
        "read" => Some(names(words, "adinNptu", "REPLY")),
        "mapfile" | "readarray" => Some(names(words, "dnOsuCc", "MAPFILE")),
        _ => None,
    }
}

/// The variables that a command is told to read into. What follows one of these options is no
/// other one, but for `-a`, whose value is such a variable.
fn names<'a>(words: impl Iterator<Item = &'a str>, options: &str, usual: &str) -> Vec<String> {
    let (mut found, mut skip) = (Vec::new(), false);
    for word in words {
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
pub(super) fn read_anywhere(script: &[u8]) -> Vec<String> {
    let commands = script.split(|byte| b"\n;|&()`".contains(byte));
    commands.filter_map(names_read).flatten().collect()
}

/// The variables that the loop reads into which ends behind this much of a script.
pub(super) fn of_loop(before: &[u8]) -> Option<Vec<String>> {
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
    names_read(&near[open.pop().flatten()?..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_prints_a_value_is_known() {
        let prints = |command: &str| prints(&Command::read(command.as_bytes()));
        for command in [
            "echo ",
            "echo -n \"it is ",
            "if echo ",
            "x=1 printf ",
            "printf '%s\\n' ",
            "echo \\\n ",
            ">&2 echo ",
        ] {
            assert!(prints(command), "{command}");
        }
        for command in ["cat ", "printf -v n %s ", "printf %d ", "echo > ", "my echo ", ""] {
            assert!(!prints(command), "{command}");
        }
    }

    #[test]
    fn who_reads_is_known() {
        let read = |names: &str| -> Option<Vec<String>> {
            Some(names.split(' ').map(str::to_owned).collect())
        };
        for (command, wanted) in [
            (" read n; x", read("n")),
            ("while IFS= read -r a b; do", read("a b")),
            ("{ read -d '' -p x n\n }", read("n")),
            ("(read -ra list", read("list")),
            ("( until ! read", read("REPLY")),
            ("mapfile -t lines < x && x", read("lines")),
            ("bash x.sh", None),
            ("wc -l | read n", None),
        ] {
            assert_eq!(names_read(command.as_bytes()), wanted, "{command}");
        }
        let script = "for x in a; do while read n; do while read m; do :; done < y; x; ";
        assert_eq!(of_loop(script.as_bytes()), read("n"));
        assert_eq!(of_loop(b"while read n; do :; done; for x in a; do :; "), None);
    }
}
