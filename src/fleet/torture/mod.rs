//! Chaos on purpose: a real fleet in a scratch workspace, killed, frozen, drained, with wrong
//! clocks and failing disks, while runs and tasks keep coming. Then calm, and a look at whether
//! every promise was kept.
//!
//! What is done and when follows from a seed; what the machine makes of it does not, so a seed
//! that fails fails again most of the time, not always.

mod judge;
mod members;
mod plot;
mod scripts;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub(crate) use judge::Tally;
pub(crate) use members::Stage;
pub(crate) use plot::Size;

use super::member;
use crate::attempt::documents::{self, StepTask};
use crate::attempt::work::Work;
use crate::base::ids::{Attempt, RunId, StepPath};
use crate::base::random::Random;
use crate::base::time::{Clock, SystemClock};
use crate::disk;
use crate::engine::{RunStatus, TaskRef};
use crate::exec::{self, Stop};
use crate::health::fsck::{self, Calm, Finding, Kind, Report};
use crate::queue::{Layout, Queue};
use crate::workspace::Workspace;
use judge::Promises;
use members::{Member, Role};
use plot::{AGENTS, Deed, Drop, Temper};
use scripts::{SCRIPTS, STEP};

const BEAT_MS: u64 = 150;
const LEASE_MS: u64 = 900;
/// How long a fleet in calm may take to get everything done.
const CALM: Duration = Duration::from_secs(60);
/// How long a member may take to end when asked to.
const LEAVE: Duration = Duration::from_secs(20);
/// The run and the batch that free tasks say they are of.
const FREE: &str = "free";
const FREE_ROOT: &str = ".orchestrate/results/free";

/// What came of a torture.
#[derive(Debug)]
pub(crate) struct Verdict {
    /// Promises that were not kept.
    pub wrong: Vec<String>,
    /// What is not as it must be on disk.
    pub damage: Vec<Finding>,
    /// What is left over.
    pub notes: Vec<Finding>,
    pub runs: usize,
    pub free: usize,
    /// What was done, and how often.
    pub deeds: BTreeMap<&'static str, usize>,
    pub tally: Tally,
    /// How many statuses came too late.
    pub late: usize,
    pub stopped: bool,
}

impl Verdict {
    pub(crate) fn is_clean(&self) -> bool {
        self.wrong.is_empty() && self.damage.is_empty()
    }
}

/// Something that follows a deed, at its time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Later {
    Back(usize),
    Thaw(usize),
    Resume(usize),
    Cancel(String),
    /// The other half of a dropped file.
    Whole(PathBuf, String),
}

struct Torture {
    stage: Stage,
    queue: Queue,
    members: Vec<Member>,
    random: Random,
    promises: Promises,
    paused: BTreeSet<usize>,
    /// Dropped files that are still being written.
    half: BTreeMap<PathBuf, fs::File>,
    /// With their times, the next one first.
    later: BinaryHeap<std::cmp::Reverse<(u64, Later)>>,
    deeds: BTreeMap<&'static str, usize>,
    wrong: Vec<String>,
    began: Instant,
}

/// Tortures a fleet in the workspace of `stage`, which must be empty.
pub(crate) fn torture(
    stage: Stage,
    seed: u64,
    size: Size,
    stop: &Stop,
    say: &mut dyn FnMut(&str),
) -> io::Result<Verdict> {
    set_up(&stage.workspace, seed)?;
    let free_logs = stage.workspace.join(FREE_ROOT).join("logs");
    let mut torture = Torture::begin(stage, seed, size)?;
    // Only now that the queue has its name may there be anything of it.
    fs::create_dir_all(free_logs)?;
    let plot = plot::write(seed, size, SCRIPTS.len(), LEASE_MS);
    let whole = torture.play(&plot, stop)?;
    say("calm");
    torture.calm_down()?;
    let quiet = torture.await_quiet(stop)?;
    if !quiet && stop.level() > 0 {
        return Err(io::Error::other("it was stopped before all was quiet"));
    }
    if !quiet {
        torture.wrong.push(format!("it is not quiet after {} s of calm", CALM.as_secs()));
    }
    torture.verdict(!whole)
}

