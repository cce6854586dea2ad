//! The engine: decides what a run does next, without I/O.
//!
//! [`apply`] folds one event into a run; [`owed`] returns the effects that the run now waits for.
//! Effects are owed, not sent: they follow from the state alone, so a process that resumes a run
//! after a crash calls `owed` again and continues. Recovery is not a second code path.
//!
//! **Invariant:** nothing here reads a clock, a file, the environment or a random number, and
//! nothing here fails. Facts from outside the engine arrive in the event.

pub(crate) mod effect;
pub(crate) mod event;
mod graph;
#[cfg(test)]
mod graph_tests;
#[cfg(test)]
mod grimoire_tests;
mod iterate;
pub(crate) mod limits;
pub(crate) mod record;
mod rounds;
pub(crate) mod run;
pub(crate) mod scope;
mod sequence;
#[cfg(test)]
mod tests;

pub(crate) use effect::Effect;
pub(crate) use event::{Choice, Event};
pub(crate) use graph::{done_again, has_more, inputs, survey};
pub(crate) use record::{Answer, Fault, GateRecord, Record, SkipCause, StepStatus, TaskRef};
pub(crate) use rounds::unmade;
pub(crate) use run::{OnError, Origin, Policy, Request, Run, RunStatus};
pub(crate) use scope::RunScope;
pub(crate) use sequence::died_over;

use run::{Address, Slot, StepState};

use crate::base::ids::StepPath;
use crate::base::time::Time;
use crate::workflow::Plan;
use crate::workflow::plan::Order;

/// Folds one event into a run.
///
/// Total and deterministic. An event that no longer fits (a late end of a fenced attempt, a wake-up
/// of a settled step) changes nothing.
pub(crate) fn apply(plan: &Plan, run: &mut Run, at: Time, event: &Event) {
    run.updated_at = at;
    match event {
        Event::Resumed { policy, asked } => {
            return sequence::resume(plan, run, policy, *asked, at);
        }
        Event::Rewound { step } => return sequence::rewind(plan, run, step, at),
        _ => {}
    }
    if run.status != RunStatus::Running {
        return;
    }
    match event {
        Event::Started { .. } => begin(plan, run, at),
        Event::Launched { step, attempt, task } => {
            with(plan, run, step, |run, here| {
                sequence::launch(plan, run, here, *attempt, task, at);
            });
        }
        Event::Ended { step, attempt, record } => {
            with(plan, run, step, |run, here| {
                sequence::end(plan, run, here, *attempt, record, at);
            });
        }
        Event::Skipped { step, cause, warning } => with(plan, run, step, |run, here| {
            sequence::skip(plan, run, here, *cause, warning, at);
        }),
        Event::Kept { step } => with(plan, run, step, |run, here| graph::keep(plan, run, here)),
        Event::Gated { step, attempt, gate } => {
            with(plan, run, step, |run, here| rounds::gated(run, here, *attempt, gate, at));
        }
        Event::Answered { step, attempt, answer } => with(plan, run, step, |run, here| {
            rounds::answered(plan, run, here, *attempt, answer, at);
        }),
        Event::Opened { step } => {
            with(plan, run, step, |run, here| iterate::open(plan, run, here, at));
        }
        Event::Moving { step, index, result, from, to } => with(plan, run, step, |run, here| {
            iterate::moving(run, here, *index, *result, from, to);
        }),
        Event::Moved { step, index, error } => {
            with(plan, run, step, |run, here| iterate::moved(plan, run, here, *index, error, at));
        }
        Event::MovedBack { step, index, error } => {
            with(plan, run, step, |run, here| iterate::moved_back(run, here, *index, error));
        }
        Event::Woke => sequence::wake(run, at),
        Event::Decided { step, choice } => {
            with(plan, run, step, |run, here| sequence::decide(plan, run, here, *choice, at));
        }
        Event::Recalled { step, attempt } => {
            with(plan, run, step, |run, here| sequence::recall(run, here, *attempt));
        }
        Event::PutBack { step, attempt, execution, deaths } => {
            with(plan, run, step, |run, here| {
                sequence::put_back(run, here, *attempt, *execution, *deaths);
            });
        }
        Event::Cancelled { .. } => sequence::cancel(plan, run, at),
        Event::Resumed { .. } | Event::Rewound { .. } | Event::Edited { .. } => {}
    }
}

/// Calls `act` with the address of the step at `path`. Does nothing if the plan or run lacks it.
fn with(plan: &Plan, run: &mut Run, path: &StepPath, act: impl FnOnce(&mut Run, &Address)) {
    if let Some(address) = Address::find(plan, path)
        && run.slot(&address).is_some()
    {
        act(run, &address);
        graph::refile(run, address.top());
    }
}

fn begin(plan: &Plan, run: &mut Run, at: Time) {
    match &plan.root().order {
        Order::Graph(_) => survey(plan.root(), &mut run.body),
        Order::Sequence => sequence::enter(plan, run, &[], 0, at),
    }
}

/// Returns the effects that `run` waits for: at most `room` executions, and every effect that needs
/// no room.
pub(crate) fn owed(plan: &Plan, run: &Run, room: usize) -> Vec<Effect> {
    if run.status != RunStatus::Running {
        return Vec::new();
    }
    if let Some(front) = &run.body.front {
        return graph::owed(plan, run, front, room);
    }
    // File moves of items come first: an item that ends or is retried waits for its own file.
    let here = run.position();
    for (at, index) in here.around() {
        if let Some(effect) = iterate::owed(plan, run, &at, index) {
            return vec![effect];
        }
    }
    run.slot(&here).map_or_else(Vec::new, |slot| owed_by(plan, &here, slot))
}

fn owed_by(plan: &Plan, here: &Address, slot: &Slot) -> Vec<Effect> {
    let step = here.path(plan);
    match slot.state {
        StepState::Ready if here.step_of(plan).inner().is_some() => vec![Effect::Open { step }],
        StepState::Ready => vec![Effect::Execute { step, attempt: slot.attempts.next() }],
        StepState::Resting { until } => vec![Effect::Wake { at: until }],
        StepState::Asking => vec![Effect::Ask { step }],
        StepState::Waiting => vec![Effect::Answer { step, attempt: slot.attempts }],
        StepState::Running | StepState::Pending | StepState::Settled => Vec::new(),
    }
}

/// Returns the progress to display: number, total and name of each loop, item and step at the
/// cursor.
pub(crate) fn whereabouts(plan: &Plan, run: &Run) -> Vec<(usize, usize, String)> {
    let here = run.position();
    let mut found = vec![];
    for (at, item) in here.around() {
        let total = at.block(plan).steps.len();
        found.push((at.step + 1, total, at.step_of(plan).name.clone()));
        let items = run.slot(&at).and_then(|slot| Some(&slot.each.as_ref()?.items));
        let most = at.step_of(plan).rounds().map_or(0, |rounds| rounds.most as usize);
        let shown = items
            .and_then(|items| items.get(item))
            .map(|item| crate::template::display(item).into_owned());
        found.push((item + 1, items.map_or(0, Vec::len).max(most), shown.unwrap_or_default()));
    }
    let block = here.block(plan);
    if let Some(step) = block.steps.get(here.step) {
        found.push((here.step + 1, block.steps.len(), step.name.clone()));
    }
    found
}
