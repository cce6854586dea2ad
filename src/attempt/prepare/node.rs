//! Converts a node that is owed to executable work, or to a gate for a user.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::refs::{Found, Into, Values};
use super::shell::{self, Expansions, spill_path};
use super::{Prepared, Preparing, Refusal};
use crate::agent::answer;
use crate::attempt::command_line::{self, Question};
use crate::attempt::gates;
use crate::attempt::source_files::{self, Library};
use crate::attempt::work::{AnswerRules, Input, ScriptWork, Source, Work};
use crate::base::digest::{Parts, sha256};
use crate::base::time::{Clock, SystemClock};
use crate::disk;
use crate::engine::{GateRecord, Record, StepStatus};
use crate::template::nodes::{NodeText, Var};
use crate::workflow::nodes::condition::{Condition, Unheld};
use crate::workflow::nodes::tools::MCP;
use crate::workflow::plan::{
    Action, CaptureMode, Code, Gate, InputMode, Param, Part, PartKind, Prompt, Script, ShellText,
    Words,
};
use crate::workflow::shell::Layout;

/// Environment variables.
type Env = Vec<(String, String)>;

/// Maximum length of a script in an argument; longer scripts go to files.
const SCRIPT_BYTES: usize = 96 * 1024;
/// Maximum length of an environment variable's value.
const VARIABLE_BYTES: usize = 96 * 1024;
/// Maximum length of a gate's message and of a cancel reason. Users do not read longer texts in a
/// terminal.
const MESSAGE_BYTES: usize = 16 * 1024;
const REASON_BYTES: usize = 2 * 1024;

impl Preparing<'_> {
    /// Evaluates a condition on outputs. Returns the result if it bars the node, otherwise `None`.
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
            // The node asks the user, not a step of its rounds.
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

    /// Fills a text with values. Values that are too long for a script go to files.
    fn fill(&mut self, text: &NodeText, into: Into) -> Result<String, Refusal> {
        self.fill_with(text, into).map(|(text, _)| text)
    }

    /// Fills a text, and returns it with the variables that carry values to a shell script.
    fn fill_with(&mut self, text: &NodeText, into: Into) -> Result<(String, Env), Refusal> {
        let mut values = self.values(into);
        if into == Into::Shell {
            values.expansions = Expansions::new(Layout::of_node(text), &self.root);
            let source = text.source();
            for var in Var::ALL.into_iter().filter(|var| shell::names(&source, var.name())) {
                // An error of the variable is reported where the script's environment is made.
                let value = values.variable(var).unwrap_or_default();
                values.expansions.check_value(&format!("`{var}`"), &value, None);
            }
        }
        let filled = text.render(&mut values);
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

    /// Limits a message to `most` bytes. Truncates a longer one with a note, and writes the whole
    /// message to a file.
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

    /// Writes values that are too long for a script to files.
    pub(super) fn leave_spilled(&self, spilled: Vec<(String, String)>) -> Result<(), Refusal> {
        for (digest, text) in spilled {
            self.leave(&spill_path(&digest), &text)?;
        }
        Ok(())
    }

    /// Writes a file into the run's directory for the executor of the work.
    pub(super) fn leave(&self, path: &str, text: &str) -> Result<(), Refusal> {
        let path = self.site.root().join(path);
        let written = || {
            let disk = disk::machine();
            disk.make_dirs(path.parent().unwrap_or(&path))?;
            // Another node may be reading the same file, so it must never be incomplete.
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

    /// Returns the command that runs a script.
    pub(super) fn shell_argv(&self, shell: &str, text: String) -> Result<Vec<String>, Refusal> {
        if text.len() <= SCRIPT_BYTES {
            return Ok(vec![shell.into(), "-c".into(), text]);
        }
        let path = format!("values/{}.sh", &sha256(text.as_bytes())[..32]);
        self.leave(&path, &text)?;
        // A path of the run may contain a placeholder too, so the script is passed by file name.
        Ok(vec![shell.into(), format!("{}/{path}", self.root)])
    }

    fn script(&mut self, script: &Script) -> Result<Prepared, Refusal> {
        let (source, from) = match &script.code {
            Code::Inline(text) => (Source::Text(self.fill(text, Into::Script)?), None),
            Code::Named(name) => {
                self.keep_part(PartKind::Script, name)?;
                let found = source_files::frozen_script(&self.site.root(), name);
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

    /// Makes sure that the run has a copy of a file that an earlier node may have written.
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

    /// Returns the content of a script's file.
    fn script_text(&self, source: &Source) -> Result<String, Refusal> {
        let Source::File(path) = source else { return Ok(String::new()) };
        let read = disk::machine().read(&self.site.root().join(path));
        let bytes =
            read.map_err(|error| Refusal::new(format!("cannot read the script: {error}")))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Returns the variables with user text for a script's environment, and the variables that its
    /// text names but that are too long for the environment.
    fn request_variables(&mut self, source: &str) -> Result<(Env, Vec<(Var, String)>), Refusal> {
        let mut env = self.step.env.clone();
        let (mut long, mut unnamed) = (Vec::new(), Vec::new());
        let request = self.scope.run.origin.request.as_deref();
        let branch = request.is_some_and(|request| request.base_branch.is_some());
        let values = self.values(Into::Shell);
        for var in Var::ALL {
            // Set to empty if unknown: the process that started the run may have an unrelated
            // variable of this name.
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

    /// Returns the start of a shell script that loads variables which are too long for its
    /// environment.
    fn load(&self, long: Vec<(Var, String)>, env: &mut Env) -> Result<String, Refusal> {
        let mut prologue = String::new();
        for (var, value) in long {
            let (name, path) = (var.name(), spill_path(&sha256(value.as_bytes())));
            self.leave(&path, &value)?;
            env.push((format!("ORCHESTRATE_{name}_FILE"), format!("{}/{path}", self.root)));
            // On the script's first line, so that its line numbers stay the same.
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
                let text = source_files::frozen_command(&self.site.root(), &command.name)
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

    /// Describes the problems of the last answer, if it had the wrong format.
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

    /// Returns work that sends this prompt to an agent. `inputs` contains digests of the prompt's
    /// sources.
    pub(super) fn say(
        &mut self,
        prompt: &Prompt,
        said: Vec<u8>,
        rules: AnswerRules,
        inputs: BTreeMap<String, String>,
    ) -> Result<Prepared, Refusal> {
        let provider = &self.plan.providers()[&prompt.provider];
        let mut merged = command_line::merge(provider, &prompt.params, &self.scope)
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
        // The user's answer refers to the agent's last output.
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

    /// Starts the digest of a question, so that the digest is unique to this question. If a user
    /// answers a question that another user has already answered, the answer does not apply to the
    /// next question, even if its text is the same.
    pub(super) fn asking(&self) -> Parts {
        let mut asking = Parts::default();
        asking.add(&self.path.to_string());
        asking.add(&self.attempt.to_string());
        asking
    }
}
