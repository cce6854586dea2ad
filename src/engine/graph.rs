//! Blocks as graphs: a step begins when its upstream steps have settled and its join rule permits
//! it; a failure never stops parallel steps.
//!
//! **Invariant:** the [`Front`] contains only what follows from the slots, so it is never stored.

use std::collections::BTreeSet;
use std::ops::Bound;

use super::effect::Effect;
use super::record::{Fault, Record, SkipCause, StepStatus};
use super::rounds;
use super::run::{Address, Body, Front, Run, RunStatus, Slot, StepState};
use crate::base::digest::Parts;
use crate::base::ids::StepPath;
use crate::base::time::Time;
use crate::template::nodes::{NodeRef, NodeText};
use crate::workflow::Plan;
use crate::workflow::plan::{
    Action, Block, Code, Edges, JoinRule, Order, ShellText, Step, When, Words,
};

/// Recomputes the front of a graph: at the start, and after slots were changed directly.
pub(crate) fn survey(root: &Block, body: &mut Body) {
    let Some(edges) = root.edges() else { return };
    let unsettled = |slot: &Slot| slot.state != StepState::Settled;
    let mut front = Front { waits: Vec::with_capacity(body.slots.len()), ..Front::default() };
    for before in &edges.before {
        let waits = before.iter().filter(|upstream| unsettled(&body.slots[**upstream])).count();
        front.waits.push(waits as u32);
    }
    for (index, slot) in body.slots.iter_mut().enumerate() {
        match slot.state {
            StepState::Pending if front.waits[index] == 0 => slot.state = StepState::Ready,
            // An upstream step is to be executed again.
            StepState::Ready if front.waits[index] > 0 => slot.state = StepState::Pending,
            _ => {}
        }
        front.left += usize::from(slot.state != StepState::Settled);
        file(&mut front, index, slot);
    }
    for index in &front.ready {
        if is_free(root, edges, &body.slots, *index) {
            front.free.insert(*index);
        }
    }
    body.front = Some(Box::new(front));
}

/// Returns true if the effect owed for a ready step starts no process: the step is skipped or kept,
/// asks a user, or ends the run.
fn is_free(root: &Block, edges: &Edges, slots: &[Slot], index: usize) -> bool {
    slots[index].keep || !root.steps[index].takes_process() || barred(edges, slots, index).is_some()
}

/// Moves a step to the set of the front that matches its state.
fn file(front: &mut Front, index: usize, slot: &Slot) {
    front.ready.remove(&index);
    if slot.state != StepState::Ready {
        front.free.remove(&index);
    }
    front.out.remove(&index);
    front.open.remove(&index);
    match slot.state {
        StepState::Pending | StepState::Settled => {}
        StepState::Ready => _ = front.ready.insert(index),
        StepState::Running if slot.each.is_none() => _ = front.out.insert(index),
        _ => _ = front.open.insert(index),
    }
}

/// Updates the front after the state of a top-level step may have changed.
pub(super) fn refile(run: &mut Run, index: usize) {
    let Body { slots, front, .. } = &mut run.body;
    if let (Some(front), Some(slot)) = (front, slots.get(index)) {
        file(front, index, slot);
    }
}

/// Settles a top-level step: makes downstream steps ready, or ends the run.
pub(super) fn settled(plan: &Plan, run: &mut Run, index: usize) {
    let Some(edges) = plan.root().edges() else { return };
    let Body { slots, front: Some(front), .. } = &mut run.body else { return };
    let mut ready = Vec::new();
    let slot = &mut slots[index];
    slot.state = StepState::Settled;
    (slot.keep, slot.before) = (false, false);
    file(front, index, slot);
    front.left = front.left.saturating_sub(1);
    for next in &edges.after[index] {
        front.waits[*next] = front.waits[*next].saturating_sub(1);
        let slot = &mut slots[*next];
        if front.waits[*next] == 0 && slot.state == StepState::Pending {
            slot.state = StepState::Ready;
            file(front, *next, slot);
            ready.push(*next);
        }
    }
    let left = front.left;
    for next in ready {
        // Compare inputs once, now: a step with new inputs is not compared again on every call.
        let keep = run.body.slots[next].keep && stands(plan, run, next);
        run.body.slots[next].keep = keep;
        let free = is_free(plan.root(), edges, &run.body.slots, next);
        if let Some(front) = run.body.front.as_mut().filter(|_| free) {
            front.free.insert(next);
        }
    }
    note_outcome(plan, run, index);
    if left == 0 && run.status == RunStatus::Running {
        finish(run);
    }
}

