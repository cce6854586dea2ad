//! The `nodes:` dialect.

use super::Shape::{
    Any, Bool, Each, Filled, Integer, Keyed, Like, List, Name, OneOf, Some, Table as Map, Text,
};
use super::steps::{
    ALIAS, BEAD, CONTRACT, CONTRACT_IS, ENV, INPUT, ISOLATION, PATH, SECRETS, SPELL, SPELL_IS,
    SYSTEM_PROMPT,
};
use super::{Field, MILLIS, Need, Rule, Shape, Table, field, words};
use crate::workflow::nodes::keys::Mode;
use crate::workflow::plan::{Isolation, JoinRule};

const RULES: &[&str] = &words(&JoinRule::ALL);
const MODES: &[&str] = &words(&Mode::ALL);
const ISOLATIONS: &[&str] = &words(&Isolation::ALL);
const ELSEWHERE: &str =
    "Means something to other programs that read this language. No effect here.";

/// Regular expression of a valid id, equivalent to [`crate::base::ids::step_fault`].
const ID: &str = "^(?!.*\\.\\.)[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$";

/// A file name without a directory.
const FILE: Shape = Like("^(?!\\.)(?=.*\\S)(?!.*\\.\\.)[^/\\\\]+$");

pub(crate) static TOP: Table = Table::new(
    "nodes-workflow",
    "A workflow: nodes that are a graph.",
    &[
        field("name", Filled, "What the workflow is called.").required(),
        field("description", Filled, "What it does, and when to use it.").required(),
        field("nodes", Some(&Map(&NODE)), "The nodes.").required(),
        field("provider", Filled, "Who is asked where a node names nobody."),
        field("model", Filled, "The model where a node names none, for the same provider."),
        field("interactive", Any, "Whether people are asked while it runs."),
        field(
            "mutates_checkout",
            Any,
            "false: a second run may go on in the same checkout at the same time.",
        ),
        field("tags", Any, "Words for people."),
        field("sandbox", Each(&Any), "The agent's own sandbox where a node sets none."),
    ],
)
.also(&[&TOP_IDLE]);

/// Keys of the top level that only other engines support.
pub(crate) static TOP_IDLE: [Field; 14] = [
    field("worktree", Any, ELSEWHERE),
    field("container", Any, ELSEWHERE),
    field("evidence_policy", Any, ELSEWHERE),
    field("requires", Any, ELSEWHERE),
    field("inputs", Any, ELSEWHERE),
    field("returns", Any, ELSEWHERE),
    field("outcome_field", Any, ELSEWHERE),
    field("effort", Any, ELSEWHERE),
    field("modelReasoningEffort", Any, ELSEWHERE),
    field("webSearchMode", Any, ELSEWHERE),
    field("thinking", Any, ELSEWHERE),
    field("fallbackModel", Any, ELSEWHERE),
    field("betas", Any, ELSEWHERE),
    field("persist_sessions", Any, ELSEWHERE),
];

/// A node in the schema, including the fields of scripts and the fields that only other engines
/// support.
static NODE: Table = Table::new("node", "A node. It does one thing.", &NODE_FIELDS)
    .also(&[&SCRIPT, &NODE_IDLE])
    .rule(Rule::OneOf(MODES))
    .needs(&[("script", Need::Key("runtime"))]);

/// Returns the table of a node.
pub(crate) fn node() -> &'static Table {
    &NODE
}

pub(crate) static NODE_FIELDS: [Field; 38] = [
    field("id", Like(ID), "The name of the node, by which others refer to it.").required(),
    field("description", Text, "For people."),
    field("depends_on", List(&Text), "Ids of the nodes that it waits for."),
    field("when", Text, "A condition, such as: $check.output.kind == 'bug'. Else it is skipped."),
    field(
        "trigger_rule",
        OneOf(RULES),
        "How what it waits for must have ended. Default: all_success.",
    ),
    field("retry", Map(&RETRY), "How often it is tried again. Agents: twice by default."),
    field(
        "timeout",
        MILLIS,
        "Milliseconds for one try. Of a loop: for each round. Of an approval: how long the \
         question stays open. Scripts: 120000 by default.",
    ),
    field("idle_timeout", MILLIS, "Milliseconds that an agent may be silent. Default: 1800000."),
    field("output_type", Filled, "A kind, such as plan: the output is also kept as an artifact."),
    field(
        "always_run",
        Bool,
        "Whether `resume` executes it again even if it had completed. Default: false.",
    ),
    field("output_format", Each(&Any), "A JSON Schema of the answer, which must be an object."),
    field("provider", Filled, "Who is asked."),
    field("model", Filled, "Which model."),
    field(
        "context",
        OneOf(&["fresh", "shared"]),
        "fresh: a conversation of its own. Default: shared.",
    ),
    field(
        "allowed_tools",
        List(&Like("^[^\\s,()]+$")),
        "The built-in tools that the agent has; an empty list: none. Default: all.",
    ),
    field("denied_tools", List(&Filled), "Tools, or uses of tools, that the agent may not have."),
    field(
        "hooks",
        Keyed(HOOK_EVENT, &List(&Map(&HOOK))),
        "What the agent is answered when it does something, by the name of the event.",
    ),
    field("sandbox", Each(&Any), "The agent's own sandbox, as in its settings."),
    field("mcp", Filled, "A JSON file in the workspace that lists the MCP servers of the agent."),
    field("skills", List(&Filled), "Skills of the agent, by their names."),
    field("maxBudgetUsd", USD, "How much money one execution may cost."),
    field("agent", Name, "In a fleet, whose inbox it goes to."),
    field("env", ENV, "Variables that the child gets."),
    field("secrets", SECRETS, "Names of variables that must be set, and are masked everywhere."),
    field("command", FILE, "Say what is in the command file of this name."),
    field("prompt", Filled, "Say this to an agent. $id.output is what another node gave."),
    field(
        "bash",
        Filled,
        "Run this script. $id.output is one quoted word: write it without quotes.",
    ),
    field("script", Filled, "Run this script, or the one of this name, with `runtime`."),
    field("loop", Map(&LOOP), "Ask an agent until it is done."),
    field("approval", Map(&APPROVAL), "Ask a person."),
    field("cancel", Filled, "End the run as cancelled, for this reason."),
    field("spell", SPELL, SPELL_IS),
    field("input", INPUT, "Values that the spell knows."),
    field("output", ALIAS, "A second name by which spells know the result."),
    field("contract", CONTRACT, CONTRACT_IS),
    field("system_prompt", PATH, SYSTEM_PROMPT),
    field("bead", BEAD, "The work item that it is for: an id or a file."),
    field("isolation", OneOf(ISOLATIONS), ISOLATION),
];

