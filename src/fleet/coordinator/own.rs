//! Run ownership: starts to drive a claimed run, and ends, releases, or loses it.

use std::collections::HashSet;
use std::fmt::Display;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use serde_json::Map;

use super::{Coordinator, Held, Left, Out, RUNS, Reports};
use crate::attempt::documents::{self, Asked, COORDINATOR, RunTask};
use crate::attempt::exec_env::{self, Site, Turns};
use crate::base::host;
use crate::base::ids::{RunId, TaskAttempt, counted};
use crate::base::time::{Clock, SystemClock};
use crate::disk;
use crate::engine::{Event, Record, Run, RunStatus, StepStatus};
use crate::exec::Stop;
use crate::fleet::systemd;
use crate::queue::{Claim, ClaimName, Claimed, End, Ending, Finish, Unfinished};
use crate::run::drive::{self, Drive};
use crate::run::open::{self, OpenError};
use crate::settings::Config;
use crate::store::lock::{self, LockError, RunLock};
use crate::store::{History, LoadError, Store, StoreError};
use crate::workflow::Plan;
use crate::workspace::PathError;

/// A run that was read from its files.
struct Opened {
    config: Config,
    plan: Plan,
    store: Store,
    run: Run,
    stop: Stop,
}

impl Coordinator {
    pub(super) fn claim_runs(&mut self, reports: &mut dyn Reports) {
        while !self.closing && self.only.is_none() && self.held.len() < RUNS {
            match self.setup.queue.claim(COORDINATOR) {
                Ok(Claimed::Task(claim)) => {
                    self.patience.reset();
                    self.take_up(*claim, reports);
                }
                Ok(Claimed::Quarantined { name, reason }) => {
                    reports.note(&format!("{}: {reason}", name.task.file()));
                }
                Ok(Claimed::Nothing) => return,
                Err(error) => {
                    tracing::warn!("cannot claim a run: {error}; will be tried again");
                    return;
                }
            }
        }
    }

    /// Starts to drive a claimed run, defers it, or refuses it.
    pub(super) fn take_up(&mut self, claim: Claim, reports: &mut dyn Reports) {
        let task = match run_of(&claim) {
            Ok(task) => task,
            Err(reason) => return self.refuse(claim, &reason, reports),
        };
        match self.setup.workspace.check(&task.run_root) {
            Ok(()) => {}
            Err(error @ PathError::Io { .. }) => return self.put_off(claim, &error, reports),
            Err(error) => return self.refuse(claim, &error.to_string(), reports),
        }
        let root = self.setup.workspace.root().join(&task.run_root);
        let lock = match lock::take(&root) {
            Ok(lock) => Some(lock),
            Err(LockError::Held { owner }) => {
                // The last owner lost the run and has not noticed yet, or a user resumed it
                // locally.
                if self.told_of.insert(claim.name.stem()) {
                    let run = &task.run_id;
                    reports.note(&format!("run {run} waits: {owner} still has its lock"));
                }
                let again = host::instant() + self.setup.config.queue.beat;
                return self.put_off.push((claim, again));
            }
            // A volume without lock support: between machines the claim decides anyway.
            Err(LockError::Io(error)) if error.kind() != io::ErrorKind::NotFound => None,
            Err(error) => return self.miss(claim, &root, &error, reports),
        };
        match self.open(&claim, &root) {
            Ok(Some(opened)) => {
                let held = self.own(claim, opened, &root, lock, reports);
                self.begin(held, reports);
            }
            Ok(None) => tracing::info!("{}: somebody else drives it", claim.name.task.file()),
            Err(error) if error.may_pass() => self.put_off(claim, &error, reports),
            Err(error @ OpenError::Unreadable(_)) => self.miss(claim, &root, &error, reports),
            Err(error) => self.refuse(claim, &error.to_string(), reports),
        }
    }

    /// Handles a run whose files are not found. The run was acknowledged, so on a shared volume the
    /// coordinator retries for a whole lease before it refuses the run.
    fn miss(&mut self, claim: Claim, root: &Path, error: &dyn Display, reports: &mut dyn Reports) {
        let settings = &self.setup.config.queue;
        let now = host::instant();
        let since = *self.missing.entry(claim.name.stem()).or_insert(now);
        let again = now + settings.beat;
        if !disk::machine().is_shared(root) || now >= since + settings.lease {
            self.missing.remove(&claim.name.stem());
            return self.refuse(claim, &error.to_string(), reports);
        }
        if since == now {
            let name = claim.name.task.file();
            reports.note(&format!("{name}: {error}; other machines may see it, so try again"));
        }
        self.put_off.push((claim, again));
    }

