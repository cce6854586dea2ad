//! The plan: a workflow, compiled and checked. It is all that the engine ever sees.
//!
//! Every dialect compiles to these types. Only [`super::compile`] builds a [`Plan`], so an
//! unchecked workflow cannot run.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::nodes::condition::Condition;
use super::sandbox::Sandbox;
use crate::agent::Kind;
use crate::template::nodes::{NodeRef, NodeText};
use crate::template::spell::{Fault, Includes, Spell};
use crate::template::{Missing, Scope, Template};
use crate::yaml::problem::Place;

/// Default time that an agent may be silent.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// Default limit on visits to a step of a `goto` cycle that asks an agent.
pub(crate) const AGENT_VISITS: u32 = 50;

/// A workflow that is ready to run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(super) dialect: Dialect,
    pub(super) name: Option<String>,
    pub(super) description: Option<String>,
    pub(super) strict_flow: bool,
    pub(super) context: Map<String, Value>,
    pub(super) providers: BTreeMap<String, Provider>,
    pub(super) dirs: Dirs,
    pub(super) root: Block,
    pub(super) exclusive: bool,
    pub(super) timeout: Option<Duration>,
}

/// The language in which the author wrote a workflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Steps,
    Nodes,
    Grimoire,
}

/// A file that a workflow refers to by name, to be found in the search path for its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub kind: PartKind,
    pub name: String,
    /// First place in the workflow that names it.
    pub place: Option<Place>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartKind {
    /// A prompt in a separate file.
    Command,
    /// A script in a separate file.
    Script,
}

impl Plan {
    pub(crate) fn dialect(&self) -> Dialect {
        self.dialect
    }

    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    pub(crate) fn description(&self) -> Option<&str> {
        self.description.as_deref()
    }

    /// Returns true if an unhandled failure ends the run.
    pub(crate) fn is_strict(&self) -> bool {
        self.strict_flow
    }

    pub(crate) fn context(&self) -> &Map<String, Value> {
        &self.context
    }

    pub(crate) fn providers(&self) -> &BTreeMap<String, Provider> {
        &self.providers
    }

    pub(crate) fn dirs(&self) -> &Dirs {
        &self.dirs
    }

    /// Returns the outermost block.
    pub(crate) fn root(&self) -> &Block {
        &self.root
    }

    /// Returns true if the run changes the checkout. Only one such run may be active in a checkout.
    pub(crate) fn is_exclusive(&self) -> bool {
        self.exclusive
    }

    /// Returns the time limit of the whole run, counted from its start or its last resume.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// Returns a plan with these steps, and otherwise the fields of an empty workflow.
    #[cfg(test)]
    pub(crate) fn of_block(root: Block) -> Plan {
        Plan {
            dialect: if root.edges().is_some() { Dialect::Nodes } else { Dialect::Steps },
            name: None,
            description: None,
            strict_flow: true,
            context: Map::new(),
            providers: BTreeMap::new(),
            dirs: Dirs::default(),
            root,
            exclusive: false,
            timeout: None,
        }
    }

    /// Returns the plan with the references in its command files. `text` returns the text of a
    /// command by its name.
    #[must_use]
    pub(crate) fn with_commands(mut self, text: impl Fn(&str) -> Option<String>) -> Plan {
        for step in &mut self.root.steps {
            if let Action::Prompt(prompt) = &mut step.action
                && let Words::Command(command) = &mut prompt.words
                && let Some(text) = text(&command.name)
            {
                command.refs = NodeText::parse(&text).refs().cloned().collect();
            }
        }
        self
    }

    /// Returns the author's term for a step.
    pub(crate) fn unit(&self) -> &'static str {
        match self.dialect {
            Dialect::Nodes => "node",
            Dialect::Steps | Dialect::Grimoire => "step",
        }
    }

    /// Returns a plan that runs one step alone, with no step after it on any outcome. Returns
    /// `None` if there is no step of that name.
    pub(crate) fn only(mut self, name: &str) -> Option<Plan> {
        let (index, _) = self.root.find(name)?;
        let mut step = self.root.steps.swap_remove(index);
        step.on = Handlers::default();
        let order = match self.root.order {
            Order::Sequence => Order::Sequence,
            Order::Graph(_) => Order::Graph(Edges::alone()),
        };
        self.root = Block::new(vec![step], order);
        Some(self)
    }
}

