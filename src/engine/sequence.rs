//! Blocks in sequence: the cursor, attempts and retries, and the flow of control after a step.

use super::event::Choice;
use super::record::{Record, SkipCause, StepStatus, TaskRef};
use super::run::{Address, Exit, OnError, Policy, Run, RunStatus, Slot, StepState, block_of};
use super::{graph, iterate, limits, rounds};
use crate::agent::Usage;
use crate::agent::faults::FaultClass;
use crate::base::ids::{Attempt, TaskAttempt};
use crate::base::time::Time;
use crate::workflow::Plan;
use crate::workflow::plan::{Action, OnFail, Order, Retries, Step, Target, Which, Words};

/// Moves the cursor of the block inside `loops` to a step, or past its last one.
pub(super) fn enter(plan: &Plan, run: &mut Run, loops: &[(usize, usize)], step: usize, at: Time) {
    let block = block_of(plan, loops);
    let most = block.steps.get(step).map(|step| run.origin.policy.most_visits(step));
    let Some(sequence) = run.sequence_mut(loops) else { return };
    sequence.cursor = step;
    let Some(slot) = sequence.slots.get_mut(step) else {
        return past_the_end(plan, run, loops, at);
    };
    slot.state = StepState::Ready;
    slot.visits += 1;
    slot.tries = 0;
    if let Some(most) = most.filter(|most| slot.visits > *most) {
        let Step { name, in_agent_cycle, .. } = &block.steps[step];
        let asks = if *in_agent_cycle { " that asks an agent" } else { "" };
        run.error = Some(format!(
            "step `{name}` was visited {most} times: a `goto` cycle{asks} does not end \
             (`limits.max_visits` in the settings allows more)"
        ));
        run.status = RunStatus::Failed;
    }
}

fn past_the_end(plan: &Plan, run: &mut Run, loops: &[(usize, usize)], at: Time) {
    if loops.is_empty() {
        finish(plan, run);
    } else {
        iterate::finish_item(plan, run, loops, Exit::Next, at);
    }
}

/// Ends the run. Failures that the workflow's author chose to pass over do not count; failures
/// passed over because the user asked to keep going do.
pub(super) fn finish(plan: &Plan, run: &mut Run) {
    let kept_going = plan.is_strict() && !run.failed_steps.is_empty();
    run.status = if kept_going { RunStatus::Failed } else { RunStatus::Completed };
}

pub(super) fn launch(
    plan: &Plan,
    run: &mut Run,
    here: &Address,
    attempt: Attempt,
    task: &Option<TaskRef>,
    at: Time,
) {
    let Some(slot) = run.slot_mut(here) else { return };
    if slot.state != StepState::Ready || attempt != slot.attempts.next() {
        return;
    }
    slot.state = StepState::Running;
    slot.attempts = attempt;
    slot.tries += 1;
    slot.keep = false;
    let asked_again = slot.record.as_ref().map_or(0, |record| asked_again(record));
    let spent_before = slot.record.as_deref().and_then(|record| spent(plan, here, record));
    // A user's answer about a merge stays with the merge.
    let merges = matches!(here.step_of(plan).action, Action::Merge { .. });
    let gate = slot.record.take().filter(|_| merges).and_then(|record| record.gate);
    slot.record = Some(Box::new(Record {
        status: StepStatus::Running,
        started_at: Some(at),
        attempt,
        task: task.clone(),
        asked_again,
        gate,
        spent_before: spent_before.map(Box::new),
        ..Record::default()
    }));
    graph::note_inputs(plan, run, here);
}

/// Returns the cost of the attempts up to this one. The cost of an attempt that was interrupted
/// while it asked an agent is unknown.
fn spent(plan: &Plan, here: &Address, last: &Record) -> Option<Usage> {
    let mut spent = last.spent();
    let provider = match &here.step_of(plan).action {
        Action::Ask { provider, .. } => provider,
        Action::Prompt(prompt) => &prompt.provider,
        _ => return spent,
    };
    let tells = plan.providers().get(provider).is_some_and(|known| known.adapter.is_stream());
    // For a task, the worker knows what it spent.
    if tells && last.status == StepStatus::Running && last.task.is_none() {
        Usage::default().add_to(&mut spent);
    }
    spent
}

