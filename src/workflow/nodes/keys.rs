//! The keys of the `nodes:` dialect, and the treatment of all other keys.
//!
//! A key that another engine of this dialect supports is accepted and reported as idle. An unknown
//! key is reported and ignored. A key that was almost certainly meant as a safety is rejected,
//! because a workflow that runs without it is not the workflow that its author wrote.

use super::tools;
use crate::workflow::dialects::{self, Format};
use crate::workflow::fields::{Fields, Findings, suggest};
use crate::workflow::schema::{Field, nodes as shape};
use crate::yaml::problem::{Problem, nearest};
use crate::yaml::{Node, Value};

/// The mode of a node: the kind of thing it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Command,
    Prompt,
    Bash,
    Script,
    Loop,
    Approval,
    Cancel,
    Spell,
}

impl Mode {
    pub(crate) const ALL: [(&'static str, Mode); 8] = [
        ("command", Mode::Command),
        ("prompt", Mode::Prompt),
        ("bash", Mode::Bash),
        ("script", Mode::Script),
        ("loop", Mode::Loop),
        ("approval", Mode::Approval),
        ("cancel", Mode::Cancel),
        ("spell", Mode::Spell),
    ];

    pub(crate) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, mode)| *mode == self).map_or("", |(name, _)| name)
    }
}

/// A kind of map in the dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    Top,
    Node,
    Script,
    Loop,
    Approval,
    OnReject,
    Retry,
    Hook,
}

/// Every level except hooks, with the phrase that messages use for a key that belongs there.
const HOMES: [(Level, &str); 7] = [
    (Level::Top, "to the top of the workflow"),
    (Level::Node, "to a node itself"),
    (Level::Script, "to a `script` node"),
    (Level::Loop, "inside `loop:`"),
    (Level::Approval, "inside `approval:`"),
    (Level::OnReject, "inside `on_reject:`"),
    (Level::Retry, "inside `retry:`"),
];

/// Modes of other engines of this dialect that are not supported here.
pub(crate) const REFUSED: [&str; 3] = ["include", "workflow", "loop_group"];

/// Keys that keep a run from doing something it must not do.
const SAFETIES: [&str; 21] = [
    "depends_on",
    "when",
    "trigger_rule",
    "approval",
    "on_reject",
    "interactive",
    "until",
    "until_bash",
    "max_iterations",
    "max_attempts",
    "timeout",
    "idle_timeout",
    "retry",
    "cancel",
    "denied_tools",
    "allowed_tools",
    "hooks",
    "mcp",
    "skills",
    "sandbox",
    "maxBudgetUsd",
];

/// Limits that are parameters of a provider, in lower case and without separators. A node cannot
/// set them.
const PROVIDER_LIMITS: [&str; 3] = ["maxturns", "permissionmode", "providerparams"];

/// The parts of a gate. In any other place, they are the remains of one.
const GATE_PARTS: [&str; 3] = ["message", "gate_message", "capture_response"];

/// Other names for a safety, in lower case and without separators: from other engines, or as users
/// remember them.
const SYNONYMS: [(&str, &[&str]); 12] = [
    (
        "depends_on",
        &[
            "after",
            "blockedby",
            "follows",
            "need",
            "needs",
            "parent",
            "parents",
            "predecessor",
            "predecessors",
            "prerequisite",
            "prerequisites",
            "require",
            "requires",
            "runafter",
            "upstream",
            "wait",
            "waitfor",
            "waiton",
            "waits",
            "waitsfor",
        ],
    ),
    (
        "when",
        &["if", "ifnot", "notif", "onlyif", "onlywhen", "runif", "runwhen", "skipif", "unless"],
    ),
    ("trigger_rule", &["join", "joinrule", "onfail", "onfailure", "runson"]),
    (
        "approval",
        &[
            "ask",
            "askhuman",
            "askuser",
            "checkpoint",
            "confirm",
            "confirmation",
            "gate",
            "gates",
            "hold",
            "human",
            "manual",
            "pause",
            "pausebefore",
            "requireconfirmation",
            "review",
            "reviewer",
            "reviewers",
            "reviewrequired",
            "signoff",
        ],
    ),
    ("timeout", &["deadline", "expires", "expiry", "maxtime", "timelimit"]),
    ("retry", &["attempts", "maxretries", "retries"]),
    ("max_iterations", &["iterations", "maxiter", "maxloops", "maxrounds"]),
    ("cancel", &["abort"]),
    (
        "denied_tools",
        &["blockedtools", "denytools", "disabledtools", "disallowedtools", "excludedtools"],
    ),
    ("allowed_tools", &["allowtools", "enabledtools", "tools"]),
    ("mcp", &["mcpconfig", "mcpserver", "mcpservers"]),
    ("maxBudgetUsd", &["budget", "budgetusd", "costlimit", "maxbudget", "maxcost"]),
];

