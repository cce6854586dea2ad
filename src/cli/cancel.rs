//! `orchestrate cancel`: ends a run or a task, and reports success only when none of its processes
//! runs any more. A cancelled run stays ended until a user retries it.
//!
//! A request is a small file, so it works from any machine that sees the volume. The process that
//! drives the run, or executes the task, stops its child processes and records the end. If there is
//! no such process, this one records the end.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;

use super::Common;
use super::invocation::{self, Invocation};
use super::output::{put, put_json};
use crate::actions::target::{self, Target};
use crate::attempt::documents::COORDINATOR;
use crate::base::ids::{RunId, counted};
use crate::base::time::{Clock, SystemClock};
use crate::disk::fs;
use crate::disk::hint::Patience;
use crate::engine::{Event, Run, RunStatus, TaskRef};
use crate::exec;
use crate::fleet::member::Undertaker;
use crate::queue::{End, Ending, Place, Queue};
use crate::run::failure::Failure;
use crate::run::local::{self, CANCEL};
use crate::run::locked::LockedRun;
use crate::run::notify::Notifying;
use crate::run::project::{runs_in, unreadable_queue};
use crate::run::record::NoReport;
use crate::run::run_task::{self, StillHeld};
use crate::run::{home, open, wording};
use crate::store::lock::{self, LockError, RunLock};
use crate::view::{Board, Found, Standing};

#[derive(clap::Args, Clone, Debug)]
pub(super) struct CancelArgs {
    /// A run or a task: its id or the beginning of it; `latest` is the newest run [default: the
    /// only run that is in progress]
    #[arg(value_name = "RUN|TASK")]
    pub target: Option<String>,
    #[command(flatten)]
    pub patience: TimeoutArg,
}

#[derive(clap::Args, Clone, Debug)]
pub(super) struct CancelTaskArgs {
    /// The task: its id or the beginning of it
    #[arg(value_name = "TASK")]
    pub task: String,
    #[command(flatten)]
    pub patience: TimeoutArg,
}

#[derive(clap::Args, Clone, Debug)]
pub(super) struct TimeoutArg {
    /// How long to wait until nothing of it runs any more, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub timeout: u32,
}

/// Time that another process must hold a run's lock before it counts as the run's driver.
const DRIVES_AFTER: Duration = Duration::from_millis(50);
/// Time that a lock may be held without a known process on this machine, before the holder is
/// assumed to be on another machine.
const UNSEEN_AFTER: Duration = Duration::from_secs(1);

pub(super) fn main(args: &CancelArgs, common: &Common) -> Result<u8, Failure> {
    let (invocation, wrong) = Invocation::read_leniently(common)?;
    let queue = invocation.queue_if_any()?;
    let board = Board::scan(&invocation, queue.clone())?;
    let target = match &args.target {
        Some(name) => target::target(&invocation, &board, name)?,
        None => Target::Run(only_in_progress(&invocation, &board)?),
    };
    if let Some(failure) = wrong {
        // For a fleet, the settings decide which workers count as dead.
        let alone = matches!(&target, Target::Run(id) if !board.run(id).fleet);
        if !alone {
            return Err(failure);
        }
        invocation::warn_of_settings(&failure);
    }
    let cancelled = cancel(&invocation, queue, &board, &target, Wait::new(&args.patience))?;
    cancelled.tell(&invocation)
}

/// Returns the run of this workspace that is in progress, if it is the only one.
fn only_in_progress(invocation: &Invocation, board: &Board) -> Result<RunId, Failure> {
    let is_in_progress = |id: &RunId| {
        let state = board.run(id).state;
        matches!(state, Standing::Running | Standing::Queued | Standing::Doubtful)
            && home::elsewhere(invocation, &board.run_root(id)).is_none()
    };
    let mut found = runs_in(&invocation.state_dir);
    found.retain(is_in_progress);
    match found.as_slice() {
        [id] => Ok(id.clone()),
        [] => Err(Failure::invalid("no run is in progress")
            .hint("`orchestrate status` shows runs; `orchestrate cancel RUN` ends one that waits")),
        several => {
            let list: Vec<_> = several.iter().take(5).map(|id| format!("`{id}`")).collect();
            let message = format!("{} runs are in progress: {}", several.len(), list.join(", "));
            Err(Failure::invalid(message).hint("name the one to cancel"))
        }
    }
}

