//! The grimoire dialect: steps in sequence, written around spells.
//!
//! A grimoire is recognized by its steps: they have a `type`, and the file has no `version`.

pub(crate) mod names;
#[cfg(test)]
pub(crate) mod tests;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Map, Value as Json};

use super::plan::{
    Action, Block, CaptureMode, Dirs, OnFail, OnMost, Output, Param, Plan, Prompt, Provider,
    Rounds, RoundsKind, ShellText, Step, When, Words,
};
use super::schema::steps::STEP;
use super::schema::{Table, grimoire as shape};
use super::{Configured, lint, shell, spells, steps};
use crate::template::spell::{Fault, Spell};
use crate::workflow::dialects::{self, Format};
use crate::workflow::fields::{Fields, Findings, no_list, suggest};
use crate::workflow::plan::Dialect;
use crate::yaml::problem::{Problem, nearest};
use crate::yaml::{Node, Value};

const AGENT_TIMEOUT: Duration = Duration::from_secs(15 * 60);
const SCRIPT_TIMEOUT: Duration = Duration::from_secs(5 * 60);
const ROUNDS: u64 = 10;

/// The type of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Agent,
    Script,
    Loop,
    Merge,
}

impl Kind {
    const ALL: [(&'static str, Kind); 4] = [
        ("agent", Kind::Agent),
        ("script", Kind::Script),
        ("loop", Kind::Loop),
        ("merge", Kind::Merge),
    ];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }

    /// Returns the fields of a step of this type.
    fn table(self) -> &'static Table {
        match self {
            Kind::Agent => &shape::AGENT,
            Kind::Script => &shape::SCRIPT,
            Kind::Loop => &shape::LOOP,
            Kind::Merge => &shape::MERGE,
        }
    }
}

/// Returns true if a document is a grimoire. A document with a `version` is one if all its steps
/// have grimoire types; the `version` is then reported as the error.
pub(crate) fn is(document: &Node) -> bool {
    let Some(Value::List(steps)) = document.get("steps").map(|steps| &steps.value) else {
        return false;
    };
    let known = |step: &Node| {
        let kind = step.get("type").and_then(Node::text);
        Kind::ALL.iter().any(|(name, _)| kind == Some(name))
    };
    match document.get("version") {
        Some(_) => !steps.is_empty() && steps.iter().all(known),
        None => steps.iter().any(|step| step.get("type").is_some() || near_type(step).is_some()),
    }
}

/// Returns the key of a step that looks like a misspelled `type`.
fn near_type(step: &Node) -> Option<&Node> {
    let Value::Map(pairs) = &step.value else { return None };
    let near = |key: &str| STEP.field(key).is_none() && nearest(key, ["type"]).is_some();
    pairs.iter().map(|(key, _)| key).find(|key| key.text().is_some_and(near))
}

struct Reading<'a> {
    findings: &'a Findings,
    configured: &'a dyn Configured,
    /// True once the default provider of the settings has been looked up.
    default_sought: Cell<bool>,
    providers: RefCell<BTreeMap<String, Provider>>,
}

/// Reads a grimoire. Discard the plan if `findings` contains an error.
pub(crate) fn read(
    findings: &Findings,
    document: &Node,
    configured: &dyn Configured,
) -> Option<Plan> {
    let top = open(findings, document, "the grimoire", &shape::TOP, None)?;
    read_top(&top, configured)
}

