//! Faults planted on purpose, which the simulation must catch: a test of the tests.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::judge::{Judge, Spot};
use crate::queue::{TaskName, seal};

/// A fault of the fleet or of the disk under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
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
    /// A journal is appended to behind half a line.
    TornTailKept,
    /// A task goes back under the number that it was claimed by.
    AttemptKept,
    /// The marker of a cancellation is not on the medium when people are told of it.
    MarkerUnsynced,
    /// Nor is an answer.
    AnswerUnsynced,
    /// A cancellation is forgotten when it was seen.
    CancelForgotten,
    /// Somebody beats for the dead.
    DeadBeat,
    /// Leases are measured by a clock that people set.
    LeaseByWallClock,
    /// A snapshot says that it has an event which it lacks.
    SnapshotAhead,
    /// What a cache says is absent is taken to be absent.
    BelievesAbsence,
}

pub(super) const ALL: [Fault; 21] = [
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
    Fault::TornTailKept,
    Fault::AttemptKept,
    Fault::MarkerUnsynced,
    Fault::AnswerUnsynced,
    Fault::CancelForgotten,
    Fault::DeadBeat,
    Fault::LeaseByWallClock,
    Fault::SnapshotAhead,
    Fault::BelievesAbsence,
];

/// What is read of a file: whoever does not look at tickets reads a forged status as a right one.
pub(super) fn reading(fault: Fault, judge: &Judge, path: &Path, bytes: Vec<u8>) -> Vec<u8> {
    if fault == Fault::DeadBeat && path.parent().is_some_and(|dir| dir.ends_with("beats")) {
        let worker = path.file_name().unwrap_or_default().to_string_lossy();
        return if judge.is_dead(&worker) { judge.now().to_string().into_bytes() } else { bytes };
    }
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

/// What is written to a file.
pub(super) fn writing(fault: Fault, path: &Path, bytes: &[u8]) -> Vec<u8> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if fault != Fault::SnapshotAhead || !name.starts_with(".state.json") {
        return bytes.to_vec();
    }
    let mut state: Value = serde_json::from_slice(bytes).unwrap_or_default();
    if let Some(seq) = state["journal_seq"].as_u64() {
        state["journal_seq"] = (seq + 1).into();
    }
    serde_json::to_vec(&state).unwrap_or_default()
}

/// Where a task goes.
pub(super) fn moving(fault: Fault, judge: &Judge, from: &Path, to: &Path) -> PathBuf {
    match (judge.spot(from), judge.spot(to)) {
        (Spot::Claimed(claim), Spot::Inbox(next)) if fault == Fault::AttemptKept => {
            let same = TaskName { attempt: claim.task.attempt, ..next };
            to.with_file_name(same.file())
        }
        _ => to.to_owned(),
    }
}

/// Whether a directory is left as it is when it should be synced.
pub(super) fn leaves_unsynced(fault: Fault, dir: &Path) -> bool {
    match fault {
        Fault::NoDirectorySync => true,
        Fault::MarkerUnsynced => dir.ends_with("cancel"),
        Fault::AnswerUnsynced => dir.ends_with("control"),
        _ => false,
    }
}

/// Which file a journal is written to.
pub(super) fn journal(fault: Fault, path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    match fault == Fault::OneJournal && name.starts_with("journal.") {
        true => path.with_file_name("journal.jsonl"),
        false => path.to_owned(),
    }
}
