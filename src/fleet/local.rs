//! A local run: one process that does everything a run is owed.
//!
//! One loop waits for what happens (an execution ended, a time is up), records an event for it,
//! and asks the engine what is owed next. Executions happen on a thread of their own, so the loop
//! is free to keep the files up to date and the person informed.
//!
//! **Invariant:** an event is in the journal before anything is done because of it.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use super::lifecycle;
use super::perform::{self, Performed};
use super::prepare::{Prepared, prepare};
use super::site::Site;
use crate::engine::run::Address;
use crate::engine::{self, Choice, Effect, Event, Run, RunStatus};
use crate::exec::{self, Stop};
use crate::ids::{Attempt, StepPath};
use crate::store::{Store, StoreError};
use crate::time::{Clock, Time};
use crate::workflow::Plan;

/// Where a run is told about, and where a person is asked.
pub trait Report {
    /// An event was recorded and applied.
    fn happened(&mut self, plan: &Plan, run: &Run, event: &Event);
    /// Time passed. Says when to be called again.
    fn tick(&mut self, _plan: &Plan, _run: &Run, _now: Time) -> Option<Time> {
        None
    }
    /// What is to follow the failure of a step?
    fn ask(&mut self, run: &Run, step: &StepPath, stop: &Stop) -> Option<Choice>;
}

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

/// Drives one run.
pub struct Driver<'a> {
    pub site: Arc<Site>,
    pub plan: &'a Plan,
    pub run: Run,
    pub store: Store,
    pub clock: &'a dyn Clock,
    pub backups: bool,
    pub report: &'a mut dyn Report,
    pub stop: Stop,
}

/// The loop's own state.
#[derive(Default)]
struct Loop {
    in_flight: HashSet<String>,
    left_running: usize,
    /// A time that is waited for, and the same on a clock that nobody sets.
    wake: Option<(Time, Instant)>,
    warned: bool,
    worker: Option<Worker>,
}

type Job = Box<dyn FnOnce() -> Done + Send>;

/// The executing thread: where jobs go, and where it tells how they ended.
struct Worker {
    jobs: Sender<Job>,
    done: Receiver<Done>,
}

