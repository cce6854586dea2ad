//! Drives one run: performs the effects it is owed and records events, without blocking.
//!
//! A caller that drives one or many runs calls [`Drive::advance`] and learns from its [`Hands`]
//! when executions end. Only the caller waits.
//!
//! **Invariant:** an event is in the journal before any effect of it is performed.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::item_files;
use super::record::record;
use crate::agent::faults::FaultClass;
use crate::attempt::exec_env::Site;
use crate::attempt::parking::{Cause, Entry, Note, Pass, Target};
use crate::attempt::perform::{self, Performed, Terms};
use crate::attempt::prepare::{Prepared, prepare};
use crate::attempt::work::{MergeWork, Waiting, Work};
use crate::attempt::{bead_tree, gates};
use crate::base::host;
use crate::base::ids::{Attempt, RunId, StepPath, TaskAttempt};
use crate::base::time::{Clock, Time};
use crate::engine::run::{Address, StepState};
use crate::engine::{self, Choice, Effect, Event, Record, Run, RunStatus, SkipCause, TaskRef};
use crate::exec::{self, Stop};
use crate::store::{Store, StoreError};
use crate::workflow::Plan;

/// Interval at which a run checks for answers of users.
const ANSWERS: Duration = Duration::from_secs(1);
/// Interval at which a run checks if a parked account is available again.
const PARKED: Duration = Duration::from_millis(500);

/// The output for a run's progress, and the way to ask the user.
pub(crate) trait Report {
    /// Reports an event that was recorded and applied.
    fn happened(&mut self, plan: &Plan, run: &Run, event: &Event);
    /// Called as time passes. Returns the time of the next call.
    fn tick(&mut self, _plan: &Plan, _run: &Run, _now: Time) -> Option<Time> {
        None
    }
    /// Asks the user how to continue after a step has failed.
    fn ask(&mut self, run: &Run, step: &StepPath, stop: &Stop) -> Option<Choice>;
}

/// Executes the work that a run is owed.
pub(crate) trait Hands {
    /// Returns the agent whose worker does this work, or `None` if this process does it.
    fn agent_for(&self, work: &Work) -> Option<String>;
    /// Creates a unique task for an agent.
    fn new_task(&mut self, agent: String) -> TaskRef;
    /// Maximum number of concurrent executions.
    fn jobs(&self) -> usize {
        usize::MAX
    }
    /// Starts an execution that is recorded as launched.
    fn begin(&mut self, launch: Launch) -> Result<(), StoreError>;
}

/// An execution to start.
pub(crate) struct Launch {
    pub run: RunId,
    pub site: Arc<Site>,
    pub step: StepPath,
    pub attempt: Attempt,
    pub job: Job,
    /// The task that it is enqueued as.
    pub task: Option<TaskRef>,
    /// Permission to ask a provider.
    pub pass: Arc<Pass>,
}

pub(crate) enum Job {
    Run(Box<Work>),
    Wait(Waiting),
    Merge(MergeWork),
}

impl Launch {
    /// Executes it in this process and blocks until it ends. Returns `None` if it was stopped.
    pub(crate) fn perform(&self, stop: &Stop) -> Option<Performed> {
        match &self.job {
            Job::Run(work) => {
                let mark = format!("{}/{}#{}", self.run, self.step, self.attempt);
                let terms = Terms { pass: self.pass.clone(), task: None };
                perform::run_on(&terms, &self.site, work, &mark, stop)
            }
            Job::Wait(waiting) => perform::wait(&self.site, waiting, stop),
            Job::Merge(work) => bead_tree::merge(&self.site, &self.run, &self.step, work, stop),
        }
    }
}

/// The interfaces that a run is driven with.
pub(crate) struct Reins<'a> {
    pub clock: &'a dyn Clock,
    pub report: &'a mut dyn Report,
    pub hands: &'a mut dyn Hands,
    pub stop: &'a Stop,
}