/// Opens a map and reports each key that does not belong in it, with the step type it belongs to,
/// or else the nearest known key, as a hint.
fn open<'a>(
    findings: &'a Findings,
    node: &'a Node,
    what: impl Into<String>,
    table: &Table,
    kind: Option<Kind>,
) -> Option<Fields<'a>> {
    let what = what.into();
    let Value::Map(pairs) = &node.value else {
        findings.error(node.place, format!("{what} must be a map, not {}", node.kind()));
        return None;
    };
    for (key, _) in pairs {
        let Some(name) = key.text() else {
            findings.error(key.place, format!("a key of {what} must be text, not {}", key.kind()));
            continue;
        };
        if table.field(name).is_some() {
            continue;
        }
        let others = Kind::ALL.iter().filter(|(_, other)| other.table().field(name).is_some());
        let others: Vec<_> = others.map(|(word, _)| format!("`type: {word}`")).collect();
        let problem = Problem::error(format!("{what} has no field `{name}`")).at(key.place);
        findings.add(match kind {
            Some(kind) if !others.is_empty() => {
                let (others, kind) = (others.join(" and "), kind.name());
                problem
                    .hint(format!("it belongs to {others}, and this is a step of `type: {kind}`"))
            }
            _ => match dialects::foreign(Format::Grimoire, kind.is_none(), name) {
                Some(hint) => problem.hint(hint),
                None => suggest(problem, name, table.names()),
            },
        });
    }
    Some(Fields { findings, node, what })
}

fn read_top(top: &Fields, configured: &dyn Configured) -> Option<Plan> {
    let name = top.required("name").map(str::to_owned);
    let reading = Reading {
        findings: top.findings,
        configured,
        default_sought: Cell::default(),
        providers: RefCell::default(),
    };
    let steps = top.get("steps")?;
    names::check(top.findings, steps);
    let root = read_block(&reading, steps, "`steps`", 0)?;
    Some(Plan {
        dialect: Dialect::Grimoire,
        name,
        description: top.text("description").map(str::to_owned),
        strict_flow: true,
        context: Map::new(),
        providers: reading.providers.into_inner(),
        dirs: Dirs::default(),
        root,
        exclusive: false,
        timeout: top.duration("timeout", ""),
    })
}

fn read_block(reading: &Reading, node: &Node, what: &str, depth: usize) -> Option<Block> {
    let Value::List(nodes) = &node.value else {
        reading.findings.add(no_list(what, "step", node));
        return None;
    };
    if nodes.is_empty() {
        reading.findings.error(node.place, format!("{what} has no step in it"));
    }
    let steps: Vec<_> = nodes.iter().map(|node| read_step(reading, node, depth)).collect();
    let steps = steps::whole(steps)?;
    Some(Block::sequence(steps))
}

fn read_step(reading: &Reading, node: &Node, depth: usize) -> Option<Step> {
    let findings = reading.findings;
    let name = node.get("name").and_then(Node::text).unwrap_or_default();
    let what = match name {
        "" => "this step".to_owned(),
        name => format!("step `{name}`"),
    };
    let Value::Map(_) = &node.value else {
        findings.error(node.place, format!("{what} must be a map, not {}", node.kind()));
        return None;
    };
    let bare = Fields { findings, node, what: what.clone() };
    if node.get("type").is_none() {
        let problem = Problem::error(format!("{what} has no `type`"));
        findings.add(match near_type(node) {
            Some(key) => problem.at(key.place).hint("did you mean `type`?"),
            None => {
                problem.at(node.place).hint("it is one of `agent`, `script`, `loop` and `merge`")
            }
        });
        return None;
    }
    let kind = bare.choice("type", &Kind::ALL)?;
    let fields = open(findings, node, what, kind.table(), Some(kind))?;
    fields.text("name");
    let step = match kind {
        Kind::Agent => agent(reading, &fields),
        Kind::Script => script(&fields),
        Kind::Loop => repeated(reading, &fields, depth),
        Kind::Merge => Some(merge(reading, &fields)),
    };
    let blocks = [("continue", OnFail::Continue), ("block", OnFail::Block)];
    let on_fail = Some(fields.choice("on_fail", &blocks).unwrap_or(OnFail::Block));
    let (name, when, alias) = (name.to_owned(), when(&fields), spells::alias(&fields));
    let exit_loop = exits(&fields, depth);
    Some(Step { name, when, on_fail, exit_loop, alias, ..step? })
}

