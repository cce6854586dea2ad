//! Documents that programs write and other programs read: tasks in an inbox, and statuses.
//!
//! Unknown keys are allowed, so that additions are compatible.

use super::Shape::{
    Any, Bool, Each, Either, Filled, Integer, Like, List, Maybe, Name, OneOf, Table as Map, Text,
};
use super::{Rule, Shape, Table, field};

const TIME: Shape = Like("^\\d{4}-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\d(\\.\\d+)?Z$");
const NUMBER: u64 = u32::MAX as u64;

pub(crate) static TASK: Table = Table::new(
    "task",
    "task/v1: what lies in an inbox, as the queue writes it.",
    &[
        field("schema", OneOf(&["task/v1"]), "What this is.").required(),
        field(
            "kind",
            OneOf(&["free", "step", "run"]),
            "Text that somebody dropped, an attempt at a step, or a run for a coordinator.",
        )
        .required(),
        field("id", Filled, "26 characters that sort by time.").required(),
        field("agent", Name, "Whose inbox it is for.").required(),
        field("created_at", TIME, "When it was made.").required(),
        field("ticket", Filled, "What a status must carry to be of this task."),
        field("batch", Filled, "The directory that it ends in."),
        field("crash_limit", Integer(1, NUMBER), "How many workers may die over it."),
        field("seal", Like("^[0-9a-f]{64}$"), "The SHA-256 of all before it."),
        field("text", Text, "free: what is to be done."),
        field("title", Text, "free: what it is called."),
        field("provider", Text, "free: who is asked."),
        field("model", Text, "free: which model."),
        field("priority", Integer(0, 9), "free: 0 is the most urgent."),
        field("timeout_ms", Integer(0, u64::MAX), "free: how long it may take."),
        field("spell", Text, "free: the template that the text is put into."),
        field("bead", Any, "free: the work item."),
        field("next", List(&Name), "free: the agents that go on with it."),
        field("depth", Integer(0, NUMBER), "free: how many tasks it follows from."),
        field("source", Text, "free: the name of the file that it was."),
        field("after", Text, "free: the id of the task that it follows."),
        field("origin", Text, "free: what the first of the chain said."),
        field("run_id", Filled, "step, run: the run."),
        field("run_root", Filled, "step, run: where the run is kept."),
        field("step", Filled, "step: the path of the step."),
        field("step_attempt", Integer(1, NUMBER), "step: the number of the attempt."),
        field("debug", Bool, "step: whether more is kept."),
        field("masked", List(&Text), "step: names of all secrets of the workflow."),
        field("work", Each(&Any), "step: what is to be executed."),
    ],
)
.rule(Rule::Open);

pub(crate) static STATUS: Table = Table::new(
    "status",
    "status/v1: how work went. Workers and agents leave it.",
    &[
        field("schema", OneOf(&["status/v1"]), "What this is.").required(),
        field("success", Bool, "Whether it went well.").required(),
        field("agent", Name, "Whose work it was."),
        field("correlation_id", Maybe(&Text), "What it belongs to: the run, or the task."),
        field("run_id", Maybe(&Text), "The run."),
        field("step", Maybe(&Text), "The step."),
        field("step_attempt", Integer(1, NUMBER), "The number of the attempt at the step."),
        field("title", Maybe(&Text), "What the task is called."),
        field("timestamp", TIME, "When it ended."),
        field("started_at", TIME, "When it began."),
        field(
            "exit_code",
            Either(&[Shape::Number { least: -255.0, itself: true, most: 255.0 }]),
            "How it exited.",
        ),
        field(
            "outputs",
            Either(&[List(&Text), Each(&Any)]),
            "Files that it made, relative to the workspace.",
        ),
        field("metrics", Maybe(&Each(&Any)), "What was counted."),
        field("next_actions", List(&Map(&NEXT)), "Work that should follow."),
        field("message", Text, "How it went, for people."),
        field("error", Maybe(&Map(&ERROR)), "What went wrong."),
        field("task_id", Text, "The task."),
        field("attempt", Integer(1, NUMBER), "The number of the claim."),
        field("ticket", Maybe(&Text), "Proof that it is of this task."),
        field("worker", Text, "Who did it."),
        field("usage", Maybe(&Each(&Any)), "What was spent."),
        field("session", Maybe(&Text), "The conversation that it was."),
        field("record", Each(&Any), "What the run goes on from."),
        field("worktree", Any, "The worktree that it was done in."),
    ],
)
.rule(Rule::Open);

static NEXT: Table = Table::new(
    "next-action",
    "Work that should follow.",
    &[
        field("agent", Name, "Who should do it.").required(),
        field("file", Text, "The file that says what."),
        field("task", Text, "What is to be done."),
    ],
)
.rule(Rule::Open);

static ERROR: Table = Table::new(
    "error",
    "What went wrong.",
    &[field("reason", Text, "In one word."), field("message", Text, "In a sentence.")],
)
.rule(Rule::Open);
