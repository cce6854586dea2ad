//! How values come into a shell script: in variables of its environment, with an expansion where
//! each value stood, quoted as the place needs it.
//!
//! **Invariant:** a value is never part of a script.

use std::collections::{BTreeSet, VecDeque};

use super::Refusal;
use super::refs::RUN_ROOT;
use crate::template::nodes::shell_word;
use crate::workflow::nodes_shell::{self, Spot};

/// Text of more characters goes into a script by way of a file.
const SPILL_CHARS: usize = 32_768;

/// All values together take at most so much of a script's environment; the others go by way of
/// files.
const ENV_BYTES: usize = 512 * 1024;

/// Values on their way into a script.
#[derive(Default)]
pub struct Expansions {
    /// Where those stand that were not put in yet.
    pub spots: VecDeque<Option<Spot>>,
    /// The lines that end those texts of a script in which values stand as they are.
    pub ends: BTreeSet<String>,
    /// The variables that they come in.
    pub env: Vec<(String, String)>,
    /// Texts that go by way of files: their digest, and what is in them.
    pub spilled: Vec<(String, String)>,
    /// What cannot be put in where it stands, and why.
    pub refused: Option<String>,
}

impl Expansions {
    /// What stands for a value in the script. What is `bare` can be a word by itself.
    pub fn put(&mut self, text: &str, bare: bool) -> String {
        let spot = self.spots.pop_front().flatten();
        let safe = text.replace('\0', "");
        match &spot {
            // Nothing is expanded here, and nothing here is script.
            Some(Spot::HereText(end)) => {
                self.ends.insert(end.clone());
                return safe;
            }
            Some(Spot::Comment) => return String::new(),
            Some(Spot::Arithmetic { quoted }) => return self.reckon(&safe, *quoted),
            None if bare => return safe,
            _ => {}
        }
        let fits = safe.chars().count() <= SPILL_CHARS && self.env_bytes() < ENV_BYTES;
        let value = if fits {
            let name = format!("ORCHESTRATE_REF_{}", self.env.len() + 1);
            let value = format!("${{{name}}}");
            self.env.push((name, safe));
            value
        } else {
            self.spill(safe)
        };
        match spot {
            Some(Spot::Double | Spot::HereDocument) => value,
            Some(Spot::Single) => format!("'\"{value}\"'"),
            _ => format!("\"{value}\""),
        }
    }

    /// A number as it is. Anything else bash would read as an expression, commands included.
    fn reckon(&mut self, text: &str, quoted: bool) -> String {
        let number = text.trim();
        let digits = number.strip_prefix(['-', '+']).unwrap_or(number);
        match digits {
            "" if number.is_empty() && quoted => String::new(),
            "" if number.is_empty() => "\"\"".to_owned(),
            _ if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                number.to_owned()
            }
            _ => {
                let shown: String = number.chars().filter(|c| !c.is_control()).take(40).collect();
                self.refused.get_or_insert_with(|| {
                    format!("`{shown}` stands in arithmetic and is no whole number")
                });
                String::new()
            }
        }
    }

    fn env_bytes(&self) -> usize {
        self.env.iter().map(|(_, value)| value.len()).sum()
    }

    fn spill(&mut self, text: String) -> String {
        let digest = crate::digest::sha256(text.as_bytes());
        let word = shell_word(&format!("{RUN_ROOT}/{}", spill_path(&digest)));
        self.spilled.push((digest, text));
        format!("$(cat {word})")
    }
}

impl Expansions {
    /// Refuses a script in which a value would be read as script: it ends the text that it stands
    /// in, or is reckoned with and is no number.
    pub fn check(&self, filled: &str, source: &str) -> Result<(), Refusal> {
        if let Some(reason) = &self.refused {
            return Err(Refusal::new(format!("an output cannot be put into the script: {reason}")));
        }
        for end in &self.ends {
            if nodes_shell::lines_like(filled, end) != nodes_shell::lines_like(source, end) {
                return Err(Refusal::new(format!(
                    "an output in the here-document has the line `{end}`, which would end it"
                )));
            }
        }
        Ok(())
    }
}

/// Where a long text lies, in the run's directory.
pub fn spill_path(digest: &str) -> String {
    format!("values/{}.txt", &digest[..32])
}
