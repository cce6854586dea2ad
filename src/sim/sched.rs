//! Simulated time and threads: every thread of every simulated process is a real thread, and one
//! of them has the turn. The others wait for theirs, so a seed gives one order of things.
//!
//! A thread gives its turn away when it waits and at every operation of the disk. A process can be
//! paused or killed there: a killed one never gets an answer, and its threads unwind.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use crate::base::host::Simulated;
use crate::base::random::{Random, nth};

/// Carried by the unwinding of a thread whose process was killed.
pub(super) struct Killed;

/// Microseconds of true time.
pub(super) type Us = u64;

pub(super) const SECOND: Us = 1_000_000;

struct Actor {
    process: usize,
    wake: Us,
    waits: bool,
    over: bool,
    bell: Arc<Condvar>,
}

pub(super) struct Process {
    pub host: usize,
    pub alive: bool,
    pub paused_until: Us,
    /// How long it was paused altogether.
    pub paused: Us,
    pub started: Us,
    /// When it died.
    pub ended: Us,
    /// Killed or paused after so many more operations.
    pub kill_in: Option<u64>,
    pub pause_in: Option<(u64, Us)>,
    random: Random,
}

/// A machine: how its clocks are off.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    pub wall_off_ms: i64,
    pub up_ms: u64,
    /// Starts of its kernel.
    pub boots: u32,
    /// Its clock that nobody sets is the one that people set.
    pub one_clock: bool,
}

pub(super) struct State {
    pub now: Us,
    turn: usize,
    actors: Vec<Actor>,
    pub processes: Vec<Process>,
    pub machines: Vec<Machine>,
    locks: BTreeMap<(usize, PathBuf), usize>,
    pub operations: u64,
    /// A sum over everything that happened, in order: the same for the same seed.
    pub sum: u64,
}

pub(super) struct Sched {
    state: Mutex<State>,
    threads: Mutex<Vec<std::thread::JoinHandle<()>>>,
    seed: u64,
}

/// Real moments are made of this one.
fn base() -> Instant {
    static BASE: OnceLock<Instant> = OnceLock::new();
    *BASE.get_or_init(Instant::now)
}

/// When simulated time begins: 2025-01-15.
const EPOCH_MS: i64 = 1_736_951_422_000;

