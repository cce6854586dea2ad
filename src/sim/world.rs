//! A whole fleet on simulated machines: coordinators, workers, people, and what befalls them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::errno::Errno;

use super::judge::{BEAT, FORGED, Judge, LEASE};
use super::plant::Fault;
use super::sched::{self, Here, Machine, Prepare, SECOND, Sched, Us, here};
use super::script::{self, AGENTS, Story};
use super::volume::{STALE, Volume, Weather};
use crate::attempt::documents::{self, RunTask};
use crate::attempt::exec_env::Site;
use crate::attempt::gates::{self, AnswerFile};
use crate::attempt::perform::{self, Performed};
use crate::attempt::work::Work;
use crate::base::host::Simulated;
use crate::base::ids::{Attempt, RunId, StepPath};
use crate::base::process::new_incarnation;
use crate::base::random::{Random, chance, nth};
use crate::base::time::{Clock, SystemClock};
use crate::disk::{self, Confirming, Disk};
use crate::engine::record::Metrics;
use crate::engine::run::{Origin, Policy, StepState};
use crate::engine::{Choice, Event, Fault as StepFault, Record, Run, RunStatus, StepStatus};
use crate::exec::Stop;
use crate::fleet::coordinator::{self, Coordinator, Left, Reports};
use crate::fleet::member::{self, claim_of as check_mark};
use crate::fleet::worker::{self, Audience, Doing, Until};
use crate::queue::{ClaimName, Layout, Queue, seal};
use crate::run::drive::Report;
use crate::run::open;
use crate::settings::{Config, Layer};
use crate::store::{DEFINITION, History, SETTINGS, Store};
use crate::workflow::Plan;
use crate::workspace::Workspace;

/// What befalls a fleet, by its seed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fate {
    pub shared: bool,
    pub durable: bool,
    pub kills: bool,
    pub pauses: bool,
    pub errors: bool,
    pub cuts: bool,
    pub full: bool,
    pub slow: bool,
    /// Clocks of the day are set, forward and back.
    pub set_clocks: bool,
    /// The network volume is away for a while.
    pub outages: bool,
}

impl Fate {
    fn of(random: &mut Random) -> Fate {
        let shared = random.coin();
        let calm = random.below(12) == 0;
        let mut some = |of: usize| !calm && random.below(of) == 0;
        let (kills, pauses, errors) = (some(2), some(2), some(2));
        let (cuts, full, slow) = (some(3), some(5), some(4));
        let (set_clocks, outages) = (some(4), some(4) && shared);
        let durable = cuts || random.coin();
        Fate { shared, durable, kills, pauses, errors, cuts, full, slow, set_clocks, outages }
    }

    fn is_calm(&self) -> bool {
        let calls = self.errors || self.full || self.slow || self.outages;
        !(calls || self.kills || self.pauses || self.cuts || self.set_clocks)
    }
}

/// What came of a seed.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub violations: Vec<String>,
    pub runs: usize,
    pub executions: usize,
    pub operations: u64,
    pub failed_calls: u64,
    pub calls: u64,
    pub kills: usize,
    pub pauses: usize,
    pub cuts: usize,
    /// The same for the same seed.
    pub sum: u64,
    pub told: Vec<String>,
}

/// A run that a person submitted.
struct Submitted {
    id: RunId,
    story: Story,
    /// The process that submits it.
    by: usize,
    cancelled: bool,
}

/// A member of the fleet, which is started again when it has died.
#[derive(Clone, Copy)]
struct Seat {
    agent: Option<&'static str>,
    host: usize,
    process: usize,
    /// When it is started again.
    again: Us,
}

struct World {
    sched: Arc<Sched>,
    volume: Arc<Volume>,
    judge: Arc<Judge>,
    root: PathBuf,
    config: Config,
    planted: Fault,
    seats: Vec<Seat>,
    random: Random,
    fate: Fate,
    runs: Vec<Submitted>,
    /// When faults stopped.
    calm_since: Us,
    /// Executions take a moment only.
    quick: bool,
    outcome: Outcome,
}

/// How soon a member hears what people ask for.
const CONTROL: Us = 5 * SECOND;
/// How long anything may fail, and how long all may take after that.
const SAFETY: Us = 25 * SECOND;
const LIVENESS: Us = 240 * SECOND;

/// Plays one seed.
pub(super) fn play(seed: u64, root: &Path, planted: Fault, traces: bool) -> Outcome {
    let mut random = Random::new(seed);
    let mut fate = Fate::of(&mut random);
    steer(&mut fate, planted);
    play_in(seed, random, fate, root, planted, traces, World::go)
}

/// Plays one quiet run of a small fleet, whose coordinator dies over it, with one call of the disk
/// that fails: the number of the call, how it fails, and whether it did what was asked.
pub(super) fn play_failing(root: &Path, call: (u64, Errno, bool), traces: bool) -> Outcome {
    let fate = Fate { durable: true, kills: true, ..Fate::default() };
    let random = Random::new(1);
    play_in(1, random, fate, root, Fault::Nothing, traces, |world| world.go_quietly(call))
}