/// Word stems: a key that contains one was meant as that safety.
const STEMS: [(&str, &str); 6] = [
    ("depend", "depends_on"),
    ("condition", "when"),
    ("trigger", "trigger_rule"),
    ("reject", "on_reject"),
    ("approv", "approval"),
    ("timeout", "timeout"),
];

/// Returns the safety that a key was almost certainly meant to be.
fn safety(name: &str, levels: &[Level]) -> Option<&'static str> {
    // The top level has no order: a key of another engine with such a name stops nothing here.
    if levels == [Level::Top] {
        return nearest(name, SAFETIES);
    }
    let plain = plain(name);
    let part = GATE_PARTS.into_iter().find(|part| *part == name);
    let synonym = || SYNONYMS.iter().find(|(_, words)| words.contains(&plain.as_str()));
    let stem = || STEMS.iter().find(|(stem, _)| plain.contains(stem));
    // A synonym comes first: `disallowed_tools` is nearer to `allowed_tools` than to its own.
    part.or_else(|| synonym().map(|(safety, _)| *safety))
        .or_else(|| nearest(name, SAFETIES))
        .or_else(|| stem().map(|(_, safety)| *safety))
}

/// Returns a key in lower case and without separators.
fn plain(name: &str) -> String {
    name.to_lowercase().chars().filter(|c| c.is_alphanumeric()).collect()
}

impl Level {
    fn fields(self) -> &'static [Field] {
        match self {
            Level::Top => shape::TOP.fields,
            Level::Node => &shape::NODE_FIELDS,
            Level::Script => &shape::SCRIPT,
            Level::Loop => shape::LOOP.fields,
            Level::Approval => shape::APPROVAL.fields,
            Level::OnReject => shape::ON_REJECT.fields,
            Level::Retry => shape::RETRY.fields,
            Level::Hook => shape::HOOK.fields,
        }
    }

    fn idle_fields(self) -> &'static [Field] {
        match self {
            Level::Top => &shape::TOP_IDLE,
            Level::Node => &shape::NODE_IDLE,
            _ => &[],
        }
    }

    fn keys(self) -> impl Iterator<Item = &'static str> {
        self.fields().iter().map(|field| field.name)
    }

    fn idle(self) -> impl Iterator<Item = &'static str> {
        self.idle_fields().iter().map(|field| field.name)
    }

    fn has(self, key: &str) -> bool {
        self.keys().chain(self.idle()).any(|name| name == key)
    }
}

/// Returns true if a node has a misspelled key that was almost certainly meant as a safety for
/// which `one` holds. Such a key is rejected on its own.
pub(crate) fn misspells(node: &Node, one: impl Fn(&str) -> bool) -> bool {
    let Value::Map(pairs) = &node.value else { return false };
    let mut keys = pairs.iter().filter_map(|(key, _)| key.text());
    keys.any(|key| {
        let meant = safety(key, &[Level::Node]).filter(|meant| *meant != key);
        !Level::Node.has(key) && meant.is_some_and(&one)
    })
}

/// Opens a map that has the keys of all these levels.
pub(crate) fn open<'a>(
    findings: &'a Findings,
    node: &'a Node,
    what: impl Into<String>,
    levels: &[Level],
) -> Option<Fields<'a>> {
    let what = what.into();
    let Value::Map(pairs) = &node.value else {
        findings.error(node.place, format!("{what} must be a map, not {}", node.kind()));
        return None;
    };
    for (key, _) in pairs {
        check(findings, key, &what, levels);
    }
    Some(Fields { findings, node, what })
}

/// Opens the map under a key of another map.
pub(crate) fn inner<'a>(fields: &Fields<'a>, key: &str, level: Level) -> Option<Fields<'a>> {
    let what = format!("`{key}` of {}", fields.what);
    open(fields.findings, fields.get(key)?, what, &[level])
}

fn check(findings: &Findings, key: &Node, what: &str, levels: &[Level]) {
    let Some(name) = key.text() else {
        findings.error(key.place, format!("a key of {what} must be text, not {}", key.kind()));
        return;
    };
    // A loop cannot take its prompt from a command file; that is reported when the loop is read.
    let told = levels == [Level::Loop] && name == "command";
    if told || levels.iter().any(|level| level.has(name)) {
        return;
    }
    if levels.contains(&Level::Node) && REFUSED.contains(&name) {
        let message = format!("{what} has `{name}`, which is not supported");
        findings.add(Problem::error(message).at(key.place).hint(one_mode()));
        return;
    }
    if PROVIDER_LIMITS.contains(&plain(name).as_str()) {
        let hint = "it is a parameter of a provider: define one in the settings, with this under \
                    `defaults`, and name it in `provider`";
        let problem = Problem::error(format!("{what} has no field `{name}`"));
        findings.add(problem.at(key.place).hint(hint));
        return;
    }
    let meant = safety(name, levels);
    let problem = match meant {
        Some(_) => Problem::error(format!("{what} has no field `{name}`")),
        None => Problem::warning(format!("{what} has no field `{name}`, so it is ignored")),
    }
    .at(key.place);
    findings.add(hinted(problem, name, meant, levels));
}

