//! The `steps:` dialect.

use super::Shape::{
    Any, Argv, Bool, Each, Either, Filled, Integer, Keyed, Like, List, Maybe, Name, OneOf, Scalar,
    Some, Table as Map, Text,
};
use super::settings::{PLACE, SANDBOX_SHAPE};
use super::{NAME, Need, Rule, Table, field, seconds, words};
use crate::agent::Kind;
use crate::workflow::plan::{Isolation, Version};

const VERSIONS: &[&str] = &words(&Version::ALL);
const ADAPTERS: &[&str] = &words(&Kind::ALL);
const ISOLATIONS: &[&str] = &words(&Isolation::ALL);

/// The keys that define the action of a step.
pub(crate) const FORMS: &[&str] = &["command", "provider", "wait_for", "for_each", "spell"];

pub(crate) static TOP: Table = Table::new(
    "steps-workflow",
    "A workflow: steps that go one after the other.",
    &[
        field("version", OneOf(VERSIONS), "The version of the language. In quotes.").required(),
        field("name", Text, "What the workflow is called."),
        field(
            "strict_flow",
            Bool,
            "Whether a failure that nothing handles ends the run. Default: true.",
        ),
        field("context", Maybe(&Each(&Any)), "Values that steps refer to as ${context.KEY}."),
        field(
            "providers",
            Maybe(&Keyed(NAME, &Map(&PROVIDER))),
            "Command lines that answer prompts. They win over those of the settings.",
        ),
        field("inbox_dir", PATH, "Where tasks lie. Default: inbox."),
        field("processed_dir", PATH, "Where tasks go that are done. Default: processed."),
        field("failed_dir", PATH, "Where tasks go that failed. Default: failed."),
        field("task_extension", Like("^\\.[^/]*$"), "How task files end. Default: .task."),
        field("steps", Some(&Map(&STEP)), "The steps, in their order.").required(),
    ],
);

const COMMAND: super::Field = field(
    "command",
    Argv(&Either(&[Text, Some(&Text)])),
    "The argv. ${PROMPT} is the prompt, ${NAME} a parameter. A list in it is a group of arguments \
     that are left out together when a parameter in them has no value.",
);

pub(crate) static PROVIDER: Table =
    Table::new("provider", "A command line that answers prompts.", &[COMMAND.required()])
        .also(&[&OF_COMMAND, &BESIDE_COMMAND]);

/// A provider in the settings: without a `command`, it changes the provider of the same name.
pub(crate) static PROVIDER_SETTING: Table = Table::new(
    "provider-setting",
    "A command line that answers prompts; without a command, what is changed of one that is there.",
    &[COMMAND],
)
.also(&[&OF_COMMAND, &BESIDE_COMMAND]);

/// Fields that describe the command of a provider.
pub(crate) static OF_COMMAND: [super::Field; 2] = [
    field(
        "input_mode",
        OneOf(&["argv", "stdin"]),
        "argv: the prompt is an argument. stdin: it is written to standard input. Default: argv.",
    ),
    field(
        "adapter",
        OneOf(ADAPTERS),
        "How its output is read. plain, the default: what it prints is the answer.",
    ),
];

static BESIDE_COMMAND: [super::Field; 6] = [
    field("defaults", Maybe(&Each(&Any)), "Parameters where a step gives none."),
    field("env", ENV, "Variables that it gets."),
    field(
        "env_pass",
        List(&VARIABLE),
        "Names of variables that it inherits beside the usual ones; X_* is all that begin with X_.",
    ),
    field("sandbox", SANDBOX_SHAPE, "What it may do. Several take away together."),
    field("writes", List(&PLACE), "Places of its own that it writes to, in a sandbox too."),
    field("account", Name, "Whose limits it is under. Default: its own name."),
];

/// A path or a glob pattern inside the workspace.
pub(super) const PATH: super::Shape = Like("^(?!(.*/)?\\.\\.(/|$))[^/]");
const VARIABLE_IS: &str = "^[^=\\u0000]+$";
const VARIABLE: super::Shape = Like(VARIABLE_IS);
pub(super) const ENV: super::Shape = Maybe(&Keyed(VARIABLE_IS, &Text));
pub(super) const SECRETS: super::Shape = List(&VARIABLE);
/// A name that spells can refer to. Not every JSON Schema validator supports Unicode letter
/// classes, so this pattern accepts every character beyond ASCII.
pub(super) const ALIAS: super::Shape = Like(concat!(
    "^[^\\x00-\\x40\\x5b-\\x5e\\x60\\x7b-\\x7f]",
    "[^\\x00-\\x2c\\x2e\\x2f\\x3a-\\x40\\x5b-\\x5e\\x60\\x7b-\\x7f]*$"
));

