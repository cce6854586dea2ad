//! How values come into a shell script: in variables of its environment, with an expansion where
//! each value stood, quoted as the place needs it.
//!
//! **Invariant:** a value is never part of a script.

use std::collections::VecDeque;

use super::Refusal;
use super::refs::RUN_ROOT;
use crate::template::nodes::shell_word;
use crate::workflow::nodes_shell::Spot;

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
    /// The variables that they come in.
    pub env: Vec<(String, String)>,
    /// Texts that go by way of files: their digest, and what is in them.
    pub spilled: Vec<(String, String)>,
}

impl Expansions {
    /// What stands for a value in the script. What is `bare` can be a word by itself.
    pub fn put(&mut self, text: &str, bare: bool) -> Result<String, Refusal> {
        let spot = self.spots.pop_front().flatten();
        let safe = text.replace('\0', "");
        match spot {
            // Nothing is expanded here, and a value could end the document it is in.
            Some(Spot::HereText) => {
                return Err(Refusal::new(
                    "a value stands in a here-document whose end is quoted, where no variable is \
                     read; write the end without quotes: `<<EOF`",
                ));
            }
            Some(Spot::Comment) => return Ok(String::new()),
            None if bare => return Ok(safe),
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
        Ok(match spot {
            Some(Spot::Double | Spot::HereDocument) => value,
            Some(Spot::Single) => format!("'\"{value}\"'"),
            _ => format!("\"{value}\""),
        })
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

/// Where a long text lies, in the run's directory.
pub fn spill_path(digest: &str) -> String {
    format!("values/{}.txt", &digest[..32])
}
