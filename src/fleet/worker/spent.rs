//! What executions cost that were given back and are part of no conversation: kept beside the logs
//! of the work, and added when it ends, by whoever ends it.
//!
//! **Invariant:** a line counts for its task alone, and once for each claim of it. Half a line,
//! which a crash leaves, counts nothing.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;

use serde::{Deserialize, Serialize};

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
    spent: Spent,
}

/// Keeps what an execution cost whose task is given back. `log` is its log.
pub(super) fn keep(log: &Path, claim: &Claim, record: &Record) {
    let Some(spent) = record.usage.as_deref() else { return };
    let (task, attempt) = (claim.name.task.id.to_string(), claim.name.task.attempt);
    let line = Line { task, attempt, spent: spent.clone() };
    if let Err(error) = append(&log.with_extension(ENDING), &line) {
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
    let Ok(text) = fs::read_to_string(log.with_extension(ENDING)) else { return };
    let task = claim.name.task.id.as_str();
    let mut counted = BTreeSet::new();
    for line in text.lines() {
        let Ok(line) = serde_json::from_str::<Line>(line) else { continue };
        if line.task != task || !counted.insert(line.attempt) {
            continue;
        }
        match &mut record.usage {
            Some(spent) => spent.usage.add(&line.spent.usage),
            none => *none = Some(Box::new(Spent { session: None, ..line.spent })),
        }
    }
}
