//! `orchestrate submit`: submits a workflow to the coordinators of the workspace.

use std::path::PathBuf;

use super::invocation::Invocation;
use super::request_args::RequestArgs;
use super::run::{self, ContextArgs, RunArgs};
use super::run_options::{OnErrorArg, RunOptions};
use super::{Common, coordinator, fleet, output};
use crate::actions::checkout;
use crate::attempt::documents::COORDINATOR;
use crate::base::time::{Clock, SystemClock};
use crate::engine::Run;
use crate::fleet::member::Registration;
use crate::queue::Queue;
use crate::run::create::NewRun;
use crate::run::failure::Failure;
use crate::run::locked::LockedRun;
use crate::run::wording;
use crate::store::snapshot;
use crate::workflow::Plan;

#[derive(clap::Args, Clone, Debug)]
pub(super) struct SubmitArgs {
    /// The workflow file, or the name of a grimoire [default with --bead: the grimoire for it]
    #[arg(value_name = "WORKFLOW")]
    workflow: Option<PathBuf>,
    #[command(flatten)]
    context: ContextArgs,
    #[command(flatten)]
    request: RequestArgs,
    /// Check everything and show what would be done, but do nothing
    #[arg(long)]
    dry_run: bool,
    /// What follows a failure that the workflow does not handle
    #[arg(long, value_enum, value_name = "WHAT")]
    on_error: Option<OnErrorAlone>,
    /// How often a failed provider step is tried again, where it does not say so itself
    #[arg(long, value_name = "N")]
    max_retries: Option<u32>,
    /// How long to wait before trying again
    #[arg(long, value_name = "MS")]
    retry_delay: Option<u64>,
}

/// What can follow a failure where nobody is there to be asked.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum OnErrorAlone {
    /// End the run; `retry` or `resume` goes on from there
    Stop,
    /// Run what is left, then end as failed
    Continue,
}

pub(super) fn main(args: &SubmitArgs, common: &Common) -> Result<u8, Failure> {
    let on_error = args.on_error.map(|choice| match choice {
        OnErrorAlone::Stop => OnErrorArg::Stop,
        OnErrorAlone::Continue => OnErrorArg::Continue,
    });
    let args = RunArgs {
        workflow: args.workflow.clone(),
        context: args.context.clone(),
        request: args.request.clone(),
        clean_processed: false,
        archive_processed: None,
        fleet: false,
        detach: true,
        dry_run: args.dry_run,
        options: RunOptions {
            progress: false,
            backup_state: false,
            on_error,
            max_retries: args.max_retries,
            retry_delay: args.retry_delay,
            jobs: None,
        },
    };
    detach(&args, common)
}

/// Creates and enqueues a run without waiting for it. Implements `submit` and `run --detach`.
pub(super) fn detach(args: &RunArgs, common: &Common) -> Result<u8, Failure> {
    let invocation = Invocation::read(common)?;
    invocation.check_state_dir()?;
    if args.archive_processed.is_some() {
        let message = "`--archive-processed` is done by whoever waits for the run to end";
        return Err(Failure::invalid(message).hint("use `orchestrate run --fleet`"));
    }
    let Some(run::Ready { loaded, context, request, .. }) = run::prepare(&invocation, args)? else {
        return Ok(0);
    };
    let queue = invocation.open_queue()?;
    let policy = args.options.new_policy(&invocation);
    let new = NewRun { fleet: true, request, ..NewRun::whole(&loaded, context, policy) };
    let agents = coordinator::agents_of(&invocation, &new.plan);
    fleet::open_agents(&queue, &agents)?;
    let (plan, run) = put_out(&invocation, &queue, new)?;
    let id = &run.id;
    let takes_runs = |member: &Registration| member.agent == COORDINATOR && member.run.is_none();
    if fleet::living(&queue).iter().any(takes_runs) {
        invocation.note(format!("run {id} of {} submitted", loaded.file));
    } else {
        invocation.note(format!("run {id} of {} waits for a coordinator", loaded.file));
        tracing::warn!(
            "no coordinator is alive: start one with `orchestrate coordinator`, or `orchestrate up`"
        );
    }
    fleet::warn_of_absent(&invocation, &queue, &agents);
    match invocation.common.json {
        true => {
            let mut summary = snapshot::summary(&plan, &run);
            summary["status"] = "queued".into();
            output::put_line(summary)?;
        }
        false => output::put_line(id)?,
    }
    Ok(0)
}

/// Creates a run and enqueues its task for a coordinator.
pub(super) fn put_out(
    invocation: &Invocation,
    queue: &Queue,
    new: NewRun,
) -> Result<(Plan, Run), Failure> {
    let LockedRun { plan, run, mut store, lock, .. } = checkout::create_run(invocation, new)?;
    // A submitted run must survive a power failure, so store the run before its task is enqueued.
    let saved = store.hand_over(&plan, &run, SystemClock.now());
    saved.map_err(|error| wording::disk_failure(&error, &run.id))?;
    // Release the lock: the coordinator that picks up the run needs it.
    drop((store, lock));
    let task = coordinator::task_of(queue, &run);
    queue.enqueue(&[task]).map_err(|error| coordinator::cannot_put_out(&run.id, &error))?;
    Ok((plan, run))
}
