//! A worker: a process that serves one agent's inbox.
//!
//! Each slot is a thread that claims a task, executes it with the same code as a local run, ends it
//! with a status, and claims the next at once. One more thread sends heartbeats and audits the
//! claims, and a guard thread handles signals. The caller's thread adopts dropped files and waits
//! for the slots.
//!
//! **Invariant:** a result is not reported before the task's move to its final directory is done. A
//! worker never ends a task that it lost to another worker.

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

pub(crate) use self::keep::{obituary, recover};
pub(crate) use self::limits::{own_target, target_of};

use self::keep::{keep_beat, stand_guard};
use self::limits::Targets;
use self::prepare::{given, hidden};
use self::slot::commit_groups;
use super::member::Member;
use crate::agent::Kind;
use crate::attempt::exec_env::Environment;
use crate::attempt::parking::Parking;
use crate::attempt::sandboxes::Sandboxes;
use crate::base::host;
use crate::base::ids::TaskAttempt;
use crate::disk::hint::Bell;
use crate::exec::{Mask, Stop};
use crate::free_task::intake::{self, FreeTasks, Intake};
use crate::queue::{Finish, Queue};
use crate::settings::Config;
use crate::workspace::Workspace;

/// The condition under which a worker ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// A stop request.
    Told,
    /// One task is done.
    Once,
    /// No task is waiting.
    Empty,
}

/// Dependencies and settings of a worker.
pub(crate) struct Setup {
    pub queue: Arc<Queue>,
    pub workspace: Workspace,
    pub config: Config,
    pub agent: String,
    pub concurrency: u32,
    pub until: Until,
    pub environment: Environment,
    /// Secrets that were read from files; child processes receive them as variables.
    pub credentials: Environment,
    pub program: PathBuf,
}

/// Receives reports of a worker's activity.
pub(crate) trait Audience: Send + Sync {
    fn started(&self, doing: &Doing);
    /// Called when a task ends, with a short description of the outcome and the duration.
    fn ended(&self, doing: &Doing, how: &str, took: Duration);
    fn note(&self, line: &str);
    /// Called with every heartbeat interval, even while the volume is unavailable, with the number
    /// of running tasks.
    fn alive(&self, _doing: usize) {}
    /// Called when the worker was asked to stop and claims no new tasks.
    fn closing(&self) {}
    /// Called from time to time with the running tasks. Returns the time until the next call.
    fn tick(&self, _doing: &[Doing]) -> Option<Duration> {
        None
    }
}

/// A running task.
#[derive(Clone, Debug)]
pub(crate) struct Doing {
    pub id: String,
    /// The step of a run, or the title of a free task.
    pub label: String,
    pub run: Option<String>,
    pub attempt: TaskAttempt,
    pub since: Instant,
    /// Files that receive stdout and stderr during the execution.
    pub logs: [PathBuf; 2],
    /// Format of that output.
    pub adapter: Kind,
}

/// The reason to stop a running task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// The worker is leaving; the task is released without penalty.
    Leaving = 1,
    Cancelled = 2,
    /// Another worker holds the task now.
    Lost = 3,
}

struct Running {
    doing: Doing,
    stop: Stop,
    why: Arc<AtomicU8>,
}

/// State that all threads of a worker share.
struct Shop {
    setup: Setup,
    bell: Arc<Bell>,
    audience: Arc<dyn Audience>,
    /// True if the worker claims no new tasks.
    closing: AtomicBool,
    /// True if the worker no longer waits for anything.
    leaving: AtomicBool,
    /// Running tasks, by the stem of the claim's name.
    running: Mutex<HashMap<String, Running>>,
    slots_left: AtomicUsize,
    /// True if a dropped file is about to become a task. Starts as true, until the first scan.
    taking_in: AtomicBool,
    /// Members that were found dead and may have started to adopt dropped files.
    dead: Mutex<BTreeSet<String>>,
    done: AtomicUsize,
    failed: AtomicUsize,
    masks: Mutex<BTreeMap<Vec<String>, Mask>>,
    /// Variables that the agent's child processes do not inherit, and variables that they get in
    /// addition.
    hidden: Vec<String>,
    given: Vec<(String, OsString)>,
    /// Provider accounts that are parked.
    parking: Arc<Parking>,
    /// Targets of waiting tasks that were looked up so far, by task ID.
    targets: Mutex<Targets>,
    /// The shortest remaining parking time of the tasks that the last claim skipped; `None` if it
    /// skipped none.
    parked: Mutex<Option<Duration>>,
    sandboxes: Sandboxes,
    /// Sends tasks to the thread that ends them in groups. Set if each end must survive a power
    /// cut.
    commits: Option<Sender<Option<(Finish, Doing)>>>,
}

/// Summary of a worker's tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub done: usize,
    pub failed: usize,
    /// True if tasks are left that wait for a parked account.
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

    /// Stops the running tasks that the filter selects.
    fn stop(&self, why: Why, level: u8, pick: impl Fn(&str, &Running) -> bool) {
        for (stem, running) in self.running().iter() {
            if pick(stem, running) {
                // The first reason decides how the task ends.
                let _ =
                    running.why.compare_exchange(0, why as u8, Ordering::SeqCst, Ordering::SeqCst);
                running.stop.request(level);
            }
        }
    }

    /// Returns true if the worker must leave now: after a second stop request or the drain timeout.
    fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::SeqCst)
    }
}

/// Serves an inbox until a stop request, or until the condition in [`Setup::until`].
///
/// The first stop request lets the running tasks finish; the second releases them.
pub(crate) fn serve(setup: Setup, stop: &Stop, audience: Arc<dyn Audience>) -> io::Result<Tally> {
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
    // The worker stays a member of the fleet while it still ends tasks.
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
