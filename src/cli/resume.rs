//! `orchestrate resume`: continues a run that failed, waits or was stopped.

use std::io::ErrorKind::NotFound;
use std::path::Path;
use std::sync::Arc;

use serde_json::json;

use super::coordinator::{self, Back};
use super::invocation::Invocation;
use super::run_options::{self, Driver, RunOptions};
use super::signals::{self, Signals};
use super::{Common, cancel, fleet, outcome, output, retry};
use crate::actions::checkout;
use crate::attempt::documents::COORDINATOR;
use crate::attempt::exec_env;
use crate::attempt::source_files::{self, Since};
use crate::base::ids::RunId;
use crate::base::program_name::ORCHESTRATE;
use crate::base::time::{Clock, SystemClock};
use crate::disk::fs::{self, OnVolume as _};
use crate::engine::{self, Event, Origin, Policy, Run, RunStatus};
use crate::exec;
use crate::queue::{Claim, Claimed, Ending, Place, Queue};
use crate::run::create::{self, NewRun};
use crate::run::drive::Report as _;
use crate::run::edit::{self, Difference, Edit, EditError};
use crate::run::failure::{Class, Failure};
use crate::run::load::{self, Loaded};
use crate::run::locked::LockedRun;
use crate::run::project::unreadable_queue;
use crate::run::record::NoReport;
use crate::run::{grimoires, home, run_task, wording, workflow_file};
use crate::store::lock::{self, LockError};
use crate::store::{self, StoreError};
use crate::view::Board;
use crate::view::progress::TextReport;
use crate::workflow::Plan;
use crate::workflow::plan::Dialect;

#[derive(clap::Args, Clone, Debug)]
pub(super) struct ResumeArgs {
    /// The run: its id, the beginning of it, or `latest`
    #[arg(value_name = "RUN", default_value = "latest")]
    pub run: String,
    /// Begin anew, as a new run with the same context
    #[arg(long, conflicts_with = "repair")]
    pub force_restart: bool,
    /// Rebuild a damaged state from the journal or a backup first
    #[arg(long)]
    pub repair: bool,
    /// Continue with the edited workflow, if the steps that completed are unchanged
    #[arg(long, conflicts_with = "force_restart")]
    pub accept_changes: bool,
    #[command(flatten)]
    pub options: RunOptions,
}

/// Reason to continue a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// A user asked to continue it.
    Asked,
    /// A user answered a gate. The run continues as if it had had a driver all the time.
    Answered,
}

pub(super) fn main(args: &ResumeArgs, common: &Common) -> Result<u8, Failure> {
    take_up(args, common, Why::Asked)
}

/// Continues a run without a driver, as far as an answered gate allows.
pub(super) fn after_answer(
    id: &RunId,
    options: &RunOptions,
    common: &Common,
) -> Result<u8, Failure> {
    let (run, options) = (id.to_string(), options.clone());
    let args =
        ResumeArgs { run, force_restart: false, repair: false, accept_changes: false, options };
    take_up(&args, common, Why::Answered)
}

fn take_up(args: &ResumeArgs, common: &Common, why: Why) -> Result<u8, Failure> {
    let mut invocation = Invocation::read(common)?;
    let (id, root) = invocation.find_run(&args.run)?;
    // A run that one process drives does not need the queue, not even an undamaged one.
    if !args.force_restart
        && is_of_fleet(&root)
        && let Some(queue) = invocation.queue_if_any()?
    {
        return of_fleet(args, &mut invocation, queue, &id, &root, why);
    }
    if args.force_restart {
        home::check(&invocation, &id, &root)?;
        // A run without its workflow cannot be driven, so no lock is needed.
        let _lock = match lock::take(&root) {
            Err(LockError::Io(error)) if error.kind() == NotFound => None,
            taken => Some(taken.map_err(|error| wording::cannot_lock(error, &root, &id))?),
        };
        return restart(&invocation, args, &id, &root);
    }
    let mut owned = LockedRun::open(&mut invocation, &id, &root, args.repair)?;
    refuse_cancelled(&owned, why)?;
    if is_over(&owned.run, why) {
        return nothing_to_do(&invocation, owned);
    }
    if !args.accept_changes {
        refuse_idle(&owned, why)?;
    }
    args.options.check(&owned.plan, Driver::Alone)?;
    settle_source(&invocation, &mut owned, args.accept_changes, None, "resume")?;
    if why == Why::Asked {
        cancel::forget(None, &id, &root)?;
    }
    let signals = signals::listen()?;
    go_on(&invocation, owned, &root, &args.options, &signals, why)
}

