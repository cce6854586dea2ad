//! The record of a step's latest execution, in the format of `state.json`.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::agent::Usage;
use crate::agent::faults::FaultClass;
use crate::base::ids::{Attempt, TaskAttempt};
use crate::base::time::Time;
use crate::workflow::plan::{CaptureMode, present};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StepStatus {
    #[default]
    Pending,
    Running,
    Completed,
    Failed,
    Skipped,
    /// Waits for a user.
    Paused,
}

/// The reason why a step was skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SkipCause {
    /// The step's condition was false or could not be evaluated.
    Condition,
    /// An upstream step was skipped.
    UpstreamSkipped,
    /// An upstream step failed, or was skipped because of a failure.
    UpstreamFailed,
}

/// A step's result. Fields that do not apply are absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub status: StepStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none", serialize_with = "to_second")]
    pub started_at: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none", serialize_with = "to_second")]
    pub completed_at: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Attempt::is_none")]
    pub attempt: Attempt,
    /// Number of the latest execution of this attempt by a worker; absent for the first.
    #[serde(default, skip_serializing_if = "TaskAttempt::is_none")]
    pub executions: TaskAttempt,
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
    /// A problem to report that is not a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
    /// The file with the whole output, if the output is too long for a record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole: Option<Whole>,
    /// True if the answer says that the loop is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_met: Option<bool>,
    /// Number of times the agent was asked again for an answer in the right form.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub asked_again: u32,
    /// The question to the user, and the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<Box<GateRecord>>,
    /// The worktree that the step used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worktree: Option<Box<TreeRecord>>,
    /// Digest of the results of the upstream steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inputs: Option<String>,
    /// Cost of asking the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Box<Spent>>,
    /// Cost of earlier attempts, including those of earlier visits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spent_before: Option<Box<Usage>>,
    /// The task of this attempt, in a fleet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskRef>,
}

/// Output stored in a separate file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Whole {
    /// Relative to the run's directory.
    pub path: String,
    pub bytes: u64,
    pub sha256: String,
}

/// The worktree of a step, as it was after the step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TreeRecord {
    pub path: String,
    /// The directory in the worktree that corresponds to the workspace, if it is not the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    pub branch: String,
    pub base_branch: String,
    pub base_commit: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<String>,
    /// True if the worktree has uncommitted changes.
    #[serde(default)]
    pub dirty: bool,
    /// The commit that preserves the step's changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<String>,
}

/// A question to a user.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct GateRecord {
    pub message: String,
    /// Digest of this question and of the content shown to the user. An answer to other content, or
    /// to an earlier instance of the same question, does not count.
    pub shown: String,
    /// Digest of the change that an approval remains valid for, if it outlives this question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Answer>,
}

impl GateRecord {
    /// Returns the digest of the subject of the question.
    pub(crate) fn subject(&self) -> &str {
        self.subject.as_deref().unwrap_or(&self.shown)
    }
}

/// A user's answer to a gate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Answer {
    pub approve: bool,
    #[serde(default)]
    pub comment: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// A run's reference to a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TaskRef {
    pub id: String,
    pub agent: String,
    /// A secret that a status must contain to count.
    pub ticket: String,
}

/// Serializes a time truncated to seconds, which `jq` can parse; `duration_ms` has the precision.
pub(crate) fn to_second<S: serde::Serializer>(
    time: &Option<Time>,
    to: S,
) -> Result<S::Ok, S::Error> {
    time.map(Time::to_second).serialize(to)
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Resources used by an execution.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Metrics {
    /// Time spent in the child process alone.
    pub exec_ms: u64,
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
}

/// Cost of asking a provider, as far as the provider reports it. An absent number is unknown.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spent {
    pub provider: String,
    /// The provider's ID of the conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    #[serde(flatten, deserialize_with = "crate::base::json::flattened")]
    pub usage: Usage,
}

/// The failure of a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Fault {
    pub message: String,
    pub exit_code: i32,
    #[serde(default)]
    pub stdout_tail: Vec<String>,
    #[serde(default)]
    pub stderr_tail: Vec<String>,
    #[serde(default)]
    pub context: Map<String, Value>,
    /// The class of the failure: transient, fatal, or unknown (`None`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<FaultClass>,
    /// The time when the failure is expected to have passed, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<Time>,
    /// True if the answer had the wrong form, so that the agent gets the error and is asked again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ask_again: bool,
}

impl Fault {
    /// The key in `context` that holds the location of a faulty spell.
    pub(crate) const SPELL: &str = "spell";

    /// Returns true if a spell of the run is at fault. The run's copy of it does not change.
    pub(crate) fn is_of_spell(&self) -> bool {
        self.context.contains_key(Fault::SPELL)
    }
}

impl Record {
    /// Creates the record of a failure found before anything was started.
    pub(crate) fn refused(
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

    /// Returns the cost of all attempts so far, or `None` if no attempt asked a provider.
    pub(crate) fn spent(&self) -> Option<Usage> {
        let mut sum = self.spent_before.as_deref().cloned();
        if let Some(spent) = &self.usage {
            spent.usage.add_to(&mut sum);
        }
        sum
    }

    pub(crate) fn skipped(at: Time, cause: Option<SkipCause>, warning: Option<String>) -> Self {
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