fn note_outcome(plan: &Plan, run: &mut Run, index: usize) {
    let failed = run.body.slots[index].status() == StepStatus::Failed;
    if !failed && run.failed_steps.is_empty() {
        return;
    }
    let path = StepPath::top(&plan.root().steps[index].name);
    run.failed_steps.retain(|other| *other != path);
    if failed {
        run.failed_steps.push(path);
    }
}

/// Ends a run in which all steps have settled.
fn finish(run: &mut Run) {
    let completed = |slot: &Slot| slot.status() == StepStatus::Completed;
    run.status = if !run.failed_steps.is_empty() {
        RunStatus::Failed
    } else if run.body.slots.iter().any(completed) {
        RunStatus::Completed
    } else {
        run.error = Some("no node completed: all of them were skipped".into());
        RunStatus::Failed
    };
}

/// Returns the reason why its upstream steps prevent a step from running, or `None` if it may run.
pub(super) fn barred(edges: &Edges, slots: &[Slot], index: usize) -> Option<SkipCause> {
    let (mut completed, mut failed, mut skipped) = (0, 0, 0);
    for upstream in &edges.before[index] {
        let slot = &slots[*upstream];
        let cause = slot.record.as_ref().and_then(|record| record.skip_cause);
        match slot.status() {
            StepStatus::Completed => completed += 1,
            StepStatus::Skipped if cause != Some(SkipCause::UpstreamFailed) => skipped += 1,
            _ => failed += 1,
        }
    }
    let all = completed + failed + skipped;
    let runs = match edges.rules[index] {
        _ if all == 0 => true,
        JoinRule::AllSuccess => completed == all,
        JoinRule::OneSuccess => completed > 0,
        JoinRule::NoneFailedMinOneSuccess => failed == 0 && completed > 0,
        JoinRule::AllDone => true,
    };
    match (runs, failed) {
        (true, _) => None,
        (false, 0) => Some(SkipCause::UpstreamSkipped),
        (false, _) => Some(SkipCause::UpstreamFailed),
    }
}

/// Returns the effects owed to a graph, with at most `room` executions.
pub(super) fn owed(plan: &Plan, run: &Run, front: &Front, mut room: usize) -> Vec<Effect> {
    let Some(edges) = plan.root().edges() else { return Vec::new() };
    let mut effects = Vec::new();
    // All wake times, not only the first: clocks may be adjusted, and the duration of a rest can be
    // measured only from its start.
    let mut rests = BTreeSet::new();
    for index in &front.open {
        let here = run.inner_position(*index);
        let Some(slot) = run.slot(&here) else { continue };
        match slot.state {
            StepState::Resting { until } => _ = rests.insert(until),
            StepState::Ready if room == 0 && here.step_of(plan).takes_process() => {}
            _ => {
                let owed = super::owed_by(plan, &here, slot);
                if here.step_of(plan).takes_process() {
                    let work = owed.iter().filter(|effect| effect.is_work()).count();
                    room = room.saturating_sub(work);
                }
                effects.extend(owed);
            }
        }
    }
    // If a step may end the run, begin no new step before it.
    let (begun, mut ends) = (effects.len(), Vec::new());
    let mut next = if room == 0 { front.free.first() } else { front.ready.first() };
    while let Some(index) = next {
        let here = Address { loops: Vec::new(), step: *index };
        let slot = &run.body.slots[*index];
        if let Some(cause) = barred(edges, &run.body.slots, *index) {
            effects.push(Effect::Skip { step: here.path(plan), cause });
        } else if slot.keep && stands(plan, run, *index) {
            effects.push(Effect::Keep { step: here.path(plan) });
        } else if matches!(here.step_of(plan).action, Action::Cancel { .. }) {
            ends.extend(super::owed_by(plan, &here, slot));
        } else if !here.step_of(plan).takes_process() {
            effects.extend(super::owed_by(plan, &here, slot));
        } else if room > 0 {
            room -= 1;
            effects.extend(super::owed_by(plan, &here, slot));
        }
        // Without room, consider only steps that need none.
        let left = if room == 0 { &front.free } else { &front.ready };
        next = left.range((Bound::Excluded(index), Bound::Unbounded)).next();
    }
    effects.splice(begun..begun, ends);
    effects.extend(rests.into_iter().map(|at| Effect::Wake { at }));
    effects
}

