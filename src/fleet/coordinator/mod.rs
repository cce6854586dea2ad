//! A coordinator: a process that drives any number of runs.
//!
//! A run is itself a task in `inbox/coordinator/`. The coordinator that claims it owns the run. If
//! the owner dies, the claim is reaped like any other and another coordinator resumes the run. The
//! work that a run is owed is published as tasks to the agents' inboxes. When a task ends, the
//! coordinator reads its status and advances the run.
//!
//! One loop does all of it. It waits for messages: a local execution ended, a claimed task left its
//! directory, a signal arrived, the keeper finished a scan. The loop also scans from time to time,
//! so no message is essential.
//!
//! **Invariant:** a task is in its run's journal, under a unique ID, before it is published. So the
//! next owner of the run knows which tasks to look for.

mod hands;
mod keep;
mod own;
mod results;
mod turns;

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use self::hands::FleetHands;
use self::keep::hear_changes;
use self::own::{run_of, take_due};
use self::turns::Line;
use super::member::{Buried, Member, uptime_ms, wait_above};
use super::worker::{obituary, recover};
use crate::attempt::documents::COORDINATOR;
use crate::attempt::exec_env::{Environment, Site};
use crate::attempt::perform::Performed;
use crate::base::host;
use crate::base::ids::{Attempt, RunId, StepPath, TaskAttempt};
use crate::base::time::{Clock, SystemClock};
use crate::disk::hint::{Hints, Patience};
use crate::engine::{Run, RunStatus, TaskRef};
use crate::exec::Stop;
use crate::free_task::intake::{self, Adopt, Intake};
use crate::queue::{Claim, ClaimName, End, Published, Queue, Task};
use crate::run::checkout::{self, Before};
use crate::run::drive::{Drive, Reins, Report};
use crate::run::thread_pool::Pool;
use crate::settings::Config;
use crate::store::lock::RunLock;
use crate::workspace::Workspace;

/// Maximum number of steps that a coordinator executes locally at once.
const JOBS: usize = 16;
/// Maximum number of tasks that it publishes before it handles messages again.
const FLUSHED: usize = 256;
/// Maximum number of runs that it drives at once.
const RUNS: usize = 10_000;

/// Dependencies and settings of a coordinator.
pub(crate) struct Setup {
    pub queue: Arc<Queue>,
    pub workspace: Workspace,
    pub config: Config,
    pub environment: Environment,
    /// Secrets that were read from files; child processes receive them as variables.
    pub credentials: Environment,
    pub program: PathBuf,
    pub debug: bool,
    pub backups: bool,
    /// Converts files that users drop into the coordinator's inbox. `None` ignores such files.
    pub adopt: Option<Box<dyn Adopt>>,
    pub alive: Alive,
}

/// Reports that this process is alive, even while the volume is unavailable. Returns the time until
/// the next call, or `None` if no supervisor waits for it.
pub(crate) type Alive = Box<dyn Fn() -> Option<Duration> + Send + Sync>;

/// Receives reports of a coordinator's activity.
pub(crate) trait Reports {
    /// Creates the receiver of reports about one run.
    fn about(&mut self, run: &Run, site: &Site) -> Box<dyn Report>;
    fn note(&mut self, line: &str);
    /// Called when the coordinator stops claiming new runs.
    fn closing(&mut self) {}
    /// Called when a run waits for the checkout token.
    fn waits(&mut self, run: &Run, before: &Before) {
        self.note(&format!("run {} waits for its turn: {before} works on this checkout", run.id));
    }
    /// Called when this coordinator no longer drives a run.
    fn left(&mut self, run: &Run, how: Left);
}

/// The reason why a coordinator no longer drives a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    Ended(RunStatus),
    /// The run continues in another coordinator or later.
    GivenBack,
    /// The run waits for a user; its next owner reads the answer.
    Paused,
    /// Another coordinator owns the run.
    Lost,
}

