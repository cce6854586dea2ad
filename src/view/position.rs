//! Describes the position of a run in a few lines.

use crate::base::time::Time;
use crate::engine::run::{Front, StepState};
use crate::engine::{Run, whereabouts};
use crate::workflow::Plan;

/// Returns the number of settled nodes, and a line for each active one.
fn of_graph(plan: &Plan, run: &Run, front: &Front, now: Time) -> Vec<String> {
    let total = plan.root().steps.len();
    let mut lines = vec![format!("[{}/{total}] nodes settled", total - front.left)];
    for index in front.begun() {
        let here = run.inner_position(*index);
        let Some(slot) = run.slot(&here) else { continue };
        let started = slot.record.as_ref().and_then(|record| record.started_at);
        let since = started.map_or(0, |at| now.ms_since(at) / 1000);
        let word = match slot.state {
            StepState::Waiting => "waits for a person",
            StepState::Resting { .. } => "will be tried again",
            _ => "Running",
        };
        let name = match slot.state {
            StepState::Waiting => plan.root().steps[*index].name.clone(),
            _ => here.path(plan).shown(),
        };
        lines.push(format!("  └─ {name}: {word} ({since}s)..."));
    }
    lines
}

/// Returns `[2/5] ProcessData: Running (15s)...`, and a line for each open loop.
pub(crate) fn lines(plan: &Plan, run: &Run, now: Time) -> Vec<String> {
    if let Some(front) = &run.body.front {
        return of_graph(plan, run, front, now);
    }
    let here = whereabouts(plan, run);
    let mut lines = Vec::new();
    let Some((number, total, name)) = here.first() else { return lines };
    let since = run
        .body
        .current()
        .and_then(|slot| slot.record.as_ref()?.started_at)
        .map_or(0, |started| now.ms_since(started) / 1000);
    lines.push(format!("[{number}/{total}] {name}: Running ({since}s)..."));
    for (depth, pair) in here[1..].chunks(2).enumerate() {
        let indent = "  ".repeat(depth + 1);
        let (item, items, shown) = &pair[0];
        let shown: String = shown.chars().take(60).filter(|c| !c.is_control()).collect();
        let line = format!("{indent}└─ for_each: [{item}/{items}] Processing {shown}");
        lines.push(line);
    }
    lines
}
