//! Faults planted on purpose, which the simulation must catch: a test of the tests.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::judge::Judge;
use crate::queue::seal;

/// A fault of the fleet or of the disk under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Nothing,
    /// Directories are not synced.
    NoDirectorySync,
    /// Files are not synced.
    NoSync,
    /// A rename is a copy and a removal.
    CopyForRename,
    /// Whoever lost a race for a name believes that it won.
    LoserBelieves,
    /// A task is moved before its status is there.
    CompleteBeforeStatus,
    /// A status counts whatever its ticket is.
    AnyTicket,
    /// A holder is dead after a moment without a beat.
    HastyReaper,
    /// Whoever was fenced ends the task all the same.
    NoFence,
    /// All owners of a run write one journal.
    OneJournal,
    /// What people ask to be cancelled is not heard.
    CancelUnheard,
    /// What people answer is thrown away.
    AnswerDropped,
    /// A run is acknowledged before its task is out.
    AcknowledgedEarly,
}

pub const ALL: [Fault; 12] = [
    Fault::NoDirectorySync,
    Fault::NoSync,
    Fault::CopyForRename,
    Fault::LoserBelieves,
    Fault::CompleteBeforeStatus,
    Fault::AnyTicket,
    Fault::HastyReaper,
    Fault::NoFence,
    Fault::OneJournal,
    Fault::CancelUnheard,
    Fault::AnswerDropped,
    Fault::AcknowledgedEarly,
];

/// What is read of a file: whoever does not look at tickets reads a forged status as a right one.
pub fn reading(fault: Fault, judge: &Judge, path: &Path, bytes: Vec<u8>) -> Vec<u8> {
    let is_status = path.to_string_lossy().ends_with(".status.json");
    if fault != Fault::AnyTicket || !is_status {
        return bytes;
    }
    let Some(mut status) = seal::unseal(&bytes) else { return bytes };
    let id = status.get("task_id").and_then(Value::as_str).unwrap_or_default().to_owned();
    if let Some(ticket) = judge.ticket(&id) {
        status.insert("ticket".into(), ticket.into());
    }
    seal::seal(&status)
}

/// Which file a journal is written to.
pub fn journal(fault: Fault, path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    match fault == Fault::OneJournal && name.starts_with("journal.") {
        true => path.with_file_name("journal.jsonl"),
        false => path.to_owned(),
    }
}
