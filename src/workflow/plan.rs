//! The plan: a workflow compiled and checked, and all that the engine ever sees.
//!
//! Every dialect compiles to these types. A [`Plan`] is built only by [`super::compile`], so an
//! unchecked workflow cannot run.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::template::{Missing, Scope, Template};

/// A workflow that may run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub version: Version,
    pub name: Option<String>,
    /// A failure that nothing handles ends the run.
    pub strict_flow: bool,
    pub context: Map<String, Value>,
    pub providers: BTreeMap<String, Provider>,
    pub dirs: Dirs,
    pub root: Block,
}

impl Plan {
    /// The plan to execute one of its steps alone: nothing follows it, whatever comes of it.
    pub fn only(mut self, name: &str) -> Option<Plan> {
        let (index, _) = self.root.find(name)?;
        let mut step = self.root.steps.swap_remove(index);
        step.on = Handlers::default();
        self.root.by_name = HashMap::from([(step.name.clone(), 0)]);
        self.root.steps = vec![step];
        Some(self)
    }
}

/// Versions of the `steps:` dialect, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    V1_1,
    V1_1_1,
    V1_2,
    V1_3,
}

impl Version {
    pub const ALL: [(&'static str, Version); 4] = [
        ("1.1", Version::V1_1),
        ("1.1.1", Version::V1_1_1),
        ("1.2", Version::V1_2),
        ("1.3", Version::V1_3),
    ];

    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, version)| *version == self).map_or("", |(name, _)| name)
    }
}

/// The directories of a workspace's task queues.
#[derive(Clone, Debug)]
pub struct Dirs {
    pub inbox: String,
    pub processed: String,
    pub failed: String,
    pub task_extension: String,
}

/// Steps under one discipline. A sequence has a cursor that `goto` may move.
#[derive(Clone, Debug, Default)]
pub struct Block {
    pub steps: Vec<Step>,
    pub by_name: HashMap<String, usize>,
}

impl Block {
    pub fn find(&self, name: &str) -> Option<(usize, &Step)> {
        self.by_name.get(name).map(|index| (*index, &self.steps[*index]))
    }
}

impl Plan {
    /// Who the steps that execute something are for, each with whether it asks a provider.
    pub fn agents(&self) -> Vec<(Option<String>, bool)> {
        fn collect(block: &Block, into: &mut Vec<(Option<String>, bool)>) {
            for step in &block.steps {
                match &step.action {
                    Action::Exec { .. } => into.push((step.agent.clone(), false)),
                    Action::Ask { .. } => into.push((step.agent.clone(), true)),
                    Action::Each(each) => collect(&each.block, into),
                    Action::Wait(_) => {}
                }
            }
        }
        let mut found = Vec::new();
        collect(&self.root, &mut found);
        found
    }
}

/// One unit of a plan, whatever its dialect called it.
#[derive(Clone, Debug)]
pub struct Step {
    pub name: String,
    pub agent: Option<String>,
    pub action: Action,
    pub when: Option<When>,
    pub depends: Depends,
    pub input_file: Option<Template>,
    pub output: Output,
    pub env: Vec<(String, String)>,
    pub secrets: Vec<String>,
    pub timeout: Option<Duration>,
    pub retries: Option<Retries>,
    pub on: Handlers,
}

impl Step {
    /// Whether what it executes is told where the run is kept.
    pub fn names_run_root(&self) -> bool {
        let named = |template: &Template| template.holes().any(|hole| hole.raw == "run.root");
        match &self.action {
            Action::Exec { argv } => argv.iter().any(named),
            Action::Ask { params, .. } => params.values().any(|param| param.any(&named)),
            Action::Wait(_) | Action::Each(_) => false,
        }
    }
}

/// What a step does; it cannot do two things.
#[derive(Clone, Debug)]
pub enum Action {
    /// Runs an argv.
    Exec { argv: Vec<Template> },
    /// Asks a provider.
    Ask { provider: String, params: BTreeMap<String, Param> },
    /// Waits for files.
    Wait(WaitFor),
    /// Runs a block for each item.
    Each(Each),
}