/// Versions of the `steps:` dialect, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Version {
    V1_1,
    V1_1_1,
    V1_2,
    V1_3,
    V1_4,
}

impl Version {
    pub(crate) const ALL: [(&'static str, Version); 5] = [
        ("1.1", Version::V1_1),
        ("1.1.1", Version::V1_1_1),
        ("1.2", Version::V1_2),
        ("1.3", Version::V1_3),
        ("1.4", Version::V1_4),
    ];

    pub(crate) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, version)| *version == self).map_or("", |(name, _)| name)
    }
}

/// The directories of a workspace's task queues.
#[derive(Clone, Debug)]
pub(crate) struct Dirs {
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

/// Steps and the order in which they run.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub steps: Vec<Step>,
    pub order: Order,
    by_name: HashMap<String, usize>,
}

/// Order of the steps of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// One step at a time: a cursor moves from each step to the next, or where a `goto` sends it.
    Sequence,
    /// Each step starts when the steps before it have settled.
    Graph(Edges),
}

impl Block {
    pub(crate) fn sequence(steps: Vec<Step>) -> Block {
        Block::new(steps, Order::Sequence)
    }

    pub(crate) fn graph(steps: Vec<Step>, edges: Edges) -> Block {
        Block::new(steps, Order::Graph(edges))
    }

    fn new(steps: Vec<Step>, order: Order) -> Block {
        let mut by_name = HashMap::new();
        for (index, step) in steps.iter().enumerate() {
            by_name.entry(step.name.clone()).or_insert(index);
        }
        Block { steps, order, by_name }
    }

    /// Returns the dependencies of a graph, or `None` for a sequence.
    pub(crate) fn edges(&self) -> Option<&Edges> {
        match &self.order {
            Order::Sequence => None,
            Order::Graph(edges) => Some(edges),
        }
    }

    pub(crate) fn find(&self, name: &str) -> Option<(usize, &Step)> {
        self.by_name.get(name).map(|index| (*index, &self.steps[*index]))
    }

    /// Calls `see` with every step, including the steps inside loops.
    pub(crate) fn walk<'a>(&'a self, see: &mut dyn FnMut(&'a Step)) {
        for step in &self.steps {
            see(step);
            if let Some(inner) = step.inner() {
                inner.walk(see);
            }
        }
    }
}

/// Dependencies between the steps of a graph, by step index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Edges {
    /// The steps that each step waits for.
    pub before: Vec<Vec<usize>>,
    /// The steps that wait for each step.
    pub after: Vec<Vec<usize>>,
    pub rules: Vec<JoinRule>,
    /// The step whose conversation each step may continue. Each of the two is the only step at its
    /// depth.
    pub thread: Vec<Option<usize>>,
}

impl Edges {
    /// Builds the edges from the steps that each step waits for.
    pub(crate) fn new(before: Vec<Vec<usize>>, rules: Vec<JoinRule>) -> Edges {
        let mut after = vec![Vec::new(); before.len()];
        for (step, upstreams) in before.iter().enumerate() {
            for upstream in upstreams {
                after[*upstream].push(step);
            }
        }
        let thread = threads(&before, &after);
        Edges { before, after, rules, thread }
    }

    /// Returns the edges of a single step without dependencies.
    fn alone() -> Edges {
        Edges::new(vec![Vec::new()], vec![JoinRule::default()])
    }
}

/// Returns, for each step that is alone at its depth, the step that is alone at the depth above. A
/// step's depth is the longest path to it, so that step is always one of its dependencies.
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

