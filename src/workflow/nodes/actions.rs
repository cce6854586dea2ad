//! The action of a node: from its one mode field, and the fields that belong to it, to a step.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value as Json;

use super::Reading;
use super::keys::{self as keys, Level, Mode};
use super::mentions::Use;
use super::tools;
use crate::template::nodes::{NodeText, Piece, Var};
use crate::workflow::fields::Fields;
use crate::workflow::plan::{
    self, Action, Block, CaptureMode, Code, CommandUse, Gate, Output, Param, Part, PartKind,
    Prompt, Retries, Rounds, RoundsKind, Runtime, Script, ShellText, Step, Until, Which, Words,
};
use crate::workflow::steps::maps as parts;
use crate::workflow::{spells, steps};
use crate::yaml::problem::Problem;
use crate::yaml::{Node, Value};

/// Default timeout of a script.
const SCRIPT_TIMEOUT: Duration = Duration::from_millis(120_000);
/// Default retries of an agent after a transient failure.
const AGENT_RETRIES: Retries = Retries { max: 2, delay_ms: Some(3_000), which: Which::Transient };

/// The fields of a node that apply to everything it executes.
struct Around<'r, 'a> {
    reading: &'r Reading<'a>,
    fields: &'r Fields<'a>,
    index: usize,
    timeout: Option<Duration>,
    idle_timeout: Option<Duration>,
    retries: Option<Retries>,
    format: Option<Json>,
    fresh: bool,
    agent: Option<String>,
    env: Vec<(String, String)>,
    secrets: Vec<String>,
    /// Parameters that limit or extend the tools of an agent.
    limits: BTreeMap<String, Param>,
}

/// Reads the action of a node. The step has no name yet.
pub(super) fn read(reading: &Reading, fields: &Fields, mode: Mode, index: usize) -> Option<Step> {
    let asks = match mode {
        Mode::Command | Mode::Prompt | Mode::Loop | Mode::Spell => true,
        Mode::Approval => fields.get("approval").is_some_and(|a| a.get("on_reject").is_some()),
        Mode::Bash | Mode::Script | Mode::Cancel => false,
    };
    keys::tell_idle_of_node(fields, mode, asks);
    steps::check_agent(fields);
    let answers = matches!(mode, Mode::Command | Mode::Prompt | Mode::Loop | Mode::Spell);
    if mode != Mode::Spell {
        spells::tell_idle(fields);
    }
    let format = format(fields, answers);
    let fresh = fields.choice("context", &[("fresh", true), ("shared", false)]).unwrap_or(false);
    let around = Around {
        reading,
        fields,
        index,
        timeout: fields.milliseconds("timeout"),
        idle_timeout: fields.milliseconds("idle_timeout"),
        retries: retries(fields),
        format,
        fresh,
        agent: fields.text("agent").map(str::to_owned),
        env: parts::env(fields),
        secrets: parts::secrets(fields),
        limits: tools::read(fields, reading.sandbox.as_ref()),
    };
    let scripted = match mode {
        Mode::Bash | Mode::Script => true,
        Mode::Loop => fields.get("loop").is_some_and(|rounds| rounds.get("until_bash").is_some()),
        _ => false,
    };
    if scripted {
        tell_variables_in_env(fields);
    }
    tell_texts_in_env(fields);
    match mode {
        Mode::Command => around.command(),
        Mode::Prompt => around.prompt(),
        Mode::Spell => around.spell(),
        Mode::Bash => around.bash(),
        Mode::Script => around.script(),
        Mode::Loop => around.rounds(),
        Mode::Approval => around.approval(),
        Mode::Cancel => {
            let reason = around.text(fields, "cancel", Use::Message)?;
            Some(whole(Step::new("", Action::Cancel { reason })))
        }
    }
}

/// Warns of names in `env` that a script always gets from the run instead.
fn tell_variables_in_env(fields: &Fields) {
    let Some(Value::Map(pairs)) = fields.get("env").map(|env| &env.value) else { return };
    for (key, _) in pairs {
        if let Some(var) = key.text().and_then(Var::named) {
            let (name, what) = (var.name(), &fields.what);
            let message = format!("`{name}` in `env` of {what} has no effect on a script");
            let hint = format!("a script has the run's own `{var}`: take another name");
            fields.findings.add(Problem::warning(message).at(key.place).hint(hint));
        }
    }
}

