//! The allowlist of `debug-bundle`: the fields of our documents that a bundle may contain.
//!
//! **Invariant:** a text that a user, a workflow, or a child process wrote never passes, whatever
//! it looks like. Only its length does. A new field of a document stays out until it is added here.

use serde_json::{Map, Value};

use crate::base::ids::name_fault;

/// Fields whose values the program writes itself, or that hold more such fields.
const FIELDS: &[&str] = &[
    "account",
    "adapter",
    "agent",
    "agents",
    "architecture",
    "at",
    "attempt",
    "attempts",
    "attempt_ms",
    "beat_ms",
    "boot_id",
    "bytes",
    "class",
    "code",
    "completed_at",
    "completed_indices",
    "concurrency",
    "cost_usd",
    "current_index",
    "cursor",
    "damage",
    "default_agent",
    "default_provider",
    "draining",
    "duration_ms",
    "durability",
    "ended_at",
    "error",
    "event",
    "exec_ms",
    "execution",
    "exit_code",
    "failed_indices",
    "failed_steps",
    "failed_tasks",
    "findings",
    "fit",
    "fleet",
    "for_each",
    "free",
    "git",
    "heartbeat_age_ms",
    "host",
    "id",
    "idle_poll_ms",
    "inboxes",
    "input_tokens",
    "isolation",
    "journal_seq",
    "kernel",
    "kind",
    "lease_ms",
    "lease_sec",
    "length",
    "limits",
    "max_agent_visits",
    "max_retries",
    "max_visits",
    "metrics",
    "mode",
    "name",
    "older",
    "orchestrate",
    "origin",
    "output_tokens",
    "owner",
    "parked",
    "pid",
    "pid_namespace",
    "policy",
    "poll_max_ms",
    "poll_min_ms",
    "poll_ms",
    "priority",
    "probe",
    "process",
    "processors",
    "provider",
    "providers",
    "queue",
    "record",
    "recorded",
    "retry_delay_ms",
    "run",
    "run_id",
    "runs",
    "runs_kept",
    "schema",
    "schema_version",
    "seq",
    "sha256",
    "shared",
    "signal",
    "start_time",
    "started_at",
    "state",
    "status",
    "stderr_bytes",
    "stdout_bytes",
    "step",
    "steps",
    "sum",
    "system",
    "task",
    "task_id",
    "tasks",
    "timeout_sec",
    "times",
    "truncated",
    "ttl_ms",
    "type",
    "updated_at",
    "usage",
    "verdict",
    "version",
    "volume",
    "waiting",
    "worker",
    "workers",
    "workflow_checksum",
];
/// Fields whose members are names that a user chose.
const KEYED: &[&str] = &["agents", "for_each", "providers", "steps"];
/// Maximum length of a text that passes.
const TEXT_MAX: usize = 128;

/// Returns the allowed part of a document. Everything else becomes a description of its size.
pub(super) fn filter(document: &Value) -> Value {
    match document {
        Value::Object(members) => Value::Object(members.iter().map(member).collect()),
        Value::Array(items) => items.iter().map(filter).collect(),
        _ => describe(document),
    }
}

fn member((name, value): (&String, &Value)) -> (String, Value) {
    match FIELDS.contains(&name.as_str()) {
        true => (name.clone(), keep(name, value)),
        false => (allowed_name(name), describe(value)),
    }
}

/// Keeps the value of an allowed field.
fn keep(field: &str, value: &Value) -> Value {
    match value {
        Value::String(text) if is_plain(text) => value.clone(),
        Value::String(_) => describe(value),
        Value::Array(items) => items.iter().map(|item| keep(field, item)).collect(),
        Value::Object(members) if KEYED.contains(&field) => {
            let steps = members.iter().map(|(name, value)| (allowed_name(name), nested(value)));
            Value::Object(steps.collect::<Map<_, _>>())
        }
        Value::Object(_) => filter(value),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

/// Keeps the value under a name that a user chose. The iterations of a loop are a list of maps
/// from names to results.
fn nested(value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(|item| keep("steps", item)).collect(),
        Value::Object(_) => filter(value),
        _ => describe(value),
    }
}

/// Returns true if a text has the form of an identifier, a version, or a time.
fn is_plain(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || " ._:/+-@[]".contains(c);
    text.len() <= TEXT_MAX && text.chars().all(fits)
}

/// Returns a name that follows the rules for names of steps and agents, or else its length.
pub(super) fn allowed_name(name: &str) -> String {
    match name_fault(name) {
        None => name.to_owned(),
        Some(_) => format!("(name of {} bytes)", name.len()),
    }
}

fn describe(value: &Value) -> Value {
    Value::String(match value {
        Value::Null => return Value::Null,
        Value::Bool(_) => "(true or false)".to_owned(),
        Value::Number(_) => "(number)".to_owned(),
        Value::String(text) => format!("(text of {} bytes)", text.len()),
        Value::Array(items) => format!("(list of {})", items.len()),
        Value::Object(members) => format!("(object with {} fields)", members.len()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_allowed_fields_pass() {
        let document = json!({
            "schema": "state/v1", "status": "failed", "context": { "password": "hunter2" },
            "steps": {
                "Build": { "exit_code": 1, "output": "token abc", "error": { "message": "bad" } },
                "Loop": [{ "In": { "status": "completed", "json": [1, 2] } }],
                "a b": { "attempt": 2 },
            },
            "started_at": "2026-01-31T10:00:00Z", "pin": 1234, "host": "rm -rf \"$HOME\"",
        });
        let expected = json!({
            "schema": "state/v1", "status": "failed", "context": "(object with 1 fields)",
            "steps": {
                "Build": {
                    "exit_code": 1, "output": "(text of 9 bytes)",
                    "error": { "message": "(text of 3 bytes)" },
                },
                "Loop": [{ "In": { "status": "completed", "json": "(list of 2)" } }],
                "(name of 3 bytes)": { "attempt": 2 },
            },
            "started_at": "2026-01-31T10:00:00Z", "pin": "(number)", "host": "(text of 14 bytes)",
        });
        assert_eq!(filter(&document), expected);
        assert_eq!(filter(&json!("a token")), json!("(text of 7 bytes)"));
    }
}