impl Driver<'_> {
    /// Does everything the run is owed until it ends or is stopped.
    pub fn drive(mut self) -> Result<(Finish, Run), StoreError> {
        let mut state = Loop::default();
        let driven = self.go_on(&mut state);
        if driven.is_err() {
            self.abandon(&mut state);
        }
        if state.left_running > 0 {
            let ended = exec::sweep(&format!("{}/", self.run.id));
            tracing::info!("ended {ended} processes that commands had left running");
        }
        driven?;
        let now = self.clock.now();
        self.store.save(self.plan, &self.run, now)?;
        let finish = match self.run.status {
            RunStatus::Running => Finish::Stopped,
            ended => Finish::Ended(ended),
        };
        Ok((finish, self.run))
    }

    fn go_on(&mut self, state: &mut Loop) -> Result<(), StoreError> {
        loop {
            if self.stop.level() == 0 {
                self.do_what_is_owed(state)?;
            }
            let over = self.run.status != RunStatus::Running || self.stop.level() > 0;
            if over && state.in_flight.is_empty() {
                return Ok(());
            }
            self.hear(state)?;
        }
    }

    /// Stops what is in flight when its results can no longer be recorded.
    fn abandon(&self, state: &mut Loop) {
        self.stop.request(1);
        while !state.in_flight.is_empty() {
            let Some(Ok(done)) = state.worker.as_ref().map(|worker| worker.done.recv()) else {
                return;
            };
            state.in_flight.remove(&done.step.to_string());
        }
    }

    /// Waits for the next message, keeping up with files and people meanwhile.
    fn hear(&mut self, state: &mut Loop) -> Result<(), StoreError> {
        let now = self.clock.now();
        self.keep_up(state, now);
        let tick = self.report.tick(self.plan, &self.run, now);
        let dues = [self.store.next_due(), tick];
        let due = dues.into_iter().flatten().min().unwrap_or(now.plus_ms(3_600_000));
        // A due time that has passed and could not be met (a full disk) is no reason to spin.
        let mut nap = Duration::from_millis(due.ms_since(self.clock.now()).clamp(1, 3_600_000));
        if let Some((_, wake)) = state.wake {
            nap = nap.min(wake.saturating_duration_since(Instant::now()));
        }
        let Some(worker) = state.worker.as_ref().filter(|_| !state.in_flight.is_empty()) else {
            self.stop.sleep(nap);
            return Ok(());
        };
        // A stop is seen by whoever is executing, who then tells us.
        let Ok(Done { step, attempt, performed }) = worker.done.recv_timeout(nap) else {
            return Ok(());
        };
        state.in_flight.remove(&step.to_string());
        let Some(performed) = performed else { return Ok(()) };
        state.left_running += performed.left_running;
        let record = Box::new(performed.record);
        self.record(Event::Ended { step: step.to_string(), attempt, record })
    }

    /// Keeps the files fresh. A failure here loses nothing yet: the journal has what counts, and
    /// if that cannot be written either, [`Driver::record`] says so.
    fn keep_up(&mut self, state: &mut Loop, now: Time) {
        if let Err(error) = self.store.keep_up(self.plan, &self.run, now)
            && !std::mem::replace(&mut state.warned, true)
        {
            tracing::warn!("{error}; will be tried again");
        }
    }

    fn record(&mut self, event: Event) -> Result<(), StoreError> {
        self.record_at(self.clock.now(), event)
    }

    fn record_at(&mut self, at: Time, event: Event) -> Result<(), StoreError> {
        self.store.record(at, &event)?;
        engine::apply(self.plan, &mut self.run, at, &event);
        self.report.happened(self.plan, &self.run, &event);
        Ok(())
    }

    /// Does what is owed until all that is left is to wait.
    fn do_what_is_owed(&mut self, state: &mut Loop) -> Result<(), StoreError> {
        loop {
            let mut progressed = false;
            for effect in engine::owed(self.plan, &self.run) {
                progressed |= self.perform(effect, state)?;
            }
            if !progressed || self.stop.level() > 0 {
                return Ok(());
            }
        }
    }

    /// Performs or begins one effect. Says whether the run may now be owed something else.
    fn perform(&mut self, effect: Effect, state: &mut Loop) -> Result<bool, StoreError> {
        match effect {
            Effect::Execute { step, attempt } => self.execute(step, attempt, state),
            Effect::Open { step } => self.open(step),
            Effect::MoveItem { step, index, result } => self.move_item(&step, index, result),
            Effect::MoveBack { step, index, from, to } => {
                self.store.commit(self.clock.now())?;
                let error = lifecycle::carry_out(&self.site.workspace, &from, &to);
                let step = step.to_string();
                self.record(Event::MovedBack { step, index, error }).map(|()| true)
            }
            Effect::Ask { step } => self.ask(step),
            Effect::Wake { at } => self.wake(at, state),
        }
    }

    /// Says that a time has come, or remembers it. The rest until then is measured once and on a
    /// clock that nobody sets, so that setting the other one neither shortens nor lengthens it.
    fn wake(&mut self, at: Time, state: &mut Loop) -> Result<bool, StoreError> {
        let rest = || Duration::from_millis(at.ms_since(self.clock.now()));
        let due = match state.wake {
            Some((known, due)) if known == at => due,
            _ => Instant::now() + rest(),
        };
        if Instant::now() < due {
            state.wake = Some((at, due));
            return Ok(false);
        }
        state.wake = None;
        self.record_at(self.clock.now().max(at), Event::Woke).map(|()| true)
    }

    fn address(&self, step: &StepPath) -> Address {
        Address::of(self.plan, step).expect("an effect names a step of the plan")
    }

    fn execute(
        &mut self,
        step: StepPath,
        attempt: Attempt,
        state: &mut Loop,
    ) -> Result<bool, StoreError> {
        let here = self.address(&step);
        perform::keep_earlier_logs(&self.site, &step, attempt);
        let prepared = prepare(&self.site, self.plan, &self.run, &here, attempt);
        let name = step.to_string();
        let reads_state = matches!(&prepared, Prepared::Run(work) if work.reads_state);
        let job: Job = match prepared {
            Prepared::Skip => {
                return self.record(Event::Skipped { step: name }).map(|()| true);
            }
            Prepared::Refuse(record) => {
                return self.record(Event::Ended { step: name, attempt, record }).map(|()| true);
            }
            Prepared::Open => return self.record(Event::Opened { step: name }).map(|()| true),
            Prepared::Run(work) => {
                let (site, stop) = (self.site.clone(), self.stop.clone());
                let mark = format!("{}/{step}#{attempt}", self.run.id);
                Box::new(move || {
                    let performed = perform::run(&site, &work, &mark, &stop).map(Box::new);
                    Done { step, attempt, performed }
                })
            }
            Prepared::Wait(waiting) => {
                let (site, stop) = (self.site.clone(), self.stop.clone());
                Box::new(move || {
                    let performed = perform::wait(&site, &waiting, &stop).map(Box::new);
                    Done { step, attempt, performed }
                })
            }
        };
        if self.backups {
            let now = self.clock.now();
            self.store.back_up(self.plan, &self.run, &name, now)?;
        }
        self.record(Event::Launched { step: name.clone(), attempt, task: None })?;
        if reads_state {
            self.store.save(self.plan, &self.run, self.clock.now())?;
        }
        state.in_flight.insert(name);
        Self::hand_over(job, state);
        Ok(true)
    }

    /// Gives a job to the executing thread, which is made for the first one.
    fn hand_over(job: Job, state: &mut Loop) {
        let worker = state.worker.get_or_insert_with(|| {
            let (jobs, waiting) = mpsc::channel::<Job>();
            let (tell, done) = mpsc::channel();
            std::thread::spawn(move || {
                while let Ok(job) = waiting.recv() {
                    if tell.send(job()).is_err() {
                        return;
                    }
                }
            });
            Worker { jobs, done }
        });
        worker.jobs.send(job).expect("the executing thread lives as long as the loop");
    }

    fn open(&mut self, step: StepPath) -> Result<bool, StoreError> {
        let here = self.address(&step);
        let attempt = self.run.slot(&here).map_or(1, |slot| slot.attempts + 1);
        let step = step.to_string();
        let event = match prepare(&self.site, self.plan, &self.run, &here, attempt) {
            Prepared::Skip => Event::Skipped { step },
            Prepared::Refuse(record) => Event::Ended { step, attempt, record },
            _ => Event::Opened { step },
        };
        self.record(event).map(|()| true)
    }

    fn move_item(
        &mut self,
        step: &StepPath,
        index: usize,
        result: engine::run::ItemResult,
    ) -> Result<bool, StoreError> {
        let here = self.address(step);
        let workspace = &self.site.workspace;
        let planned = lifecycle::plan_move(self.plan, &self.run, &here, index, result, workspace);
        let step = step.to_string();
        let (target, error) = match planned {
            Ok(target) => (target, None),
            Err((target, error)) => (target, Some(error)),
        };
        let (from, to) = (target.from.clone(), target.to.clone());
        self.record(Event::Moving { step: step.clone(), index, result, from, to })?;
        // A move on the medium whose intent is not there could not be told from a missing file.
        self.store.commit(self.clock.now())?;
        let error =
            error.or_else(|| lifecycle::carry_out(&self.site.workspace, &target.from, &target.to));
        self.record(Event::Moved { step, index, error }).map(|()| true)
    }

    fn ask(&mut self, step: StepPath) -> Result<bool, StoreError> {
        let now = self.clock.now();
        self.store.save(self.plan, &self.run, now)?;
        match self.report.ask(&self.run, &step, &self.stop) {
            Some(choice) => {
                self.record(Event::Decided { step: step.to_string(), choice }).map(|()| true)
            }
            None => Ok(false),
        }
    }
}
