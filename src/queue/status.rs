//! The status that the queue writes itself, for tasks that no worker executed to the end.

use serde_json::{Map, Value, json};

use super::Claim;

/// Values of `reason` in a task's error.
pub(super) const CANCELLED: &str = "cancelled";
pub(super) const CRASH_LIMIT: &str = "crash_limit";
/// Also the batch of unreadable files. Only there may a task be incomplete.
pub(crate) const UNREADABLE: &str = "unreadable";

/// Returns a `status/v1` for a task that was not executed to the end.
pub(super) fn of_claim(claim: &Claim, reason: &str, message: &str) -> Map<String, Value> {
    let known = |key: &str| claim.task.document.get(key).cloned();
    let members = [
        ("schema", Some("status/v1".into())),
        ("task_id", Some(claim.name.task.id.as_str().into())),
        ("agent", Some(claim.agent.as_str().into())),
        ("run_id", known("run_id")),
        ("step", known("step")),
        ("attempt", Some(known("attempt").unwrap_or(claim.name.task.attempt.into()))),
        ("ticket", Some(known("ticket").unwrap_or_default())),
        ("worker", Some(claim.name.worker.as_str().into())),
        ("success", Some(false.into())),
        ("exit_code", Some(if reason == UNREADABLE { 2 } else { 1 }.into())),
        ("error", Some(json!({ "reason": reason, "message": message }))),
        ("message", Some(message.into())),
    ];
    let there = members.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
    there.collect()
}