impl Sched {
    /// A world whose first process, on the first machine, is the caller: it has the turn.
    pub(super) fn new(seed: u64, machines: Vec<Machine>) -> Arc<Sched> {
        let state = State {
            now: SECOND,
            turn: 0,
            actors: Vec::new(),
            processes: Vec::new(),
            machines,
            locks: BTreeMap::new(),
            operations: 0,
            sum: seed,
        };
        let sched = Sched { state: Mutex::new(state), threads: Mutex::default(), seed };
        sched.begin_process(0);
        sched.add_actor(0);
        Arc::new(sched)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    pub(super) fn now(&self) -> Us {
        self.state().now
    }

    pub(super) fn begin_process(&self, host: usize) -> usize {
        let mut state = self.state();
        let (number, started) = (state.processes.len(), state.now);
        state.processes.push(Process {
            host,
            alive: true,
            paused_until: 0,
            paused: 0,
            started,
            ended: 0,
            kill_in: None,
            pause_in: None,
            random: Random::new(nth(self.seed, 1_000 + number as u64)),
        });
        number
    }

    fn add_actor(&self, process: usize) -> usize {
        let mut state = self.state();
        let (wake, bell) = (state.now, Arc::new(Condvar::new()));
        state.actors.push(Actor { process, wake, waits: false, over: false, bell });
        state.actors.len() - 1
    }

    /// Starts a thread of a process; it begins when it gets its turn.
    pub(super) fn start(
        self: &Arc<Self>,
        process: usize,
        prepare: impl FnOnce(Arc<Here>) + Send + 'static,
        work: impl FnOnce() + Send + 'static,
    ) -> usize {
        let actor = self.add_actor(process);
        let sched = self.clone();
        let run = move || {
            prepare(Arc::new(Here { sched: sched.clone(), process, actor }));
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                sched.await_turn(actor);
                work();
            }));
            crate::base::host::enter(None);
            crate::disk::simulate(None);
            sched.finish(actor);
            if let Err(payload) = done
                && !payload.is::<Killed>()
            {
                let text = payload
                    .downcast_ref::<String>()
                    .cloned()
                    .or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                sched.accuse(format!("a thread panicked: {}", text.unwrap_or_default()));
            }
        };
        let thread = std::thread::Builder::new().stack_size(1 << 20).spawn(run);
        self.threads.lock().unwrap().push(thread.expect("a thread can be made"));
        actor
    }

    fn accuse(&self, text: String) {
        eprintln!("{text}");
        self.mix(u64::MAX);
        self.state().sum = 0;
    }

    /// Who comes next: the one who wakes first.
    fn next(state: &State) -> Option<usize> {
        let due = |actor: &Actor| {
            let process = &state.processes[actor.process];
            if process.alive { actor.wake.max(process.paused_until) } else { 0 }
        };
        let actors = state.actors.iter().enumerate().filter(|(_, actor)| !actor.over);
        actors.min_by_key(|(number, actor)| (due(actor), *number)).map(|(number, _)| number)
    }

    fn give_turn(state: &mut State) {
        let Some(next) = Self::next(state) else { return };
        let actor = &state.actors[next];
        let process = &state.processes[actor.process];
        if process.alive {
            state.now = state.now.max(actor.wake.max(process.paused_until));
        }
        state.turn = next;
        state.actors[next].bell.notify_one();
    }

    fn await_turn(&self, me: usize) {
        let mut state = self.state();
        let bell = state.actors[me].bell.clone();
        while state.turn != me {
            state = bell.wait(state).unwrap_or_else(|poison| poison.into_inner());
        }
        let dead = !state.processes[state.actors[me].process].alive;
        drop(state);
        if dead && !std::thread::panicking() {
            std::panic::resume_unwind(Box::new(Killed));
        }
    }

    fn finish(&self, me: usize) {
        let mut state = self.state();
        state.actors[me].over = true;
        Self::give_turn(&mut state);
    }

    /// Lets the others go on until then.
    fn sleep_until(&self, me: usize, wake: Us, waits: bool) {
        if std::thread::panicking() {
            return;
        }
        let mut state = self.state();
        state.actors[me].wake = wake;
        state.actors[me].waits = waits;
        Self::give_turn(&mut state);
        drop(state);
        self.await_turn(me);
        self.state().actors[me].waits = false;
    }

    /// Ends a process: its threads go no further, its locks are free.
    pub(super) fn kill(&self, process: usize) {
        let mut state = self.state();
        let now = state.now;
        let dying = &mut state.processes[process];
        if std::mem::replace(&mut dying.alive, false) {
            dying.ended = now;
        }
        state.locks.retain(|_, holder| *holder != process);
    }

    pub(super) fn pause(&self, process: usize, time: Us) {
        let mut state = self.state();
        let until = state.now + time;
        let process = &mut state.processes[process];
        process.paused += until.saturating_sub(process.paused_until.max(until - time));
        process.paused_until = process.paused_until.max(until);
    }

    /// An operation of the disk begins or has just ended. False if the process is no more.
    pub(super) fn operate(&self, here: &Here, latency: Us, ends: bool) {
        if std::thread::panicking() {
            return;
        }
        let mut state = self.state();
        state.operations += 1;
        let process = &mut state.processes[here.process];
        let mut kill = false;
        if let Some(left) = &mut process.kill_in {
            kill = *left == 0;
            *left = left.saturating_sub(1);
        }
        let pause = match &mut process.pause_in {
            Some((0, time)) => Some(*time),
            Some((left, _)) => {
                *left -= 1;
                None
            }
            None => None,
        };
        if pause.is_some() {
            process.pause_in = None;
        }
        let wake = state.now + latency;
        drop(state);
        if kill {
            self.kill(here.process);
            std::panic::resume_unwind(Box::new(Killed));
        }
        if let Some(time) = pause {
            self.pause(here.process, time);
        }
        if !ends || pause.is_some() {
            self.sleep_until(here.actor, wake, false);
        }
    }

    pub(super) fn mix(&self, word: u64) {
        let mut state = self.state();
        let now = state.now;
        state.sum = nth(state.sum ^ word, now);
    }

    /// Ends every process but the first, and waits for all threads.
    pub(super) fn end(&self) {
        let count = self.state().processes.len();
        (1..count).for_each(|process| self.kill(process));
        loop {
            let mut state = self.state();
            let left = state.actors.iter().skip(1).any(|actor| !actor.over);
            if !left {
                break;
            }
            Self::give_turn(&mut state);
            drop(state);
            self.await_turn(0);
        }
        let threads = std::mem::take(&mut *self.threads.lock().unwrap());
        threads.into_iter().for_each(|thread| drop(thread.join()));
    }
}

