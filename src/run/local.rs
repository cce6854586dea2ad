//! A local run: one process that performs everything a run is owed.
//!
//! One loop waits for events (an execution ended, a time has come) and lets the run advance.
//! Executions run on threads of their own, up to the concurrency limit, so the loop is free to keep
//! files up to date and the user informed.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use super::drive::{Drive, Hands, Launch, Reins, Report};
use super::failure::Failure;
use super::locked::LockedRun;
use super::notify::{Notifier, Notifying};
use super::processed::Processed;
use super::project::Project;
use super::thread_pool::Pool;
use super::traces::Traces;
use super::wording::disk_failure;
use crate::attempt::exec_env::{self, Site, Turns};
use crate::attempt::parking::Parking;
use crate::attempt::perform::Performed;
use crate::attempt::sandboxes::Sandboxes;
use crate::attempt::work::Work;
use crate::base::ids::{Attempt, StepPath};
use crate::base::time::{Clock, SystemClock};
use crate::disk;
use crate::engine::{Event, Run, RunStatus, TaskRef};
use crate::exec::Stop;
use crate::store::StoreError;
use crate::store::lock::RunLock;
use crate::workflow::Plan;

/// File in a run's directory: when the process that drives the run is stopped, it cancels the run.
pub(crate) const CANCEL: &str = "cancel";

/// The way in which driving a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    Ended(RunStatus),
    /// The process was stopped; the run can be resumed.
    Stopped,
    /// The run waits for a user.
    Paused,
}

/// Default number of concurrent executions.
pub(crate) const JOBS: usize = 8;

/// An execution that ended; without a result, it was stopped.
struct Done {
    step: StepPath,
    attempt: Attempt,
    performed: Option<Box<Performed>>,
}

/// The executing threads, created on demand.
struct Executor {
    stop: Stop,
    jobs: usize,
    pool: Pool,
    tell: Sender<Done>,
    done: Receiver<Done>,
}

impl Executor {
    fn new(stop: Stop, jobs: usize) -> Executor {
        let (tell, done) = mpsc::channel();
        Executor { stop, jobs, pool: Pool::new(jobs), tell, done }
    }

    fn hear(&self, nap: Duration) -> Option<Done> {
        self.done.recv_timeout(nap).ok()
    }

    /// Waits for an execution that was asked to stop.
    fn hear_out(&self) -> Option<Done> {
        self.done.recv().ok()
    }
}

impl Hands for Executor {
    fn agent_for(&self, _: &Work) -> Option<String> {
        None
    }

    fn new_task(&mut self, _: String) -> TaskRef {
        unreachable!("no work of a local run has an agent to go to")
    }

    fn jobs(&self) -> usize {
        self.jobs
    }

    fn begin(&mut self, launch: Launch) -> Result<(), StoreError> {
        let (tell, stop) = (self.tell.clone(), self.stop.clone());
        self.pool.give(move || {
            let performed = launch.perform(&stop).map(Box::new);
            let Launch { step, attempt, .. } = launch;
            let _ = tell.send(Done { step, attempt, performed });
        });
        Ok(())
    }
}

/// Performs everything the run is owed until it ends, pauses or is stopped.
pub(crate) fn drive(
    mut drive: Drive,
    clock: &dyn Clock,
    report: &mut dyn Report,
    stop: &Stop,
    jobs: usize,
) -> Result<(Finish, Run), StoreError> {
    let mut executor = Executor::new(stop.clone(), jobs.max(1));
    let driven = go_on(&mut drive, clock, report, &mut executor);
    if driven.is_err() {
        // Stop the executions in flight, because their results can no longer be recorded.
        stop.request(1);
        while drive.is_busy() {
            let Some(done) = executor.hear_out() else { break };
            let mut reins = Reins { clock, report, hands: &mut executor, stop };
            let _ = drive.ended(&mut reins, &done.step, done.attempt, None);
        }
        drive.tidy_up();
        driven?;
    }
    if !drive.is_over() && disk::exists(&drive.store.root().join(CANCEL)).unwrap_or(false) {
        let mut reins = Reins { clock, report, hands: &mut executor, stop };
        drive.record(&mut reins, Event::Cancelled { reason: None })?;
    }
    drive.rest(clock.now())?;
    let finish = match drive.run.status {
        RunStatus::Running if drive.is_paused() => Finish::Paused,
        RunStatus::Running => Finish::Stopped,
        ended => Finish::Ended(ended),
    };
    Ok((finish, drive.run))
}