/// Cancels a run or a task, and waits until none of its processes runs any more.
pub(super) fn cancel(
    invocation: &Invocation,
    queue: Option<Arc<Queue>>,
    board: &Board,
    target: &Target,
    wait: Wait,
) -> Result<Cancelled, Failure> {
    match (target, queue) {
        (Target::Run(id), queue) => cancel_run(invocation, queue, board, id, wait),
        (Target::Task(found), Some(queue)) => cancel_task(invocation, queue, board, found, wait),
        (Target::Aside(aside), _) => Err(target::no_task_yet(board, aside)),
        (Target::Task(_), None) => Err(Failure::invalid("there is no queue")),
    }
}

/// `queue drop`, which cancels a task.
pub(super) fn drop_task(args: &CancelTaskArgs, invocation: &Invocation) -> Result<u8, Failure> {
    let queue = invocation.need_queue()?;
    let board = Board::scan(invocation, Some(queue.clone()))?;
    let found = target::task(&board, &args.task)?;
    cancel_task(invocation, queue, &board, &found, Wait::new(&args.patience))?.tell(invocation)
}

/// A wait with a time limit.
pub(super) struct Wait {
    limit: Duration,
    until: Instant,
    patience: Patience,
}

impl Wait {
    pub(super) fn new(arg: &TimeoutArg) -> Wait {
        let limit = Duration::from_secs(arg.timeout.into());
        let (least, most) = (Duration::from_millis(10), Duration::from_millis(100));
        Wait { limit, until: Instant::now() + limit, patience: Patience::new(least, most, 1) }
    }

    /// Sleeps for the next poll interval. Returns false if the time limit has passed.
    fn go_on(&mut self) -> bool {
        if Instant::now() >= self.until {
            return false;
        }
        std::thread::sleep(self.patience.next_wait());
        true
    }
}

/// The result of a cancellation.
enum Outcome {
    Cancelled,
    /// The target ended in another way before it could be cancelled.
    TooLate(&'static str),
    /// A description of the processes that are still alive.
    StillAlive(String),
}

/// A run or a task that is cancelled.
pub(super) struct Cancelled {
    what: &'static str,
    id: String,
    /// True if it was cancelled before this request.
    already: bool,
}

impl Cancelled {
    /// Describes the cancellation in a sentence.
    pub(super) fn words(&self) -> String {
        let Cancelled { what, id, already } = self;
        match already {
            true => format!("{what} {id} was cancelled already"),
            false => format!("{what} {id} is cancelled"),
        }
    }

    fn tell(&self, invocation: &Invocation) -> Result<u8, Failure> {
        let Cancelled { what, id, .. } = self;
        match invocation.common.json {
            true => put_json("cancel/v1", json!({ *what: id, "cancelled": true }))?,
            false => put(&format!("{}\n", self.words()))?,
        }
        Ok(0)
    }
}

fn judge(
    what: &'static str,
    id: &str,
    wait: &Wait,
    outcome: Outcome,
) -> Result<Cancelled, Failure> {
    match outcome {
        Outcome::Cancelled => Ok(Cancelled { what, id: id.to_owned(), already: false }),
        Outcome::TooLate(word) => Err(Failure::failed(format!("{what} {id} has {word} already"))),
        Outcome::StillAlive(who) => {
            let time = counted(wait.limit.as_secs() as usize, "second");
            let message = format!("{what} {id} is not cancelled yet, after {time}: {who}");
            Err(Failure::failed(message)
                .hint("the request stays: it is cancelled as soon as that is over"))
        }
    }
}

fn word(status: RunStatus) -> &'static str {
    match status {
        RunStatus::Completed => "completed",
        RunStatus::Cancelled => "been cancelled",
        RunStatus::Failed => "failed",
        RunStatus::Blocked => "been blocked",
        RunStatus::Running | RunStatus::Paused => "not ended",
    }
}

