//! A worker: a process that serves one agent's inbox.
//!
//! Each slot is a thread that claims a task, executes it by the same code as a local run, ends it
//! with a status, and claims the next at once. Beside the slots, one thread keeps the beat and
//! looks after the claims; the caller's thread waits for signals and for tasks that people drop.
//!
//! **Invariant:** a result is told to nobody before the move of its task is done; a task that was
//! lost to another is never ended here.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde_json::{Map, Value};

use super::answer::Done;
use super::conclude;
use super::config::Config;
use super::free::FreeTask;
use super::hint::{Bell, Change, Hints, Patience};
use super::intake::{self, FreeTasks, Intake};
use super::member::{self, Buried, Member, Process, Pulse};
use super::perform::{self, Performed};
use super::post::{self, Asked, StepTask};
use super::site::{self, Environment, Site};
use super::work::Work;
use super::{credentials, systemd};
use crate::engine::{Record, StepStatus};
use crate::exec::{Mask, Stop};
use crate::queue::name::ENDING;
use crate::queue::{Claim, Claimed, End, Ending, Finish, FsQueue, Queue};
use crate::time::{Clock, SystemClock, Time};
use crate::workspace::Workspace;

/// When a worker ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// It is told to.
    Told,
    /// One task was done.
    Once,
    /// Nothing is waiting any more.
    Empty,
}

/// What a worker is made of.
pub struct Setup {
    pub queue: Arc<FsQueue>,
    pub workspace: Workspace,
    pub config: Config,
    pub agent: String,
    pub concurrency: u32,
    pub until: Until,
    pub environment: Environment,
    /// Secrets that came as files, for children to have as variables.
    pub credentials: Environment,
    pub program: PathBuf,
}

/// Who is told what a worker does.
pub trait Audience: Send + Sync {
    fn started(&self, doing: &Doing);
    /// How a task ended, in a word or two, and how long it took.
    fn ended(&self, doing: &Doing, how: &str, took: Duration);
    fn note(&self, line: &str);
    /// The worker serves its inbox; told again with every beat, also while the volume is away.
    fn alive(&self, _doing: usize) {}
    /// It was told to stop: no new tasks are taken any more.
    fn closing(&self) {}
    /// Time passed: what is being done now. Says when to be called again.
    fn tick(&self, _doing: &[Doing]) -> Option<Duration> {
        None
    }
}

/// A task that is being executed.
#[derive(Clone, Debug)]
pub struct Doing {
    pub id: String,
    /// The step of a run, or the title of a free task.
    pub label: String,
    pub run: Option<String>,
    pub attempt: u32,
    pub since: Instant,
    /// Where its output goes as it comes.
    pub logs: [PathBuf; 2],
}

/// Why a task that is being executed is to be stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// It goes back, unpenalised.
    Leaving = 1,
    Cancelled = 2,
    /// Somebody else has it now.
    Lost = 3,
}

/// A task that can be executed.
struct Ready {
    site: Site,
    work: Work,
    free: Option<FreeTask>,
}

impl Ready {
    fn logs(&self) -> [PathBuf; 2] {
        ["stdout", "stderr"].map(|ending| self.site.log(&self.work.step, ending))
    }
}

struct Running {
    doing: Doing,
    stop: Stop,
    why: Arc<AtomicU8>,
}

/// What all threads of a worker share.
struct Shop {
    setup: Setup,
    bell: Arc<Bell>,
    audience: Arc<dyn Audience>,
    /// No new tasks are taken.
    closing: AtomicBool,
    /// Nothing is waited for any more.
    leaving: AtomicBool,
    /// By the stem of the claim's name.
    running: Mutex<HashMap<String, Running>>,
    slots_left: AtomicUsize,
    /// Something that was dropped is on its way to become a task; true until it is known.
    taking_in: AtomicBool,
    /// Those who were found dead, and may have taken something in.
    dead: Mutex<BTreeSet<String>>,
    done: AtomicUsize,
    failed: AtomicUsize,
    masks: Mutex<BTreeMap<Vec<String>, Mask>>,
    /// Variables that the agent's children do not inherit, and those they get beside.
    hidden: Vec<String>,
    given: Vec<(String, OsString)>,
    /// Ends tasks in groups, where each must survive a power cut.
    commits: Option<Sender<Option<(Finish, Doing)>>>,
}

