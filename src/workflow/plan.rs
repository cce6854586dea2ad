//! The plan: a workflow compiled and checked, and all that the engine ever sees.
//!
//! Every dialect compiles to these types. A [`Plan`] is built only by [`super::compile`], so an
//! unchecked workflow cannot run.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::condition::Condition;
use super::problem::Place;
use super::sandbox::Sandbox;
use crate::provider::Kind;
use crate::template::nodes::{NodeRef, NodeText};
use crate::template::spell::{Fault, Includes, Spell};
use crate::template::{Missing, Scope, Template};

/// How long an agent may be silent where nobody says how long.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// How often a step of a `goto` cycle that asks an agent may be visited by default.
pub const AGENT_VISITS: u32 = 50;

/// A workflow that may run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub version: Version,
    pub name: Option<String>,
    pub description: Option<String>,
    /// A failure that nothing handles ends the run.
    pub strict_flow: bool,
    pub context: Map<String, Value>,
    pub providers: BTreeMap<String, Provider>,
    pub dirs: Dirs,
    pub root: Block,
    /// It changes the checkout, so no other such run may go on in it.
    pub exclusive: bool,
    /// How long all of it may take, from its beginning or from where it was taken up.
    pub timeout: Option<Duration>,
}

/// A file that a workflow names, found where such files are looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub kind: PartKind,
    pub name: String,
    /// Where the workflow names it first.
    pub place: Option<Place>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartKind {
    /// A prompt in a file of its own.
    Command,
    /// A script in a file of its own.
    Script,
}

impl Plan {
    /// Notes what command files refer to, whose texts are found by their names.
    pub fn learn_commands(&mut self, text: impl Fn(&str) -> Option<String>) {
        for step in &mut self.root.steps {
            if let Action::Prompt(prompt) = &mut step.action
                && let Words::Command(command) = &mut prompt.words
                && let Some(text) = text(&command.name)
            {
                command.refs = NodeText::parse(&text).refs().cloned().collect();
            }
        }
    }

    /// What its author calls a step.
    pub fn unit(&self) -> &'static str {
        if self.root.edges.is_some() { "node" } else { "step" }
    }

    /// The plan to execute one of its steps alone: nothing follows it, whatever comes of it.
    pub fn only(mut self, name: &str) -> Option<Plan> {
        let (index, _) = self.root.find(name)?;
        let mut step = self.root.steps.swap_remove(index);
        step.on = Handlers::default();
        self.root.by_name = HashMap::from([(step.name.clone(), 0)]);
        self.root.steps = vec![step];
        self.root.edges = self.root.edges.map(|_| Edges::alone());
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
    V1_4,
}