    /// Defers a run whose files cannot be read now; the next try is after one lease.
    pub(super) fn put_off(&mut self, claim: Claim, error: &dyn Display, reports: &mut dyn Reports) {
        let name = claim.name.task.file();
        reports.note(&format!("{name}: {error}; will be tried again"));
        let again = host::instant() + self.setup.config.queue.lease;
        self.put_off.push((claim, again));
    }

    /// Returns the term in which the claim's holder drives its run, or `None` if it has lost the
    /// run.
    pub(super) fn term(&self, claim: &Claim, last: u32) -> io::Result<Option<u32>> {
        let attempt = claim.name.task.attempt.number();
        if last <= attempt {
            return Ok(Some(attempt));
        }
        // Another coordinator drove the run under a later claim than this one. Either this claim is
        // of a new task, whose attempts start again at 1, or its holder was declared dead.
        let holds = self.setup.queue.claims(COORDINATOR)?.contains(&claim.name);
        Ok(holds.then_some(last + 1))
    }

    /// Ends the task of a run that cannot be driven as failed, with the reason.
    pub(super) fn refuse(&self, claim: Claim, reason: &str, reports: &mut dyn Reports) {
        let file = claim.name.task.file();
        reports.note(&format!("{file}: {reason}"));
        if let Err(Unfinished { error, .. }) = self.end_claim(claim, End::Failed, reason) {
            reports.note(&format!("{file}: {error}"));
        }
    }

    pub(super) fn end_claim(
        &self,
        claim: Claim,
        end: End,
        message: &str,
    ) -> Result<Ending, Unfinished> {
        let now = SystemClock.now();
        let record = match end {
            End::Processed => {
                Record { status: StepStatus::Completed, exit_code: Some(0), ..Record::default() }
            }
            _ => Record::refused(1, message, Map::new()),
        };
        let status = documents::status(&claim, &record, now, now);
        self.setup.queue.complete_one(Finish { claim, end, status })
    }

    /// Opens a claimed run and begins its next term. Returns `None` if another coordinator drives
    /// the run.
    fn open(&self, claim: &Claim, root: &Path) -> Result<Option<Opened>, OpenError> {
        let away = |doing, source| {
            let path = root.to_owned();
            OpenError::State(LoadError::Disk(StoreError { doing, path, source }))
        };
        let (config, plan, mut store, run) = open::open(&self.setup.workspace, root)?;
        let term = self.term(claim, store.term()).map_err(|error| away("look after", error))?;
        let Some(term) = term else { return Ok(None) };
        store.begin_term(term);
        let stop = Stop::new().map_err(|error| away("drive", error))?;
        Ok(Some(Opened { config, plan, store, run, stop }))
    }

    /// Starts to own an opened run.
    fn own(
        &self,
        claim: Claim,
        opened: Opened,
        root: &Path,
        lock: Option<RunLock>,
        reports: &mut dyn Reports,
    ) -> Held {
        let Opened { config, plan, store, run, stop } = opened;
        let (environment, credentials) = (self.setup.environment.clone(), &self.setup.credentials);
        let site = Site {
            workspace: self.setup.workspace.clone(),
            logs: root.join("logs"),
            about: credentials.clone().into_iter().chain(exec_env::about(&run.id, root)).collect(),
            mask: exec_env::mask_too(&plan, &environment, credentials),
            environment,
            hidden: systemd::VARIABLES.map(str::to_owned).to_vec(),
            debug: self.setup.debug,
            live: true,
            grace: config.grace,
            silences: config.silences,
            input_bytes: config.input_bytes,
            parking: None,
            program: self.setup.program.clone(),
            turns: Turns::of(&config),
            sandboxes: crate::attempt::sandboxes::Sandboxes::of(&config, None),
        };
        let masked = exec_env::secrets(&plan);
        let report = reports.about(&run, &site);
        let drive = Drive::new(Arc::new(site), Arc::new(plan), run, store, self.setup.backups);
        Held {
            claim,
            drive,
            report,
            config,
            masked,
            stop,
            _lock: lock,
            here: 0,
            turn: None,
            cancelling: false,
            failing: false,
        }
    }