/// Returns true if nothing remains to execute. A failed run continues only if a user asks for it.
fn is_over(run: &Run, why: Why) -> bool {
    run.status == RunStatus::Completed || (why == Why::Answered && run.status != RunStatus::Running)
}

/// Refuses to resume a cancelled run: a user or the workflow ended it on purpose, so only `retry`
/// continues it.
fn refuse_cancelled(owned: &LockedRun, why: Why) -> Result<(), Failure> {
    let LockedRun { run, plan, .. } = owned;
    if run.status != RunStatus::Cancelled || why == Why::Answered {
        return Ok(());
    }
    let (id, unit) = (&run.id, plan.unit());
    let reason = run.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
    let message = format!("run {id} was cancelled, and is not resumed{reason}");
    Err(Failure::new(Class::Cancelled, message).hint(format!(
        "`{ORCHESTRATE} retry {id}` takes it up where it stands, `{ORCHESTRATE} retry {id} --from \
         {name}` from a {unit} on; `orchestrate run {file}` begins anew",
        name = unit.to_uppercase(),
        file = run.origin.workflow_file,
    )))
}

/// Refuses to resume a graph that has no node left to execute: it would only fail again.
fn refuse_idle(owned: &LockedRun, why: Why) -> Result<(), Failure> {
    let LockedRun { run, plan, .. } = owned;
    if engine::has_more(plan, run) || why == Why::Answered {
        return Ok(());
    }
    let id = &run.id;
    let message = format!("run {id} has nothing to go on with: all its nodes were skipped");
    Err(Failure::failed(message).hint(format!(
        "`{ORCHESTRATE} retry {id} --from NODE` looks at a node again; `{ORCHESTRATE} run {file}` \
         begins anew",
        file = run.origin.workflow_file,
    )))
}

fn is_of_fleet(root: &Path) -> bool {
    crate::store::origin(root).is_some_and(|origin| origin.fleet)
}

/// Reports that an ended run needs no work. Returns the exit code for its status.
pub(super) fn nothing_to_do(invocation: &Invocation, owned: LockedRun) -> Result<u8, Failure> {
    let LockedRun { plan, run, mut store, .. } = owned;
    let id = &run.id;
    let (code, word) = match run.status {
        RunStatus::Completed => (0, "has completed"),
        RunStatus::Cancelled => (4, "was cancelled"),
        RunStatus::Blocked => (1, "is blocked"),
        _ => (1, "has failed"),
    };
    if code == 0 {
        cancel::forget(None, id, store.root())?;
    }
    // The snapshot may be older than the journal, or may just have been repaired.
    store.save(&plan, &run, SystemClock.now()).map_err(|e| wording::disk_failure(&e, id))?;
    end_orphans(invocation, id);
    let exit = outcome::tell_outcome(invocation, &plan, &run, code);
    invocation.note(format!("run {id} {word} already; there is nothing to do"));
    Ok(exit)
}

/// Drives a run that this process owns.
pub(super) fn go_on(
    invocation: &Invocation,
    mut owned: LockedRun,
    root: &Path,
    options: &RunOptions,
    signals: &Signals,
    why: Why,
) -> Result<u8, Failure> {
    let id = owned.run.id.clone();
    owned.checkout = checkout::take_checkout(invocation, &owned.plan)?;
    end_orphans(invocation, &id);
    create::keep_log(invocation, &owned.plan, root, &id)?;
    invocation.note(format!("run {id} of {}, resumed", owned.run.origin.workflow_file));
    let event = Some(resumed(invocation, &owned.run, options, why));
    let (code, _) = outcome::drive(invocation, owned, options, signals, event)?;
    Ok(code)
}

/// Returns the event that records that a run continues.
fn resumed(invocation: &Invocation, run: &Run, options: &RunOptions, why: Why) -> Event {
    Event::Resumed { policy: policy(invocation, run, options), asked: why == Why::Asked }
}

/// Returns the policy to continue with: flags given now override those the run was created with.
fn policy(invocation: &Invocation, run: &Run, options: &RunOptions) -> Policy {
    options.policy(run.origin.policy.clone()).limit_visits(invocation.config.max_visits)
}

/// Records that a run continues: if a user asked for it, and the policy if it changed. Without this
/// event, a coordinator does not restart an ended run.
pub(super) fn record_resumed(
    invocation: &Invocation,
    owned: &mut LockedRun,
    options: &RunOptions,
    why: Why,
) -> Result<(), Failure> {
    let same = policy(invocation, &owned.run, options) == owned.run.origin.policy;
    // Only this event restarts an ended run: a process that picks it up after a crash leaves it
    // ended.
    if why == Why::Answered && same && owned.run.status == RunStatus::Running {
        return Ok(());
    }
    let event = resumed(invocation, &owned.run, options, why);
    let now = SystemClock.now();
    let recorded = owned.record(&mut NoReport, now, &event);
    recorded
        .and_then(|()| owned.store.hand_over(&owned.plan, &owned.run, now))
        .map_err(|error| wording::disk_failure(&error, &owned.run.id))
}