impl Version {
    pub const ALL: [(&'static str, Version); 5] = [
        ("1.1", Version::V1_1),
        ("1.1.1", Version::V1_1_1),
        ("1.2", Version::V1_2),
        ("1.3", Version::V1_3),
        ("1.4", Version::V1_4),
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

impl Default for Dirs {
    fn default() -> Dirs {
        Dirs {
            inbox: "inbox".into(),
            processed: "processed".into(),
            failed: "failed".into(),
            task_extension: ".task".into(),
        }
    }
}

/// Steps under one discipline: a sequence has a cursor that `goto` may move; a graph has edges, and
/// each of its steps begins when those before it have settled.
#[derive(Clone, Debug, Default)]
pub struct Block {
    pub steps: Vec<Step>,
    pub by_name: HashMap<String, usize>,
    pub edges: Option<Edges>,
}

impl Block {
    pub fn find(&self, name: &str) -> Option<(usize, &Step)> {
        self.by_name.get(name).map(|index| (*index, &self.steps[*index]))
    }

    /// Every step in it, those of loops included.
    pub fn walk<'a>(&'a self, see: &mut dyn FnMut(&'a Step)) {
        for step in &self.steps {
            see(step);
            if let Some(inner) = step.inner() {
                inner.walk(see);
            }
        }
    }
}

/// What the steps of a graph wait for, by their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edges {
    /// Those before a step.
    pub before: Vec<Vec<usize>>,
    /// Those after it.
    pub after: Vec<Vec<usize>>,
    pub rules: Vec<JoinRule>,
    /// The one that a step's conversation may go on from: both are the only ones at their depth.
    pub thread: Vec<Option<usize>>,
}

impl Edges {
    /// From what each step waits for.
    pub fn new(before: Vec<Vec<usize>>, rules: Vec<JoinRule>) -> Edges {
        let mut after = vec![Vec::new(); before.len()];
        for (step, upstreams) in before.iter().enumerate() {
            for upstream in upstreams {
                after[*upstream].push(step);
            }
        }
        let thread = threads(&before, &after);
        Edges { before, after, rules, thread }
    }

    /// One step that waits for nothing.
    fn alone() -> Edges {
        Edges::new(vec![Vec::new()], vec![JoinRule::default()])
    }
}

/// For each step that is the only one at its depth, the step that is the only one just above.
/// A step's depth is the longest way to it, so the one above is always among those before it.
fn threads(before: &[Vec<usize>], after: &[Vec<usize>]) -> Vec<Option<usize>> {
    let mut waits: Vec<usize> = before.iter().map(Vec::len).collect();
    let mut layer: Vec<usize> = (0..before.len()).filter(|step| waits[*step] == 0).collect();
    let mut threads = vec![None; before.len()];
    let mut above = None;
    while !layer.is_empty() {
        let only = if let [only] = layer[..] { Some(only) } else { None };
        if let Some(only) = only {
            threads[only] = above;
        }
        above = only;
        let mut next = Vec::new();
        for step in layer.iter().flat_map(|step| &after[*step]) {
            waits[*step] -= 1;
            if waits[*step] == 0 {
                next.push(*step);
            }
        }
        layer = next;
    }
    threads
}

/// What those before a step must have come to for it to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JoinRule {
    #[default]
    AllSuccess,
    OneSuccess,
    NoneFailedMinOneSuccess,
    AllDone,
}

impl JoinRule {
    pub const ALL: [(&'static str, JoinRule); 4] = [
        ("all_success", JoinRule::AllSuccess),
        ("one_success", JoinRule::OneSuccess),
        ("none_failed_min_one_success", JoinRule::NoneFailedMinOneSuccess),
        ("all_done", JoinRule::AllDone),
    ];

    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, rule)| *rule == self).map_or("", |(name, _)| name)
    }
}

impl Plan {
    /// How the output of a step is read.
    pub fn adapter(&self, step: &Step) -> Kind {
        let provider = match &step.action {
            Action::Ask { provider, .. } => provider,
            Action::Prompt(prompt) => &prompt.provider,
            _ => return Kind::Plain,
        };
        self.providers.get(provider).map_or(Kind::Plain, |provider| provider.adapter)
    }

    /// Who the steps that execute something are for, each with whether it asks a provider.
    pub fn agents(&self) -> Vec<(Option<String>, bool)> {
        let mut found = Vec::new();
        self.root.walk(&mut |step| match &step.action {
            Action::Exec { .. } | Action::Shell { .. } | Action::Script(_) => {
                found.push((step.agent.clone(), false));
            }
            Action::Ask { .. } | Action::Prompt(_) => found.push((step.agent.clone(), true)),
            Action::Wait(_)
            | Action::Each(_)
            | Action::Rounds(_)
            | Action::Gate(_)
            | Action::Merge { .. }
            | Action::Cancel { .. } => {}
        });
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
    /// How long an agent may be silent.
    pub idle_timeout: Option<Duration>,
    /// The kind of artifact that its output is kept as.
    pub output_type: Option<String>,
    /// It is executed again when a run is resumed, whatever it came to before.
    pub always_run: bool,
    /// What follows a failure, where the step itself says it.
    pub on_fail: Option<OnFail>,
    /// Its success ends the loop around it.
    pub exit_loop: bool,
    /// A second name that spells know its result by.
    pub alias: Option<String>,
    /// The work item it is for, where that is not the run's.
    pub bead: Option<StepBead>,
    /// It is part of a `goto` cycle that asks an agent.
    pub in_agent_cycle: bool,
}

/// The work item of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepBead {
    /// Its id, or its file.
    pub name: String,
    pub isolation: Isolation,
    /// Where it is named.
    pub place: Place,
}

/// Where a work item is worked on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Isolation {
    /// In a worktree of its own.
    #[default]
    Worktree,
    /// In the workspace.
    Workspace,
}

