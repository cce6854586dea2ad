//! Gates: what runs ask people, and what an answer is dropped as.

use std::path::Path;

use serde::Serialize;

use crate::engine::run::{Address, StepState};
use crate::engine::{GateRecord, Run};
use crate::fleet::gates;
use crate::ids::{Attempt, RunId, StepPath};
use crate::time::Time;
use crate::workflow::Plan;
use crate::workflow::plan::Action;

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
    pub shown: String,
    pub since: Option<Time>,
    pub expires_at: Option<Time>,
    /// The file that an answer is dropped as.
    pub answer_file: String,
    /// Somebody has answered, and whoever drives the run has not seen it yet.
    pub answered: bool,
}

/// Everything that a run asks people.
pub fn gates_of(workspace: &Path, plan: &Plan, run: &Run) -> Vec<Gate> {
    let mut found = Vec::new();
    for here in run.positions() {
        let Some(slot) = run.slot(&here).filter(|slot| slot.state == StepState::Waiting) else {
            continue;
        };
        let Some(record) = slot.record.as_deref() else { continue };
        let Some(GateRecord { message, shown, expires_at, .. }) = record.gate.as_deref() else {
            continue;
        };
        let step = here.path(plan);
        let answer_file = gates::path(Path::new(&run.origin.run_root), &step, slot.attempts);
        found.push(Gate {
            run_id: run.id.clone(),
            node: step.loops.first().map_or(&step.step, |(node, _)| node).clone(),
            attempt: slot.attempts,
            message: message.clone(),
            said: said_before(plan, run, &here),
            shown: shown.clone(),
            since: record.started_at,
            expires_at: *expires_at,
            answered: workspace.join(&answer_file).exists(),
            answer_file: answer_file.display().to_string(),
            step,
        });
    }
    found
}

/// What the agent said in the round that a person is asked in.
fn said_before(plan: &Plan, run: &Run, here: &Address) -> Option<String> {
    let steps = &here.block(plan).steps;
    let asked = steps[..here.step].iter().rposition(|s| matches!(s.action, Action::Prompt(_)))?;
    let slot = run.slot(&Address { step: asked, ..here.clone() })?;
    slot.record.as_ref()?.output.clone()
}
