//! Converts a step that is owed to executable work: evaluates its condition, checks its secrets,
//! resolves its dependencies, and fills in its variables, in that order.
//!
//! The result can be executed without the engine. A step that cannot be prepared fails with exit
//! code 2 before any process starts.

pub(crate) mod conversation;
mod mcp;
mod merge;
mod node;
pub(crate) mod refs;
mod results;
mod shell;
#[cfg(test)]
mod shell_tests;
mod spell;

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::command_line::{self, AskError, Question};
use super::exec_env::{Environment, Site};
use super::prompt::inject::{self, CAP, Found};
use super::work::{Input, MergeWork, TreeWork, Waiting, Work};
use crate::base::ids::{Attempt, StepPath};
use crate::base::time::{Clock, SystemClock, Time};
use crate::disk::fs::{self, OnVolume as _};
use crate::engine::limits;
use crate::engine::run::Address;
use crate::engine::{GateRecord, Record, Run, RunScope};
use crate::store;
use crate::store::DEFINITION;
use crate::template::spell::Fault;
use crate::template::{Hole, Missing, Scope, Template, display, written};
use crate::workflow::plan::{
    Action, IDLE_TIMEOUT, InjectMode, InputMode, Isolation, Param, Step, WaitFor, When,
};
use crate::workflow::{Place, Plan, Problem};
use crate::workspace::PathError;
use crate::worktree::After;
use crate::yaml::problem::located;
use crate::yaml::without_bom;

/// The result of preparing a step.
pub(crate) enum Prepared {
    /// The step's condition is false.
    Skip,
    /// The step cannot run; this is its result.
    Refuse(Box<Record>),
    /// The step's condition is false. The text is the reason if the condition could not be read,
    /// which counts as false.
    Bar(Option<String>),
    /// A loop to enter.
    Open,
    /// A gate for a user.
    Gate(Box<GateRecord>),
    /// A result that needs no execution.
    Done(Box<Record>),
    Run(Box<Work>),
    Wait(Waiting),
    Merge(MergeWork),
}

/// The reason why a step cannot run, with the details for a fix.
pub(crate) struct Refusal {
    message: String,
    context: Map<String, Value>,
    /// The fault in a spell.
    fault: Option<Box<Fault>>,
}

impl Refusal {
    fn new(message: impl Into<String>) -> Self {
        Refusal { message: message.into(), context: Map::new(), fault: None }
    }

    fn with(mut self, key: &str, value: Value) -> Self {
        self.context.insert(key.to_owned(), value);
        self
    }

    /// Adds the position in the workflow, if the refusal is about a text in the workflow.
    fn placed(mut self, file: &str, site: &Site) -> Self {
        let Some(fault) = self.fault.take().filter(|fault| fault.within.is_some()) else {
            return self;
        };
        let origin = store::origin(&site.root());
        let copy = origin.as_ref().map_or(DEFINITION, |origin| origin.definition());
        // Use the run's own copy. If the fault is not found there, report the start of the text.
        let text = fs::read_to_string(site.root().join(copy)).unwrap_or_default();
        let problem = located(without_bom(&text), vec![Problem::from(&*fault)]).remove(0);
        let Some(Place { line, column, .. }) = problem.place else { return self };
        let told = match fault.within == Some((line, column)) {
            true => self.message,
            false => {
                let what = format!("{}:{}:{}: ", fault.file, fault.line, fault.column);
                let rest = self.message.strip_prefix(&what).unwrap_or(&self.message);
                format!("{}: {rest}", fault.file)
            }
        };
        self.message = format!("{file}:{line}:{column}: {told}");
        self
    }
}

impl From<PathError> for Refusal {
    fn from(error: PathError) -> Self {
        let path = match &error {
            PathError::Refused { path, .. }
            | PathError::Missing { path }
            | PathError::Io { path, .. } => path.clone(),
        };
        let key = if matches!(error, PathError::Refused { .. }) { "unsafe_path" } else { "path" };
        Refusal::new(error.to_string()).with(key, path.into())
    }
}