    /// Starts to drive a run. Attempts that were open in the previous owner's process are owed
    /// again; tasks that are in flight are waited for. A run that is over does not start again: its
    /// previous owner only failed to end its task.
    pub(super) fn begin(&mut self, mut held: Held, reports: &mut dyn Reports) {
        let run = held.drive.run.id.clone();
        let orphans = drive::sweep(&run);
        if orphans > 0 {
            reports.note(&format!("run {run}: ended {orphans} processes of its last owner"));
        }
        if self.is_asked_to_cancel(&run) {
            held.cancelling = true;
            held.stop.request(1);
        } else if was_driven(&held) && !held.drive.is_over() && !was_just_resumed(&held) {
            let policy = held.drive.run.origin.policy.clone();
            let event = poison(&held).unwrap_or(Event::Resumed { policy, asked: false });
            let recorded = self.with(&mut held, |drive, reins| drive.record(reins, event));
            if let Err(error) = recorded {
                reports.note(&format!("run {run}: {error}"));
                let _ = self.setup.queue.release(held.claim);
                return;
            }
        }
        let over = held.drive.is_over();
        let out = if over { held.drive.tasks_cut_off() } else { held.drive.tasks_out() };
        for (step, attempt, task) in out {
            self.watch(&task.agent);
            let execution = held.drive.executions(&step);
            let run = run.clone();
            let published = true;
            let out = Out { run, step, attempt, task, execution, published, missing: None };
            self.out.insert(out.task.id.clone(), out);
        }
        self.next_look = host::instant();
        self.held.insert(run.clone(), held);
        self.touched.push_back(run);
    }

    /// Releases a run whose files cannot be written, for another coordinator to try.
    pub(super) fn abandon(
        &mut self,
        mut held: Held,
        error: &StoreError,
        reports: &mut dyn Reports,
    ) {
        reports.note(&format!("run {}: {error}; it is given back", held.drive.run.id));
        held.stop.request(1);
        held.drive.tidy_up();
        self.forget_tasks(&held.drive.run.id);
        self.line.leave(&held.claim);
        let _ = self.setup.queue.release(held.claim);
        reports.left(&held.drive.run, Left::GivenBack);
    }

    /// Ends a run that is over or cancelled. Returns the run if this coordinator still holds it.
    pub(super) fn finish(&mut self, mut held: Held, reports: &mut dyn Reports) -> Option<Held> {
        let run = held.drive.run.id.clone();
        let out = self.out.values().any(|out| out.run == run);
        if out && held.drive.is_over() {
            // A node ended the run: cancel the tasks in flight and wait for their workers.
            if !std::mem::replace(&mut held.cancelling, true) {
                if let Err(error) = self.setup.queue.request_cancel(run.as_str()) {
                    tracing::warn!("run {run}: {error}; its tasks are not told that it is over");
                }
                self.next_look = host::instant();
            }
            return Some(held);
        }
        if held.cancelling && !held.drive.is_over() {
            if out {
                return Some(held);
            }
            let cancelled = Event::Cancelled { reason: None };
            let recorded = self.with(&mut held, |drive, reins| drive.record(reins, cancelled));
            if let Err(error) = recorded {
                self.abandon(held, &error, reports);
                return None;
            }
        }
        if let Err(error) = held.drive.rest(SystemClock.now()) {
            if error.source.kind() != io::ErrorKind::NotFound {
                self.try_later(&mut held, &error);
                return Some(held);
            }
            // The run's directory was removed: there is no place to store its state.
            reports.note(&format!("run {run}: {error}; it is over"));
        }
        let status = held.drive.run.status;
        let (end, message) = match status {
            RunStatus::Completed => (End::Processed, "completed"),
            RunStatus::Cancelled => (End::Cancelled, "cancelled"),
            RunStatus::Blocked => (End::Failed, "the run is blocked"),
            _ => (End::Failed, "the run failed"),
        };
        // A run that is over needs no turn.
        self.line.leave(&held.claim);
        let left = match self.end_claim(held.claim, end, message) {
            Ok(Ending::Committed) => Left::Ended(status),
            Ok(Ending::Fenced) => Left::Lost,
            Err(Unfinished { finish, error }) => {
                held.claim = finish.claim;
                self.try_later(&mut held, &error);
                return Some(held);
            }
        };
        // If another coordinator has the run, it must still see the cancel request.
        if left != Left::Lost {
            let _ = self.setup.queue.forget_cancel(run.as_str());
        }
        self.forget_tasks(&run);
        if left != Left::Lost {
            self.give_up_turn(held.turn.take(), &run);
        }
        reports.left(&held.drive.run, left);
        None
    }