/// Adds a hint: the place where a key belongs, or the key that was probably meant.
fn hinted(problem: Problem, name: &str, meant: Option<&str>, levels: &[Level]) -> Problem {
    let homes = homes(name);
    let known = levels.iter().flat_map(|level| level.keys().chain(level.idle()));
    match meant {
        // A similar key of this level is a better guess than a key of another level.
        Some(meant) if meant != name && levels.iter().any(|level| level.has(meant)) => {
            return problem.hint(format!("did you mean `{meant}`?"));
        }
        _ if !homes.is_empty() => return problem.hint(format!("`{name}` belongs {homes}")),
        _ => {}
    }
    match (suggest(problem, name, known), meant) {
        (found, _) if found.hint.is_some() => found,
        (none, Some(meant)) => {
            none.hint(format!("did you mean `{meant}`? it belongs {}", self::homes(meant)))
        }
        (none, None) => match dialects::foreign(Format::Nodes, levels == [Level::Top], name) {
            Some(hint) => none.hint(hint),
            None => suggest(none, name, HOMES.iter().flat_map(|(level, _)| level.keys())),
        },
    }
}

/// Returns the places where a key belongs, or an empty text for an unknown key.
fn homes(name: &str) -> String {
    let having = HOMES.iter().filter(|(level, _)| level.has(name));
    having.map(|(_, home)| *home).collect::<Vec<_>>().join(" or ")
}

/// Returns the hint that lists the seven modes, for a node with none or several. A spell is another
/// way to write a prompt.
pub(crate) fn one_mode() -> String {
    let kinds = Mode::ALL.iter().filter(|(_, mode)| *mode != Mode::Spell);
    let names: Vec<_> = kinds.map(|(name, _)| format!("`{name}`")).collect();
    format!("give it one of {}", names.join(", "))
}

/// Returns a predicate for keys that have no effect on a node of this mode. `asks` is true for an
/// approval that asks an agent after a rejection.
fn idle_on(mode: Mode, asks: bool) -> impl Fn(&str) -> bool {
    move |key| {
        let agent = ["provider", "model", "idle_timeout"];
        let executed = ["agent", "env", "secrets"];
        let limits = || tools::FIELDS.iter().any(|(field, _)| *field == key);
        Level::Node.idle().any(|name| name == key)
            || match mode {
                Mode::Command | Mode::Prompt | Mode::Spell => false,
                Mode::Loop => key == "context",
                Mode::Bash | Mode::Script => {
                    agent.contains(&key) || ["context", "output_format"].contains(&key) || limits()
                }
                Mode::Approval => {
                    ["output_format", "retry"].contains(&key)
                        || (!asks && (key == "context" || agent.contains(&key)))
                        || (!asks && (executed.contains(&key) || limits()))
                }
                Mode::Cancel => {
                    ["context", "output_format", "retry", "timeout"].contains(&key)
                        || agent.contains(&key)
                        || executed.contains(&key)
                        || limits()
                }
            }
    }
}

/// Reports all keys of a node that have no effect, in one warning.
pub(crate) fn tell_idle_of_node(fields: &Fields, mode: Mode, asks: bool) {
    let general: Vec<_> = present(fields, |key| Level::Node.idle().any(|name| name == key));
    let idle = present(fields, idle_on(mode, asks));
    let whose = match idle.len() == general.len() {
        true => "here".to_owned(),
        false if mode == Mode::Approval => "on an `approval` node".to_owned(),
        false => format!("on a `{}` node", mode.name()),
    };
    tell_idle(fields, &idle, &whose);
}

/// Reports all keys of the top level that have no effect, in one warning.
pub(crate) fn tell_idle_of_top(top: &Fields) {
    tell_idle(top, &present(top, |key| Level::Top.idle().any(|name| name == key)), "here");
}

/// Returns the keys of a map for which `is` holds, in order.
fn present<'a>(fields: &Fields<'a>, is: impl Fn(&str) -> bool) -> Vec<&'a str> {
    let Value::Map(pairs) = &fields.node.value else { return Vec::new() };
    pairs.iter().filter_map(|(key, _)| key.text()).filter(|key| is(key)).collect()
}

fn tell_idle(fields: &Fields, idle: &[&str], whose: &str) {
    let Some((first, rest)) = idle.split_first() else { return };
    let mut list = format!("`{first}`");
    for (index, key) in rest.iter().enumerate() {
        let joint = if index + 1 == rest.len() { " and" } else { "," };
        list.push_str(&format!("{joint} `{key}`"));
    }
    let verb = if rest.is_empty() { "has" } else { "have" };
    let message = format!("{list} of {} {verb} no effect {whose}", fields.what);
    fields.findings.add(Problem::warning(message).at(fields.place_of_key(first)));
}
