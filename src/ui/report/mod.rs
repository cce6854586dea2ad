//! A run, told whole: what was to be done, what was tried and when, what was said and printed, what
//! it cost, what went wrong, and who decided what. `report` writes it down, as a page or as JSON.
//!
//! It is made of the files of the run alone, so what is masked there is masked here.
//!
//! **Invariant:** a report is bounded, whatever a run has printed: of long texts it has excerpts,
//! of many executions those that matter, and it says what it leaves out and where that is.

pub mod excerpt;
mod gather;
mod said;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::engine::record::{Spent, TreeRecord};
use crate::engine::{Answer, Request};
use crate::ids::Attempt;
use crate::time::Time;
use crate::ui::board::{EventView, Gate, RunSpent, RunView, StepView};
use crate::ui::graph::Graph;
use excerpt::{Excerpt, Room};
pub use gather::gather;

/// How much is told.
#[derive(Clone, Copy, Debug)]
pub struct Amount {
    /// How many steps; of loops over many items there may be any number.
    pub steps: usize,
    /// How many of the latest events.
    pub events: usize,
    /// How much text all excerpts have together, and each of them.
    pub text: usize,
    pub room: Room,
}

impl Amount {
    /// For a document that is kept.
    pub const WHOLE: Amount =
        Amount { steps: 400, events: 1000, text: 12 << 20, room: Room::USUAL };
    /// For a page that is loaded again and again.
    pub const GLANCE: Amount =
        Amount { steps: 150, events: 60, text: 512 << 10, room: Room::LITTLE };
}

/// Everything that is told of a run.
#[derive(Serialize)]
pub struct Report {
    pub generated_at: Time,
    pub version: &'static str,
    /// The name of the workflow, if it has one, and what it is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    #[serde(flatten)]
    pub run: RunView,
    /// What the author calls a step.
    pub unit: &'static str,
    /// Why it is where it is, in a sentence.
    pub why: String,
    /// The moment of its first event.
    pub began: Time,
    /// From its beginning to its last event, or to now if it waits or goes on.
    pub duration_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<RunSpent>,
    /// What each provider has cost.
    pub providers: Vec<ProviderSpent>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<Request>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub context: Map<String, Value>,
    #[serde(serialize_with = "as_json")]
    pub graph: Graph,
    /// What people are asked now.
    pub pending: Vec<Gate>,
    /// What people were asked, and what they said.
    pub gates: Vec<GateReport>,
    pub counts: Counts,
    pub steps: Vec<StepReport>,
    /// How many steps are not told, because there are too many.
    pub steps_left_out: usize,
    pub events: Vec<EventView>,
    pub events_left_out: usize,
    /// The workflow as the run froze it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workflow: Option<Excerpt>,
}

/// How much there is of a run, whether it is told or left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// The steps of the workflow itself: items and rounds come as they come.
    pub steps: usize,
    /// Those of them that are over.
    pub settled: usize,
    /// Everything that was tried, in items and rounds too.
    pub executions: usize,
}

fn as_json<S: serde::Serializer>(graph: &Graph, to: S) -> Result<S::Ok, S::Error> {
    graph.to_json().serialize(to)
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProviderSpent {
    pub provider: String,
    #[serde(flatten)]
    pub spent: RunSpent,
}

/// A step and everything that was tried of it.
#[derive(Clone, Debug, Serialize)]
pub struct StepReport {
    /// As the board shows it, without its error and what it said last: there is more of both here.
    #[serde(flatten)]
    pub view: StepView,
    /// What it is, in the word of its author.
    pub kind: &'static str,
    /// How many rounds there may be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_rounds: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorReport>,
    /// What was to be said or run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked: Option<Asked>,
    /// What a reference to it gives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<Excerpt>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub logs: Vec<LogReport>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worktree: Option<TreeRecord>,
    pub attempts: Vec<AttemptReport>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ErrorReport {
    pub message: String,
    /// The last lines that were printed before it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tail: Vec<String>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub context: Map<String, Value>,
}

/// What a step was to say, or to run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Asked {
    /// `prompt`, `script`, `command`, `question` or `files`.
    pub what: &'static str,
    /// Whether it is what was sent, or what the author wrote, with names in place of values.
    pub as_sent: bool,
    #[serde(flatten)]
    pub text: Excerpt,
}

/// What a step printed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LogReport {
    pub stream: &'static str,
    pub attempt: Attempt,
    /// Whether it is what an agent's events say, rather than the events.
    pub readable: bool,
    #[serde(flatten)]
    pub text: Excerpt,
}

/// One execution.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AttemptReport {
    pub attempt: Attempt,
    /// Which of the executions of the attempt, from 1.
    pub execution: u32,
    pub outcome: AttemptOutcome,
    pub started_at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Spent>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What came of an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AttemptOutcome {
    Completed,
    Failed,
    /// It was begun and never ended: whoever executed it was stopped or died.
    Interrupted,
    Running,
    /// A person is asked.
    Asking,
    /// A person was asked, and has answered.
    Answered,
}

impl AttemptOutcome {
    pub fn word(self) -> &'static str {
        match self {
            AttemptOutcome::Completed => "completed",
            AttemptOutcome::Failed => "failed",
            AttemptOutcome::Interrupted => "interrupted",
            AttemptOutcome::Running => "running",
            AttemptOutcome::Asking => "asking",
            AttemptOutcome::Answered => "answered",
        }
    }
}

/// A question and its answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GateReport {
    pub step: String,
    pub attempt: Attempt,
    pub asked_at: Time,
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answered_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<Answer>,
}
