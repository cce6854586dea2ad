//! Rounds: a loop that asks an agent until it is done, and an approval that asks a user until they
//! agree. Each round is a sequence of its own.

use super::record::{Answer, Fault, GateRecord, Record, StepStatus};
use super::run::{Address, Body, EachRun, Iteration, Run, RunStatus, Slot, StepState};
use super::sequence::{enter, note_failure, settle};
use super::{graph, limits};
use crate::base::ids::{Attempt, counted};
use crate::base::time::Time;
use crate::workflow::Plan;
use crate::workflow::plan::{Action, Block, OnMost, Rounds, RoundsKind, Step};

/// Opens the step and begins its first round.
pub(super) fn open(plan: &Plan, run: &mut Run, here: &Address, at: Time) {
    let Some(slot) = run.slot_mut(here).filter(|slot| slot.state == StepState::Ready) else {
        return;
    };
    let attempts_before =
        slot.each.as_ref().map_or(Attempt::NONE, |old| super::iterate::highest_attempt(old));
    slot.attempts = slot.attempts.next();
    slot.state = StepState::Running;
    slot.record = Some(Box::new(Record {
        status: StepStatus::Running,
        started_at: Some(at),
        attempt: slot.attempts,
        ..Record::default()
    }));
    slot.each = Some(Box::new(EachRun { attempts_before, ..EachRun::default() }));
    graph::note_inputs(plan, run, here);
    begin(plan, run, here, 0, at);
}

fn begin(plan: &Plan, run: &mut Run, here: &Address, index: usize, at: Time) {
    let Some(rounds) = here.step_of(plan).rounds() else { return };
    let Some(each) = run.each_mut(here) else { return };
    each.index = index;
    let body = Body::new(&rounds.block, each.attempts_before);
    each.iterations.push(Iteration { body, failed: false, result: None, lifecycle: None });
    let mut loops = here.loops.clone();
    loops.push((here.step, index));
    limits::go_on(plan, run, &loops, 0, at);
}

/// Returns the index of the first step whose action satisfies `is`.
fn position(block: &Block, is: impl Fn(&Action) -> bool) -> Option<usize> {
    block.steps.iter().position(|step| is(&step.action))
}

/// Records that a gate waits for a user.
pub(super) fn gated(run: &mut Run, here: &Address, attempt: Attempt, gate: &GateRecord, at: Time) {
    let Some(slot) = run.slot_mut(here) else { return };
    if slot.state != StepState::Ready || attempt != slot.attempts.next() {
        return;
    }
    slot.state = StepState::Waiting;
    slot.attempts = attempt;
    slot.tries += 1;
    slot.record = Some(Box::new(Record {
        status: StepStatus::Paused,
        started_at: Some(at),
        attempt,
        gate: Some(Box::new(gate.clone())),
        ..Record::default()
    }));
}

/// Records a user's answer to a gate.
pub(super) fn answered(
    plan: &Plan,
    run: &mut Run,
    here: &Address,
    attempt: Attempt,
    answer: &Answer,
    at: Time,
) {
    let Some(slot) = run.slot_mut(here) else { return };
    if slot.state != StepState::Waiting || attempt != slot.attempts {
        return;
    }
    let record = slot.record.get_or_insert_default();
    if let Some(gate) = &mut record.gate {
        gate.answer = Some(answer.clone());
    }
    if let Action::Merge { .. } = here.step_of(plan).action {
        return reviewed(plan, run, here, answer, at);
    }
    record.status = StepStatus::Completed;
    record.exit_code = Some(0);
    record.output = Some(answer.comment.clone());
    record.completed_at = Some(at);
    record.duration_ms = Some(at.ms_since(record.started_at.unwrap_or(at)));
    slot.state = StepState::Settled;
    settled(plan, run, here, true, at);
}

