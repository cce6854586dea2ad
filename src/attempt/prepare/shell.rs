//! Passes values to a shell script: in environment variables, with an expansion at each value's
//! position, quoted as that position requires.
//!
//! **Invariant:** a value is never part of a script.

use std::collections::VecDeque;

use super::Refusal;
use crate::template::nodes::Var;
use crate::workflow::shell::{self, Quotes, RECKON, Reading, Spot};

/// Maximum number of characters of a value in a variable; longer values go to a file.
const SPILL_CHARS: usize = 32_768;

/// Maximum total size of the values in a script's environment; further values go to files.
const ENV_BYTES: usize = 512 * 1024;

/// The values to insert into a script.
#[derive(Default)]
pub(crate) struct Expansions {
    /// Placeholder for the run's directory.
    pub root: String,
    /// Positions of the values that are not inserted yet.
    pub spots: VecDeque<Option<Spot>>,
    /// The variables that carry the values.
    pub env: Vec<(String, String)>,
    /// Texts that go to files: digest and content.
    pub spilled: Vec<(String, String)>,
    /// The reason why a value cannot be inserted at its position, if any.
    pub refused: Option<String>,
}

impl Expansions {
    /// Returns the script text that represents a value. `what` is the author's name for it. A
    /// `bare` value can be a word without quotes.
    pub(crate) fn put(&mut self, what: &str, text: &str, bare: bool) -> String {
        let spot = self.spots.pop_front().flatten();
        if text.contains('\0') && spot != Some(Spot::Comment) {
            let why = format!("{what} has a NUL in it, as no variable of a shell can");
            self.refused.get_or_insert(why);
            return String::new();
        }
        if let Some(text) = self.put_text(spot, what, text) {
            return text;
        }
        let safe = text.to_owned();
        if spot.is_none() && bare {
            return safe;
        }
        let fits = safe.chars().count() <= SPILL_CHARS && self.env_bytes() < ENV_BYTES;
        let value = if fits { format!("${{{}}}", self.variable(safe)) } else { self.spill(safe) };
        quoted(spot, &value)
    }

    /// Returns the script text that represents a variable in the script's environment. Returns
    /// `None` to keep the variable's name: the script's author quotes user text.
    pub(crate) fn put_variable(&mut self, var: Var, text: &str) -> Option<String> {
        let spot = self.spots.pop_front().flatten();
        match spot {
            Some(Spot::HereText) if var.is_user_text() => return Some(shell::escaped_name(var)),
            Some(Spot::List(_)) if var.is_user_text() => {
                self.list(&format!("`{var}`"), text);
                return None;
            }
            Some(Spot::Numbers(_)) if var.is_user_text() => {
                self.numbers(&format!("`{var}`"), text);
                return None;
            }
            Some(Spot::Arithmetic { .. } | Spot::Name | Spot::Refused(_)) => {}
            _ if var.is_user_text() => return None,
            _ => {}
        }
        let put = self.put_text(spot, &format!("`{var}`"), text);
        put.or_else(|| Some(quoted(spot, &format!("${{{}}}", var.name()))))
    }

    /// Returns text to insert literally, for positions where it cannot be script.
    fn put_text(&mut self, spot: Option<Spot>, what: &str, text: &str) -> Option<String> {
        match spot? {
            Spot::Comment => Some(String::new()),
            Spot::Arithmetic { quoted } => Some(self.reckon(what, text, quoted)),
            Spot::Name => Some(self.name(what, text)),
            Spot::Numbers(_) => {
                self.numbers(what, text);
                None
            }
            Spot::List(_) => {
                self.list(what, text);
                None
            }
            Spot::Refused(why) => {
                let why = format!("{what} stands {}; {}", why.place(), why.cure());
                self.refused.get_or_insert(why);
                Some(String::new())
            }
            _ => None,
        }
    }