/// Writes workflows, settings and what steps execute.
fn set_up(workspace: &Path, seed: u64) -> io::Result<()> {
    for dir in [".orchestrate", "marks"] {
        fs::create_dir_all(workspace.join(dir))?;
    }
    for script in &SCRIPTS {
        fs::write(workspace.join(format!("{}.yaml", script.name)), script.yaml)?;
    }
    fs::write(workspace.join("prompt.md"), "Do nothing, and do it well.\n")?;
    fs::write(workspace.join("trace"), "")?;
    let step = workspace.join("step");
    fs::write(&step, STEP)?;
    fs::set_permissions(&step, fs::Permissions::from_mode(0o755))?;
    let durability = if seed.is_multiple_of(2) { "power" } else { "process" };
    let (beat, lease) = (BEAT_MS as f64 / 1000.0, LEASE_MS as f64 / 1000.0);
    // Members die of our doing, so a task over which many died is no poison here.
    let settings = format!(
        "queue: {{ beat_sec: {beat}, lease_sec: {lease}, poll_ms: 20, idle_poll_ms: 300, \
         settle_ms: 30, drain_sec: 2, crash_limit: 1000 }}\ndurability: {durability}\n\
         limits: {{ grace_sec: 0.3 }}\nagents: {{ engineer: {{ provider: mine }}, \
         qa: {{ provider: mine }} }}\n\
         providers: {{ mine: {{ input_mode: stdin, \
         command: [sh, -c, './step asked && echo done'] }} }}\n"
    );
    fs::write(workspace.join(".orchestrate/config.yaml"), settings)
}

impl Torture {
    fn begin(stage: Stage, seed: u64, size: Size) -> io::Result<Torture> {
        let layout = Layout::new(&stage.workspace);
        let (me, chance) = (crate::base::process::new_incarnation(), member::chance());
        let queue = Queue::open(disk::machine(), layout, &me, chance, true)?;
        fs::create_dir_all(stage.workspace.join(FREE_ROOT).join("logs"))?;
        let role = |number: usize| match number.checked_sub(size.coordinators) {
            None => Role::Coordinator,
            Some(worker) => Role::Worker(worker % AGENTS.len()),
        };
        let count = size.coordinators + size.workers;
        let members = (0..count).map(|n| Member::new(n, role(n), &stage)).collect();
        let mut torture = Torture {
            stage,
            queue,
            members,
            // Not the row that the plot is made of.
            random: Random::new(!seed),
            promises: Promises::default(),
            paused: BTreeSet::new(),
            half: BTreeMap::new(),
            later: BinaryHeap::new(),
            deeds: BTreeMap::new(),
            wrong: Vec::new(),
            began: Instant::now(),
        };
        for number in 0..count {
            torture.start(number)?;
        }
        Ok(torture)
    }

    fn start(&mut self, number: usize) -> io::Result<()> {
        let temper = Temper::draw(&mut self.random);
        self.members[number].start(temper)
    }

    fn count(&mut self, what: &'static str) {
        *self.deeds.entry(what).or_default() += 1;
    }

    fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    fn then(&mut self, after_ms: u64, later: Later) {
        let at = self.now_ms() + after_ms;
        self.later.push(std::cmp::Reverse((at, later)));
    }

    /// Plays the plot. Says whether to its end.
    fn play(&mut self, plot: &[(u64, Deed)], stop: &Stop) -> io::Result<bool> {
        for (at, deed) in plot {
            if !self.wait_for(*at, stop)? {
                return Ok(false);
            }
            self.act(deed)?;
        }
        Ok(true)
    }

    /// Does what is due until a time has come. Says whether it may go on then.
    fn wait_for(&mut self, at: u64, stop: &Stop) -> io::Result<bool> {
        loop {
            let due = self.later.peek().map(|std::cmp::Reverse((due, _))| *due);
            let next = due.map_or(at, |due| due.min(at));
            let rest = Duration::from_millis(next.saturating_sub(self.now_ms()));
            if !stop.sleep(rest) {
                return Ok(false);
            }
            if due.is_none_or(|due| due > at) {
                return Ok(true);
            }
            if let Some(std::cmp::Reverse((_, later))) = self.later.pop() {
                self.follow_up(later)?;
            }
        }
    }

