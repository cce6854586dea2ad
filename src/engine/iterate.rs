//! Loops: enters them, advances from item to item, and decides how control leaves an item.
//!
//! When an item ends, for any reason, its file is moved first (if the author requested it), and
//! then control leaves the item. A jump out of three loops therefore unwinds one loop at a time.

use serde_json::Value;

use super::effect::Effect;
use super::record::{Record, StepStatus};
use super::rounds;
use super::run::{
    Address, Body, EachRun, Exit, ItemResult, Iteration, Lifecycle, Run, RunStatus, StepState,
    each_of,
};
use super::scope::RunScope;
use super::sequence::{enter, finish, settle};
use crate::base::ids::Attempt;
use crate::base::time::Time;
use crate::template::Scope;
use crate::workflow::Plan;
use crate::workflow::plan::{Each, Items, Target};

/// Enters a loop: reads its items and begins the first one.
pub(super) fn open(plan: &Plan, run: &mut Run, here: &Address, at: Time) {
    if here.step_of(plan).rounds().is_some() {
        return rounds::open(plan, run, here, at);
    }
    if run.slot(here).is_none_or(|slot| slot.state != StepState::Ready) {
        return;
    }
    let each = each_of(here.step_of(plan));
    let items = read_items(plan, run, here, each);
    let Some(slot) = run.slot_mut(here) else { return };
    let attempts_before = slot.each.as_ref().map_or(Attempt::NONE, |old| highest_attempt(old));
    slot.attempts = slot.attempts.next();
    let mut record = Record {
        status: StepStatus::Running,
        started_at: Some(at),
        attempt: slot.attempts,
        ..Record::default()
    };
    match items {
        Ok(items) => {
            slot.record = Some(Box::new(record));
            slot.each = Some(Box::new(EachRun { items, attempts_before, ..EachRun::default() }));
            slot.state = StepState::Running;
            begin_item(plan, run, here, 0, at);
        }
        Err((message, context)) => {
            record = Record::refused(2, message, context);
            record.started_at = Some(at);
            record.completed_at = Some(at);
            slot.record = Some(Box::new(record));
            slot.each = None;
            settle(plan, run, here, false, at);
        }
    }
}

/// Details of a failure, as stored in a record.
type Details = serde_json::Map<String, Value>;