/// Prepares the step at `here`. If the work may run `elsewhere`, its executor checks its secrets.
pub(crate) fn prepare(
    site: &Site,
    plan: &Plan,
    run: &Run,
    here: &Address,
    attempt: Attempt,
    elsewhere: bool,
) -> Prepared {
    let mut preparing = Preparing {
        site,
        plan,
        step: here.step_of(plan),
        path: here.path(plan),
        here: here.clone(),
        attempt,
        elsewhere,
        scope: RunScope { plan, run, loops: &here.loops },
        notes: Vec::new(),
        root: refs::root_mark(),
    };
    let prepared =
        preparing.prepare().map_err(|refusal| refusal.placed(&run.origin.workflow_file, site));
    if let Err(refusal) = &prepared {
        preparing.note(|| format!("refused: {}", refusal.message));
    }
    site.keep_notes(&preparing.path, &preparing.notes);
    prepared.unwrap_or_else(|refusal| {
        let message = site.mask.text(&refusal.message);
        let context = mask_map(site, refusal.context);
        Prepared::Refuse(Box::new(Record::refused(2, message, context)))
    })
}

/// Masks every string in a map.
pub(crate) fn mask_map(site: &Site, map: Map<String, Value>) -> Map<String, Value> {
    if site.mask.is_empty() {
        return map;
    }
    map.into_iter().map(|(k, v)| (site.mask.text(&k), mask_json(site, v))).collect()
}

/// Masks every string in a value.
pub(crate) fn mask_json(site: &Site, value: Value) -> Value {
    if site.mask.is_empty() {
        return value;
    }
    match value {
        Value::String(text) => Value::String(site.mask.text(&text)),
        Value::Array(items) => items.into_iter().map(|item| mask_json(site, item)).collect(),
        Value::Object(map) => Value::Object(mask_map(site, map)),
        Value::Number(number) => {
            let text = number.to_string();
            if site.mask.text(&text) == text { Value::Number(number) } else { "***".into() }
        }
        other => other,
    }
}

/// Masks JSON text like [`mask_json`], and makes it compact.
pub(crate) fn mask_written(site: &Site, json: &str) -> String {
    let number = |digits: &str| match site.mask.text(digits) == digits {
        true => digits.to_owned(),
        false => "\"***\"".to_owned(),
    };
    written::compact(json, |text| site.mask.text(&text), number)
}

struct Preparing<'a> {
    site: &'a Site,
    plan: &'a Plan,
    step: &'a Step,
    path: StepPath,
    here: Address,
    attempt: Attempt,
    elsewhere: bool,
    scope: RunScope<'a>,
    notes: Vec<String>,
    /// Placeholder for the run's directory in the prepared work.
    root: String,
}

