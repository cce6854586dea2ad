//! A worker: a process that serves one agent's inbox.
//!
//! Each slot is a thread that claims a task, executes it by the same code as a local run, ends it
//! with a status, and claims the next at once. Beside the slots, one thread keeps the beat and
//! looks after the claims; the caller's thread waits for signals and for tasks that people drop.
//!
//! **Invariant:** a result is told to nobody before the move of its task is done; a task that was
//! lost to another is never ended here.

mod keep;
mod limits;
mod prepare;
mod slot;
mod spent;
mod trials;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

pub use self::keep::{obituary, recover};
pub use self::limits::{own_target, target_of};

use self::keep::{keep_beat, stand_guard};
use self::limits::Targets;
use self::prepare::{given, hidden};
use self::slot::commit_groups;
use super::config::Config;
use super::hint::Bell;
use super::intake::{self, FreeTasks, Intake};
use super::member::Member;
use super::parking::Parking;
use super::sandboxes::Sandboxes;
use super::site::Environment;
use crate::exec::{Mask, Stop};
use crate::host;
use crate::provider::Kind;
use crate::queue::{Finish, FsQueue};
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
    /// How that output is read.
    pub adapter: Kind,
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
    /// Which accounts of providers are left alone.
    parking: Arc<Parking>,
    /// What waiting tasks ask, by their ids, as far as that was looked up.
    targets: Mutex<Targets>,
    /// Tasks were left because of that when it was last looked for one, and for so long at least.
    parked: Mutex<Option<Duration>>,
    sandboxes: Sandboxes,
    /// Ends tasks in groups, where each must survive a power cut.
    commits: Option<Sender<Option<(Finish, Doing)>>>,
}

/// How a worker's work went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub done: usize,
    pub failed: usize,
    /// Tasks are left that wait for an account which is left alone for long.
    pub parked: bool,
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

    /// Whether somebody said twice that it must end.
    fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::SeqCst)
    }
}

/// Serves an inbox until it is told to stop, or by itself where that was asked for.
///
/// A first request to stop lets the tasks at hand be finished, a second one gives them back.
pub fn serve(setup: Setup, stop: &Stop, audience: Arc<dyn Audience>) -> io::Result<Tally> {
    let queue = setup.queue.clone();
    queue.open_agent(&setup.agent)?;
    let (agent, settings) = (&setup.agent, &setup.config.queue);
    let mut member = Member::join(queue.clone(), agent, setup.concurrency, None, settings)?;
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
        parking: Arc::new(Parking::new(
            setup.workspace.root(),
            setup.config.back_off,
            setup.config.back_off_max,
            false,
        )),
        targets: Mutex::default(),
        parked: Mutex::default(),
        sandboxes: Sandboxes::of(&setup.config, Some(&setup.agent)),
        commits: setup.config.durable.then_some(commits),
        setup,
    });
    let (guarded, pulse, guards) = (shop.clone(), member.pulse.clone(), stop.clone());
    drop(host::spawn(move || stand_guard(&guarded, &pulse, &guards)));
    let adopt = Box::new(FreeTasks { config: shop.setup.config.clone() });
    let settings = intake::Settings::of(&shop.setup.config);
    let intake = Intake::new(queue.layout.clone(), queue.me(), settings, adopt);
    let over = Arc::new(AtomicBool::new(false));
    let (kept, ended, stopped) = (shop.clone(), over.clone(), stop.clone());
    let keeper = host::spawn(move || keep_beat(&kept, member, &ended, &stopped));
    trials::test_new_versions(&shop, stop);
    let serve = |slot: usize| {
        let shop = shop.clone();
        host::spawn(move || shop.serve(slot as u64 + 1))
    };
    let serving: Vec<host::Thread> = (0..slots).map(serve).collect();
    let ending = shop.clone();
    let groups = host::spawn(move || commit_groups(&ending, &groups));
    shop.attend(intake);
    serving.into_iter().for_each(host::Thread::join);
    shop.commits.iter().for_each(|commits| _ = commits.send(None));
    host::poke();
    // It is a member as long as it ends tasks.
    groups.join();
    over.store(true, Ordering::SeqCst);
    keeper.wake();
    keeper.join();
    Ok(Tally {
        done: shop.done.load(Ordering::SeqCst),
        failed: shop.failed.load(Ordering::SeqCst),
        parked: shop.is_parked(),
    })
}