/// How a worker's work went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub done: usize,
    pub failed: usize,
}

impl Shop {
    fn running(&self) -> MutexGuard<'_, HashMap<String, Running>> {
        self.running.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    fn dead(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.dead.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
        self.bell.ring();
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    /// Stops the tasks that the filter picks.
    fn stop(&self, why: Why, level: u8, pick: impl Fn(&str, &Running) -> bool) {
        for (stem, running) in self.running().iter() {
            if pick(stem, running) {
                // The first reason decides what becomes of the task.
                let _ =
                    running.why.compare_exchange(0, why as u8, Ordering::SeqCst, Ordering::SeqCst);
                running.stop.request(level);
            }
        }
    }

    /// Claims and executes until there is no reason to go on.
    fn serve(&self, seed: u64) {
        let settings = &self.setup.config.queue;
        let mut patience = Patience::new(settings.poll, settings.idle_poll, seed);
        let mut failing = false;
        while !self.is_closing() {
            let heard = self.bell.rings();
            match self.setup.queue.claim(&self.setup.agent) {
                Ok(Claimed::Task(claim)) => {
                    patience.reset();
                    failing = false;
                    self.execute(*claim);
                    if self.setup.until == Until::Once {
                        self.close();
                    }
                }
                Ok(Claimed::Quarantined { name, reason }) => {
                    self.audience.note(&format!("{}: {reason}", name.task.file()));
                }
                Ok(Claimed::Nothing) if self.setup.until == Until::Empty && !self.takes_in() => {
                    break;
                }
                Ok(Claimed::Nothing) => self.bell.wait(heard, patience.next_wait()),
                Err(error) => {
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!("cannot claim: {error}; will be tried again");
                    }
                    self.bell.wait(heard, patience.next_wait());
                }
            }
        }
        self.slots_left.fetch_sub(1, Ordering::SeqCst);
        self.bell.ring();
    }

    /// Whether what somebody dropped is on its way to become a task.
    fn takes_in(&self) -> bool {
        self.taking_in.load(Ordering::SeqCst)
    }

    /// Takes in what people dropped. Says when to look again, though nothing changes.
    fn take_in(&self, intake: &mut Intake) -> Option<Instant> {
        if self.is_closing() && intake.is_idle() {
            return None;
        }
        let dead = std::mem::take(&mut *self.dead());
        let lease = self.setup.config.queue.lease;
        if let Err(error) = recover(intake, &self.setup.queue, &dead, lease) {
            tracing::warn!("cannot go on with what others took in: {error}");
            self.dead().extend(dead);
        }
        match intake.scan(&*self.setup.queue, &self.setup.agent) {
            Ok(scanned) => {
                for (name, reason) in &scanned.refused {
                    self.audience.note(&format!("`{name}` is no task: {reason}"));
                }
                self.taking_in.store(scanned.next_look.is_some(), Ordering::SeqCst);
                if !scanned.adopted.is_empty() || scanned.next_look.is_none() {
                    self.bell.ring();
                }
                scanned.next_look
            }
            Err(error) => {
                tracing::warn!("cannot take in what was dropped: {error}; will be tried again");
                Some(Instant::now() + self.setup.config.queue.beat)
            }
        }
    }