fn go_on(
    drive: &mut Drive,
    clock: &dyn Clock,
    report: &mut dyn Report,
    executor: &mut Executor,
) -> Result<(), StoreError> {
    let stop = executor.stop.clone();
    loop {
        if stop.level() == 0 {
            drive.advance(&mut Reins { clock, report, hands: executor, stop: &stop })?;
        }
        if drive.is_over() && drive.is_busy() && stop.level() == 0 {
            // A node ended the run: the other executions are no longer needed.
            stop.request(1);
        }
        let over = drive.is_over() || drive.is_paused() || stop.level() > 0;
        if over && !drive.is_busy() {
            return Ok(());
        }
        let now = clock.now();
        drive.keep_up(now);
        let tick = report.tick(&drive.plan, &drive.run, now);
        let tick = tick.map(|at| Duration::from_millis(at.ms_since(clock.now()).max(1)));
        let naps = [drive.patience(clock.now()), tick];
        let nap = naps.into_iter().flatten().min().unwrap_or(Duration::from_secs(3600));
        if !drive.is_busy() {
            stop.sleep(nap);
        } else if let Some(Done { step, attempt, performed }) = executor.hear(nap) {
            // The executing thread notices a stop and then reports here.
            let mut reins = Reins { clock, report, hands: executor, stop: &stop };
            drive.ended(&mut reins, &step, attempt, performed.map(|performed| *performed))?;
        }
    }
}

/// A run that was driven as far as possible and is still locked by this process.
pub(crate) struct Driven {
    pub plan: Arc<Plan>,
    pub run: Run,
    pub finish: Finish,
    /// Notifier that may still be sending notifications.
    pub notifier: Arc<Notifier>,
    /// The run's lock, and its lock on the checkout.
    pub held: (RunLock, Option<RunLock>),
}

/// Options of a process that drives a run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DriveOptions {
    /// Back up the state before every step.
    pub backups: bool,
    /// Maximum number of concurrent executions; `None` is [`JOBS`].
    pub jobs: Option<usize>,
}

/// Drives a run to its end and passes its events to `report`. `event`, if any, is recorded first.
pub(crate) fn drive_to_end(
    project: &Project,
    mut locked: LockedRun,
    options: &DriveOptions,
    stop: &Stop,
    event: Option<Event>,
    report: impl Report,
) -> Result<Driven, Failure> {
    let notifier = notifier(project);
    let mut report = Notifying::new(report, &notifier);
    if let Some(event) = event {
        let recorded = locked.record(&mut report, SystemClock.now(), &event);
        recorded.map_err(|error| disk_failure(&error, &locked.run.id))?;
    }
    let LockedRun { plan, run, store, lock, checkout } = locked;
    let site = Site {
        workspace: project.open_workspace()?,
        logs: store.root().join("logs"),
        about: exec_env::about(&run.id, store.root()),
        mask: exec_env::mask(&plan, &project.environment),
        environment: project.environment.clone(),
        hidden: Vec::new(),
        debug: project.debug,
        live: run.origin.fleet,
        grace: project.config.grace,
        silences: project.config.silences,
        input_bytes: project.config.input_bytes,
        parking: Some(Arc::new(Parking::new(
            &project.workspace,
            project.config.back_off,
            project.config.back_off_max,
            true,
        ))),
        turns: Turns::of(&project.config),
        program: exec_env::program(),
        sandboxes: Sandboxes::of(&project.config, None),
    };
    let root = store.root().to_owned();
    let (id, plan) = (run.id.clone(), Arc::new(plan));
    let backups = options.backups || project.debug;
    let drive = Drive::new(Arc::new(site), plan.clone(), run, store, backups);
    let jobs = options.jobs.unwrap_or(JOBS);
    let driven = self::drive(drive, &SystemClock, &mut report, stop, jobs);
    let (finish, run) = driven.map_err(|error| disk_failure(&error, &id))?;
    if let Some(destination) = &run.origin.archive
        && run.status == RunStatus::Completed
    {
        Processed::of(project, &plan).archive(Path::new(destination), &root)?;
    }
    Ok(Driven { plan, run, finish, notifier, held: (lock, checkout) })
}

/// Returns the notifier that the settings describe.
pub(crate) fn notifier(project: &Project) -> Arc<Notifier> {
    let traces = Traces::of(&project.environment);
    Arc::new(Notifier::new(project.config.notify.clone(), project.workspace.clone(), traces))
}
