//! Reads a settings file key by key, as strictly as a workflow.
//!
//! A key that the file does not set is `None`. The caller merges several files and applies the
//! built-in defaults.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::plan::{Provider, Version};
use super::sandbox::{self, Sandbox};
use super::schema::Table;
use super::schema::settings::{AGENT, LIMITS, METRICS, NOTIFY, QUEUE, TOP, WORKTREE};
use super::schema::steps::OF_COMMAND;
use super::steps;
use crate::base::ids::name_fault;
use crate::workflow::fields::{Fields, Findings};
use crate::yaml::problem::{Place, Problem, in_order};
use crate::yaml::{self, Node, Value};

/// The inbox of the coordinator. No agent can have this name.
pub(crate) const COORDINATOR: &str = "coordinator";

/// Settings have no version; they support the first version of the `steps:` dialect.
const VERSION: Version = Version::V1_1;

/// The contents of one settings file.
#[derive(Debug, Default)]
pub(crate) struct ConfigLayer {
    pub providers: BTreeMap<String, Provider>,
    /// Changes to existing providers.
    pub changed: BTreeMap<String, ProviderLayer>,
    pub agents: BTreeMap<String, AgentLayer>,
    pub default_agent: Option<String>,
    pub command_agent: Option<String>,
    pub default_provider: Option<String>,
    /// True if an agent whose answer does not report a result is asked once more.
    pub contract_repair: Option<bool>,
    pub worktree: TreeLayer,
    /// Environment variables that providers inherit in addition to the usual ones.
    pub env_pass: Option<Vec<String>>,
    pub queue: QueueLayer,
    /// True if acknowledged data must survive a power failure.
    pub durable: Option<bool>,
    pub notify: NotifyLayer,
    /// Interval at which a coordinator writes metrics (`Some(None)`: never), and the file for them.
    pub metrics_every: Option<Option<Duration>>,
    pub metrics_file: Option<String>,
    pub max_visits: Option<u32>,
    pub grace: Option<Duration>,
    pub input_bytes: Option<u64>,
    /// Initial and maximum backoff for a provider that does not report how long to wait.
    pub back_off: Option<Duration>,
    pub back_off_max: Option<Duration>,
    /// Time that a provider which waits for its service by itself may be silent: in general, and
    /// after it has hit a limit.
    pub silent: Option<Duration>,
    pub silent_at_limit: Option<Duration>,
}

/// The changes of one file to a provider whose command it does not set.
#[derive(Debug)]
pub(crate) struct ProviderLayer {
    pub place: Place,
    /// The values that the file sets; all other fields are defaults.
    said: Provider,
    /// True if the file sets the field of this name.
    env_pass: bool,
    writes: bool,
}

impl ProviderLayer {
    /// Applies the changes to a provider: parameters and variables one by one, every other field as
    /// a whole.
    pub(crate) fn lay_over(self, provider: &mut Provider) {
        let ProviderLayer { said, env_pass, writes, .. } = self;
        provider.defaults.extend(said.defaults);
        for (name, value) in said.env {
            provider.env.retain(|(other, _)| *other != name);
            provider.env.push((name, value));
        }
        if env_pass {
            provider.env_pass = said.env_pass;
        }
        if writes {
            provider.writes = said.writes;
        }
        provider.account = said.account.or(provider.account.take());
        provider.sandbox = said.sandbox.or(provider.sandbox.take());
    }
}

/// The settings of one file for bead worktrees.
#[derive(Clone, Debug, Default)]
pub(crate) struct TreeLayer {
    /// Branch from which they are created.
    pub base_branch: Option<String>,
    /// Commands that must succeed in a merged tree, and the timeout of each.
    pub checks: Option<Vec<String>>,
    pub check_timeout: Option<Duration>,
    /// Time to wait for another holder of a worktree.
    pub wait: Option<Duration>,
    /// True if their branches are pushed after each step.
    pub push: Option<bool>,
    /// Timeout of each request to a remote.
    pub remote_timeout: Option<Duration>,
}

/// A state of a run that triggers a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Occasion {
    /// The run asks a person.
    Paused,
    Failed,
    /// A step failed, and the run waits to be resumed there.
    Blocked,
    Completed,
    Cancelled,
}

