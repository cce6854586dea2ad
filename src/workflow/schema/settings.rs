//! Settings files.

use super::Shape::{
    Bool, Duration, Each, Either, Integer, Keyed, Like, List, Maybe, Name, OneOf, Some,
    Table as Map, Text,
};
use super::grimoire::{CHECKS_IS, COMMANDS};
use super::steps::PROVIDER_SETTING;
use super::{NAME, Rule, Shape, Table, field, seconds, words};
use crate::workflow::sandbox;

const LONG: Shape = Duration { or_none: false };
const VARIABLES: Shape = List(&Like("^[^=\\u0000]+$"));
/// One day. A larger value is more likely a wrong unit than an intended value.
const DAY_MS: u64 = 86_400_000;
const LEVELS: &[&str] = &words(&sandbox::LEVELS);
pub(super) const PLACE: Shape = Like("^(/|~$|~/)");
pub(super) const SANDBOX_SHAPE: Shape = Either(&[OneOf(LEVELS), Map(&SANDBOX)]);
const OCCASIONS: &[&str] = &["paused", "failed", "blocked", "completed", "cancelled"];
const COUNT: u64 = u32::MAX as u64;

pub(crate) static TOP: Table = Table::new("config", "Settings. A missing key keeps its value.", &[
    field(
        "providers",
        Maybe(&Keyed(NAME, &Map(&PROVIDER_SETTING))),
        "Command lines that answer prompts.",
    ),
    field("agents", Maybe(&Each(&Map(&AGENT))), "The roles that work is handed to."),
    field("default_agent", Name, "Who gets the agent steps that name no agent. Default: engineer."),
    field("command_agent", Name, "Who gets plain commands. Default: whoever drives the run."),
    field("default_provider", Text, "The provider of prompts that name none. Default: claude."),
    field("env_pass", VARIABLES, "Variables that all providers inherit beside the usual ones."),
    field("queue", Map(&QUEUE), "How the queue is worked."),
    field(
        "durability",
        OneOf(&["power", "process"]),
        "What an acknowledgement survives: a power cut, or the end of processes. Default: power.",
    ),
    field("limits", Map(&LIMITS), "Limits."),
    field(
        "contract_repair",
        Bool,
        "Whether an agent that does not say how its work went is asked once more.",
    ),
    field("worktree", Map(&WORKTREE), "Worktrees of beads."),
    field("notify", Map(&NOTIFY), "Who is told when a run pauses or ends."),
    field("metrics", Map(&METRICS), "Figures that a coordinator writes for a monitor."),
])
.rule(Rule::Nullable);

pub(crate) static AGENT: Table = Table::new(
    "agent",
    "A role that work is handed to.",
    &[
        field("provider", Text, "Who answers its free tasks. Default: default_provider."),
        field("model", Text, "The parameter `model` of that provider."),
        field(
            "concurrency",
            Integer(1, COUNT),
            "How many tasks a worker does at once. Default: 1.",
        ),
        field(
            "system_prompt",
            Text,
            "A file, or text of several lines, that free tasks begin with.",
        ),
        field("spell", Text, "The template that free tasks are put into."),
        field("timeout", Duration { or_none: true }, "How long a free task may take. Default: 1h."),
        field("env", VARIABLES, "Names of the variables that its children get. Default: all."),
        field("next", List(&Name), "The agents it may hand follow-up tasks to. Default: all."),
        field("sandbox", SANDBOX_SHAPE, "What its children may do. Several take away together."),
    ],
)
.rule(Rule::Nullable);

pub(crate) static SANDBOX: Table = Table::new(
    "sandbox",
    "What a child may do.",
    &[
        field("level", OneOf(LEVELS), "Where it may write. Default: none, wherever its user may."),
        field("write", List(&PLACE), "Places that it may write to beside; needs a `level`."),
        field("read", List(&PLACE), "All that it may read beside programs and the workspace."),
        field("network", Bool, "Whether it may use the network. Default: true."),
    ],
);