/// A message to the loop.
enum Heard {
    Done {
        run: RunId,
        /// The claim under which the execution started. The run may have been lost and claimed
        /// again since.
        claim: ClaimName,
        step: StepPath,
        attempt: Attempt,
        performed: Option<Box<Performed>>,
    },
    /// A claimed task left its directory.
    Went(ClaimName),
    /// A file arrived in the coordinator's inbox.
    Came,
    Signal,
    /// The checkout token changed its holder.
    Turned,
    /// IDs of the runs and tasks that users ask to cancel.
    Asked(HashSet<String>),
    Looked {
        /// Time of the heartbeat before the scan.
        since_ms: u64,
        /// The claims that this process holds, or `None` if this scan did not list them.
        held: Option<HashSet<String>>,
        cancel: HashSet<String>,
        buried: Vec<Buried>,
    },
}

/// A run that this coordinator drives.
struct Held {
    claim: Claim,
    drive: Drive,
    report: Box<dyn Report>,
    config: Config,
    masked: Vec<String>,
    stop: Stop,
    /// Held as long as the run is, so that a local `resume` cannot drive the run too.
    _lock: Option<RunLock>,
    /// Number of executions in this process.
    here: usize,
    /// The checkout token, if the run needs it and holds it.
    turn: Option<checkout::Held>,
    cancelling: bool,
    /// True after a failure to end the run was logged.
    failing: bool,
}

/// A task in flight.
#[derive(Clone, Debug)]
struct Out {
    run: RunId,
    step: StepPath,
    attempt: Attempt,
    task: TaskRef,
    /// The latest execution of the task that the run knows of.
    execution: TaskAttempt,
    /// True if the task is or was in its inbox; false while it is in the outbox.
    published: bool,
    /// Time since when the task is missing.
    missing: Option<Instant>,
}

/// Returns true if a run waits only for users.
fn is_paused(held: &Held) -> bool {
    held.here == 0 && !held.cancelling && held.drive.is_paused()
}

/// A running coordinator.
pub(crate) struct Coordinator {
    setup: Setup,
    held: BTreeMap<RunId, Held>,
    /// Deferred claims: another process on this machine holds the run's lock, or the run's files
    /// cannot be read now. Each has the time of the next try.
    put_off: Vec<(Claim, Instant)>,
    /// Time since when the files of a claimed run are missing, by the stem of the claim.
    missing: BTreeMap<String, Instant>,
    out: BTreeMap<String, Out>,
    /// Runs that may be owed work, or whose files may need an update.
    touched: VecDeque<RunId>,
    timed: BTreeSet<RunId>,
    /// Tasks that are in a journal and not published yet.
    outbox: Vec<Task>,
    /// Number of tasks to publish at once. It is lower on a slow volume, so that a group is
    /// published well before the lease must be confirmed again.
    flushes: usize,
    /// Time of the next try to publish the outbox, after the queue was unreachable.
    next_flush: Instant,
    pool: Pool,
    tell: Sender<Heard>,
    heard: Receiver<Heard>,
    hints: Hints,
    watched: HashSet<String>,
    patience: Patience,
    next_look: Instant,
    closing: bool,
    /// True after it was logged that the queue is unreachable.
    failing: bool,
    /// Runs to retry after a transient failure, each with the time of the next try.
    later: Vec<(RunId, Instant)>,
    /// Claims of runs whose wait for a lock was reported.
    told_of: HashSet<String>,
    /// Members that were found dead and may have started to adopt dropped files.
    dead: BTreeSet<String>,
    /// The only run to drive; `None` to drive any run.
    only: Option<RunId>,
    /// True if `only` was available to every coordinator before, and is again if it is stopped
    /// here.
    gives_back: bool,
    /// Time of the last heartbeat before this process confirmed that it holds its runs. Until one
    /// lease later, no other member can have taken them over.
    sure_ms: u64,
    intake: Option<Intake>,
    next_intake: Instant,
    /// Runs that wait for the checkout token.
    line: Line,
}