    fn act(&mut self, deed: &Deed) -> io::Result<()> {
        match *deed {
            Deed::Submit { script, cancel_after_ms } => self.submit(script, cancel_after_ms),
            Deed::Free { agent, well } => self.put_out(agent, well),
            Deed::Drop { into, half_after_ms } => self.drop_in(into, half_after_ms),
            Deed::Kill { member, back_after_ms } => {
                if self.members[member].is_up() {
                    self.members[member].kill();
                    self.count("kill");
                    self.then(back_after_ms, Later::Back(member));
                }
                Ok(())
            }
            Deed::Freeze { member, for_ms } => {
                if self.members[member].is_up() && !self.members[member].is_frozen() {
                    self.members[member].freeze();
                    self.count(if for_ms > LEASE_MS { "long freeze" } else { "short freeze" });
                    self.then(for_ms, Later::Thaw(member));
                }
                Ok(())
            }
            Deed::Drain { member, twice, back_after_ms } => {
                if self.members[member].is_up() {
                    self.members[member].ask_to_end();
                    if twice {
                        self.members[member].ask_to_end();
                    }
                    self.count("drain");
                    self.then(back_after_ms, Later::Back(member));
                }
                Ok(())
            }
            Deed::Pause { agent, for_ms } => {
                self.queue.pause(AGENTS[agent], "torture")?;
                self.paused.insert(agent);
                self.count("pause");
                self.then(for_ms, Later::Resume(agent));
                Ok(())
            }
        }
    }

    fn follow_up(&mut self, later: Later) -> io::Result<()> {
        match later {
            Later::Back(member) if self.members[member].is_up() => {
                // It still finishes what it does.
                self.then(100, Later::Back(member));
                Ok(())
            }
            Later::Back(member) => self.start(member),
            Later::Thaw(member) => {
                self.members[member].thaw();
                Ok(())
            }
            Later::Resume(agent) => {
                self.paused.remove(&agent);
                self.queue.resume(AGENTS[agent])
            }
            Later::Whole(path, half) => {
                // What is written to follows the file, wherever it was moved.
                match self.half.remove(&path) {
                    Some(mut file) => file.write_all(half.as_bytes()),
                    None => Ok(()),
                }
            }
            Later::Cancel(run) => {
                self.count("cancel");
                self.queue.request_cancel(&run)
            }
        }
    }

    fn submit(&mut self, script: usize, cancel_after_ms: u64) -> io::Result<()> {
        let file = format!("{}.yaml", SCRIPTS[script].name);
        let temper = Temper { faults: None, ..Temper::draw(&mut self.random) };
        let (code, run) = self.stage.call(&["submit", &file, "--quiet"], temper)?;
        if code != Some(0) {
            self.wrong.push(format!("{file} could not be submitted: exit code {code:?}"));
            return Ok(());
        }
        if SCRIPTS[script].outcome == RunStatus::Cancelled {
            self.then(cancel_after_ms, Later::Cancel(run.clone()));
        }
        self.promises.runs.insert(run, script);
        Ok(())
    }

    /// Puts a task out that belongs to no run.
    fn put_out(&mut self, agent: usize, well: bool) -> io::Result<()> {
        let now = SystemClock.now();
        let id = self.queue.new_id(now.0 as u64).to_string();
        let reference =
            TaskRef { id, agent: AGENTS[agent].into(), ticket: crate::base::random::unguessable() };
        let what = if well { "well" } else { "bad" };
        let step = StepPath::top(&format!("Free{}", self.promises.free.len()));
        let task = StepTask {
            run_id: RunId::new("20000101T000000Z", 0),
            run_root: FREE_ROOT.into(),
            debug: false,
            masked: Vec::new(),
            ticket: reference.ticket.clone(),
            work: Work::new(step, Attempt::FIRST, vec!["./step".into(), what.into()]),
        };
        let task = documents::step_task(&reference, &task, 1000, now);
        let Some(mut task) = task else { return Err(io::Error::other("no task")) };
        task.batch = FREE.into();
        self.queue.enqueue(&[task])?;
        self.promises.free.insert(reference.id, well);
        Ok(())
    }