/// Applies the review of a merge. An approved merge becomes ready; a rejected one fails. The time
/// of the review does not count against time limits.
fn reviewed(plan: &Plan, run: &mut Run, here: &Address, answer: &Answer, at: Time) {
    if limits::any(plan) {
        run.taken_up_at = Some(at);
    }
    let Some(slot) = run.slot_mut(here) else { return };
    if answer.approve {
        slot.state = StepState::Ready;
        return;
    }
    let message = match answer.comment.as_str() {
        "" => "the merge was rejected".to_owned(),
        reason => format!("the merge was rejected: {reason}"),
    };
    let record = slot.record.get_or_insert_default();
    record.status = StepStatus::Failed;
    record.exit_code = Some(1);
    record.completed_at = Some(at);
    record.duration_ms = Some(at.ms_since(record.started_at.unwrap_or(at)));
    record.error = Some(Fault { message, exit_code: 1, ..Fault::default() });
    settle(plan, run, here, false, at);
}

/// Ends a round of repeated steps in which no step ended the loop: begins the next round, or
/// applies `on_most` after the last.
pub(super) fn round_over(plan: &Plan, run: &mut Run, around: &Address, at: Time) {
    let Some(rounds) = around.step_of(plan).rounds() else { return };
    let RoundsKind::Steps { on_most } = rounds.kind else { return };
    let Some(each) = run.each_mut(around) else { return };
    let done = each.index + 1;
    if done < rounds.most as usize {
        return begin(plan, run, around, done, at);
    }
    let message =
        format!("not done after {} (`max_iterations`)", counted(rounds.most as usize, "round"));
    match on_most {
        OnMost::Continue => {
            end_loop(run, around, StepStatus::Completed, at, |record| {
                record.exit_code = Some(0);
                record.warning = Some(message);
            });
            settle(plan, run, around, true, at);
        }
        OnMost::Block => limits::fail(plan, run, around, 1, message, at),
        OnMost::Fail => {
            let error = Fault { message, exit_code: 1, ..Fault::default() };
            end_loop(run, around, StepStatus::Failed, at, |record| {
                record.exit_code = Some(1);
                record.error = Some(error);
            });
            if let Some(slot) = run.slot_mut(around) {
                slot.state = StepState::Settled;
            }
            note_failure(plan, run, around);
            run.status = RunStatus::Failed;
        }
    }
}

/// Completes the loop around a step that ended it.
pub(super) fn exited(plan: &Plan, run: &mut Run, here: &Address, at: Time) {
    let Some(around) = here.parent() else { return };
    end_loop(run, &around, StepStatus::Completed, at, |record| record.exit_code = Some(0));
    settle(plan, run, &around, true, at);
}

/// Closes a loop of steps. Afterwards, none of its rounds is current.
pub(super) fn end_loop(
    run: &mut Run,
    around: &Address,
    status: StepStatus,
    at: Time,
    set: impl FnOnce(&mut Record),
) {
    let Some(slot) = run.slot_mut(around) else { return };
    if let Some(each) = slot.each.as_deref_mut() {
        each.index = each.iterations.len();
    }
    let record = slot.record.get_or_insert_default();
    record.status = status;
    record.completed_at = Some(at);
    record.duration_ms = Some(at.ms_since(record.started_at.unwrap_or(at)));
    set(record);
}