impl Preparing<'_> {
    fn prepare(&mut self) -> Result<Prepared, Refusal> {
        if let Some(When::Outputs(condition)) = &self.step.when
            && let Some(barred) = self.outputs_bar(condition)?
        {
            return Ok(barred);
        }
        if let Some(When::Spell(condition)) = &self.step.when
            && !self.spell_holds(condition)?
        {
            return Ok(Prepared::Skip);
        }
        if !self.condition_holds()? {
            return Ok(Prepared::Skip);
        }
        if !self.elsewhere {
            missing_secrets(&self.step.secrets, &self.site.environment)?;
        }
        let files = self.dependencies()?;
        match &self.step.action {
            Action::Each(_) | Action::Rounds(_) => Ok(Prepared::Open),
            Action::Wait(wait) => self.wait(wait),
            Action::Exec { argv } => {
                let argv = self.render_all(argv)?;
                let work = Work::new(self.path.clone(), self.attempt, argv);
                self.work(work, None, Map::new())
            }
            Action::Ask { provider, params } => self.ask(provider, params, files),
            Action::Prompt(_)
            | Action::Shell { .. }
            | Action::Script(_)
            | Action::Gate(_)
            | Action::Cancel { .. } => self.node(),
            Action::Merge { review, checks } => self.merge(*review, checks),
        }
    }

    /// Returns the time limit of the step: its own, or that of an enclosing step if that is
    /// shorter, then with its owner.
    fn time_for(&self, own: Option<u64>) -> Result<(Option<u64>, Option<String>), Refusal> {
        let now = SystemClock.now();
        let Some(left) = limits::left(self.plan, self.scope.run, &self.here, now) else {
            return Ok((own, None));
        };
        if own.is_some_and(|own| own <= left.ms) {
            return Ok((own, None));
        }
        // A step without time left fails at once, as after a timeout.
        Ok((Some(left.ms.max(1)), Some(left.whose)))
    }

    /// Returns the worktree for the step, if its bead has one.
    fn worktree(&self) -> Option<TreeWork> {
        let (bead, isolation) = self.scope.run.bead_of(self.step)?;
        let request = self.scope.run.origin.request.as_deref();
        let base = request.and_then(|request| request.base_branch.clone());
        let id = bead.get("id")?.as_str()?.to_owned();
        let turns = &self.site.turns;
        let (wait_ms, push) = (Some(turns.wait.as_millis() as u64), turns.push);
        let after = self.done_before(&id);
        (isolation == Isolation::Worktree).then_some(TreeWork { id, base, wait_ms, after, push })
    }

    /// Returns the commits at which the last steps in a bead's worktree left its branch.
    fn done_before(&self, bead: &str) -> Vec<After> {
        let branch = format!("coven/{bead}");
        let run = self.scope.run;
        let mut latest: (Option<Time>, Vec<After>) = Default::default();
        for (at, slot) in run.slots() {
            let Some(record) = slot.record.as_deref() else { continue };
            let Some(tree) = record.worktree.as_deref().filter(|tree| tree.branch == branch) else {
                continue;
            };
            // A state that was loaded from its file has times in whole seconds.
            let ended = record.completed_at.map(|at| Time(at.0 / 1000));
            if ended < latest.0 {
                continue;
            }
            if ended > latest.0 {
                latest = (ended, Vec::new());
            }
            let step = at.path(self.plan).to_string();
            let after = tree.head.clone().map(|commit| After { commit, step });
            latest.1.extend(
                after.filter(|after| !latest.1.iter().any(|known| known.commit == after.commit)),
            );
        }
        latest.1
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        if self.site.debug {
            self.notes.push(line());
        }
    }

    /// Fills a template. The error lists every missing value with its kind.
    fn render(&mut self, template: &Template) -> Result<String, Refusal> {
        let text = template.render(&self.scope).map_err(|missing| unresolved(&missing, false))?;
        for hole in template.holes() {
            if self.site.debug
                && let Ok(value) = self.scope.look_up(hole)
            {
                self.notes.push(format!("variable: ${{{}}} is `{}`", hole.raw, display(&value)));
            }
            if self.was_cut(hole) {
                tracing::warn!("`${{{}}}` was truncated when it was captured", hole.raw);
            }
        }
        Ok(text)
    }

    /// Returns true if a hole refers to output that did not fit into the state.
    fn was_cut(&self, hole: &Hole) -> bool {
        let Some((last, front)) = hole.path.split_last() else { return false };
        if hole.root() != "steps" || !matches!(last.as_str(), "output" | "lines") {
            return false;
        }
        let truncated = Hole::new(&format!("{}.truncated", front.join(".")));
        matches!(self.scope.look_up(&truncated).as_deref(), Ok(Value::Bool(true)))
    }

    fn render_all(&mut self, templates: &[Template]) -> Result<Vec<String>, Refusal> {
        let mut texts = Vec::new();
        let mut missing = Vec::new();
        for template in templates {
            match template.render(&self.scope) {
                Ok(_) => texts.push(self.render(template)?),
                Err(faults) => missing.extend(faults),
            }
        }
        if missing.is_empty() { Ok(texts) } else { Err(unresolved(&missing, false)) }
    }

    fn condition_holds(&mut self) -> Result<bool, Refusal> {
        let Some(When::Test(when)) = &self.step.when else { return Ok(true) };
        if let Some((left, right)) = &when.equals {
            let (left, right) = (self.render(left)?, self.render(right)?);
            self.note(|| format!("when: `{left}` equals `{right}`?"));
            if left != right {
                return Ok(false);
            }
        }
        for (glob, wanted) in [(&when.exists, true), (&when.not_exists, false)] {
            if let Some(glob) = glob {
                let pattern = self.render(glob)?;
                let found = self.site.workspace.glob(&pattern)?;
                self.note(|| format!("when: `{pattern}` matches {found:?}"));
                if found.is_empty() == wanted {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Checks that the required files exist. Returns all files found, sorted.
    fn dependencies(&mut self) -> Result<Vec<Found>, Refusal> {
        let depends = &self.step.depends;
        let mut found: BTreeMap<String, bool> = BTreeMap::new();
        let mut failed = Vec::new();
        for (templates, required) in [(&depends.required, true), (&depends.optional, false)] {
            for template in templates {
                let pattern = self.render(template)?;
                let matches = self.site.workspace.glob(&pattern)?;
                self.note(|| format!("depends_on: `{pattern}` matches {matches:?}"));
                if matches.is_empty() && required {
                    failed.push(pattern);
                }
                for path in matches {
                    *found.entry(path).or_default() |= required;
                }
            }
        }
        if !failed.is_empty() {
            let list = failed.iter().map(|p| format!("`{p}`")).collect::<Vec<_>>().join(", ");
            let message = format!("required files are missing: {list}");
            return Err(Refusal::new(message).with("failed_deps", json!(failed)));
        }
        let found = found.into_iter();
        Ok(found.map(|(path, required)| Found { path, required, ..Found::default() }).collect())
    }

    fn wait(&mut self, wait: &WaitFor) -> Result<Prepared, Refusal> {
        let glob = self.render(&wait.glob)?;
        self.note(|| format!("wait_for: `{glob}`"));
        // A forbidden pattern fails now, not after the timeout.
        self.site.workspace.glob(&glob)?;
        let &WaitFor { timeout, poll, min_count, .. } = wait;
        Ok(Prepared::Wait(Waiting { glob, timeout, poll, min_count }))
    }

    fn ask(
        &mut self,
        name: &str,
        params: &BTreeMap<String, Param>,
        files: Vec<Found>,
    ) -> Result<Prepared, Refusal> {
        let provider = &self.plan.providers()[name];
        let (prompt, injection) = self.compose(files)?;
        let merged = command_line::merge(provider, params, &self.scope)
            .map_err(|missing| unresolved(&missing, false))?;
        for key in command_line::unused(provider, &merged) {
            tracing::debug!("provider `{name}` has no place for the parameter `{key}`");
        }
        let conversation = self.own_conversation(&self.here, true).into();
        let question = Question {
            name,
            provider,
            params: &merged,
            prompt: &prompt,
            around: &self.scope,
            conversation,
        };
        let asked = question.put(Work::new(self.path.clone(), self.attempt, Vec::new()))?;
        self.keep_prompt(&prompt)?;
        let stdin = (provider.input == InputMode::Stdin).then_some(prompt);
        let mut debug = Map::new();
        if let Some(cut) = injection {
            debug.insert("injection".into(), cut.to_json());
        }
        self.work(asked, stdin, debug)
    }

    /// Writes a prompt to the logs for debugging.
    fn keep_prompt(&self, prompt: &[u8]) -> Result<(), Refusal> {
        if self.site.debug {
            let path = self.site.log(&self.path, "prompt.txt");
            let written = fs::write(&path, self.site.mask.bytes(prompt));
            written.map_err(|error| Refusal::new(format!("cannot write the prompt: {error}")))?;
        }
        Ok(())
    }

    /// Returns the prompt: the unchanged input file, with dependencies injected if configured.
    fn compose(
        &mut self,
        mut files: Vec<Found>,
    ) -> Result<(Vec<u8>, Option<inject::Cut>), Refusal> {
        let prompt = match &self.step.input_file {
            None => Vec::new(),
            Some(template) => {
                let path = self.render(template)?;
                self.note(|| format!("input_file: {path}"));
                self.site.workspace.read(&path, self.site.input_bytes)?
            }
        };
        let Some(how) = &self.step.depends.inject else { return Ok((prompt, None)) };
        if how.mode == InjectMode::Content {
            for file in &mut files {
                if self.site.cwd().join(&file.path).is_present_dir() {
                    continue;
                }
                let (head, size) = self.site.workspace.read_head(&file.path, CAP)?;
                (file.size, file.head) = (size, Some(head));
            }
        }
        let (text, cut) = inject::inject(&String::from_utf8_lossy(&prompt), how, &files);
        Ok((text.into_bytes(), cut))
    }

    fn work(
        &mut self,
        work: Work,
        stdin: Option<Vec<u8>>,
        mut debug: Map<String, Value>,
    ) -> Result<Prepared, Refusal> {
        let output = &self.step.output;
        let output_file = output.file.as_ref().map(|t| self.render(t)).transpose()?;
        if let Some(path) = &output_file {
            self.site.workspace.check(path)?;
            self.notes.push(format!("output_file: {path}"));
        }
        let schema = output.schema.as_ref().map(|t| self.render(t)).transpose()?;
        if let Some(path) = &schema {
            // Check now: an unusable schema should not cost an execution.
            usable_schema(self.site, path)?;
        }
        if self.site.debug {
            let command: Vec<_> = work.argv.iter().map(|arg| self.site.mask.text(arg)).collect();
            debug.insert("command".into(), json!(command));
            debug.insert("cwd".into(), json!(self.site.cwd()));
            debug.insert(
                "env_count".into(),
                json!(self.site.environment.len() + self.step.env.len()),
            );
            self.notes.push(format!("command: {command:?}"));
        }
        let mut env = work.env.clone();
        env.extend(self.step.env.iter().cloned());
        Ok(Prepared::Run(Box::new(Work {
            stdin: stdin.map(Input::of),
            env,
            secrets: self.step.secrets.clone(),
            item: self.item(),
            agent: self.step.agent.clone(),
            timeout_ms: self.step.timeout.map(|timeout| timeout.as_millis() as u64),
            idle_timeout_ms: self.idle_ms(&work),
            capture: output.capture,
            allow_parse_error: output.allow_parse_error,
            output_file,
            schema,
            require: output.require.clone(),
            debug,
            worktree: self.worktree(),
            ..work
        })))
    }

    /// Returns the maximum silence of an agent. Some agents wait for hours on a dead connection, so
    /// an agent without a limit of its own gets a default.
    fn idle_ms(&self, work: &Work) -> Option<u64> {
        let unlimited = work.adapter.is_stream() && self.step.timeout.is_none();
        let idle = self.step.idle_timeout.or(unlimited.then_some(IDLE_TIMEOUT));
        idle.map(|idle| idle.as_millis() as u64)
    }

    /// Returns the item of the enclosing loop, if a variable can hold it.
    fn item(&self) -> Option<String> {
        let item = self.scope.look_up(&Hole::new("item")).ok()?;
        let text = display(&item);
        (text.len() <= 32 * 1024 && !text.contains('\0')).then(|| text.into_owned())
    }
}

/// Checks that all secrets are set.
pub(crate) fn missing_secrets(names: &[String], environment: &Environment) -> Result<(), Unusable> {
    let missing: Vec<_> = names.iter().filter(|name| !environment.contains_key(*name)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    let message = format!("secrets are not set in the environment: {list}");
    let context = [("missing_secrets".to_owned(), json!(missing))].into_iter().collect();
    Err(Unusable { message, context })
}

/// Reads a schema. The error states why it cannot be used.
pub(crate) fn usable_schema(site: &Site, path: &str) -> Result<jsonschema::Validator, Unusable> {
    let broken = |reason: String| Unusable {
        message: format!("the schema `{path}` cannot be used: {reason}"),
        context: [("output_schema".to_owned(), json!(path))].into_iter().collect(),
    };
    let bytes =
        site.workspace.read(path, site.input_bytes).map_err(|error| broken(error.to_string()))?;
    let text = std::str::from_utf8(&bytes).map_err(|_| broken("it is not UTF-8 text".into()))?;
    let schema: Value =
        serde_json::from_str(without_bom(text)).map_err(|error| broken(error.to_string()))?;
    jsonschema::validator_for(&schema).map_err(|error| broken(error.to_string()))
}

/// An input or output that does not match the author's specification.
pub(crate) struct Unusable {
    pub message: String,
    pub context: Map<String, Value>,
}

impl From<Unusable> for Refusal {
    fn from(Unusable { message, context }: Unusable) -> Self {
        Refusal { context, ..Refusal::new(message) }
    }
}

impl From<AskError> for Refusal {
    fn from(error: AskError) -> Self {
        match error {
            AskError::NotText { at } => Refusal::new(format!(
                "the prompt is not UTF-8 text (byte {at}), so it cannot be an argument; \
                 a provider with `input_mode: stdin` gets it as it is"
            )),
            AskError::Missing(missing) => unresolved(&missing, true),
        }
    }
}

/// Returns a refusal that groups missing references by kind: variables, step results, provider
/// parameters.
fn unresolved(missing: &[Missing], in_provider: bool) -> Refusal {
    let names =
        |list: &[&Missing]| list.iter().map(|m| format!("${{{}}}", m.raw)).collect::<Vec<_>>();
    let all: Vec<&Missing> = missing.iter().collect();
    let reasons: Vec<_> =
        missing.iter().map(|m| format!("`${{{}}}` ({})", m.raw, m.reason)).collect();
    let mut refusal = Refusal::new(format!("undefined: {}", reasons.join(", ")));
    let namespaced = |m: &&Missing| {
        ["run.", "context.", "steps.", "loop.", "item"].iter().any(|root| m.raw.starts_with(root))
    };
    let variables: Vec<_> = all.iter().copied().filter(|m| !in_provider || namespaced(m)).collect();
    if !variables.is_empty() {
        refusal = refusal.with("undefined_vars", json!(names(&variables)));
    }
    let of_steps: Vec<_> = all.iter().filter(|m| m.raw.starts_with("steps.")).collect();
    if !of_steps.is_empty() {
        let details: Vec<_> =
            of_steps.iter().map(|m| json!({ "reference": m.raw, "reason": m.reason })).collect();
        refusal = refusal.with("invalid_reference", json!(details));
    }
    if in_provider {
        let keys: Vec<_> = all.iter().map(|m| m.raw.clone()).collect();
        refusal = refusal.with("missing_placeholders", json!(keys));
    }
    refusal
}