/// Returns true if a step that completed before would get the same inputs again.
fn stands(plan: &Plan, run: &Run, index: usize) -> bool {
    let record = run.body.slots[index].record.as_ref();
    record.is_some_and(|record| record.inputs.as_ref() == Some(&inputs(plan, run, index)))
}

/// Returns a digest of the results of the steps that a step can see: its upstream steps and the
/// steps it references. If the step sees all earlier results, all its ancestors count.
pub(crate) fn inputs(plan: &Plan, run: &Run, index: usize) -> String {
    let step = &plan.root().steps[index];
    let mut seen: BTreeSet<usize> = BTreeSet::new();
    if let Some(edges) = plan.root().edges() {
        match sees_all(step) {
            true => seen = reached(&edges.before, &BTreeSet::from([index])),
            false => seen.extend(&edges.before[index]),
        }
    }
    for reference in references(step) {
        seen.extend(plan.root().find(&reference.node).map(|(index, _)| index));
    }
    let mut digest = Parts::default();
    for upstream in seen {
        let slot = &run.body.slots[upstream];
        digest.add(&plan.root().steps[upstream].name);
        digest.add(&format!("{:?}", slot.status()));
        let record = slot.record.as_deref();
        digest.add(record.and_then(|record| record.output.as_deref()).unwrap_or_default());
        let whole = record.and_then(|record| record.whole.as_ref());
        digest.add(whole.map_or("", |whole| &whole.sha256));
    }
    digest.hex()
}

/// Returns true if a step sees all earlier results. A gate does, because its approval releases
/// everything downstream; a spell may, because it can use any name.
fn sees_all(step: &Step) -> bool {
    match &step.action {
        Action::Gate(_) => true,
        Action::Prompt(prompt) => matches!(prompt.words, Words::Spell(_)),
        Action::Rounds(rounds) => rounds.block.steps.iter().any(sees_all),
        _ => false,
    }
}

/// Returns every reference in a step's text and in its command file. Scripts in files have none.
pub(crate) fn references(step: &Step) -> Vec<NodeRef> {
    let mut found: Vec<NodeRef> = Vec::new();
    let mut add = |text: &NodeText| found.extend(text.refs().cloned());
    match &step.action {
        Action::Prompt(prompt) => match &prompt.words {
            Words::Inline(text) => add(text),
            Words::Command(command) => found.clone_from(&command.refs),
            Words::Spell(_) => {}
        },
        Action::Shell { script: ShellText::Node(script) } => add(script),
        Action::Script(script) => match &script.code {
            Code::Inline(text) => add(text),
            Code::Named(_) => {}
        },
        Action::Gate(gate) => add(&gate.message),
        Action::Cancel { reason } => add(reason),
        Action::Rounds(rounds) => {
            found.extend(rounds.block.steps.iter().flat_map(references));
        }
        Action::Shell { script: ShellText::Spell(_) }
        | Action::Exec { .. }
        | Action::Ask { .. }
        | Action::Wait(_)
        | Action::Each(_)
        | Action::Merge { .. } => {}
    }
    if let Some(When::Outputs(condition)) = &step.when {
        found.extend(condition.refs().cloned());
    }
    found
}

/// Makes the steps ready whose rest has ended.
pub(super) fn wake(run: &mut Run, at: Time) {
    let Some(front) = &run.body.front else { return };
    for index in front.open.clone() {
        let here = run.inner_position(index);
        let Some(slot) = run.slot_mut(&here) else { continue };
        if matches!(slot.state, StepState::Resting { until } if until <= at) {
            slot.state = StepState::Ready;
        }
        refile(run, index);
    }
}

