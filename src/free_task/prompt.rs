//! Builds the prompt of a free task, and the command that sends it to the agent.
//!
//! The task's text, rendered by a spell if one is named, goes into the slot of a system prompt, or
//! after an agent's own system prompt that has no slot. Inserted values are never parsed again, so
//! a text cannot become a template.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::parse::FreeTask;
use crate::attempt::command_line::{self, AskError, Question};
use crate::attempt::prompt::spell::{self, Found, INLINE, Lost, PROBE, Refusal, SystemPrompt};
use crate::attempt::work::{Input, TreeWork, Work};
use crate::base::digest::{sha256, uuid};
use crate::base::ids::{Attempt, BeadId, StepPath};
use crate::exec::STRING_BYTES;
use crate::queue::TaskId;
use crate::settings::{Agent, Config};
use crate::template::spell::Fault;
use crate::template::{Hole, Missing, Scope};
use crate::workflow::Configured;
use crate::workflow::bead::{Bead, BeadError, is_file};
use crate::workflow::plan::{InputMode, Isolation, Param};

pub(crate) use crate::attempt::prompt::spell::Read;

impl FreeTask {
    /// Builds the work with which `agent` executes the task. The error is one sentence.
    pub(crate) fn work(
        &self,
        config: &Config,
        agent: &str,
        read: Read,
        id: &TaskId,
        attempt: Attempt,
    ) -> Result<Work, String> {
        let name = self.provider(config, agent)?;
        let provider = &config.providers()[&name];
        let settings = config.agent(agent);
        let model = self.model.clone().or(settings.model);
        let model = model.map(|model| ("model".to_owned(), Param::Fixed(Value::String(model))));
        let params: BTreeMap<String, Param> = model.into_iter().collect();
        let wants = |missing: Vec<Missing>| wants_more(&name, &missing);
        let params = command_line::merge(provider, &params, &NoVariables).map_err(wants)?;
        let bead = self.work_item(read, id)?;
        let prompt = self.prompt(&Told { config, agent, read, id, attempt, bead: &bead });
        let prompt = prompt.map_err(|refusal| self.placed(&refusal))?;
        let timeout = self.timeout.or(settings.timeout);
        let mut work = Work::new(StepPath::top(id.as_str()), attempt, Vec::new());
        work.agent = Some(agent.to_owned());
        work.timeout_ms = timeout.map(|timeout| timeout.as_millis() as u64);
        let question = Question {
            name: &name,
            provider,
            params: &params,
            prompt: prompt.as_bytes(),
            around: &NoVariables,
            conversation: uuid(&sha256(id.as_str().as_bytes())).into(),
        };
        let mut work = match question.put(work) {
            Ok(work) => work,
            Err(AskError::Missing(missing)) => return Err(wants_more(&name, &missing)),
            Err(AskError::NotText { .. }) => return Err("the prompt is not UTF-8 text".into()),
        };
        if let Some(longest) = work.argv.iter().map(String::len).find(|len| *len > STRING_BYTES) {
            return Err(format!(
                "the prompt makes an argument of {longest} bytes, but {STRING_BYTES} is the most \
                 that the system takes; use a provider with `input_mode: stdin`"
            ));
        }
        work.stdin = (provider.input == InputMode::Stdin).then_some(Input::Text(prompt));
        work.repairs = config.contract_repair && self.keeps_contract(config, agent);
        work.worktree = match (&self.bead, self.isolation.unwrap_or_default()) {
            (Some(_), Isolation::Worktree) => {
                let id = bead["id"].as_str().unwrap_or_default().to_owned();
                let (base, wait) = (config.base_branch.clone(), config.tree_wait);
                Some(TreeWork {
                    id,
                    base,
                    wait_ms: Some(wait.as_millis() as u64),
                    after: self.left.iter().cloned().collect(),
                    push: config.tree_push,
                })
            }
            _ => None,
        };
        Ok(work)
    }

    /// Returns true if the answer must report its result, as with every spell. For a task of plain
    /// text, any answer is valid.
    pub(crate) fn keeps_contract(&self, config: &Config, agent: &str) -> bool {
        self.spell.is_some() || config.agent(agent).spell.is_some()
    }

    /// Builds the whole prompt.
    fn prompt(&self, told: &Told) -> Result<String, Refusal> {
        let settings = told.config.agent(told.agent);
        let data = self.variables(told, &settings);
        let said = match self.spell.as_ref().or(settings.spell.as_ref()) {
            None => self.plainly(told.bead)?,
            Some(spell) => self.cast(spell, told, &data)?,
        };
        let said = said.trim_end();
        let Some(own) = settings.system_prompt else {
            return Ok(SystemPrompt::find(told.read)?.wrap(said, &data, told.read)?);
        };
        let found = told.system_prompt(own)?;
        if let Ok(system) = SystemPrompt::parse(&found, told.read) {
            return Ok(system.wrap(said, &data, told.read)?);
        }
        // A system prompt without a slot goes before the task.
        let system = spell::render(&found, &data, told.read)?;
        Ok(format!("{}\n\n{said}\n", system.trim_end()))
    }

