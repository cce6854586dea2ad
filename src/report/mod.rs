//! The full report of a run: its request, all attempts with their times, prompts and output, its
//! cost, its errors, and the decisions of users. `report` writes it as a page or as JSON.
//!
//! It is built only from files of the run, so secrets that are masked there are masked here.
//!
//! **Invariant:** a report is bounded, regardless of the run's output: it contains excerpts of long
//! texts and the most important of many executions, and it states what is left out and where to
//! find it.

mod gather;
pub(crate) mod html;
pub(crate) mod page;
pub(crate) mod parts;
mod said;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::base::ids::{Attempt, TaskAttempt};
use crate::base::time::Time;
use crate::engine::record::{Spent, TreeRecord};
use crate::engine::{Answer, Request};
use crate::graph::Graph;
use crate::view::excerpt::{Excerpt, Room};
use crate::view::{EventView, Gate, RunSpent, RunView, StepView};
pub(crate) use gather::gather;

/// Limits of a report.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Amount {
    /// Maximum number of steps; loops over items can have any number.
    pub steps: usize,
    /// Maximum number of latest events.
    pub events: usize,
    /// Maximum length of all excerpts together, and of each.
    pub text: usize,
    pub room: Room,
}

impl Amount {
    /// For a document to keep.
    pub(crate) const WHOLE: Amount =
        Amount { steps: 400, events: 1000, text: 12 << 20, room: Room::USUAL };
    /// For a page that is reloaded often.
    pub(crate) const GLANCE: Amount =
        Amount { steps: 150, events: 60, text: 512 << 10, room: Room::LITTLE };
}

/// The report of a run.
#[derive(Serialize)]
pub(crate) struct Report {
    pub generated_at: Time,
    pub version: &'static str,
    /// Name of the workflow, if it has one, and its purpose.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    #[serde(flatten)]
    pub run: RunView,
    /// The author's term for a step.
    pub unit: &'static str,
    /// Explanation of its state, in one sentence.
    pub why: String,
    /// Time of its first event.
    pub began: Time,
    /// From its start to its last event, or to now if it is active or waits.
    pub duration_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<RunSpent>,
    /// Usage of each provider.
    pub providers: Vec<ProviderSpent>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<Request>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub context: Map<String, Value>,
    #[serde(serialize_with = "as_json")]
    pub graph: Graph,
    /// Pending questions to users.
    pub pending: Vec<Gate>,
    /// All questions to users, with their answers.
    pub gates: Vec<GateReport>,
    pub counts: Counts,
    pub steps: Vec<StepReport>,
    /// Number of steps that are omitted because there are too many.
    pub steps_left_out: usize,
    pub events: Vec<EventView>,
    pub events_left_out: usize,
    /// The run's copy of the workflow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workflow: Option<Excerpt>,
}

/// Totals of a run, including omitted parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Counts {
    /// Number of top-level steps, without items and rounds.
    pub steps: usize,
    /// Number of those that have ended.
    pub settled: usize,
    /// Number of all executions, including items and rounds.
    pub executions: usize,
}

fn as_json<S: serde::Serializer>(graph: &Graph, to: S) -> Result<S::Ok, S::Error> {
    graph.to_json().serialize(to)
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ProviderSpent {
    pub provider: String,
    #[serde(flatten)]
    pub spent: RunSpent,
}

/// A step and all its executions.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct StepReport {
    /// The board's view, without its error and last output: this report has both in full.
    #[serde(flatten)]
    pub view: StepView,
    /// Its kind, in the author's terms.
    pub kind: &'static str,
    /// Maximum number of rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_rounds: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorReport>,
    /// The prompt or command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked: Option<Asked>,
    /// The value of a reference to it.
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
pub(crate) struct ErrorReport {
    pub message: String,
    /// The last lines of output before it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tail: Vec<String>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub context: Map<String, Value>,
}

/// The prompt or command of a step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Asked {
    /// `prompt`, `script`, `command`, `question`, `files` or `reason`.
    pub what: &'static str,
    /// True if it is the text that was sent; false if it is the author's text, with placeholders.
    pub as_sent: bool,
    #[serde(flatten)]
    pub text: Excerpt,
}

/// Output of a step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct LogReport {
    pub stream: &'static str,
    pub attempt: Attempt,
    /// True if it is the text in an agent's events; false for the raw output.
    pub readable: bool,
    #[serde(flatten)]
    pub text: Excerpt,
}

/// One execution.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct AttemptReport {
    pub attempt: Attempt,
    /// Number of the execution within the attempt, from 1.
    pub execution: TaskAttempt,
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

/// Result of an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AttemptOutcome {
    Completed,
    Failed,
    /// It started and never ended: its executor was stopped or died.
    Interrupted,
    Running,
    /// It waits for a user's answer.
    Asking,
    /// A user has answered.
    Answered,
}

impl AttemptOutcome {
    pub(crate) fn word(self) -> &'static str {
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
pub(crate) struct GateReport {
    pub step: String,
    pub attempt: Attempt,
    pub asked_at: Time,
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answered_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<Answer>,
}