fn cancel_run(
    invocation: &Invocation,
    queue: Option<Arc<Queue>>,
    board: &Board,
    id: &RunId,
    mut wait: Wait,
) -> Result<Cancelled, Failure> {
    let (view, root) = (board.run(id), board.run_root(id));
    home::check(invocation, id, &root)?;
    match (view.state, view.recorded) {
        (Standing::Cancelled, _) => {
            return Ok(Cancelled { what: "run", id: id.to_string(), already: true });
        }
        (Standing::Damaged | Standing::Unreadable, _) => {
            end_what_is_left(invocation, id, &root);
            // Another process may have repaired the run since.
            if let Err(error) = board.open(id) {
                return Err(wording::cannot_read(id, &error));
            }
        }
        (state, Some(status)) if state.is_over() => {
            return judge("run", id.as_str(), &wait, Outcome::TooLate(word(status)));
        }
        _ => {}
    }
    let outcome = match queue {
        Some(queue) if view.fleet => of_fleet(invocation, &queue, id, &root, &mut wait)?,
        // The lock's holder may be a coordinator, which also drives other runs.
        None if view.fleet => {
            return Err(Failure::failed(format!("run {id} is of a fleet, whose queue is gone"))
                .hint("`orchestrate doctor` tells more"));
        }
        _ => of_process(invocation, id, &root, &mut wait)?,
    };
    judge("run", id.as_str(), &wait, outcome)
}

/// Ends the child processes of a run whose journal cannot be written. Does nothing for a run of a
/// fleet or a run that a process has locked.
fn end_what_is_left(invocation: &Invocation, id: &RunId, root: &Path) {
    let fleet = crate::store::origin(root).is_some_and(|origin| origin.fleet);
    if fleet || lock::is_held(root) {
        return;
    }
    match exec::sweep(&format!("{id}/")) {
        0 => {}
        1 => invocation.note("ended the process that it had left"),
        left => invocation.note(format!("ended {left} processes that it had left")),
    }
}

/// Cancels a run that one process drives, or none.
fn of_process(
    invocation: &Invocation,
    id: &RunId,
    root: &Path,
    wait: &mut Wait,
) -> Result<Outcome, Failure> {
    let marker = root.join(CANCEL);
    fs::write(&marker, "").map_err(|error| {
        Failure::failed(format!("cannot write `{}`: {error}", marker.display()))
    })?;
    let mut seen: Option<(u32, Instant)> = None;
    let (mut asked, began) = (None, Instant::now());
    loop {
        let holder = match lock::take(root) {
            Ok(lock) => {
                let ended = record_end(invocation, id, root, lock)?;
                let _ = fs::remove_file(&marker);
                return Ok(outcome_of(ended.run.status));
            }
            Err(LockError::Held { .. }) => lock::held_by(root),
            Err(error) => return Err(wording::cannot_lock(error, root, id)),
        };
        let pid = holder.and_then(|holder| holder.pid);
        if pid.is_none() && began.elapsed() >= UNSEEN_AFTER {
            let _ = fs::remove_file(&marker);
            let message = format!("run {id} is driven by a process of another machine");
            return Err(Failure::owned(message).hint("`orchestrate cancel` works there"));
        }
        match (pid, seen) {
            (Some(pid), Some((before, since))) if pid == before => {
                if since.elapsed() >= DRIVES_AFTER && asked != Some(pid) {
                    asked = Some(pid);
                    let is_it = || lock::held_by(root).is_some_and(|now| now.pid == Some(pid));
                    // If the process is gone already, the next iteration takes the lock.
                    let _ = exec::ask_to_end(pid, is_it);
                }
            }
            (Some(pid), _) => seen = Some((pid, Instant::now())),
            (None, _) => {}
        }
        if !wait.go_on() {
            let who = match asked {
                Some(pid) => format!("process {pid} was asked to end and still drives it"),
                None => "it was driven by one process after the other".to_owned(),
            };
            return Ok(Outcome::StillAlive(who));
        }
    }
}

fn outcome_of(status: RunStatus) -> Outcome {
    match status {
        RunStatus::Cancelled => Outcome::Cancelled,
        status => Outcome::TooLate(word(status)),
    }
}