    /// Formats a refusal, with the position in the task's own file if that is the cause.
    fn placed(&self, refusal: &Refusal) -> String {
        let file = self.source.as_deref().unwrap_or("the task");
        let Some(at) = &self.spell_at else { return refusal.to_string() };
        match refusal {
            Refusal::Lost(Lost::Unknown { name } | Lost::BadName { name, .. })
                if self.spell.as_ref().is_some_and(|spell| spell.starts_with(name.as_str())) =>
            {
                format!("{file}:{}:{}: {refusal}", at.line, at.column)
            }
            Refusal::Fault(fault) if &*fault.file == INLINE => {
                match at.place(fault.line, fault.column) {
                    Some((line, column)) => {
                        Fault { file: file.into(), line, column, ..fault.clone() }.to_string()
                    }
                    None => format!("{file}:{}:{}: {refusal}", at.line, at.column),
                }
            }
            _ => refusal.to_string(),
        }
    }

    /// Returns the instructions of a task without a spell: its text or, if that is empty, its work
    /// item.
    fn plainly(&self, bead: &Value) -> Result<String, Lost> {
        if !self.text.trim().is_empty() {
            return Ok(self.text.clone());
        }
        let part = |key: &str| bead[key].as_str().map(str::trim).unwrap_or_default();
        let said = match (part("title"), part("body")) {
            ("", body) => body.to_owned(),
            (title, body) => format!("# {title}\n\n{body}"),
        };
        spell::something(said, "its bead")
    }

    /// Renders the task with a spell. Appends the task's text if the spell does not use it: its
    /// author expects the agent to read it.
    fn cast(&self, spell: &str, told: &Told, data: &Value) -> Result<String, Refusal> {
        let found = spell::lookup(spell, told.read)?;
        let said = spell::render(&found, data, told.read)?;
        let text = self.text.trim();
        if text.is_empty() || self.is_put_into(&found, told, data) {
            return Ok(spell::something(said, &called(spell))?);
        }
        Ok(format!("{}\n\n{text}", said.trim_end()).trim_start().to_owned())
    }

    /// Returns true if a spell uses the text of the task. Replaces the text by a probe word and
    /// looks for that word in the result.
    fn is_put_into(&self, found: &Found, told: &Told, data: &Value) -> bool {
        let mut data = data.clone();
        replace_text(&mut data, &self.text, PROBE);
        let said = spell::render(found, &data, told.read);
        said.is_ok_and(|said| said.to_ascii_lowercase().contains(PROBE))
    }

    /// Returns the work item of the task: the fields of its file or of its entry in the issue list,
    /// if one is found, completed by the task itself. The error is one sentence.
    fn work_item(&self, read: Read, id: &TaskId) -> Result<Value, String> {
        let mut item = json!({
            "id": id.as_str(),
            "title": self.words(),
            "body": self.text,
            "description": self.text,
            "type": "task",
            "priority": self.priority,
            "labels": [],
        });
        let known = match &self.bead {
            None => return Ok(item),
            Some(Value::String(name)) => match Bead::find(name, read) {
                Ok(bead) => bead.to_json(),
                // An ID without a file or an entry is just a name for this work.
                Err(BeadError::Unknown { .. })
                    if BeadId::fault(name).is_none() && !is_file(name) =>
                {
                    json!({ "id": name })
                }
                Err(error) => return Err(format!("its bead cannot be used: {}", told(&error))),
            },
            Some(given) => given.clone(),
        };
        let name = known["id"].as_str().unwrap_or_default();
        BeadId::parse(name).map_err(|fault| format!("its bead cannot be used: {fault}"))?;
        for (key, value) in known.as_object().into_iter().flatten() {
            item[key] = value.clone();
        }
        Ok(item)
    }

    /// Returns the variables that spells and system prompts may refer to.
    fn variables(&self, told: &Told, settings: &Agent) -> Value {
        let all = || told.config.agents().keys().cloned().collect();
        let next: Vec<String> = settings.next.clone().unwrap_or_else(all);
        let next: Vec<_> = next.iter().map(|name| format!("`{name}`")).collect();
        let bead = told.bead;
        let is_body = bead["body"].as_str() == Some(&self.text);
        let mut variables = json!({
            "bead": bead,
            "task": bead,
            "text": self.text,
            "agent": told.agent,
            "agents": next.join(", "),
            "attempt": told.attempt,
            "step": { "name": told.id.as_str() },
            "may_be_plain": !self.keeps_contract(told.config, told.agent),
        });
        // The text in addition to the work item, under the name that spells use for it.
        if !is_body {
            variables["instructions"] = self.text.as_str().into();
        }
        variables
    }
}

