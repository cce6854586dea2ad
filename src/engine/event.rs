//! Everything that can happen to a run. The journal holds these, one to a line.

use serde::{Deserialize, Serialize};

use super::record::{Answer, GateRecord, Record, SkipCause, TaskRef};
use super::run::{ItemResult, Origin, Policy};
use crate::ids::Attempt;

/// Something that happened. Paths are in their text form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The run began.
    Started { origin: Box<Origin> },
    /// An attempt went out.
    Launched {
        step: String,
        attempt: Attempt,
        /// The task it went out as, where it is not executed by whoever drives the run.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        task: Option<TaskRef>,
    },
    /// An attempt ended, or was refused before it went out.
    Ended { step: String, attempt: Attempt, record: Box<Record> },
    /// A step's condition did not hold, or what came before it bars it.
    Skipped {
        step: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cause: Option<SkipCause>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        warning: Option<String>,
    },
    /// A step that completed before would be given the same again: what it came to stands.
    Kept { step: String },
    /// A person is asked.
    Gated { step: String, attempt: Attempt, gate: Box<GateRecord> },
    /// A person answered.
    Answered { step: String, attempt: Attempt, answer: Answer },
    /// A loop was entered.
    Opened { step: String },
    /// An item's file is about to be moved.
    Moving { step: String, index: usize, result: ItemResult, from: String, to: String },
    /// It was, or could not be.
    Moved { step: String, index: usize, error: Option<String> },
    /// The file of an item that is tried again was put back, or could not be.
    MovedBack { step: String, index: usize, error: Option<String> },
    /// The time came that a step waited for.
    Woke,
    /// A person said what follows a failure.
    Decided { step: String, choice: Choice },
    /// Somebody took the run up again.
    Resumed {
        policy: Policy,
        /// A person asked for it; else it only goes on where it stands: after an answer, or because
        /// whoever drove it is gone.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        asked: bool,
    },
    /// The task of an attempt is nowhere: whoever was to put it out died, or may yet do so. The
    /// attempt is made anew, as another task.
    Recalled { step: String, attempt: Attempt },
    /// The task of an attempt was put back: whoever held it died or gave it up. It is executed
    /// once more, and what it had done may be done again.
    PutBack {
        step: String,
        attempt: Attempt,
        /// Which execution of the attempt comes next.
        execution: u32,
        /// How many of those before ended with the death of a worker.
        #[serde(default, skip_serializing_if = "is_zero")]
        deaths: u32,
    },
    /// Somebody ended the run for good, or a node did: then it follows what that came to, which
    /// has ended the run already.
    Cancelled {
        /// Why, where it is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// A run is to go on from this step of the workflow. One in sequence must be over.
    Rewound { step: String },
    /// The run follows an edited workflow from here on, by this copy of it. The state has what
    /// stands of the events before.
    Edited { definition: String },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Choice {
    Retry,
    Continue,
    Stop,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}