/// Decides what follows a settled step of a round.
pub(super) fn settled(plan: &Plan, run: &mut Run, here: &Address, success: bool, at: Time) {
    let Some(around) = here.parent() else { return };
    let Some(rounds) = around.step_of(plan).rounds() else { return };
    let Some((_, index)) = here.loops.last().copied() else { return };
    if let Some(slot) = run.slot_mut(here) {
        slot.state = StepState::Settled;
    }
    let record = run.slot(here).and_then(|slot| slot.record.as_deref()).cloned();
    let record = record.unwrap_or_default();
    let round = Round { plan, around, rounds, index, at };
    match (rounds.kind, &here.step_of(plan).action) {
        (RoundsKind::Loop, Action::Prompt(_)) if !success => round.fail(run, &record),
        (RoundsKind::Loop, Action::Prompt(_)) if record.until_met == Some(true) => {
            round.complete(run, &record);
        }
        (RoundsKind::Loop, Action::Prompt(_)) => round.check(run, &here.loops),
        (RoundsKind::Loop, Action::Shell { .. }) if success => {
            let said = round.said(run).unwrap_or_default();
            round.complete(run, &said);
        }
        // A check that could not run says nothing about whether the loop is done.
        (RoundsKind::Loop, Action::Shell { .. }) if record.metrics.is_none() => {
            round.fail(run, &record);
        }
        (RoundsKind::Loop, Action::Shell { .. }) => {
            round.next(run, &here.loops, unmade(record.exit_code));
        }
        (_, Action::Gate(gate)) => {
            let answer = record.gate.as_ref().and_then(|gate| gate.answer.clone());
            match answer {
                None => round.fail(run, &record),
                Some(answer) if answer.approve => round.approved(run, &answer, gate.capture),
                Some(answer) => round.rejected(run, &here.loops, &answer),
            }
        }
        (RoundsKind::Approval, _) if success => {
            begin(plan, run, &round.around, index + 1, at);
        }
        _ => round.fail(run, &record),
    }
}

/// Returns the reason why a check with this exit code did not decide whether a loop is done, or
/// `None` if it did. A later round may provide what the check lacks, so the loop continues; the
/// reason is for the user.
pub(crate) fn unmade(exit_code: Option<i32>) -> Option<&'static str> {
    match exit_code? {
        124 => Some("it took too long"),
        126 => Some("something in it cannot be executed"),
        127 => Some("a program in it was not found"),
        code if code > 128 => Some("it was killed"),
        _ => None,
    }
}

/// The round that an event belongs to.
struct Round<'a> {
    plan: &'a Plan,
    around: Address,
    rounds: &'a Rounds,
    index: usize,
    at: Time,
}