/// Keys of a node that only other engines support.
pub(crate) static NODE_IDLE: [Field; 9] = [
    field("agents", Any, ELSEWHERE),
    field("effort", Any, ELSEWHERE),
    field("thinking", Any, ELSEWHERE),
    field("systemPrompt", Any, ELSEWHERE),
    field("fallbackModel", Any, ELSEWHERE),
    field("settingSources", Any, ELSEWHERE),
    field("betas", Any, ELSEWHERE),
    field("persist_session", Any, ELSEWHERE),
    field("pi", Any, ELSEWHERE),
];

/// Fields of a `script` node.
pub(crate) static SCRIPT: [Field; 2] = [
    field("runtime", OneOf(&["bun", "uv"]), "What runs the `script`."),
    field("deps", List(&Filled), "Packages that the `script` needs."),
];

pub(crate) static LOOP: Table = Table::new(
    "loop",
    "Rounds of a prompt.",
    &[
        field("prompt", Filled, "What is said in each round.").required(),
        field(
            "until",
            Filled,
            "The sign that ends it, in an answer or in a pair of tags: <promise>DONE</promise>.",
        )
        .required(),
        field("max_iterations", Integer(1, u32::MAX as u64), "How many rounds there may be.")
            .required(),
        field("fresh_context", Bool, "Whether each round has a conversation of its own."),
        field("interactive", Bool, "Whether a person is asked after each round but the last."),
        field("gate_message", Filled, "What the person is asked."),
        field(
            "until_bash",
            Filled,
            "A script after a round without the sign: exit code 0 means done.",
        ),
        field("strict", Bool, "Whether the sign counts only in tags, alone on a line, or last."),
    ],
);

pub(crate) static APPROVAL: Table = Table::new(
    "approval",
    "A question to a person.",
    &[
        field("message", Filled, "What the person is asked.").required(),
        field("capture_response", Bool, "Whether the comment is the output. Default: false."),
        field("on_reject", Map(&ON_REJECT), "What is said to an agent after a rejection."),
    ],
);

pub(crate) static ON_REJECT: Table = Table::new(
    "on-reject",
    "What follows a rejection.",
    &[
        field("prompt", Filled, "What is said. $REJECTION_REASON is why.").required(),
        field("max_attempts", Integer(1, 10), "The rejection that cancels the run. Default: 3."),
    ],
);

/// The events that `hooks` can have.
pub(crate) const HOOK_EVENTS: [&str; 13] = [
    "PreToolUse",
    "PostToolUse",
    "PostToolUseFailure",
    "PermissionRequest",
    "Notification",
    "UserPromptSubmit",
    "SessionStart",
    "SessionEnd",
    "Stop",
    "SubagentStart",
    "SubagentStop",
    "PreCompact",
    "Setup",
];
const HOOK_EVENT: &str = "^(PreToolUse|PostToolUse|PostToolUseFailure|PermissionRequest|\
     Notification|UserPromptSubmit|SessionStart|SessionEnd|Stop|SubagentStart|SubagentStop|\
     PreCompact|Setup)$";

const USD: Shape = Shape::Number { least: 0.0, itself: false, most: f64::MAX };

pub(crate) static HOOK: Table = Table::new(
    "hook",
    "A fixed answer to what the agent does.",
    &[
        field("matcher", Text, "The names of tools that it is for, as a regular expression."),
        field("response", Each(&Any), "What is answered.").required(),
        field("timeout", Integer(1, 3_600), "How long the answer may take, in seconds."),
    ],
);

pub(crate) static RETRY: Table = Table::new(
    "retry",
    "Trying again.",
    &[
        field("max_attempts", Integer(1, 5), "How often.").required(),
        field("delay_ms", Integer(1_000, 60_000), "How long to wait before, in ms. Default: 3000."),
        field(
            "on_error",
            OneOf(&["transient", "all"]),
            "After which failures. Default: transient.",
        ),
    ],
);
