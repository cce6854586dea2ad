//! Tortures a fleet: real processes are killed, frozen, drained, and given wrong clocks and failing
//! disks, while runs and tasks keep coming. Then all faults end, and the judge checks each promise.
//!
//! The actions and their times follow from a seed. The scheduling of processes does not, so a seed
//! that fails once fails again most of the time, not always. A longer torture:
//!
//! `ORCHESTRATE_TORTURE=seed=7,seconds=15,runs=30 cargo test --test it -- torture/seed`
//!
//! It also takes `workers=`, `coordinators=`, and `machines`: each member then runs in process
//! namespaces of its own and without locks, as on a machine of its own.

mod judge;
mod members;
mod planted;
mod schedule;
mod scripts;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::world::{Dice, Started, World, trial};
use judge::{Facts, Promises, files_below};
use members::{Member, Role};
use schedule::{AGENTS, Action, Defects, Drop, Size};
use scripts::{SCRIPTS, STEP};

const BEAT_MS: u64 = 150;
const LEASE_MS: u64 = 900;
/// Time limit for a fleet without faults to finish everything.
const CALM: Duration = Duration::from_secs(60);
/// Time limit for a member to end on request.
const LEAVE: Duration = Duration::from_secs(20);

/// An action that follows another one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Later {
    Back(usize),
    Thaw(usize),
    Resume(usize),
    Cancel(String),
    /// The second half of a dropped file.
    Whole(PathBuf, String),
}

struct Torture {
    world: World,
    size: Size,
    members: Vec<Member>,
    dice: Dice,
    promises: Promises,
    paused: BTreeSet<usize>,
    /// Dropped files that are half written.
    half: BTreeMap<PathBuf, fs::File>,
    /// Actions with their times, the next one first.
    later: BinaryHeap<Reverse<(u64, Later)>>,
    actions: BTreeMap<&'static str, usize>,
    /// Cancellations, which wait for the end of their runs.
    cancels: Vec<Started>,
    wrong: Vec<String>,
    began: Instant,
}

/// Tortures a fleet in a fresh workspace. Fails, and keeps the workspace, if a promise is broken.
fn torture(size: Size) {
    let mut torture = Torture::begin(size);
    for (at, action) in schedule::schedule(size, LEASE_MS) {
        torture.wait_for(at);
        torture.act(&action);
    }
    torture.calm_down();
    torture.await_quiet();
    torture.conclude();
}

/// Writes workflows, settings, and the program of steps.
fn set_up(world: &World, seed: u64) {
    fs::create_dir(world.path("marks")).expect("a directory");
    for script in &SCRIPTS {
        world.write(&format!("{}.yaml", script.name), script.yaml);
    }
    world.write("prompt.md", "whole\n");
    world.write("trace", "");
    world.write("step", STEP);
    let durability = if seed.is_multiple_of(2) { "power" } else { "process" };
    let (beat, lease) = (BEAT_MS as f64 / 1000.0, LEASE_MS as f64 / 1000.0);
    // The torture kills members, so the deaths of its holders say nothing about a task.
    let settings = format!(
        "queue: {{ beat_sec: {beat}, lease_sec: {lease}, poll_ms: 20, idle_poll_ms: 300, \
         settle_ms: 30, drain_sec: 2, crash_limit: 1000 }}\ndurability: {durability}\n\
         limits: {{ grace_sec: 0.3 }}\nagents: {{ engineer: {{ provider: mine }}, \
         qa: {{ provider: mine }} }}\n\
         providers: {{ mine: {{ input_mode: stdin, \
         command: [sh, -c, './step asked && echo done'] }} }}\n"
    );
    world.write(".orchestrate/config.yaml", settings);
}

impl Torture {
    fn begin(size: Size) -> Torture {
        let world = World::new();
        set_up(&world, size.seed);
        let role = |number: usize| match number.checked_sub(size.coordinators) {
            None => Role::Coordinator,
            Some(worker) => Role::Worker(worker % AGENTS.len()),
        };
        let count = size.coordinators + size.workers;
        let members = (0..count).map(|n| Member::new(n, role(n), size.machines)).collect();
        let mut torture = Torture {
            world,
            size,
            members,
            // Not the sequence that the schedule is made of.
            dice: Dice::new(!size.seed),
            promises: Promises::default(),
            paused: BTreeSet::new(),
            half: BTreeMap::new(),
            later: BinaryHeap::new(),
            actions: BTreeMap::new(),
            cancels: Vec::new(),
            wrong: Vec::new(),
            began: Instant::now(),
        };
        (0..count).for_each(|number| torture.start(number));
        torture
    }

    fn start(&mut self, number: usize) {
        let defects = Defects::draw(&mut self.dice);
        if defects.disk.is_some() {
            self.count("failing disk");
        }
        self.members[number].start(&self.world, defects);
    }

    fn count(&mut self, what: &'static str) {
        *self.actions.entry(what).or_default() += 1;
    }

    fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    fn then(&mut self, after_ms: u64, later: Later) {
        self.later.push(Reverse((self.now_ms() + after_ms, later)));
    }

