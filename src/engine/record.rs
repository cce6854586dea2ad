//! What is known of one step's latest execution, in the shape `state.json` shows it.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::ids::Attempt;
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
    /// The task that the attempt went out as, in a fleet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskRef>,
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

    pub fn skipped(at: Time) -> Self {
        Record {
            status: StepStatus::Skipped,
            exit_code: Some(0),
            completed_at: Some(at),
            ..Record::default()
        }
    }
}
