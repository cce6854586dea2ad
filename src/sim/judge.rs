//! What must never happen, looked at from outside: the volume tells of every move, the executor of
//! every execution, the coordinators of everything they record.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::{Map, Value};

use super::sched::{SECOND, Sched, Us, here};
use super::volume::STALE;
use crate::base::ids::TaskAttempt;
use crate::queue::{ClaimName, End, TaskName, seal};

/// How long a holder may be silent.
pub(super) const LEASE: Us = 6 * SECOND;
/// What a forged status says.
pub(super) const FORGED: &str = "forged";
/// How often it beats.
pub(super) const BEAT: Us = SECOND;

/// Where a file is, by its path.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Spot {
    Tmp,
    Inbox(TaskName),
    Claimed(ClaimName),
    Ended(End, ClaimName, String),
    Other,
    /// A name that nobody may give there.
    Odd(String),
}

#[derive(Default)]
struct Task {
    trail: Vec<PathBuf>,
    payload: Vec<u8>,
    ended: Option<ClaimName>,
    /// Who made it so.
    ended_by: String,
    ended_at: Option<Us>,
    ticket: Option<String>,
}

struct Execution {
    run: String,
    step: String,
    claim: Option<ClaimName>,
    process: usize,
    began: Us,
    paused: Us,
}

#[derive(Default)]
struct Known {
    tasks: BTreeMap<String, Task>,
    executions: Vec<Execution>,
    /// When a claim was taken from its holder by somebody else.
    taken: BTreeMap<String, Us>,
    /// When a process beat last, and how long it had been silent then.
    beats: BTreeMap<String, (Us, Us)>,
    workers: BTreeMap<String, usize>,
    held_back: BTreeMap<PathBuf, Vec<u8>>,
    /// From when to when the volume answered nobody.
    outages: Vec<(Us, Us)>,
    violations: Vec<String>,
    /// What people were told.
    pub acknowledged: BTreeMap<String, Us>,
    /// When members heard of what people asked for.
    heard: BTreeMap<String, Us>,
    trace: Vec<String>,
}

pub(super) struct Judge {
    root: PathBuf,
    sched: Arc<Sched>,
    known: Mutex<Known>,
    /// Whether all that happens is kept to be shown.
    traces: bool,
}

