//! A coordinator: a process that drives any number of runs.
//!
//! A run is itself a task in `inbox/coordinator/`: whoever claims it owns the run, and if the
//! owner dies, the claim is reaped like any other and another coordinator takes the run up. What
//! a run is owed goes out as tasks to the agents' inboxes; when one ends, its status is read and
//! the run goes on.
//!
//! One loop does all of it. It waits for messages: a local execution ended, a claimed task left
//! its directory, a signal came, the keeper looked around. Everything that is a message can also
//! be found by looking, which the loop does from time to time.
//!
//! **Invariant:** a task is on record in its run's journal before it is put out, under an id of
//! its own, so whoever takes the run up knows what to look for.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::fmt::Display;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use serde_json::Map;

use super::config::Config;
use super::drive::{Drive, Hands, Job, Launch, Reins, Report};
use super::hint::{Change, Hints, Patience};
use super::intake::{self, Adopt, Intake};
use super::member::{Buried, Member, unguessable, uptime_ms};
use super::open::{self, OpenError};
use super::perform::Performed;
use super::pool::Pool;
use super::post::{self, Asked, COORDINATOR, RunTask, StepTask};
use super::site::{self, Environment, Site};
use super::systemd;
use super::work::Work;
use super::worker::{obituary, recover};
use crate::disk;
use crate::engine::{Event, Record, Run, RunStatus, StepStatus, TaskRef};
use crate::exec::{self, Stop};
use crate::ids::{Attempt, RunId, StepPath};
use crate::queue::{
    Claim, ClaimName, Claimed, End, Ending, Finish, FsQueue, Place, Queue, Task, TaskId,
};
use crate::store::lock::{self, LockError, RunLock};
use crate::store::{History, LoadError, StoreError};
use crate::time::{Clock, SystemClock};
use crate::workspace::{PathError, Workspace};

/// How many steps a coordinator executes itself at once.
const JOBS: usize = 16;
/// How many runs it drives at once.
const RUNS: usize = 10_000;

/// What a coordinator is made of.
pub struct Setup {
    pub queue: Arc<FsQueue>,
    pub workspace: Workspace,
    pub config: Config,
    pub environment: Environment,
    /// Secrets that came as files, for children to have as variables.
    pub credentials: Environment,
    pub program: PathBuf,
    pub debug: bool,
    pub backups: bool,
    /// What becomes of files that people drop into the coordinator's inbox.
    pub adopt: Option<Box<dyn Adopt>>,
    /// Called with every beat, also while the volume is away.
    pub alive: Box<dyn Fn() + Send + Sync>,
}

/// Who is told what a coordinator does.
pub trait Reports {
    /// Who is told about one run.
    fn about(&mut self, run: &Run, root: &Path) -> Box<dyn Report>;
    fn note(&mut self, line: &str);
    /// No new runs are taken any more.
    fn closing(&mut self) {}
    /// A run is no longer driven here.
    fn left(&mut self, run: &Run, how: Left);
}

/// How a coordinator and a run part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    Ended(RunStatus),
    /// It goes on elsewhere or later.
    GivenBack,
    /// Another coordinator has it.
    Lost,
}

/// What the loop can hear.
enum Heard {
    Done {
        run: RunId,
        step: StepPath,
        attempt: Attempt,
        performed: Option<Box<Performed>>,
    },
    /// A claimed task left its directory.
    Went(ClaimName),
    /// Something came into the coordinator's inbox.
    Came,
    Signal,
    Looked {
        /// When the sign of life was given before the look.
        since_ms: u64,
        held: HashSet<String>,
        cancel: HashSet<String>,
        buried: Vec<Buried>,
    },
}

/// A run that is driven here.
struct Held {
    claim: Claim,
    drive: Drive,
    report: Box<dyn Report>,
    config: Config,
    masked: Vec<String>,
    stop: Stop,
    /// Held as long as the run is: a local `resume` must not drive it too.
    _lock: Option<RunLock>,
    /// Executions in this process.
    here: usize,
    cancelling: bool,
}

/// A task that is out.
#[derive(Clone, Debug)]
struct Out {
    run: RunId,
    step: StepPath,
    attempt: Attempt,
    task: TaskRef,
    /// This process made it, and nobody else puts it out.
    made_here: bool,
}

/// A coordinator at work.
pub struct Coordinator {
    setup: Setup,
    held: HashMap<RunId, Held>,
    /// Claimed, but somebody on this machine still has the run's lock, or its files cannot be
    /// read now.
    put_off: Vec<(Claim, Instant)>,
    out: HashMap<String, Out>,
    /// Runs that may be owed something, or whose files may have to be kept up.
    touched: VecDeque<RunId>,
    timed: HashSet<RunId>,
    outbox: Vec<Task>,
    pool: Pool,
    tell: Sender<Heard>,
    heard: Receiver<Heard>,
    hints: Hints,
    watched: HashSet<String>,
    patience: Patience,
    next_look: Instant,
    closing: bool,
    /// Those who were found dead, and may have taken something in.
    dead: BTreeSet<String>,
    /// It drives this one run and no other.
    only: Option<RunId>,
    /// When it last gave a sign of life before it saw that its runs are its own. Until a lease
    /// later nobody can have taken them over.
    sure_ms: u64,
    intake: Option<Intake>,
    next_intake: Instant,
}