pub(crate) static QUEUE: Table = Table::new(
    "queue",
    "How the queue is worked.",
    &[
        field("beat_sec", seconds(false), "How often a worker says that it lives. Default: 1."),
        field("lease_sec", seconds(false), "The silence after which it is dead. Default: 30."),
        field(
            "poll_ms",
            Integer(1, DAY_MS),
            "How often inboxes are looked at in use. Default: 100.",
        ),
        field("idle_poll_ms", Integer(1, DAY_MS), "How often otherwise. Default: 2000."),
        field("settle_ms", Integer(0, DAY_MS), "How long a dropped file must be left alone."),
        field(
            "drain_sec",
            seconds(true),
            "How long a worker may finish what it does. Default: 600.",
        ),
        field("crash_limit", Integer(1, COUNT), "How many workers a task may kill. Default: 3."),
        field(
            "follow_up_depth",
            Integer(0, COUNT),
            "How long a chain of tasks may be. Default: 5.",
        ),
        field(
            "follow_up_count",
            Integer(0, COUNT),
            "How many one answer may ask for. Default: 10.",
        ),
        field(
            "task_bytes",
            Integer(1, 1 << 28),
            "The largest file that is a task. Default: 1048576.",
        ),
        field("world_writable", Bool, "Whether an inbox is served that everybody may write to."),
    ],
)
.rule(Rule::Nullable);

pub(crate) static NOTIFY: Table = Table::new(
    "notify",
    "Who is told of runs.",
    &[
        field("on", List(&OneOf(OCCASIONS)), "When."),
        field("command", Some(&Text), "A program that is started, as a list of words."),
        field("webhook", Like("^https?://"), "An address that the notice is posted to."),
        field("timeout", Duration { or_none: false }, "How long it may take. Default: 10s."),
    ],
)
.rule(Rule::Nullable);

pub(crate) static METRICS: Table = Table::new(
    "metrics",
    "Figures that a coordinator writes for a monitor.",
    &[
        field("every", Duration { or_none: true }, "How often. Default: none, never."),
        field("file", Text, "Where to, from the workspace. Default: .orchestrate/metrics.prom."),
    ],
)
.rule(Rule::Nullable);

pub(crate) static LIMITS: Table = Table::new(
    "limits",
    "Limits.",
    &[
        field(
            "max_visits",
            Integer(1, COUNT),
            "How often a step may be visited. Default: 50 in a `goto` cycle that asks an agent, \
             else 10000.",
        ),
        field("grace_sec", seconds(true), "The time between SIGTERM and SIGKILL. Default: 5."),
        field(
            "input_bytes",
            Integer(1, 1 << 40),
            "The largest prompt or schema. Default: 67108864.",
        ),
        field(
            "back_off_sec",
            seconds(false),
            "How long a provider is left alone that does not say how long. Default: 5.",
        ),
        field("back_off_max_sec", seconds(false), "The same at most. Default: 900."),
        field(
            "silent_sec",
            seconds(false),
            "How long codex and opencode may print nothing before they are ended. Default: 900.",
        ),
        field(
            "silent_at_limit_sec",
            seconds(false),
            "The same after a provider said that it met a limit. Default: 60.",
        ),
    ],
)
.rule(Rule::Nullable);

pub(crate) static WORKTREE: Table = Table::new(
    "worktree",
    "Worktrees of beads.",
    &[
        field("base_branch", Text, "Where they begin. Default: the branch that is checked out."),
        field("checks", COMMANDS, CHECKS_IS),
        field("check_timeout", LONG, "How long each of them may take. Default: 30m."),
        field("wait", LONG, "How long whoever works in one is waited for. Default: 1h."),
        field("push", Bool, "Push their branches after each step. Default: false."),
        field("remote_timeout", LONG, "How long a remote may take to answer. Default: 1m."),
    ],
)
.rule(Rule::Nullable);