/// Outcome that a step requires of the steps before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum JoinRule {
    #[default]
    AllSuccess,
    OneSuccess,
    NoneFailedMinOneSuccess,
    AllDone,
}

impl JoinRule {
    pub(crate) const ALL: [(&'static str, JoinRule); 4] = [
        ("all_success", JoinRule::AllSuccess),
        ("one_success", JoinRule::OneSuccess),
        ("none_failed_min_one_success", JoinRule::NoneFailedMinOneSuccess),
        ("all_done", JoinRule::AllDone),
    ];

    pub(crate) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, rule)| *rule == self).map_or("", |(name, _)| name)
    }
}

impl Plan {
    /// Returns the adapter that reads the output of a step.
    pub(crate) fn adapter(&self, step: &Step) -> Kind {
        let provider = match &step.action {
            Action::Ask { provider, .. } => provider,
            Action::Prompt(prompt) => &prompt.provider,
            _ => return Kind::Plain,
        };
        self.providers.get(provider).map_or(Kind::Plain, |provider| provider.adapter)
    }

    /// Returns the agent of each step that executes something, and true if the step asks a
    /// provider.
    pub(crate) fn agents(&self) -> Vec<(Option<String>, bool)> {
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

/// One unit of a plan: a step, or a node of the `nodes:` dialect.
#[derive(Clone, Debug)]
pub(crate) struct Step {
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
    /// Time that an agent may be silent.
    pub idle_timeout: Option<Duration>,
    /// Artifact kind under which the output is stored.
    pub output_type: Option<String>,
    /// True if a resumed run executes the step again, regardless of its earlier outcome.
    pub always_run: bool,
    /// Continuation after a failure, if the step itself defines one.
    pub on_fail: Option<OnFail>,
    /// True if a success of this step ends the enclosing loop.
    pub exit_loop: bool,
    /// Second name under which spells see its result.
    pub alias: Option<String>,
    /// Bead of this step, if it differs from the bead of the run.
    pub bead: Option<StepBead>,
    /// True if the step is part of a `goto` cycle that asks an agent.
    pub in_agent_cycle: bool,
}

/// The bead of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StepBead {
    /// The bead's id, or the path of its file.
    pub name: String,
    pub isolation: Isolation,
    /// Place in the workflow that names it.
    pub place: Place,
}

/// Directory in which a bead is worked on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Isolation {
    /// A worktree of its own.
    #[default]
    Worktree,
    /// The workspace.
    Workspace,
}