/// Ends the processes of a run on this machine. Returns their number.
pub(crate) fn sweep(run: &RunId) -> usize {
    let prefix = format!("{run}/");
    exec::sweep_if(&|mark| mark.starts_with(&prefix))
}

/// A run that this process drives.
pub(crate) struct Drive {
    pub site: Arc<Site>,
    pub plan: Arc<Plan>,
    pub run: Run,
    pub store: Store,
    /// True if the state is backed up before every step.
    pub backups: bool,
    /// Attempts in flight, by step.
    in_flight: HashMap<StepPath, Attempt>,
    left_running: usize,
    /// Due times of pending wakeups, each with its instant on the monotonic clock.
    rests: BTreeMap<Time, Instant>,
    /// The earliest wakeup that the run is owed.
    wake: Option<Instant>,
    warned: bool,
    /// Attempts that wait for a parked account, by step, with that account.
    parked: HashMap<StepPath, (Attempt, Target)>,
    /// Parking notes that were already reported.
    told: HashSet<String>,
}

impl Drive {
    pub(crate) fn new(
        site: Arc<Site>,
        plan: Arc<Plan>,
        run: Run,
        store: Store,
        backups: bool,
    ) -> Drive {
        let in_flight = HashMap::new();
        Drive {
            site,
            plan,
            run,
            store,
            backups,
            in_flight,
            left_running: 0,
            rests: BTreeMap::new(),
            wake: None,
            warned: false,
            parked: HashMap::new(),
            told: HashSet::new(),
        }
    }

    /// Returns the attempts that were enqueued as tasks before this process drove the run, and
    /// marks them as in flight.
    pub(crate) fn tasks_out(&mut self) -> Vec<(StepPath, Attempt, TaskRef)> {
        let mut found = Vec::new();
        for here in self.run.positions() {
            let Some(slot) = self.run.slot(&here) else { continue };
            let task = slot.record.as_ref().and_then(|record| record.task.clone());
            if let (StepState::Running, Some(task)) = (slot.state, task)
                && slot.each.is_none()
            {
                let step = here.path(&self.plan);
                self.in_flight.insert(step.clone(), slot.attempts);
                found.push((step, slot.attempts, task));
            }
        }
        found
    }

    /// Returns the number of the latest execution of a step's attempt that the run has recorded.
    pub(crate) fn executions(&self, step: &StepPath) -> TaskAttempt {
        let at = Address::find(&self.plan, step);
        let record = at.and_then(|at| self.run.slot(&at)?.record.as_deref());
        record.map_or(TaskAttempt::FIRST, |record| record.executions.max(TaskAttempt::FIRST))
    }

    /// Returns the tasks that were in flight when a node ended the run. Workers may still execute
    /// them.
    pub(crate) fn tasks_cut_off(&self) -> Vec<(StepPath, Attempt, TaskRef)> {
        let mut found = Vec::new();
        for (here, slot) in self.run.slots() {
            let Some(record) = slot.record.as_deref() else { continue };
            // A worker that completes a task leaves metrics.
            if record.metrics.is_none()
                && let Some(task) = record.task.clone()
            {
                found.push((here.path(&self.plan), slot.attempts, task));
            }
        }
        found
    }

    /// Returns the attempts that the previous driver of the run executed in its own process.
    pub(crate) fn cut_off(&self) -> Vec<(StepPath, Attempt)> {
        let mut found = Vec::new();
        for here in self.run.positions() {
            let Some(slot) = self.run.slot(&here) else { continue };
            let out = slot.record.as_ref().is_some_and(|record| record.task.is_some());
            if slot.state == StepState::Running && slot.each.is_none() && !out {
                found.push((here.path(&self.plan), slot.attempts));
            }
        }
        found
    }

    pub(crate) fn is_over(&self) -> bool {
        self.run.status != RunStatus::Running
    }

    /// Returns true if the run waits only for users.
    pub(crate) fn is_paused(&self) -> bool {
        !self.is_busy() && self.run.status == RunStatus::Running && self.run.is_paused()
    }

