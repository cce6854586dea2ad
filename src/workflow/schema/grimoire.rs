//! The grimoire dialect.

use super::Shape::{
    Any, Bool, Duration, Each, Either, Filled, Integer, Like, List, Maybe, Name, OneOf, Some,
    Table as Map, Text,
};
use super::steps::{ALIAS, CONTRACT, CONTRACT_IS, INPUT, PATH, SPELL, SPELL_IS, SYSTEM_PROMPT};
use super::{Field, Rule, Shape, Table, field};

pub(super) const COMMANDS: Shape = Either(&[Filled, List(&Filled)]);
pub(super) const CHECKS_IS: &str =
    "Shell commands that must succeed in the merged tree before the base moves.";
const LONG: Shape = Duration { or_none: false };

pub(crate) static TOP: Table = Table::new(
    "grimoire",
    "A workflow around spells.",
    &[
        field("name", Filled, "What the grimoire is called.").required(),
        field("description", Text, "For people."),
        field("timeout", LONG, "How long all of it may take, such as 1h30m."),
        field("steps", Some(&Map(&STEP)), "The steps, in their order.").required(),
    ],
);

/// A step in the schema: its `type` selects one of these tables.
static STEP: Table = Table::new("grimoire-step", "A step.", &[]).rule(Rule::ByType(&[
    ("agent", &AGENT),
    ("script", &SCRIPT),
    ("loop", &LOOP),
    ("merge", &MERGE),
]));

/// A name, except the reserved names that spells use for other things.
const STEP_NAME: Shape = Like(concat!(
    "^(?!(attempt|bead|loop|previous|step|task|workflow)$)",
    "(?!.*\\.\\.)[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
));

/// The fields of every step.
static HEAD: [Field; 2] = [
    field("name", STEP_NAME, "The name of the step, by which spells know its result.").required(),
    field("type", OneOf(&["agent", "script", "loop", "merge"]), "What kind of step it is.")
        .required(),
];

const WHEN: Shape =
    Either(&[Text, Bool, Shape::Number { least: f64::MIN, itself: true, most: f64::MAX }]);
const WHEN_IS: &str = "It is skipped unless this comes to true, such as {{.previous.failed}}.";
const ON_FAIL: Shape = OneOf(&["continue", "block"]);
const ON_FAIL_IS: &str = "What follows a failure. Default: block.";
const ON_SUCCESS: Shape = OneOf(&["exit_loop"]);
const ON_SUCCESS_IS: &str = "exit_loop ends the loop around the step.";
const OUTPUT_IS: &str = "A second name by which spells know the result.";

pub(crate) static AGENT: Table = Table::new(
    "agent-step",
    "Say a spell to an agent.",
    &[
        field("spell", SPELL, SPELL_IS).required(),
        field("input", INPUT, "Values that the spell knows."),
        field("output", ALIAS, OUTPUT_IS),
        field("contract", CONTRACT, CONTRACT_IS),
        field("system_prompt", PATH, SYSTEM_PROMPT),
        field("when", WHEN, WHEN_IS),
        field("on_fail", ON_FAIL, ON_FAIL_IS),
        field("on_success", ON_SUCCESS, ON_SUCCESS_IS),
        field("timeout", LONG, "How long it may take. Default: 15m."),
        field("agent", Name, "In a fleet, whose worker does it."),
        field("provider", Text, "Who is asked."),
        field("model", Text, "Which model."),
        field("provider_params", Maybe(&Each(&Any)), "Parameters of the provider, as they are."),
    ],
)
.also(&[&HEAD]);

pub(crate) static SCRIPT: Table = Table::new(
    "script-step",
    "Run a shell command.",
    &[
        field("command", Filled, "What `sh` runs. Values in it are one word each.").required(),
        field("when", WHEN, WHEN_IS),
        field("on_fail", ON_FAIL, ON_FAIL_IS),
        field("on_success", ON_SUCCESS, ON_SUCCESS_IS),
        field("output", ALIAS, OUTPUT_IS),
        field("timeout", LONG, "How long it may take. Default: 5m."),
    ],
)
.also(&[&HEAD]);

pub(crate) static LOOP: Table = Table::new(
    "loop-step",
    "Run steps round after round.",
    &[
        field("steps", Some(&Map(&STEP)), "The steps.").required(),
        field("max_iterations", Integer(1, 10_000), "How many rounds there may be. Default: 10."),
        field(
            "on_max_iterations",
            OneOf(&["block", "continue", "exit"]),
            "What follows the last round that nothing ended; exit fails the run. Default: block.",
        ),
        field("timeout", LONG, "How long all rounds may take."),
    ],
)
.also(&[&HEAD]);

pub(crate) static MERGE: Table = Table::new(
    "merge-step",
    "Merge the branch of the bead.",
    &[
        field("require_review", Bool, "Whether a person is asked first. Default: true."),
        field("checks", COMMANDS, CHECKS_IS),
        field("check_timeout", LONG, "How long each of them may take. Default: 30m."),
    ],
)
.also(&[&HEAD]);