/// Returns the `asked_again` count of the next attempt.
fn asked_again(last: &Record) -> u32 {
    match &last.error {
        Some(error) if error.ask_again && last.status == StepStatus::Failed => last.asked_again + 1,
        _ => 0,
    }
}

pub(super) fn end(
    plan: &Plan,
    run: &mut Run,
    here: &Address,
    attempt: Attempt,
    record: &Record,
    at: Time,
) {
    let Some(slot) = run.slot_mut(here) else { return };
    let refused = slot.state == StepState::Ready && attempt == slot.attempts.next();
    let open = matches!(slot.state, StepState::Running | StepState::Waiting);
    let ran = open && attempt == slot.attempts && !slot.attempts.is_none();
    if !refused && !ran {
        return;
    }
    if refused {
        slot.attempts = attempt;
        slot.tries += 1;
        slot.each = None;
    }
    let last = slot.record.take().unwrap_or_default();
    let before = spent(plan, here, &last).filter(|_| refused).map(Box::new);
    let before = Record { spent_before: before, ..Record::default() };
    let launched = if ran { last } else { Box::new(before) };
    let started = launched.started_at.unwrap_or(at);
    let mut record = record.clone();
    record.task = launched.task;
    record.asked_again = launched.asked_again;
    record.inputs = launched.inputs;
    record.gate = launched.gate;
    record.spent_before = launched.spent_before;
    record.executions = launched.executions;
    if let Some(warning) = launched.warning {
        record.warning = Some(match record.warning.take() {
            Some(other) => format!("{warning}; {other}"),
            None => warning,
        });
    }
    record.attempt = attempt;
    record.started_at = Some(started);
    record.completed_at = Some(at);
    record.duration_ms.get_or_insert(at.ms_since(started));
    let success = record.exit_code == Some(0);
    let cancels = success && matches!(here.step_of(plan).action, Action::Cancel { .. });
    if cancels {
        graph::cancelled_by(run, &record);
    }
    let Some(slot) = run.slot_mut(here) else { return };
    slot.record = Some(Box::new(record));
    if refused {
        graph::note_inputs(plan, run, here);
    }
    if let Some(delay_ms) = retry_delay(plan, run, here, at) {
        let Some(slot) = run.slot_mut(here) else { return };
        slot.state = match delay_ms {
            0 => StepState::Ready,
            _ => StepState::Resting { until: at.plus_ms(delay_ms) },
        };
        return;
    }
    settle(plan, run, here, success, at);
    if cancels {
        graph::stop_all(plan, run, at);
    }
}

/// Returns the maximum number of times an agent is asked again for an answer in the right form.
fn may_ask_again(step: &Step) -> u32 {
    match &step.action {
        // The agent repeats all of its work, so it is asked only once.
        Action::Prompt(prompt) if matches!(prompt.words, Words::Spell(_)) => 1,
        _ => 3,
    }
}

/// Number of times a step without retries of its own waits until the time that its provider named.
const WAITS: u32 = 3;

/// Returns the delay before the next try of a failed step, or `None` if it has no try left.
fn retry_delay(plan: &Plan, run: &Run, here: &Address, at: Time) -> Option<u64> {
    let step = here.step_of(plan);
    let policy = &run.origin.policy;
    let slot = run.slot(here)?;
    let record = slot.record.as_deref()?;
    let error = record.error.as_ref();
    if error.is_some_and(|error| error.ask_again) && record.asked_again < may_ask_again(step) {
        return Some(0);
    }
    // A rate limit does not count as a failure, unless the author sets the number of retries.
    let least = error.and_then(|error| error.retry_at).map_or(0, |_| WAITS);
    let retries = match (&step.action, step.retries) {
        (Action::Wait(_) | Action::Each(_), _) => return None,
        (_, Some(retries)) => retries,
        (Action::Ask { .. }, None) => {
            let max = policy.max_retries.max(least);
            Retries { max, delay_ms: None, which: Which::ByCode }
        }
        (Action::Prompt(_), None) if least > 0 => {
            Retries { max: least, delay_ms: None, which: Which::ByCode }
        }
        _ => return None,
    };
    let class = error.and_then(|error| error.class);
    let worth = match retries.which {
        // A provider's exit code 1 (an API error) or 124 (a timeout) is worth a retry. So are these
        // codes of a command whose author requested retries, and an answer that does not state its
        // result. Anything else would fail again.
        Which::ByCode => {
            let unsaid = error.is_some_and(|error| error.context.contains_key("agent_output"));
            let passes = matches!(record.exit_code, Some(1 | 124)) || unsaid;
            passes && class != Some(FaultClass::Fatal)
        }
        Which::Transient => class == Some(FaultClass::Transient),
        Which::All => class != Some(FaultClass::Fatal) && record.exit_code != Some(0),
    };
    let rest = rest_ms(step, policy, slot.tries).max(wanted_ms(record, at));
    (worth && slot.tries <= retries.max).then_some(rest)
}