impl Occasion {
    pub(crate) const ALL: [Occasion; 5] = [
        Occasion::Paused,
        Occasion::Failed,
        Occasion::Blocked,
        Occasion::Completed,
        Occasion::Cancelled,
    ];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Occasion::Paused => "paused",
            Occasion::Failed => "failed",
            Occasion::Blocked => "blocked",
            Occasion::Completed => "completed",
            Occasion::Cancelled => "cancelled",
        }
    }

    pub(crate) fn is_bad(self) -> bool {
        matches!(self, Occasion::Failed | Occasion::Blocked)
    }
}

/// The notification settings of one file.
#[derive(Debug, Default)]
pub(crate) struct NotifyLayer {
    pub on: Option<Vec<Occasion>>,
    pub command: Option<Vec<String>>,
    pub webhook: Option<String>,
    pub timeout: Option<Duration>,
}

/// The settings of one file for an agent.
#[derive(Debug)]
pub(crate) struct AgentLayer {
    pub place: Place,
    pub provider: Option<String>,
    pub model: Option<String>,
    pub concurrency: Option<u32>,
    pub system_prompt: Option<String>,
    pub spell: Option<String>,
    /// `Some(None)` removes the limit.
    pub timeout: Option<Option<Duration>>,
    pub env: Option<Vec<String>>,
    pub next: Option<Vec<String>>,
    pub sandbox: Option<Sandbox>,
}

/// The queue settings of one file.
#[derive(Debug, Default)]
pub(crate) struct QueueLayer {
    pub place: Option<Place>,
    pub beat: Option<Duration>,
    pub lease: Option<Duration>,
    pub poll: Option<Duration>,
    pub idle_poll: Option<Duration>,
    pub settle: Option<Duration>,
    pub drain: Option<Duration>,
    pub crash_limit: Option<u32>,
    pub follow_up_depth: Option<u32>,
    pub follow_up_count: Option<u32>,
    pub task_bytes: Option<u64>,
    pub world_writable: Option<bool>,
}

/// Reads a settings file. Returns all problems if any of them is an error.
pub(crate) fn read_config(text: &str) -> Result<ConfigLayer, Vec<Problem>> {
    let document = yaml::parse(text).map_err(|problem| vec![problem])?;
    if matches!(document.value, Value::Null) {
        return Ok(ConfigLayer::default());
    }
    let findings = Findings::reading(text);
    let top = Fields::open(&findings, &document, "the file", &TOP, VERSION);
    let layer = top.map(|top| read_top(&top)).unwrap_or_default();
    let problems = in_order(text, findings.into_problems());
    if problems.iter().any(Problem::is_error) { Err(problems) } else { Ok(layer) }
}

fn worktree(tree: &Fields) -> TreeLayer {
    let base_branch = tree.text("base_branch").filter(|name| !name.is_empty());
    TreeLayer {
        base_branch: base_branch.map(str::to_owned),
        checks: tree.commands("checks"),
        check_timeout: tree.duration("check_timeout", ""),
        wait: tree.duration("wait", ""),
        push: tree.boolean("push"),
        remote_timeout: tree.duration("remote_timeout", ""),
    }
}

fn read_top(top: &Fields) -> ConfigLayer {
    let findings = top.findings;
    let section = |key: &str, table: &Table| {
        let node = top.get(key).filter(|node| !matches!(node.value, Value::Null))?;
        Fields::open(findings, node, format!("`{key}`"), table, VERSION)
    };
    let mut layer = ConfigLayer {
        agents: top.get("agents").map(|node| agents(findings, node)).unwrap_or_default(),
        default_agent: agent_name(top, "default_agent"),
        command_agent: agent_name(top, "command_agent"),
        default_provider: top.text("default_provider").map(str::to_owned),
        contract_repair: top.boolean("contract_repair"),
        env_pass: variables(top, "env_pass"),
        durable: top.choice("durability", &[("power", true), ("process", false)]),
        ..ConfigLayer::default()
    };
    if let Some(node) = top.get("providers") {
        providers(findings, node, &mut layer);
    }
    if let Some(queue) = section("queue", &QUEUE) {
        layer.queue = read_queue(&queue);
    }
    if let Some(tree) = section("worktree", &WORKTREE) {
        layer.worktree = worktree(&tree);
    }
    if let Some(metrics) = section("metrics", &METRICS) {
        layer.metrics_every = duration_or_none(&metrics, "every");
        layer.metrics_file = metrics.text("file").map(str::to_owned);
    }
    if let Some(notify) = section("notify", &NOTIFY) {
        layer.notify = read_notify(&notify);
    }
    if let Some(limits) = section("limits", &LIMITS) {
        layer.max_visits = number(&limits, "max_visits", 1);
        layer.grace = limits.seconds("grace_sec", true);
        layer.input_bytes = limits.integer("input_bytes", 1, 1 << 40);
        layer.back_off = limits.seconds("back_off_sec", false);
        layer.back_off_max = limits.seconds("back_off_max_sec", false);
        layer.silent = limits.seconds("silent_sec", false);
        layer.silent_at_limit = limits.seconds("silent_at_limit_sec", false);
    }
    layer
}