/// A provider parameter: strings in it, at any depth, are templates.
#[derive(Clone, Debug, PartialEq)]
pub enum Param {
    Text(Template),
    List(Vec<Param>),
    Map(Vec<(String, Param)>),
    Fixed(Value),
}

#[derive(Clone, Debug)]
pub struct WaitFor {
    pub glob: Template,
    pub timeout: Duration,
    pub poll: Duration,
    pub min_count: usize,
}

#[derive(Clone, Debug)]
pub struct Each {
    pub items: Items,
    /// The name an item goes by beside `item`.
    pub alias: String,
    pub block: Block,
    pub on_success: Option<Template>,
    pub on_failure: Option<Template>,
}

#[derive(Clone, Debug)]
pub enum Items {
    Literal(Vec<Param>),
    /// `steps.<Name>.lines` or `steps.<Name>.json[.path]`, without the braces.
    From(crate::template::Hole),
}

#[derive(Clone, Debug, Default)]
pub struct When {
    pub equals: Option<(Template, Template)>,
    pub exists: Option<Template>,
    pub not_exists: Option<Template>,
}

#[derive(Clone, Debug, Default)]
pub struct Depends {
    pub required: Vec<Template>,
    pub optional: Vec<Template>,
    pub inject: Option<Inject>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inject {
    pub mode: InjectMode,
    pub instruction: Option<String>,
    pub position: Position,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectMode {
    List,
    Content,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    Prepend,
    Append,
}

/// Where a step's standard output goes and how it is read.
#[derive(Clone, Debug, Default)]
pub struct Output {
    pub file: Option<Template>,
    pub capture: CaptureMode,
    pub allow_parse_error: bool,
    pub schema: Option<Template>,
    pub require: Vec<Require>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CaptureMode {
    #[default]
    Text,
    Lines,
    Json,
}

/// An assertion on parsed JSON output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Require {
    pub pointer: String,
    pub exists: bool,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub equals: Option<Value>,
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
}

/// Reads a field that is there, `null` included: `null` is a value to compare with.
pub fn present<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    pub max: u32,
    pub delay_ms: Option<u64>,
}

/// Where control goes after a step.
#[derive(Clone, Copy, Debug, Default)]
pub struct Handlers {
    pub success: Option<Target>,
    pub failure: Option<Target>,
    pub always: Option<Target>,
}

/// A resolved `goto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Leave `out` loops, then go to that step of the block reached.
    Step { out: usize, step: usize },
    /// End the run.
    End,
}

/// A CLI template that answers prompts.
#[derive(Clone, Debug, PartialEq)]
pub struct Provider {
    pub command: Vec<Template>,
    pub input: InputMode,
    pub defaults: BTreeMap<String, Param>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InputMode {
    #[default]
    Argv,
    Stdin,
}

impl Param {
    /// Fills every hole in it, or names all that cannot be filled.
    pub fn render(&self, scope: &dyn Scope) -> Result<Value, Vec<Missing>> {
        let mut missing = Vec::new();
        let value = self.fill(scope, &mut missing);
        if missing.is_empty() { Ok(value) } else { Err(missing) }
    }

    /// Whether a template in it is so.
    fn any(&self, is: &impl Fn(&Template) -> bool) -> bool {
        match self {
            Param::Fixed(_) => false,
            Param::Text(template) => is(template),
            Param::List(items) => items.iter().any(|item| item.any(is)),
            Param::Map(pairs) => pairs.iter().any(|(_, value)| value.any(is)),
        }
    }

    fn fill(&self, scope: &dyn Scope, missing: &mut Vec<Missing>) -> Value {
        match self {
            Param::Fixed(value) => value.clone(),
            Param::Text(template) => match template.render(scope) {
                Ok(text) => Value::String(text),
                Err(faults) => {
                    missing.extend(faults);
                    Value::Null
                }
            },
            Param::List(items) => items.iter().map(|item| item.fill(scope, missing)).collect(),
            Param::Map(pairs) => {
                pairs.iter().map(|(key, value)| (key.clone(), value.fill(scope, missing))).collect()
            }
        }
    }
}