/// Returns how long the provider asked to wait, in ms.
fn wanted_ms(record: &Record, at: Time) -> u64 {
    let wanted = record.error.as_ref().and_then(|error| error.retry_at);
    wanted.map_or(0, |wanted| wanted.ms_since(at))
}

/// Returns how long a step rests after `tries` tries, in ms.
fn rest_ms(step: &Step, policy: &Policy, tries: u32) -> u64 {
    match step.retries {
        Some(Retries { delay_ms: Some(delay_ms), which, .. }) if which != Which::ByCode => {
            delay_ms << tries.saturating_sub(1).min(16)
        }
        retries => retries.and_then(|retries| retries.delay_ms).unwrap_or(policy.retry_delay_ms),
    }
}

/// Returns the same for a step whose rest does not depend on the options of the run.
pub(super) fn longest_rest_ms(step: &Step, slot: &Slot, at: Time) -> u64 {
    let wanted = slot.record.as_deref().map_or(0, |record| wanted_ms(record, at));
    rest_ms(step, &Policy::default(), slot.tries).max(wanted)
}

pub(super) fn skip(
    plan: &Plan,
    run: &mut Run,
    here: &Address,
    cause: Option<SkipCause>,
    warning: &Option<String>,
    at: Time,
) {
    let Some(slot) = run.slot_mut(here) else { return };
    if slot.state != StepState::Ready {
        return;
    }
    let record = Record::skipped(at, cause, warning.clone());
    slot.record = Some(Box::new(Record { attempt: slot.attempts, ..record }));
    slot.each = None;
    slot.state = StepState::Settled;
    if plan.root().order != Order::Sequence && here.loops.is_empty() {
        return graph::settled(plan, run, here.step);
    }
    limits::go_on(plan, run, &here.loops, here.step + 1, at);
}

/// Settles a visit with its outcome and continues.
pub(super) fn settle(plan: &Plan, run: &mut Run, here: &Address, success: bool, at: Time) {
    if plan.root().order != Order::Sequence {
        return match here.loops.is_empty() {
            true => graph::settled(plan, run, here.step),
            false => rounds::settled(plan, run, here, success, at),
        };
    }
    let Some(slot) = run.slot_mut(here) else { return };
    slot.state = StepState::Settled;
    if success {
        forget_failure(plan, run, here);
    }
    let step = here.step_of(plan);
    let target = step.on.always.or(if success { step.on.success } else { step.on.failure });
    match target {
        Some(target) => jump(plan, run, &here.loops, target, at),
        None if success && step.exit_loop => rounds::exited(plan, run, here, at),
        None if success || step.on_fail == Some(OnFail::Continue) => {
            limits::go_on(plan, run, &here.loops, here.step + 1, at);
        }
        None => unhandled(plan, run, here, at),
    }
}

fn jump(plan: &Plan, run: &mut Run, loops: &[(usize, usize)], target: Target, at: Time) {
    match target {
        Target::Step { out: 0, step } => enter(plan, run, loops, step, at),
        Target::End if loops.is_empty() => finish(plan, run),
        _ => iterate::finish_item(plan, run, loops, Exit::Jump(target), at),
    }
}

