//! A local run: one process that performs everything a run is owed.
//!
//! One loop waits for events (an execution ended, a time has come) and lets the run advance.
//! Executions run on threads of their own, up to the concurrency limit, so the loop is free to keep
//! files up to date and the user informed.

use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use super::drive::{Drive, Hands, Launch, Reins, Report};
use super::thread_pool::Pool;
use crate::attempt::perform::Performed;
use crate::attempt::work::Work;
use crate::base::ids::{Attempt, StepPath};
use crate::base::time::Clock;
use crate::disk;
use crate::engine::{Event, Run, RunStatus, TaskRef};
use crate::exec::Stop;
use crate::store::StoreError;

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
