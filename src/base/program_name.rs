//! The way this program was called, for every command that a message asks the user to type.
//!
//! **Invariant:** a suggested command works where it is printed. If a flag selects the state
//! directory, only that flag finds the run, so the suggestion includes the flag. Settings from the
//! environment are still set when the user types the command.

use std::fmt::{Display, Formatter, Result};
use std::path::Path;
use std::sync::OnceLock;

/// The program with the flags that it needs again: `{ORCHESTRATE} resume ID`.
pub(crate) const ORCHESTRATE: Called = Called;

static FLAGS: OnceLock<String> = OnceLock::new();

pub(crate) struct Called;

impl Display for Called {
    fn fmt(&self, out: &mut Formatter<'_>) -> Result {
        out.write_str("orchestrate")?;
        out.write_str(FLAGS.get().map_or("", String::as_str))
    }
}

/// Sets the state directory that was given on the command line. Only the first call counts.
pub(crate) fn keep_state_dir(path: &Path) {
    let _ = FLAGS.set(format!(" --state-dir {}", word(path)));
}

/// Quotes a path as one shell word.
pub(crate) fn word(path: &Path) -> String {
    let text = path.to_string_lossy();
    let plain = |c: char| c.is_alphanumeric() || "/._-+,:@%=".contains(c);
    if !text.is_empty() && text.chars().all(plain) && !text.starts_with('-') {
        return text.into_owned();
    }
    // With a leading dash, the path would be read as a flag.
    let dash = if text.starts_with('-') { "./" } else { "" };
    format!("'{dash}{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_one_word() {
        let word = |text: &str| super::word(Path::new(text));
        assert_eq!(word("/a/b-c.d"), "/a/b-c.d");
        assert_eq!(word("my dir's"), r"'my dir'\''s'");
        assert_eq!(word("-x"), "'./-x'");
        assert_eq!(word(""), "''");
    }
}