impl Coordinator {
    pub fn new(setup: Setup) -> Coordinator {
        let (tell, heard) = mpsc::channel();
        let hints = Hints::new(hear_changes(tell.clone()));
        let settings = &setup.config.queue;
        let most = settings.idle_poll;
        let patience = Patience::new(settings.poll, most, u64::from(std::process::id()));
        Coordinator {
            setup,
            held: HashMap::new(),
            put_off: Vec::new(),
            out: HashMap::new(),
            touched: VecDeque::new(),
            timed: HashSet::new(),
            outbox: Vec::new(),
            pool: Pool::new(JOBS),
            tell,
            heard,
            hints,
            watched: HashSet::new(),
            patience,
            next_look: Instant::now(),
            closing: false,
            dead: BTreeSet::new(),
            only: None,
            sure_ms: uptime_ms(),
            intake: None,
            next_intake: Instant::now(),
        }
    }

    /// Drives runs until it is told to stop: whatever is submitted, or the one run that is given.
    ///
    /// A first request to stop lets local executions end, a second one stops them; then every run
    /// is given back.
    pub fn serve(
        mut self,
        only: Option<Claim>,
        stop: &Stop,
        reports: &mut dyn Reports,
    ) -> io::Result<()> {
        let queue = self.setup.queue.clone();
        queue.open_agent(COORDINATOR)?;
        let lease = self.setup.config.queue.lease;
        let run = only.as_ref().map(|claim| claim.task.batch.clone());
        let runs = if run.is_some() { 1 } else { RUNS as u32 };
        let mut member = Member::join(queue.clone(), COORDINATOR, runs, run, lease)?;
        for dead in member.look_around()? {
            reports.note(&obituary(&dead));
        }
        self.hints.add(&queue.layout.inbox(COORDINATOR));
        if let Some(adopt) = self.setup.adopt.take() {
            let settings = intake::Settings::of(&self.setup.config);
            self.intake = Some(Intake::new(queue.layout.clone(), queue.me(), settings, adopt));
        }
        let over = Arc::new(AtomicBool::new(false));
        // Whoever drives one run ends with it anyway.
        let drain = only.is_none().then(|| stop.clone());
        let keeper = self.spawn_keeper(member, over.clone(), drain);
        let beat = self.setup.config.queue.beat;
        let alive = std::mem::replace(&mut self.setup.alive, Box::new(|| ()));
        self.spawn_guard(stop.clone(), alive, beat, over.clone());
        if let Some(claim) = only {
            let run = run_of(&claim).map_err(io::Error::other)?.run_id;
            self.only = Some(run);
            self.take_up(claim, reports);
        }
        let served = self.go_on(stop, reports);
        over.store(true, Ordering::SeqCst);
        keeper.thread().unpark();
        let _ = keeper.join();
        served
    }

