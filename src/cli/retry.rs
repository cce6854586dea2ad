//! `orchestrate retry`: continues a run without a driver, from its current state or from a given
//! step, or requeues an ended free task.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use serde_json::json;

use super::invocation::Invocation;
use super::output::{put, put_json};
use super::resume::{self, Why};
use super::run_options::{Driver, RunOptions};
use super::{Common, cancel, queue, signals};
use crate::actions::target::{self, Target};
use crate::base::ids::{RunId, shown};
use crate::base::program_name::ORCHESTRATE;
use crate::base::time::{Clock, SystemClock};
use crate::engine::{self, Event, Run, RunStatus};
use crate::fleet::member::Undertaker;
use crate::queue::{Ending, Place, Queue};
use crate::run::failure::Failure;
use crate::run::locked::LockedRun;
use crate::run::project::unreadable_queue;
use crate::run::record::NoReport;
use crate::run::{run_task, wording};
use crate::view::{Board, Life};
use crate::workflow::Plan;
use crate::workflow::plan::{Dialect, Order};

#[derive(clap::Args, Clone, Debug)]
pub(super) struct RetryArgs {
    /// A run or a free task: its id or the beginning of it; `latest` is the newest run
    #[arg(value_name = "RUN|TASK")]
    pub target: String,
    /// The step of the outermost list to go on from; what came of it and later ones is done again
    #[arg(long, value_name = "STEP")]
    pub from: Option<String>,
    /// Continue with the edited workflow, if the steps that completed before are unchanged
    #[arg(long)]
    pub accept_changes: bool,
    #[command(flatten)]
    pub options: RunOptions,
}

pub(super) fn main(args: &RetryArgs, common: &Common) -> Result<u8, Failure> {
    let mut invocation = Invocation::read(common)?;
    let queue = invocation.queue_if_any()?;
    let board = Board::scan(&invocation, queue.clone())?;
    let id = match (target::target(&invocation, &board, &args.target)?, &queue) {
        (Target::Run(id), _) => id,
        (Target::Task(found), Some(queue)) if args.from.is_none() => {
            args.options.check_none("it is for runs, and this is a task")?;
            return queue::requeue(&invocation, queue, &board, &found);
        }
        (Target::Aside(aside), _) => return Err(target::no_task_yet(&board, &aside)),
        (Target::Task(_), _) => {
            return Err(Failure::invalid("`--from` names a step of a run, and this is a task"));
        }
    };
    let root = board.run_root(&id);
    match queue.filter(|_| board.run(&id).fleet) {
        Some(queue) => of_fleet(args, &mut invocation, &queue, &board, &id, &root),
        None => of_process(args, &mut invocation, &id, &root),
    }
}

/// Continues a run in this process, like `resume`.
fn of_process(
    args: &RetryArgs,
    invocation: &mut Invocation,
    id: &RunId,
    root: &Path,
) -> Result<u8, Failure> {
    let mut owned = LockedRun::open(invocation, id, root, false)?;
    if args.from.is_none() && owned.run.status == RunStatus::Completed {
        return resume::nothing_to_do(invocation, owned);
    }
    args.options.check(&owned.plan, Driver::Alone)?;
    let from = args.from.as_deref().map(shown);
    resume::settle_source(invocation, &mut owned, args.accept_changes, from.as_deref(), "retry")?;
    if let Some(step) = &args.from {
        check_step(&owned.plan, &owned.run, &shown(step))?;
    }
    cancel::forget(None, id, root)?;
    if let Some(step) = &args.from {
        rewind(&mut owned, &shown(step))?;
    }
    let signals = signals::listen()?;
    resume::go_on(invocation, owned, root, &args.options, &signals, Why::Asked)
}

/// Hands a run to a coordinator and reports that.
fn of_fleet(
    args: &RetryArgs,
    invocation: &mut Invocation,
    queue: &Arc<Queue>,
    board: &Board,
    id: &RunId,
    root: &Path,
) -> Result<u8, Failure> {
    if let Some(completed) = hand_over(args, invocation, queue, board, (id, root))? {
        return resume::nothing_to_do(invocation, completed);
    }
    if board.coordinators() == 0 {
        tracing::warn!(
            "no coordinator is alive: `orchestrate coordinator` starts one; `{ORCHESTRATE} resume \
             {id}` drives the run here"
        );
    }
    match invocation.common.json {
        true => put_json("retry/v1", json!({ "run_id": id, "from": args.from }))?,
        false => put(&format!("run {id} goes on\n"))?,
    }
    Ok(0)
}