fn unhandled(plan: &Plan, run: &mut Run, here: &Address, at: Time) {
    let is_each = matches!(here.step_of(plan).action, Action::Each(_));
    if is_each && run.slot(here).is_some_and(|slot| slot.each.is_some()) {
        // A loop fails because of its items, and their failures are already handled.
        return enter(plan, run, &here.loops, here.step + 1, at);
    }
    let on_error = run.origin.policy.on_error;
    let lenient = !plan.is_strict() && on_error != Some(OnError::Stop);
    match on_error {
        Some(OnError::Interactive) => {
            let Some(slot) = run.slot_mut(here) else { return };
            slot.state = StepState::Asking;
        }
        Some(OnError::Continue) => pass_over(plan, run, here, at),
        _ if lenient => pass_over(plan, run, here, at),
        _ => halt(plan, run, here, at),
    }
}

/// Records the failure and continues with the next step.
fn pass_over(plan: &Plan, run: &mut Run, here: &Address, at: Time) {
    note_failure(plan, run, here);
    enter(plan, run, &here.loops, here.step + 1, at);
}

pub(super) fn note_failure(plan: &Plan, run: &mut Run, here: &Address) {
    let path = here.path(plan);
    if !run.failed_steps.contains(&path) {
        run.failed_steps.push(path);
    }
    iterate::mark_failed(run, here);
}

/// Removes the failure of a step that was passed over and then succeeded on a later visit.
fn forget_failure(plan: &Plan, run: &mut Run, here: &Address) {
    if !run.failed_steps.is_empty() {
        let path = here.path(plan);
        run.failed_steps.retain(|failed| *failed != path);
    }
}

/// Handles a failure that its own level does not handle: the nearest enclosing loop with a handler
/// takes it, else the run ends.
fn halt(plan: &Plan, run: &mut Run, here: &Address, at: Time) {
    if let Some(target) = handler_around(plan, here) {
        return iterate::finish_item(plan, run, &here.loops, Exit::Jump(target), at);
    }
    note_failure(plan, run, here);
    if here.step_of(plan).on_fail == Some(OnFail::Block) {
        // Keep the state, so that the run can be resumed at this step.
        run.status = RunStatus::Blocked;
    } else if here.loops.is_empty() {
        run.status = RunStatus::Failed;
    } else {
        iterate::finish_item(plan, run, &here.loops, Exit::Halt, at);
    }
}

/// Returns the target of the nearest enclosing loop's failure handler, relative to the step.
fn handler_around(plan: &Plan, here: &Address) -> Option<Target> {
    let mut inner = here.clone();
    let mut left = 0;
    while let Some(around) = inner.parent() {
        left += 1;
        let on = around.step_of(plan).on;
        if let Some(target) = on.always.or(on.failure) {
            return Some(match target {
                Target::Step { out, step } => Target::Step { out: out + left, step },
                Target::End => Target::End,
            });
        }
        inner = around;
    }
    None
}

pub(super) fn wake(run: &mut Run, at: Time) {
    if run.body.front.is_some() {
        return graph::wake(run, at);
    }
    let here = run.position();
    let Some(slot) = run.slot_mut(&here) else { return };
    if matches!(slot.state, StepState::Resting { until } if until <= at) {
        slot.state = StepState::Ready;
    }
}

pub(super) fn decide(plan: &Plan, run: &mut Run, here: &Address, choice: Choice, at: Time) {
    let Some(slot) = run.slot_mut(here) else { return };
    if slot.state != StepState::Asking {
        return;
    }
    slot.state = StepState::Settled;
    match choice {
        Choice::Retry => {
            slot.state = StepState::Ready;
            slot.tries = 0;
        }
        Choice::Continue => pass_over(plan, run, here, at),
        Choice::Stop => halt(plan, run, here, at),
    }
}

/// Withdraws an attempt that is out as a task; the next attempt is owed.
pub(super) fn recall(run: &mut Run, here: &Address, attempt: Attempt) {
    let Some(slot) = run.slot_mut(here) else { return };
    let out = slot.record.as_ref().is_some_and(|record| record.task.is_some());
    if slot.state == StepState::Running && slot.attempts == attempt && out {
        slot.state = StepState::Ready;
        slot.tries = slot.tries.saturating_sub(1);
    }
}

