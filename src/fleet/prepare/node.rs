//! From a node that is owed to work that can be done, or to a person to be asked.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::refs::{Found, Into, Values};
use super::shell::{self, spill_path};
use super::{Prepared, Preparing, Refusal};
use crate::digest::{Parts, sha256};
use crate::disk;
use crate::engine::{GateRecord, Record, StepStatus};
use crate::fleet::ask::{self, Question};
use crate::fleet::gates;
use crate::fleet::parts::{self, Library};
use crate::fleet::work::{AnswerRules, Input, ScriptWork, Source, Work};
use crate::prompt::answer;
use crate::template::nodes::{NodeText, Var};
use crate::time::{Clock, SystemClock};
use crate::workflow::condition::{Condition, Unheld};
use crate::workflow::nodes_tools::MCP;
use crate::workflow::plan::{
    Action, CaptureMode, Code, Gate, InputMode, Param, Part, PartKind, Prompt, Script, ShellText,
    Words,
};
use crate::workflow::shell::Layout;

/// Variables of the environment.
type Env = Vec<(String, String)>;

/// The longest script that is an argument; longer ones are files.
const SCRIPT_BYTES: usize = 96 * 1024;
/// The longest value of a variable of the environment.
const VARIABLE_BYTES: usize = 96 * 1024;
/// The longest question that a person is asked, and the longest reason: what is longer, nobody
/// reads in a terminal.
const MESSAGE_BYTES: usize = 16 * 1024;
const REASON_BYTES: usize = 2 * 1024;