/// Hands a run to a coordinator. Returns a completed run unchanged.
fn hand_over(
    args: &RetryArgs,
    invocation: &mut Invocation,
    queue: &Arc<Queue>,
    board: &Board,
    (id, root): (&RunId, &Path),
) -> Result<Option<LockedRun>, Failure> {
    let from = args.from.as_deref().map(shown);
    let (from, options) = (from.as_deref(), &args.options);
    let failed = |error: std::io::Error| unreadable_queue(&error);
    invocation.check_state_dir()?;
    free_from_the_dead(invocation, queue, board, id)?;
    let mut owned = LockedRun::open(invocation, id, root, false)?;
    if from.is_none() && owned.run.status == RunStatus::Completed {
        return Ok(Some(owned));
    }
    options.check(&owned.plan, Driver::Coordinator)?;
    resume::settle_source(invocation, &mut owned, args.accept_changes, from, "retry")?;
    if let Some(step) = from {
        check_step(&owned.plan, &owned.run, step)?;
        if owned.run.status == RunStatus::Running {
            let again = done_again(&owned.plan, step);
            let tasks = run_task::steps_out_of(&owned.run, |index| again.contains(&index));
            cancel::stop_steps(invocation, queue, &owned.run, &tasks)?;
        }
        rewind(&mut owned, step)?;
    }
    resume::record_resumed(invocation, &mut owned, options, Why::Asked)?;
    cancel::forget(Some(queue), id, root)?;
    let LockedRun { run, store, lock, .. } = owned;
    let term = store.term();
    // The coordinator that picks up the run needs its lock.
    drop((store, lock));
    let place = run_task::find(queue, id).map_err(failed)?;
    match place {
        Some(Place::Ended { end, name, by }) => {
            let moved = queue.requeue(end, id.as_str(), &name, &by).map_err(failed)?;
            if moved == Ending::Fenced {
                return Err(Failure::owned(format!("somebody else goes on with run {id}")));
            }
        }
        // The task already waits for a coordinator, or a coordinator has just claimed it.
        Some(Place::Waiting { .. } | Place::Claimed { .. }) => {}
        None => queue.enqueue(&[run_task::make(queue, &run, term)]).map_err(failed)?,
    }
    Ok(None)
}

/// Fails if a live process may be driving the run. Releases a run whose owner is dead.
pub(super) fn free_from_the_dead(
    invocation: &Invocation,
    queue: &Arc<Queue>,
    board: &Board,
    id: &RunId,
) -> Result<(), Failure> {
    let failed = |error: std::io::Error| unreadable_queue(&error);
    let Some(Place::Claimed { name, .. }) = run_task::find(queue, id).map_err(failed)? else {
        return Ok(());
    };
    let worker = &name.worker;
    let host = board.members.get(worker).map(|member| format!(" on {}", member.process.host));
    let host = host.unwrap_or_default();
    match board.members.life(worker) {
        Life::Alive { .. } => {
            let message = format!("run {id} is being driven already: coordinator {worker}{host}");
            Err(Failure::owned(message)
                .hint(format!("`{ORCHESTRATE} status {id}` shows how far it is")))
        }
        Life::Dead => {
            let lease = invocation.config.queue.lease;
            Undertaker::new(queue.clone(), lease).look_around().map_err(failed)?;
            Ok(())
        }
        Life::Silent { .. } | Life::Expired { .. } | Life::Unknown => {
            let lease = invocation.config.queue.lease.as_secs_f64();
            let message = format!(
                "run {id} is held by coordinator {worker}{host}, which may be dead or slow"
            );
            let hint = format!(
                "any member of the fleet takes it over after {lease} seconds of silence; try \
                 again then"
            );
            Err(Failure::owned(message).hint(hint))
        }
    }
}

pub(super) fn check_step(plan: &Plan, run: &Run, step: &str) -> Result<(), Failure> {
    if plan.root().find(step).is_some() {
        return Ok(());
    }
    let names: Vec<_> = plan.root().steps.iter().map(|step| format!("`{}`", step.name)).collect();
    let message = match plan.dialect() {
        Dialect::Nodes => format!("run {} has no node `{step}`", run.id),
        Dialect::Steps | Dialect::Grimoire => {
            format!("run {} has no step `{step}` in its outermost list", run.id)
        }
    };
    Err(Failure::invalid(message).hint(format!("there are {}", names.join(", "))))
}

/// Moves a run back, or forward, to a step.
fn rewind(owned: &mut LockedRun, step: &str) -> Result<(), Failure> {
    let (plan, run) = (&owned.plan, &owned.run);
    let mut events = match (run.status, &plan.root().order) {
        // The tasks of these steps were stopped. Parallel nodes continue.
        (RunStatus::Running, Order::Graph(_)) => recalled(plan, run, &done_again(plan, step)),
        // A sequence can be rewound only after it has ended.
        (RunStatus::Running, Order::Sequence) => vec![Event::Cancelled { reason: None }],
        _ => Vec::new(),
    };
    events.push(Event::Rewound { step: step.to_owned() });
    let now = SystemClock.now();
    let recorded = events.iter().try_for_each(|event| owned.record(&mut NoReport, now, event));
    recorded
        .and_then(|()| owned.store.hand_over(&owned.plan, &owned.run, now))
        .map_err(|error| wording::disk_failure(&error, &owned.run.id))
}

/// Returns the top-level steps whose results a run drops when it continues from `step`.
pub(super) fn repeated(plan: &Plan, step: &str) -> BTreeSet<usize> {
    match (plan.root().find(step), &plan.root().order) {
        (Some((from, _)), Order::Sequence) => (from..plan.root().steps.len()).collect(),
        _ => done_again(plan, step),
    }
}

/// Returns the top-level steps whose tasks are recalled if a run continues from `step`.
fn done_again(plan: &Plan, step: &str) -> BTreeSet<usize> {
    let from = plan.root().find(step).map(|(from, _)| from);
    from.map(|from| engine::done_again(plan.root(), from)).unwrap_or_default()
}

/// Returns an event for each attempt at these steps that is out as a task: it is recalled.
fn recalled(plan: &Plan, run: &Run, steps: &BTreeSet<usize>) -> Vec<Event> {
    let mut events = Vec::new();
    for here in run.positions() {
        if !steps.contains(&here.top()) {
            continue;
        }
        let Some(slot) = run.slot(&here) else { continue };
        if slot.record.as_ref().is_some_and(|record| record.task.is_some()) {
            let (step, attempt) = (here.path(plan), slot.attempts);
            events.push(Event::Recalled { step, attempt });
        }
    }
    events
}