    /// Waits until all slots have left, taking in what people drop, listening for hints and
    /// telling what is being done.
    fn attend(&self, mut intake: Intake) {
        let mut look = Instant::now();
        let mut patience = {
            let settings = &self.setup.config.queue;
            Patience::new(settings.poll, settings.idle_poll, 0)
        };
        let inbox = self.setup.queue.layout.inbox(&self.setup.agent);
        let bell = self.bell.clone();
        let dropped = Arc::new(AtomicBool::new(true));
        let seen = dropped.clone();
        let mut hints = Hints::new(move |_, change| {
            let by_hand = match &change {
                Change::Came(name) => intake::is_dropped(OsStr::new(name)),
                Change::Went(_) => return,
                Change::Other => true,
            };
            seen.fetch_or(by_hand, Ordering::SeqCst);
            bell.ring();
        });
        hints.add(&inbox);
        loop {
            let heard = self.bell.rings();
            if self.slots_left.load(Ordering::SeqCst) == 0 {
                return;
            }
            let now = Instant::now();
            if dropped.swap(false, Ordering::SeqCst) || look <= now {
                // What another machine drops rings no bell here. Looking takes a twentieth of the
                // time at most, however many tasks there are.
                let soon = self.take_in(&mut intake);
                look = soon.unwrap_or(now + patience.next_wait().max(now.elapsed() * 20));
            }
            let doing: Vec<Doing> = self.running().values().map(|r| r.doing.clone()).collect();
            let nap = self.audience.tick(&doing).unwrap_or(Duration::from_secs(3600));
            self.bell.wait(heard, nap.min(look.saturating_duration_since(Instant::now())));
        }
    }

    fn execute(&self, claim: Claim) {
        let began = SystemClock.now();
        let ready = self.prepare(&claim);
        let doing = doing(&claim, ready.as_ref().map(Ready::logs).unwrap_or_default());
        let Ready { site, work, free } = match ready {
            Ok(ready) => ready,
            Err(reason) => {
                self.audience.note(&format!("{}: {reason}", claim.name.task.file()));
                let record = Record::refused(2, reason, Map::new());
                let status = post::status(&claim, &record, began, SystemClock.now());
                return self.end(Finish { claim, end: End::Failed, status }, doing);
            }
        };
        let Ok(stop) = Stop::new().inspect_err(|error| tracing::warn!("cannot run: {error}"))
        else {
            let _ = self.setup.queue.release(&claim);
            return;
        };
        let why = Arc::new(AtomicU8::new(0));
        let running = Running { doing: doing.clone(), stop: stop.clone(), why: why.clone() };
        self.running().insert(claim.name.stem(), running);
        self.audience.started(&doing);
        if claim.name.task.attempt > 1 {
            // Whoever had it before may have died here and left its child.
            member::end_earlier(&claim.name);
        }
        perform::keep_begun_logs(&site, &work, claim.name.task.attempt);
        let mark = member::mark(&claim.name);
        let performed = perform::run(&site, &work, &mark, &stop);
        match performed {
            Some(performed) => self.finish(claim, doing, performed, free.as_ref(), began),
            None => self.give_up(claim, &doing, why.load(Ordering::SeqCst), began),
        }
    }

    fn finish(
        &self,
        claim: Claim,
        doing: Doing,
        performed: Performed,
        free: Option<&FreeTask>,
        began: Time,
    ) {
        let (record, members) = match free {
            None => (performed.record, Map::new()),
            Some(task) => match self.conclude(&claim, task, &doing, performed.record) {
                Ok(concluded) => concluded,
                Err(error) => {
                    // What follows from it is not out, so it is not over.
                    self.audience.note(&format!("follow-ups cannot be put out: {error}"));
                    return self.give_up(claim, &doing, Why::Leaving as u8, began);
                }
            },
        };
        let mut status = post::status(&claim, &record, began, SystemClock.now());
        status.extend(members);
        status.insert("logs".into(), self.logs_left(&doing).into());
        let end = match record.status {
            StepStatus::Completed => End::Processed,
            _ => End::Failed,
        };
        self.end(Finish { claim, end, status }, doing);
    }

    /// Judges a free task and puts out what follows from it.
    fn conclude(
        &self,
        claim: &Claim,
        task: &FreeTask,
        doing: &Doing,
        record: Record,
    ) -> io::Result<(Record, Map<String, Value>)> {
        let Setup { config, workspace, queue, agent, .. } = &self.setup;
        let done = Done { task, id: &claim.name.task.id, agent };
        let concluded = conclude::conclude(done, record, &doing.logs[0], config, workspace);
        let (limit, attempt) = (config.queue.crash_limit, claim.name.task.attempt);
        conclude::put_out(&**queue, &concluded.follow_ups.tasks, limit, attempt)?;
        let members = concluded.members();
        Ok((concluded.record, members))
    }