    fn go_on(&mut self, stop: &Stop, reports: &mut dyn Reports) -> io::Result<()> {
        loop {
            if self.is_doubtful() {
                // Paused, or the volume was away: others may have taken the runs over.
                self.make_sure(reports);
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

    /// Whether others may think that this process is dead: half a lease has passed since it was
    /// known what is held here.
    fn is_doubtful(&self) -> bool {
        let lease_ms = self.setup.config.queue.lease.as_millis() as u64;
        uptime_ms().saturating_sub(self.sure_ms) > lease_ms / 2
    }

    /// Finds out which runs are still held, before anything else is done for them.
    fn make_sure(&mut self, reports: &mut dyn Reports) {
        let since_ms = uptime_ms();
        let queue = self.setup.queue.clone();
        let listed = queue.beat().and_then(|()| queue.claims(COORDINATOR));
        match listed {
            Ok(claims) => {
                self.drop_lost(&claims.iter().map(ClaimName::stem).collect(), reports);
                self.sure_ms = since_ms;
            }
            Err(error) => {
                tracing::warn!("cannot reach the queue: {error}; will be tried again");
                std::thread::sleep(self.setup.config.queue.beat);
            }
        }
    }

    fn may_leave(&self) -> bool {
        let idle = self.held.values().all(|held| held.here == 0);
        let only_run_is_over = self.only.is_some() && self.held.is_empty();
        (self.closing && idle) || (only_run_is_over && self.put_off.is_empty())
    }

    /// No new runs, and nothing new for those at hand.
    fn close(&mut self, level: u8) {
        self.closing = true;
        if level > 1 || self.only.is_some() {
            self.held.values().for_each(|held| held.stop.request(level));
        }
    }

    /// Gives back every run that is not over.
    fn leave(&mut self, reports: &mut dyn Reports) -> io::Result<()> {
        let now = SystemClock.now();
        for (_, mut held) in std::mem::take(&mut self.held) {
            if let Err(error) = held.drive.rest(now) {
                reports.note(&format!("run {}: {error}", held.drive.run.id));
            }
            // A run that was started here and stopped here is for its owner to resume.
            let left = match self.only {
                Some(_) => self.end_claim(&held.claim, End::Failed, "stopped"),
                None => self.setup.queue.release(&held.claim),
            };
            if let Err(error) = left {
                reports.note(&format!("run {}: {error}", held.drive.run.id));
            }
            reports.left(&held.drive.run, Left::GivenBack);
        }
        for (claim, _) in std::mem::take(&mut self.put_off) {
            self.setup.queue.release(&claim)?;
        }
        Ok(())
    }

    /// Takes in what people dropped into the inbox.
    fn take_in_dropped(&mut self, reports: &mut dyn Reports) {
        let now = Instant::now();
        let Some(intake) = self.intake.as_mut().filter(|_| self.next_intake <= now) else { return };
        if self.closing && intake.is_idle() {
            // Not again until then, or the loop would not wait for anything else.
            self.next_intake = now + self.setup.config.queue.idle_poll;
            return;
        }
        let lease = self.setup.config.queue.lease;
        let recovered = recover(intake, &self.setup.queue, &self.dead, lease);
        if recovered.is_ok() {
            self.dead.clear();
        }
        let scanned = recovered.and_then(|_| intake.scan(&*self.setup.queue, COORDINATOR));
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

    fn claim_runs(&mut self, reports: &mut dyn Reports) {
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

    /// Takes up a run that was claimed.
    fn take_up(&mut self, claim: Claim, reports: &mut dyn Reports) {
        let task = match run_of(&claim) {
            Ok(task) => task,
            Err(reason) => return self.refuse(&claim, &reason, reports),
        };
        match self.setup.workspace.check(&task.run_root) {
            Ok(()) => {}
            Err(error @ PathError::Io { .. }) => return self.put_off(claim, &error, reports),
            Err(error) => return self.refuse(&claim, &error.to_string(), reports),
        }
        let root = self.setup.workspace.root().join(&task.run_root);
        let lock = match lock::take(&root) {
            Ok(lock) => Some(lock),
            Err(LockError::Held { .. }) => {
                // Its last owner has lost it and does not know yet, or somebody resumed it here.
                let again = Instant::now() + self.setup.config.queue.beat;
                return self.put_off.push((claim, again));
            }
            // A volume without locks: the claim is what counts between machines.
            Err(LockError::Io(error)) if error.kind() != io::ErrorKind::NotFound => None,
            Err(error) => return self.refuse(&claim, &error.to_string(), reports),
        };
        match self.open(claim.clone(), &root, lock, reports) {
            Ok(Some(held)) => self.begin(held, reports),
            Ok(None) => tracing::info!("{}: somebody else drives it", claim.name.task.file()),
            Err(error) if error.may_pass() => self.put_off(claim, &error, reports),
            Err(error) => self.refuse(&claim, &error.to_string(), reports),
        }
    }

    /// A run whose files cannot be read just now is tried again in a while.
    fn put_off(&mut self, claim: Claim, error: &dyn Display, reports: &mut dyn Reports) {
        let name = claim.name.task.file();
        reports.note(&format!("{name}: {error}; will be tried again"));
        let again = Instant::now() + self.setup.config.queue.lease;
        self.put_off.push((claim, again));
    }

    /// The term in which a claim's holder drives its run; nothing, if it has lost the run.
    fn term(&self, claim: &Claim, last: u32) -> io::Result<Option<u32>> {
        let attempt = claim.name.task.attempt;
        if last <= attempt {
            return Ok(Some(attempt));
        }
        // Somebody drove the run under a later claim than this one; unless this one is of a new
        // task, whose attempts begin anew, its holder was taken for dead.
        let holds = self.setup.queue.claims(COORDINATOR)?.contains(&claim.name);
        Ok(holds.then_some(last + 1))
    }

    /// A run that cannot be driven ends its task, with the reason.
    fn refuse(&self, claim: &Claim, reason: &str, reports: &mut dyn Reports) {
        reports.note(&format!("{}: {reason}", claim.name.task.file()));
        if let Err(error) = self.end_claim(claim, End::Failed, reason) {
            reports.note(&format!("{}: {error}", claim.name.task.file()));
        }
    }

    fn end_claim(&self, claim: &Claim, end: End, message: &str) -> io::Result<Ending> {
        let now = SystemClock.now();
        let record = match end {
            End::Processed => {
                Record { status: StepStatus::Completed, exit_code: Some(0), ..Record::default() }
            }
            _ => Record::refused(1, message, Map::new()),
        };
        let status = post::status(claim, &record, now, now);
        let finish = Finish { claim: claim.clone(), end, status };
        self.setup.queue.complete(&[finish]).remove(0)
    }

    fn open(
        &self,
        claim: Claim,
        root: &Path,
        lock: Option<RunLock>,
        reports: &mut dyn Reports,
    ) -> Result<Option<Held>, OpenError> {
        let away = |doing, source| {
            let path = root.to_owned();
            OpenError::State(LoadError::Disk(StoreError { doing, path, source }))
        };
        let (config, plan, mut store, run) = open::open(&self.setup.workspace, root)?;
        let term = self.term(&claim, store.term()).map_err(|error| away("look after", error))?;
        let Some(term) = term else { return Ok(None) };
        store.begin_term(term);
        let (environment, credentials) = (self.setup.environment.clone(), &self.setup.credentials);
        let site = Site {
            workspace: self.setup.workspace.clone(),
            logs: root.join("logs"),
            about: credentials.clone().into_iter().chain(site::about(&run.id, root)).collect(),
            mask: site::mask_too(&plan, &environment, credentials),
            environment,
            hidden: systemd::VARIABLES.map(str::to_owned).to_vec(),
            debug: self.setup.debug,
            live: true,
            grace: config.grace,
            input_bytes: config.input_bytes,
            program: self.setup.program.clone(),
        };
        let masked = site::secrets(&plan);
        let report = reports.about(&run, root);
        let stop = Stop::new().map_err(|error| away("drive", error))?;
        let drive = Drive::new(Arc::new(site), Arc::new(plan), run, store, self.setup.backups);
        Ok(Some(Held {
            claim,
            drive,
            report,
            config,
            masked,
            stop,
            _lock: lock,
            here: 0,
            cancelling: false,
        }))
    }

    /// Begins to drive a run: what was open in the process that drove it before is owed again,
    /// what is out as a task is waited for. One that is over is not begun again: its last owner
    /// only did not come to end its task.
    fn begin(&mut self, mut held: Held, reports: &mut dyn Reports) {
        let run = held.drive.run.id.clone();
        let orphans = exec::sweep(&format!("{run}/"));
        if orphans > 0 {
            reports.note(&format!("run {run}: ended {orphans} processes of its last owner"));
        }
        if self.is_asked_to_cancel(&run) {
            held.cancelling = true;
            held.stop.request(1);
        } else if held.claim.name.task.attempt > 1 && !held.drive.is_over() {
            let event = poison(&held)
                .unwrap_or_else(|| Event::Resumed { policy: held.drive.run.origin.policy.clone() });
            let recorded = self.with(&mut held, |drive, reins| drive.record(reins, event));
            if let Err(error) = recorded {
                reports.note(&format!("run {run}: {error}"));
                let _ = self.setup.queue.release(&held.claim);
                return;
            }
        }
        for (step, attempt, task) in held.drive.tasks_out() {
            self.watch(&task.agent);
            let out = Out { run: run.clone(), step, attempt, task, made_here: false };
            self.out.insert(out.task.id.clone(), out);
        }
        self.next_look = Instant::now();
        self.held.insert(run.clone(), held);
        self.touched.push_back(run);
    }

    /// Does something with a run, its reins in hand.
    fn with<T>(&mut self, held: &mut Held, act: impl FnOnce(&mut Drive, &mut Reins) -> T) -> T {
        let mut hands = FleetHands {
            queue: &self.setup.queue,
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

    /// Lets every run go on that something has happened to, then puts out what they are owed.
    fn advance(&mut self, reports: &mut dyn Reports) {
        let now = Instant::now();
        for (claim, _) in take_due(&mut self.put_off, now) {
            self.take_up(claim, reports);
        }
        self.touched.extend(self.timed.drain());
        let mut flushed = Vec::new();
        while let Some(run) = self.touched.pop_front() {
            if self.is_doubtful() {
                self.touched.push_front(run);
                break;
            }
            let Some(mut held) = self.held.remove(&run) else { continue };
            let driven = match self.closing || held.cancelling {
                true => Ok(()),
                false => self.with(&mut held, |drive, reins| drive.advance(reins)),
            };
            if let Err(error) = driven {
                self.abandon(held, &error, reports);
                continue;
            }
            let over = held.drive.is_over() || (held.cancelling && held.here == 0);
            if over && held.here == 0 {
                match self.finish(&mut held, reports) {
                    Ok(true) => continue,
                    Ok(false) => {}
                    Err(error) => {
                        self.abandon(held, &error, reports);
                        continue;
                    }
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

    /// Puts out the tasks that were recorded.
    fn flush(&mut self, runs: &[RunId], reports: &mut dyn Reports) {
        if self.outbox.is_empty() {
            return;
        }
        let tasks = std::mem::take(&mut self.outbox);
        let now = SystemClock.now();
        if self.setup.config.durable {
            // A task on the medium that its run does not know of would be executed for nothing.
            for run in runs {
                let Some(held) = self.held.get_mut(run) else { continue };
                if let Err(error) = held.drive.store.commit(now) {
                    tracing::warn!("run {run}: {error}");
                }
            }
        }
        if let Err(error) = self.setup.queue.enqueue(&tasks) {
            // They are on record, and will be found missing at the next look.
            reports.note(&format!("cannot put tasks out: {error}; will be tried again"));
            self.next_look = Instant::now() + self.setup.config.queue.beat;
        }
        let agents: HashSet<String> = tasks.into_iter().map(|task| task.agent).collect();
        agents.iter().for_each(|agent| self.watch(agent));
    }

    /// A run whose files cannot be written is given back: another may have more luck.
    fn abandon(&mut self, mut held: Held, error: &StoreError, reports: &mut dyn Reports) {
        reports.note(&format!("run {}: {error}; it is given back", held.drive.run.id));
        held.stop.request(1);
        held.drive.tidy_up();
        self.forget_tasks(&held.drive.run.id);
        let _ = self.setup.queue.release(&held.claim);
        reports.left(&held.drive.run, Left::GivenBack);
    }

    fn forget_tasks(&mut self, run: &RunId) {
        self.out.retain(|_, out| out.run != *run);
    }

    /// Ends a run that is over, or was cancelled. Says whether it is gone from here.
    fn finish(&mut self, held: &mut Held, reports: &mut dyn Reports) -> Result<bool, StoreError> {
        let run = held.drive.run.id.clone();
        if held.cancelling && !held.drive.is_over() {
            if self.out.values().any(|out| out.run == run) {
                return Ok(false);
            }
            self.with(held, |drive, reins| drive.record(reins, Event::Cancelled))?;
        }
        if let Err(error) = held.drive.rest(SystemClock.now()) {
            tracing::warn!("run {run}: {error}; will be tried again");
            self.timed.insert(run);
            return Ok(false);
        }
        let status = held.drive.run.status;
        let (end, message) = match status {
            RunStatus::Completed => (End::Processed, "completed"),
            RunStatus::Cancelled => (End::Cancelled, "cancelled"),
            _ => (End::Failed, "the run failed"),
        };
        let left = match self.end_claim(&held.claim, end, message) {
            Ok(Ending::Committed) => Left::Ended(status),
            Ok(Ending::Fenced) => Left::Lost,
            Err(error) => {
                tracing::warn!("run {run}: {error}; will be tried again");
                self.timed.insert(run);
                return Ok(false);
            }
        };
        // Whoever has the run instead must still hear of a request.
        if left != Left::Lost {
            let _ = self.setup.queue.forget_cancel(run.as_str());
        }
        self.forget_tasks(&run);
        reports.left(&held.drive.run, left);
        Ok(true)
    }

    /// Waits for the next messages and takes them in.
    fn listen(&mut self, reports: &mut dyn Reports) {
        let mut nap = self.next_look.saturating_duration_since(Instant::now());
        if self.intake.is_some() {
            nap = nap.min(self.next_intake.saturating_duration_since(Instant::now()));
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
        let mut next = self.heard.recv_timeout(nap).ok();
        while let Some(heard) = next {
            self.take_in(heard, reports);
            next = self.heard.try_recv().ok();
        }
    }

    fn take_in(&mut self, heard: Heard, reports: &mut dyn Reports) {
        match heard {
            Heard::Done { run, step, attempt, performed } => {
                let Some(mut held) = self.held.remove(&run) else { return };
                held.here -= 1;
                let performed = performed.map(|performed| *performed);
                self.ended(held, &step, attempt, performed, reports);
            }
            Heard::Went(name) => self.consume_hinted(&name, reports),
            Heard::Came => self.next_intake = Instant::now(),
            Heard::Signal => {}
            Heard::Looked { since_ms, held, cancel, buried } => {
                for dead in &buried {
                    reports.note(&obituary(dead));
                    self.next_look = Instant::now();
                    self.dead.insert(dead.worker.clone());
                }
                self.drop_lost(&held, reports);
                self.sure_ms = self.sure_ms.max(since_ms);
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

    /// Runs whose claim is no longer here: somebody took this process for dead.
    fn drop_lost(&mut self, claims: &HashSet<String>, reports: &mut dyn Reports) {
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
        for run in lost {
            let Some(mut held) = self.held.remove(&run) else { continue };
            // It may have been claimed since the keeper looked.
            let still = self.setup.queue.claims(COORDINATOR);
            if still.is_ok_and(|still| still.contains(&held.claim.name)) {
                self.held.insert(run, held);
                continue;
            }
            held.stop.request(1);
            held.drive.tidy_up();
            self.forget_tasks(&run);
            reports.left(&held.drive.run, Left::Lost);
        }
    }

    fn cancel_asked(&mut self, asked: &HashSet<String>) {
        if asked.is_empty() {
            return;
        }
        let runs: Vec<RunId> =
            self.held.keys().filter(|run| asked.contains(run.as_str())).cloned().collect();
        for run in runs {
            let Some(held) = self.held.get_mut(&run) else { continue };
            held.cancelling = true;
            held.stop.request(1);
            self.touched.push_back(run);
            self.next_look = Instant::now();
        }
    }

    /// A task that was out left its claim: if its holder ended it, its status is where it belongs.
    fn consume_hinted(&mut self, name: &ClaimName, reports: &mut dyn Reports) {
        let Some(out) = self.out.get(name.task.id.as_str()).cloned() else { return };
        match self.setup.queue.ended_by_holder(out.run.as_str(), name) {
            Ok(Some((_, status))) => self.consume(&out, &status, reports),
            // It went back, or somebody else ended it, which the next look will find.
            Ok(None) => self.next_look = Instant::now(),
            Err(error) => tracing::warn!("task {}: {error}", out.task.id),
        }
    }

    /// Takes in the result of a task.
    fn consume(
        &mut self,
        out: &Out,
        status: &Map<String, serde_json::Value>,
        reports: &mut dyn Reports,
    ) {
        let cancelled = match self.was_cancelled(out, status) {
            Ok(cancelled) => cancelled,
            // Whether it failed or was cancelled cannot be told yet; the next look will.
            Err(error) => return tracing::warn!("task {}: {error}", out.task.id),
        };
        let record = match post::record(status, &out.task) {
            Ok(record) => record,
            Err(reason) => {
                tracing::warn!("a status of task {} is not believed: {reason}", out.task.id);
                Record::refused(1, format!("its status is not believed: {reason}"), Map::new())
            }
        };
        self.show(out, status);
        self.out.remove(&out.task.id);
        self.patience.reset();
        let Some(held) = self.held.remove(&out.run) else { return };
        // A task that ended with its run is no failure of its step.
        let performed = (!cancelled).then_some(Performed { record, left_running: 0 });
        self.ended(held, &out.step, out.attempt, performed, reports);
    }

    fn is_asked_to_cancel(&self, run: &RunId) -> bool {
        let requests = self.setup.queue.cancel_requests();
        self.is_cancelling(run) || requests.is_ok_and(|requests| requests.contains(run.as_str()))
    }

    /// Whether a task was cancelled because its run is to be, which its worker may have heard
    /// first.
    fn was_cancelled(
        &mut self,
        out: &Out,
        status: &Map<String, serde_json::Value>,
    ) -> io::Result<bool> {
        let reason = status.get("error").and_then(|error| error.get("reason")?.as_str());
        if reason != Some("cancelled") {
            return Ok(false);
        }
        if !self.is_cancelling(&out.run) {
            let asked = self.setup.queue.cancel_requests()?;
            self.cancel_asked(&asked);
        }
        Ok(self.is_cancelling(&out.run))
    }

    /// Leaves a copy of a status where people look for an agent's.
    fn show(&self, out: &Out, status: &Map<String, serde_json::Value>) {
        let mut shown = status.clone();
        for own in ["record", "ticket"] {
            shown.shift_remove(own);
        }
        let path = format!("artifacts/{}/status_{}.json", out.task.agent, out.step);
        let text = serde_json::to_vec_pretty(&shown).unwrap_or_default();
        let written = self
            .setup
            .workspace
            .create(&path)
            .map_err(|error| error.to_string())
            .and_then(|mut file| file.write_all(&text).map_err(|error| error.to_string()));
        if let Err(error) = written {
            tracing::debug!("cannot write `{path}`: {error}");
        }
    }

    /// Looks for what no hint may have told: tasks that ended, tasks that are nowhere.
    fn look_if_due(&mut self, reports: &mut dyn Reports) {
        if Instant::now() < self.next_look {
            return;
        }
        let began = Instant::now();
        if let Err(error) = self.look(reports) {
            tracing::warn!("cannot look for results: {error}; will be tried again");
        }
        // Looking takes a twentieth of the time at most, however many tasks wait.
        let wait = self.patience.next_wait().max(began.elapsed() * 20);
        self.next_look = Instant::now() + wait;
    }

    fn look(&mut self, reports: &mut dyn Reports) -> io::Result<()> {
        let queue = self.setup.queue.clone();
        let agents: HashSet<String> = self.out.values().map(|out| out.task.agent.clone()).collect();
        let mut seen: HashSet<String> = HashSet::new();
        for agent in &agents {
            seen.extend(queue.waiting(agent)?.into_iter().map(|name| name.id.to_string()));
            seen.extend(queue.claims(agent)?.into_iter().map(|name| name.task.id.to_string()));
        }
        let wanted = |out: &&Out| !seen.contains(&out.task.id) || self.is_cancelling(&out.run);
        let gone: Vec<Out> = self.out.values().filter(wanted).cloned().collect();
        for out in gone {
            let Some(id) = TaskId::parse(&out.task.id) else { continue };
            let batch = out.run.as_str();
            match queue.find(&out.task.agent, batch, &id)? {
                Some(Place::Ended { end, name, .. }) => {
                    let status = queue.status(end, batch, &name)?.unwrap_or_default();
                    self.consume(&out, &status, reports);
                }
                Some(Place::Waiting { agent, name }) if self.is_cancelling(&out.run) => {
                    queue.cancel_waiting(&agent, &name)?;
                }
                Some(_) => {}
                None => self.put_out_again(&out, reports),
            }
        }
        Ok(())
    }

    fn is_cancelling(&self, run: &RunId) -> bool {
        self.held.get(run).is_some_and(|held| held.cancelling)
    }

    /// A task that is on record but nowhere: its coordinator died before it was put out, or the
    /// medium forgot it.
    fn put_out_again(&mut self, out: &Out, reports: &mut dyn Reports) {
        let Some(mut held) = self.held.remove(&out.run) else { return };
        if held.cancelling {
            self.out.remove(&out.task.id);
            return self.ended(held, &out.step, out.attempt, None, reports);
        }
        if !out.made_here {
            // Whoever made it may be paused, and put it out when it wakes up: a task that two put
            // out would be done twice. As another task it counts once, whatever becomes of this.
            reports.note(&format!("run {}: task {} is nowhere, made anew", out.run, out.task.id));
            self.out.remove(&out.task.id);
            let recalled =
                self.with(&mut held, |drive, reins| drive.recall(reins, &out.step, out.attempt));
            if let Err(error) = recalled {
                return self.abandon(held, &error, reports);
            }
        } else if let Some(work) = held.drive.work_again(&out.step, out.attempt) {
            reports.note(&format!("run {}: task {} is put out again", out.run, out.task.id));
            let (run, site) = (out.run.clone(), held.drive.site.clone());
            let (step, attempt, task) = (out.step.clone(), out.attempt, Some(out.task.clone()));
            let launch = Launch { run, site, step, attempt, job: Job::Run(work), task };
            let begun = self.with(&mut held, |_, reins| reins.hands.begin(launch));
            if let Err(error) = begun {
                reports.note(&format!("run {}: {error}", out.run));
            }
        }
        self.touched.push_back(out.run.clone());
        self.held.insert(out.run.clone(), held);
    }

    /// Has changes of an agent's claims told.
    fn watch(&mut self, agent: &str) {
        if self.watched.insert(agent.to_owned()) {
            let queue = &self.setup.queue;
            if queue.open_agent(agent).is_ok() {
                self.hints.add(&queue.layout.claimed(agent));
            }
        }
    }

    /// The thread that beats and looks around.
    fn spawn_keeper(
        &self,
        mut member: Member,
        over: Arc<AtomicBool>,
        drain: Option<Stop>,
    ) -> std::thread::JoinHandle<()> {
        let (queue, tell) = (self.setup.queue.clone(), self.tell.clone());
        let round = self.setup.config.queue.round();
        std::thread::spawn(move || {
            let mut failing = false;
            while !over.load(Ordering::SeqCst) {
                match look_around(&queue, &mut member, drain.as_ref()) {
                    Ok(looked) => {
                        failing = false;
                        let _ = tell.send(looked);
                    }
                    Err(error) if !std::mem::replace(&mut failing, true) => {
                        tracing::warn!("cannot keep the beat: {error}; will be tried again");
                    }
                    Err(_) => {}
                }
                std::thread::park_timeout(round);
            }
            member.leave();
        })
    }

    /// The thread that never touches the volume: it hears signals and gives signs of life.
    fn spawn_guard(
        &self,
        stop: Stop,
        alive: Box<dyn Fn() + Send + Sync>,
        beat: Duration,
        over: Arc<AtomicBool>,
    ) {
        let tell = self.tell.clone();
        std::thread::spawn(move || {
            let mut level = 0;
            while !over.load(Ordering::SeqCst) {
                alive();
                let now = stop.wait_above(level, beat);
                if now > level && tell.send(Heard::Signal).is_err() {
                    return;
                }
                level = now;
            }
        });
    }
}

fn look_around(queue: &FsQueue, member: &mut Member, drain: Option<&Stop>) -> io::Result<Heard> {
    let since_ms = uptime_ms();
    member.beat()?;
    if let Some(stop) = drain {
        if stop.level() == 0 && member.is_asked_to_drain()? {
            stop.request(1);
        }
        if stop.level() > 0 {
            member.say_draining()?;
        }
    }
    let buried = member.look_around()?;
    // What could not be given back, or was claimed by a rename that seemed to have failed.
    for found in queue.adopt_surprises(&HashSet::new())? {
        tracing::info!("a claim that nobody knew of was dealt with: {found:?}");
    }
    let cancel = queue.cancel_requests()?;
    let mine = queue.claims(COORDINATOR)?;
    let held = mine.iter().filter(|claim| claim.worker == queue.me()).map(ClaimName::stem);
    Ok(Heard::Looked { since_ms, held: held.collect(), cancel, buried })
}

/// The end of an attempt that its coordinators died over, one after the other.
fn poison(held: &Held) -> Option<Event> {
    let limit = held.config.queue.crash_limit;
    if held.claim.name.task.crashes < limit {
        return None;
    }
    let (step, attempt) = held.drive.cut_off()?;
    let step = step.to_string();
    let history = History::read(&*disk::machine(), held.drive.store.root()).ok()?;
    let deaths = history.cut_off(&step);
    if deaths < limit {
        return None;
    }
    let message = format!("its coordinator died {deaths} times over it; it is not tried again");
    let reason = [("reason".to_owned(), "crash_limit".into())].into_iter().collect();
    // As if killed, which is not worth another try.
    let record = Box::new(Record::refused(128 + 9, message, reason));
    Some(Event::Ended { step, attempt, record })
}

/// What changes of directories mean to the loop.
fn hear_changes(tell: Sender<Heard>) -> impl Fn(&Path, Change) + Send + 'static {
    move |_, change| {
        let heard = match change {
            Change::Went(name) => match ClaimName::parse(&name) {
                Some(name) => Heard::Went(name),
                None => return,
            },
            Change::Came(name) if ClaimName::parse(&name).is_some() => return,
            Change::Came(_) | Change::Other => Heard::Came,
        };
        let _ = tell.send(heard);
    }
}

fn run_of(claim: &Claim) -> Result<RunTask, String> {
    match post::read(&claim.task.document)? {
        Asked::Run(run) => Ok(run),
        _ => Err("it is no run, which is all that a coordinator drives".into()),
    }
}

fn take_due(waiting: &mut Vec<(Claim, Instant)>, now: Instant) -> Vec<(Claim, Instant)> {
    let (due, later) = std::mem::take(waiting).into_iter().partition(|(_, at)| *at <= now);
    *waiting = later;
    due
}

/// The hands of a run in a fleet: tasks for agents, and a pool for what is done here.
struct FleetHands<'a> {
    queue: &'a FsQueue,
    config: &'a Config,
    run_root: String,
    debug: bool,
    masked: &'a [String],
    stop: &'a Stop,
    tell: &'a Sender<Heard>,
    pool: &'a mut Pool,
    out: &'a mut HashMap<String, Out>,
    outbox: &'a mut Vec<Task>,
    here: usize,
}

impl Hands for FleetHands<'_> {
    fn agent_for(&self, work: &Work) -> Option<String> {
        let default = match work.asks {
            true => Some(&self.config.default_agent),
            false => self.config.command_agent.as_ref(),
        };
        work.agent.as_ref().or(default).cloned()
    }

    fn new_task(&mut self, agent: String) -> TaskRef {
        let id = self.queue.new_id(SystemClock.now().0 as u64).to_string();
        TaskRef { id, agent, ticket: unguessable() }
    }

    fn begin(&mut self, launch: Launch) -> Result<(), StoreError> {
        match (&launch.job, &launch.task) {
            (Job::Run(work), Some(task)) => self.put_out(&launch, work, task),
            _ => self.execute_here(launch),
        }
        Ok(())
    }
}

impl FleetHands<'_> {
    fn put_out(&mut self, launch: &Launch, work: &Work, task: &TaskRef) {
        let step = StepTask {
            run_id: launch.run.clone(),
            run_root: self.run_root.clone(),
            debug: self.debug,
            masked: self.masked.to_vec(),
            ticket: task.ticket.clone(),
            work: work.clone(),
        };
        let limit = self.config.queue.crash_limit;
        self.outbox.extend(post::step_task(task, &step, limit, SystemClock.now()));
        let Launch { run, step, attempt, .. } = launch;
        let (run, step, attempt) = (run.clone(), step.clone(), *attempt);
        let out = Out { run, step, attempt, task: task.clone(), made_here: true };
        self.out.insert(task.id.clone(), out);
    }

    fn execute_here(&mut self, launch: Launch) {
        self.here += 1;
        let (tell, stop) = (self.tell.clone(), self.stop.clone());
        let waits = matches!(launch.job, Job::Wait(_));
        let execute = move || {
            let performed = launch.perform(&stop).map(Box::new);
            let Launch { run, step, attempt, .. } = launch;
            let _ = tell.send(Heard::Done { run, step, attempt, performed });
        };
        // Whoever only waits must not keep others from working.
        if waits {
            std::thread::spawn(execute);
        } else {
            self.pool.give(execute);
        }
    }
}