/// Ends the remaining child processes of a run that no process drives, then records its end.
/// Returns the run, which stays locked.
fn record_end(
    invocation: &Invocation,
    id: &RunId,
    root: &Path,
    lock: RunLock,
) -> Result<LockedRun, Failure> {
    let workspace = invocation.open_workspace()?;
    let (_, plan, store, run) =
        open::open(&workspace, root).map_err(|error| wording::cannot_read(id, &error))?;
    let mut locked = LockedRun { plan, run, store, lock, checkout: None };
    exec::sweep(&format!("{id}/"));
    let (now, failed) = (SystemClock.now(), |error| wording::disk_failure(&error, id));
    let notifier = local::notifier(invocation);
    if locked.run.status == RunStatus::Running {
        let mut report = Notifying::new(NoReport, &notifier);
        let cancelled = Event::Cancelled { reason: None };
        locked.record(&mut report, now, &cancelled).map_err(failed)?;
    }
    locked.store.hand_over(&locked.plan, &locked.run, now).map_err(failed)?;
    notifier.finish();
    Ok(locked)
}

/// Cancels a run whose steps are executed as tasks.
fn of_fleet(
    invocation: &Invocation,
    queue: &Arc<Queue>,
    id: &RunId,
    root: &Path,
    wait: &mut Wait,
) -> Result<Outcome, Failure> {
    let failed = |error: std::io::Error| unreadable_queue(&error);
    queue.request_cancel(id.as_str()).map_err(failed)?;
    let workspace = invocation.open_workspace()?;
    let mut watch = Watch::new(invocation, queue);
    loop {
        let (_, run) =
            open::look(&workspace, root).map_err(|error| wording::cannot_read(id, &error))?;
        let out = run_task::steps_out(&run);
        let held = run_task::take_out_steps(queue, &run, &out).map_err(failed)?;
        let place = run_task::find(queue, id).map_err(failed)?;
        let driven = matches!(place, Some(Place::Claimed { .. }));
        if run.status != RunStatus::Running && !driven {
            queue.forget_cancel(id.as_str()).map_err(failed)?;
            return Ok(outcome_of(run.status));
        }
        let stuck = match &place {
            Some(Place::Claimed { name, .. }) => {
                Some(format!("coordinator {} still drives it", name.worker))
            }
            _ if !held.is_empty() => Some(still(&held)),
            _ => match end_undriven(invocation, queue, id, root, place)? {
                Some(outcome) => return Ok(outcome),
                None => Some("somebody is about to drive it".to_owned()),
            },
        };
        watch.look()?;
        if !wait.go_on() {
            return Ok(Outcome::StillAlive(stuck.unwrap_or_default()));
        }
    }
}

fn still(held: &[StillHeld]) -> String {
    let list: Vec<_> = held
        .iter()
        .map(|held| format!("task {} is held by worker {}", held.task.id, held.worker))
        .collect();
    list.join(", ")
}

/// Ends a run of a fleet that no process drives and that has no claimed tasks. Returns `None` if
/// another process took the run's lock or task first: that process sees the request.
fn end_undriven(
    invocation: &Invocation,
    queue: &Queue,
    id: &RunId,
    root: &Path,
    place: Option<Place>,
) -> Result<Option<Outcome>, Failure> {
    let failed = |error: std::io::Error| unreadable_queue(&error);
    let Ok(lock) = lock::take(root) else { return Ok(None) };
    let ended = record_end(invocation, id, root, lock)?;
    let status = ended.run.status;
    match place {
        Some(Place::Waiting { name, .. }) => {
            if queue.cancel_waiting(COORDINATOR, &name).map_err(failed)? == Ending::Fenced {
                return Ok(None);
            }
        }
        // The run's task may still appear. The process that claims it must find the request.
        None => return Ok(Some(outcome_of(status))),
        Some(_) => {}
    }
    queue.forget_cancel(id.as_str()).map_err(failed)?;
    Ok(Some(outcome_of(status)))
}

/// Checks for dead holders once per heartbeat interval, as members of the fleet do: there may be no
/// member.
struct Watch {
    undertaker: Undertaker,
    beat: Duration,
    next: Instant,
}

impl Watch {
    fn new(invocation: &Invocation, queue: &Arc<Queue>) -> Watch {
        let settings = &invocation.config.queue;
        let undertaker = Undertaker::new(queue.clone(), settings.lease);
        Watch { undertaker, beat: settings.beat, next: Instant::now() }
    }

