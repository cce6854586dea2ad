//! How values come into a shell script: in variables of its environment, with an expansion where
//! each value stood, quoted as the place needs it.
//!
//! **Invariant:** a value is never part of a script.

use std::collections::VecDeque;

use super::Refusal;
use crate::template::nodes::Var;
use crate::workflow::shell::{self, Quotes, RECKON, Reading, Spot};

/// Text of more characters goes into a script by way of a file.
const SPILL_CHARS: usize = 32_768;

/// All values together take at most so much of a script's environment; the others go by way of
/// files.
const ENV_BYTES: usize = 512 * 1024;

/// Values on their way into a script.
#[derive(Default)]
pub struct Expansions {
    /// Stands for the run's directory.
    pub root: String,
    /// Where those stand that were not put in yet.
    pub spots: VecDeque<Option<Spot>>,
    /// The variables that they come in.
    pub env: Vec<(String, String)>,
    /// Texts that go by way of files: their digest, and what is in them.
    pub spilled: Vec<(String, String)>,
    /// What cannot be put in where it stands, and why.
    pub refused: Option<String>,
}

impl Expansions {
    /// What stands for a value in the script, by the name that its author knows it by. What is
    /// `bare` can be a word by itself.
    pub fn put(&mut self, what: &str, text: &str, bare: bool) -> String {
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

    /// What stands for a variable that the script has in its environment. Nothing leaves its name:
    /// what people wrote is quoted by the script's author.
    pub fn put_variable(&mut self, var: Var, text: &str) -> Option<String> {
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

    /// What is put in as it is, where that cannot be script.
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

    /// A number as it is. Anything else bash would read as an expression, commands included.
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

    /// Numbers that are read one by one, each of them reckoned with.
    fn numbers(&mut self, what: &str, text: &str) {
        for word in text.split_ascii_whitespace() {
            self.reckon(what, word, true);
        }
    }

    /// A plain name as it is. In anything else bash would find a subscript, commands included.
    fn name(&mut self, what: &str, text: &str) -> String {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        if !text.is_empty() && text.bytes().all(plain) {
            return text.to_owned();
        }
        self.refuse(&format!("{what} stands where a variable is named and is no name"), text, None)
    }

    /// In anything but a list in parentheses, bash executes nothing.
    fn list(&mut self, what: &str, text: &str) {
        if text.contains('(') {
            let why = format!(
                "{what} stands where bash looks for a list, and has a parenthesis in it (set it \
                 without `declare`: `name=VALUE`)"
            );
            self.refuse(&why, text, None);
        }
    }

    /// What a variable must be that the script has by its name, and takes for this.
    pub fn demand(&mut self, what: &str, text: &str, reading: Reading) {
        match reading {
            Reading::Number => _ = self.reckon(what, text, true),
            Reading::Numbers => self.numbers(what, text),
            Reading::Name => _ = self.name(what, text),
            Reading::List | Reading::Declared => self.list(what, text),
            // Refused when the workflow is loaded, where a person wrote it.
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

    /// Has a value come in a variable of its own, and gives the variable's name.
    fn variable(&mut self, value: String) -> String {
        let name = format!("ORCHESTRATE_REF_{}", self.env.len() + 1);
        self.env.push((name.clone(), value));
        name
    }

    fn spill(&mut self, text: String) -> String {
        let digest = crate::digest::sha256(text.as_bytes());
        // The path is somebody's own text too.
        let name = self.variable(format!("{}/{}", self.root, spill_path(&digest)));
        self.spilled.push((digest, text));
        format!("$(cat \"${{{name}}}\")")
    }
}

impl Expansions {
    /// Refuses a script in which a value would be read as script, or is reckoned with and is no
    /// number.
    pub fn check(&self) -> Result<(), Refusal> {
        match &self.refused {
            Some(why) => Err(Refusal::new(format!("a value cannot be put into the script: {why}"))),
            None => Ok(()),
        }
    }
}

/// Whether a script has a name in it, as a word by itself.
pub fn names(source: &str, name: &str) -> bool {
    let word =
        |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    let bytes = source.as_bytes();
    source.match_indices(name).any(|(at, _)| {
        let before = at.checked_sub(1).and_then(|at| bytes.get(at));
        !word(before) && !word(bytes.get(at + name.len()))
    })
}

/// An expansion, as its place needs it.
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

/// Where a long text lies, in the run's directory.
pub fn spill_path(digest: &str) -> String {
    format!("values/{}.txt", &digest[..32])
}