impl Isolation {
    pub(crate) const ALL: [(&'static str, Isolation); 2] =
        [("worktree", Isolation::Worktree), ("workspace", Isolation::Workspace)];
}

/// Continuation after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnFail {
    /// Continue with the next step.
    Continue,
    /// Block the run. A resume continues with this step.
    Block,
}

impl Step {
    /// Returns a step with an action and otherwise default fields.
    pub(crate) fn new(name: impl Into<String>, action: Action) -> Step {
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

    /// Returns true if the step starts with a child process. A gate and a cancel need none.
    pub(crate) fn takes_process(&self) -> bool {
        match &self.action {
            Action::Gate(_) | Action::Cancel { .. } => false,
            Action::Rounds(rounds) => rounds.block.steps.first().is_none_or(Step::takes_process),
            _ => true,
        }
    }

    /// Returns the providers that it asks, or that the steps inside of it ask.
    pub(crate) fn asked(&self) -> Vec<&str> {
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

    /// Returns true if the prompt is a spell.
    pub(crate) fn casts(&self) -> bool {
        matches!(&self.action, Action::Prompt(Prompt { words: Words::Spell(_), .. }))
    }

    /// Returns true if the answer is JSON by the agent contract.
    pub(crate) fn keeps_contract(&self) -> bool {
        match &self.action {
            Action::Prompt(Prompt { words: Words::Spell(used), .. }) => used.contract,
            _ => false,
        }
    }

    /// Returns the rounds of a loop, approval or repeated block, or `None` for any other step.
    pub(crate) fn rounds(&self) -> Option<&Rounds> {
        match &self.action {
            Action::Rounds(rounds) => Some(rounds),
            _ => None,
        }
    }

    /// Returns the block that a loop of any kind repeats, or `None` for any other step.
    pub(crate) fn inner(&self) -> Option<&Block> {
        match &self.action {
            Action::Each(each) => Some(&each.block),
            Action::Rounds(rounds) => Some(&rounds.block),
            _ => None,
        }
    }

    /// Returns true if the step refers to the run's directory or its state file, and so may read
    /// the state: in its command, its environment, its provider's command, or its file paths. A
    /// script in a file of its own may always read it.
    pub(crate) fn names_state(&self, providers: &BTreeMap<String, Provider>) -> bool {
        const WORDS: [&str; 2] = ["state.json", "ORCHESTRATE_RUN_ROOT"];
        let says = |text: &str| WORDS.iter().any(|word| text.contains(word));
        let named = |template: &Template| WORDS.iter().any(|word| template.names("run.root", word));
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
                let in_words = match &prompt.words {
                    Words::Inline(text) => says(&text.source()),
                    Words::Spell(used) => match &used.source {
                        SpellSource::Inline(spell) => says(spell.text()),
                        SpellSource::Named(_) => false,
                    },
                    Words::Command(_) => false,
                };
                in_words || of_provider(&prompt.provider, &prompt.params)
            }
            Action::Shell { script: ShellText::Spell(spell) } => says(spell.text()),
            Action::Shell { script: ShellText::Node(text) }
            | Action::Script(Script { code: Code::Inline(text), .. }) => says(&text.source()),
            Action::Script(Script { code: Code::Named(_), .. }) => true,
            _ => false,
        };
        let in_env = self.env.iter().any(|(_, value)| says(value));
        executed || in_env || files.any(named) || tests.into_iter().flatten().any(named)
    }
}

/// The one thing that a step does.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// Runs a command, given as an argument list.
    Exec { argv: Vec<Template> },
    /// Asks a provider.
    Ask { provider: String, params: BTreeMap<String, Param> },
    /// Waits for files.
    Wait(WaitFor),
    /// Runs a block for each item.
    Each(Each),
    /// Sends a prompt to an agent.
    Prompt(Prompt),
    /// Runs a shell script.
    Shell { script: ShellText },
    /// Runs a script of another language.
    Script(Script),
    /// Runs a block repeatedly until it is done.
    Rounds(Rounds),
    /// Asks a person.
    Gate(Gate),
    /// Ends the run.
    Cancel { reason: NodeText },
    /// Merges the work on a bead, after a person's review if `review` is set.
    Merge { review: bool, checks: Checks },
}

/// Commands that must succeed in a merged tree before the merge counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Checks {
    /// Shell commands, in order.
    pub commands: Vec<String>,
    /// Timeout of each command.
    pub timeout: Duration,
}

impl Default for Checks {
    fn default() -> Self {
        Checks { commands: Vec::new(), timeout: Duration::from_secs(30 * 60) }
    }
}

/// A shell script of either dialect that has them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ShellText {
    /// Runs in `bash`.
    Node(NodeText),
    /// Runs in `sh`.
    Spell(Spell),
}

/// A prompt for an agent, and the requirements on its answer.
#[derive(Clone, Debug)]
pub(crate) struct Prompt {
    pub words: Words,
    pub provider: String,
    pub params: BTreeMap<String, Param>,
    /// The JSON Schema of the answer.
    pub format: Option<Value>,
    /// The signal in an answer that ends a loop.
    pub until: Option<Until>,
    /// True if the prompt starts a new conversation.
    pub fresh: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Words {
    Inline(NodeText),
    Command(CommandUse),
    Spell(Box<SpellUse>),
}

/// A command file that is a prompt.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CommandUse {
    pub name: String,
    /// References in its text. Known once the run has a copy of the file.
    pub refs: Vec<NodeRef>,
}