    /// Drops a file by hand, half of it now.
    fn drop_in(&mut self, drop: Drop, half_after_ms: u64) -> io::Result<()> {
        let name = format!("drop-{}.task", self.promises.drops.len());
        let (agent, halves) = match drop {
            Drop::Task(agent) => (AGENTS[agent], ["Do it,\n".to_owned(), "whole\n".to_owned()]),
            Drop::Run(script) => {
                let rest = format!("{}.yaml\n", SCRIPTS[script].name);
                (documents::COORDINATOR, ["workflow: ".to_owned(), rest])
            }
        };
        self.queue.open_agent(agent)?;
        let path = self.queue.layout.inbox(agent).join(&name);
        let mut file = fs::File::create(&path)?;
        let [half, rest] = halves;
        file.write_all(half.as_bytes())?;
        self.half.insert(path.clone(), file);
        self.then(half_after_ms, Later::Whole(path, rest));
        self.promises.drops.insert(name, drop);
        Ok(())
    }

    /// Ends all harm: everybody goes on or is replaced by somebody healthy.
    fn calm_down(&mut self) -> io::Result<()> {
        let later = std::mem::take(&mut self.later);
        for std::cmp::Reverse((_, later)) in later {
            if !matches!(later, Later::Back(_)) {
                self.follow_up(later)?;
            }
        }
        for agent in std::mem::take(&mut self.paused) {
            self.queue.resume(AGENTS[agent])?;
        }
        for number in 0..self.members.len() {
            let member = &mut self.members[number];
            member.thaw();
            if member.temper.faults.is_some() {
                member.kill();
            }
        }
        self.keep_up_members()
    }

    /// Starts healthy members where there are none.
    fn keep_up_members(&mut self) -> io::Result<()> {
        for member in &mut self.members {
            if !member.is_up() {
                let temper = Temper::draw(&mut self.random);
                member.start(Temper { faults: None, ..temper })?;
            }
        }
        Ok(())
    }

    /// Waits until nothing waits and nothing is held.
    fn await_quiet(&mut self, stop: &Stop) -> io::Result<bool> {
        let began = Instant::now();
        while !self.is_quiet()? {
            if began.elapsed() > CALM || !stop.sleep(Duration::from_millis(20)) {
                return Ok(false);
            }
            self.keep_up_members()?;
        }
        Ok(true)
    }