impl Coordinator {
    pub(crate) fn new(setup: Setup) -> Coordinator {
        let (tell, heard) = mpsc::channel();
        let hints = Hints::new(hear_changes(tell.clone(), setup.queue.layout.checkout()));
        let settings = &setup.config.queue;
        let most = settings.idle_poll;
        let patience = Patience::new(settings.poll, most, u64::from(host::pid()));
        Coordinator {
            setup,
            held: BTreeMap::new(),
            put_off: Vec::new(),
            missing: BTreeMap::new(),
            out: BTreeMap::new(),
            touched: VecDeque::new(),
            timed: BTreeSet::new(),
            outbox: Vec::new(),
            flushes: FLUSHED / 16,
            next_flush: host::instant(),
            pool: Pool::new(JOBS),
            tell,
            heard,
            hints,
            watched: HashSet::new(),
            patience,
            next_look: host::instant(),
            closing: false,
            failing: false,
            later: Vec::new(),
            told_of: HashSet::new(),
            dead: BTreeSet::new(),
            only: None,
            gives_back: false,
            sure_ms: uptime_ms(),
            intake: None,
            next_intake: host::instant(),
            line: Line::default(),
        }
    }

    /// Sets whether the single run is released to all coordinators when this coordinator stops.
    pub(crate) fn giving_back(self, gives_back: bool) -> Coordinator {
        Coordinator { gives_back, ..self }
    }

    /// Drives runs until `stop` is requested: every submitted run, or only the run of the given
    /// claim.
    ///
    /// The first stop request lets local executions finish; the second stops them. Then every run
    /// is released.
    pub(crate) fn serve(
        mut self,
        only: Option<Claim>,
        stop: &Stop,
        reports: &mut dyn Reports,
    ) -> io::Result<()> {
        let queue = self.setup.queue.clone();
        queue.open_agent(COORDINATOR)?;
        let run = only.as_ref().map(|claim| claim.task.batch.clone());
        let runs = if run.is_some() { 1 } else { RUNS as u32 };
        let mut member =
            Member::join(queue.clone(), COORDINATOR, runs, run, &self.setup.config.queue)?;
        for dead in member.look_around()? {
            reports.note(&obituary(&dead));
        }
        self.hints.add(&queue.layout.inbox(COORDINATOR));
        if let Some(adopt) = self.setup.adopt.take() {
            let settings = intake::Settings::of(&self.setup.config);
            self.intake = Some(Intake::new(queue.layout.clone(), queue.me(), settings, adopt));
        }
        let over = Arc::new(AtomicBool::new(false));
        // A coordinator of a single run ends with that run anyway.
        let drain = only.is_none().then(|| stop.clone());
        let keeper = self.spawn_keeper(member, over.clone(), drain);
        let alive = std::mem::replace(&mut self.setup.alive, Box::new(|| None));
        self.spawn_guard(stop.clone(), alive, over.clone());
        if let Some(claim) = only {
            let run = run_of(&claim).map_err(io::Error::other)?.run_id;
            self.only = Some(run);
            self.take_up(claim, reports);
        }
        let served = self.go_on(stop, reports);
        over.store(true, Ordering::SeqCst);
        keeper.wake();
        keeper.join();
        served
    }

    fn go_on(&mut self, stop: &Stop, reports: &mut dyn Reports) -> io::Result<()> {
        loop {
            if self.is_doubtful() {
                // The process was suspended, or the volume was unavailable: other members may own
                // the runs.
                self.make_sure(stop, reports);
                if self.is_doubtful() && stop.level() > 0 && self.may_go(stop.level()) {
                    // Its runs stay claimed; other members find that their holder is dead.
                    return Ok(());
                }
                continue;
            }
            self.take_in_dropped(reports);
            self.claim_runs(reports);
            self.look_if_due(reports);
            self.advance(reports);
            if stop.level() > 0 {
                if !self.closing {
                    reports.closing();
                }
                self.close(stop.level());
            }
            if self.may_leave() {
                return self.leave(reports);
            }
            self.listen(reports);
        }
    }

    /// Returns true if other members may believe that this process is dead: half a lease has passed
    /// since it last confirmed its claims.
    fn is_doubtful(&self) -> bool {
        let lease_ms = self.setup.config.queue.lease.as_millis() as u64;
        uptime_ms().saturating_sub(self.sure_ms) > lease_ms / 2
    }