/// Replaces every value that equals `text` by `word`.
fn replace_text(value: &mut Value, text: &str, word: &str) {
    match value {
        Value::String(found) if found == text => word.clone_into(found),
        Value::Object(map) => map.values_mut().for_each(|value| replace_text(value, text, word)),
        _ => {}
    }
}

/// Names a spell in a sentence.
fn called(spell: &str) -> String {
    if spell.contains('\n') { "the spell".into() } else { format!("spell `{spell}`") }
}

/// The agent that gets a task, and the context of its prompt.
struct Told<'a> {
    config: &'a Config,
    agent: &'a str,
    read: Read<'a>,
    id: &'a TaskId,
    attempt: Attempt,
    bead: &'a Value,
}

/// Describes a problem with a bead in one line.
fn told(error: &BeadError) -> String {
    match error {
        BeadError::Wrong { file, problems, .. } => {
            let first = problems.first();
            let line = first.and_then(|problem| problem.place).map_or(1, |place| place.line);
            let message = first.map(|problem| problem.message.as_str()).unwrap_or_default();
            format!("{file}:{line}: {message}")
        }
        error => error.to_string(),
    }
}

impl Told<'_> {
    /// Reads an agent's own system prompt: a file, or the text itself.
    fn system_prompt(&self, own: String) -> Result<Found, Lost> {
        if own.contains('\n') {
            return Ok(Found { file: "system_prompt".into(), text: own });
        }
        let unreadable = |reason| Lost::Unreadable { file: own.clone(), reason };
        match (self.read)(&own) {
            Ok(Some(text)) => Ok(Found { file: own, text }),
            Ok(None) => Err(unreadable(format!(
                "it does not exist, and the settings of agent `{}` name it as system prompt",
                self.agent
            ))),
            Err(reason) => Err(unreadable(reason)),
        }
    }
}

/// An empty scope: a free task belongs to no run.
struct NoVariables;

impl Scope for NoVariables {
    fn look_up(&self, hole: &Hole) -> Result<std::borrow::Cow<'_, Value>, Missing> {
        let reason = "a task that belongs to no run has no variables".into();
        Err(Missing { raw: hole.raw.clone(), reason })
    }
}

