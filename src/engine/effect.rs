//! The effects that a run can be owed.

use super::record::SkipCause;
use super::run::ItemResult;
use crate::base::ids::{Attempt, StepPath};
use crate::base::time::Time;

/// An action outside the engine. An event reports its result.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Effect {
    /// Execute a step: its condition, its dependencies, then its action.
    Execute { step: StepPath, attempt: Attempt },
    /// Enter a loop: its condition and its dependencies.
    Open { step: StepPath },
    /// Move the file of a finished item.
    MoveItem { step: StepPath, index: usize, result: ItemResult },
    /// Move the file of a retried item back.
    MoveBack { step: StepPath, index: usize, from: String, to: String },
    /// Ask a user what follows a failure.
    Ask { step: StepPath },
    /// Record that the upstream steps of a step prevent it.
    Skip { step: StepPath, cause: SkipCause },
    /// Record that the earlier result of a step still stands.
    Keep { step: StepPath },
    /// Check whether a user has answered.
    Answer { step: StepPath, attempt: Attempt },
    /// Report when this time has come.
    Wake { at: Time },
}

impl Effect {
    /// Returns true for an effect that may take long and therefore needs a free slot.
    pub(crate) fn is_work(&self) -> bool {
        matches!(self, Effect::Execute { .. })
    }
}