/// Ends every open step of a run that is cancelled.
pub(super) fn stop_all(plan: &Plan, run: &mut Run, at: Time) {
    let Some(front) = &run.body.front else { return };
    for index in front.begun().copied().collect::<Vec<_>>() {
        let here = run.inner_position(index);
        for at_step in [here, Address { loops: Vec::new(), step: index }] {
            let Some(slot) = run.slot_mut(&at_step) else { continue };
            if !matches!(slot.state, StepState::Ready | StepState::Settled) {
                stop(slot, at);
            }
        }
    }
    survey(plan.root(), &mut run.body);
}

/// Ends an attempt as cancelled.
pub(super) fn stop(slot: &mut Slot, at: Time) {
    slot.state = StepState::Settled;
    let record = slot.record.get_or_insert_default();
    record.status = StepStatus::Failed;
    record.completed_at = Some(at);
    record.exit_code = Some(128 + 15);
    let message = "the run was cancelled".to_owned();
    record.error = Some(Fault { message, exit_code: 128 + 15, ..Fault::default() });
}

/// Resumes a graph: interrupted attempts are owed again. With `anew` (a user requested it, or the
/// run had ended), so are failed steps, steps skipped because of a failure, and steps that always
/// run. Steps downstream of these stand only if their inputs do not change.
pub(super) fn resume(plan: &Plan, run: &mut Run, anew: bool, from: Option<usize>, at: Time) {
    let Some(edges) = plan.root().edges() else { return };
    let mut again: BTreeSet<usize> = from.into_iter().collect();
    for index in 0..run.body.slots.len() {
        let step = &plan.root().steps[index];
        if anew && is_owed_again(step, &run.body.slots[index]) {
            again.insert(index);
        } else {
            take_up(plan, run, index, at);
        }
    }
    let behind = reached(&edges.after, &again);
    for index in &again {
        // A step that gets new inputs begins again.
        let reset = from == Some(*index) || behind.contains(index);
        reopen(plan, run, *index, reset);
    }
    for index in behind.difference(&again) {
        // A task that is out continues with its old inputs.
        if !is_out(run, *index) {
            look_again(&mut run.body.slots[*index]);
        }
    }
    // No result downstream of the step that the user named stands, regardless of inputs: each such
    // step is visited once more, like the named step, and without its earlier conversation with
    // agents.
    for index in from.map(|from| done_again(plan.root(), from)).unwrap_or_default() {
        let visited = again.contains(&index) || is_out(run, index);
        let slot = &mut run.body.slots[index];
        slot.keep = false;
        if !visited && !slot.attempts.is_none() {
            slot.visits = slot.visits.max(1) + 1;
        }
    }
    run.failed_steps.retain(|path| {
        let found = plan.root().find(&path.step);
        found.is_some_and(|(index, _)| run.body.slots[index].state == StepState::Settled)
    });
    if anew {
        for slot in &mut run.body.slots {
            let settled = slot.state == StepState::Settled;
            slot.before = settled && slot.status() == StepStatus::Completed;
        }
    }
    survey(plan.root(), &mut run.body);
    if run.body.front.as_ref().is_some_and(|front| front.left == 0) {
        finish(run);
    }
}

/// Returns true if resuming the run would execute anything. A sequence can always go on at its
/// cursor.
pub(crate) fn has_more(plan: &Plan, run: &Run) -> bool {
    if plan.root().order == Order::Sequence {
        return true;
    }
    let mut steps = plan.root().steps.iter().zip(&run.body.slots);
    steps.any(|(step, slot)| slot.state != StepState::Settled || is_owed_again(step, slot))
}

/// Returns the top-level steps that are repeated if a run continues from a step: in a graph, that
/// step and all steps downstream of it; in a sequence, all steps, because none is independent of
/// another.
pub(crate) fn done_again(root: &Block, from: usize) -> BTreeSet<usize> {
    match &root.order {
        Order::Sequence => (0..root.steps.len()).collect(),
        Order::Graph(edges) => {
            let from = BTreeSet::from([from]);
            reached(&edges.after, &from).into_iter().chain(from).collect()
        }
    }
}