pub(crate) static STEP: Table = Table::new(
    "step",
    "A step. It does one thing.",
    &[
        field("name", Name, "The name of the step, by which others refer to it.").required(),
        field("agent", Name, "The role that does it: in a fleet, whose inbox it goes to."),
        field("provider", Text, "Ask this provider. The prompt is `input_file`."),
        field("provider_params", Maybe(&Each(&Any)), "Parameters of the provider, such as model."),
        field("command", Argv(&Text), "Run this argv. No shell is in between."),
        field("input_file", PATH, "The file that is the prompt."),
        field("output_file", PATH, "The file that standard output is written to."),
        field(
            "output_capture",
            OneOf(&["text", "lines", "json"]),
            "What is made of standard output: steps.NAME.output, .lines or .json. Default: text.",
        ),
        field(
            "allow_parse_error",
            Bool,
            "Whether output that is no JSON is no failure. Only with `output_capture: json`.",
        ),
        field("output_schema", PATH, "A file with the JSON Schema that the JSON must match.")
            .since(Version::V1_3),
        field("output_require", List(&Map(&REQUIRE)), "What must hold for the JSON.")
            .since(Version::V1_3),
        field("env", ENV, "Variables that the child gets. Values are not looked into."),
        field(
            "secrets",
            SECRETS,
            "Names of variables that must be set, and are masked everywhere.",
        ),
        field("depends_on", Map(&DEPENDS), "Files that must be there."),
        field("wait_for", Map(&WAIT_FOR), "Wait until files are there."),
        field(
            "timeout_sec",
            seconds(false),
            "How long it may take, in seconds. Then it exits 124.",
        ),
        field("retries", Map(&RETRIES), "How often it is tried again after exit code 1 or 124."),
        field("when", Map(&WHEN), "It is skipped unless all of these hold."),
        field("on", Map(&ON), "Where to go afterwards."),
        field("for_each", Map(&FOR_EACH), "Run other steps for each item of a list."),
        field("spell", SPELL, SPELL_IS).since(Version::V1_4),
        field("input", INPUT, "Values that the spell knows.").since(Version::V1_4),
        field("output", ALIAS, "A second name by which spells know the result.")
            .since(Version::V1_4),
        field("contract", CONTRACT, CONTRACT_IS).since(Version::V1_4),
        field("system_prompt", PATH, SYSTEM_PROMPT).since(Version::V1_4),
        field("bead", BEAD, "The work item that it is for: an id or a file.").since(Version::V1_4),
        field("isolation", OneOf(ISOLATIONS), ISOLATION).since(Version::V1_4),
    ],
)
// A provider answers the spell, so a step with `spell` may also name a `provider`.
.rule(Rule::OneOfBeside { keys: FORMS, first: "spell", beside: "provider" })
.needs(&[
    ("output_schema", Need::Word("output_capture", "json")),
    ("output_schema", Need::Off("allow_parse_error")),
    ("output_require", Need::Word("output_capture", "json")),
    ("output_require", Need::Off("allow_parse_error")),
]);

/// A name, or text that contains a line break.
pub(super) const SPELL: super::Shape = Like("\\n|^[A-Za-z0-9][A-Za-z0-9._-]*$");
pub(super) const SPELL_IS: &str =
    "Say this spell to an agent: a name, or the text itself if it has a line break in it.";
/// The name of a bead, which may be a number.
pub(super) const BEAD: super::Shape =
    Either(&[Filled, super::Shape::Number { least: 0.0, itself: true, most: f64::MAX }]);
pub(super) const INPUT: super::Shape = Maybe(&Each(&Any));
pub(super) const CONTRACT: super::Shape = OneOf(&["agent", "none"]);
pub(super) const CONTRACT_IS: &str =
    "agent: the answer must end with how the work went. none: it is text.";
pub(super) const SYSTEM_PROMPT: &str = "default, none, or a file of the workspace.";
pub(super) const ISOLATION: &str =
    "Where the work on a bead is done: a worktree of its own, or the workspace. Default: worktree.";