/// Returns true if a success of the step ends the enclosing loop.
fn exits(fields: &Fields, depth: usize) -> bool {
    let exits = fields.choice("on_success", &[("exit_loop", true)]).unwrap_or(false);
    if exits && depth == 0 {
        let place = fields.get("on_success").map_or(fields.node.place, |node| node.place);
        let message = format!("{} is in no loop that `exit_loop` could end", fields.what);
        fields.findings.error(place, message);
    }
    exits
}

/// Returns a step whose output is stored in full, regardless of its length.
fn whole(action: Action, timeout: Option<Duration>) -> Step {
    let output = Output { capture: CaptureMode::Whole, ..Output::default() };
    Step { output, timeout, ..Step::new("", action) }
}

fn agent(reading: &Reading, fields: &Fields) -> Option<Step> {
    if fields.get("spell").is_none() {
        let problem = Problem::error(format!("{} has no `spell`", fields.what));
        let hint = "name a spell, or write one: `spell: |`";
        fields.findings.add(problem.at(fields.node.place).hint(hint));
    }
    let repair = reading.configured.contract_repair();
    let spell = spells::read(fields, true, repair);
    let timeout = fields.duration("timeout", "").unwrap_or(AGENT_TIMEOUT);
    steps::check_agent(fields);
    let provider = reading.provider(fields);
    let params = params(fields);
    let (format, until) = (None, None);
    let words = Words::Spell(Box::new(spell?));
    let prompt = Prompt { words, provider, params, format, until, fresh: false };
    let agent = fields.text("agent").map(str::to_owned);
    Some(Step { agent, ..whole(Action::Prompt(prompt), Some(timeout)) })
}

/// Reads the provider's parameters, without interpreting templates in them.
fn params(fields: &Fields) -> BTreeMap<String, Param> {
    let mut params = BTreeMap::new();
    match fields.get("provider_params").map(|node| (node, &node.value)) {
        None | Some((_, Value::Null)) => {}
        Some((_, Value::Map(pairs))) => {
            let pairs = pairs.iter().filter_map(|(key, value)| Some((key.text()?, value)));
            params
                .extend(pairs.map(|(key, value)| (key.to_owned(), Param::Fixed(value.to_json()))));
        }
        Some((node, _)) => {
            let (what, kind) = (&fields.what, node.kind());
            let message = format!("`provider_params` of {what} must be a map, not {kind}");
            fields.findings.error(node.place, message);
        }
    }
    if let Some(model) = fields.text("model")
        && params.insert("model".into(), Param::Fixed(Json::from(model))).is_some()
    {
        let place = fields.get("model").map_or(fields.node.place, |node| node.place);
        let message = format!("{} has two models: `provider_params` has one too", fields.what);
        fields.findings.error(place, message);
    }
    params
}

impl Reading<'_> {
    /// Returns the provider that a step asks.
    fn provider(&self, fields: &Fields) -> String {
        let own = fields.text("provider");
        let name = own.unwrap_or_else(|| self.configured.default_provider());
        let known = self.providers.borrow().contains_key(name);
        if !known && (own.is_some() || !self.default_sought.replace(true)) {
            self.know(fields, name);
        }
        name.to_owned()
    }

    fn know(&self, fields: &Fields, name: &str) {
        let all = self.configured.providers();
        if let Some(provider) = all.get(name) {
            self.providers.borrow_mut().insert(name.to_owned(), provider.clone());
            return;
        }
        let place = fields.get("provider").map_or(fields.node.place, |node| node.place);
        let what = &fields.what;
        let message = format!("{what} asks the provider `{name}`, but there is none of that name");
        let problem = Problem::error(message).at(place);
        let problem = suggest(problem, name, all.keys().map(String::as_str));
        self.findings.add(match problem.hint {
            Some(_) => problem,
            None => problem.hint("define it under `providers:` in the settings"),
        });
    }
}