    /// Returns a number unchanged. Bash would evaluate anything else as an expression, with its
    /// commands.
    fn reckon(&mut self, what: &str, text: &str, quoted: bool) -> String {
        let number = text.trim();
        let digits = number.strip_prefix(['-', '+']).unwrap_or(number);
        match digits {
            "" if number.is_empty() && quoted => String::new(),
            "" if number.is_empty() => "\"\"".to_owned(),
            _ if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                number.to_owned()
            }
            _ => {
                let why = format!("{what} stands in arithmetic and is no whole number");
                self.refuse(&why, number, Some(RECKON))
            }
        }
    }

    /// Checks a list of numbers. Bash evaluates each of them.
    fn numbers(&mut self, what: &str, text: &str) {
        for word in text.split_ascii_whitespace() {
            self.reckon(what, word, true);
        }
    }

    /// Returns a plain name unchanged. Bash would evaluate a subscript in anything else, with its
    /// commands.
    fn name(&mut self, what: &str, text: &str) -> String {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        if !text.is_empty() && text.bytes().all(plain) {
            return text.to_owned();
        }
        self.refuse(&format!("{what} stands where a variable is named and is no name"), text, None)
    }

    /// Refuses a value with a parenthesis: bash executes nothing in a value that is not a list.
    fn list(&mut self, what: &str, text: &str) {
        if text.contains('(') {
            let why = format!(
                "{what} stands where bash looks for a list, and has a parenthesis in it (set it \
                 without `declare`: `name=VALUE`)"
            );
            self.refuse(&why, text, None);
        }
    }

    /// Checks the value of a variable that the script reads by its name in this way.
    pub(crate) fn demand(&mut self, what: &str, text: &str, reading: Reading) {
        match reading {
            Reading::Number => _ = self.reckon(what, text, true),
            Reading::Numbers => self.numbers(what, text),
            Reading::Name => _ = self.name(what, text),
            Reading::List | Reading::Declared => self.list(what, text),
            // Refused at load time, where an author wrote it.
            Reading::Script => {}
        }
    }

    fn refuse(&mut self, why: &str, text: &str, cure: Option<&str>) -> String {
        let shown: String = text.chars().filter(|c| !c.is_control()).take(40).collect();
        let cure = cure.map(|cure| format!("; {cure}")).unwrap_or_default();
        self.refused.get_or_insert_with(|| format!("{why}: `{shown}`{cure}"));
        String::new()
    }

    fn env_bytes(&self) -> usize {
        self.env.iter().map(|(_, value)| value.len()).sum()
    }

    /// Puts a value into a new variable, and returns the variable's name.
    fn variable(&mut self, value: String) -> String {
        let name = format!("ORCHESTRATE_REF_{}", self.env.len() + 1);
        self.env.push((name.clone(), value));
        name
    }

    fn spill(&mut self, text: String) -> String {
        let digest = crate::base::digest::sha256(text.as_bytes());
        // The path is also untrusted text, so it goes into a variable too.
        let name = self.variable(format!("{}/{}", self.root, spill_path(&digest)));
        self.spilled.push((digest, text));
        format!("$(cat \"${{{name}}}\")")
    }
}

impl Expansions {
    /// Refuses a script in which bash would execute a value, or would calculate with a value that
    /// is not a number.
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        match &self.refused {
            Some(why) => Err(Refusal::new(format!("a value cannot be put into the script: {why}"))),
            None => Ok(()),
        }
    }
}

/// Returns true if a script contains a name as a separate word.
pub(super) fn names(source: &str, name: &str) -> bool {
    let word =
        |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    let bytes = source.as_bytes();
    source.match_indices(name).any(|(at, _)| {
        let before = at.checked_sub(1).and_then(|at| bytes.get(at));
        !word(before) && !word(bytes.get(at + name.len()))
    })
}

/// Quotes an expansion as its position requires.
fn quoted(spot: Option<Spot>, value: &str) -> String {
    match spot {
        Some(Spot::Double | Spot::HereDocument | Spot::HereText) => value.to_owned(),
        Some(Spot::List(Quotes::Double) | Spot::Numbers(Quotes::Double)) => value.to_owned(),
        Some(Spot::Escaped | Spot::List(Quotes::Escaped) | Spot::Numbers(Quotes::Escaped)) => {
            format!("'\"{value}\"$'")
        }
        Some(Spot::Single | Spot::List(Quotes::Single) | Spot::Numbers(Quotes::Single)) => {
            format!("'\"{value}\"'")
        }
        _ => format!("\"{value}\""),
    }
}

/// Returns the path of a long text, relative to the run's directory.
pub(super) fn spill_path(digest: &str) -> String {
    format!("values/{}.txt", &digest[..32])
}
