//! Passes values to a shell script: in environment variables, with an expansion at each value's
//! position, quoted as that position requires.
//!
//! **Invariant:** a value is never part of a script.

use std::collections::VecDeque;

use super::Refusal;
use crate::template::nodes::Var;
use crate::workflow::shell::{Evaluation, Layout, Place, ValueUse};

/// Maximum number of characters of a value in a variable; longer values go to a file.
const SPILL_CHARS: usize = 32_768;

/// Maximum total size of the values in a script's environment; further values go to files.
const ENV_BYTES: usize = 512 * 1024;

/// Texts that bash may execute in a value that a script evaluates.
const EXECUTABLE: [&str; 6] = ["`", "$(", "${", "[", "<(", ">("];

/// The values to insert into a script.
#[derive(Default)]
pub(crate) struct Expansions {
    /// Placeholder for the run's directory.
    root: String,
    /// The values that are not inserted yet.
    values: VecDeque<ValueUse>,
    /// The first construct of the script that evaluates text.
    evaluates: Option<Evaluation>,
    /// The variables that carry the values.
    pub(crate) env: Vec<(String, String)>,
    /// Texts that go to files: digest and content.
    pub(crate) spilled: Vec<(String, String)>,
    /// The reason why a value cannot be inserted, if any.
    refused: Option<String>,
}

impl Expansions {
    pub(crate) fn new(layout: Layout, root: &str) -> Expansions {
        let Layout { values, evaluates } = layout;
        Expansions { root: root.to_owned(), values: values.into(), evaluates, ..Default::default() }
    }

    /// Returns the script text that represents a value. `what` is the author's name for it. A
    /// `bare` value can be a word without quotes.
    pub(crate) fn put(&mut self, what: &str, text: &str, bare: bool) -> String {
        let Some(used) = self.values.pop_front() else { return String::new() };
        if used.place == Place::Comment {
            return String::new();
        }
        if text.contains('\0') {
            self.refuse(|| format!("{what} has a NUL in it, as no variable of a shell can"));
            return String::new();
        }
        if let Some(fix) = used.place.fix() {
            self.refuse(|| format!("{what} is {}; {fix}", used.place.name()));
            return String::new();
        }
        self.check_value(what, text, used.run_by.as_ref());
        if used.place == Place::Word && bare {
            return text.to_owned();
        }
        let fits = text.chars().count() <= SPILL_CHARS && self.env_bytes() < ENV_BYTES;
        let value = if fits { format!("${{{}}}", self.variable(text)) } else { self.spill(text) };
        quoted(used.place, &value)
    }

    /// Returns the script text that represents a variable in the script's environment. Returns
    /// `None` to keep the variable's name: the script's author quotes user text.
    pub(crate) fn put_variable(&mut self, var: Var, text: &str) -> Option<String> {
        let used = self.values.pop_front()?;
        let run_by = used.run_by.as_ref().filter(|_| used.place != Place::Comment);
        self.check_value(&format!("`{var}`"), text, run_by);
        let place = used.place;
        match place.fix().filter(|_| place != Place::SingleQuotes) {
            _ if var.is_user_text() => return None,
            Some(fix) => self.refuse(|| format!("`{var}` is {}; {fix}", place.name())),
            None => {}
        }
        Some(quoted(place, &format!("${{{}}}", var.name())))
    }

    /// Refuses a value that the script could execute. `run_by` is the construct that runs the value
    /// as part of a script, if there is one.
    ///
    /// Only a plain word can be part of a script. Elsewhere in a script that evaluates text, a
    /// value must not contain code. The check does not follow values through the script.
    pub(crate) fn check_value(&mut self, what: &str, text: &str, run_by: Option<&Evaluation>) {
        if let Some(Evaluation { line, construct }) = run_by.filter(|_| !is_plain_word(text)) {
            self.refuse(|| {
                format!(
                    "line {line} of the script runs text as a script (`{construct}`), and {what} \
                     in it is not a plain word"
                )
            });
        }
        let code = EXECUTABLE.iter().find(|code| text.contains(**code));
        if let (Some(Evaluation { line, construct }), Some(code)) = (self.evaluates.clone(), code) {
            self.refuse(|| {
                format!(
                    "line {line} of the script evaluates text (`{construct}`), and bash could \
                     execute {what}, which contains `{code}`"
                )
            });
        }
    }

    fn refuse(&mut self, why: impl FnOnce() -> String) {
        self.refused.get_or_insert_with(why);
    }

    fn env_bytes(&self) -> usize {
        self.env.iter().map(|(_, value)| value.len()).sum()
    }

    /// Puts a value into a new variable, and returns the variable's name.
    fn variable(&mut self, value: &str) -> String {
        let name = format!("ORCHESTRATE_REF_{}", self.env.len() + 1);
        self.env.push((name.clone(), value.to_owned()));
        name
    }

    fn spill(&mut self, text: &str) -> String {
        let digest = crate::base::digest::sha256(text.as_bytes());
        // The path is also untrusted text, so it goes into a variable too.
        let path = format!("{}/{}", self.root, spill_path(&digest));
        let name = self.variable(&path);
        self.spilled.push((digest, text.to_owned()));
        format!("$(cat \"${{{name}}}\")")
    }

    /// Returns an error if a value cannot be inserted.
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        match &self.refused {
            Some(why) => Err(Refusal::new(format!("a value cannot be put into the script: {why}"))),
            None => Ok(()),
        }
    }
}

/// Returns true if no shell gives a meaning to any character of a text.
fn is_plain_word(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_alphanumeric() || "_-./:@%+,=".contains(c))
}

/// Returns true if a script contains a name as a separate word.
pub(crate) fn names(source: &str, name: &str) -> bool {
    let word =
        |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    let bytes = source.as_bytes();
    source.match_indices(name).any(|(at, _)| {
        let before = at.checked_sub(1).and_then(|at| bytes.get(at));
        !word(before) && !word(bytes.get(at + name.len()))
    })
}

/// Quotes an expansion as its place requires.
fn quoted(place: Place, value: &str) -> String {
    match place {
        Place::DoubleQuotes | Place::HereDocument | Place::Arithmetic => value.to_owned(),
        Place::SingleQuotes => format!("'\"{value}\"'"),
        Place::Comment => String::new(),
        _ => format!("\"{value}\""),
    }
}

/// Returns the path of a long text, relative to the run's directory.
pub(crate) fn spill_path(digest: &str) -> String {
    format!("values/{}.txt", &digest[..32])
}