fn wants_more(provider: &str, missing: &[Missing]) -> String {
    let holes: Vec<_> = missing.iter().map(|hole| format!("`${{{}}}`", hole.raw)).collect();
    let holes = holes.join(", ");
    format!("provider `{provider}` needs {holes}, which a task that belongs to no run has not")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::Kind;
    use crate::settings::Layer;

    fn config(text: &str) -> Config {
        let layer = Layer { file: "c".into(), sha256: String::new(), text: text.into() };
        Config::frozen(vec![layer]).unwrap()
    }

    fn nothing(_: &str) -> Result<Option<String>, String> {
        Ok(None)
    }

    fn work(config: &Config, task: &str) -> Result<Work, String> {
        let id = TaskId::new(1, 2);
        FreeTask::parse(task).unwrap().work(config, "engineer", &nothing, &id, Attempt::new(2))
    }

    #[test]
    fn the_agent_is_told_who_it_is_what_to_do_and_how_to_answer() {
        let config = config("default_provider: codex\nagents: { engineer: { next: [qa] } }\n");
        let work = work(&config, "Fix {{.agent}} and {{.x}}.\n").unwrap();
        assert_eq!(work.argv[..3], ["codex", "exec", "--json"]);
        assert_eq!((work.argv.last().unwrap().as_str(), work.adapter), ("-", Kind::Codex));
        let Some(Input::Text(prompt)) = work.stdin else { panic!("the prompt is on stdin") };
        assert!(prompt.starts_with("You are the agent `engineer` of a team"), "{prompt}");
        assert!(prompt.contains("\nFix {{.agent}} and {{.x}}.\n"), "a text is no slot: {prompt}");
        assert!(prompt.contains("\"success\""));
        assert!(prompt.ends_with("You may hand work to: `qa`.\n"), "{prompt}");
        assert!(!prompt.contains("\n\n\n"), "{prompt}");
        assert_eq!((work.attempt, work.asks), (Attempt::new(2), true));
        assert_eq!(work.timeout_ms, Some(3_600_000));
        assert_eq!(work.agent.as_deref(), Some("engineer"));
    }

    #[test]
    fn the_task_wins_over_its_agent_and_the_agent_over_the_default() {
        let config = config(
            "agents:\n  engineer:\n    { provider: say, model: big, timeout: none, \
             system_prompt: s.md }\n\
             providers:\n  say: { command: [say, \"${PROMPT}\", \"${model}\"] }\n",
        );
        let read = |path: &str| Ok(Some(format!("From {path}.")));
        let id = TaskId::new(1, 2);
        let ask = |text: &str| {
            FreeTask::parse(text)
                .unwrap()
                .work(&config, "engineer", &read, &id, Attempt::FIRST)
                .unwrap()
        };
        let work = ask("Do it.");
        assert_eq!(work.argv, ["say", "From s.md.\n\nDo it.\n", "big"]);
        assert_eq!((work.timeout_ms, work.stdin), (None, None));
        let work = ask("---\nmodel: small\ntimeout: 2s\n---\nDo it.");
        assert_eq!((work.argv[2].as_str(), work.timeout_ms), ("small", Some(2000)));
        let work = ask("---\nprovider: codex\n---\nDo it.");
        assert_eq!(work.argv[0], "codex");
    }

    #[test]
    fn a_system_prompt_may_be_text_with_a_slot() {
        let config = config(
            "default_provider: codex\nagents:\n  engineer:\n    system_prompt: |\n      \
             Before.\n      {{.spell_content}}\n      After, {{.agent}}.\n",
        );
        let Some(Input::Text(prompt)) = work(&config, "Do it.\n\n").unwrap().stdin else {
            panic!()
        };
        assert_eq!(prompt, "Before.\nDo it.\nAfter, engineer.\n");
    }

    #[test]
    fn a_spell_is_put_around_the_text() {
        let config = config("default_provider: codex\nagents: { engineer: { spell: fix } }\n");
        let read = |path: &str| match path {
            "workflows/spells/fix.md" => {
                Ok(Some("Fix {{.task.title}}: {{.text}}{{include \"end\"}}".into()))
            }
            ".coven/spells/end.md" => Ok(Some(" By {{.agent}}.".into())),
            path => nothing(path),
        };
        let id = TaskId::new(1, 2);
        let prompt = |text: &str| {
            let work = FreeTask::parse(text).unwrap().work(
                &config,
                "engineer",
                &read,
                &id,
                Attempt::FIRST,
            );
            match work.map(|work| work.stdin) {
                Ok(Some(Input::Text(prompt))) => prompt,
                other => format!("{other:?}"),
            }
        };
        let told = prompt("---\ntitle: T\n---\nthe {{.x}}");
        assert!(told.contains("\nFix T: the {{.x}} By engineer.\n"), "{told}");
        let told = prompt("---\nspell: |\n  One {{.bead.id}}.\n  Two.\nbead: b-1\n---\nx");
        assert!(told.contains("\nOne b-1.\nTwo.\n"), "{told}");
        let told = prompt("---\nspell: none\n---\nx");
        assert!(told.contains("the task:2:8: no spell is called `none`"), "{told}");
        let told = prompt("---\nspell: |\n  {{.nothing}}\n---\nx");
        assert!(told.contains("the task:3:5: variable `.nothing` is missing"), "{told}");
        let told = prompt("---\nspell: \"a\\n{{.nothing}}\"\n---\nx");
        assert!(told.contains("the task:2:8: inline spell:2:3: variable"), "{told}");
    }

    #[test]
    fn what_cannot_be_asked_is_one_clear_sentence() {
        for (settings, task, said) in [
            ("", "---\nprovider: nobody\n---\nx", "provider `nobody` is not known; known are"),
            ("agents: { engineer: { provider: no } }", "x", "provider `no` is not known"),
            (
                "agents: { engineer: { system_prompt: s.md } }",
                "x",
                "cannot read `s.md`: it does not exist",
            ),
            (
                "default_provider: a\nproviders: { a: { command: [a, \"${model}\"] } }",
                "x",
                "provider `a` needs `${model}`",
            ),
            (
                "default_provider: a\n\
                 providers: { a: { command: [a], defaults: { b: \"${context.b}\" } } }",
                "x",
                "provider `a` needs `${context.b}`",
            ),
        ] {
            let error = work(&config(settings), task).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
        let long = "x".repeat(131_072);
        let settings = "default_provider: a\nproviders: { a: { command: [a, \"${PROMPT}\"] } }";
        let error = work(&config(settings), &long).unwrap_err();
        assert!(error.contains("`input_mode: stdin`"), "{error}");
    }
}