    /// Schedules another try after one heartbeat to end a run that is over. Logs the error only
    /// once.
    fn try_later(&mut self, held: &mut Held, error: &dyn Display) {
        let run = held.drive.run.id.clone();
        if !std::mem::replace(&mut held.failing, true) {
            tracing::warn!("run {run}: {error}; will be tried again");
        }
        self.later.push((run, host::instant() + self.setup.config.queue.beat));
    }

    /// Drops the runs whose claims this process no longer holds: another member declared it dead.
    pub(super) fn drop_lost(&mut self, claims: &HashSet<String>, reports: &mut dyn Reports) {
        if self.put_off.iter().any(|(claim, _)| !claims.contains(&claim.name.stem()))
            && let Ok(still) = self.setup.queue.claims(COORDINATOR)
        {
            self.put_off.retain(|(claim, _)| still.contains(&claim.name));
        }
        let lost: Vec<RunId> = self
            .held
            .iter()
            .filter(|(_, held)| !claims.contains(&held.claim.name.stem()))
            .map(|(run, _)| run.clone())
            .collect();
        if lost.is_empty() {
            return;
        }
        // Runs may have been claimed after the keeper's listing. One listing answers for all of
        // them.
        let still = self.setup.queue.claims(COORDINATOR).unwrap_or_default();
        let still: HashSet<String> = still.iter().map(ClaimName::stem).collect();
        for run in lost {
            let Some(mut held) = self.held.remove(&run) else { continue };
            if still.contains(&held.claim.name.stem()) {
                self.held.insert(run, held);
                continue;
            }
            held.stop.request(1);
            held.drive.tidy_up();
            self.forget_tasks(&run);
            self.line.leave(&held.claim);
            reports.left(&held.drive.run, Left::Lost);
        }
    }
}

/// Returns true if a coordinator drove the run before. A claim is not synced, so a power cut may
/// undo the claim but keep the work its holder started: then the claim is the first one again,
/// although the run is not new.
fn was_driven(held: &Held) -> bool {
    let has_begun = || held.drive.run.slots().iter().any(|(_, slot)| !slot.attempts.is_none());
    held.claim.name.task.attempt > TaskAttempt::FIRST || has_begun()
}

/// Returns true if the last event is a resume and no attempt is cut off: no second resume is
/// needed.
fn was_just_resumed(held: &Held) -> bool {
    let history = History::read(&*disk::machine(), held.drive.store.root());
    let last = history.ok().and_then(|mut history| history.entries.pop());
    held.drive.cut_off().is_empty()
        && last.is_some_and(|last| matches!(last.event, Event::Resumed { .. }))
}

/// Returns the event that ends an attempt over which `crash_limit` coordinators died in a row.
pub(super) fn poison(held: &Held) -> Option<Event> {
    let limit = held.config.queue.crash_limit;
    if held.claim.name.task.crashes < limit {
        return None;
    }
    let history = History::read(&*disk::machine(), held.drive.store.root()).ok()?;
    let cut_off = held.drive.cut_off().into_iter();
    let mut often = cut_off.map(|(step, attempt)| {
        let deaths = history.cut_off(&step);
        (step, attempt, deaths)
    });
    let (step, attempt, deaths) = often.find(|(_, _, deaths)| *deaths >= limit)?;
    let message = format!(
        "its coordinator died {} over it; it is not tried again",
        counted(deaths as usize, "time")
    );
    let reason = [("reason".to_owned(), "crash_limit".into())].into_iter().collect();
    // The exit code of a killed process, which is not retried.
    let record = Box::new(Record::refused(128 + 9, message, reason));
    Some(Event::Ended { step, attempt, record })
}

pub(super) fn run_of(claim: &Claim) -> Result<RunTask, String> {
    match documents::read(&claim.task.document)? {
        Asked::Run(run) => Ok(run),
        _ => Err("it is no run, which is all that a coordinator drives".into()),
    }
}

pub(super) fn take_due(waiting: &mut Vec<(Claim, Instant)>, now: Instant) -> Vec<(Claim, Instant)> {
    let (due, later) = std::mem::take(waiting).into_iter().partition(|(_, at)| *at <= now);
    *waiting = later;
    due
}
