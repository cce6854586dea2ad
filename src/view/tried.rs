//! Results of all attempts, from the journal of a run: its state has only the latest.

use std::collections::HashMap;

use crate::base::ids::Attempt;
use crate::engine::run::{Slot, StepState};
use crate::engine::{Event, Record, StepStatus};
use crate::store::History;

/// The record of every attempt that ended.
pub(crate) struct Tried<'a>(HashMap<(String, Attempt), &'a Record>);

impl<'a> Tried<'a> {
    pub(crate) fn of(history: &'a History) -> Tried<'a> {
        let ended = history.entries.iter().filter_map(|entry| match &entry.event {
            Event::Ended { step, attempt, record } => {
                Some(((step.to_string(), *attempt), &**record))
            }
            _ => None,
        });
        Tried(ended.collect())
    }

    pub(crate) fn record(&self, step: &str, attempt: Attempt) -> Option<&'a Record> {
        self.0.get(&(step.to_owned(), attempt)).copied()
    }
}

/// Returns true if a step was executed, and skipped at a later visit: its record does not describe
/// the execution.
pub(crate) fn is_passed_over(slot: &Slot) -> bool {
    slot.state == StepState::Settled
        && slot.status() == StepStatus::Skipped
        && !slot.attempts.is_none()
}

/// Returns the stdout that a record holds.
pub(crate) fn printed(record: &Record) -> Option<String> {
    if let Some(output) = &record.output {
        return Some(output.clone());
    }
    if let Some(lines) = &record.lines {
        return Some(lines.iter().map(|line| format!("{line}\n")).collect());
    }
    let json = serde_json::to_string_pretty(record.json.as_ref()?).unwrap_or_default();
    Some(format!("{json}\n"))
}