    fn look(&mut self) -> Result<(), Failure> {
        if Instant::now() >= self.next {
            self.undertaker.look_around().map_err(|error| unreadable_queue(&error))?;
            self.next = Instant::now() + self.beat;
        }
        Ok(())
    }
}

fn cancel_task(
    invocation: &Invocation,
    queue: Arc<Queue>,
    board: &Board,
    found: &Found,
    mut wait: Wait,
) -> Result<Cancelled, Failure> {
    let view = board.task(found).map_err(|error| unreadable_queue(&error))?;
    let run = view.run_id.as_deref().filter(|_| view.kind == "run").and_then(RunId::parse);
    if let Some(run) = run {
        return cancel_run(invocation, Some(queue), board, &run, wait);
    }
    let already = matches!(found.place, Place::Ended { end: End::Cancelled, .. });
    let outcome = out_of_queue(invocation, &queue, found, &mut wait)?;
    let cancelled = judge("task", &view.task, &wait, outcome)?;
    Ok(Cancelled { already, ..cancelled })
}

fn out_of_queue(
    invocation: &Invocation,
    queue: &Arc<Queue>,
    found: &Found,
    wait: &mut Wait,
) -> Result<Outcome, Failure> {
    let failed = |error: std::io::Error| unreadable_queue(&error);
    let id = found.id();
    if let Place::Ended { end, .. } = &found.place {
        return Ok(ended_as(*end));
    }
    let task = queue.read(&found.place, &found.batch).map_err(failed)?;
    let Some(task) = task else {
        return Err(Failure::failed(format!("task {id} cannot be read, or is just being moved"))
            .hint("try again"));
    };
    queue.request_cancel(id.as_str()).map_err(failed)?;
    let mut watch = Watch::new(invocation, queue);
    loop {
        let place = queue.find(&task.agent, &task.batch, id).map_err(failed)?;
        let holder = match place {
            Some(Place::Waiting { agent, name }) => {
                queue.cancel_waiting(&agent, &name).map_err(failed)?;
                continue;
            }
            Some(Place::Claimed { name, .. }) => name.worker,
            Some(Place::Ended { end, .. }) => {
                queue.forget_cancel(id.as_str()).map_err(failed)?;
                return Ok(ended_as(end));
            }
            None => return Err(Failure::failed(format!("task {id} is nowhere any more"))),
        };
        watch.look()?;
        if !wait.go_on() {
            return Ok(Outcome::StillAlive(format!("worker {holder} still holds it")));
        }
    }
}

fn ended_as(end: End) -> Outcome {
    match end {
        End::Cancelled => Outcome::Cancelled,
        End::Processed => Outcome::TooLate("been processed"),
        End::Failed => Outcome::TooLate("failed"),
    }
}

/// Withdraws a request to cancel a run and removes its marker, so that the run can continue.
pub(super) fn forget(queue: Option<&Queue>, id: &RunId, root: &Path) -> Result<(), Failure> {
    let _ = fs::remove_file(root.join(CANCEL));
    match queue {
        Some(queue) => queue.forget_cancel(id.as_str()).map_err(|error| unreadable_queue(&error)),
        None => Ok(()),
    }
}

/// Stops the tasks of some steps, so that the run can continue at another step of the workflow.
pub(super) fn stop_steps(
    invocation: &Invocation,
    queue: &Arc<Queue>,
    run: &Run,
    tasks: &[TaskRef],
) -> Result<(), Failure> {
    let failed = |error: std::io::Error| unreadable_queue(&error);
    let mut wait = Wait::new(&TimeoutArg { timeout: 30 });
    let mut watch = Watch::new(invocation, queue);
    loop {
        let held = run_task::take_out_steps(queue, run, tasks).map_err(failed)?;
        if held.is_empty() {
            break;
        }
        for held in &held {
            queue.request_cancel(&held.task.id).map_err(failed)?;
        }
        watch.look()?;
        if !wait.go_on() {
            let message = format!("a step of run {} is still executed: {}", run.id, still(&held));
            return Err(Failure::failed(message).hint("it is asked to stop; try again later"));
        }
    }
    for task in tasks {
        queue.forget_cancel(&task.id).map_err(failed)?;
    }
    Ok(())
}
