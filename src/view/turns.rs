//! Finds executions that wait for a worktree, and its holder: a claimed task or a launched step may
//! still be waiting.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Board, one_line};
use crate::base::ids::{Attempt, BeadId, TaskAttempt};
use crate::workflow::bead::{Bead, is_file};
use crate::worktree::{HoldingStep, Trees};

/// Maximum size of a bead's file when its ID is read.
const BEAD_BYTES: u64 = 1 << 20;

impl Board {
    /// Describes the worktree that an execution waits for, and its holder; `None` if it does not
    /// wait.
    pub(super) fn waits_for_tree(&self, tree: &str, waiter: &HoldingStep) -> Option<String> {
        let id = BeadId::parse(tree).ok()?;
        let holder = Trees::open(self.workspace.root()).ok()?.waits_for(&id, waiter)?;
        Some(one_line(&format!("`{id}`, which {holder} has")))
    }

    /// Like [`Self::waits_for_tree`], for a claimed task.
    pub(super) fn task_waits(
        &self,
        document: &Map<String, Value>,
        task: &str,
        attempt: TaskAttempt,
    ) -> Option<String> {
        let text = |key: &str| document.get(key).and_then(Value::as_str);
        let waiter = match text("step") {
            Some(step) => {
                let attempt = Attempt::deserialize(document.get("step_attempt")?).ok()?;
                let (run, step) = (text("run_id").map(str::to_owned), step.to_owned());
                HoldingStep { run, step, attempt }
            }
            None => {
                HoldingStep { run: None, step: task.to_owned(), attempt: attempt.of_free_task() }
            }
        };
        let of_step = || document.get("work")?.get("worktree")?.get("id")?.as_str();
        let of_bead =
            || document.get("bead").and_then(|bead| bead.get("id").unwrap_or(bead).as_str());
        let tree = of_step().map(str::to_owned).or_else(|| self.id_of(of_bead()?));
        self.waits_for_tree(&tree?, &waiter)
    }

    /// Returns the ID of a bead, which may be named by its file.
    fn id_of(&self, bead: &str) -> Option<String> {
        if !is_file(bead) {
            return Some(bead.to_owned());
        }
        let read = |path: &str| self.workspace.read_text(path, BEAD_BYTES);
        Some(Bead::find(bead, &read).ok()?.id.to_string())
    }
}
