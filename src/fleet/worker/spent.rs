//! What executions cost that did not end the task they were for: kept beside the logs of the work,
//! and added when it ends, by whoever ends it.
//!
//! **Invariant:** a line counts for its task alone, and once for each claim of it. Half a line,
//! which a crash leaves, counts nothing. What was begun and never told of cost nobody knows what,
//! which is not nothing.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::disk;
use crate::engine::Record;
use crate::engine::record::Spent;
use crate::queue::Claim;

/// How the names of these files end.
const ENDING: &str = "spent";

#[derive(Serialize, Deserialize)]
struct Line {
    task: String,
    /// The claim that it was spent under.
    attempt: u32,
    /// An agent is about to be asked.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    begun: bool,
    /// What it cost, unless the conversation knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    spent: Option<Spent>,
}

impl Line {
    fn of(claim: &Claim) -> Line {
        let (task, attempt) = (claim.name.task.id.to_string(), claim.name.task.attempt);
        Line { task, attempt, begun: false, spent: None }
    }
}

/// Notes that an agent is about to be asked. `log` is the log of the execution.
pub(super) fn begin(log: &Path, claim: &Claim) {
    note(log, &Line { begun: true, ..Line::of(claim) });
}

/// Keeps what an execution cost whose task is given back; a conversation knows that itself.
pub(super) fn keep(log: &Path, claim: &Claim, record: &Record, in_conversation: bool) {
    let spent = record.usage.as_deref().filter(|_| !in_conversation).cloned();
    note(log, &Line { spent, ..Line::of(claim) });
}

fn note(log: &Path, line: &Line) {
    if let Err(error) = append(&log.with_extension(ENDING), line) {
        tracing::warn!("what task {} has cost so far cannot be kept: {error}", line.task);
    }
}

fn append(path: &Path, line: &Line) -> io::Result<()> {
    // On a line of its own, whatever a crash left before it.
    let line = format!("\n{}\n", serde_json::to_string(line)?);
    OpenOptions::new().create(true).append(true).open(path)?.write_all(line.as_bytes())
}

/// Adds what earlier claims of a task have cost to its result.
pub(super) fn add(log: &Path, claim: &Claim, record: &mut Record) {
    let Ok(bytes) = disk::machine().read(&log.with_extension(ENDING)) else { return };
    let text = String::from_utf8_lossy(&bytes);
    let task = claim.name.task.id.as_str();
    let (mut begun, mut told) = (BTreeSet::new(), BTreeSet::new());
    for line in text.lines() {
        let Ok(line) = serde_json::from_str::<Line>(line) else { continue };
        if line.task != task || line.attempt == claim.name.task.attempt {
            continue;
        }
        if line.begun {
            begun.insert(line.attempt);
        } else if told.insert(line.attempt)
            && let Some(spent) = line.spent
        {
            add_one(record, spent);
        }
    }
    for _ in begun.difference(&told) {
        let provider = record.usage.as_ref().map(|spent| spent.provider.clone());
        add_one(record, Spent { provider: provider.unwrap_or_default(), ..Spent::default() });
    }
}

fn add_one(record: &mut Record, more: Spent) {
    match &mut record.usage {
        Some(spent) => spent.usage.add(&more.usage),
        none => *none = Some(Box::new(Spent { session: None, ..more })),
    }
}