/// Plays one quiet run of many tasks on a volume so slow that publishing them takes longer than a
/// lease.
pub(super) fn play_wide(root: &Path, tasks: usize) -> Outcome {
    let fate = Fate { shared: true, ..Fate::default() };
    play_in(1, Random::new(1), fate, root, Fault::Nothing, false, |world| world.go_wide(tasks))
}

fn play_in(
    seed: u64,
    mut random: Random,
    fate: Fate,
    root: &Path,
    planted: Fault,
    traces: bool,
    go: impl FnOnce(&mut World),
) -> Outcome {
    let hosts = if fate.shared { 3 } else { 1 };
    let machine = |random: &mut Random| Machine {
        wall_off_ms: off_ms(random),
        up_ms: random.below(1_000_000) as u64,
        boots: 1,
        one_clock: planted == Fault::LeaseByWallClock,
    };
    let machines = (0..hosts).map(|_| machine(&mut random)).collect();
    let sched = Sched::new(seed, machines);
    let judge = Judge::new(root, sched.clone(), traces);
    let volume = Volume::new(sched.clone(), judge.clone(), nth(seed, 7), fate.shared, planted);
    let mut config = Config::built_in();
    config.durable = fate.durable;
    config.queue.beat = Duration::from_micros(BEAT);
    config.queue.lease = Duration::from_micros(LEASE);
    let outcome = Outcome::default();
    let mut world = World {
        sched,
        volume,
        judge,
        root: root.to_owned(),
        config,
        planted,
        seats: Vec::new(),
        random,
        fate,
        runs: Vec::new(),
        calm_since: 0,
        quick: false,
        outcome,
    };
    world.judge.trace(|| format!("{fate:?}"));
    sched::enter(
        Arc::new(Here { sched: world.sched.clone(), process: 0, actor: 0 }),
        world.prepare(),
    );
    go(&mut world);
    world.sched.end();
    sched::leave();
    perform::simulate(None);
    let mut outcome = world.outcome;
    outcome.violations = world.judge.violations();
    outcome.told = world.judge.told();
    outcome.executions = world.judge.executions();
    let state = world.sched.state();
    (outcome.operations, outcome.sum) = (state.operations, state.sum);
    if state.sum == 0 {
        outcome.violations.push("a thread panicked".into());
    }
    let image = world.volume.image();
    (outcome.failed_calls, outcome.calls) = (image.failed_calls, image.calls);
    outcome
}

/// How far a machine's clock is off: an hour at most.
fn off_ms(random: &mut Random) -> i64 {
    random.below(7_200_000) as i64 - 3_600_000
}

/// A planted fault shows only in the weather that it is about.
fn steer(fate: &mut Fate, planted: Fault) {
    match planted {
        Fault::NoDirectorySync
        | Fault::NoSync
        | Fault::TornTailKept
        | Fault::MarkerUnsynced
        | Fault::AnswerUnsynced => {
            (fate.shared, fate.durable, fate.cuts) = (false, true, true);
        }
        Fault::NoFence | Fault::OneJournal => fate.pauses = true,
        Fault::CancelUnheard => {
            (fate.kills, fate.pauses, fate.errors) = (false, false, false);
            (fate.cuts, fate.full, fate.slow) = (false, false, false);
            (fate.set_clocks, fate.outages) = (false, false);
        }
        Fault::CompleteBeforeStatus | Fault::AcknowledgedEarly | Fault::SnapshotAhead => {
            fate.kills = true;
        }
        Fault::HastyReaper | Fault::BelievesAbsence => fate.shared = true,
        Fault::DeadBeat => (fate.shared, fate.kills) = (true, true),
        Fault::LeaseByWallClock => {
            (fate.shared, fate.pauses, fate.set_clocks) = (true, true, false);
        }
        _ => {}
    }
}

impl World {
    fn prepare(&self) -> Prepare {
        let (disk, judge) = (self.disk(), self.judge.clone());
        let quick = self.quick;
        let hands: perform::Script =
            Arc::new(move |site, work, mark, stop| execute(&judge, quick, site, work, mark, stop));
        let slot: Arc<Mutex<Option<Prepare>>> = Arc::default();
        let own = slot.clone();
        let prepare: Prepare = Arc::new(move |here| {
            let prepare = own.lock().unwrap().clone().expect("it was made");
            sched::enter(here, prepare);
            disk::simulate(Some(disk.clone()));
            perform::simulate(Some(hands.clone()));
        });
        *slot.lock().unwrap() = Some(prepare.clone());
        disk::simulate(Some(self.disk()));
        prepare
    }

    /// The volume as processes see it.
    fn disk(&self) -> Arc<dyn Disk> {
        match self.planted {
            Fault::BelievesAbsence => self.volume.clone(),
            _ => Arc::new(Confirming::new(self.volume.clone())),
        }
    }

    fn wait(&self, time: Us) {
        here().wait(Duration::from_micros(time), &mut || false);
    }