    /// Checks which runs this process still holds, before it does anything else for them.
    fn make_sure(&mut self, stop: &Stop, reports: &mut dyn Reports) {
        let since_ms = uptime_ms();
        let queue = self.setup.queue.clone();
        let listed = queue.beat().and_then(|()| queue.claims(COORDINATOR));
        match listed {
            Ok(claims) => {
                self.drop_lost(&claims.iter().map(ClaimName::stem).collect(), reports);
                self.sure_ms = since_ms;
                self.failing = false;
            }
            Err(error) => {
                if !std::mem::replace(&mut self.failing, true) {
                    tracing::warn!("cannot reach the queue: {error}; will be tried again");
                }
                wait_above(stop, stop.level(), self.setup.config.queue.beat);
            }
        }
    }

    /// Returns true if the process may end although the volume is unavailable: it holds nothing, or
    /// it was asked to stop twice.
    fn may_go(&mut self, level: u8) -> bool {
        self.close(level);
        let idle = self.held.values().all(|held| held.here == 0);
        (self.held.is_empty() && self.put_off.is_empty()) || (level > 1 && idle)
    }

    fn may_leave(&self) -> bool {
        let idle = self.held.values().all(|held| held.here == 0);
        let only_run_is_over = self.only.is_some() && self.held.values().all(is_paused);
        (self.closing && idle) || (only_run_is_over && self.put_off.is_empty())
    }

    /// Stops claiming new runs and starting new work for the current ones.
    fn close(&mut self, level: u8) {
        self.closing = true;
        if level > 1 || self.only.is_some() {
            self.held.values().for_each(|held| held.stop.request(level));
        }
    }

    /// Releases every run that is not over.
    fn leave(&mut self, reports: &mut dyn Reports) -> io::Result<()> {
        let now = SystemClock.now();
        for (_, mut held) in std::mem::take(&mut self.held) {
            if let Err(error) = held.drive.rest(now) {
                reports.note(&format!("run {}: {error}", held.drive.run.id));
            }
            let paused = is_paused(&held) && !self.closing;
            self.line.leave(&held.claim);
            // A run that was started and stopped in this process is for its user to resume.
            let left = match self.only {
                Some(_) if !paused && !self.gives_back => {
                    self.end_claim(held.claim, End::Failed, "stopped").map_err(io::Error::from)
                }
                _ => self.setup.queue.release(held.claim),
            };
            if let Err(error) = left {
                reports.note(&format!("run {}: {error}", held.drive.run.id));
            }
            // A run that continues elsewhere keeps the token, and so does a run with tasks in
            // flight.
            let out = self.out.values().any(|out| out.run == held.drive.run.id);
            if self.only.is_some() && !out {
                self.give_up_turn(held.turn.take(), &held.drive.run.id);
            }
            let how = if paused { Left::Paused } else { Left::GivenBack };
            reports.left(&held.drive.run, how);
        }
        for (claim, _) in std::mem::take(&mut self.put_off) {
            self.setup.queue.release(claim)?;
        }
        Ok(())
    }

    /// Adopts the files that users dropped into the inbox.
    fn take_in_dropped(&mut self, reports: &mut dyn Reports) {
        let now = host::instant();
        let Some(intake) = self.intake.as_mut().filter(|_| self.next_intake <= now) else { return };
        if self.closing && intake.is_idle() {
            // Without a later time, the loop would not wait for anything else.
            self.next_intake = now + self.setup.config.queue.idle_poll;
            return;
        }
        let lease = self.setup.config.queue.lease;
        let recovered = recover(intake, &self.setup.queue, &self.dead, lease);
        if recovered.is_ok() {
            self.dead.clear();
        }
        let scanned = recovered.and_then(|_| intake.scan(&self.setup.queue, COORDINATOR));
        self.next_intake = match scanned {
            Ok(scanned) => {
                for (name, reason) in &scanned.refused {
                    reports.note(&format!("`{name}` is no run: {reason}"));
                }
                let idle = now + self.setup.config.queue.idle_poll;
                scanned.next_look.unwrap_or(idle)
            }
            Err(error) => {
                reports.note(&format!("cannot take in what was dropped: {error}"));
                now + self.setup.config.queue.beat
            }
        };
    }

