//! The events of a run. The journal holds one per line.

use serde::{Deserialize, Serialize};

use super::record::{Answer, GateRecord, Record, SkipCause, TaskRef};
use super::run::{ItemResult, Origin, Policy};
use crate::base::ids::{Attempt, StepPath, TaskAttempt};

/// An event of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Event {
    /// The run started.
    Started { origin: Box<Origin> },
    /// An attempt was started or enqueued.
    Launched {
        step: StepPath,
        attempt: Attempt,
        /// The attempt's task, if a worker executes it rather than the process that drives the run.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        task: Option<TaskRef>,
    },
    /// An attempt ended, or was refused before it started.
    Ended { step: StepPath, attempt: Attempt, record: Box<Record> },
    /// A step's condition was false, or its upstream steps prevent it.
    Skipped {
        step: StepPath,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cause: Option<SkipCause>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        warning: Option<String>,
    },
    /// A step that completed before would get the same inputs again, so its result stands.
    Kept { step: StepPath },
    /// A gate asked a user.
    Gated { step: StepPath, attempt: Attempt, gate: Box<GateRecord> },
    /// A user answered a gate.
    Answered { step: StepPath, attempt: Attempt, answer: Answer },
    /// A loop was entered.
    Opened { step: StepPath },
    /// An item's file is about to be moved.
    Moving { step: StepPath, index: usize, result: ItemResult, from: String, to: String },
    /// An item's file was moved, or the move failed.
    Moved { step: StepPath, index: usize, error: Option<String> },
    /// The file of a retried item was moved back, or the move failed.
    MovedBack { step: StepPath, index: usize, error: Option<String> },
    /// The time that a step waited for has come.
    Woke,
    /// A user decided what follows a failure.
    Decided { step: StepPath, choice: Choice },
    /// A process resumed the run.
    Resumed {
        policy: Policy,
        /// True if a user requested it. Otherwise the run only continues where it is: after an
        /// answer, or because the process that drove it died.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        asked: bool,
    },
    /// The task of an attempt cannot be found: the process that was to enqueue it died, or may
    /// still enqueue it. The attempt is repeated as another task.
    Recalled { step: StepPath, attempt: Attempt },
    /// The task of an attempt was requeued: its worker died or released it. It is executed once
    /// more, so its side effects may happen again.
    PutBack {
        step: StepPath,
        attempt: Attempt,
        /// Number of the next execution of the attempt.
        execution: TaskAttempt,
        /// Number of earlier executions that ended with the death of a worker.
        #[serde(default, skip_serializing_if = "is_zero")]
        deaths: u32,
    },
    /// A user or a node cancelled the run. If a node did, this event follows the node's result,
    /// which has already ended the run.
    Cancelled {
        /// The reason, if known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// The run is to continue from the top-level step of this name. A sequence must have ended
    /// first.
    Rewound { step: String },
    /// The run follows an edited workflow from now on: this copy. The state contains the results of
    /// earlier events that still apply.
    Edited { definition: String },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Choice {
    Retry,
    Continue,
    Stop,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}
