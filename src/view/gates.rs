//! Pending gates: the questions that runs ask users.

use std::path::Path;

use serde::Serialize;

use super::excerpt::{Excerpt, Room};
use super::{Board, runs_in};
use crate::attempt::gates;
use crate::base::ids::{Attempt, RunId, StepPath};
use crate::base::time::{Clock, SystemClock, Time};
use crate::disk;
use crate::engine::run::{Address, StepState};
use crate::engine::{GateRecord, Run, RunStatus};
use crate::run::open::{self, OpenError};
use crate::store::{STATE, snapshot};
use crate::workflow::Plan;
use crate::workflow::plan::Action;
use crate::workspace::Workspace;

/// A question to a user.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Gate {
    pub run_id: RunId,
    pub node: String,
    pub step: StepPath,
    pub attempt: Attempt,
    pub message: String,
    /// The agent's last answer, which the user decides about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub said: Option<String>,
    /// Merges only: the diff to be merged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diff: Option<Excerpt>,
    /// Merges only: the file with the diff cannot be read, so it cannot be reviewed here.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub diff_unreadable: bool,
    pub shown: String,
    pub since: Option<Time>,
    pub expires_at: Option<Time>,
    /// The file into which a user writes the answer.
    pub answer_file: String,
    /// True if a user has answered, and the process that drives the run has not seen it yet.
    pub answered: bool,
    /// True if no answer came in time; the next process that drives the run fails the node.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub expired: bool,
    /// The reason why a dropped answer is invalid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

impl Gate {
    /// Returns the digest of the shown content, short enough to type.
    pub(crate) fn short(&self) -> &str {
        gates::short(&self.shown)
    }

    /// Returns the text to read before an answer: the diff of a merge, or else the agent's last
    /// answer.
    pub(crate) fn to_read(&self) -> Option<String> {
        let Some(diff) = &self.diff else { return self.said.clone() };
        let Excerpt { text, tail, left_out, .. } = diff;
        Some(match tail {
            Some(tail) => format!("{text}\n… {left_out} bytes are left out here …\n{tail}"),
            None => text.clone(),
        })
    }

    /// Returns true if `shown` identifies this content, by the whole digest or at least its short
    /// form.
    pub(crate) fn is_shown_by(&self, shown: &str) -> bool {
        shown.len() >= self.short().len() && self.shown.starts_with(shown)
    }
}

/// Returns true if a gate has an answer that the process that drives the run has not seen yet.
pub(super) fn is_answered(workspace: &Path, plan: &Plan, run: &Run, here: &Address) -> bool {
    let Some(slot) = run.slot(here).filter(|slot| slot.state == StepState::Waiting) else {
        return false;
    };
    let gate = slot.record.as_ref().and_then(|record| record.gate.as_ref());
    let root = workspace.join(&run.origin.run_root);
    let path = gates::path(&root, &here.path(plan), slot.attempts);
    gate.is_some_and(|gate| gates::is_answered(&path, &gate.shown, gate.expires_at))
}

/// Returns true if a gate has expired without an answer, and the process that drives the run has
/// not seen it yet.
pub(super) fn is_expired(workspace: &Path, plan: &Plan, run: &Run, here: &Address) -> bool {
    let Some(slot) = run.slot(here).filter(|slot| slot.state == StepState::Waiting) else {
        return false;
    };
    let gate = slot.record.as_ref().and_then(|record| record.gate.as_ref());
    let over = gate.and_then(|gate| gate.expires_at).is_some_and(|at| at <= SystemClock.now());
    over && !is_answered(workspace, plan, run, here)
}

/// Returns all pending gates of a run.
pub(crate) fn gates_of(workspace: &Path, plan: &Plan, run: &Run) -> Vec<Gate> {
    let mut found = Vec::new();
    for here in run.positions() {
        let Some(slot) = run.slot(&here).filter(|slot| slot.state == StepState::Waiting) else {
            continue;
        };
        let Some(record) = slot.record.as_deref() else { continue };
        let Some(gate) = record.gate.as_deref() else { continue };
        let GateRecord { message, shown, expires_at, .. } = gate;
        let step = here.path(plan);
        let answer_file = gates::path(Path::new(&run.origin.run_root), &step, slot.attempts);
        let answered = is_answered(workspace, plan, run, &here);
        let merges = matches!(here.step_of(plan).action, Action::Merge { .. });
        let diff = || {
            let root = workspace.join(&run.origin.run_root);
            Excerpt::of_file(&root, &gates::review(gate.subject()), Room::CHANGE)
        };
        let diff = merges.then(diff).flatten();
        found.push(Gate {
            run_id: run.id.clone(),
            node: step.loops.first().map_or(&step.step, |(node, _)| node).clone(),
            attempt: slot.attempts,
            message: message.clone(),
            said: gates::said_before(plan, run, &here).and_then(|said| said.output.clone()),
            diff_unreadable: merges && diff.is_none(),
            diff,
            shown: shown.clone(),
            since: record.started_at,
            expires_at: *expires_at,
            answered,
            refused: gates::refused(&workspace.join(&answer_file), shown).filter(|_| !answered),
            expired: is_expired(workspace, plan, run, &here),
            answer_file: answer_file.display().to_string(),
            step,
        });
    }
    found
}

/// Returns all pending gates of the run in a directory.
pub(crate) fn gates_in(workspace: &Workspace, root: &Path) -> Result<Vec<Gate>, OpenError> {
    let (plan, run) = open::look(workspace, root)?;
    match run.status {
        RunStatus::Running => Ok(gates_of(workspace.root(), &plan, &run)),
        _ => Ok(Vec::new()),
    }
}

/// Returns the runs whose state does not show that they have ended, oldest first.
pub(crate) fn that_may_ask(state_dir: &Path) -> Vec<RunId> {
    let open = |id: &RunId| {
        let state = state_dir.join(id.as_str()).join(STATE);
        let state = disk::machine().read(&state).unwrap_or_default();
        let status = snapshot::peek(&state).map(|(status, _)| status);
        matches!(status, None | Some(RunStatus::Running | RunStatus::Paused))
    };
    let mut ids = runs_in(state_dir);
    ids.reverse();
    ids.into_iter().filter(open).collect()
}

impl Board {
    /// Returns all pending gates of this workspace's readable runs.
    pub(crate) fn gates(&self) -> Vec<Gate> {
        let asked = |id: RunId| {
            let open = self.opened(&id).ok()?;
            let ours = self.elsewhere(&open.1.origin, &self.run_root(&id)).is_none();
            ours.then(|| self.asked(&open))
        };
        that_may_ask(&self.state_dir).into_iter().filter_map(asked).flatten().collect()
    }

    pub(crate) fn gates_of_run(&self, id: &RunId) -> Result<Vec<Gate>, OpenError> {
        Ok(self.asked(&*self.opened(id)?))
    }

    fn asked(&self, (plan, run): &(Plan, Run)) -> Vec<Gate> {
        match run.status {
            RunStatus::Running => gates_of(self.workspace.root(), plan, run),
            _ => Vec::new(),
        }
    }
}
