//! What people are asked: the gates of runs that wait.

use std::path::Path;

use serde::Serialize;

use super::{Board, runs_in};
use crate::disk;
use crate::engine::run::{Address, StepState};
use crate::engine::{GateRecord, Run, RunStatus};
use crate::fleet::open::OpenError;
use crate::fleet::{gates, open};
use crate::ids::{Attempt, RunId, StepPath};
use crate::store::{STATE, snapshot};
use crate::time::{Clock, SystemClock, Time};
use crate::ui::report::excerpt::{Excerpt, Room};
use crate::workflow::Plan;
use crate::workflow::plan::Action;
use crate::workspace::Workspace;

/// A person is asked something.
#[derive(Clone, Debug, Serialize)]
pub struct Gate {
    pub run_id: RunId,
    pub node: String,
    pub step: StepPath,
    pub attempt: Attempt,
    pub message: String,
    /// What an agent said last, which the person answers to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub said: Option<String>,
    /// Of a merge: what would be merged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diff: Option<Excerpt>,
    /// Of a merge: the file with what would be merged cannot be read, so nobody can review it here.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub diff_unreadable: bool,
    pub shown: String,
    pub since: Option<Time>,
    pub expires_at: Option<Time>,
    /// The file that an answer is dropped as.
    pub answer_file: String,
    /// Somebody has answered, and whoever drives the run has not seen it yet.
    pub answered: bool,
    /// Nobody answered in time; whoever drives the run next fails the node.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub expired: bool,
    /// Why an answer that somebody dropped does not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

impl Gate {
    /// What is shown, short enough to be typed.
    pub fn short(&self) -> &str {
        gates::short(&self.shown)
    }

    /// What a person reads before an answer: of a merge the change, else what an agent said.
    pub fn to_read(&self) -> Option<String> {
        let Some(diff) = &self.diff else { return self.said.clone() };
        let Excerpt { text, tail, left_out, .. } = diff;
        Some(match tail {
            Some(tail) => format!("{text}\n… {left_out} bytes are left out here …\n{tail}"),
            None => text.clone(),
        })
    }

    /// Whether this is what somebody looked at, by the whole of `shown` or the short form.
    pub fn is_shown_by(&self, shown: &str) -> bool {
        shown.len() >= self.short().len() && self.shown.starts_with(shown)
    }
}

/// Whether somebody has answered a gate, which whoever drives the run has not seen yet.
pub fn is_answered(workspace: &Path, plan: &Plan, run: &Run, here: &Address) -> bool {
    let Some(slot) = run.slot(here).filter(|slot| slot.state == StepState::Waiting) else {
        return false;
    };
    let gate = slot.record.as_ref().and_then(|record| record.gate.as_ref());
    let root = workspace.join(&run.origin.run_root);
    let path = gates::path(&root, &here.path(plan), slot.attempts);
    gate.is_some_and(|gate| gates::is_answered(&path, &gate.shown, gate.expires_at))
}

/// Whether nobody has answered a gate in time, which whoever drives the run has not seen yet.
pub fn is_expired(workspace: &Path, plan: &Plan, run: &Run, here: &Address) -> bool {
    let Some(slot) = run.slot(here).filter(|slot| slot.state == StepState::Waiting) else {
        return false;
    };
    let gate = slot.record.as_ref().and_then(|record| record.gate.as_ref());
    let over = gate.and_then(|gate| gate.expires_at).is_some_and(|at| at <= SystemClock.now());
    over && !is_answered(workspace, plan, run, here)
}

/// Everything that a run asks people.
pub fn gates_of(workspace: &Path, plan: &Plan, run: &Run) -> Vec<Gate> {
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

/// Everything that the run in a directory asks people.
pub fn gates_in(workspace: &Workspace, root: &Path) -> Result<Vec<Gate>, OpenError> {
    let (plan, run) = open::look(workspace, root)?;
    match run.status {
        RunStatus::Running => Ok(gates_of(workspace.root(), &plan, &run)),
        _ => Ok(Vec::new()),
    }
}

/// Runs whose state does not say that they are over, oldest first.
pub fn that_may_ask(state_dir: &Path) -> Vec<RunId> {
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
    /// Everything that people are asked, by every run of this workspace that can be read.
    pub fn gates(&self) -> Vec<Gate> {
        let asked = |id: RunId| {
            let open = self.opened(&id).ok()?;
            let ours = self.elsewhere(&open.1.origin, &self.run_root(&id)).is_none();
            ours.then(|| self.asked(&open))
        };
        that_may_ask(&self.state_dir).into_iter().filter_map(asked).flatten().collect()
    }

    pub fn gates_of_run(&self, id: &RunId) -> Result<Vec<Gate>, OpenError> {
        Ok(self.asked(&*self.opened(id)?))
    }

    fn asked(&self, (plan, run): &(Plan, Run)) -> Vec<Gate> {
        match run.status {
            RunStatus::Running => gates_of(self.workspace.root(), plan, run),
            _ => Vec::new(),
        }
    }
}