/// Drives a run of a fleet in this process. Its steps are still tasks for workers.
fn of_fleet(
    args: &ResumeArgs,
    invocation: &mut Invocation,
    queue: Arc<Queue>,
    id: &RunId,
    root: &Path,
    why: Why,
) -> Result<u8, Failure> {
    invocation.check_state_dir()?;
    let board = Board::scan(invocation, Some(queue.clone()))?;
    retry::free_from_the_dead(invocation, &queue, &board, id)?;
    // The run uses its own settings; the process that drives it uses the current ones.
    let today = invocation.config.clone();
    let mut owned = LockedRun::open(invocation, id, root, args.repair)?;
    refuse_cancelled(&owned, why)?;
    if is_over(&owned.run, why) {
        return nothing_to_do(invocation, owned);
    }
    refuse_idle(&owned, why)?;
    args.options.check(&owned.plan, Driver::ForFleet)?;
    settle_source(invocation, &mut owned, args.accept_changes, None, "resume")?;
    record_resumed(invocation, &mut owned, &args.options, why)?;
    invocation.config = today;
    // An answer does not withdraw a request to cancel the run.
    if why == Why::Asked {
        cancel::forget(Some(&queue), id, root)?;
    }
    fleet::warn_of_absent(invocation, &queue, &coordinator::agents_of(invocation, &owned.plan));
    let Some(claim) = claim_run(&queue, &owned)? else {
        return left_to_coordinator(invocation, &queue, &board, id);
    };
    let signals = signals::listen()?;
    invocation.note(format!("run {id} of {}, resumed", owned.run.origin.workflow_file));
    tell_before(invocation, &owned, &args.options, why);
    let LockedRun { plan, store, lock, .. } = owned;
    // `coordinator::drive` takes the lock itself.
    drop((store, lock));
    let (code, _) = coordinator::drive(invocation, queue, claim, plan, &args.options, &signals)?;
    Ok(code)
}

/// Reports the steps that are not executed again. The event itself is already recorded.
fn tell_before(invocation: &Invocation, owned: &LockedRun, options: &RunOptions, why: Why) {
    let LockedRun { plan, run, .. } = owned;
    let mask = exec_env::mask(plan, &invocation.environment);
    let mut report =
        TextReport::new(run_options::telling(invocation, options), invocation.colour(), mask);
    report.happened(plan, run, &resumed(invocation, run, options, why));
}

/// Reports that a coordinator claimed the run first and continues it.
fn left_to_coordinator(
    invocation: &Invocation,
    queue: &Queue,
    board: &Board,
    id: &RunId,
) -> Result<u8, Failure> {
    let who = match run_task::find(queue, id).map_err(|error| unreadable_queue(&error))? {
        Some(Place::Claimed { name, .. }) => {
            let member = board.members.get(&name.worker);
            let host = member.map(|member| format!(" on {}", member.process.host));
            format!("coordinator {}{}", name.worker, host.unwrap_or_default())
        }
        _ => "a coordinator".to_owned(),
    };
    invocation.note(format!("run {id} goes on: {who} has taken it up"));
    invocation.note(format!("follow it: {ORCHESTRATE} logs {id} --follow"));
    if invocation.common.json {
        output::put_json("retry/v1", json!({ "run_id": id, "from": null }))?;
    }
    Ok(0)
}

/// Claims the task of a run, wherever it is. Returns the claim and the run's owner if it is stopped
/// early, or `None` if a coordinator claimed the task as soon as it was waiting.
fn claim_run(queue: &Queue, owned: &LockedRun) -> Result<Option<(Claim, Back)>, Failure> {
    let failed = |error: std::io::Error| unreadable_queue(&error);
    let id = &owned.run.id;
    let taken = || Failure::owned(format!("somebody else goes on with run {id}"));
    let mut back = Back::Owner;
    match run_task::find(queue, id).map_err(failed)? {
        None => {
            let task = run_task::make(queue, &owned.run, owned.store.term());
            let claim = queue.enqueue_claimed(&task).map_err(failed)?;
            return Ok(Some((claim, back)));
        }
        Some(Place::Ended { end, name, by }) => {
            let moved = queue.requeue(end, id.as_str(), &name, &by).map_err(failed)?;
            if moved == Ending::Fenced {
                return Err(taken());
            }
        }
        Some(Place::Waiting { .. }) => back = Back::Queue,
        Some(Place::Claimed { .. }) => return Err(taken()),
    }
    let Some(Place::Waiting { name, .. }) = run_task::find(queue, id).map_err(failed)? else {
        return Ok(None);
    };
    match queue.claim_this(COORDINATOR, &name).map_err(failed)? {
        Claimed::Task(claim) => Ok(Some((*claim, back))),
        _ if queue.paused(COORDINATOR).map_err(failed)?.is_some() => {
            Err(Failure::failed("`coordinator` is paused: no run may be driven")
                .hint("`orchestrate queue resume coordinator` lets runs go on"))
        }
        _ => Ok(None),
    }
}