    /// Lets a process do something.
    fn process(&self, host: usize, work: impl FnOnce(usize) + Send + 'static) -> usize {
        let process = self.sched.begin_process(host);
        let prepare = self.prepare();
        self.sched.start(
            process,
            move |here| prepare(here),
            move || {
                work(process);
                // Whatever its other threads do ends with it.
                here().sched.kill(process);
            },
        );
        process
    }

    fn any_host(&mut self) -> usize {
        let hosts = self.sched.state().machines.len();
        self.random.below(hosts)
    }

    fn go(&mut self) {
        let seats: [Option<&'static str>; 5] =
            [None, Some(AGENTS[0]), Some(AGENTS[1]), None, Some(AGENTS[0])];
        let count = 3 + self.random.below(3);
        for agent in &seats[..count] {
            let host = self.any_host();
            self.seats.push(Seat { agent: *agent, host, process: 0, again: 0 });
        }
        self.start_seats();
        for _ in 0..1 + self.random.below(2) {
            self.submit();
        }
        self.befall();
        self.recover();
        self.judge_all();
    }

    /// One run with everything in it that goes through the disk, and one call that fails. Whoever
    /// ends because of that is followed by another; a person who was told of it tries again.
    fn go_quietly(&mut self, call: (u64, Errno, bool)) {
        self.quick = true;
        self.volume.image().weather.failing = Some(call);
        for agent in [None, Some(AGENTS[1])] {
            self.seats.push(Seat { agent, host: 0, process: 0, again: 0 });
        }
        self.submit_story(script::quiet());
        let mut killed = false;
        let until = self.sched.now() + LIVENESS;
        // Who may not read a file is told, and the file put where people find it.
        let barred = call.1 == Errno::EACCES;
        let is_told = |world: &World| barred && !world.judge.has_open() && world.is_told_of_bar();
        let is_over =
            |world: &World| world.acknowledged_runs() > 0 && (world.all_over() || is_told(world));
        while self.sched.now() < until && !is_over(self) {
            self.start_seats();
            self.wait(BEAT / 20);
            let now = self.sched.now();
            self.seats.iter_mut().for_each(|seat| seat.again = seat.again.min(now));
            self.answer();
            if !self.is_submitting() && self.acknowledged_runs() == 0 && self.runs.len() < 3 {
                self.submit_story(script::quiet());
            }
            // Whoever comes next takes the run up.
            if !killed && self.judge.executions() > 0 {
                killed = true;
                self.sched.kill(self.seats[0].process);
            }
        }
        if !is_over(self) {
            self.judge.violation("I11: not everything came to an end".into());
        }
        if is_told(self) {
            self.judge.look_at_tree(&self.volume.files(&self.root));
        } else {
            self.judge_all();
        }
    }

    /// One run whose tasks are all owed at once.
    fn go_wide(&mut self, tasks: usize) {
        self.quick = true;
        self.volume.image().weather.latency = 10_000;
        for agent in [None, Some(AGENTS[0]), Some(AGENTS[0])] {
            let host = self.any_host();
            self.seats.push(Seat { agent, host, process: 0, again: 0 });
        }
        self.start_seats();
        self.submit_story(script::wide(tasks));
        let until = self.sched.now() + LIVENESS;
        let is_over = |world: &World| world.acknowledged_runs() > 0 && world.all_over();
        while self.sched.now() < until && !is_over(self) {
            self.wait(BEAT);
        }
        if !is_over(self) {
            self.judge.violation("I11: not everything came to an end".into());
        }
        self.judge_all();
    }

    /// Whether a task failed with the reason that a file may not be read.
    fn is_told_of_bar(&self) -> bool {
        let failed = self.volume.files(&self.root.join("failed"));
        let says = |bytes: &[u8]| String::from_utf8_lossy(bytes).contains("Permission denied");
        failed.iter().any(|(path, bytes)| path.to_string_lossy().ends_with(".json") && says(bytes))
    }

    fn is_submitting(&self) -> bool {
        let state = self.sched.state();
        self.runs.last().is_some_and(|run| state.processes[run.by].alive)
    }

    fn acknowledged_runs(&self) -> usize {
        self.judge.acknowledged_of("submit ").len()
    }

    fn start_seats(&mut self) {
        let now = self.sched.now();
        for number in 0..self.seats.len() {
            let seat = self.seats[number];
            let alive = seat.process > 0 && self.sched.state().processes[seat.process].alive;
            if alive {
                continue;
            }
            if seat.process > 0 && seat.again == 0 {
                self.seats[number].again = now + self.random.below(6_000_000) as Us;
                continue;
            }
            if seat.again > now {
                continue;
            }
            let process = self.start_seat(seat);
            self.seats[number] = Seat { process, again: 0, ..seat };
        }
    }

    fn start_seat(&self, seat: Seat) -> usize {
        let (judge, root, config) = (self.judge.clone(), self.root.clone(), self.config.clone());
        let planted = self.planted;
        self.process(seat.host, move |process| {
            let served = match seat.agent {
                None => drive(&judge, &root, config, process, planted),
                Some(agent) => work(&judge, &root, config, process, agent),
            };
            if let Err(error) = served {
                judge.trace(|| format!("{process} ended: {error}"));
            }
        })
    }

    /// A person submits a run, as `submit` does it.
    fn submit(&mut self) {
        let story = script::story(&mut self.random);
        let process = self.submit_story(story);
        if self.fate.kills && self.random.below(6) == 0 {
            let after = self.random.below(40) as u64;
            self.sched.state().processes[process].kill_in = Some(after);
        }
    }

    fn submit_story(&mut self, story: Story) -> usize {
        let id = RunId::new(&format!("20250115T1430{:02}Z", self.runs.len()), self.random.draw());
        let (judge, root, config) = (self.judge.clone(), self.root.clone(), self.config.clone());
        let (told, run, early) =
            (story.clone(), id.clone(), self.planted == Fault::AcknowledgedEarly);
        let to_agent = self.random.coin();
        let host = self.any_host();
        self.judge.trace(|| format!("submit {id} on {host}: {:?}\n{}", story.status, story.text));
        let process = self.process(host, move |process| {
            if early {
                judge.acknowledge(format!("submit {run}"));
            }
            match submit(&judge, &root, &config, process, &run, &told, to_agent) {
                Ok(()) => judge.acknowledge(format!("submit {run}")),
                Err(error) => judge.trace(|| format!("not submitted: {error}")),
            }
        });
        self.runs.push(Submitted { id, story, by: process, cancelled: false });
        process
    }

    /// Anything may fail.
    fn befall(&mut self) {
        while self.sched.now() < SAFETY {
            let nap = 50_000 + self.random.below(1_500_000) as Us;
            self.wait(nap);
            self.start_seats();
            self.change_weather();
            let living = self.living();
            if !living.is_empty() {
                let process = living[self.random.below(living.len())];
                let after = self.random.below(120) as u64;
                if self.fate.kills && self.random.below(4) == 0 {
                    self.sched.state().processes[process].kill_in = Some(after);
                    self.outcome.kills += 1;
                }
                if self.fate.pauses && self.random.below(4) == 0 {
                    let time = self.random.below(3 * LEASE as usize) as Us;
                    self.sched.state().processes[process].pause_in = Some((after, time));
                    self.outcome.pauses += 1;
                }
            }
            if self.fate.cuts && self.random.below(8) == 0 {
                self.cut_power();
            }
            if self.fate.set_clocks && self.random.below(6) == 0 {
                let (host, off) = (self.any_host(), off_ms(&mut self.random));
                self.judge.trace(|| format!("the clock of machine {host} is set, {off} ms off"));
                self.sched.state().machines[host].wall_off_ms = off;
            }
            if self.planted == Fault::LeaseByWallClock {
                self.creep_clocks();
            }
            self.be_a_person();
            if self.sched.now() > 8 * SECOND && self.all_over() {
                return;
            }
        }
    }

    /// Sets every clock forward by less than the gap that restarts an observation, so that a lease
    /// measured by it ends early.
    fn creep_clocks(&mut self) {
        let step_ms = LEASE as i64 / 3 / 1000 - BEAT as i64 / 1000 - 100;
        self.sched.state().machines.iter_mut().for_each(|machine| machine.wall_off_ms += step_ms);
    }

    fn living(&self) -> Vec<usize> {
        let state = self.sched.state();
        let processes = self.seats.iter().map(|seat| seat.process);
        processes.filter(|process| *process > 0 && state.processes[*process].alive).collect()
    }

    fn change_weather(&mut self) {
        let fate = self.fate;
        let stale = if fate.shared && !fate.is_calm() { STALE } else { 0 };
        let errors =
            if fate.errors && self.random.coin() { self.random.below(40) as u64 } else { 0 };
        let full = fate.full && self.random.below(10) == 0;
        let now = self.sched.now();
        let time = self.random.below(3_000_000) as Us;
        let hosts = self.sched.state().machines.len();
        let mut image = self.volume.image();
        let cut_off = match fate.outages && image.weather.cut_off.1 < now && image.toss(10) {
            true => {
                let cut_off = (image.pick(hosts), now + 6 * time);
                self.judge
                    .trace(|| format!("machine {} is cut off for {} us", cut_off.0, 6 * time));
                cut_off
            }
            false => image.weather.cut_off,
        };
        let full_until = if full { now + time } else { image.weather.full_until };
        let mut away_until = image.weather.away_until;
        if fate.outages && away_until < now && image.toss(10) {
            away_until = now + 3 * time;
            self.judge.goes_away(away_until);
        }
        let slow = fate.slow;
        image.weather =
            Weather { errors, stale, full_until, away_until, cut_off, slow, ..Weather::default() };
    }

    /// The power of a machine fails, with all that runs on it.
    fn cut_power(&mut self) {
        let host = self.any_host();
        self.judge.trace(|| format!("the power of machine {host} fails"));
        let count = self.sched.state().processes.len();
        for process in 1..count {
            if self.sched.state().processes[process].host == host {
                self.sched.kill(process);
            }
        }
        self.volume.lose_power(host);
        self.sched.state().machines[host].boots += 1;
        let files = self.volume.files(&self.root);
        self.judge.after_power_cut(&files);
        self.outcome.cuts += 1;
    }

    /// People answer, cancel, drain, look, submit another run, or forge a status.
    fn be_a_person(&mut self) {
        self.answer();
        self.look();
        if self.random.below(25) == 0 {
            self.drain();
        }
        if self.runs.len() < 3 && self.random.below(12) == 0 {
            self.submit();
        }
        if self.random.below(10) == 0 {
            self.forge();
        }
        if self.random.below(25) == 0 {
            let number = self.random.below(self.runs.len());
            self.runs[number].cancelled = true;
            let run = self.runs[number].id.clone();
            let (judge, root, durable) = (self.judge.clone(), self.root.clone(), self.fate.durable);
            let host = self.any_host();
            self.process(host, move |process| {
                let queue = open_queue(&judge, &root, process, durable);
                match queue.and_then(|queue| queue.request_cancel(run.as_str())) {
                    Ok(()) => judge.acknowledge(format!("cancel {run}")),
                    Err(error) => judge.trace(|| format!("not cancelled: {error}")),
                }
            });
        }
    }

    /// A person looks up what is not there yet, from any machine: a shell's `stat`, which believes
    /// what it is told. The machine remembers the answer.
    fn look(&mut self) {
        let number = self.random.below(self.runs.len());
        let run = self.runs[number].id.as_str();
        let own = self.root.join(".orchestrate");
        let paths = [
            self.root.join("processed").join(run),
            self.root.join("failed").join(run),
            own.join("cancelled").join(run),
            own.join("runs").join(run).join("control"),
            own.join("drain"),
            own.join("runs"),
        ];
        let path = paths[self.random.below(paths.len())].clone();
        let (host, volume) = (self.any_host(), self.volume.clone());
        self.process(host, move |_| _ = volume.mode(&path));
    }

    /// A person asks a member to finish what it does and end.
    fn drain(&mut self) {
        let number = self.random.below(self.seats.len());
        let Some(worker) = self.judge.worker_of(self.seats[number].process) else { return };
        let (judge, root, durable) = (self.judge.clone(), self.root.clone(), self.fate.durable);
        let host = self.any_host();
        self.process(host, move |process| {
            let queue = open_queue(&judge, &root, process, durable);
            match queue.and_then(|queue| member::ask_to_drain(&queue, &worker)) {
                Ok(()) => judge.acknowledge(format!("drain {worker}")),
                Err(error) => judge.trace(|| format!("not drained: {error}")),
            }
        });
    }

    /// Judges how soon members heard what people asked for, where nothing failed.
    fn judge_control(&self) {
        if !self.fate.is_calm() {
            return;
        }
        // A coordinator that is being drained finishes what it executes and hears nothing else.
        let drained = !self.judge.acknowledged_of("drain ").is_empty();
        let kinds: &[&str] = if drained { &["drain "] } else { &["approve "] };
        for kind in kinds {
            for what in self.judge.acknowledged_of(kind) {
                let what = format!("{kind}{what}");
                let asked = self.judge.acknowledged(&what).unwrap_or_default();
                // A run that was cancelled meanwhile hears no answer any more.
                let over = what.split(' ').nth(1).and_then(|run| self.judge.ended_at(run));
                let heard = self.judge.heard_at(&what).or(over).unwrap_or(self.sched.now());
                if heard > asked + CONTROL {
                    let late = (heard - asked) as f64 / 1e6;
                    self.judge.violation(format!("{what} was heard after {late:.1} s"));
                }
            }
        }
    }

    /// A stranger leaves a status beside where a task that somebody holds will end.
    fn forge(&mut self) {
        let dir = self.root.join(".orchestrate/claimed").join(AGENTS[self.random.below(2)]);
        let files = self.volume.files(&dir);
        let Some((path, bytes)) = files.first() else { return };
        let Some(task) = seal::unseal(bytes) else { return };
        let name = path.file_name().and_then(|name| ClaimName::parse(name.to_str()?));
        let (Some(name), Some(run)) = (name, task.get("run_id").and_then(|run| run.as_str()))
        else {
            return;
        };
        let batch = self.root.join("processed").join(run);
        let (output, metrics) = (Some(FORGED.to_owned()), Some(Metrics::default()));
        let status = StepStatus::Completed;
        let record = Record { status, exit_code: Some(0), output, metrics, ..Record::default() };
        let status = serde_json::json!({
            "schema": "status/v1", "task_id": name.task.id.as_str(), "ticket": "guessed",
            "record": record,
        });
        let forged = seal::seal(status.as_object().expect("it is one"));
        let target = batch.join(name.status());
        let host = self.any_host();
        self.judge.trace(|| format!("a status is forged for {}", name.stem()));
        self.process(host, move |_| {
            let disk = disk::machine();
            let _ = disk.make_dirs(&batch);
            disk.write_new(&[(target, forged)], true);
        });
    }

    /// Answers every gate that is open, as `approve` does.
    fn answer(&mut self) {
        for number in 0..self.runs.len() {
            if !self.runs[number].story.gates || !self.random.coin() {
                continue;
            }
            let run = self.runs[number].id.clone();
            let (judge, root) = (self.judge.clone(), self.root.clone());
            let host = self.any_host();
            self.process(host, move |_| answer_gates(&judge, &root, &run));
        }
    }

    /// Faults stop: everything must come to its end.
    fn recover(&mut self) {
        self.judge.trace(|| "faults stop".into());
        self.volume.image().weather = Weather::default();
        {
            let mut state = self.sched.state();
            let now = state.now;
            for process in &mut state.processes {
                (process.kill_in, process.pause_in) = (None, None);
                process.paused_until = process.paused_until.min(now);
            }
        }
        self.calm_since = self.sched.now();
        let until = self.calm_since + LIVENESS;
        while self.sched.now() < until {
            self.wait(BEAT / 2);
            for seat in &mut self.seats {
                seat.again = seat.again.min(self.sched.now());
            }
            self.start_seats();
            self.answer();
            if self.all_over() {
                return;
            }
        }
        self.judge.violation("I11: not everything came to an end".into());
    }

    fn all_over(&self) -> bool {
        let over = |run: &Submitted| {
            self.judge.acknowledged(&format!("submit {}", run.id)).is_none()
                || self.ended(run).is_some()
        };
        self.runs.iter().all(over) && !self.judge.has_open()
    }

    /// How a run's own task ended.
    fn ended(&self, run: &Submitted) -> Option<()> {
        for end in ["processed", "failed", ".orchestrate/cancelled"] {
            let dir = self.root.join(end).join(run.id.as_str());
            let files = self.volume.files(&dir);
            let is_run = |bytes: &[u8]| {
                let task = seal::unseal(bytes);
                task.is_some_and(|task| task.get("kind").is_some_and(|kind| kind == "run"))
            };
            if files
                .iter()
                .any(|(path, bytes)| path.extension().is_some_and(|e| e == "task") && is_run(bytes))
            {
                return Some(());
            }
        }
        None
    }

    fn judge_all(&mut self) {
        self.judge_control();
        let files = self.volume.files(&self.root);
        self.judge.look_at_tree(&files);
        let runs = std::mem::take(&mut self.runs);
        self.outcome.runs = runs.len();
        for run in &runs {
            if self.judge.acknowledged(&format!("submit {}", run.id)).is_some() {
                self.judge_run(run);
            }
        }
    }

    fn judge_run(&self, run: &Submitted) {
        let id = &run.id;
        let root = self.root.join(".orchestrate/runs").join(id.as_str());
        let workspace = Workspace::open(&self.root).expect("it is there");
        let (plan, looked) = match open::look(&workspace, &root) {
            Ok(looked) => looked,
            Err(error) => return self.judge.violation(format!("run {id} is lost: {error}")),
        };
        let cancelled = looked.status == RunStatus::Cancelled && run.cancelled;
        if looked.status != run.story.status && !cancelled {
            let (is, must) = (looked.status, run.story.status);
            let error = looked.error.clone().unwrap_or_default();
            self.judge.violation(format!("run {id} is {is:?}, not {must:?}: {error}"));
        }
        if let Some(asked) = self.judge.acknowledged(&format!("cancel {id}")) {
            // Whoever drives it hears of it with its next beat. Where anything may have failed, a
            // dead owner has to be found out first, once faults have stopped.
            let heard = match self.fate.is_calm() {
                true => asked + 4 * BEAT,
                false => asked.max(self.calm_since) + 3 * LEASE,
            };
            let ended = self.judge.ended_at(id.as_str()).unwrap_or(0);
            if looked.status != RunStatus::Cancelled && ended > heard {
                self.judge.violation(format!("run {id} was to be cancelled, and ended otherwise"));
            }
            if self.judge.began_after(id.as_str(), heard) {
                self.judge.violation(format!("run {id} was to be cancelled, and went on"));
            }
        }
        let history = match History::read(&*self.volume, &root) {
            Ok(history) => history,
            Err(error) => return self.judge.violation(format!("run {id}: {error}")),
        };
        // The state may know more than the journal, which a power cut can cut short.
        let slots = looked.slots().into_iter();
        let settled = slots.filter(|(_, slot)| slot.state == StepState::Settled);
        let settled = settled.map(|(here, _)| here.path(&plan).to_string()).collect();
        self.judge_history(run, &history, &settled, cancelled);
    }

    fn judge_history(
        &self,
        run: &Submitted,
        history: &History,
        settled: &BTreeSet<String>,
        cancelled: bool,
    ) {
        let id = &run.id;
        let mut ended: BTreeMap<(String, Attempt), usize> = BTreeMap::new();
        let mut completed: BTreeMap<String, usize> = BTreeMap::new();
        for entry in &history.entries {
            match &entry.event {
                Event::Launched { step, .. } if completed.contains_key(&step.to_string()) => {
                    self.judge.violation(format!("run {id}: {step} was begun after it completed"));
                }
                Event::Ended { step, attempt, record } => {
                    *ended.entry((step.to_string(), *attempt)).or_default() += 1;
                    if record.status == StepStatus::Completed {
                        *completed.entry(step.to_string()).or_default() += 1;
                    }
                }
                _ => {}
            }
        }
        for ((step, attempt), times) in ended.iter().filter(|(_, times)| **times > 1) {
            self.judge.violation(format!("run {id}: {step}#{attempt} ended {times} times"));
        }
        let executed = self.judge.executions_of(id.as_str());
        for step in executed.keys().filter(|step| !run.story.executed.contains(*step)) {
            self.judge.violation(format!("run {id}: {step} must not be executed"));
        }
        if cancelled || run.story.vetoed {
            return;
        }
        for step in &run.story.executed {
            if !settled.contains(step) {
                self.judge.violation(format!("run {id}: {step} has no result"));
            }
            let times = executed.get(step).copied().unwrap_or(0);
            let tries = if step.contains("flaky") { 3 } else { 1 };
            if self.fate.is_calm() && times != tries {
                self.judge.violation(format!(
                    "run {id}: {step} was executed {times} times, and all was calm"
                ));
            }
        }
    }
}

fn open_queue(judge: &Judge, root: &Path, process: usize, durable: bool) -> io::Result<Arc<Queue>> {
    let me = new_incarnation();
    judge.joined(&me, process);
    let layout = Layout::new(root);
    Ok(Arc::new(Queue::open(disk::machine(), layout, &me, chance(), durable)?))
}

fn lease(config: &mut Config, planted: Fault) {
    if planted == Fault::HastyReaper {
        config.queue.beat = Duration::from_millis(20);
        config.queue.lease = Duration::from_millis(100);
    }
}

/// A coordinator.
fn drive(
    judge: &Arc<Judge>,
    root: &Path,
    mut config: Config,
    process: usize,
    planted: Fault,
) -> io::Result<()> {
    let queue = open_queue(judge, root, process, config.durable)?;
    lease(&mut config, planted);
    let setup = coordinator::Setup {
        queue,
        workspace: Workspace::open(root).expect("it is there"),
        config,
        environment: Default::default(),
        credentials: Default::default(),
        program: PathBuf::new(),
        debug: false,
        backups: false,
        adopt: None,
        alive: Box::new(|| None),
    };
    let worker = setup.queue.me().to_owned();
    let mut reports = Telling { judge: judge.clone(), worker };
    Coordinator::new(setup).serve(None, &Stop::new()?, &mut reports)
}

/// A worker.
fn work(
    judge: &Arc<Judge>,
    root: &Path,
    config: Config,
    process: usize,
    agent: &str,
) -> io::Result<()> {
    let queue = open_queue(judge, root, process, config.durable)?;
    let worker = queue.me().to_owned();
    let setup = worker::Setup {
        queue,
        workspace: Workspace::open(root).expect("it is there"),
        config,
        agent: agent.to_owned(),
        concurrency: 2,
        until: Until::Told,
        environment: Default::default(),
        credentials: Default::default(),
        program: PathBuf::new(),
    };
    let audience = Arc::new(Listening { judge: judge.clone(), worker });
    worker::serve(setup, &Stop::new()?, audience).map(drop)
}

/// What `submit` does: the run first, then the task that it is.
fn submit(
    judge: &Judge,
    root: &Path,
    config: &Config,
    process: usize,
    id: &RunId,
    story: &Story,
    to_agent: bool,
) -> io::Result<()> {
    let queue = open_queue(judge, root, process, config.durable)?;
    let command_agent = if to_agent { "command_agent: dev\n" } else { "" };
    let text = format!("{command_agent}queue: {{ crash_limit: 1000 }}\n");
    let layer = Layer { file: "settings.yaml".into(), sha256: String::new(), text };
    let settings = serde_json::to_vec(&[layer])?;
    let workspace = Workspace::open(root).expect("it is there");
    let (plan, _) = open::compile_in(&workspace, config, &story.text)
        .unwrap_or_else(|problems| panic!("{}: {problems:?}", story.text));
    let relative = format!(".orchestrate/runs/{id}");
    let origin = Origin {
        run_id: id.to_string(),
        workflow_file: "w.yaml".into(),
        workflow_checksum: String::new(),
        run_root: relative.clone(),
        workspace: None,
        context: Default::default(),
        policy: Policy::default(),
        only_step: None,
        archive: None,
        fleet: true,
        request: None,
        definition: None,
    };
    let now = SystemClock.now();
    let mut run = Run::new(&plan, id.clone(), origin, now);
    let disk = disk::machine();
    disk.make_dirs(&root.join(".orchestrate/runs"))?;
    let frozen = [(DEFINITION, story.text.as_bytes()), (SETTINGS, settings.as_slice())];
    let run_root = root.join(&relative);
    let store = Store::create(disk, &run_root, &frozen, &plan, &mut run, now);
    let mut store = store.map_err(io::Error::other)?;
    store.hand_over(&plan, &run, now).map_err(io::Error::other)?;
    let task = RunTask { run_id: id.clone(), run_root: relative };
    let task = documents::run_task(&queue.new_id(now.0 as u64), &task, "w.yaml", now);
    queue.enqueue(&[task])
}

/// What `approve` does, for every gate that is open.
fn answer_gates(judge: &Judge, root: &Path, id: &RunId) {
    let run_root = root.join(".orchestrate/runs").join(id.as_str());
    let workspace = Workspace::open(root).expect("it is there");
    let Ok((plan, run)) = open::look(&workspace, &run_root) else { return };
    for (here, slot) in run.slots() {
        let gate = slot.record.as_ref().and_then(|record| record.gate.clone());
        if let (StepState::Waiting, Some(gate)) = (&slot.state, gate) {
            let step = here.path(&plan);
            let approve = !step.to_string().starts_with("veto");
            let answer = AnswerFile::new(approve, String::new(), None, gate.shown.clone());
            let attempt = slot.attempts;
            if gates::give(&run_root, &step, attempt, &answer).is_ok_and(|first| first) {
                judge.acknowledge(format!("approve {id} {step}.{attempt}"));
            }
        }
    }
}

/// An execution: it takes its time, can be stopped, and ends as its name says.
fn execute(
    judge: &Judge,
    quick: bool,
    site: &Site,
    work: &Work,
    mark: &str,
    stop: &Stop,
) -> Option<Performed> {
    let claim = check_mark(mark);
    let run = site.root().file_name().unwrap_or_default().to_string_lossy().into_owned();
    let number = judge.began(&run, &work.step.to_string(), claim);
    let drawn = chance();
    let slow = drawn.is_multiple_of(10);
    let most = if quick { SECOND / 10 } else { 2 * SECOND };
    let mut left = (drawn / 10) % if slow && !quick { 16 * SECOND } else { most };
    while left > 0 {
        let part = left.min(100_000);
        left -= part;
        here().wait(Duration::from_micros(part), &mut || false);
        if stop.level() > 0 {
            judge.trace(|| format!("{}: execution {number} is stopped", here().process));
            return None;
        }
        judge.goes_on(number);
    }
    let code = script::exit_code(&work.step.to_string(), work.attempt);
    let output = Some(format!("execution {number}"));
    let metrics = Some(Metrics::default());
    let record = match code {
        0 => Record {
            status: StepStatus::Completed,
            exit_code: Some(0),
            output,
            metrics,
            ..Record::default()
        },
        code => {
            let error =
                StepFault { message: "it fails".into(), exit_code: code, ..StepFault::default() };
            let (status, error) = (StepStatus::Failed, Some(error));
            Record { status, exit_code: Some(code), output, metrics, error, ..Record::default() }
        }
    };
    Some(Performed::of(record))
}

struct Telling {
    judge: Arc<Judge>,
    worker: String,
}

impl Reports for Telling {
    fn about(&mut self, run: &Run, _: &Site) -> Box<dyn Report> {
        Box::new(Recording { judge: self.judge.clone(), run: run.id.to_string() })
    }