/// A spell and the options of its use.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SpellUse {
    pub source: SpellSource,
    /// Variables of this use; they override all others.
    pub input: Vec<(String, SpellValue)>,
    pub system_prompt: SystemPromptUse,
    /// True if the answer must end with a report of its result.
    pub contract: bool,
    /// True if an agent whose answer lacks that report is asked once more.
    pub repair: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum SpellSource {
    /// A name to look up in the spell search path.
    Named(String),
    Inline(Spell),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SystemPromptUse {
    Default,
    None,
    File(String),
}

/// A value whose texts, at any depth, are spells.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum SpellValue {
    Text(Spell),
    List(Vec<SpellValue>),
    Map(Vec<(String, SpellValue)>),
    Fixed(Value),
}

impl SpellValue {
    /// Renders every spell in the value.
    pub(crate) fn render(&self, data: &Value, includes: Includes) -> Result<Value, Fault> {
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

    /// Calls `see` with every spell in the value.
    pub(crate) fn spells<'s>(&'s self, see: &mut dyn FnMut(&'s Spell)) {
        match self {
            SpellValue::Fixed(_) => {}
            SpellValue::Text(spell) => see(spell),
            SpellValue::List(items) => items.iter().for_each(|item| item.spells(see)),
            SpellValue::Map(pairs) => pairs.iter().for_each(|(_, value)| value.spells(see)),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Until {
    pub signal: String,
    /// True if the signal counts only on its own, not within other text.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub strict: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Script {
    pub code: Code,
    pub runtime: Runtime,
    pub deps: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Code {
    Inline(NodeText),
    /// The name of a script file.
    Named(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Runtime {
    Bun,
    Uv,
}

impl Runtime {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Runtime::Bun => "bun",
            Runtime::Uv => "uv",
        }
    }
}

/// A block that runs round after round. Its steps depend on the kind. A loop has a prompt, then an
/// optional check for completion, then an optional gate. An approval has a gate, then an optional
/// prompt that runs after a rejection. Repeated steps may be any steps, in sequence.
#[derive(Clone, Debug)]
pub(crate) struct Rounds {
    pub block: Block,
    pub kind: RoundsKind,
    /// Maximum number of rounds of a loop, or of rejections of an approval.
    pub most: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RoundsKind {
    Loop,
    Approval,
    /// Steps that repeat until one of them ends the loop. `on_most` applies if none does.
    Steps {
        on_most: OnMost,
    },
}

/// Continuation after the maximum number of rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnMost {
    /// Block the run.
    Block,
    /// Continue with the next step.
    Continue,
    /// Fail the run.
    Fail,
}

/// A question to a person.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Gate {
    pub message: NodeText,
    /// True if the person's reply becomes the output.
    pub capture: bool,
}

/// A provider parameter: strings in it, at any depth, are templates.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Param {
    Text(Template),
    List(Vec<Param>),
    Map(Vec<(String, Param)>),
    Fixed(Value),
}

#[derive(Clone, Debug)]
pub(crate) struct WaitFor {
    pub glob: Template,
    pub timeout: Duration,
    pub poll: Duration,
    pub min_count: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct Each {
    pub items: Items,
    /// Variable name of the current item, in addition to `item`.
    pub alias: String,
    pub block: Block,
    pub on_success: Option<Template>,
    pub on_failure: Option<Template>,
}

#[derive(Clone, Debug)]
pub(crate) enum Items {
    Literal(Vec<Param>),
    /// `steps.<Name>.lines` or `steps.<Name>.json[.path]`, without the braces.
    From(crate::template::Hole),
}

/// A condition that must hold for a step to run.
#[derive(Clone, Debug)]
pub(crate) enum When {
    Test(Test),
    /// A condition on the outputs of earlier nodes.
    Outputs(Condition),
    /// A spell whose rendered text decides.
    Spell(Spell),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Test {
    pub equals: Option<(Template, Template)>,
    pub exists: Option<Template>,
    pub not_exists: Option<Template>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Depends {
    pub required: Vec<Template>,
    pub optional: Vec<Template>,
    pub inject: Option<Inject>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Inject {
    pub mode: InjectMode,
    pub instruction: Option<String>,
    pub position: Position,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InjectMode {
    List,
    Content,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Position {
    Prepend,
    Append,
}

/// Destination and interpretation of a step's stdout.
#[derive(Clone, Debug, Default)]
pub(crate) struct Output {
    pub file: Option<Template>,
    pub capture: CaptureMode,
    pub allow_parse_error: bool,
    pub schema: Option<Template>,
    pub require: Vec<Require>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum CaptureMode {
    #[default]
    Text,
    Lines,
    Json,
    /// The whole text; long text is stored in a separate file.
    Whole,
}

/// An assertion on parsed JSON output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Require {
    pub pointer: String,
    pub exists: bool,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub equals: Option<Value>,
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
}

/// Reads a field that is present, including `null`, which is a value to compare with.
pub(crate) fn present<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Retries {
    pub max: u32,
    pub delay_ms: Option<u64>,
    pub which: Which,
}

/// The failures that are retried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Which {
    /// By exit code: an API error or a timeout.
    #[default]
    ByCode,
    /// Transient failures; each retry waits twice as long as the previous one.
    Transient,
    /// All failures except permanent ones.
    All,
}

/// `goto` targets after a step.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Handlers {
    pub success: Option<Target>,
    pub failure: Option<Target>,
    pub always: Option<Target>,
}

/// A resolved `goto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Leave `out` loops, then continue with that step of the enclosing block.
    Step { out: usize, step: usize },
    /// End the run.
    End,
}

/// A CLI template that answers prompts.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Provider {
    pub command: Vec<Arg>,
    pub input: InputMode,
    pub defaults: BTreeMap<String, Param>,
    /// Adapter that reads its output.
    pub adapter: Kind,
    /// Environment variables that it gets.
    pub env: Vec<(String, String)>,
    /// Environment variables that it inherits in addition to the usual ones, if it does not inherit
    /// all.
    pub env_pass: Vec<String>,
    /// Account whose limits apply, if several providers share one.
    pub account: Option<String>,
    /// Restrictions on the provider's process. `None` gives it the user's full permissions.
    pub sandbox: Option<Sandbox>,
    /// Paths of its own that it may write to even in a sandbox, if they exist.
    pub writes: Vec<String>,
}

impl Provider {
    /// Returns every template of the command.
    pub(crate) fn templates(&self) -> impl Iterator<Item = &Template> {
        self.command.iter().flat_map(Arg::templates)
    }

    /// Returns the root names of the holes in its command: parameters and other variables.
    pub(crate) fn places(&self) -> impl Iterator<Item = &str> {
        self.templates().flat_map(Template::holes).map(|hole| hole.root())
    }

    /// Returns the program's name, or `None` if it depends on a variable.
    pub(crate) fn program(&self) -> Option<&str> {
        match self.command.first()? {
            Arg::One(template) => template.literal(),
            Arg::Group(_) => None,
        }
    }
}

/// A part of a provider's command.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Arg {
    One(Template),
    /// Arguments that are omitted together if a parameter in them has no value.
    Group(Vec<Template>),
}

impl Arg {
    pub(crate) fn templates(&self) -> impl Iterator<Item = &Template> {
        match self {
            Arg::One(template) => std::slice::from_ref(template).iter(),
            Arg::Group(templates) => templates.iter(),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum InputMode {
    #[default]
    Argv,
    Stdin,
}

impl Param {
    /// Fills every hole, or returns all holes that have no value.
    pub(crate) fn render(&self, scope: &dyn Scope) -> Result<Value, Vec<Missing>> {
        let mut missing = Vec::new();
        let value = self.fill(scope, &mut missing);
        if missing.is_empty() { Ok(value) } else { Err(missing) }
    }

    /// Returns true if `is` holds for any template in the value.
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