impl Preparing<'_> {
    /// Whether a condition on outputs bars the node.
    pub(super) fn outputs_bar(
        &mut self,
        condition: &Condition,
    ) -> Result<Option<Prepared>, Refusal> {
        let mut values = self.values(Into::Message);
        let mut look = |reference: &_| match values.find(reference) {
            Ok(Found { text, .. }) => Ok(Value::String(text)),
            Err(refusal) => Err(refusal.message),
        };
        let held = condition.holds(&mut look);
        let warnings = std::mem::take(&mut values.warnings);
        self.warn_all(warnings);
        match held {
            Ok(true) => Ok(None),
            Ok(false) => Ok(Some(Prepared::Bar(None))),
            Err(Unheld::Unparseable(why)) => {
                let name = &self.step.name;
                let warning = format!("its condition cannot be read: {why}");
                tracing::warn!("node `{name}` is skipped: {warning}");
                Ok(Some(Prepared::Bar(Some(warning))))
            }
            Err(Unheld::Unreadable(why)) => Err(Refusal::new(format!("`when`: {why}"))),
        }
    }

    fn values(&self, into: Into) -> Values<'_> {
        Values::new(self.site, self.plan, self.scope.run, self.scope.loops, into, &self.root)
    }

    fn warn_all(&mut self, warnings: Vec<String>) {
        for warning in warnings {
            // A person is asked by the node, not by a step of its rounds.
            let gate = matches!(self.step.action, Action::Gate(_));
            match self.path.loops.first().filter(|_| gate) {
                Some((node, _)) => tracing::warn!("node `{node}`: {warning}"),
                None => tracing::warn!("node `{}`: {warning}", self.path),
            }
            self.note(|| format!("warning: {warning}"));
        }
    }

    pub(super) fn node(&mut self) -> Result<Prepared, Refusal> {
        match &self.step.action {
            Action::Shell { script: ShellText::Node(script) } => self.shell(script),
            Action::Shell { script: ShellText::Spell(script) } => self.spell_script(script),
            Action::Script(script) => self.script(script),
            Action::Prompt(prompt) => self.prompt(prompt),
            Action::Gate(gate) => self.gate(gate),
            Action::Cancel { reason } => {
                let reason = self.site.mask.text(&self.fill(reason, Into::Message)?);
                let record = Record {
                    status: StepStatus::Completed,
                    exit_code: Some(0),
                    output: Some(self.bounded(reason, REASON_BYTES)?),
                    ..Record::default()
                };
                Ok(Prepared::Done(Box::new(record)))
            }
            _ => unreachable!("no other action is a node's"),
        }
    }

    /// Puts values into a text. Texts that are too long for a script are left in files.
    fn fill(&mut self, text: &NodeText, into: Into) -> Result<String, Refusal> {
        self.fill_with(text, into).map(|(text, _)| text)
    }

    /// The same, with the variables that a shell script gets values in.
    fn fill_with(&mut self, text: &NodeText, into: Into) -> Result<(String, Env), Refusal> {
        let mut values = self.values(into);
        let filled = if into == Into::Shell {
            let mut layout = Layout::of_node(text);
            values.expansions.spots = std::mem::take(&mut layout.spots).into();
            for (var, reading) in &layout.ours {
                let value = values.variable(*var)?;
                values.expansions.demand(&format!("`{var}`"), &value, *reading);
            }
            layout.mend_node(text.clone()).render(&mut values)
        } else {
            text.render(&mut values)
        };
        let (warnings, mut expansions) = (values.warnings, values.expansions);
        self.warn_all(warnings);
        self.leave_spilled(std::mem::take(&mut expansions.spilled))?;
        let filled = filled.map_err(|refusals| {
            let all: Vec<_> = refusals.into_iter().map(|refusal| refusal.message).collect();
            Refusal::new(all.join("; "))
        })?;
        expansions.check()?;
        Ok((filled, expansions.env))
    }

    /// A message of at most so many bytes. Of what is longer, the beginning; it says so, and the
    /// whole is left in a file.
    fn bounded(&self, message: String, most: usize) -> Result<String, Refusal> {
        if message.len() <= most {
            return Ok(message);
        }
        let path = spill_path(&sha256(message.as_bytes()));
        self.leave(&path, &message)?;
        let (all, root) = (message.len(), &self.scope.run.origin.run_root);
        let end = (0..=most).rev().find(|end| message.is_char_boundary(*end)).unwrap_or_default();
        let head = &message[..end];
        Ok(format!("{head}…\n\n(cut after {most} of {all} bytes; all of it is in {root}/{path})"))
    }

    /// Leaves texts in files that are too long for a script.
    pub(super) fn leave_spilled(&self, spilled: Vec<(String, String)>) -> Result<(), Refusal> {
        for (digest, text) in spilled {
            self.leave(&spill_path(&digest), &text)?;
        }
        Ok(())
    }

    /// Leaves a file in the run's directory for whoever does the work.
    pub(super) fn leave(&self, path: &str, text: &str) -> Result<(), Refusal> {
        let path = self.site.root().join(path);
        let written = || {
            let disk = disk::machine();
            disk.make_dirs(path.parent().unwrap_or(&path))?;
            // Another node may be reading the same text: it is never there in part.
            disk::swap(&*disk, &path, text.as_bytes())
        };
        written()
            .map_err(|error| Refusal::new(format!("cannot write `{}`: {error}", path.display())))
    }

    fn shell(&mut self, script: &NodeText) -> Result<Prepared, Refusal> {
        let (text, outputs) = self.fill_with(script, Into::Shell)?;
        let (mut env, long) = self.request_variables(&script.source())?;
        env.extend(outputs);
        let text = self.load(long, &mut env)? + &text;
        let argv = self.shell_argv("bash", text)?;
        self.node_work(Work { env, ..Work::new(self.path.clone(), self.attempt, argv) })
    }

    /// The command that runs a script.
    pub(super) fn shell_argv(&self, shell: &str, text: String) -> Result<Vec<String>, Refusal> {
        if text.len() <= SCRIPT_BYTES {
            return Ok(vec![shell.into(), "-c".into(), text]);
        }
        let path = format!("values/{}.sh", &sha256(text.as_bytes())[..32]);
        self.leave(&path, &text)?;
        // A path of the run may hold a placeholder too, so the script is read by its name.
        Ok(vec![shell.into(), format!("{}/{path}", self.root)])
    }

    fn script(&mut self, script: &Script) -> Result<Prepared, Refusal> {
        let (source, from) = match &script.code {
            Code::Inline(text) => (Source::Text(self.fill(text, Into::Script)?), None),
            Code::Named(name) => {
                self.keep_part(PartKind::Script, name)?;
                let found = parts::frozen_script(&self.site.root(), name);
                let (copy, from) = found.map_err(Refusal::new)?;
                (Source::File(copy), from)
            }
        };
        let text = match &script.code {
            Code::Inline(text) => text.source(),
            Code::Named(_) => self.script_text(&source)?,
        };
        let (env, long) = self.request_variables(&text)?;
        if let Some((var, value)) = long.first() {
            let bytes = value.len();
            return Err(Refusal::new(format!(
                "`{var}` has {bytes} bytes; a script can be given {VARIABLE_BYTES} at most"
            )));
        }
        let (runtime, deps) = (script.runtime, script.deps.clone());
        let script = Some(ScriptWork { runtime, deps, source, from });
        let work = Work::new(self.path.clone(), self.attempt, Vec::new());
        self.node_work(Work { env, script, ..work })
    }

    /// Sees to it that the run has a copy of a file that an earlier node may have written.
    fn keep_part(&self, kind: PartKind, name: &str) -> Result<(), Refusal> {
        let workspace = self.site.workspace.root();
        let workflow = workspace.join(&self.scope.run.origin.workflow_file);
        let library = Library {
            workspace: workspace.to_owned(),
            beside: workflow.parent().map(Path::to_owned),
            home: self.site.environment.get("HOME").map(PathBuf::from),
        };
        let part = Part { kind, name: name.to_owned(), place: None };
        let kept = library.keep_late(&self.site.root(), &part, self.site.input_bytes);
        kept.map_err(Refusal::new)
    }

    /// What is in a script's file.
    fn script_text(&self, source: &Source) -> Result<String, Refusal> {
        let Source::File(path) = source else { return Ok(String::new()) };
        let read = disk::machine().read(&self.site.root().join(path));
        let bytes =
            read.map_err(|error| Refusal::new(format!("cannot read the script: {error}")))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// What people wrote, for a script to have in its environment; and what its text names that is
    /// too long for that.
    fn request_variables(&mut self, source: &str) -> Result<(Env, Vec<(Var, String)>), Refusal> {
        let mut env = self.step.env.clone();
        let (mut long, mut unnamed) = (Vec::new(), Vec::new());
        let request = self.scope.run.origin.request.as_deref();
        let branch = request.is_some_and(|request| request.base_branch.is_some());
        let values = self.values(Into::Shell);
        for var in Var::ALL {
            // Empty, where nobody names it and nobody knows it: what whoever started the run has
            // under this name is something else.
            let known = branch || var != Var::BaseBranch;
            let value = if known { values.variable(var)? } else { String::new() };
            let named = shell::names(source, var.name());
            if value.contains('\0') && named {
                return Err(Refusal::new(format!("`{var}` has a NUL in it, as no variable can")));
            }
            match value.len() <= VARIABLE_BYTES && !value.contains('\0') {
                true => env.push((var.name().to_owned(), value)),
                false if named => long.push((var, value)),
                false => unnamed.push(format!("`{var}`")),
            }
        }
        if !unnamed.is_empty() {
            let (names, limit) = (unnamed.join(", "), VARIABLE_BYTES);
            self.warn_all(vec![format!(
                "{names}: not in the environment, where {limit} bytes are the most"
            )]);
        }
        Ok((env, long))
    }

    /// What a shell script begins with to have variables that are too long for its environment.
    fn load(&self, long: Vec<(Var, String)>, env: &mut Env) -> Result<String, Refusal> {
        let mut prologue = String::new();
        for (var, value) in long {
            let (name, path) = (var.name(), spill_path(&sha256(value.as_bytes())));
            self.leave(&path, &value)?;
            env.push((format!("ORCHESTRATE_{name}_FILE"), format!("{}/{path}", self.root)));
            // On the script's first line, so that its lines keep their numbers.
            prologue.push_str(&format!(
                "unset {name}; IFS= read -r -d '' {name} < \"${{ORCHESTRATE_{name}_FILE}}\" \
                 || [ -n \"${{{name}}}\" ] || exit 2; "
            ));
        }
        Ok(prologue)
    }

    fn prompt(&mut self, prompt: &Prompt) -> Result<Prepared, Refusal> {
        let text = match &prompt.words {
            Words::Inline(text) => text.clone(),
            Words::Command(command) => {
                self.keep_part(PartKind::Command, &command.name)?;
                let text = parts::frozen_command(&self.site.root(), &command.name)
                    .map_err(Refusal::new)?;
                NodeText::parse(&text)
            }
            Words::Spell(spell) => return self.cast(prompt, spell),
        };
        let mut said = self.fill(&text, Into::Prompt)?;
        let context = self.values(Into::Prompt).variable(Var::Context)?;
        if !context.is_empty() && !text.vars().any(Var::is_context) {
            said.push_str("\n\n---\n\n");
            said.push_str(&context);
        }
        if let Some(format) = &prompt.format {
            said.push_str(&answer::instruct(format));
            said.push_str(&self.complaint());
        }
        let (until, format) = (prompt.until.clone(), prompt.format.clone());
        let rules = AnswerRules { until, format, contract: None };
        self.say(prompt, said.into_bytes(), rules, BTreeMap::new())
    }

    /// What was wrong with the last answer, where it had the wrong form.
    fn complaint(&self) -> String {
        let slot = self.scope.run.slot(&self.here);
        let Some(record) = slot.and_then(|slot| slot.record.as_deref()) else {
            return String::new();
        };
        match &record.error {
            Some(error) if error.ask_again => {
                let problems = error.context.get("output_format").and_then(Value::as_array);
                let problems: Vec<String> = problems
                    .into_iter()
                    .flatten()
                    .filter_map(|problem| problem.as_str().map(str::to_owned))
                    .collect();
                answer::ask_again(&problems, record.output.as_deref().unwrap_or_default())
            }
            _ => String::new(),
        }
    }

    /// Work that says this to an agent; `inputs` are digests of what it was made of.
    pub(super) fn say(
        &mut self,
        prompt: &Prompt,
        said: Vec<u8>,
        rules: AnswerRules,
        inputs: BTreeMap<String, String>,
    ) -> Result<Prepared, Refusal> {
        let provider = &self.plan.providers[&prompt.provider];
        let mut merged = ask::merge(provider, &prompt.params, &self.scope)
            .map_err(|missing| super::unresolved(&missing, false))?;
        if let Some(Param::Fixed(Value::String(path))) = prompt.params.get(MCP) {
            merged.insert(MCP.to_owned(), self.mcp_servers(path)?.into());
        }
        let mut work = Work::new(self.path.clone(), self.attempt, Vec::new());
        work.env = self.step.env.clone();
        let question = Question {
            name: &prompt.provider,
            provider,
            params: &merged,
            prompt: &said,
            around: &self.scope,
            conversation: self.conversation(prompt),
        };
        let work = question.put(work)?;
        self.keep_prompt(&said)?;
        let stdin = (provider.input == InputMode::Stdin).then(|| Input::of(said));
        self.node_work(Work { stdin, answer: Some(rules), inputs, ..work })
    }

    pub(super) fn node_work(&mut self, work: Work) -> Result<Prepared, Refusal> {
        if self.site.debug {
            let command: Vec<_> = work.argv.iter().map(|arg| self.site.mask.text(arg)).collect();
            self.notes.push(format!("command: {command:?}"));
        }
        let ms = |limit: std::time::Duration| limit.as_millis() as u64;
        let (timeout_ms, limit) = self.time_for(self.step.timeout.map(ms))?;
        let file = &self.step.output.file;
        let output_file = file.as_ref().map(|template| self.render(template)).transpose()?;
        if let Some(path) = &output_file {
            self.site.workspace.check(path)?;
        }
        Ok(Prepared::Run(Box::new(Work {
            agent: self.step.agent.clone(),
            secrets: self.step.secrets.clone(),
            item: self.item(),
            timeout_ms,
            limit,
            idle_timeout_ms: self.idle_ms(&work),
            capture: CaptureMode::Whole,
            root: Some(self.root.clone()),
            output_file,
            worktree: self.worktree(),
            debug: Map::new(),
            ..work
        })))
    }

    fn gate(&mut self, gate: &Gate) -> Result<Prepared, Refusal> {
        let message = self.site.mask.text(&self.fill(&gate.message, Into::Message)?);
        let mut shown = self.asking();
        shown.add(&message);
        let message = self.bounded(message, MESSAGE_BYTES)?;
        let around =
            self.scope.loops.last().and_then(|(node, _)| self.scope.run.body.slots.get(*node));
        let record = around.and_then(|slot| slot.record.as_deref());
        shown.add(record.and_then(|record| record.inputs.as_deref()).unwrap_or_default());
        // What an agent said last is what the person answers to.
        let said = gates::said_before(self.plan, self.scope.run, &self.here);
        shown.add(said.and_then(|said| said.output.as_deref()).unwrap_or_default());
        let whole = said.and_then(|said| said.whole.as_ref());
        shown.add(whole.map_or("", |whole| &whole.sha256));
        let expires_at =
            self.step.timeout.map(|limit| SystemClock.now().plus_ms(limit.as_millis() as u64));
        let shown = shown.hex();
        let gate = GateRecord { message, shown, subject: None, expires_at, answer: None };
        Ok(Prepared::Gate(Box::new(gate)))
    }

    /// What the digest of a question begins with, so that it is of this asking alone: a person who
    /// answers what somebody else has answered meanwhile does not answer what is asked next, even
    /// if it reads the same.
    pub(super) fn asking(&self) -> Parts {
        let mut asking = Parts::default();
        asking.add(&self.path.to_string());
        asking.add(&self.attempt.to_string());
        asking
    }
}