    fn is_quiet(&self) -> io::Result<bool> {
        // Twice, along the way that tasks go: one may go back while it is looked for.
        for _ in 0..2 {
            let layout = &self.queue.layout;
            let dropped = |dir: PathBuf| files_below(&dir, &|path| !path.ends_with("done"));
            if !dropped(layout.inboxes())?.is_empty() || !dropped(layout.intake())?.is_empty() {
                return Ok(false);
            }
            for agent in self.queue.agents()? {
                if self.queue.has_waiting(&agent)? || !self.queue.claims(&agent)?.is_empty() {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn verdict(mut self, stopped: bool) -> io::Result<Verdict> {
        let workspace = Workspace::open(&self.stage.workspace)?;
        let runs = self.stage.workspace.join(".orchestrate/runs");
        // Once while all members live, for what only the living may have; then without them.
        let alive = fsck::check(&workspace, &runs, Calm::Quiet)?;
        self.send_home();
        let report = fsck::check(&workspace, &runs, Calm::Quiet)?;
        let mut findings = alive.findings;
        findings.extend(report.findings.iter().cloned());
        findings.sort();
        findings.dedup();
        // That a process of another machine is gone for good is known much later.
        let machines = self.stage.machines;
        let mild = |finding: &Finding| machines && finding.kind == Kind::LeftTmp;
        let (damage, notes) = findings
            .into_iter()
            .partition(|finding| finding.kind.is_damage(Calm::Quiet) && !mild(finding));
        let trace = fs::read_to_string(self.stage.workspace.join("trace"))?;
        let executions = judge::executions(&trace);
        let adopted = adopted(&self.queue.layout.intake().join("done"))?;
        let (wrong, tally) = judge::judge(&self.promises, &report, &executions, &adopted);
        self.wrong.extend(wrong);
        let torn = fs::read_to_string(self.stage.workspace.join("torn")).unwrap_or_default();
        self.wrong.extend(judge::torn(&torn, &report));
        self.wrong.extend(judge::said(&self.logs()?));
        self.count_out(&report);
        let evidence = Layout::new(&self.stage.workspace).evidence();
        Ok(Verdict {
            damage,
            notes,
            runs: self.promises.runs.len(),
            free: self.promises.free.len(),
            late: fs::read_dir(evidence)?.count(),
            wrong: self.wrong,
            deeds: self.deeds,
            tally,
            stopped,
        })
    }

    /// All that members said.
    fn logs(&self) -> io::Result<String> {
        let files = files_below(&self.stage.beside, &|_| true)?;
        let texts = files.iter().filter_map(|path| fs::read(path).ok());
        Ok(texts.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).collect())
    }

    fn send_home(&mut self) {
        // Twice: a step that never ends by itself holds its coordinator up at the first request.
        self.members.iter().for_each(Member::ask_to_end);
        self.members.iter().for_each(Member::ask_to_end);
        for (number, member) in self.members.iter_mut().enumerate() {
            if !member.await_end(LEAVE) {
                let seconds = LEAVE.as_secs();
                self.wrong.push(format!("member {number} does not end within {seconds} s"));
                member.kill();
            }
        }
    }

    /// Nothing that was started may be left.
    fn count_out(&mut self, report: &Report) {
        let marks = RefCell::new(BTreeSet::new());
        let ours = |mark: &str| {
            let Some((owner, _)) = mark.split_once('/') else { return false };
            let known = match owner.strip_prefix("task-") {
                Some(id) => report.tree.find(id).is_some(),
                None => self.promises.runs.contains_key(owner),
            };
            known && {
                marks.borrow_mut().insert(mark.to_owned());
                true
            }
        };
        exec::sweep_if(&ours);
        let left = marks.into_inner().into_iter();
        self.wrong.extend(left.map(|mark| format!("processes of {mark} were left running")));
    }
}

/// The files that were taken in, as the intake calls them.
fn adopted(done: &Path) -> io::Result<Vec<String>> {
    let files = files_below(done, &|_| true)?;
    let names = files.iter().filter_map(|path| path.file_name());
    Ok(names.map(|name| name.to_string_lossy().into_owned()).collect())
}

/// All files below a directory, but for directories that are not wanted.
fn files_below(dir: &Path, wanted: &dyn Fn(&Path) -> bool) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut open = vec![dir.to_owned()];
    while let Some(dir) = open.pop() {
        // One that is gone again has none.
        let Ok(entries) = fs::read_dir(dir) else { continue };
        for entry in entries {
            let path = entry?.path();
            match path.is_dir() {
                true if wanted(&path) => open.push(path),
                true => {}
                false => found.push(path),
            }
        }
    }
    Ok(found)
}

/// Where the logs of members and the like lie, beside the workspace.
pub(crate) fn stage_in(
    dir: &Path,
    program: PathBuf,
    environment: BTreeMap<String, std::ffi::OsString>,
    clock_variable: &'static str,
    faults_variable: &'static str,
    machines: bool,
) -> io::Result<Stage> {
    let (workspace, beside) = (dir.join("workspace"), dir.join("beside"));
    for dir in [&workspace, &beside] {
        fs::create_dir_all(dir)?;
        if fs::read_dir(dir)?.next().is_some() {
            return Err(io::Error::other(format!("`{}` is not empty", dir.display())));
        }
    }
    let outer = |name: &str| name.starts_with("ORCHESTRATE_");
    let environment = environment.into_iter().filter(|(name, _)| !outer(name)).collect();
    let workspace = workspace.canonicalize()?;
    Ok(Stage { program, workspace, beside, environment, clock_variable, faults_variable, machines })
}