impl Round<'_> {
    fn enter(&self, run: &mut Run, loops: &[(usize, usize)], step: usize) {
        enter(self.plan, run, loops, step, self.at);
    }

    /// Runs the check that decides whether the loop is done. Without a check, continues with the
    /// next round.
    fn check(&self, run: &mut Run, loops: &[(usize, usize)]) {
        let check = position(&self.rounds.block, |a| matches!(a, Action::Shell { .. }));
        match check {
            Some(step) => self.enter(run, loops, step),
            None => self.next(run, loops, None),
        }
    }

    /// Continues a loop that is not done: asks a user if the loop has a gate, else begins the next
    /// round. Fails after the last round. `unmade` is the reason why the check could not decide.
    fn next(&self, run: &mut Run, loops: &[(usize, usize)], unmade: Option<&str>) {
        if self.index + 1 >= self.rounds.most as usize {
            let most = counted(self.rounds.most as usize, "round");
            let why = unmade.map(|why| format!("; the last check could not be made: {why}"));
            let why = why.unwrap_or_default();
            let message = format!("not done after {most} (`max_iterations`){why}");
            let said = self.said(run).unwrap_or_default();
            let error = Fault { message, exit_code: 1, ..Fault::default() };
            let record = Record { error: Some(error), exit_code: Some(1), ..said };
            return self.fail(run, &record);
        }
        match position(&self.rounds.block, |a| matches!(a, Action::Gate(_))) {
            Some(gate) => self.enter(run, loops, gate),
            None => begin(self.plan, run, &self.around, self.index + 1, self.at),
        }
    }

    /// Returns the record of the agent's answer in this round.
    fn said(&self, run: &Run) -> Option<Record> {
        let each = run.slot(&self.around)?.each.as_ref()?;
        let step = position(&self.rounds.block, |a| matches!(a, Action::Prompt(_)))?;
        let slot = each.iterations.get(self.index)?.body.slots.get(step)?;
        slot.record.as_deref().cloned()
    }

    fn approved(&self, run: &mut Run, answer: &Answer, capture: bool) {
        if self.rounds.kind == RoundsKind::Loop {
            return begin(self.plan, run, &self.around, self.index + 1, self.at);
        }
        let said = match (capture, answer.comment.as_str()) {
            (false, _) => "",
            (true, "") => "Approved",
            (true, comment) => comment,
        };
        self.complete(run, &Record { output: Some(said.to_owned()), ..Record::default() });
    }

    fn rejected(&self, run: &mut Run, loops: &[(usize, usize)], answer: &Answer) {
        let rework = match self.rounds.kind {
            RoundsKind::Loop | RoundsKind::Steps { .. } => None,
            RoundsKind::Approval => {
                position(&self.rounds.block, |a| matches!(a, Action::Prompt(_)))
            }
        };
        if let Some(step) = rework.filter(|_| self.index + 1 < self.rounds.most as usize) {
            return self.enter(run, loops, step);
        }
        let name = &self.around.step_of(self.plan).name;
        let times = match self.index + 1 {
            1 => String::new(),
            times => format!(" {times} times"),
        };
        let reason = match answer.comment.as_str() {
            "" => String::new(),
            comment => format!(": {comment}"),
        };
        let message = format!("`{name}` was rejected{times}{reason}");
        let error = Fault { message: message.clone(), exit_code: 1, ..Fault::default() };
        // End the run before its step, so that no later step begins.
        run.status = RunStatus::Cancelled;
        run.error = Some(message);
        self.fail(run, &Record { error: Some(error), exit_code: Some(1), ..Record::default() });
        graph::stop_all(self.plan, run, self.at);
    }

    fn complete(&self, run: &mut Run, from: &Record) {
        self.close(run, StepStatus::Completed, from);
    }

    fn fail(&self, run: &mut Run, from: &Record) {
        self.close(run, StepStatus::Failed, from);
    }

    /// Ends the step that contains the rounds, with the outcome of its last round.
    fn close(&self, run: &mut Run, status: StepStatus, from: &Record) {
        let Some(slot) = run.slot_mut(&self.around) else { return };
        let record = slot.record.get_or_insert_default();
        let failed = status == StepStatus::Failed;
        record.status = status;
        record.exit_code = Some(if failed { from.exit_code.unwrap_or(1).max(1) } else { 0 });
        record.output = from.output.clone();
        record.json = from.json.clone();
        record.whole = from.whole.clone();
        record.truncated = from.truncated;
        record.error = from.error.clone().filter(|_| failed);
        record.completed_at = Some(self.at);
        record.duration_ms = Some(self.at.ms_since(record.started_at.unwrap_or(self.at)));
        graph::settled(self.plan, run, self.around.step);
    }
}

/// Continues with the round that failed. Returns false if it cannot: a loop that used all its
/// rounds and an approval that was rejected must begin again.
pub(super) fn reopen(step: &Step, slot: &mut Slot) -> bool {
    let Some(rounds) = step.rounds() else { return false };
    let Some(each) = slot.each.as_deref_mut() else { return false };
    let Some(round) = each.iterations.get_mut(each.index) else { return false };
    let cursor = round.body.cursor;
    let inner = &rounds.block.steps[cursor].action;
    let Some(failed) = round.body.slots.get_mut(cursor) else { return false };
    if failed.status() != StepStatus::Failed || matches!(inner, Action::Shell { .. }) {
        return false;
    }
    failed.state = StepState::Ready;
    failed.tries = 0;
    slot.state = StepState::Running;
    let record = slot.record.get_or_insert_default();
    record.status = StepStatus::Running;
    (record.exit_code, record.error) = (None, None);
    (record.completed_at, record.duration_ms) = (None, None);
    true
}