/// Ends leftover child processes of the previous driver. That driver is gone: this process holds
/// the lock.
fn end_orphans(invocation: &Invocation, id: &RunId) {
    let orphans = exec::sweep(&format!("{id}/"));
    if orphans > 0 {
        invocation.note(format!("ended {orphans} processes that an earlier run of this had left"));
    }
}

/// Decides which workflow a stopped run continues with: its own copy or, with `accept`, the edited
/// file. A refusal comes before any change to the run.
pub(super) fn settle_source(
    invocation: &Invocation,
    owned: &mut LockedRun,
    accept: bool,
    from: Option<&str>,
    verb: &str,
) -> Result<(), Failure> {
    let file = owned.run.origin.workflow_file.clone();
    if !accept || grimoires::is_built_in(&file) {
        return check_source(invocation, &owned.plan, &owned.run, verb, from);
    }
    let loaded = load::load(invocation, Path::new(&file))?;
    super::run::tell_warnings(invocation, &loaded);
    let (id, root) = (owned.run.id.clone(), owned.store.root().to_owned());
    let plan =
        match &owned.run.origin.only_step {
            None => loaded.plan.clone(),
            Some(step) => loaded.plan.clone().only(step).ok_or_else(|| {
                Failure::invalid(format!("the edited `{file}` has no step `{step}`"))
            })?,
        };
    if plan.dialect() != owned.plan.dialect() {
        let message = format!("the edited `{file}` is written in another dialect");
        return Err(Failure::failed(message).hint(anew(&id)));
    }
    if let Some(step) = from {
        retry::check_step(&plan, &owned.run, step)?;
    }
    let failed = |error: StoreError| wording::disk_failure(&error, &id);
    let old_text = edit::frozen_text(&root, &owned.run).map_err(|source| {
        failed(StoreError { doing: "read", path: root.join(store::DEFINITION), source })
    })?;
    create::keep_parts(invocation, &root, &plan, &loaded).map_err(failed)?;
    let plan = source_files::with_commands(plan, &root);
    let edit = Edit {
        old_text: &old_text,
        new_text: &loaded.text,
        new_checksum: loaded.checksum(),
        old_plan: &owned.plan,
        new_plan: &plan,
        from,
        again: from.map(|step| retry::repeated(&plan, step)).unwrap_or_default(),
    };
    let differences = edit.differences(&owned.run);
    if let Some(first) = differences.first() {
        let list: Vec<String> = differences.iter().map(Difference::to_string).collect();
        let message = format!("run {id} cannot continue with `{file}`: {}", list.join("; "));
        return Err(Failure::failed(message).hint(format!(
            "`{ORCHESTRATE} retry {id} --from {step} --accept-changes` executes it and what \
             follows; `{ORCHESTRATE} resume {id} --force-restart` starts over",
            step = first.step.split('.').next().unwrap_or(&first.step),
        )));
    }
    let adopted = edit.adopt(&mut owned.store, &mut owned.run, SystemClock.now());
    adopted.map_err(|error| match error {
        EditError::Disk(error) => failed(error),
        EditError::Untranslatable(why) => {
            let message = format!("run {id} cannot continue with `{file}`: {why}");
            Failure::failed(message).hint(format!(
                "`{ORCHESTRATE} retry {id} --from STEP --accept-changes` names the step to \
                 continue from"
            ))
        }
    })?;
    owned.plan = plan;
    invocation.note(format!("run {id} continues with the edited `{file}`"));
    Ok(())
}