    fn note(&mut self, line: &str) {
        self.judge.trace(|| format!("{}: {line}", here().process));
    }

    fn closing(&mut self) {
        self.judge.hear(format!("drain {}", self.worker));
    }

    fn left(&mut self, run: &Run, how: Left) {
        self.judge.trace(|| format!("{}: run {} {how:?}", here().process, run.id));
    }
}

struct Recording {
    judge: Arc<Judge>,
    run: String,
}

impl Report for Recording {
    fn happened(&mut self, _: &Plan, _: &Run, event: &Event) {
        self.judge.trace(|| {
            format!("{}: {} {event:?}", here().process, self.run).chars().take(160).collect()
        });
        if let Event::Answered { step, attempt, .. } = event {
            self.judge.hear(format!("approve {} {step}.{attempt}", self.run));
        }
        if let Event::Ended { step, record, .. } = event {
            self.judge.recorded(&self.run, &step.to_string(), record.output.as_deref());
        }
    }

    fn ask(&mut self, _: &Run, _: &StepPath, _: &Stop) -> Option<Choice> {
        None
    }
}

struct Listening {
    judge: Arc<Judge>,
    worker: String,
}

impl Audience for Listening {
    fn started(&self, _: &Doing) {}

    fn closing(&self) {
        self.judge.hear(format!("drain {}", self.worker));
    }

    fn ended(&self, doing: &Doing, how: &str, _: Duration) {
        self.judge.trace(|| format!("{} says of {}: {how}", self.worker, doing.id));
        self.judge.told_ended(&doing.id, doing.attempt, &self.worker, how);
    }

    fn note(&self, line: &str) {
        self.judge.trace(|| format!("{}: {line}", here().process));
    }
}
