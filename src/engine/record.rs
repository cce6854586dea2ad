//! What is known of one step's latest execution, in the shape `state.json` shows it.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::ids::Attempt;
use crate::prompt::limits::FaultClass;
use crate::provider::Usage;
use crate::time::Time;
use crate::workflow::plan::{CaptureMode, present};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StepStatus {
    #[default]
    Pending,
    Running,
    Completed,
    Failed,
    Skipped,
    /// It waits for a person.
    Paused,
}

/// Why a step was skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SkipCause {
    /// Its condition did not hold, or could not be read.
    Condition,
    /// A step before it was skipped.
    UpstreamSkipped,
    /// A step before it failed, or was skipped because of a failure.
    UpstreamFailed,
}

/// A step's result. Fields that do not apply are absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    pub status: StepStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none", serialize_with = "to_second")]
    pub started_at: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none", serialize_with = "to_second")]
    pub completed_at: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attempt: Attempt,
    /// How often the attempt was taken up by workers, where that was more than once.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub executions: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_capture: Option<CaptureMode>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lines: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub json: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub truncated: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_duration_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub poll_count: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timed_out: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Fault>,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub debug: Map<String, Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Metrics>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skip_cause: Option<SkipCause>,
    /// What should be known about it although it is no failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
    /// Where the whole output is, when it is too long for a record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole: Option<Whole>,
    /// Whether the answer said that a loop is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_met: Option<bool>,
    /// How often it was asked again for an answer in the right form.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub asked_again: u32,
    /// What a person is asked, and what they said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<Box<GateRecord>>,
    /// The worktree that it worked in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worktree: Option<Box<TreeRecord>>,
    /// A digest of what those before it gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inputs: Option<String>,
    /// What asking a provider cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Box<Spent>>,
    /// What earlier attempts cost, those of earlier visits included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spent_before: Option<Box<Usage>>,
    /// The task that the attempt went out as, in a fleet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskRef>,
}

/// Output in a file of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Whole {
    /// Relative to the run's directory.
    pub path: String,
    pub bytes: u64,
    pub sha256: String,
}

/// The worktree that a step worked in, as it was after it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeRecord {
    pub path: String,
    /// What stands for the workspace in it, where that is not its top.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    pub branch: String,
    pub base_branch: String,
    pub base_commit: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<String>,
    /// Something is in it that no commit has.
    #[serde(default)]
    pub dirty: bool,
    /// The commit that keeps what the step did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<String>,
}

/// A person is asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GateRecord {
    pub message: String,
    /// A digest of this asking and what is shown to the person: an answer to something else, or to
    /// the same question when it was asked before, does not count.
    pub shown: String,
    /// What an approval stays good for, where that outlives the asking: the digest of a change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Answer>,
}

impl GateRecord {
    /// What is asked about, by its digest.
    pub fn subject(&self) -> &str {
        self.subject.as_deref().unwrap_or(&self.shown)
    }
}

/// What a person said.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    pub approve: bool,
    #[serde(default)]
    pub comment: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// A task, as a run refers to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskRef {
    pub id: String,
    pub agent: String,
    /// What a status must carry to count.
    pub ticket: String,
}

/// Documents tell times to the second, as `jq` reads them; `duration_ms` tells the rest.
pub fn to_second<S: serde::Serializer>(time: &Option<Time>, to: S) -> Result<S::Ok, S::Error> {
    time.map(Time::to_second).serialize(to)
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// What an execution cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Metrics {
    /// Time spent in the child alone.
    pub exec_ms: u64,
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
}

/// What asking a provider cost, as far as it says. What is absent is not known.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spent {
    pub provider: String,
    /// The conversation, as the provider calls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    #[serde(flatten, deserialize_with = "crate::json::flattened")]
    pub usage: Usage,
}

/// Why a step failed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    pub message: String,
    pub exit_code: i32,
    #[serde(default)]
    pub stdout_tail: Vec<String>,
    #[serde(default)]
    pub stderr_tail: Vec<String>,
    #[serde(default)]
    pub context: Map<String, Value>,
    /// Whether it may pass by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<FaultClass>,
    /// When it will have passed, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<Time>,
    /// The answer had the wrong form; the agent is told what is wrong and asked again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ask_again: bool,
}

impl Fault {
    /// What a spell that is at fault leaves its place under, in the context.
    pub const SPELL: &str = "spell";

    /// Whether a text of the run's own is at fault, which stays as it was when the run began.
    pub fn is_of_spell(&self) -> bool {
        self.context.contains_key(Fault::SPELL)
    }
}

impl Record {
    /// A failure found before anything was started.
    pub fn refused(
        exit_code: i32,
        message: impl Into<String>,
        context: Map<String, Value>,
    ) -> Self {
        Record {
            status: StepStatus::Failed,
            exit_code: Some(exit_code),
            error: Some(Fault { message: message.into(), exit_code, context, ..Fault::default() }),
            ..Record::default()
        }
    }

    /// What all attempts so far have cost, or nothing if none asked a provider.
    pub fn spent(&self) -> Option<Usage> {
        let mut sum = self.spent_before.as_deref().cloned();
        if let Some(spent) = &self.usage {
            spent.usage.add_to(&mut sum);
        }
        sum
    }

    pub fn skipped(at: Time, cause: Option<SkipCause>, warning: Option<String>) -> Self {
        Record {
            status: StepStatus::Skipped,
            exit_code: Some(0),
            completed_at: Some(at),
            skip_cause: cause,
            warning,
            ..Record::default()
        }
    }
}
