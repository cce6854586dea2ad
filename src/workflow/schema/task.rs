//! The front matter of a task.

use super::Shape::{Duration, Either, Filled, Integer, List, Name, OneOf, Table as Map};
use super::{Rule, Table, field};

pub(crate) static HEAD: Table = Table::new(
    "task-head",
    "The front matter of a task, between two lines of `---`.",
    &[
        field("title", Filled, "What it is called."),
        field("provider", Filled, "Who is asked. Default: the agent's provider."),
        field("model", Filled, "Which model."),
        field("priority", Integer(0, 9), "0 is the most urgent, 9 the least. Default: 5."),
        field("timeout", Duration { or_none: false }, "How long it may take, such as 15m."),
        field("spell", super::steps::SPELL, "The template that the text is put into."),
        field(
            "bead",
            Either(&[super::steps::BEAD, Map(&BEAD)]),
            "The work item: an id, a file, or itself.",
        ),
        field("isolation", OneOf(&["worktree", "workspace"]), "Where the bead is worked on."),
        field("next", Either(&[Name, List(&Name)]), "The agents that go on with it, in order."),
    ],
)
.rule(Rule::Nullable);

static BEAD: Table = Table::new(
    "bead",
    "A work item.",
    &[field("id", super::steps::BEAD, "What it is called.").required()],
)
.rule(Rule::Open);