/// Reads providers. A provider with a command is a new definition; one without changes an existing
/// one.
fn providers(findings: &Findings, node: &Node, layer: &mut ConfigLayer) {
    for (name, body) in steps::named_providers(findings, node) {
        let Some(said) = steps::read_provider(findings, name, body, VERSION) else { continue };
        if body.get("command").is_some() {
            layer.providers.insert(name.to_owned(), said);
            continue;
        }
        if let Some(field) = OF_COMMAND.iter().find(|field| body.get(field.name).is_some()) {
            let field = field.name;
            let message =
                format!("provider `{name}` has `{field}`, but no `command` it belongs to");
            let place = body.get(field).map_or(body.place, |node| node.place);
            findings.add(Problem::error(message).at(place).hint(
                "without a `command` it is the provider of this name that is there, with other \
                 `defaults`, `env`, `env_pass`, `account`, `sandbox` or `writes`",
            ));
        }
        let has = |key: &str| body.get(key).is_some_and(|node| !matches!(node.value, Value::Null));
        let (env_pass, writes) = (has("env_pass"), has("writes"));
        let changed = ProviderLayer { place: body.place, said, env_pass, writes };
        layer.changed.insert(name.to_owned(), changed);
    }
}

fn number(fields: &Fields, key: &str, least: u32) -> Option<u32> {
    let number = fields.integer(key, u64::from(least), u64::from(u32::MAX))?;
    u32::try_from(number).ok()
}

fn read_queue(fields: &Fields) -> QueueLayer {
    /// One day. A larger value is more likely a wrong unit than an intended value.
    const LONGEST_MS: u64 = 86_400_000;
    let millis =
        |key: &str, least: u64| fields.integer(key, least, LONGEST_MS).map(Duration::from_millis);
    let written = ["lease_sec", "beat_sec"].into_iter().find_map(|key| fields.get(key));
    QueueLayer {
        place: written.map(|node| node.place),
        beat: fields.seconds("beat_sec", false),
        lease: fields.seconds("lease_sec", false),
        poll: millis("poll_ms", 1),
        idle_poll: millis("idle_poll_ms", 1),
        settle: millis("settle_ms", 0),
        drain: fields.seconds("drain_sec", true),
        crash_limit: number(fields, "crash_limit", 1),
        follow_up_depth: number(fields, "follow_up_depth", 0),
        follow_up_count: number(fields, "follow_up_count", 0),
        // A task is held in memory, and its text is stored in one document.
        task_bytes: fields.integer("task_bytes", 1, 1 << 28),
        world_writable: fields.boolean("world_writable"),
    }
}

fn read_notify(fields: &Fields) -> NotifyLayer {
    let occasion = |(word, place): (&str, Place)| {
        let found = Occasion::ALL.into_iter().find(|occasion| occasion.word() == word);
        if found.is_none() {
            let words: Vec<_> = Occasion::ALL.iter().map(|o| format!("`{}`", o.word())).collect();
            let message = format!("`{word}` of `on` must be one of {}", words.join(", "));
            fields.findings.error(place, message);
        }
        found
    };
    let on = fields.texts("on").map(|texts| texts.into_iter().filter_map(occasion).collect());
    let command: Option<Vec<String>> = fields
        .texts("command")
        .map(|texts| texts.into_iter().map(|(text, _)| text.to_owned()).collect());
    let place = |key: &str| fields.get(key).map_or(fields.node.place, |node| node.place);
    if command.as_ref().is_some_and(Vec::is_empty) {
        fields.findings.error(place("command"), "`command` of `notify` names no program");
    }
    let webhook = fields.text("webhook").map(str::to_owned);
    let http = |url: &String| url.starts_with("https://") || url.starts_with("http://");
    if webhook.as_ref().is_some_and(|url| !http(url)) {
        let message = "`webhook` of `notify` must begin with `https://` or `http://`";
        fields.findings.error(place("webhook"), message);
    }
    NotifyLayer { on, command, webhook, timeout: fields.duration("timeout", "") }
}