/// Warns of variables and references in the values of `env`, which are not replaced there.
fn tell_texts_in_env(fields: &Fields) {
    let Some(Value::Map(pairs)) = fields.get("env").map(|env| &env.value) else { return };
    for (key, value) in pairs {
        let text = NodeText::parse(value.text().unwrap_or_default());
        let first = text.pieces().iter().find_map(|piece| match piece {
            Piece::Var(var) => Some(var.to_string()),
            Piece::Ref(reference) => Some(reference.to_string()),
            Piece::Text(_) => None,
        });
        let Some(first) = first else { continue };
        let (name, what) = (key.text().unwrap_or_default(), &fields.what);
        let message = format!("`{first}` is not replaced in `{name}` of `env` of {what}");
        let hint = "write it into the prompt or the script itself; a script has the variables of \
                    the run in its environment";
        fields.findings.add(Problem::warning(message).at(value.place).hint(hint));
    }
}

/// Returns the step with its output stored in full, regardless of its length.
fn whole(step: Step) -> Step {
    Step { output: Output { capture: CaptureMode::Whole, ..Output::default() }, ..step }
}

fn retries(fields: &Fields) -> Option<Retries> {
    let node = fields.get("retry")?;
    if let Value::Number(number) = &node.value {
        let message = format!("`retry` of {} must be a map, not a number", fields.what);
        let cure = format!("write `retry: {{ max_attempts: {number} }}`");
        fields.findings.add(Problem::error(message).at(node.place).hint(cure));
        return None;
    }
    let retry = keys::inner(fields, "retry", Level::Retry)?;
    if retry.get("max_attempts").is_none() {
        let problem = Problem::error(format!("{} has no `max_attempts`", retry.what));
        retry.findings.add(problem.at(retry.node.place).hint("it says how often, from 1 to 5"));
    }
    let max = retry.integer("max_attempts", 1, 5);
    let delay_ms = retry.integer("delay_ms", 1_000, 60_000).unwrap_or(3_000);
    let which = [("transient", Which::Transient), ("all", Which::All)];
    let which = retry.choice("on_error", &which).unwrap_or(Which::Transient);
    Some(Retries { max: max? as u32, delay_ms: Some(delay_ms), which })
}

/// Reads the schema of a node's answer. A schema that cannot be used is reported and not enforced.
fn format(fields: &Fields, answers: bool) -> Option<Json> {
    let node = fields.get("output_format").filter(|_| answers)?;
    let what = &fields.what;
    if !matches!(node.value, Value::Map(_)) {
        let kind = node.kind();
        let message = format!("`output_format` of {what} must be a JSON Schema, not {kind}");
        let cure = "write a map such as `{ type: object, properties: { … } }`";
        fields.findings.add(Problem::error(message).at(node.place).hint(cure));
        return None;
    }
    let schema = node.to_json();
    if schema.get("type").is_some_and(|kind| kind != "object") {
        let message = format!("`output_format` of {what} describes no object");
        let problem = Problem::warning(message).at(node.place);
        fields
            .findings
            .add(problem.hint("an answer is always a JSON object: write `type: object`"));
    }
    match jsonschema::validator_for(&schema) {
        Ok(_) => Some(schema),
        Err(error) => {
            let message = format!("`output_format` of {what} is no JSON Schema: {error}");
            let problem = Problem::warning(message).at(node.place);
            fields.findings.add(problem.hint("it is not enforced"));
            None
        }
    }
}

/// Reads a file name that cannot lead out of its folder.
fn file_name<'a>(
    fields: &Fields<'a>,
    key: &str,
    folder: &str,
    endings: &[&str],
) -> Option<&'a str> {
    let name = fields.required(key)?;
    let place = fields.get(key).map_or(fields.node.place, |node| node.place);
    let climbs = name.contains(['/', '\\']) || name.contains("..") || name.starts_with('.');
    if climbs || name.chars().any(char::is_control) {
        let message = format!("`{key}` of {} is `{name}`, which names no file", fields.what);
        let cure = format!("a name alone: it is looked for in {folder}");
        fields.findings.add(Problem::error(message).at(place).hint(cure));
        return None;
    }
    if let Some(stem) = endings.iter().find_map(|ending| name.strip_suffix(ending)) {
        let message = format!("`{key}` of {} is `{name}`: its ending is added to it", fields.what);
        fields.findings.add(Problem::warning(message).at(place).hint(format!("write `{stem}`")));
    }
    Some(name)
}