    /// Calls `act` on a run with its drive I/O. Log lines written meanwhile carry the run's ID.
    fn with<T>(&mut self, held: &mut Held, act: impl FnOnce(&mut Drive, &mut Reins) -> T) -> T {
        let _of = tracing::info_span!("run", id = %held.drive.run.id).entered();
        let mut hands = FleetHands {
            queue: &self.setup.queue,
            claim: &held.claim.name,
            config: &held.config,
            run_root: held.drive.run.origin.run_root.clone(),
            debug: self.setup.debug,
            masked: &held.masked,
            stop: &held.stop,
            tell: &self.tell,
            pool: &mut self.pool,
            out: &mut self.out,
            outbox: &mut self.outbox,
            here: 0,
        };
        let done = act(
            &mut held.drive,
            &mut Reins {
                clock: &SystemClock,
                report: &mut *held.report,
                hands: &mut hands,
                stop: &held.stop,
            },
        );
        held.here += hands.here;
        done
    }

    /// Advances every run that something happened to, then publishes the tasks that the runs are
    /// owed.
    fn advance(&mut self, reports: &mut dyn Reports) {
        let now = host::instant();
        for (claim, _) in take_due(&mut self.put_off, now) {
            self.take_up(claim, reports);
        }
        self.touched.extend(self.line.due(now));
        self.touched.extend(std::mem::take(&mut self.timed));
        let (due, later) = std::mem::take(&mut self.later).into_iter().partition(|l| l.1 <= now);
        self.later = later;
        let due: Vec<(RunId, Instant)> = due;
        self.touched.extend(due.into_iter().map(|(run, _)| run));
        let mut flushed = Vec::new();
        while let Some(run) = self.touched.pop_front() {
            if self.is_doubtful() {
                self.touched.push_front(run);
                break;
            }
            let Some(mut held) = self.held.remove(&run) else { continue };
            let driven = match self.closing || held.cancelling {
                true => Ok(()),
                false => self.drive_on(&mut held, reports),
            };
            if let Err(error) = driven {
                self.abandon(held, &error, reports);
                continue;
            }
            if held.drive.is_over() && held.here > 0 {
                // A node ended the run: the results of executions that still run are not needed.
                held.stop.request(1);
            }
            let over = held.drive.is_over() || (held.cancelling && held.here == 0);
            if over && held.here == 0 {
                match self.finish(held, reports) {
                    Some(still_held) => held = still_held,
                    None => continue,
                }
            }
            held.drive.keep_up(SystemClock.now());
            if held.drive.patience(SystemClock.now()).is_some() {
                self.timed.insert(run.clone());
            }
            flushed.push(run.clone());
            self.held.insert(run, held);
        }
        self.flush(&flushed, reports);
    }

    /// Publishes the first tasks of the outbox. The rest waits for the next iteration, so that the
    /// loop learns in time if its runs are no longer its own.
    fn flush(&mut self, runs: &[RunId], reports: &mut dyn Reports) {
        let now = SystemClock.now();
        if self.setup.config.durable && !self.outbox.is_empty() {
            // A task on the medium that its run does not know of would be executed in vain.
            for run in runs {
                let Some(held) = self.held.get_mut(run) else { continue };
                if let Err(error) = held.drive.store.commit(now) {
                    tracing::warn!("run {run}: {error}");
                }
            }
        }
        if self.outbox.is_empty() || host::instant() < self.next_flush {
            return;
        }
        let began = host::instant();
        let tasks: Vec<Task> = self.outbox.drain(..self.outbox.len().min(self.flushes)).collect();
        // If this process was suspended while it wrote the tasks, it may have lost their runs.
        let sure = |_: &Task| Ok(!self.is_doubtful());
        let published = self.setup.queue.enqueue_while(&tasks, &sure);
        let (mut agents, mut unpublished, mut fault) = (BTreeSet::new(), Vec::new(), None);
        for (task, published) in tasks.into_iter().zip(published) {
            match published {
                Published::Yes => {}
                Published::Refused => {
                    unpublished.push(task);
                    continue;
                }
                Published::No(error) => {
                    fault = fault.or(Some(error));
                    unpublished.push(task);
                    continue;
                }
                // If the task is missing, a scan finds out, and the attempt is made as a new task.
                Published::Unknown(error) => fault = fault.or(Some(error)),
            }
            if let Some(out) = self.out.get_mut(task.name.id.as_str()) {
                out.published = true;
            }
            agents.insert(task.agent);
        }
        self.outbox.splice(0..0, unpublished);
        let slow = host::since(began) > self.setup.config.queue.lease / 12;
        self.flushes =
            if slow { (self.flushes / 4).max(1) } else { (self.flushes * 2).min(FLUSHED) };
        if let Some(error) = fault {
            reports.note(&format!("cannot put tasks out: {error}; will be tried again"));
            self.next_flush = host::instant() + self.setup.config.queue.beat;
        }
        agents.iter().for_each(|agent| self.watch(agent));
    }