    /// Returns true if an execution is in flight.
    pub(crate) fn is_busy(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Records the end of an execution. `None` means that it was stopped. Ignores an attempt that
    /// is not in flight.
    pub(crate) fn ended(
        &mut self,
        reins: &mut Reins,
        step: &StepPath,
        attempt: Attempt,
        performed: Option<Performed>,
    ) -> Result<(), StoreError> {
        if self.in_flight.get(step) != Some(&attempt) {
            return Ok(());
        }
        self.in_flight.remove(step);
        let Some(performed) = performed else { return Ok(()) };
        self.left_running += performed.left_running;
        let (step, record) = (step.clone(), Box::new(performed.record));
        self.record(reins, Event::Ended { step, attempt, record })
    }

    /// Recalls an attempt whose task is missing from the queue.
    pub(crate) fn recall(
        &mut self,
        reins: &mut Reins,
        step: &StepPath,
        attempt: Attempt,
    ) -> Result<(), StoreError> {
        self.in_flight.remove(step);
        let step = step.clone();
        self.record(reins, Event::Recalled { step, attempt })
    }

    /// Records that the task of an attempt was put back into the queue for another execution.
    pub(crate) fn put_back(
        &mut self,
        reins: &mut Reins,
        step: &StepPath,
        attempt: Attempt,
        (execution, deaths): (TaskAttempt, u32),
    ) -> Result<(), StoreError> {
        if self.in_flight.get(step) != Some(&attempt) {
            return Ok(());
        }
        let step = step.clone();
        self.record(reins, Event::PutBack { step, attempt, execution, deaths })
    }

    /// Returns the time until [`Drive::keep_up`] or [`Drive::advance`] must be called again if
    /// nothing else happens.
    pub(crate) fn patience(&self, now: Time) -> Option<Duration> {
        // If a due time has passed without success (a full disk), the caller must not spin.
        let files = self.store.next_due().map(|due| due.ms_since(now).clamp(1, 3_600_000));
        let wake = self.wake.map(|wake| wake.saturating_duration_since(host::instant()));
        let gates = self.run.has_gate().then_some(ANSWERS);
        let parked = (!self.parked.is_empty()).then_some(PARKED);
        files.map(Duration::from_millis).into_iter().chain(wake).chain(gates).chain(parked).min()
    }

    /// Writes the run's files if they are due. A failure here loses nothing yet: the journal has
    /// the events, and if it cannot be written either, [`Drive::record`] returns the error.
    pub(crate) fn keep_up(&mut self, now: Time) {
        if let Err(error) = self.store.keep_up(&self.plan, &self.run, now)
            && !std::mem::replace(&mut self.warned, true)
        {
            tracing::warn!("{error}; will be tried again");
        }
    }

    /// Ends the processes that plain commands have left running.
    pub(crate) fn tidy_up(&mut self) {
        if std::mem::take(&mut self.left_running) > 0 {
            let ended = sweep(&self.run.id);
            tracing::info!("ended {ended} processes that commands had left running");
        }
    }

    /// Saves the run and stops driving it: it has ended, or another process resumes it later.
    pub(crate) fn rest(&mut self, now: Time) -> Result<(), StoreError> {
        self.tidy_up();
        self.store.save(&self.plan, &self.run, now)
    }

    pub(crate) fn record(&mut self, reins: &mut Reins, event: Event) -> Result<(), StoreError> {
        let now = reins.clock.now();
        self.record_at(reins, now, event)
    }

    fn record_at(&mut self, reins: &mut Reins, at: Time, event: Event) -> Result<(), StoreError> {
        let before = self.run.status;
        let (run, store, site) = (&mut self.run, &mut self.store, Some(&*self.site));
        record(&self.plan, run, store, site, reins.report, at, &event)?;
        let ends = before == RunStatus::Running && self.run.status == RunStatus::Cancelled;
        if !ends || matches!(event, Event::Cancelled { .. }) {
            return Ok(());
        }
        // A node has cancelled the run; it is reported like any other cancellation.
        let reason = self.run.error.clone();
        self.record_at(reins, at, Event::Cancelled { reason })
    }

    /// Performs owed effects until the run can only wait.
    pub(crate) fn advance(&mut self, reins: &mut Reins) -> Result<(), StoreError> {
        loop {
            let mut progressed = false;
            // Attempts that wait for an account do not occupy a slot.
            let room = reins.hands.jobs().saturating_sub(self.in_flight.len());
            let room = if room == 0 { 0 } else { room + self.parked.len() };
            self.wake = None;
            for effect in engine::owed(&self.plan, &self.run, room) {
                progressed |= self.perform(reins, effect)?;
                // If the run has ended, its other effects are no longer owed.
                if self.is_over() {
                    return Ok(());
                }
            }
            if !progressed || reins.stop.level() > 0 {
                return Ok(());
            }
        }
    }

    /// Records the answers of users, and does nothing else.
    pub(crate) fn hear_answers(&mut self, reins: &mut Reins) -> Result<(), StoreError> {
        for effect in engine::owed(&self.plan, &self.run, 0) {
            if let Effect::Answer { step, attempt } = effect {
                self.answer(reins, &step, attempt)?;
            }
        }
        Ok(())
    }

    /// Performs or starts one effect. Returns true if the run may now be owed another one.
    fn perform(&mut self, reins: &mut Reins, effect: Effect) -> Result<bool, StoreError> {
        match effect {
            Effect::Execute { step, attempt } => self.execute(reins, step, attempt),
            Effect::Open { step } => self.open(reins, step),
            Effect::MoveItem { step, index, result } => self.move_item(reins, &step, index, result),
            Effect::MoveBack { step, index, from, to } => {
                self.store.commit(reins.clock.now())?;
                let error = item_files::carry_out(&self.site.workspace, &from, &to);
                self.record(reins, Event::MovedBack { step, index, error }).map(|()| true)
            }
            Effect::Ask { step } => self.ask(reins, step),
            Effect::Wake { at } => self.wake(reins, at),
            Effect::Skip { step, cause } => {
                let skipped = Event::Skipped { step, cause: Some(cause), warning: None };
                self.record(reins, skipped).map(|()| true)
            }
            Effect::Keep { step } => self.record(reins, Event::Kept { step }).map(|()| true),
            Effect::Answer { step, attempt } => self.answer(reins, &step, attempt),
        }
    }

    /// Records that a time has come, or schedules a wakeup. The remaining time is computed once and
    /// measured on the monotonic clock, so that setting the wall clock neither shortens nor
    /// lengthens it. If the clock was set back before the run was resumed, the time counts from the
    /// run's last event.
    fn wake(&mut self, reins: &mut Reins, at: Time) -> Result<bool, StoreError> {
        let now = reins.clock.now().max(self.run.updated_at);
        let rest = || Duration::from_millis(at.ms_since(now));
        let due = *self.rests.entry(at).or_insert_with(|| host::instant() + rest());
        if host::instant() < due {
            self.wake = Some(self.wake.map_or(due, |first| first.min(due)));
            return Ok(false);
        }
        let at = reins.clock.now().max(at);
        self.rests.retain(|until, _| *until > at);
        self.record_at(reins, at, Event::Woke).map(|()| true)
    }

    /// Records the user's answer to a gate, or its timeout.
    fn answer(
        &mut self,
        reins: &mut Reins,
        step: &StepPath,
        attempt: Attempt,
    ) -> Result<bool, StoreError> {
        let slot = self.run.slot(&self.address(step));
        let gate = slot.and_then(|slot| slot.record.as_ref()?.gate.clone());
        let Some(gate) = gate else { return Ok(false) };
        let name = step.clone();
        match gates::answer(self.store.root(), step, attempt, &gate) {
            Some(answer) => {
                // After a power cut, an approved gate must not ask again.
                self.record(reins, Event::Answered { step: name, attempt, answer })?;
                self.store.commit(reins.clock.now())?;
                return Ok(true);
            }
            None if gate.expires_at.is_some_and(|at| at <= reins.clock.now()) => {
                let message = "nobody answered in time (`timeout`)";
                let record = Box::new(Record::refused(124, message, serde_json::Map::new()));
                return self
                    .record(reins, Event::Ended { step: name, attempt, record })
                    .map(|()| true);
            }
            None => {}
        }
        Ok(false)
    }

    fn address(&self, step: &StepPath) -> Address {
        Address::find(&self.plan, step).expect("an effect names a step of the plan")
    }

    fn execute(
        &mut self,
        reins: &mut Reins,
        step: StepPath,
        attempt: Attempt,
    ) -> Result<bool, StoreError> {
        let here = self.address(&step);
        let fleet = self.run.origin.fleet;
        let full = self.in_flight.len() >= reins.hands.jobs();
        if full && here.step_of(&self.plan).takes_process() {
            return Ok(false);
        }
        let mut pass = None;
        if let Some((known, target)) = self.parked.get(&step).cloned()
            && known == attempt
        {
            match self.enter(&target) {
                Ok(entered) => pass = Some(entered),
                Err(note) if note.cause != Cause::Person => return Ok(false),
                Err(_) => {}
            }
        }
        perform::keep_earlier_logs(&self.site, &step, attempt);
        let names_state = self.refresh_for(&here, reins.clock.now())?;
        let prepared = prepare(&self.site, &self.plan, &self.run, &here, attempt, fleet);
        let name = step.clone();
        let job = match prepared {
            Prepared::Skip => {
                let (cause, warning) = (None, None);
                let skipped = Event::Skipped { step: name, cause, warning };
                return self.record(reins, skipped).map(|()| true);
            }
            Prepared::Bar(warning) => {
                let cause = Some(SkipCause::Condition);
                let skipped = Event::Skipped { step: name, cause, warning };
                return self.record(reins, skipped).map(|()| true);
            }
            Prepared::Gate(gate) => {
                gates::clear(self.store.root(), &step, attempt);
                self.record(reins, Event::Gated { step: name, attempt, gate })?;
                // After a power cut, an answer to a gate that the run has not recorded would not
                // count.
                return self.store.commit(reins.clock.now()).map(|()| true);
            }
            Prepared::Done(record) => {
                let ended = Event::Ended { step: name, attempt, record };
                return self.record(reins, ended).map(|()| true);
            }
            Prepared::Refuse(record) => {
                let ended = Event::Ended { step: name, attempt, record };
                return self.record(reins, ended).map(|()| true);
            }
            Prepared::Open => {
                return self.record(reins, Event::Opened { step: name }).map(|()| true);
            }
            Prepared::Run(work) => Job::Run(work),
            Prepared::Wait(waiting) => Job::Wait(waiting),
            Prepared::Merge(work) => Job::Merge(work),
        };
        let agent = match &job {
            Job::Run(work) if fleet => reins.hands.agent_for(work),
            _ => None,
        };
        if let (Job::Run(work), None, None) = (&job, &agent, &pass)
            && work.asks
        {
            let target = work.target();
            let provider = target.provider.as_str();
            match self.enter(&target) {
                Ok(entered) => pass = Some(entered),
                Err(note) if note.cause == Cause::Person => {
                    self.parked.remove(&name);
                    let record = Box::new(refusal(&note, provider));
                    let ended = Event::Ended { step: name, attempt, record };
                    return self.record(reins, ended).map(|()| true);
                }
                Err(note) => {
                    self.tell_parked(&note, provider);
                    self.parked.insert(name, (attempt, target));
                    return Ok(false);
                }
            }
        }
        self.parked.remove(&name);
        if self.backups {
            self.store.back_up(&self.plan, &self.run, &name.to_string(), reins.clock.now())?;
        }
        let task = agent.map(|agent| reins.hands.new_task(agent));
        let launched = Event::Launched { step: name.clone(), attempt, task: task.clone() };
        self.record(reins, launched)?;
        if names_state {
            self.store.refresh(&self.plan, &self.run, reins.clock.now())?;
        }
        self.in_flight.insert(name, attempt);
        let (run, site) = (self.run.id.clone(), self.site.clone());
        let pass = pass.unwrap_or_else(Pass::free);
        reins.hands.begin(Launch { run, site, step, attempt, job, task, pass })?;
        Ok(true)
    }

    /// Replaces the snapshot if the step at `here` refers to it. Returns true if it does.
    fn refresh_for(&mut self, here: &Address, now: Time) -> Result<bool, StoreError> {
        let names_state = here.step_of(&self.plan).names_state(self.plan.providers());
        if names_state {
            self.store.refresh(&self.plan, &self.run, now)?;
        }
        Ok(names_state)
    }

    /// Requests permission to ask an account, or returns the reason why it is parked.
    fn enter(&self, target: &Target) -> Result<Arc<Pass>, Box<Note>> {
        match self.site.parking.as_ref().map(|parking| parking.enter(target)) {
            None => Ok(Pass::free()),
            Some(Entry::Open(pass)) => Ok(pass),
            Some(Entry::Parked(note)) => Err(note),
        }
    }

    fn tell_parked(&mut self, note: &Note, provider: &str) {
        if note.cause != Cause::Easing && self.told.insert(note.word.clone()) {
            let until = note.until.map(Time::to_second).unwrap_or_default();
            tracing::warn!(
                "provider `{provider}` is parked until {until}: {}; its steps wait, and nothing \
                 is asked meanwhile",
                note.reason
            );
        }
    }

    fn open(&mut self, reins: &mut Reins, step: StepPath) -> Result<bool, StoreError> {
        let here = self.address(&step);
        let attempt = self.run.slot(&here).map_or(Attempt::FIRST, |slot| slot.attempts.next());
        self.refresh_for(&here, reins.clock.now())?;
        let event = match prepare(&self.site, &self.plan, &self.run, &here, attempt, false) {
            Prepared::Skip => Event::Skipped { step, cause: None, warning: None },
            Prepared::Bar(warning) => {
                Event::Skipped { step, cause: Some(SkipCause::Condition), warning }
            }
            Prepared::Refuse(record) => Event::Ended { step, attempt, record },
            _ => Event::Opened { step },
        };
        self.record(reins, event).map(|()| true)
    }

    fn move_item(
        &mut self,
        reins: &mut Reins,
        step: &StepPath,
        index: usize,
        result: engine::run::ItemResult,
    ) -> Result<bool, StoreError> {
        let here = self.address(step);
        let workspace = &self.site.workspace;
        let planned = item_files::plan_move(&self.plan, &self.run, &here, index, result, workspace);
        let step = step.clone();
        let (target, error) = match planned {
            Ok(target) => (target, None),
            Err((target, error)) => (target, Some(error)),
        };
        let (from, to) = (target.from.clone(), target.to.clone());
        self.record(reins, Event::Moving { step: step.clone(), index, result, from, to })?;
        // Without its intent on disk, a completed move would look like a missing file.
        self.store.commit(reins.clock.now())?;
        let error =
            error.or_else(|| item_files::carry_out(&self.site.workspace, &target.from, &target.to));
        self.record(reins, Event::Moved { step, index, error }).map(|()| true)
    }

    fn ask(&mut self, reins: &mut Reins, step: StepPath) -> Result<bool, StoreError> {
        self.store.save(&self.plan, &self.run, reins.clock.now())?;
        match reins.report.ask(&self.run, &step, reins.stop) {
            Some(choice) => self.record(reins, Event::Decided { step, choice }).map(|()| true),
            None => Ok(false),
        }
    }
}

/// Builds the record of a step that is not started because its provider needs a user's action.
fn refusal(note: &Note, provider: &str) -> Record {
    let (account, reason) = (&note.account, &note.reason);
    let message = format!(
        "provider `{provider}` is parked until a person has acted: {reason}; then `orchestrate \
         provider resume {account}`"
    );
    let mut record = Record::refused(1, message, serde_json::Map::new());
    if let Some(error) = &mut record.error {
        error.class = Some(FaultClass::Fatal);
    }
    record
}
