//! Fields of one dialect that appear in a file of another: the dialect they belong to, and their
//! replacement.

use super::schema::{Table, grimoire, nodes, steps};

/// A file format that the author may have in mind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Steps,
    Nodes,
    Grimoire,
    /// A format that orchestrate does not support.
    Ci,
}

impl Format {
    const ALL: [Format; 4] = [Format::Steps, Format::Nodes, Format::Grimoire, Format::Ci];

    /// Returns the dialect's description for messages.
    fn name(self) -> &'static str {
        match self {
            Format::Steps => "workflows of `steps:`",
            Format::Nodes => "workflows of `nodes:`",
            Format::Grimoire => "grimoires",
            Format::Ci => "CI services such as GitHub Actions",
        }
    }

    fn has(self, top: bool, name: &str) -> bool {
        let any = |tables: &[&Table]| tables.iter().any(|table| table.field(name).is_some());
        match (self, top) {
            (Format::Steps, true) => any(&[&steps::TOP]),
            (Format::Steps, false) => any(&[&steps::STEP]),
            (Format::Nodes, true) => any(&[&nodes::TOP]),
            (Format::Nodes, false) => any(&[nodes::node()]),
            (Format::Grimoire, true) => any(&[&grimoire::TOP]),
            (Format::Grimoire, false) => {
                any(&[&grimoire::AGENT, &grimoire::SCRIPT, &grimoire::LOOP, &grimoire::MERGE])
            }
            (Format::Ci, true) => ["jobs", "on", "permissions", "stages"].contains(&name),
            (Format::Ci, false) => CI_STEP.contains(&name),
        }
    }

    /// Returns the text to write in this dialect for a field of another dialect.
    fn instead(self, name: &str) -> Option<&'static str> {
        let list: &[(&str, &str)] = match self {
            Format::Steps => &STEPS_INSTEAD,
            Format::Nodes => &NODES_INSTEAD,
            Format::Grimoire => &GRIMOIRE_INSTEAD,
            Format::Ci => &[],
        };
        list.iter().find(|(field, _)| *field == name).map(|(_, instead)| *instead)
    }
}

const CI_STEP: [&str; 10] = [
    "run",
    "uses",
    "with",
    "if",
    "needs",
    "shell",
    "runs-on",
    "working-directory",
    "continue-on-error",
    "timeout-minutes",
];

const STEPS_INSTEAD: [(&str, &str); 14] = [
    ("prompt", "here a step with a `provider` names the file of its prompt: `input_file`"),
    ("run", "here it is `command: [\"bash\", \"-c\", \"…\"]`"),
    ("bash", "here it is `command: [\"bash\", \"-c\", \"…\"]`"),
    ("script", "here it is `command`, a list of text"),
    ("id", "here it is `name`"),
    ("if", "here it is `when`"),
    ("needs", "steps run in the order of the file"),
    ("retry", "here it is `retries`"),
    ("timeout", "here it is `timeout_sec`"),
    ("timeout-minutes", "here it is `timeout_sec`"),
    ("model", "here it is `provider_params: { model: … }`"),
    ("loop", "here it is `for_each`, or `on: { … goto }`"),
    ("type", "a grimoire has no `version`: remove that, and all steps have a `type`"),
    ("description", "write a comment, `# …`"),
];

const NODES_INSTEAD: [(&str, &str); 7] = [
    ("run", "here it is `bash`"),
    ("name", "here it is `id`"),
    ("input_file", "here it is `prompt`, or `command` for a prompt in a file"),
    ("for_each", "here it is `loop`"),
    ("on", "here it is `depends_on` with `trigger_rule` and `when`"),
    ("uses", "here it is `command` or `bash`"),
    ("type", "here a node is what its key says: `prompt`, `bash`, `script`, …"),
];

const GRIMOIRE_INSTEAD: [(&str, &str); 14] = [
    ("version", "a grimoire has none: remove it"),
    ("run", "here it is `type: script` with a `command`"),
    ("bash", "here it is `type: script` with a `command`"),
    ("script", "here it is `type: script` with a `command`"),
    ("prompt", "here it is `type: agent` with a `spell`"),
    ("input_file", "here it is `type: agent` with a `spell`"),
    ("id", "here it is `name`"),
    ("if", "here it is `when`"),
    ("needs", "steps run in the order of the file"),
    ("depends_on", "steps run in the order of the file"),
    ("timeout_sec", "here it is `timeout`, such as `15m`"),
    ("for_each", "here it is `type: loop` with `steps`"),
    ("on", "here it is `on_fail` and `on_success`"),
    ("providers", "the settings have them"),
];

/// Returns a message that names the other dialects with this field, and its replacement in this
/// dialect. `top` is true for a field at the top of the file, false for a field of a step.
pub(super) fn foreign(own: Format, top: bool, name: &str) -> Option<String> {
    let others = Format::ALL.into_iter().filter(|other| *other != own && other.has(top, name));
    let others: Vec<_> = others.map(Format::name).collect();
    if others.is_empty() {
        return None;
    }
    let belongs = format!("`{name}` belongs to {}", others.join(" and "));
    Some(match own.instead(name) {
        Some(instead) => format!("{belongs}; {instead}"),
        None => belongs,
    })
}

/// Returns true if a field defines the action of a step in a dialect other than `steps:`.
pub(super) fn does_something(name: &str) -> bool {
    ["prompt", "bash", "run", "script", "loop", "uses", "type", "approval"].contains(&name)
}
