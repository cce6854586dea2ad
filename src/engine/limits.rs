//! Time limits of a run and of its loops.
//!
//! No timer watches them. An execution gets at most the time that is left, and a run or loop that
//! would continue after its limit is ended instead.

use super::record::{Fault, Record, StepStatus};
use super::rounds;
use super::run::{Address, Run, RunStatus};
use super::sequence::{enter, settle};
use crate::base::time::Time;
use crate::workflow::Plan;
use crate::workflow::plan::{RoundsKind, Step};

/// The owner of a time limit.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Whose {
    Run,
    Loop(Address),
}

/// Time left for a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Left {
    pub ms: u64,
    /// The owner of the limit, for display.
    pub whose: String,
}

/// Returns the limits that apply to a step, outermost first: owner, length in ms, and start.
fn limits(plan: &Plan, run: &Run, here: &Address) -> Vec<(Whose, u64, Time)> {
    let since = |at: Time| run.taken_up_at.map_or(at, |taken_up| taken_up.max(at));
    let mut found = Vec::new();
    if let Some(limit) = plan.timeout() {
        found.push((Whose::Run, limit.as_millis() as u64, since(run.started_at)));
    }
    for (around, _) in here.around() {
        let Some(limit) = repeated_for(around.step_of(plan)) else { continue };
        let record = run.slot(&around).and_then(|slot| slot.record.as_deref());
        let began = record.and_then(|record| record.started_at).unwrap_or(run.started_at);
        found.push((Whose::Loop(around), limit, since(began)));
    }
    found
}

/// Returns the time limit of a loop of steps, in ms.
fn repeated_for(step: &Step) -> Option<u64> {
    step.rounds().filter(|rounds| matches!(rounds.kind, RoundsKind::Steps { .. }))?;
    step.timeout.map(|limit| limit.as_millis() as u64)
}

/// Returns true if a plan has a limit that is measured from the last resume.
pub(crate) fn any(plan: &Plan) -> bool {
    let mut found = plan.timeout().is_some();
    plan.root().walk(&mut |step| found |= repeated_for(step).is_some());
    found
}

/// Returns the shortest time left for a step, or `None` if no limit applies.
pub(crate) fn left(plan: &Plan, run: &Run, here: &Address, now: Time) -> Option<Left> {
    let left = limits(plan, run, here).into_iter().map(|(whose, limit, began)| {
        let whose = match whose {
            Whose::Run => "the workflow".to_owned(),
            Whose::Loop(around) => format!("loop `{}`", around.step_of(plan).name),
        };
        Left { ms: limit.saturating_sub(now.ms_since(began)), whose }
    });
    left.min_by_key(|left| left.ms)
}

/// Continues with a step of the block inside `loops`, unless a limit has passed.
pub(crate) fn go_on(plan: &Plan, run: &mut Run, loops: &[(usize, usize)], step: usize, at: Time) {
    let here = Address { loops: loops.to_vec(), step };
    if step >= here.block(plan).steps.len() && loops.is_empty() {
        return enter(plan, run, loops, step, at);
    }
    let over = limits(plan, run, &here).into_iter();
    let mut over = over.filter(|(_, limit, began)| at.ms_since(*began) >= *limit);
    match over.next() {
        None => enter(plan, run, loops, step, at),
        Some((Whose::Run, limit, _)) => {
            enter(plan, run, loops, step, at);
            run.error = Some(format!("the run took longer than its `timeout`, {}", shown(limit)));
            if run.status == RunStatus::Running {
                run.status = RunStatus::Blocked;
            }
        }
        Some((Whose::Loop(around), limit, _)) => {
            let message = format!("the loop took longer than its `timeout`, {}", shown(limit));
            fail(plan, run, &around, 124, message, at);
        }
    }
}

fn shown(ms: u64) -> String {
    format!("{} s", ms as f64 / 1000.0)
}

/// Ends a loop of steps as failed.
pub(crate) fn fail(
    plan: &Plan,
    run: &mut Run,
    around: &Address,
    code: i32,
    message: String,
    at: Time,
) {
    let error = Fault { message, exit_code: code, ..Fault::default() };
    rounds::end_loop(run, around, StepStatus::Failed, at, |record: &mut Record| {
        record.exit_code = Some(code);
        record.error = Some(error);
        record.timed_out = (code == 124).then_some(true);
    });
    settle(plan, run, around, false, at);
}
