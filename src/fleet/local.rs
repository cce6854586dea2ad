//! A local run: one process that does everything a run is owed.
//!
//! One loop waits for what happens (an execution ended, a time is up) and lets the run advance.
//! Executions happen on a thread of their own, so the loop is free to keep the files up to date
//! and the person informed.

use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use super::drive::{Drive, Hands, Launch, Reins, Report};
use super::perform::Performed;
use super::work::Work;
use crate::engine::{Event, Run, RunStatus, TaskRef};
use crate::exec::Stop;
use crate::ids::{Attempt, StepPath};
use crate::store::StoreError;
use crate::time::Clock;

/// A file in a run's directory: whoever drives the run and is stopped is to cancel it.
pub const CANCEL: &str = "cancel";

/// How driving a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    Ended(RunStatus),
    /// It was stopped; the run can be resumed.
    Stopped,
}

/// An execution that ended; without a result, it was stopped.
struct Done {
    step: StepPath,
    attempt: Attempt,
    performed: Option<Box<Performed>>,
}

/// The executing thread, which is made for the first execution.
struct Executor {
    stop: Stop,
    thread: Option<(Sender<Launch>, Receiver<Done>)>,
}

impl Executor {
    fn hear(&self, nap: Duration) -> Option<Done> {
        self.thread.as_ref().and_then(|(_, done)| done.recv_timeout(nap).ok())
    }

    /// Waits for an execution that has been told to stop; nothing, if there is none.
    fn hear_out(&self) -> Option<Done> {
        self.thread.as_ref().and_then(|(_, done)| done.recv().ok())
    }
}

impl Hands for Executor {
    fn agent_for(&self, _: &Work) -> Option<String> {
        None
    }

    fn new_task(&mut self, _: String) -> TaskRef {
        unreachable!("no work of a local run has an agent to go to")
    }

    fn begin(&mut self, launch: Launch) -> Result<(), StoreError> {
        let stop = &self.stop;
        let (launches, _) = self.thread.get_or_insert_with(|| {
            let (launches, waiting) = mpsc::channel::<Launch>();
            let (tell, done) = mpsc::channel();
            let stop = stop.clone();
            std::thread::spawn(move || {
                while let Ok(launch) = waiting.recv() {
                    let performed = launch.perform(&stop).map(Box::new);
                    let Launch { step, attempt, .. } = launch;
                    if tell.send(Done { step, attempt, performed }).is_err() {
                        return;
                    }
                }
            });
            (launches, done)
        });
        launches.send(launch).expect("the executing thread lives as long as the loop");
        Ok(())
    }
}

/// Does everything the run is owed until it ends or is stopped.
pub fn drive(
    mut drive: Drive,
    clock: &dyn Clock,
    report: &mut dyn Report,
    stop: &Stop,
) -> Result<(Finish, Run), StoreError> {
    let mut executor = Executor { stop: stop.clone(), thread: None };
    let driven = go_on(&mut drive, clock, report, &mut executor);
    if driven.is_err() {
        // What is in flight is stopped, since its result can no longer be recorded.
        stop.request(1);
        while drive.is_busy() {
            let Some(done) = executor.hear_out() else { break };
            let mut reins = Reins { clock, report, hands: &mut executor, stop };
            let _ = drive.ended(&mut reins, &done.step, done.attempt, None);
        }
        drive.tidy_up();
        driven?;
    }
    if !drive.is_over() && drive.store.root().join(CANCEL).exists() {
        let mut reins = Reins { clock, report, hands: &mut executor, stop };
        drive.record(&mut reins, Event::Cancelled)?;
    }
    drive.rest(clock.now())?;
    let finish = match drive.run.status {
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
        let over = drive.is_over() || stop.level() > 0;
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
            // A stop is seen by whoever is executing, who then tells us.
            let mut reins = Reins { clock, report, hands: executor, stop: &stop };
            drive.ended(&mut reins, &step, attempt, performed.map(|performed| *performed))?;
        }
    }
}