/// Checks that the workflow file is unchanged since the run was created. A changed file is an
/// error; for a graph it is a warning, and the run continues with its own copy. Call it before
/// changing anything of the run. The hint names `verb`, and the step of `retry --from`:
/// a completed run accepts changes only by that.
pub(super) fn check_source(
    invocation: &Invocation,
    plan: &Plan,
    run: &Run,
    verb: &str,
    from: Option<&str>,
) -> Result<(), Failure> {
    warn_of_parts(invocation, run);
    let (id, file) = (&run.id, &run.origin.workflow_file);
    if grimoires::is_built_in(file) {
        return Ok(());
    }
    match fs::read(workflow_file::workflow_path(invocation, Path::new(file))) {
        Ok(bytes) if load::checksum(&bytes) != run.origin.workflow_checksum => {
            let message = format!("`{file}` was changed since run {id} began");
            let from = from.map(|step| format!(" --from {step}")).unwrap_or_default();
            let accept = format!("{ORCHESTRATE} {verb} {id}{from} --accept-changes");
            if plan.dialect() == Dialect::Nodes {
                tracing::warn!(
                    "{message}; it goes on with its own copy; `{accept}` continues with the \
                     edited file; {}",
                    anew(id)
                );
                return Ok(());
            }
            Err(Failure::failed(message).hint(format!(
                "undo the change; or `{accept}` continues with it if the completed steps are \
                 unchanged; or `{ORCHESTRATE} resume {id} --force-restart` starts over"
            )))
        }
        Ok(_) => Ok(()),
        Err(error) => {
            tracing::warn!("cannot compare `{file}` with the run's own copy: {error}");
            Ok(())
        }
    }
}

/// Warns about part files that changed since the run was created: the run continues with its own
/// copies.
fn warn_of_parts(invocation: &Invocation, run: &Run) {
    let home = invocation.home_dir();
    for source in source_files::sources(&invocation.state_dir.join(run.id.as_str())).values() {
        let since = source.since(&source.path(&invocation.workspace, home.as_deref()));
        if since != Since::Same {
            let (file, words) = (&source.from, since.words());
            let edited = match since {
                Since::Changed => "; `--accept-changes` continues with the edited file",
                Since::Same | Since::Gone => "",
            };
            tracing::warn!("`{file}` {words}; it goes on with its own copy{edited}");
        }
    }
}

/// Returns the hint that explains how to run the current files.
fn anew(id: &RunId) -> String {
    format!("`{ORCHESTRATE} resume {id} --force-restart` begins anew with what is there now")
}

/// Creates a new run of the same workflow with the same context and policy.
fn restart(
    invocation: &Invocation,
    args: &ResumeArgs,
    id: &RunId,
    root: &Path,
) -> Result<u8, Failure> {
    let origin = match crate::store::origin(root) {
        Some(origin) => origin,
        None => frozen_origin(invocation, root, id)?,
    };
    let loaded: Loaded = load::load(invocation, Path::new(&origin.workflow_file))?;
    super::run::tell_warnings(invocation, &loaded);
    let plan = match &origin.only_step {
        None => loaded.plan.clone(),
        Some(step) => loaded.plan.clone().only(step).ok_or_else(|| {
            Failure::invalid(format!("`{}` has no step `{step}`", origin.workflow_file))
        })?,
    };
    let mut context = loaded.plan.context().clone();
    context.extend(origin.context);
    args.options.check(&plan, Driver::here(origin.fleet))?;
    let policy = args.options.policy(origin.policy);
    let (only_step, archive, fleet) = (origin.only_step, origin.archive, origin.fleet);
    let request = origin.request;
    let new = NewRun { loaded: &loaded, plan, context, policy, only_step, archive, fleet, request };
    let signals = signals::listen()?;
    if fleet {
        let (code, _) = coordinator::run(invocation, new, &args.options, &signals)?;
        return Ok(code);
    }
    let owned = checkout::create_run(invocation, new)?;
    invocation.note(format!("run {} of {}, in place of {id}", owned.run.id, loaded.file));
    let (code, _) = outcome::drive(invocation, owned, &args.options, &signals, None)?;
    Ok(code)
}

/// Returns an origin for a run whose documents cannot be read. Only its copy of the workflow is
/// left.
fn frozen_origin(invocation: &Invocation, root: &Path, id: &RunId) -> Result<Origin, Failure> {
    let path = root.join(store::DEFINITION);
    if !path.is_present() {
        let message = format!("nothing of run {id} can be read, not even its workflow");
        return Err(Failure::damaged(message).hint(wording::only_removed()));
    }
    invocation.note("warning: the context of the run cannot be read; the workflow's own is taken");
    Ok(Origin {
        run_id: id.as_str().to_owned(),
        workflow_file: path.to_string_lossy().into_owned(),
        workflow_checksum: String::new(),
        run_root: root.to_string_lossy().into_owned(),
        workspace: None,
        context: serde_json::Map::new(),
        policy: Policy::default(),
        only_step: None,
        archive: None,
        fleet: false,
        request: None,
        definition: None,
    })
}