    /// The logs that an execution left, from the workspace on.
    fn logs_left(&self, doing: &Doing) -> Vec<String> {
        let root = self.setup.workspace.root();
        let left = doing.logs.iter().filter(|log| log.exists());
        let name = |log: &PathBuf| Some(log.strip_prefix(root).ok()?.to_string_lossy().into());
        left.filter_map(name).collect()
    }

    /// What becomes of a task whose execution was stopped.
    fn give_up(&self, claim: Claim, doing: &Doing, why: u8, began: Time) {
        if why == Why::Cancelled as u8 {
            let record = Record::refused(128 + 15, "cancelled", Map::new());
            let mut status = post::status(&claim, &record, began, SystemClock.now());
            let error = serde_json::json!({ "reason": "cancelled", "message": "cancelled" });
            status.insert("error".into(), error);
            return self.end(Finish { claim, end: End::Cancelled, status }, doing.clone());
        }
        let released = self.setup.queue.release(&claim);
        self.running().remove(&claim.name.stem());
        let how = match released {
            Ok(Ending::Committed) => "given back",
            Ok(Ending::Fenced) => "lost to another worker",
            Err(_) => "left behind",
        };
        self.audience.ended(doing, how, doing.since.elapsed());
    }

    /// Ends a task, at once or in the next group.
    fn end(&self, finish: Finish, doing: Doing) {
        match &self.commits {
            Some(commits) => {
                commits.send(Some((finish, doing))).expect("groups are ended after the slots");
            }
            None => self.commit(vec![(finish, doing)]),
        }
    }

    /// Ends tasks. A volume that does not answer is waited for: what was done is not thrown away.
    fn commit(&self, mut group: Vec<(Finish, Doing)>) {
        let mut failing = false;
        loop {
            let (finishes, doings): (Vec<_>, Vec<_>) = group.into_iter().unzip();
            let endings = self.setup.queue.complete(&finishes);
            group = Vec::new();
            for ((finish, doing), ending) in finishes.into_iter().zip(doings).zip(endings) {
                match ending {
                    Ok(ending) => self.ended(&finish, &doing, ending),
                    Err(error) => {
                        if !std::mem::replace(&mut failing, true) {
                            tracing::warn!("cannot end task {}: {error}; tried again", doing.id);
                        }
                        group.push((finish, doing));
                    }
                }
            }
            if group.is_empty() || self.is_leaving() {
                return;
            }
            self.bell.wait(self.bell.rings(), self.setup.config.queue.beat);
        }
    }