    /// Waits for the next messages and handles them.
    fn listen(&mut self, reports: &mut dyn Reports) {
        let mut nap = self.next_look.saturating_duration_since(host::instant());
        if !self.outbox.is_empty() {
            nap = nap.min(self.next_flush.saturating_duration_since(host::instant()));
        }
        if self.intake.is_some() {
            nap = nap.min(self.next_intake.saturating_duration_since(host::instant()));
        }
        if let Some(at) = self.line.next_look() {
            nap = nap.min(at.saturating_duration_since(host::instant()));
        }
        for (_, at) in &self.later {
            nap = nap.min(at.saturating_duration_since(host::instant()));
        }
        let now = SystemClock.now();
        for run in &self.timed {
            let due = self.held.get(run).and_then(|held| held.drive.patience(now));
            nap = nap.min(due.unwrap_or(nap));
        }
        for held in self.held.values_mut().filter(|_| self.only.is_some()) {
            let tick = held.report.tick(&held.drive.plan, &held.drive.run, now);
            let due = tick.map(|at| Duration::from_millis(at.ms_since(now).max(1)));
            nap = nap.min(due.unwrap_or(nap));
        }
        let mut next = self.heard.try_recv().ok();
        if next.is_none() {
            let heard = &self.heard;
            let mut found = None;
            let mut hear = || {
                found = heard.try_recv().ok();
                found.is_some()
            };
            host::wait(nap, &mut hear, || next = heard.recv_timeout(nap).ok());
            next = next.or(found);
        }
        while let Some(heard) = next {
            self.take_in(heard, reports);
            next = self.heard.try_recv().ok();
        }
    }

    fn take_in(&mut self, heard: Heard, reports: &mut dyn Reports) {
        match heard {
            Heard::Done { run, claim, step, attempt, performed } => {
                if self.held.get(&run).is_none_or(|held| held.claim.name != claim) {
                    return;
                }
                let Some(mut held) = self.held.remove(&run) else { return };
                held.here -= 1;
                let performed = performed.map(|performed| *performed);
                self.ended(held, &step, attempt, performed, reports);
            }
            Heard::Went(name) => self.consume_hinted(&name, reports),
            Heard::Came => self.next_intake = host::instant(),
            Heard::Signal => {}
            Heard::Turned => self.line.look_now(),
            Heard::Asked(cancel) => self.cancel_asked(&cancel),
            Heard::Looked { since_ms, held, cancel, buried } => {
                // The loop is awake, so it also does now what is due before the next heartbeat.
                let (now, soon) = (host::instant(), host::instant() + self.setup.config.queue.beat);
                if self.next_look <= soon {
                    self.next_look = now;
                }
                if self.next_intake <= soon {
                    self.next_intake = now;
                }
                for dead in &buried {
                    reports.note(&obituary(dead));
                    self.next_look = host::instant();
                    self.dead.insert(dead.worker.clone());
                }
                if let Some(held) = held {
                    self.drop_lost(&held, reports);
                    self.sure_ms = self.sure_ms.max(since_ms);
                }
                self.cancel_asked(&cancel);
            }
        }
    }

    fn ended(
        &mut self,
        mut held: Held,
        step: &StepPath,
        attempt: Attempt,
        performed: Option<Performed>,
        reports: &mut dyn Reports,
    ) {
        let recorded =
            self.with(&mut held, |drive, reins| drive.ended(reins, step, attempt, performed));
        if let Err(error) = recorded {
            return self.abandon(held, &error, reports);
        }
        let run = held.drive.run.id.clone();
        self.held.insert(run.clone(), held);
        self.touched.push_back(run);
    }
}