/// Returns the items of a loop. The error is a message with details for debugging.
fn read_items(
    plan: &Plan,
    run: &Run,
    here: &Address,
    each: &Each,
) -> Result<Vec<Value>, (String, Details)> {
    let scope = RunScope { plan, run, loops: &here.loops };
    match &each.items {
        Items::Literal(items) => {
            items.iter().map(|item| item.render(&scope)).collect::<Result<_, _>>().map_err(
                |missing| {
                    let list: Vec<_> = missing.iter().map(|m| format!("${{{}}}", m.raw)).collect();
                    let message = format!("undefined variable in `items`: {}", list.join(", "));
                    (message, [("undefined_vars".to_owned(), list.into())].into_iter().collect())
                },
            )
        }
        Items::From(hole) => {
            let details = |reason: &str| {
                let detail = serde_json::json!([{ "reference": hole.raw, "reason": reason }]);
                [("invalid_reference".to_owned(), detail)].into_iter().collect::<Details>()
            };
            match scope.look_up(hole) {
                Ok(value) => match value.into_owned() {
                    Value::Array(items) => Ok(items),
                    other => {
                        let reason = format!("it is {}, not an array", kind(&other));
                        let message = format!("`items_from` refers to `{}`: {reason}", hole.raw);
                        Err((message, details(&reason)))
                    }
                },
                Err(missing) => {
                    let message =
                        format!("`items_from` refers to `{}`: {}", hole.raw, missing.reason);
                    Err((message, details(&missing.reason)))
                }
            }
        }
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

pub(super) fn highest_attempt(each: &EachRun) -> Attempt {
    let slots = each.iterations.iter().flat_map(|iteration| &iteration.body.slots);
    slots
        .map(|slot| {
            slot.attempts
                .max(slot.each.as_ref().map_or(Attempt::NONE, |inner| highest_attempt(inner)))
        })
        .fold(each.attempts_before, Attempt::max)
}

/// Begins an item, or ends the loop if no item is left.
fn begin_item(plan: &Plan, run: &mut Run, here: &Address, index: usize, at: Time) {
    let block = &each_of(here.step_of(plan)).block;
    let Some(each) = run.each_mut(here) else { return };
    each.index = index;
    if index >= each.items.len() {
        return close(plan, run, here, at);
    }
    let body = Body::new(block, each.attempts_before);
    each.iterations.push(Iteration { body, failed: false, result: None, lifecycle: None });
    let mut loops = here.loops.clone();
    loops.push((here.step, index));
    enter(plan, run, &loops, 0, at);
}

/// Ends a loop in which all items are done.
fn close(plan: &Plan, run: &mut Run, here: &Address, at: Time) {
    let Some(slot) = run.slot_mut(here) else { return };
    let failed = slot.each.as_ref().is_some_and(|each| {
        each.iterations.iter().any(|item| item.result == Some(ItemResult::Failure))
    });
    record_end(slot.record.get_or_insert_default(), !failed, at);
    settle(plan, run, here, !failed, at);
}

fn record_end(record: &mut Record, success: bool, at: Time) {
    record.status = if success { StepStatus::Completed } else { StepStatus::Failed };
    record.exit_code = Some(i32::from(!success));
    record.completed_at = Some(at);
    record.duration_ms = Some(at.ms_since(record.started_at.unwrap_or(at)));
}

/// Records an unhandled failure in every item that contains the step.
pub(super) fn mark_failed(run: &mut Run, here: &Address) {
    for (at, index) in here.around() {
        if let Some(item) = run.each_mut(&at).and_then(|each| each.iterations.get_mut(index)) {
            item.failed = true;
        }
    }
}

/// Ends the innermost item of `loops`; `exit` is where control goes next.
pub(super) fn finish_item(
    plan: &Plan,
    run: &mut Run,
    loops: &[(usize, usize)],
    exit: Exit,
    at: Time,
) {
    let Some(((step, index), outer)) = loops.split_last() else { return };
    let here = Address { loops: outer.to_vec(), step: *step };
    if here.step_of(plan).rounds().is_some() {
        return rounds::round_over(plan, run, &here, at);
    }
    let Some(each) = run.each_mut(&here) else { return };
    let Some(item) = each.iterations.get_mut(*index) else { return };
    let success = exit == Exit::Next && !item.failed;
    item.result = Some(if success { ItemResult::Success } else { ItemResult::Failure });
    each.leaving = Some(exit);
    if owed(plan, run, &here, *index).is_none() {
        leave(plan, run, &here, at);
    }
}

/// Returns the effect owed for the file of an item, if any.
pub(super) fn owed(plan: &Plan, run: &Run, here: &Address, index: usize) -> Option<Effect> {
    let each = run.slot(here)?.each.as_ref()?;
    let item = each.iterations.get(index)?;
    let step = || here.path(plan);
    if let Some(lifecycle) = &item.lifecycle
        && lifecycle.undo
    {
        let (from, to) = (lifecycle.to.clone(), lifecycle.from.clone());
        return Some(Effect::MoveBack { step: step(), index, from, to });
    }
    each.leaving?;
    let result = item.result?;
    let wanted = each_of(here.step_of(plan));
    let wanted = match result {
        ItemResult::Success => &wanted.on_success,
        ItemResult::Failure => &wanted.on_failure,
    };
    let settled = item.lifecycle.as_ref().is_some_and(|l| l.action_applied || l.error.is_some());
    (wanted.is_some() && !settled).then(|| Effect::MoveItem { step: step(), index, result })
}

pub(super) fn moving(
    run: &mut Run,
    here: &Address,
    index: usize,
    result: ItemResult,
    from: &str,
    to: &str,
) {
    let Some(item) = run.each_mut(here).and_then(|each| each.iterations.get_mut(index)) else {
        return;
    };
    item.lifecycle = Some(Lifecycle {
        result,
        action: "move".into(),
        from: from.into(),
        to: to.into(),
        action_applied: false,
        error: None,
        undo: false,
    });
}

pub(super) fn moved(
    plan: &Plan,
    run: &mut Run,
    here: &Address,
    index: usize,
    error: &Option<String>,
    at: Time,
) {
    let Some(each) = run.each_mut(here) else { return };
    let Some(lifecycle) = each.iterations.get_mut(index).and_then(|i| i.lifecycle.as_mut()) else {
        return;
    };
    lifecycle.action_applied = error.is_none();
    lifecycle.error = error.clone();
    if each.leaving.is_some() && each.index == index {
        leave(plan, run, here, at);
    }
}

/// Records that the file was moved back or that the move failed; in both cases the item continues.
pub(super) fn moved_back(run: &mut Run, here: &Address, index: usize, error: &Option<String>) {
    let item = run.each_mut(here).and_then(|each| each.iterations.get_mut(index));
    let Some(item) = item else { return };
    match (error, &mut item.lifecycle) {
        (Some(error), Some(lifecycle)) => {
            lifecycle.undo = false;
            lifecycle.error = Some(error.clone());
        }
        _ => item.lifecycle = None,
    }
}

/// Leaves the current item after its file has been moved.
fn leave(plan: &Plan, run: &mut Run, here: &Address, at: Time) {
    let Some(each) = run.each_mut(here) else { return };
    let Some(exit) = each.leaving.take() else { return };
    match exit {
        Exit::Next => {
            let next = each.index + 1;
            begin_item(plan, run, here, next, at);
        }
        Exit::Jump(target) => leave_loop(plan, run, here, target, at),
        Exit::Halt if here.loops.is_empty() => run.status = RunStatus::Failed,
        Exit::Halt => finish_item(plan, run, &here.loops, Exit::Halt, at),
    }
}

/// Leaves a loop by a `goto`.
fn leave_loop(plan: &Plan, run: &mut Run, here: &Address, target: Target, at: Time) {
    if let Some(slot) = run.slot_mut(here) {
        slot.state = StepState::Settled;
        // The item that control left counts as failed, and so does the loop.
        record_end(slot.record.get_or_insert_default(), false, at);
    }
    match target {
        Target::End if here.loops.is_empty() => finish(plan, run),
        Target::End => finish_item(plan, run, &here.loops, Exit::Jump(Target::End), at),
        Target::Step { out: 1, step } => enter(plan, run, &here.loops, step, at),
        Target::Step { out, step } => {
            let outward = Target::Step { out: out - 1, step };
            finish_item(plan, run, &here.loops, Exit::Jump(outward), at);
        }
    }
}

/// Makes the items that contain a halted step current again; their files are to be moved back.
pub(super) fn reopen(run: &mut Run, here: &Address) {
    for (at, index) in here.around() {
        let Some(each) = run.each_mut(&at) else { return };
        each.leaving = None;
        let Some(item) = each.iterations.get_mut(index) else { return };
        item.result = None;
        item.failed = false;
        if let Some(lifecycle) = &mut item.lifecycle {
            lifecycle.undo = lifecycle.action_applied;
        }
    }
}