fn script(fields: &Fields) -> Option<Step> {
    let timeout = fields.duration("timeout", "").unwrap_or(SCRIPT_TIMEOUT);
    fields.required("command")?;
    let script = spells::template(fields, "command")?;
    check_values(fields, &script);
    Some(whole(Action::Shell { script: ShellText::Spell(script) }, Some(timeout)))
}

/// Reports values of a script at places where a shell expands nothing, and warns of values that
/// become part of another script.
fn check_values(fields: &Fields, script: &Spell) {
    let mut seen = BTreeSet::new();
    for shell::SpellValue { fault, used } in shell::values_of_spell(script) {
        let (fix, runner) = (used.place.fix(), used.runner());
        let (message, hint) = match (fix, runner) {
            (Some(fix), _) => (format!("a value is {}", used.place.name()), fix),
            (None, Some(program)) => (
                format!("a value becomes part of the script that `{program}` runs"),
                lint::SHELL_ARGUMENT,
            ),
            (None, None) => continue,
        };
        // Several renderings have the same value.
        if !seen.insert((fault.line, fault.column, message.clone())) {
            continue;
        }
        let hint = hint.replace("VALUE", "{{…}}");
        let problem = Problem::from(&Fault { message, ..fault }).hint(hint);
        fields.findings.add(match fix {
            Some(_) => problem,
            None => problem.into_warning().lint(lint::SHELL_VALUE),
        });
    }
}

fn repeated(reading: &Reading, fields: &Fields, depth: usize) -> Option<Step> {
    let most = match fields.get("max_iterations") {
        None => Some(ROUNDS),
        Some(_) => fields.integer("max_iterations", 1, 10_000),
    };
    let choices =
        [("block", OnMost::Block), ("continue", OnMost::Continue), ("exit", OnMost::Fail)];
    let on_most = fields.choice("on_max_iterations", &choices).unwrap_or(OnMost::Block);
    let timeout = fields.duration("timeout", "");
    let Some(steps) = fields.get("steps") else {
        fields.findings.error(fields.node.place, format!("{} has no `steps`", fields.what));
        return None;
    };
    let block = read_block(reading, steps, &format!("`steps` of {}", fields.what), depth + 1)?;
    let rounds = Rounds { block, kind: RoundsKind::Steps { on_most }, most: most? as u32 };
    Some(Step { timeout, ..Step::new("", Action::Rounds(rounds)) })
}

/// Reads a merge step. Its own checks replace those of the settings.
fn merge(reading: &Reading, fields: &Fields) -> Step {
    let mut checks = reading.configured.checks();
    checks.commands = fields.commands("checks").unwrap_or(checks.commands);
    checks.timeout = fields.duration("check_timeout", "").unwrap_or(checks.timeout);
    let review = fields.boolean("require_review").unwrap_or(true);
    Step::new("", Action::Merge { review, checks })
}

/// Reads a condition, which must render to true, false or a number.
fn when(fields: &Fields) -> Option<When> {
    let node = fields.get("when")?;
    let written = match &node.value {
        Value::Bool(_) | Value::Number(_) => node.to_json().to_string(),
        _ => fields.text("when")?.to_owned(),
    };
    if !written.contains("{{") && truth(&written).is_none() {
        let message = format!("`when` of {} is never true or false", fields.what);
        let hint = "write a template such as `{{.previous.failed}}`";
        fields.findings.add(Problem::error(message).at(node.place).hint(hint));
        return None;
    }
    let parsed = match &node.value {
        Value::Text(_) => spells::template(fields, "when"),
        _ => Spell::parse("when", &written).ok(),
    };
    parsed.map(When::Spell)
}

/// Returns the truth value of a rendered condition, or `None` if it has none.
pub(crate) fn truth(rendered: &str) -> Option<bool> {
    match rendered.trim() {
        "true" => Some(true),
        "false" => Some(false),
        number => number.parse::<f64>().ok().filter(|n| n.is_finite()).map(|n| n != 0.0),
    }
}