    /// Whether somebody said twice that it must end.
    fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::SeqCst)
    }

    fn ended(&self, finish: &Finish, doing: &Doing, ending: Ending) {
        self.running().remove(&finish.claim.name.stem());
        let how = match (ending, finish.end) {
            (Ending::Committed, End::Processed) => "done".to_owned(),
            (Ending::Committed, End::Failed) => format!("failed: {}", why_failed(finish)),
            (Ending::Committed, End::Cancelled) => "cancelled".to_owned(),
            (Ending::Fenced, _) => "too late: another worker has it".to_owned(),
        };
        if ending == Ending::Committed {
            self.done.fetch_add(1, Ordering::SeqCst);
            self.failed.fetch_add(usize::from(finish.end != End::Processed), Ordering::SeqCst);
        }
        self.audience.ended(doing, &how, doing.since.elapsed());
    }

    /// Makes of a claimed task what can be executed. The error is one sentence.
    fn prepare(&self, claim: &Claim) -> Result<Ready, String> {
        match post::read(&claim.task.document)? {
            Asked::Step(step) => self.prepare_step(*step),
            Asked::Run(_) => Err("it is a run, which only a coordinator can drive".into()),
            Asked::Free => self.prepare_free(claim),
        }
    }

    fn prepare_free(&self, claim: &Claim) -> Result<Ready, String> {
        let Setup { config, workspace, queue, agent, .. } = &self.setup;
        let (id, attempt) = (&claim.name.task.id, claim.name.task.attempt);
        let free = FreeTask::from_document(&claim.task.document)?;
        let read = |path: &str| workspace.read_text(path, config.input_bytes);
        let work = free.work(config, agent, &read, id, attempt)?;
        let mut site = self.site(&[], Vec::new());
        site.logs = queue.layout.results().join(&claim.task.batch);
        queue.need_dir(&site.logs).map_err(|error| format!("no place for its logs: {error}"))?;
        site.about.push(("ORCHESTRATE_TASK_ID".into(), id.as_str().into()));
        Ok(Ready { site, work, free: Some(free) })
    }

    fn prepare_step(&self, step: StepTask) -> Result<Ready, String> {
        let workspace = &self.setup.workspace;
        workspace.check(&step.run_root).map_err(|error| error.to_string())?;
        let root = workspace.root().join(&step.run_root);
        let own = step.work.env.iter().filter(|(key, _)| step.masked.contains(key));
        let own: Vec<String> = own.map(|(_, value)| value.clone()).collect();
        let mut site = self.site(&step.masked, own);
        site.logs = root.join("logs");
        site.about.extend(site::about(&step.run_id, &root));
        site.debug = step.debug;
        Ok(Ready { site, work: step.work, free: None })
    }

    fn site(&self, masked: &[String], own: Vec<String>) -> Site {
        let Setup { workspace, config, environment, program, .. } = &self.setup;
        Site {
            workspace: workspace.clone(),
            logs: PathBuf::new(),
            about: self.given.clone(),
            environment: environment.clone(),
            hidden: self.hidden.clone(),
            debug: false,
            live: true,
            grace: config.grace,
            input_bytes: config.input_bytes,
            mask: self.mask(masked, own),
            program: program.clone(),
        }
    }

    /// The mask of some secrets, made once where the task has no values of its own for them.
    fn mask(&self, names: &[String], own: Vec<String>) -> Mask {
        let credentials = self.setup.credentials.keys();
        let values = || {
            let values = names.iter().chain(credentials.clone());
            let values = values.filter_map(|name| self.setup.environment.get(name));
            values.map(|value| value.to_string_lossy().into_owned())
        };
        if !own.is_empty() {
            return Mask::new(values().chain(own));
        }
        let mut masks = self.masks.lock().unwrap_or_else(|poison| poison.into_inner());
        if let Some(mask) = masks.get(names) {
            return mask.clone();
        }
        let mask = Mask::new(values());
        masks.insert(names.to_vec(), mask.clone());
        mask
    }

    /// Looks after the claims once: who is to be cancelled, what was lost, what is ours unknown.
    fn audit(&self) -> io::Result<()> {
        let requests = self.setup.queue.cancel_requests()?;
        let asked = |running: &Running| {
            let run = running.doing.run.as_ref();
            requests.contains(&running.doing.id) || run.is_some_and(|run| requests.contains(run))
        };
        self.stop(Why::Cancelled, 1, |_, running| asked(running));
        let known: HashSet<String> = self.running().keys().cloned().collect();
        let me = self.setup.queue.me();
        let claims = self.setup.queue.claims(&self.setup.agent)?;
        let held: HashSet<String> =
            claims.iter().filter(|claim| claim.worker == me).map(|claim| claim.stem()).collect();
        // One that was claimed or ended while we looked is neither lost nor a surprise.
        self.stop(Why::Lost, 1, |stem, _| known.contains(stem) && !held.contains(stem));
        let files = self.running().keys().map(|stem| format!("{stem}{ENDING}")).collect();
        for found in self.setup.queue.adopt_surprises(&files)? {
            self.audience.note(&format!("a claim that came late was dealt with: {found:?}"));
        }
        Ok(())
    }
}

/// Goes on with what processes that live no more had taken in: those that were found dead, and
/// from time to time those that nobody knows.
pub fn recover(
    intake: &mut Intake,
    queue: &FsQueue,
    dead: &BTreeSet<String>,
    lease: Duration,
) -> io::Result<usize> {
    intake.recover_if_due(!dead.is_empty(), lease, &|worker| {
        if dead.contains(worker) {
            return Ok(false);
        }
        let here = Process::this();
        let known = member::registrations(queue)?.into_iter().find(|r| r.worker == worker);
        Ok(known.is_some_and(|r| !here.is_beside(&r.process) || r.process.lives_here()))
    })
}