/// A thread of a simulated process.
pub(super) struct Here {
    pub sched: Arc<Sched>,
    pub process: usize,
    pub actor: usize,
}

impl Here {
    pub(super) fn host(&self) -> usize {
        self.sched.state().processes[self.process].host
    }
}

thread_local! {
    static HERE: std::cell::RefCell<Option<Arc<Here>>> = const { std::cell::RefCell::new(None) };
    static PREPARE: std::cell::RefCell<Option<Prepare>> = const { std::cell::RefCell::new(None) };
}

/// Makes a new thread a part of its process.
pub(super) type Prepare = Arc<dyn Fn(Arc<Here>) + Send + Sync>;

/// Makes this thread one of a simulated process, and those that it starts.
pub(super) fn enter(here: Arc<Here>, prepare: Prepare) {
    HERE.with(|slot| *slot.borrow_mut() = Some(here.clone()));
    PREPARE.with(|slot| *slot.borrow_mut() = Some(prepare));
    crate::base::host::enter(Some(here));
}

/// This thread.
pub(super) fn here() -> Arc<Here> {
    HERE.with(|slot| slot.borrow().clone()).expect("this thread is simulated")
}

pub(super) fn leave() {
    crate::base::host::enter(None);
    crate::disk::simulate(None);
    HERE.with(|slot| *slot.borrow_mut() = None);
}

impl Simulated for Here {
    fn instant(&self) -> Instant {
        base() + Duration::from_micros(self.sched.now())
    }

    fn wall_ms(&self) -> i64 {
        let state = self.sched.state();
        let machine = &state.machines[state.processes[self.process].host];
        EPOCH_MS + machine.wall_off_ms + (state.now / 1000) as i64
    }

    fn uptime_ms(&self) -> u64 {
        let state = self.sched.state();
        let machine = &state.machines[state.processes[self.process].host];
        let off_ms = if machine.one_clock { machine.wall_off_ms + 3_600_000 } else { 0 };
        machine.up_ms + off_ms as u64 + state.now / 1000
    }

    fn wait(&self, time: Duration, ready: &mut dyn FnMut() -> bool) {
        let until = self.sched.now() + (time.as_micros() as Us).clamp(1, 3600 * SECOND);
        while !ready() && self.sched.now() < until && !std::thread::panicking() {
            self.sched.sleep_until(self.actor, until, true);
        }
    }

    fn poke(&self) {
        let mut state = self.sched.state();
        let (now, process) = (state.now, self.process);
        let waiting = state.actors.iter_mut().filter(|actor| actor.process == process);
        waiting.filter(|actor| actor.waits).for_each(|actor| actor.wake = actor.wake.min(now));
    }

    fn chance(&self) -> u64 {
        self.sched.state().processes[self.process].random.draw()
    }

    fn pid(&self) -> u32 {
        100 + self.process as u32
    }

    fn boot_id(&self) -> String {
        let state = self.sched.state();
        let host = state.processes[self.process].host;
        format!("boot-{host}-{}", state.machines[host].boots)
    }

    fn start_time(&self, pid: u32) -> Option<u64> {
        let state = self.sched.state();
        let process = state.processes.get(pid.checked_sub(100)? as usize)?;
        (process.alive && process.host == state.processes[self.process].host)
            .then_some(process.started)
    }

    fn spawn(&self, work: Box<dyn FnOnce() + Send>) -> u64 {
        let prepare = PREPARE.with(|slot| slot.borrow().clone()).expect("it is simulated");
        self.sched.start(self.process, move |here| prepare(here), work) as u64
    }

    fn is_over(&self, thread: u64) -> bool {
        self.sched.state().actors[thread as usize].over
    }

    fn try_lock(&self, path: &Path) -> Result<(), u32> {
        let mut state = self.sched.state();
        let host = state.processes[self.process].host;
        let holder = *state.locks.entry((host, path.to_owned())).or_insert(self.process);
        if holder == self.process { Ok(()) } else { Err(100 + holder as u32) }
    }

    fn unlock(&self, path: &Path) {
        let mut state = self.sched.state();
        let host = state.processes[self.process].host;
        let key = (host, path.to_owned());
        if state.locks.get(&key) == Some(&self.process) {
            state.locks.remove(&key);
        }
    }
}