    /// Does the later actions that are due until a time has come.
    fn wait_for(&mut self, at: u64) {
        loop {
            let due = self.later.peek().map(|Reverse((due, _))| *due).filter(|due| *due <= at);
            let next = due.unwrap_or(at);
            std::thread::sleep(Duration::from_millis(next.saturating_sub(self.now_ms())));
            match due.and_then(|_| self.later.pop()) {
                Some(Reverse((_, later))) => self.follow_up(later),
                None => return,
            }
        }
    }

    fn act(&mut self, action: &Action) {
        match *action {
            Action::Submit { script, cancel_after_ms } => self.submit(script, cancel_after_ms),
            Action::Free { agent, well } => {
                let text = if well { "whole" } else { "fails" };
                if let Some(id) = self.call(&["enqueue", AGENTS[agent], text, "--quiet"]) {
                    self.promises.free.insert(id, well);
                }
            }
            Action::Drop { into, half_after_ms } => self.drop_in(into, half_after_ms),
            Action::Pause { agent, for_ms } => {
                self.call(&["queue", "pause", AGENTS[agent]]);
                self.paused.insert(agent);
                self.count("pause");
                self.then(for_ms, Later::Resume(agent));
            }
            Action::Kill { member, .. }
            | Action::Freeze { member, .. }
            | Action::Drain { member, .. }
                if !self.members[member].is_up() => {}
            Action::Kill { member, back_after_ms } => {
                self.members[member].kill();
                self.count("kill");
                self.then(back_after_ms, Later::Back(member));
            }
            Action::Freeze { member, for_ms } => {
                if !self.members[member].is_frozen {
                    self.members[member].freeze();
                    self.count(if for_ms > LEASE_MS { "long freeze" } else { "short freeze" });
                    self.then(for_ms, Later::Thaw(member));
                }
            }
            Action::Drain { member, twice, back_after_ms } => {
                self.members[member].ask_to_end();
                if twice {
                    self.members[member].ask_to_end();
                }
                self.count("drain");
                self.then(back_after_ms, Later::Back(member));
            }
        }
    }

    fn follow_up(&mut self, later: Later) {
        match later {
            // It still finishes its tasks.
            Later::Back(member) if self.members[member].is_up() => {
                self.then(100, Later::Back(member));
            }
            Later::Back(member) => self.start(member),
            Later::Thaw(member) => self.members[member].thaw(),
            Later::Resume(agent) => {
                self.paused.remove(&agent);
                self.call(&["queue", "resume", AGENTS[agent]]);
            }
            Later::Whole(path, half) => {
                // An open file stays the same file if a member moves it.
                if let Some(mut file) = self.half.remove(&path) {
                    file.write_all(half.as_bytes()).expect("the second half is written");
                }
            }
            // It waits for the members that work on the run, which may be frozen.
            Later::Cancel(run) => {
                self.count("cancel");
                self.cancels.push(self.world.start(&["cancel", &run]));
            }
        }
    }

    /// Runs a subcommand with a wrong clock, and returns its output. It must succeed.
    fn call(&mut self, arguments: &[&str]) -> Option<String> {
        let defects = Defects { disk: None, ..Defects::draw(&mut self.dice) };
        let mut command = members::command(&self.world, arguments, defects, self.size.machines);
        let output = command.output().expect("the program starts");
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            self.wrong.push(format!("{arguments:?}: {}: {stderr}", output.status));
            return None;
        }
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    fn submit(&mut self, script: usize, cancel_after_ms: u64) {
        let file = format!("{}.yaml", SCRIPTS[script].name);
        let Some(run) = self.call(&["submit", &file, "--quiet"]) else { return };
        if SCRIPTS[script].outcome == "cancelled" {
            self.then(cancel_after_ms, Later::Cancel(run.clone()));
        }
        self.promises.runs.insert(run, script);
    }

    /// Writes half of a file into an inbox.
    fn drop_in(&mut self, drop: Drop, half_after_ms: u64) {
        let name = format!("drop-{}.task", self.promises.drops.len());
        let (agent, [half, rest]) = match drop {
            Drop::Task(agent) => (AGENTS[agent], ["Do it,\n".to_owned(), "whole\n".to_owned()]),
            Drop::Run(script) => {
                let rest = format!("{}.yaml\n", SCRIPTS[script].name);
                ("coordinator", ["workflow: ".to_owned(), rest])
            }
        };
        let inbox = self.world.path("inbox").join(agent);
        fs::create_dir_all(&inbox).expect("an inbox");
        let path = inbox.join(&name);
        let mut file = fs::File::create(&path).expect("a file");
        file.write_all(half.as_bytes()).expect("the first half is written");
        self.half.insert(path.clone(), file);
        self.then(half_after_ms, Later::Whole(path, rest));
        self.promises.drops.insert(name, drop);
    }

