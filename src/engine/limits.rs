//! Limits of time: of a whole run, and of loops in it.
//!
//! Nothing watches them. What is executed gets no more time than is left, and whatever would go on
//! after a limit has passed is ended there instead.

use super::record::{Fault, Record, StepStatus};
use super::rounds;
use super::run::{Address, Run, RunStatus};
use super::sequence::{enter, settle};
use crate::time::Time;
use crate::workflow::Plan;
use crate::workflow::plan::{RoundsKind, Step};

/// Whose time it is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Whose {
    Run,
    Loop(Address),
}

/// Time that is left for a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    pub ms: u64,
    /// Whose it is, for people.
    pub whose: String,
}

/// The limits around a step, from the outside in: how long each is, and when it began.
fn limits(plan: &Plan, run: &Run, here: &Address) -> Vec<(Whose, u64, Time)> {
    let since = |at: Time| run.taken_up_at.map_or(at, |taken_up| taken_up.max(at));
    let mut found = Vec::new();
    if let Some(limit) = plan.timeout {
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

/// How long a loop of steps may take.
fn repeated_for(step: &Step) -> Option<u64> {
    step.rounds().filter(|rounds| matches!(rounds.kind, RoundsKind::Steps { .. }))?;
    step.timeout.map(|limit| limit.as_millis() as u64)
}

/// Whether anything of a plan has a limit that counts from where the run was taken up.
pub fn any(plan: &Plan) -> bool {
    let mut found = plan.timeout.is_some();
    plan.root.walk(&mut |step| found |= repeated_for(step).is_some());
    found
}

/// The least time that is left for a step, where it or what is around it has a limit.
pub fn left(plan: &Plan, run: &Run, here: &Address, now: Time) -> Option<Left> {
    let left = limits(plan, run, here).into_iter().map(|(whose, limit, began)| {
        let whose = match whose {
            Whose::Run => "the workflow".to_owned(),
            Whose::Loop(around) => format!("loop `{}`", around.step_of(plan).name),
        };
        Left { ms: limit.saturating_sub(now.ms_since(began)), whose }
    });
    left.min_by_key(|left| left.ms)
}

/// Goes on with a step of the block inside `loops`, unless the time for it is over.
pub fn go_on(plan: &Plan, run: &mut Run, loops: &[(usize, usize)], step: usize, at: Time) {
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
pub fn fail(plan: &Plan, run: &mut Run, around: &Address, code: i32, message: String, at: Time) {
    let error = Fault { message, exit_code: code, ..Fault::default() };
    rounds::end_loop(run, around, StepStatus::Failed, at, |record: &mut Record| {
        record.exit_code = Some(code);
        record.error = Some(error);
        record.timed_out = (code == 124).then_some(true);
    });
    settle(plan, run, around, false, at);
}
