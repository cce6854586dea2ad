//! What a run can be owed.

use super::record::SkipCause;
use super::run::ItemResult;
use crate::ids::{Attempt, StepPath};
use crate::time::Time;

/// Something to be done in the world, after which an event tells how it went.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Execute a step: its condition, its dependencies, then its action.
    Execute { step: StepPath, attempt: Attempt },
    /// Enter a loop: its condition and its dependencies.
    Open { step: StepPath },
    /// Move the file of a finished item.
    MoveItem { step: StepPath, index: usize, result: ItemResult },
    /// Put the file of an item back that is tried again.
    MoveBack { step: StepPath, index: usize, from: String, to: String },
    /// Ask a person what follows a failure.
    Ask { step: StepPath },
    /// Record that a step is barred by what came before it.
    Skip { step: StepPath, cause: SkipCause },
    /// Record that what a step came to before still stands.
    Keep { step: StepPath },
    /// Look whether a person has answered.
    Answer { step: StepPath, attempt: Attempt },
    /// Say when it is that time.
    Wake { at: Time },
}

impl Effect {
    /// Whether it may take long, and others with it have to wait their turn.
    pub fn is_work(&self) -> bool {
        matches!(self, Effect::Execute { .. })
    }
}