/// Records that an attempt that is out as a task is executed once more.
pub(super) fn put_back(
    run: &mut Run,
    here: &Address,
    attempt: Attempt,
    execution: TaskAttempt,
    deaths: u32,
) {
    let Some(slot) = run.slot_mut(here) else { return };
    let open = slot.state == StepState::Running && slot.attempts == attempt;
    let Some(record) = slot.record.as_deref_mut().filter(|record| open && record.task.is_some())
    else {
        return;
    };
    if execution > record.executions {
        record.executions = execution;
        record.warning = died_over(deaths);
    }
}

/// Returns the warning for a step whose workers died.
pub(crate) fn died_over(deaths: u32) -> Option<String> {
    match deaths {
        0 => None,
        1 => Some("a worker died over it, so what it does may be done twice".to_owned()),
        _ => Some(format!(
            "workers died over it {deaths} times, so what it does may be done more than once"
        )),
    }
}

/// Cancels a run. The caller stops what is still running; nothing is owed any more.
pub(super) fn cancel(plan: &Plan, run: &mut Run, at: Time) {
    run.status = RunStatus::Cancelled;
    if run.body.front.is_some() {
        return graph::stop_all(plan, run, at);
    }
    let here = run.position();
    let Some(slot) = run.slot_mut(&here) else { return };
    if slot.state == StepState::Running && slot.each.is_none() {
        graph::stop(slot, at);
    }
}

/// Sends control to a top-level step, like a `goto`. In a graph that has not ended, everything that
/// is not downstream of that step stays as it is, in particular users' answers.
pub(super) fn rewind(plan: &Plan, run: &mut Run, step: &str, at: Time) {
    let Some((index, _)) = plan.root().find(step) else { return };
    let graph = plan.root().order != Order::Sequence;
    if run.status == RunStatus::Running && !graph {
        return;
    }
    run.status = RunStatus::Running;
    run.error = None;
    if graph {
        return graph::resume(plan, run, true, Some(index), at);
    }
    run.failed_steps.clear();
    let cursor = run.body.cursor;
    if let Some(slot) = run.body.slots.get_mut(cursor) {
        slot.state = StepState::Settled;
    }
    enter(plan, run, &[], index, at);
}

/// Resumes a run where it is: an open attempt, or the step that failed, is owed again.
pub(super) fn resume(plan: &Plan, run: &mut Run, policy: &Policy, asked: bool, at: Time) {
    let halted = match run.status {
        RunStatus::Completed => return,
        RunStatus::Failed | RunStatus::Cancelled | RunStatus::Blocked => true,
        RunStatus::Running | RunStatus::Paused => false,
    };
    run.origin.policy = policy.clone();
    run.status = RunStatus::Running;
    run.error = None;
    if limits::any(plan) {
        run.taken_up_at = Some(at);
    }
    if plan.root().order != Order::Sequence {
        return graph::resume(plan, run, halted || asked, None, at);
    }
    let here = run.position();
    if halted {
        iterate::reopen(run, &here);
    }
    let Some(slot) = run.slot_mut(&here) else {
        if here.loops.is_empty() {
            // Nothing is left to do; the result of the run still stands.
            finish(plan, run);
        }
        return;
    };
    let wanted = slot.record.as_deref().map_or(0, |record| wanted_ms(record, at));
    if let StepState::Resting { until } = &mut slot.state {
        // The time may come from another machine's clock: limit the rest to its intended length.
        let most = rest_ms(here.step_of(plan), policy, 1).max(wanted);
        *until = (*until).min(at.plus_ms(most));
    }
    let out = slot.record.as_ref().is_some_and(|record| record.task.is_some());
    // A task that is out continues regardless of which process drives the run.
    let open = slot.state == StepState::Running && slot.each.is_none() && !out;
    let most_visits = policy.most_visits(here.step_of(plan));
    if open || halted {
        slot.state = StepState::Ready;
        // An interrupted attempt is repeated; a step that failed gets all its tries again.
        slot.tries = if open { slot.tries.saturating_sub(1) } else { 0 };
        if slot.visits > most_visits {
            // It was an endless cycle; the user who resumes it permits another round.
            slot.visits = 1;
        }
        forget_failure(plan, run, &here);
    }
}