impl Judge {
    pub(super) fn new(root: &Path, sched: Arc<Sched>, traces: bool) -> Arc<Judge> {
        Arc::new(Judge { root: root.to_owned(), sched, known: Mutex::default(), traces })
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    pub(super) fn violation(&self, text: String) {
        let now = self.sched.now();
        self.trace(|| format!("VIOLATION {text}"));
        self.known().violations.push(format!("{:.3} s: {text}", now as f64 / 1e6));
    }

    pub(super) fn violations(&self) -> Vec<String> {
        self.known().violations.clone()
    }

    /// Notes what happened, for people who look at one seed.
    pub(super) fn trace(&self, line: impl FnOnce() -> String) {
        if self.traces {
            let now = self.sched.now();
            self.known().trace.push(format!("{:10.4} {}", now as f64 / 1e6, line()));
        }
    }

    pub(super) fn told(&self) -> Vec<String> {
        self.known().trace.clone()
    }

    pub(super) fn joined(&self, worker: &str, process: usize) {
        self.known().workers.insert(worker.to_owned(), process);
        self.trace(|| format!("process {process} is {worker}"));
    }

    pub(super) fn now(&self) -> Us {
        self.sched.now()
    }

    pub(super) fn is_dead(&self, worker: &str) -> bool {
        let process = self.known().workers.get(worker).copied();
        process.is_some_and(|process| !self.sched.state().processes[process].alive)
    }

    pub(super) fn beaten(&self, path: &Path, now: Us) {
        let worker = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut known = self.known();
        let beat = known.beats.entry(worker).or_insert((now, 0));
        *beat = (now, now - beat.0);
    }

    /// A person was told that something is done.
    pub(super) fn acknowledge(&self, what: String) {
        let now = self.sched.now();
        self.trace(|| format!("acknowledged: {what}"));
        self.known().acknowledged.insert(what, now);
    }

    pub(super) fn acknowledged(&self, what: &str) -> Option<Us> {
        self.known().acknowledged.get(what).copied()
    }

    /// A member heard what a person asked for.
    pub(super) fn hear(&self, what: String) {
        let now = self.sched.now();
        self.trace(|| format!("heard: {what}"));
        self.known().heard.entry(what).or_insert(now);
    }

    pub(super) fn heard_at(&self, what: &str) -> Option<Us> {
        self.known().heard.get(what).copied()
    }

    /// The member that a process is.
    pub(super) fn worker_of(&self, process: usize) -> Option<String> {
        let known = self.known();
        known.workers.iter().find(|(_, of)| **of == process).map(|(worker, _)| worker.clone())
    }

    /// What people were told of a kind of thing, by what it is about.
    pub(super) fn acknowledged_of(&self, kind: &str) -> Vec<String> {
        let known = self.known();
        known
            .acknowledged
            .keys()
            .filter_map(|what| Some(what.strip_prefix(kind)?.to_owned()))
            .collect()
    }

    /// A file is gone by its name, or has another one: neither may happen to what people were told
    /// of as long as it is not done.
    pub(super) fn given_up(&self, path: &Path) {
        self.trace(|| format!("{}: {} is gone", here().process, self.short(path)));
        let unheard = self.unheard(path);
        unheard.into_iter().for_each(|what| self.violation(format!("{what} is thrown away")));
    }

    /// What people were told of that a file is, if it is still to be done.
    fn unheard(&self, path: &Path) -> Option<String> {
        let inside = path.strip_prefix(&self.root).ok()?;
        let parts: Vec<&str> = inside.iter().filter_map(|part| part.to_str()).collect();
        let (what, run) = match parts[..] {
            [".orchestrate", "cancel", run] => (format!("cancel {run}"), run),
            [".orchestrate", "runs", run, "control", file] => {
                (format!("approve {run} {}", file.strip_suffix(".answer")?), run)
            }
            _ => return None,
        };
        (self.acknowledged(&what).is_some() && !self.has_ended(run)).then_some(what)
    }

    fn has_ended(&self, run: &str) -> bool {
        self.known().tasks.values().any(|task| task.ended.is_some() && is_run(task, run))
    }

    pub(super) fn ticket(&self, id: &str) -> Option<String> {
        self.known().tasks.get(id)?.ticket.clone()
    }

    pub(super) fn hold_back(&self, path: &Path, bytes: &[u8]) {
        self.known().held_back.insert(path.to_owned(), bytes.to_vec());
    }

    /// A status that was held back until its task is where it belongs.
    pub(super) fn held_back(&self, task: &Path) -> Option<(PathBuf, Vec<u8>)> {
        let (name, _) = ClaimName::parse_ended(task.file_name()?.to_str()?)?;
        let path = task.with_file_name(name.status());
        self.known().held_back.remove(&path).map(|bytes| (path, bytes))
    }

    pub(super) fn spot(&self, path: &Path) -> Spot {
        let Ok(inside) = path.strip_prefix(&self.root) else { return Spot::Other };
        let parts: Vec<&str> = inside.iter().filter_map(|part| part.to_str()).collect();
        // Made to change a directory, and removed at once.
        if parts.last().is_some_and(|name| name.starts_with('.')) {
            return Spot::Other;
        }
        let ended = |end: End, file: &str| match ClaimName::parse_ended(file) {
            Some((name, by)) => Spot::Ended(end, name, by),
            None if file.ends_with(".status.json") => Spot::Other,
            None => Spot::Odd(file.to_owned()),
        };
        let odd = |file: &str| Spot::Odd(file.to_owned());
        match parts[..] {
            ["inbox", _, file] => TaskName::parse(file).map_or_else(|| odd(file), Spot::Inbox),
            [".orchestrate", "claimed", _, file] => {
                ClaimName::parse(file).map_or_else(|| odd(file), Spot::Claimed)
            }
            [".orchestrate", "tmp", _] => Spot::Tmp,
            ["processed", _, file] => ended(End::Processed, file),
            ["failed", _, file] => ended(End::Failed, file),
            [".orchestrate", "cancelled", _, file] => ended(End::Cancelled, file),
            _ => Spot::Other,
        }
    }

    /// The claim that a name is of.
    pub(super) fn claim_of(&self, path: &Path) -> Option<ClaimName> {
        match self.spot(path) {
            Spot::Claimed(claim) => Some(claim),
            _ => None,
        }
    }

    /// Whether a move may happen after its call has failed: one that decides who has a task.
    pub(super) fn may_be_late(&self, from: &Path, to: &Path) -> bool {
        matches!(
            (self.spot(from), self.spot(to)),
            (Spot::Inbox(_), Spot::Claimed(_)) | (Spot::Claimed(_), Spot::Ended(..))
        )
    }

    /// The volume answers nobody until then.
    pub(super) fn goes_away(&self, until: Us) {
        let now = self.sched.now();
        self.trace(|| format!("the volume is away for {:.1} s", (until - now) as f64 / 1e6));
        self.known().outages.push((now, until));
    }

    /// Whether a holder is dead for long, and whoever looks after it was awake since: no cache and
    /// no pause hides what it left.
    fn died_long_ago(&self, holder: Option<&usize>, mover: usize, now: Us) -> bool {
        let state = self.sched.state();
        let Some(holder) = holder.map(|holder| &state.processes[*holder]) else { return false };
        let long_ago = 2 * STALE + BEAT;
        let awake = state.processes[mover].paused_until + long_ago < now;
        !holder.alive && holder.ended + long_ago < now && awake
    }

    /// Whether a name is one of a task that has ended.
    pub(super) fn is_end(&self, path: &Path) -> bool {
        matches!(self.spot(path), Spot::Ended(..))
    }

    /// When the task of a run ended, which is the first of its batch.
    pub(super) fn ended_at(&self, run: &str) -> Option<Us> {
        let known = self.known();
        let of_run = known.tasks.values().filter(|task| is_run(task, run));
        of_run.filter_map(|task| task.ended_at).max()
    }

    /// A file was moved, by the process whose call it was; `left` where a status with its ticket
    /// lay where it will end.
    pub(super) fn moved(
        &self,
        from: &Path,
        to: &Path,
        bytes: &[u8],
        now: Us,
        mover: usize,
        left: bool,
    ) {
        let (source, target) = (self.spot(from), self.spot(to));
        let id = match &target {
            Spot::Inbox(name) => name.id.to_string(),
            Spot::Claimed(name) | Spot::Ended(_, name, _) => name.task.id.to_string(),
            Spot::Odd(name) => return self.violation(format!("I0: `{name}` is no canonical name")),
            _ => return,
        };
        self.trace(|| format!("{mover}: {} -> {}", self.short(from), self.short(to)));
        self.sched.mix(id.bytes().fold(0, |sum: u64, byte| sum.rotate_left(5) ^ u64::from(byte)));
        let mut wrong = Vec::new();
        let mut known = self.known();
        let known = &mut *known;
        let task = known.tasks.entry(id.clone()).or_default();
        if task.trail.iter().any(|name| name == to) {
            wrong.push(format!("I8: the name `{}` was used twice", self.short(to)));
        }
        if task.payload.is_empty() {
            task.payload = bytes.to_vec();
            let document = seal::unseal(bytes);
            task.ticket = document.and_then(|d| Some(d.get("ticket")?.as_str()?.to_owned()));
        }
        let claims = |task: &Task, attempt: TaskAttempt| {
            let spots = task.trail.iter().map(|path| self.spot(path));
            let of = |spot: &Spot| matches!(spot, Spot::Claimed(n) if n.task.attempt == attempt);
            spots.filter(of).count()
        };
        match (&source, &target) {
            (Spot::Tmp, Spot::Inbox(_)) => {
                if !task.trail.is_empty() {
                    wrong.push(format!("I1: task {id} was put out twice"));
                }
            }
            (Spot::Inbox(name), Spot::Claimed(claim)) => {
                if claim.task != *name {
                    wrong.push(format!("I5: {} was claimed as another", self.short(from)));
                }
                if claims(task, claim.task.attempt) > 0 {
                    wrong.push(format!("I3: attempt {} of {id} claimed twice", name.attempt));
                }
            }
            (Spot::Claimed(claim), Spot::Inbox(next)) => {
                if next.attempt != claim.task.attempt.next() {
                    wrong.push(format!("I2: {id} went back as attempt {}", next.attempt));
                }
                if left && self.died_long_ago(known.workers.get(&claim.worker), mover, now) {
                    wrong.push(format!("{} went back, and its holder had done it", claim.stem()));
                }
                wrong.extend(early(
                    known_of(&known.workers, &known.beats, &self.sched),
                    &known.outages,
                    claim,
                    mover,
                    now,
                ));
                if known.workers.get(&claim.worker) != Some(&mover) {
                    known.taken.insert(claim.stem(), now);
                }
            }
            (Spot::Claimed(claim), Spot::Ended(_, name, by)) => {
                if claim != name {
                    wrong.push(format!("I5: {} ended as another", self.short(from)));
                }
                if known.workers.get(by) != Some(&mover) {
                    wrong.push(format!("I8: {id} was ended under another's name"));
                }
                if task.ended.is_some() {
                    wrong.push(format!("I4: {id} ended twice"));
                }
                (task.ended, task.ended_by) = (Some(name.clone()), by.clone());
                task.ended_at = Some(now);
                wrong.extend(early(
                    known_of(&known.workers, &known.beats, &self.sched),
                    &known.outages,
                    claim,
                    mover,
                    now,
                ));
                if known.workers.get(&claim.worker) != Some(&mover) {
                    known.taken.insert(claim.stem(), now);
                }
            }
            (Spot::Tmp, Spot::Claimed(_)) => {}
            other => wrong.push(format!("R1: {other:?} is no transition")),
        }
        task.trail.push(to.to_owned());
        for text in wrong {
            known.violations.push(format!("{:.3} s: {text}", now as f64 / 1e6));
        }
    }

    fn short(&self, path: &Path) -> String {
        path.strip_prefix(&self.root).unwrap_or(path).display().to_string()
    }

    /// The power failed: what came after what is there now did not happen.
    pub(super) fn after_power_cut(&self, files: &[(PathBuf, Vec<u8>)]) {
        let paths: BTreeSet<&PathBuf> = files.iter().map(|(path, _)| path).collect();
        let mut guard = self.known();
        let known = &mut *guard;
        for task in known.tasks.values_mut() {
            let last = task.trail.iter().rposition(|path| paths.contains(path));
            task.trail.truncate(last.map_or(0, |last| last + 1));
            let end = task.trail.last().map(|path| self.spot(path));
            task.ended = match &end {
                Some(Spot::Ended(_, name, _)) => Some(name.clone()),
                _ => None,
            };
            if let Some(Spot::Claimed(name)) = end {
                known.taken.remove(&name.stem());
            }
        }
        drop(guard);
        let runs = self.root.join(".orchestrate");
        let marker = |run: String| runs.join("cancel").join(run);
        let answer = |what: String| {
            let (run, step) = what.split_once(' ').unwrap_or_default();
            runs.join("runs").join(run).join("control").join(format!("{step}.answer"))
        };
        let lost = self.acknowledged_of("cancel ").into_iter().map(marker);
        let lost = lost.chain(self.acknowledged_of("approve ").into_iter().map(answer));
        for path in lost.filter(|path| !paths.contains(path)).collect::<Vec<_>>() {
            let unheard = self.unheard(&path);
            unheard.into_iter().for_each(|what| self.violation(format!("{what} is lost")));
        }
    }

    /// An execution begins. Gives its number.
    pub(super) fn began(&self, run: &str, step: &str, claim: Option<ClaimName>) -> usize {
        let now = self.sched.now();
        let here = here();
        let (paused_until, paused) = {
            let state = self.sched.state();
            let process = &state.processes[here.process];
            (process.paused_until, process.paused)
        };
        self.trace(|| {
            format!(
                "{}: executes {run} {step} as {:?}",
                here.process,
                claim.as_ref().map(ClaimName::stem)
            )
        });
        let mut wrong = Vec::new();
        let mut known = self.known();
        if let Some(claim) = &claim {
            let task = known.tasks.get(claim.task.id.as_str());
            let is_it =
                |path: &PathBuf| matches!(self.spot(path), Spot::Claimed(name) if name == *claim);
            let held = task.is_some_and(|task| task.trail.iter().any(is_it));
            if !held && !known.taken.contains_key(&claim.stem()) {
                wrong.push(format!("I3: {} is executed by one who does not hold it", claim.stem()));
            }
        }
        // What a coordinator executes itself belongs to its claim of the run.
        let by = claim.clone().or_else(|| {
            let task = known.tasks.values().find(|task| is_run(task, run))?;
            let is_mine = |name: &ClaimName| known.workers.get(&name.worker) == Some(&here.process);
            task.trail.iter().rev().filter_map(|path| self.claim_of(path)).find(is_mine)
        });
        if let Some(by) = by
            && let Some(taken) = known.taken.get(&by.stem())
            && now.saturating_sub((*taken).max(paused_until)) > LEASE / 2 + BEAT
        {
            wrong.push(format!("I16: {run} {step} is begun long after {} was lost", by.stem()));
        }
        let (run, step) = (run.to_owned(), step.to_owned());
        known.executions.push(Execution {
            run,
            step,
            claim,
            process: here.process,
            began: now,
            paused,
        });
        for text in wrong {
            known.violations.push(format!("{:.3} s: {text}", now as f64 / 1e6));
        }
        known.executions.len() - 1
    }

    /// An execution goes on: it must have been stopped by now if it was lost long ago.
    pub(super) fn goes_on(&self, number: usize) {
        let now = self.sched.now();
        let paused = self.sched.state().processes[here().process].paused;
        let mut known = self.known();
        let known = &mut *known;
        let execution = &known.executions[number];
        let Some(claim) = &execution.claim else { return };
        let Some(taken) = known.taken.get(&claim.stem()) else { return };
        let since = now.saturating_sub((*taken).max(execution.began));
        let grace = LEASE / 2 + BEAT + (paused - execution.paused);
        if since > grace {
            let text = format!("I16: {} goes on long after it was lost", claim.stem());
            known.violations.push(format!("{:.3} s: {text}", now as f64 / 1e6));
        }
    }

    /// A coordinator recorded a result: it must be of an execution that was committed.
    pub(super) fn recorded(&self, run: &str, step: &str, output: Option<&str>) {
        if output == Some(FORGED) {
            self.violation(format!("{run} {step} goes by a forged status"));
        }
        let Some(number) = output.and_then(|text| text.strip_prefix("execution ")) else { return };
        let known = self.known();
        let Ok(number) = number.parse::<usize>() else { return };
        let mut wrong = None;
        match known.executions.get(number) {
            Some(execution) if execution.run == run && execution.step == step => {
                if let Some(claim) = &execution.claim {
                    let task = known.tasks.get(claim.task.id.as_str());
                    let by = task.and_then(|task| task.ended.as_ref());
                    if by != Some(claim) {
                        wrong = Some(format!(
                            "I5: {run} {step} goes by {}, which was not committed",
                            claim.stem()
                        ));
                    }
                }
            }
            _ => wrong = Some(format!("{run} {step} goes by an execution of something else")),
        }
        drop(known);
        self.trace(|| format!("{}: recorded {run} {step}", here().process));
        wrong.into_iter().for_each(|text| self.violation(text));
    }

    /// A worker says that it has ended a task: it must be so.
    pub(super) fn told_ended(&self, id: &str, attempt: TaskAttempt, worker: &str, how: &str) {
        let known = self.known();
        let task = known.tasks.get(id);
        let by_me = task.is_some_and(|task| task.ended_by == worker);
        let ended = task.and_then(|task| task.ended.as_ref());
        let is_mine = |claim: &ClaimName| claim.worker == worker && claim.task.attempt == attempt;
        let mine = ended.is_some_and(is_mine);
        let well = match how {
            "given back" | "left behind" => true,
            // Whoever ended it itself did not lose it.
            how if how.starts_with("too late") || how.starts_with("lost") => !(by_me && mine),
            _ => mine,
        };
        drop(known);
        if !well {
            self.violation(format!("I6: {worker} says of {id} `{how}`, which it is not"));
        }
    }

    pub(super) fn executions_of(&self, run: &str) -> BTreeMap<String, usize> {
        let mut found = BTreeMap::new();
        for execution in self.known().executions.iter().filter(|execution| execution.run == run) {
            *found.entry(execution.step.clone()).or_default() += 1;
        }
        found
    }

    /// Whether anything of a run was begun after a time.
    pub(super) fn began_after(&self, run: &str, at: Us) -> bool {
        self.known().executions.iter().any(|execution| execution.run == run && execution.began > at)
    }

    pub(super) fn executions(&self) -> usize {
        let known = self.known();
        debug_assert!(known.executions.iter().all(|execution| execution.process > 0));
        known.executions.len()
    }

    /// Looks at the whole tree when all is over.
    pub(super) fn look_at_tree(&self, files: &[(PathBuf, Vec<u8>)]) {
        let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let by_path: BTreeMap<&PathBuf, &Vec<u8>> = files.iter().map(|(p, b)| (p, b)).collect();
        for (path, bytes) in files {
            let (id, open) = match self.spot(path) {
                Spot::Inbox(name) => (name.id.to_string(), true),
                Spot::Claimed(name) => (name.task.id.to_string(), true),
                Spot::Ended(_, name, _) => {
                    let status = path.with_file_name(name.status());
                    let sealed = by_path.get(&status).and_then(|bytes| seal::unseal(bytes));
                    if !sealed.is_some_and(|status| is_of(&status, &name)) {
                        self.violation(format!("I7: {} has no sealed status", self.short(path)));
                    }
                    (name.task.id.to_string(), false)
                }
                Spot::Odd(name) => {
                    self.violation(format!("I0: `{name}` lies among the tasks"));
                    continue;
                }
                _ => continue,
            };
            if open {
                self.violation(format!("I11: {} is left", self.short(path)));
            }
            let payload = self.known().tasks.get(&id).map(|task| task.payload.clone());
            if payload.is_some_and(|payload| payload != *bytes) {
                self.violation(format!("I14: {} is not what was put out", self.short(path)));
            }
            places.entry(id).or_default().push(self.short(path));
        }
        for (id, places) in places.iter().filter(|(_, places)| places.len() > 1) {
            self.violation(format!("I1: task {id} is at {places:?}"));
        }
    }

    /// The ids of tasks that have been put out, with whether they have ended.
    pub(super) fn has_open(&self) -> bool {
        self.known().tasks.values().any(|task| !task.trail.is_empty() && task.ended.is_none())
    }
}

/// Whether a task stands for a run.
fn is_run(task: &Task, run: &str) -> bool {
    let document = seal::unseal(&task.payload).unwrap_or_default();
    document.get("kind").is_some_and(|kind| kind == "run")
        && document.get("run_id").is_some_and(|id| id == run)
}

fn is_of(status: &Map<String, Value>, name: &ClaimName) -> bool {
    status.get("task_id").and_then(Value::as_str) == Some(name.task.id.as_str())
}

/// A holder: whether its process lives, and when it beat last.
type Holder<'a> = Box<dyn Fn(&str) -> Option<(usize, bool, (Us, Us))> + 'a>;

fn known_of<'a>(
    workers: &'a BTreeMap<String, usize>,
    beats: &'a BTreeMap<String, (Us, Us)>,
    sched: &'a Sched,
) -> Holder<'a> {
    Box::new(move |worker| {
        let process = *workers.get(worker)?;
        let alive = sched.state().processes[process].alive;
        Some((process, alive, beats.get(worker).copied().unwrap_or((0, 0))))
    })
}

/// I9: a claim is taken from one who lives only after it was silent for a lease.
fn early(
    holder: Holder,
    outages: &[(Us, Us)],
    claim: &ClaimName,
    mover: usize,
    now: Us,
) -> Option<String> {
    let (process, alive, (beat, before)) = holder(&claim.worker)?;
    // Whoever is paused between finding one dead and taking its claims acts late, which is safe.
    let was_away = {
        let state = here().sched.clone();
        let until = state.state().processes[mover].paused_until;
        until > 0 && now < until + 2 * LEASE
    };
    // One that wakes up while it is being buried has been silent long enough.
    // While the volume is away, nobody can be heard.
    let overlap = |(from, until): &(Us, Us)| (*until).min(now).saturating_sub((*from).max(beat));
    let since = now.saturating_sub(beat).saturating_sub(outages.iter().map(overlap).sum());
    let silent = if since < 2 * BEAT { since.max(before) } else { since };
    let early = process != mover && alive && !was_away && silent + STALE + BEAT / 2 < LEASE;
    early.then(|| {
        let silent = silent as f64 / 1e6;
        format!("I9: {} was taken from one who beat {silent:.1} s ago", claim.stem())
    })
}
