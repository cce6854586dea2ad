//! How this program is called, for every command that people are told to type.
//!
//! **Invariant:** a command that is told works where it is told. A run that is kept elsewhere by a
//! flag is found by that flag only, so the flag is part of what is told. What comes from the
//! environment is still there when somebody types.

use std::fmt::{Display, Formatter, Result};
use std::path::Path;
use std::sync::OnceLock;

/// The program with the flags that it needs again: `{ORCHESTRATE} resume ID`.
pub const ORCHESTRATE: Called = Called;

static FLAGS: OnceLock<String> = OnceLock::new();

pub struct Called;

impl Display for Called {
    fn fmt(&self, out: &mut Formatter<'_>) -> Result {
        out.write_str("orchestrate")?;
        out.write_str(FLAGS.get().map_or("", String::as_str))
    }
}

/// Says where runs are kept, as it was given on the command line. The first to say so counts.
pub fn keep_state_dir(path: &Path) {
    let _ = FLAGS.set(format!(" --state-dir {}", word(path)));
}

/// A path as one word for a shell.
pub fn word(path: &Path) -> String {
    let text = path.to_string_lossy();
    let plain = |c: char| c.is_alphanumeric() || "/._-+,:@%=".contains(c);
    if !text.is_empty() && text.chars().all(plain) && !text.starts_with('-') {
        return text.into_owned();
    }
    // After a dash it would be a flag.
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
