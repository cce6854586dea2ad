//! Executions that did not end their task, and their cost. They are stored next to the logs of the
//! work, and the worker that ends the task adds the cost to the result.
//!
//! **Invariant:** a line counts only for its task, and once per claim of that task. An incomplete
//! line, which a crash leaves, does not count. An execution that started and never reported a cost
//! counts as unknown cost, not as zero.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::base::ids::TaskAttempt;
use crate::disk;
use crate::engine::Record;
use crate::engine::record::Spent;
use crate::queue::Claim;

/// Extension of these files.
const ENDING: &str = "spent";

#[derive(Serialize, Deserialize)]
struct Line {
    task: String,
    /// The attempt number of the claim under which the cost arose.
    attempt: TaskAttempt,
    /// True if this line records that an agent is about to start.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    begun: bool,
    /// Cost of the execution; `None` if the conversation keeps it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    spent: Option<Spent>,
}

impl Line {
    fn of(claim: &Claim) -> Line {
        let (task, attempt) = (claim.name.task.id.to_string(), claim.name.task.attempt);
        Line { task, attempt, begun: false, spent: None }
    }
}

/// Records that an agent is about to start. `log` is the log of the execution.
pub(super) fn begin(log: &Path, claim: &Claim) {
    note(log, &Line { begun: true, ..Line::of(claim) });
}

/// Records the cost of an execution whose task is released. A conversation keeps its own cost.
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
    // The leading newline ends an incomplete line that a crash may have left.
    let line = format!("\n{}\n", serde_json::to_string(line)?);
    OpenOptions::new().create(true).append(true).open(path)?.write_all(line.as_bytes())
}

/// Adds the cost of earlier claims of a task to its result.
pub(super) fn add(log: &Path, claim: &Claim, record: &mut Record) {
    let (interrupted, costs) = earlier(log, claim);
    for spent in costs {
        add_one(record, spent);
    }
    for _ in interrupted {
        let provider = record.usage.as_ref().map(|spent| spent.provider.clone());
        add_one(record, Spent { provider: provider.unwrap_or_default(), ..Spent::default() });
    }
}

/// Returns true if an earlier claim of a task started an agent that never ended.
pub(super) fn was_interrupted(log: &Path, claim: &Claim) -> bool {
    claim.name.task.attempt > TaskAttempt::FIRST && !earlier(log, claim).0.is_empty()
}

/// Returns the earlier claims of a task whose agent started and never ended, and the costs of the
/// other earlier claims.
fn earlier(log: &Path, claim: &Claim) -> (BTreeSet<TaskAttempt>, Vec<Spent>) {
    let Ok(bytes) = disk::machine().read(&log.with_extension(ENDING)) else {
        return Default::default();
    };
    let text = String::from_utf8_lossy(&bytes);
    let task = claim.name.task.id.as_str();
    let (mut begun, mut told, mut costs) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
    for line in text.lines() {
        let Ok(line) = serde_json::from_str::<Line>(line) else { continue };
        if line.task != task || line.attempt == claim.name.task.attempt {
            continue;
        }
        if line.begun {
            begun.insert(line.attempt);
        } else if told.insert(line.attempt) {
            costs.extend(line.spent);
        }
    }
    (begun.difference(&told).copied().collect(), costs)
}

fn add_one(record: &mut Record, more: Spent) {
    match &mut record.usage {
        Some(spent) => spent.usage.add(&more.usage),
        none => *none = Some(Box::new(Spent { session: None, ..more })),
    }
}