pub(crate) static REQUIRE: Table = Table::new(
    "output-require",
    "Something that must hold for JSON.",
    &[
        field("pointer", Like("^(/|$)"), "A JSON Pointer: where to look.").required(),
        field("exists", Bool, "Whether something must be there. Default: true."),
        field("equals", Maybe(&Scalar), "What must be there."),
        field(
            "type",
            OneOf(&["string", "number", "boolean", "array", "object", "null"]),
            "What kind of value must be there.",
        ),
    ],
);

pub(crate) static DEPENDS: Table = Table::new(
    "depends-on",
    "Files that a step needs.",
    &[
        field("required", List(&PATH), "Patterns that must match, or the step fails."),
        field("optional", List(&PATH), "Patterns that may match."),
        field(
            "inject",
            Either(&[Bool, Map(&INJECT)]),
            "Whether the prompt is told of them. true: their names come first.",
        )
        .since(Version::V1_1_1),
    ],
);

pub(crate) static INJECT: Table = Table::new(
    "inject",
    "How the prompt is told of the files.",
    &[
        field("mode", OneOf(&["list", "content", "none"]), "Their names, or what is in them."),
        field("instruction", Text, "What is said before them."),
        field(
            "position",
            OneOf(&["prepend", "append"]),
            "Before the prompt or after. Default: prepend.",
        ),
    ],
);

pub(crate) static WAIT_FOR: Table = Table::new(
    "wait-for",
    "Waiting for files.",
    &[
        field("glob", PATH, "The pattern that must match.").required(),
        field("timeout_sec", seconds(true), "How long to wait, in seconds. Default: 300."),
        field("poll_ms", Integer(1, 86_400_000), "How often to look, in ms. Default: 500."),
        field("min_count", Integer(1, 1_000_000), "How many files must be there. Default: 1."),
    ],
);

pub(crate) static RETRIES: Table = Table::new(
    "retries",
    "Trying again.",
    &[
        field("max", Integer(0, 1_000), "How often."),
        field("delay_ms", Integer(0, 86_400_000), "How long to wait before, in ms."),
    ],
);

pub(crate) static WHEN: Table = Table::new(
    "when",
    "When a step is not skipped.",
    &[
        field("equals", Map(&EQUALS), "Both are the same text."),
        field("exists", PATH, "A pattern that matches something."),
        field("not_exists", PATH, "A pattern that matches nothing."),
    ],
)
.rule(Rule::Some);

pub(crate) static EQUALS: Table = Table::new(
    "equals",
    "Two texts that must be the same.",
    &[
        field("left", Scalar, "One side, such as ${steps.NAME.output}.").required(),
        field("right", Scalar, "The other.").required(),
    ],
);

pub(crate) static ON: Table = Table::new(
    "on",
    "Where to go after a step.",
    &[
        field("success", Map(&GOTO), "After exit code 0."),
        field("failure", Map(&GOTO), "After any other, when nothing is left to try."),
        field("always", Map(&GOTO), "After either; it wins over both."),
    ],
);

pub(crate) static GOTO: Table = Table::new(
    "goto",
    "A place to go to.",
    &[field(
        "goto",
        Text,
        "A step of this list or of one around it; _end ends the run successfully.",
    )
    .required()],
);

pub(crate) static FOR_EACH: Table = Table::new(
    "for-each",
    "Steps that are run for each item.",
    &[
        field(
            "items_from",
            Like("^steps\\..+\\.(lines|json(\\..+)?)$"),
            "Where the items are: steps.NAME.lines or steps.NAME.json[.PATH].",
        ),
        field("items", List(&Any), "The items themselves."),
        field(
            "as",
            Like("^(?!(run|loop|steps|context|env|PROMPT)$)[A-Za-z_][A-Za-z0-9_]*$"),
            "What an item is called. Default: item.",
        ),
        field("steps", Some(&Map(&STEP)), "The steps.").required(),
        field("on_item_complete", Map(&ON_ITEM), "Where the file of an item goes that is done.")
            .since(Version::V1_2),
    ],
)
.rule(Rule::OneOf(&["items_from", "items"]));

pub(crate) static ON_ITEM: Table = Table::new(
    "on-item-complete",
    "What becomes of an item's file.",
    &[
        field("success", Map(&MOVE), "After all of its steps."),
        field("failure", Map(&MOVE), "After one that failed."),
    ],
);

pub(crate) static MOVE: Table =
    Table::new("move", "A move.", &[field("move_to", PATH, "The directory it goes to.")]);
