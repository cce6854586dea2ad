//! Converts a step that uses spells to executable work.

use std::cell::RefCell;
use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::results::{PROMPT_BYTES, Results};
use super::shell::Expansions;
use super::{Prepared, Preparing, Refusal};
use crate::agent::contract;
use crate::attempt::prompt::spell::{self, Found, Lost, SystemPrompt};
use crate::attempt::spellbook;
use crate::attempt::work::{AnswerRules, ContractRule, PROMPT, Work};
use crate::base::digest::sha256;
use crate::engine;
use crate::template::spell::{Fault, Piece, Spell};
use crate::workflow::grimoire::truth;
use crate::workflow::plan::{Prompt, SpellSource, SpellUse, SystemPromptUse};
use crate::workflow::shell::Layout;

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Refusal {
        let place = serde_json::json!({
            "file": &*fault.file, "line": fault.line, "column": fault.column,
        });
        let refusal = Refusal::new(fault.to_string()).with(engine::Fault::SPELL, place);
        Refusal { fault: Some(Box::new(fault)), ..refusal }
    }
}

impl From<Lost> for Refusal {
    fn from(lost: Lost) -> Refusal {
        Refusal::new(lost.to_string())
    }
}

impl Preparing<'_> {
    /// Returns the variables of spells at this step, with at most `most` bytes of each output.
    fn variables(&self, most: Option<usize>) -> Result<Map<String, Value>, Refusal> {
        let (site, plan, run) = (self.site, self.plan, self.scope.run);
        Results { site, plan, run, here: &self.here, attempt: self.attempt, most }.variables()
    }

    /// Reads a file of the workspace as it was when the run started.
    fn read_kept(&self, path: &str) -> Result<Option<String>, String> {
        spellbook::read_kept(&self.site.root(), path)
    }

    /// Evaluates a condition that is a spell.
    pub(super) fn spell_holds(&mut self, condition: &Spell) -> Result<bool, Refusal> {
        let data = Value::Object(self.variables(None)?);
        let read = |path: &str| self.read_kept(path);
        let said = spell::with_includes(&read, |includes| condition.render(&data, includes))?;
        self.note(|| format!("when: `{said}`"));
        truth(&said).ok_or_else(|| {
            let said: String = said.trim().chars().take(80).collect();
            Refusal::new(format!("`when` is `{said}`, but must be true, false or a number"))
        })
    }

    /// Prepares a shell script. Values go into variables, never into its text.
    pub(super) fn spell_script(&mut self, script: &Spell) -> Result<Prepared, Refusal> {
        let data = Value::Object(self.variables(None)?);
        let read = |path: &str| self.read_kept(path);
        let pieces = spell::with_includes(&read, |includes| script.pieces(&data, includes))?;
        let mut expansions = Expansions::new(Layout::of_pieces(&pieces), &self.root);
        let put = |piece: &Piece| match piece {
            Piece::Text(written) => written.clone(),
            Piece::Value(value) => expansions.put("a value", value, false),
        };
        let text: String = pieces.iter().map(put).collect();
        expansions.check()?;
        self.leave_spilled(expansions.spilled)?;
        let argv = self.shell_argv("sh", text)?;
        let mut env = self.step.env.clone();
        env.extend(expansions.env);
        self.node_work(Work { env, ..Work::new(self.path.clone(), self.attempt, argv) })
    }

    /// Prepares a prompt from a spell.
    pub(super) fn cast(&mut self, prompt: &Prompt, used: &SpellUse) -> Result<Prepared, Refusal> {
        let inputs = RefCell::new(BTreeMap::new());
        let note = |what: String, text: &str| {
            inputs.borrow_mut().insert(what, sha256(text.as_bytes()));
        };
        let read = |path: &str| {
            let text = self.read_kept(path)?;
            if let Some(text) = &text {
                note(path.to_owned(), text);
            }
            Ok(text)
        };
        let mut data = self.variables(Some(PROMPT_BYTES))?;
        let outer = Value::Object(data.clone());
        for (key, value) in &used.input {
            let value = spell::with_includes(&read, |includes| value.render(&outer, includes))?;
            note(format!("input {key}"), &value.to_string());
            let same = |other: &String| other.replace('-', "_") == key.replace('-', "_");
            data.retain(|other, _| !same(other));
            data.insert(key.clone(), value);
        }
        if !used.contract {
            data.insert("no_contract".into(), true.into());
        }
        let data = Value::Object(data);
        let said = match &used.source {
            SpellSource::Named(name) => {
                let found = spell::lookup(name, &read)?;
                note(found.file.clone(), &found.text);
                spell::something(spell::render(&found, &data, &read)?, &format!("spell `{name}`"))?
            }
            SpellSource::Inline(text) => {
                note("inline spell".into(), text.text());
                let said = spell::with_includes(&read, |includes| text.render(&data, includes))?;
                spell::something(said, "the spell")?
            }
        };
        let system = match &used.system_prompt {
            SystemPromptUse::None => None,
            SystemPromptUse::Default => Some(SystemPrompt::find(&read)),
            SystemPromptUse::File(path) => {
                let text = read(path).map_err(Refusal::new)?;
                let text =
                    text.ok_or_else(|| Refusal::new(format!("there is no file `{path}`")))?;
                let found = Found { file: path.clone(), text };
                Some(SystemPrompt::parse(&found, &read).map_err(spell::Refusal::from))
            }
        };
        let mut whole = match system {
            None => said,
            Some(Ok(system)) => {
                let data = system.knows(&data, self.step.agent.as_deref(), used.contract);
                system.wrap(said.trim_end(), &data, &read)?
            }
            Some(Err(spell::Refusal::Fault(fault))) => return Err(fault.into()),
            Some(Err(spell::Refusal::Lost(lost))) => return Err(lost.into()),
        };
        whole.push_str(&self.reproach());
        note(PROMPT.into(), &whole);
        let contract = used.contract.then_some(ContractRule { repair: used.repair });
        let (until, format) = (prompt.until.clone(), prompt.format.clone());
        let rules = AnswerRules { until, format, contract };
        let inputs = inputs.take();
        self.say(prompt, whole.into_bytes(), rules, inputs)
    }

    /// Describes the problem of the last answer, if it lacked a report and the agent is asked
    /// again.
    fn reproach(&self) -> String {
        let slot = self.scope.run.slot(&self.here);
        let error = slot.and_then(|slot| slot.record.as_deref()?.error.as_ref());
        match error.filter(|error| error.ask_again) {
            Some(error) => contract::ask_again(&error.message),
            None => String::new(),
        }
    }
}