/// What an agent's settings keep from its children.
fn hidden(setup: &Setup) -> Vec<String> {
    const ALWAYS: [&str; 7] = ["PATH", "HOME", "USER", "SHELL", "LANG", "TERM", "TMPDIR"];
    // What systemd tells this service is not for others.
    let mut hidden: Vec<String> = systemd::VARIABLES.map(str::to_owned).to_vec();
    hidden.push(credentials::VARIABLE.to_owned());
    if let Some(allowed) = setup.config.agent(&setup.agent).env {
        let hides = |name: &&String| !ALWAYS.contains(&name.as_str()) && !allowed.contains(name);
        hidden.extend(setup.environment.keys().filter(hides).cloned());
    }
    hidden
}

/// The credentials that an agent's settings let its children have.
fn given(setup: &Setup) -> Vec<(String, OsString)> {
    let allowed = setup.config.agent(&setup.agent).env;
    let gives = |name: &String| allowed.as_ref().is_none_or(|allowed| allowed.contains(name));
    let credentials = setup.credentials.iter().filter(|(name, _)| gives(name));
    credentials.map(|(name, value)| (name.clone(), value.clone())).collect()
}

fn why_failed(finish: &Finish) -> String {
    let message = finish.status.get("message").and_then(Value::as_str).unwrap_or_default();
    message.lines().next().unwrap_or_default().to_owned()
}

fn doing(claim: &Claim, logs: [PathBuf; 2]) -> Doing {
    let text = |key: &str| claim.task.document.get(key).and_then(Value::as_str);
    let label = text("step").or(text("title")).unwrap_or(&claim.name.task.label);
    Doing {
        id: claim.name.task.id.to_string(),
        label: label.to_owned(),
        run: text("run_id").map(str::to_owned),
        attempt: claim.name.task.attempt,
        since: Instant::now(),
        logs,
    }
}

/// Ends tasks in groups: while one group is on its way to the medium, the next one gathers.
fn commit_groups(shop: &Shop, waiting: &Receiver<Option<(Finish, Doing)>>) {
    while let Ok(Some(first)) = waiting.recv() {
        let mut group = vec![first];
        let mut over = false;
        for next in waiting.try_iter().take(255) {
            match next {
                Some(next) => group.push(next),
                None => over = true,
            }
        }
        shop.commit(group);
        if over {
            return;
        }
    }
}

/// The thread that keeps the beat and looks after the claims, the others' too.
fn keep_beat(shop: &Shop, mut member: Member, over: &AtomicBool, stop: &Stop) {
    let round = shop.setup.config.queue.round();
    let mut failing = false;
    while !over.load(Ordering::SeqCst) {
        let looked = member
            .beat()
            .and_then(|()| shop.audit())
            .and_then(|()| heed_drain(shop, &mut member, stop))
            .and_then(|()| member.look_around());
        match looked {
            Ok(buried) => {
                failing = false;
                if !buried.is_empty() {
                    shop.dead().extend(buried.iter().map(|dead| dead.worker.clone()));
                    shop.bell.ring();
                }
                buried.iter().for_each(|dead| shop.audience.note(&obituary(dead)));
            }
            Err(error) if !std::mem::replace(&mut failing, true) => {
                tracing::warn!("cannot keep the beat: {error}; will be tried again");
            }
            Err(_) => {}
        }
        std::thread::park_timeout(round);
    }
    member.leave();
}

/// Somebody may have asked this worker to finish what it does and end: that is a first signal.
fn heed_drain(shop: &Shop, member: &mut Member, stop: &Stop) -> io::Result<()> {
    if stop.level() == 0 && member.is_asked_to_drain()? {
        shop.audience.note("asked to end: finishing what is at hand");
        stop.request(1);
    }
    if stop.level() > 0 || shop.is_closing() { member.say_draining() } else { Ok(()) }
}