    /// Ends all faults: replaces every member that is down or has a failing disk.
    fn calm_down(&mut self) {
        for Reverse((_, later)) in std::mem::take(&mut self.later) {
            if !matches!(later, Later::Back(_)) {
                self.follow_up(later);
            }
        }
        for agent in std::mem::take(&mut self.paused) {
            self.call(&["queue", "resume", AGENTS[agent]]);
        }
        for member in &mut self.members {
            member.thaw();
            if member.has_failing_disk {
                member.kill();
            }
        }
        self.keep_up_members();
    }

    /// Starts members without disk faults in the places of those that are down.
    fn keep_up_members(&mut self) {
        for member in &mut self.members {
            if !member.is_up() {
                let defects = Defects { disk: None, ..Defects::draw(&mut self.dice) };
                member.start(&self.world, defects);
            }
        }
    }

    /// Waits until no task waits or is claimed.
    fn await_quiet(&mut self) {
        let began = Instant::now();
        while !self.is_quiet() {
            if began.elapsed() > CALM {
                let seconds = CALM.as_secs();
                return self.wrong.push(format!("the fleet is not idle after {seconds} s of calm"));
            }
            std::thread::sleep(Duration::from_millis(20));
            self.keep_up_members();
        }
    }

    fn is_quiet(&self) -> bool {
        let is_empty = |dir: &str| {
            let done = Path::new(".orchestrate/intake/done");
            let files = files_below(&self.world.path(dir));
            files.iter().all(|path| path.starts_with(self.world.path("").join(done)))
        };
        // Twice, along the way of a task: it may go back to its inbox during the first look.
        let dirs = ["inbox", ".orchestrate/intake", ".orchestrate/claimed"];
        dirs.iter().chain(&dirs).all(|dir| is_empty(dir))
    }

    /// Judges the fleet, first while its members live, for what only living members may hold.
    fn conclude(mut self) {
        for cancel in std::mem::take(&mut self.cancels) {
            let outcome = cancel.wait();
            if outcome.exit != 0 {
                self.wrong.push(format!("a cancellation failed: {outcome:?}"));
            }
        }
        let mut damage = self.damage();
        self.end_members();
        damage.extend(self.damage());
        self.wrong.extend(damage);
        let facts = Facts::read(&self.world);
        self.wrong.extend(judge::judge(&self.promises, &facts));
        for pid in self.world.processes() {
            self.wrong.push(format!("process {pid} of a task was left running"));
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        let (executions, again) = judge::count_executions(&facts.trace);
        let seed = self.size.seed;
        let actions: Vec<_> = self.actions.iter().map(|(what, n)| format!("{n} {what}")).collect();
        eprintln!(
            "torture, seed {seed}: {} runs, {} tasks, {} files; {}; {executions} executions, \
             {again} of them again; {} broken promises",
            self.promises.runs.len(),
            self.promises.free.len(),
            self.promises.drops.len(),
            actions.join(", "),
            self.wrong.len(),
        );
        if !self.wrong.is_empty() {
            panic!("seed {seed}, kept in {}:\n{}", self.keep().display(), self.wrong.join("\n"));
        }
        assert!(self.actions.contains_key("kill"), "no member was killed");
    }

    /// The damage that `fsck` finds in a workspace whose work is done.
    fn damage(&mut self) -> BTreeSet<String> {
        let outcome = self.world.run(&["fsck", "--quiet-fleet", "--json"]);
        let report: Value = serde_json::from_str(&outcome.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}{}", outcome.stdout, outcome.stderr));
        let findings = report["findings"].as_array().expect("a list").iter();
        // The death of a process on another machine is certain only much later.
        let mild = |finding: &Value| self.size.machines && finding["kind"] == "left-tmp";
        let damage = findings.filter(|finding| finding["damage"] == true && !mild(finding));
        damage.map(Value::to_string).collect()
    }

    fn end_members(&mut self) {
        // Twice: a step that never ends delays its coordinator after the first request.
        self.members.iter_mut().for_each(Member::ask_to_end);
        self.members.iter_mut().for_each(Member::ask_to_end);
        for (number, member) in self.members.iter_mut().enumerate() {
            if !member.await_end(LEAVE) {
                let seconds = LEAVE.as_secs();
                self.wrong.push(format!("member {number} does not end within {seconds} s"));
                member.kill();
            }
        }
    }

    /// Copies the workspace and the logs to a place where they stay.
    fn keep(&self) -> PathBuf {
        let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("torture-{}", self.size.seed));
        let _ = fs::remove_dir_all(&to);
        let mut copy = self.world.command("cp");
        let _ = copy.arg("-a").arg(self.world.outside("")).arg(&to).status();
        to
    }
}

pub(crate) fn trials() -> Vec<Trial> {
    let sizes = match std::env::var("ORCHESTRATE_TORTURE") {
        Ok(text) => vec![Size::parse(&text)],
        Err(_) => vec![Size::parse("seed=1"), Size::parse("seed=2")],
    };
    let seeds = sizes.into_iter();
    let seeds =
        seeds.map(|size| trial(format!("torture/seed {}", size.seed), move || torture(size)));
    seeds.chain(planted::trials()).collect()
}