impl Isolation {
    pub const ALL: [(&'static str, Isolation); 2] =
        [("worktree", Isolation::Worktree), ("workspace", Isolation::Workspace)];
}

/// What follows a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFail {
    /// The next step.
    Continue,
    /// The run is blocked, and goes on with this step when it is taken up.
    Block,
}

impl Step {
    /// A step that does something and has nothing else to it.
    pub fn new(name: impl Into<String>, action: Action) -> Step {
        Step {
            name: name.into(),
            agent: None,
            action,
            when: None,
            depends: Depends::default(),
            input_file: None,
            output: Output::default(),
            env: Vec::new(),
            secrets: Vec::new(),
            timeout: None,
            retries: None,
            on: Handlers::default(),
            idle_timeout: None,
            output_type: None,
            always_run: false,
            on_fail: None,
            exit_loop: false,
            alias: None,
            bead: None,
            in_agent_cycle: false,
        }
    }

    /// Whether it begins with a process; asking a person and ending the run take none.
    pub fn takes_process(&self) -> bool {
        match &self.action {
            Action::Gate(_) | Action::Cancel { .. } => false,
            Action::Rounds(rounds) => rounds.block.steps.first().is_none_or(Step::takes_process),
            _ => true,
        }
    }

    /// Returns the providers that it asks, or that the steps inside of it ask.
    pub fn asked(&self) -> Vec<&str> {
        match &self.action {
            Action::Ask { provider, .. } => vec![provider.as_str()],
            Action::Prompt(prompt) => vec![prompt.provider.as_str()],
            _ => self
                .inner()
                .into_iter()
                .flat_map(|inner| &inner.steps)
                .flat_map(Step::asked)
                .collect(),
        }
    }

    /// Whether what it says to an agent is a spell.
    pub fn casts(&self) -> bool {
        matches!(&self.action, Action::Prompt(Prompt { words: Words::Spell(_), .. }))
    }

    /// Returns whether its answer is JSON by the contract of agents.
    pub fn keeps_contract(&self) -> bool {
        match &self.action {
            Action::Prompt(Prompt { words: Words::Spell(used), .. }) => used.contract,
            _ => false,
        }
    }

    /// The rounds that it is, where it is such a step.
    pub fn rounds(&self) -> Option<&Rounds> {
        match &self.action {
            Action::Rounds(rounds) => Some(rounds),
            _ => None,
        }
    }

    /// The block that it runs again and again, where it is a loop of some kind.
    pub fn inner(&self) -> Option<&Block> {
        match &self.action {
            Action::Each(each) => Some(&each.block),
            Action::Rounds(rounds) => Some(&rounds.block),
            _ => None,
        }
    }