fn agents(findings: &Findings, node: &Node) -> BTreeMap<String, AgentLayer> {
    let Value::Map(pairs) = &node.value else {
        if !matches!(node.value, Value::Null) {
            findings.error(node.place, format!("`agents` must be a map, not {}", node.kind()));
        }
        return BTreeMap::new();
    };
    let mut found = BTreeMap::new();
    for (key, body) in pairs {
        let Some(name) = key.text() else {
            findings.error(key.place, "an agent's name must be text");
            continue;
        };
        if let Some(fault) = agent_fault(name) {
            findings.error(key.place, format!("`{name}` cannot name an agent: {fault}"));
        }
        found.extend(read_agent(findings, name, key.place, body).map(|a| (name.to_owned(), a)));
    }
    found
}

/// Returns why `name` cannot name an agent, or `None` if it can.
pub(crate) fn agent_fault(name: &str) -> Option<&'static str> {
    let taken = name.eq_ignore_ascii_case(COORDINATOR);
    let reserved = "its inbox is where workflows are submitted";
    name_fault(name).or_else(|| taken.then_some(reserved))
}

fn read_agent(findings: &Findings, name: &str, place: Place, node: &Node) -> Option<AgentLayer> {
    // `qa:` without a value is an agent with all defaults.
    let empty = Node { place, value: Value::Map(Vec::new()) };
    let node = if matches!(node.value, Value::Null) { &empty } else { node };
    let fields = Fields::open(findings, node, format!("agent `{name}`"), &AGENT, VERSION)?;
    let text = |key: &str| fields.text(key).map(str::to_owned);
    Some(AgentLayer {
        place,
        provider: text("provider"),
        model: text("model"),
        concurrency: number(&fields, "concurrency", 1),
        system_prompt: text("system_prompt"),
        spell: text("spell"),
        timeout: duration_or_none(&fields, "timeout"),
        env: variables(&fields, "env"),
        next: names(&fields, "next", "an agent", agent_fault),
        sandbox: sandbox::read(&fields, VERSION),
    })
}

/// Reads a duration, or `none`.
fn duration_or_none(fields: &Fields, key: &str) -> Option<Option<Duration>> {
    match fields.get(key).and_then(Node::text) {
        Some("none") => Some(None),
        _ => fields.duration(key, ", or `none`").map(Some),
    }
}

fn variable_fault(name: &str) -> Option<&'static str> {
    let well = !name.is_empty() && !name.contains(['=', '\0']);
    (!well).then_some("it is empty, or holds `=` or a zero byte")
}

/// Reads a list of environment variables. A name that ends with `*` stands for all names with that
/// prefix.
pub(super) fn variables(fields: &Fields, key: &str) -> Option<Vec<String>> {
    names(fields, key, "an environment variable", variable_fault)
}

fn names(
    fields: &Fields,
    key: &str,
    what: &str,
    fault: fn(&str) -> Option<&'static str>,
) -> Option<Vec<String>> {
    let texts = fields.texts(key)?;
    for (name, place) in &texts {
        if let Some(fault) = fault(name) {
            fields.findings.error(*place, format!("`{name}` cannot name {what}: {fault}"));
        }
    }
    Some(texts.into_iter().map(|(name, _)| name.to_owned()).collect())
}

fn agent_name(top: &Fields, key: &str) -> Option<String> {
    let name = top.text(key)?;
    if let Some(fault) = agent_fault(name) {
        let place = top.get(key).map_or(top.node.place, |node| node.place);
        top.findings.error(place, format!("`{name}` cannot name an agent: {fault}"));
    }
    Some(name.to_owned())
}