impl<'a> Around<'_, 'a> {
    /// Reads a required text of the node.
    fn text(&self, fields: &Fields, key: &str, used: Use) -> Option<NodeText> {
        let text = fields.required(key)?;
        Some(self.reading.text(fields, key, text, used, self.index))
    }

    /// Returns a step that executes something.
    fn executed(&self, name: &str, action: Action, timeout: Option<Duration>) -> Step {
        whole(Step {
            agent: self.agent.clone(),
            env: self.env.clone(),
            secrets: self.secrets.clone(),
            timeout,
            ..Step::new(name, action)
        })
    }

    /// Returns a step that sends a prompt to an agent.
    fn asked(&self, name: &str, words: Words, until: Option<Until>, fresh: bool) -> Step {
        let (provider, model) = self.reading.provider(self.fields);
        let model = model.map(|model| ("model".to_owned(), Param::Fixed(Json::String(model))));
        let params: BTreeMap<_, _> = model.into_iter().chain(self.limits.clone()).collect();
        self.reading.check_limits(self.fields, &self.limits, &provider);
        let format = self.format.clone();
        let prompt = Prompt { words, provider, params, format, until, fresh };
        Step {
            idle_timeout: Some(self.idle_timeout.unwrap_or(plan::IDLE_TIMEOUT)),
            retries: Some(self.retries.unwrap_or(AGENT_RETRIES)),
            ..self.executed(name, Action::Prompt(prompt), self.timeout)
        }
    }

    fn spell(&self) -> Option<Step> {
        let repair = self.reading.repairs();
        // An answer has one form: `output_format`, or the contract that spells use by default.
        let contract = self.format.is_none();
        let used = spells::read(self.fields, contract, repair)?;
        if used.contract && !contract {
            let place = self.fields.place_of_key("contract");
            let what = &self.fields.what;
            let message = format!("{what} has `contract: agent` and `output_format`");
            let hint = "an answer has one form: drop one of them";
            self.fields.findings.add(Problem::error(message).at(place).hint(hint));
        }
        Some(self.asked("", Words::Spell(Box::new(used)), None, self.fresh))
    }

    /// Records the file that the value of a key names.
    fn part(&self, kind: PartKind, key: &str, name: &str) {
        let place = self.fields.get(key).map(|node| node.place);
        let part = Part { kind, name: name.to_owned(), place };
        self.fields.findings.name(|named| named.part(part));
    }

    fn command(&self) -> Option<Step> {
        let name = file_name(self.fields, "command", "`.archon/commands`", &[".md"])?;
        self.part(PartKind::Command, "command", name);
        let command = CommandUse { name: name.to_owned(), refs: Vec::new() };
        Some(self.asked("", Words::Command(command), None, self.fresh))
    }

    fn prompt(&self) -> Option<Step> {
        let words = Words::Inline(self.text(self.fields, "prompt", Use::Prompt)?);
        Some(self.asked("", words, None, self.fresh))
    }

    fn bash(&self) -> Option<Step> {
        let script = self.text(self.fields, "bash", Use::Bash)?;
        let timeout = self.timeout.unwrap_or(SCRIPT_TIMEOUT);
        let script = ShellText::Node(script);
        let step = self.executed("", Action::Shell { script }, Some(timeout));
        Some(Step { retries: self.retries, ..step })
    }

    fn script(&self) -> Option<Step> {
        let fields = self.fields;
        if fields.get("runtime").is_none() {
            let problem = Problem::error(format!("{} has no `runtime`", fields.what));
            fields.findings.add(problem.at(fields.node.place).hint("write `bun` or `uv`"));
        }
        let runtime = fields.choice("runtime", &[("bun", Runtime::Bun), ("uv", Runtime::Uv)]);
        let deps = self.deps();
        let text = fields.required("script")?;
        let code = if is_inline(text) {
            Code::Inline(self.text(fields, "script", Use::Script)?)
        } else {
            let endings = [".ts", ".js", ".py"];
            let name = file_name(fields, "script", "`scripts`", &endings)?;
            self.part(PartKind::Script, "script", name);
            Code::Named(name.to_owned())
        };
        let action = Action::Script(Script { code, runtime: runtime?, deps });
        let timeout = self.timeout.unwrap_or(SCRIPT_TIMEOUT);
        Some(Step { retries: self.retries, ..self.executed("", action, Some(timeout)) })
    }

    fn deps(&self) -> Vec<String> {
        let fields = self.fields;
        let found = fields.texts("deps").unwrap_or_default();
        for (name, place) in &found {
            // The name becomes an argument of the program that installs the package.
            if name.trim().is_empty() || name.starts_with('-') || name.contains('\0') {
                let message = format!("`{name}` in `deps` of {} names no package", fields.what);
                fields.findings.error(*place, message);
            }
        }
        found.into_iter().map(|(name, _)| name.to_owned()).collect()
    }

    fn rounds(&self) -> Option<Step> {
        let inside = keys::inner(self.fields, "loop", Level::Loop)?;
        let findings = inside.findings;
        let prompt = match inside.get("command") {
            Some(_) => {
                let what = &inside.what;
                let message = format!("{what} has `command`, but what it says is its `prompt`");
                let problem = Problem::error(message).at(inside.place_of_key("command"));
                findings.add(problem.hint("write the text itself as `prompt`"));
                None
            }
            None => self.text(&inside, "prompt", Use::LoopPrompt),
        };
        let signal = inside.required("until").map(str::to_owned);
        if inside.get("max_iterations").is_none() {
            findings.error(inside.node.place, format!("{} has no `max_iterations`", inside.what));
        }
        let most = inside.integer("max_iterations", 1, u64::from(u32::MAX));
        let strict = inside.boolean("strict").unwrap_or(false);
        let fresh = inside.boolean("fresh_context").unwrap_or(false);
        let interactive = inside.boolean("interactive").unwrap_or(false);
        let check = inside
            .optional("until_bash")
            .map(|text| self.reading.text(&inside, "until_bash", text, Use::UntilBash, self.index));
        let message = inside
            .optional("gate_message")
            .map(|text| self.reading.text(&inside, "gate_message", text, Use::Message, self.index));
        if inside.get("gate_message").is_some() && !interactive {
            let message = format!("`gate_message` of {} has no effect", inside.what);
            let problem = Problem::warning(message).at(inside.place_of_key("gate_message"));
            findings.add(problem.hint("nobody is asked without `interactive: true`"));
        }
        let until = Until { signal: signal?, strict };
        let mut steps = vec![self.asked("prompt", Words::Inline(prompt?), Some(until), fresh)];
        steps.extend(check.map(|script| {
            let script = ShellText::Node(script);
            self.executed("until_bash", Action::Shell { script }, Some(SCRIPT_TIMEOUT))
        }));
        if interactive {
            let message = message.unwrap_or_else(|| NodeText::parse(GATE_MESSAGE));
            steps.push(Step::new("gate", Action::Gate(Gate { message, capture: false })));
        }
        Some(in_rounds(RoundsKind::Loop, most? as u32, steps))
    }

    fn approval(&self) -> Option<Step> {
        let node = self.fields.get("approval")?;
        if let Some(text) = node.text() {
            let message = format!("`approval` of {} must be a map, not text", self.fields.what);
            let cure = format!("write `approval: {{ message: {} }}`", Json::from(text));
            let problem = Problem::error(message).at(node.place);
            self.fields.findings.add(problem.hint(cure));
            return None;
        }
        let inside = keys::inner(self.fields, "approval", Level::Approval)?;
        let message = self.text(&inside, "message", Use::Message);
        let capture = inside.boolean("capture_response").unwrap_or(false);
        let rework = inside.get("on_reject").map(|node| self.on_reject(&inside, node));
        let (rework, most) = match rework {
            Some(rework) => rework.map(|(step, most)| (Some(step), most))?,
            None => (None, 1),
        };
        let gate = Action::Gate(Gate { message: message?, capture });
        let gate = Step { timeout: self.timeout, ..Step::new("gate", gate) };
        let steps = [gate].into_iter().chain(rework).collect();
        Some(in_rounds(RoundsKind::Approval, most, steps))
    }

    fn on_reject(&self, inside: &Fields<'a>, node: &Node) -> Option<(Step, u32)> {
        if let Some(text) = node.text() {
            let message = format!("`on_reject` of {} must be a map, not text", inside.what);
            let cure = format!("write `on_reject: {{ prompt: {} }}`", Json::from(text));
            inside.findings.add(Problem::error(message).at(node.place).hint(cure));
            return None;
        }
        let reject = keys::inner(inside, "on_reject", Level::OnReject)?;
        let most = match reject.get("max_attempts") {
            None => Some(3),
            Some(_) => reject.integer("max_attempts", 1, 10),
        };
        let words = Words::Inline(self.text(&reject, "prompt", Use::RejectPrompt)?);
        // The node's own `timeout` limits the person's reply, and its `retry` has no effect here.
        let step = self.asked("on_reject", words, None, self.fresh);
        Some((Step { timeout: None, retries: Some(AGENT_RETRIES), ..step }, most? as u32))
    }
}

const GATE_MESSAGE: &str = "The loop is not done yet. Approve for one more round; what you say is \
                            passed on. Reject to end the run.";

/// Returns a step that runs other steps round after round.
fn in_rounds(kind: RoundsKind, most: u32, steps: Vec<Step>) -> Step {
    let block = Block::sequence(steps);
    whole(Step::new("", Action::Rounds(Rounds { block, kind, most })))
}

/// Returns true if a script is inline text, false if it is the name of a file.
fn is_inline(text: &str) -> bool {
    text.contains(['\n', ' ', ';', '(', ')', '{', '}', '&', '|', '<', '>', '$', '`', '"', '\''])
}