    /// Whether it says where the run or its state is kept, so that it may read the state: what it
    /// executes, the provider that it asks, or the files that it looks for.
    pub fn names_state(&self, providers: &BTreeMap<String, Provider>) -> bool {
        const STATE: &str = "state.json";
        let named = |template: &Template| template.names("run.root", STATE);
        let depends = self.depends.required.iter().chain(&self.depends.optional);
        let mut files = depends.chain(&self.input_file);
        let tests = match &self.when {
            Some(When::Test(test)) => [&test.exists, &test.not_exists],
            _ => [&None, &None],
        };
        let of_provider = |name: &String, params: &BTreeMap<String, Param>| {
            let provider = providers.get(name);
            let mut defaults = provider.iter().flat_map(|provider| provider.defaults.values());
            provider.is_some_and(|provider| provider.templates().any(named))
                || defaults.any(|param| param.any(&named))
                || params.values().any(|param| param.any(&named))
        };
        let executed = match &self.action {
            Action::Exec { argv } => argv.iter().any(named),
            Action::Ask { provider, params } => of_provider(provider, params),
            Action::Wait(wait) => named(&wait.glob),
            Action::Prompt(prompt) => {
                matches!(&prompt.words, Words::Inline(text) if text.source().contains(STATE))
                    || of_provider(&prompt.provider, &prompt.params)
            }
            Action::Shell { script: ShellText::Spell(spell) } => spell.text().contains(STATE),
            Action::Shell { script: ShellText::Node(text) }
            | Action::Script(Script { code: Code::Inline(text), .. }) => {
                text.source().contains(STATE)
            }
            _ => false,
        };
        executed || files.any(named) || tests.into_iter().flatten().any(named)
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
    /// Says something to an agent.
    Prompt(Prompt),
    /// Runs a shell script.
    Shell { script: ShellText },
    /// Runs a script of another language.
    Script(Script),
    /// Runs a block until it is done.
    Rounds(Rounds),
    /// Asks a person.
    Gate(Gate),
    /// Ends the run.
    Cancel { reason: NodeText },
    /// Merges what was done for a work item, perhaps after a person has looked at it.
    Merge { review: bool, checks: Checks },
}

/// What must succeed in a merged tree before it counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checks {
    /// Commands of the shell, in order.
    pub commands: Vec<String>,
    /// How long each of them may take.
    pub timeout: Duration,
}

impl Default for Checks {
    fn default() -> Self {
        Checks { commands: Vec::new(), timeout: Duration::from_secs(30 * 60) }
    }
}

/// A shell script, in either language that has them.
#[derive(Clone, Debug, PartialEq)]
pub enum ShellText {
    /// For `bash`.
    Node(NodeText),
    /// For `sh`.
    Spell(Spell),
}

/// What is said to an agent, and what its answer must be.
#[derive(Clone, Debug)]
pub struct Prompt {
    pub words: Words,
    pub provider: String,
    pub params: BTreeMap<String, Param>,
    /// The JSON Schema of the answer.
    pub format: Option<Value>,
    /// What an answer says when a loop is done.
    pub until: Option<Until>,
    /// Whether it begins a conversation of its own.
    pub fresh: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Words {
    Inline(NodeText),
    Command(CommandUse),
    Spell(Box<SpellUse>),
}

/// A command file that is a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct CommandUse {
    pub name: String,
    /// What its text refers to, which is known when the run has a copy of it.
    pub refs: Vec<NodeRef>,
}

/// A spell, and how it is used.
#[derive(Clone, Debug, PartialEq)]
pub struct SpellUse {
    pub source: SpellSource,
    /// Variables of its own, which win over all others.
    pub input: Vec<(String, SpellValue)>,
    pub system_prompt: SystemPromptUse,
    /// The answer must end by saying how it went.
    pub contract: bool,
    /// An agent whose answer does not is asked once more.
    pub repair: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum SpellSource {
    /// A name, as spells are found by.
    Named(String),
    Inline(Spell),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SystemPromptUse {
    Default,
    None,
    File(String),
}

/// A value whose texts, at any depth, are spells.
#[derive(Clone, Debug, PartialEq)]
pub enum SpellValue {
    Text(Spell),
    List(Vec<SpellValue>),
    Map(Vec<(String, SpellValue)>),
    Fixed(Value),
}

impl SpellValue {
    /// What it comes to.
    pub fn render(&self, data: &Value, includes: Includes) -> Result<Value, Fault> {
        Ok(match self {
            SpellValue::Fixed(value) => value.clone(),
            SpellValue::Text(spell) => spell.value(data, includes)?,
            SpellValue::List(items) => {
                items.iter().map(|item| item.render(data, includes)).collect::<Result<_, _>>()?
            }
            SpellValue::Map(pairs) => {
                let pair = |(key, value): &(String, SpellValue)| {
                    Ok((key.clone(), value.render(data, includes)?))
                };
                pairs.iter().map(pair).collect::<Result<Map<_, _>, Fault>>()?.into()
            }
        })
    }

    /// Calls `see` with every spell in it.
    pub fn spells<'s>(&'s self, see: &mut dyn FnMut(&'s Spell)) {
        match self {
            SpellValue::Fixed(_) => {}
            SpellValue::Text(spell) => see(spell),
            SpellValue::List(items) => items.iter().for_each(|item| item.spells(see)),
            SpellValue::Map(pairs) => pairs.iter().for_each(|(_, value)| value.spells(see)),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Until {
    pub signal: String,
    /// It counts only by itself, not within other text.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub strict: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Script {
    pub code: Code,
    pub runtime: Runtime,
    pub deps: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Code {
    Inline(NodeText),
    /// The name of a script file.
    Named(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Runtime {
    Bun,
    Uv,
}

impl Runtime {
    pub fn name(self) -> &'static str {
        match self {
            Runtime::Bun => "bun",
            Runtime::Uv => "uv",
        }
    }
}

/// A block that is run round after round. Its steps, by what they do, are
/// for a loop: what is said to the agent, perhaps a check whether it is done, perhaps a person to
/// ask; for an approval: a person to ask, perhaps what is said to the agent after a rejection; for
/// repeated steps: any, one after the other.
#[derive(Clone, Debug)]
pub struct Rounds {
    pub block: Block,
    pub kind: RoundsKind,
    /// How many rounds there may be: of a loop, or rejections of an approval.
    pub most: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundsKind {
    Loop,
    Approval,
    /// Steps that are repeated until one of them ends it, and what follows if none has.
    Steps {
        on_most: OnMost,
    },
}

/// What follows when there were as many rounds as there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnMost {
    /// The run is blocked.
    Block,
    /// The next step.
    Continue,
    /// The run fails.
    Fail,
}

/// What a person is asked.
#[derive(Clone, Debug, PartialEq)]
pub struct Gate {
    pub message: NodeText,
    /// What the person says becomes the output.
    pub capture: bool,
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

/// What must hold for a step to run.
#[derive(Clone, Debug)]
pub enum When {
    Test(Test),
    /// What nodes before it have given.
    Outputs(Condition),
    /// What a spell renders to.
    Spell(Spell),
}

#[derive(Clone, Debug, Default)]
pub struct Test {
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
    /// All of it, in a file of its own where it is long.
    Whole,
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
    pub which: Which,
}

/// Which failures are worth another try.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Which {
    /// By exit code: an API error or a timeout.
    #[default]
    ByCode,
    /// Those that may pass; every try waits twice as long as the one before.
    Transient,
    /// All but those that cannot pass.
    All,
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
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Provider {
    pub command: Vec<Arg>,
    pub input: InputMode,
    pub defaults: BTreeMap<String, Param>,
    /// How its output is read.
    pub adapter: Kind,
    /// Variables that it gets.
    pub env: Vec<(String, String)>,
    /// Variables that it inherits beside the usual ones, where it does not inherit all.
    pub env_pass: Vec<String>,
    /// Whose limits it is under, where it shares them with other providers.
    pub account: Option<String>,
    /// What it may do; nothing: what its user may.
    pub sandbox: Option<Sandbox>,
    /// Places of its own that it writes to, in a sandbox too, where they are there.
    pub writes: Vec<String>,
}

impl Provider {
    /// Every template of its command.
    pub fn templates(&self) -> impl Iterator<Item = &Template> {
        self.command.iter().flat_map(Arg::templates)
    }

    /// The names that its command has a place for: parameters, and what else stands there.
    pub fn places(&self) -> impl Iterator<Item = &str> {
        self.templates().flat_map(Template::holes).map(|hole| hole.root())
    }

    /// The program that it is, where that does not depend on anything.
    pub fn program(&self) -> Option<&str> {
        match self.command.first()? {
            Arg::One(template) => template.literal(),
            Arg::Group(_) => None,
        }
    }
}

/// A part of a provider's command.
#[derive(Clone, Debug, PartialEq)]
pub enum Arg {
    One(Template),
    /// Arguments that are left out together when a parameter in them has no value.
    Group(Vec<Template>),
}

impl Arg {
    pub fn templates(&self) -> impl Iterator<Item = &Template> {
        match self {
            Arg::One(template) => std::slice::from_ref(template).iter(),
            Arg::Group(templates) => templates.iter(),
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_runs_through_steps_that_are_alone_at_their_depth() {
        let of = |before: &[&[usize]]| {
            let before: Vec<Vec<usize>> = before.iter().map(|list| list.to_vec()).collect();
            let rules = vec![JoinRule::default(); before.len()];
            Edges::new(before, rules).thread
        };
        assert_eq!(of(&[&[], &[0], &[1]]), [None, Some(0), Some(1)]);
        // The order in which they are written does not count, nor does a shorter way.
        assert_eq!(of(&[&[1, 2], &[2], &[]]), [Some(1), Some(2), None]);
        // Two side by side break it; the next pair begins it again.
        assert_eq!(of(&[&[], &[0], &[0], &[1, 2], &[3]]), [None, None, None, None, Some(3)]);
        // A second beginning is beside the first.
        assert_eq!(of(&[&[], &[], &[0]]), [None, None, None]);
        // Those that wait for each other have no depth.
        assert_eq!(of(&[&[], &[0, 2], &[1]]), [None, None, None]);
    }
}