/// What is said of a holder that was found dead.
pub fn obituary(dead: &Buried) -> String {
    let how = match dead.evidence {
        None => "its process is gone".to_owned(),
        Some(evidence) => format!(
            "its beat stood still for {} s, read {} times",
            evidence.span_ms / 1000,
            evidence.readings
        ),
    };
    let agent = dead.agent.as_deref().unwrap_or("a worker");
    let orphans = match dead.orphans {
        0 => String::new(),
        count => format!("; ended {count} processes it had left"),
    };
    let count = dead.reaped.len();
    format!("{agent} {} is dead ({how}): took over {count} of its tasks{orphans}", dead.worker)
}

/// The thread that never touches the volume: it hears signals, and stops what others may think
/// dead. It ends with the process.
fn stand_guard(shop: &Shop, pulse: &Pulse, stop: &Stop) {
    let settings = &shop.setup.config.queue;
    let mut closed: Option<Instant> = None;
    let mut level = 0;
    while shop.slots_left.load(Ordering::SeqCst) > 0 {
        shop.audience.alive(shop.running().len());
        let now = stop.wait_above(level, settings.beat);
        if now > 0 && closed.is_none() {
            closed = Some(Instant::now());
            shop.audience.closing();
            shop.close();
        }
        let late = closed.is_some_and(|since| since.elapsed() > settings.drain);
        if now > 1 || late {
            shop.leaving.store(true, Ordering::SeqCst);
            shop.stop(Why::Leaving, now.max(1), |_, _| true);
        }
        if pulse.is_doubtful(settings.lease) {
            shop.stop(Why::Lost, 1, |_, _| true);
        }
        level = now;
    }
}

/// Serves an inbox until it is told to stop, or by itself where that was asked for.
///
/// A first request to stop lets the tasks at hand be finished, a second one gives them back.
pub fn serve(setup: Setup, stop: &Stop, audience: Arc<dyn Audience>) -> io::Result<Tally> {
    let queue = setup.queue.clone();
    queue.open_agent(&setup.agent)?;
    let lease = setup.config.queue.lease;
    let mut member = Member::join(queue.clone(), &setup.agent, setup.concurrency, None, lease)?;
    for dead in member.look_around()? {
        audience.note(&obituary(&dead));
    }
    let slots = setup.concurrency.max(1) as usize;
    let (commits, groups) = mpsc::channel();
    let shop = Arc::new(Shop {
        bell: Arc::default(),
        audience,
        closing: AtomicBool::new(false),
        leaving: AtomicBool::new(false),
        running: Mutex::default(),
        slots_left: AtomicUsize::new(slots),
        taking_in: AtomicBool::new(true),
        dead: Mutex::default(),
        done: AtomicUsize::new(0),
        failed: AtomicUsize::new(0),
        masks: Mutex::default(),
        hidden: hidden(&setup),
        given: given(&setup),
        commits: setup.config.durable.then_some(commits),
        setup,
    });
    let (guarded, pulse, guards) = (shop.clone(), member.pulse.clone(), stop.clone());
    std::thread::spawn(move || stand_guard(&guarded, &pulse, &guards));
    let adopt = Box::new(FreeTasks { config: shop.setup.config.clone() });
    let settings = intake::Settings::of(&shop.setup.config);
    let intake = Intake::new(queue.layout.clone(), queue.me(), settings, adopt);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let shop = &*shop;
        let keeper = scope.spawn(|| keep_beat(shop, member, &over, stop));
        for slot in 0..slots {
            scope.spawn(move || shop.serve(slot as u64 + 1));
        }
        let groups = scope.spawn(move || commit_groups(shop, &groups));
        shop.attend(intake);
        shop.commits.iter().for_each(|commits| _ = commits.send(None));
        // It is a member as long as it ends tasks.
        let _ = groups.join();
        over.store(true, Ordering::SeqCst);
        keeper.thread().unpark();
    });
    Ok(Tally { done: shop.done.load(Ordering::SeqCst), failed: shop.failed.load(Ordering::SeqCst) })
}