/// Returns true if a settled step is owed again when its run is resumed after its end.
fn is_owed_again(step: &Step, slot: &Slot) -> bool {
    let cause = slot.record.as_ref().and_then(|record| record.skip_cause);
    slot.state == StepState::Settled
        && match slot.status() {
            StepStatus::Failed => true,
            StepStatus::Skipped => cause == Some(SkipCause::UpstreamFailed),
            // A node that cancelled the run decides again whether to cancel it.
            _ => step.always_run || matches!(step.action, Action::Cancel { .. }),
        }
}

/// Returns true if an attempt of a step, or of a step in its rounds, is out as a task.
fn is_out(run: &Run, index: usize) -> bool {
    let slot = run.slot(&run.inner_position(index));
    slot.is_some_and(|slot| {
        let task = slot.record.as_ref().is_some_and(|record| record.task.is_some());
        slot.state == StepState::Running && task
    })
}

/// Makes an interrupted attempt ready again. A task that is out continues regardless of which
/// process drives the run.
fn take_up(plan: &Plan, run: &mut Run, index: usize, at: Time) {
    let here = run.inner_position(index);
    let step = here.step_of(plan);
    let Some(slot) = run.slot_mut(&here) else { return };
    match slot.state {
        StepState::Running if slot.each.is_none() => {
            let out = slot.record.as_ref().is_some_and(|record| record.task.is_some());
            if !out {
                slot.state = StepState::Ready;
                slot.tries = slot.tries.saturating_sub(1);
            }
        }
        // The time may come from another machine's clock: limit the rest to its intended length.
        StepState::Resting { until } => {
            let most = super::sequence::longest_rest_ms(step, slot, at);
            slot.state = StepState::Resting { until: until.min(at.plus_ms(most)) };
        }
        _ => {}
    }
}

/// Marks a settled step for another execution.
fn reopen(plan: &Plan, run: &mut Run, index: usize, reset: bool) {
    let slot = &mut run.body.slots[index];
    slot.tries = 0;
    (slot.keep, slot.before) = (false, false);
    if slot.each.is_some() && !reset && rounds::reopen(&plan.root().steps[index], slot) {
        return;
    }
    if reset {
        slot.visits = slot.visits.max(1) + 1;
    }
    slot.state = StepState::Pending;
}

/// Marks a step downstream of a repeated step for another check. This includes rounds that have
/// begun: with the same inputs they continue where they are, including an answered question whose
/// answer has not been read yet.
fn look_again(slot: &mut Slot) {
    match slot.state {
        StepState::Settled => {
            slot.keep = slot.status() == StepStatus::Completed;
            slot.tries = 0;
        }
        StepState::Running => slot.keep = slot.is_open(),
        _ => {}
    }
    slot.state = StepState::Pending;
}

/// Returns all steps reachable from `steps` in one direction: downstream or upstream.
fn reached(way: &[Vec<usize>], steps: &BTreeSet<usize>) -> BTreeSet<usize> {
    let mut left: Vec<usize> = steps.iter().copied().collect();
    let mut seen = BTreeSet::new();
    while let Some(index) = left.pop() {
        left.extend(way[index].iter().filter(|next| seen.insert(**next)));
    }
    seen
}

/// Keeps the earlier result of a step.
pub(super) fn keep(plan: &Plan, run: &mut Run, here: &Address) {
    let Some(slot) = run.slot_mut(here) else { return };
    if slot.state != StepState::Ready || !slot.keep || !here.loops.is_empty() {
        return;
    }
    if slot.is_open() {
        slot.state = StepState::Running;
        slot.keep = false;
        return;
    }
    settled(plan, run, here.step);
    run.body.slots[here.step].before = true;
}

/// Records the digest of the inputs of a top-level step.
pub(super) fn note_inputs(plan: &Plan, run: &mut Run, here: &Address) {
    if here.loops.is_empty() && run.body.front.is_some() {
        let inputs = inputs(plan, run, here.step);
        if let Some(record) = run.body.slots[here.step].record.as_deref_mut() {
            record.inputs = Some(inputs);
        }
    }
}

/// Cancels a run because of a node's result.
pub(super) fn cancelled_by(run: &mut Run, record: &Record) {
    let reason = record.output.clone().unwrap_or_default();
    run.status = RunStatus::Cancelled;
    run.error = Some(reason);
}
