//! The task queue: tasks are files on disk, and a worker claims one by renaming it.
//!
//! **One idea:** every change of a task's state is one rename of one file to a name that never
//! existed before. The file is the task, the directory is its state, and the name carries the
//! holder and the attempt. No two processes share a target name that decides anything. After any
//! error, a process therefore looks for its own target: if the target exists, the rename happened,
//! even if the call returned an error.
//!
//! The order of operations is the protocol; `inbox-layout.md` documents it for users. Decisions
//! must not depend on `stat`, file times, or file locks. They depend on directory listings and on a
//! process's own target names.
//!
//! The queue does not know what a workflow is. A task is a sealed document with a few members that
//! the queue reads ([`Task`]); the executor of the task reads the rest.

pub(crate) mod census;
pub(crate) mod checkout_token;
mod claim;
mod clock;
mod commit;
mod enqueue;
pub(crate) mod layout;
pub(crate) mod listing;
mod look;
mod markers;
pub(crate) mod missing_volume;
mod moves;
pub(crate) mod name;
mod reap;
pub(crate) mod repair;
pub(crate) mod seal;
mod status;
#[cfg(test)]
mod tests;
mod volume;

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use serde_json::{Map, Value};

use crate::base::host::lock;
use crate::base::{ids, random};
use crate::disk::Disk;
use listing::{Stock, Stuck};
use markers::Marks;
use moves::Patience;
use name::is_word;

pub(crate) use crate::queue::checkout_token::{Turn, TurnHolder};
pub(crate) use crate::queue::missing_volume::VolumeFault;
pub(crate) use crate::queue::repair::{Judged, name_anew};
pub(crate) use layout::Layout;
pub(crate) use moves::is_transient;
pub(crate) use name::{ClaimName, TaskId, TaskName};
pub(crate) use status::UNREADABLE;
pub(crate) use volume::{fault_of, has_queue};

/// A task to be put into an inbox.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Task {
    pub name: TaskName,
    pub agent: String,
    /// Subdirectory of `processed/` or `failed/` that the task ends in: a run's id, or a day.
    pub batch: String,
    /// Number of holders that may die while they hold the task. After that it fails as poison.
    pub crash_limit: u32,
    /// The whole document, including the members above.
    pub document: Map<String, Value>,
}

/// A task that this process has claimed. Only the queue creates a claim, and the operation that
/// ends or releases the task consumes it: a claim cannot end twice.
#[derive(Debug, PartialEq)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Claim {
    pub name: ClaimName,
    pub agent: String,
    pub task: Task,
    _of_the_queue: (),
}

impl Claim {
    fn new(name: ClaimName, agent: &str, task: Task) -> Claim {
        Claim { name, agent: agent.to_owned(), task, _of_the_queue: () }
    }

    /// Returns a claim that no queue knows.
    #[cfg(test)]
    pub(crate) fn of(name: ClaimName, agent: &str, task: Task) -> Claim {
        Claim::new(name, agent, task)
    }
}

/// Final state of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum End {
    Processed,
    Failed,
    Cancelled,
}

/// Result of an attempt to move a claimed task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// This process moved the task to its target.
    Committed,
    /// Another process moved the task first. The result of this process does not count.
    Fenced,
}

/// A claimed task with the end and the status it is to get.
#[derive(Debug, PartialEq)]
pub(crate) struct Finish {
    pub claim: Claim,
    pub end: End,
    pub status: Map<String, Value>,
}

/// A task that could not be ended. The caller still holds it and may try again.
#[derive(Debug)]
pub(crate) struct Unfinished {
    pub finish: Box<Finish>,
    pub error: io::Error,
}

impl From<Unfinished> for io::Error {
    fn from(unfinished: Unfinished) -> io::Error {
        unfinished.error
    }
}

/// Result of a claim.
#[derive(Debug, PartialEq)]
pub(crate) enum Claimed {
    Task(Box<Claim>),
    /// The file is not a sealed task. It is now in `failed/unreadable/`, with a status that states
    /// the reason. The next claim continues after it.
    Quarantined {
        name: ClaimName,
        reason: String,
    },
    Nothing,
}

/// Current place of a task.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Place {
    Waiting { agent: String, name: TaskName },
    Claimed { agent: String, name: ClaimName },
    Ended { end: End, name: ClaimName, by: String },
}

/// Action taken on a claim whose holder is gone.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reaped {
    /// The holder had written a status, so the task was moved to the end that the status belongs
    /// to; or the file was not a sealed task, and it failed.
    Finished { name: ClaimName, end: End },
    /// The task went back to its inbox.
    Returned { name: TaskName },
    /// The task had killed too many holders, and it failed.
    Poison { name: ClaimName },
    /// A cancellation of the task had been requested.
    Cancelled { name: ClaimName },
}

/// Result of publishing one task.
#[derive(Debug)]
pub(crate) enum Published {
    Yes,
    /// The caller's [`Still`] check rejected the task. It never appeared in its inbox.
    Refused,
    /// The task never appeared and never will, so the caller may publish it again later.
    No(io::Error),
    /// The task may be in its inbox, or already claimed. The caller must not publish it again.
    Unknown(io::Error),
}

/// Callback that runs right before a task appears in its inbox: returns true if the task is still
/// to be published.
pub(crate) type Still<'a> = &'a dyn Fn(&Task) -> io::Result<bool>;

/// Callback that runs before a waiting task is claimed: returns true if the caller wants the task.
/// Its second argument reads the task, or returns `None` if the file is gone or incomplete.
pub(crate) type Wanted<'a> = &'a dyn Fn(&TaskName, &dyn Fn() -> Option<Task>) -> bool;

/// Total time to retry an operation while the volume does not answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A queue as seen by one process, on any [`Disk`]. Any number of threads and processes may use
/// one queue concurrently.
pub(crate) struct Queue {
    disk: Arc<dyn Disk>,
    pub layout: Layout,
    /// Name of this process, new at every start.
    me: String,
    /// True if files and directories are synced before anything is promised.
    durable: bool,
    /// Name of the volume at the time it was opened.
    volume: String,
    patience: Duration,
    /// Directories known to exist. Hot paths do not check them again.
    made: RwLock<HashSet<PathBuf>>,
    /// Listed names that were not tried yet, by agent.
    stocks: RwLock<HashMap<String, Arc<Mutex<Stock>>>>,
    /// Claims that this process made or is about to make, by their random part. A claim on disk
    /// that carries this process's name but is not in this set arrived late, without the knowledge
    /// of the thread that made it.
    held: Mutex<HashSet<String>>,
    marks: Mutex<Marks>,
    stuck: Stuck,
    /// Random numbers are derived from this seed and a counter.
    seed: u64,
    drawn: AtomicU64,
    beats: AtomicU64,
}

impl Queue {
    /// Opens the queue of a workspace and creates its directories. `me` names this process:
    /// lower-case letters and digits that no earlier process used.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        layout: Layout,
        me: &str,
        seed: u64,
        durable: bool,
    ) -> io::Result<Queue> {
        if !is_word(me) {
            let text = format!("`{me}` cannot name a worker: only `a`–`z` and `0`–`9` can");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let mut queue = Queue {
            disk,
            layout,
            me: me.to_owned(),
            durable,
            volume: String::new(),
            patience: PATIENCE,
            made: RwLock::default(),
            stocks: RwLock::default(),
            held: Mutex::default(),
            marks: Mutex::default(),
            stuck: Stuck::default(),
            seed,
            drawn: AtomicU64::new(0),
            beats: AtomicU64::new(0),
        };
        // Create nothing on a volume that cannot be identified.
        queue.volume = queue.find_volume()?;
        queue.make_own_dirs()?;
        Ok(queue)
    }

    /// Creates the directories that any machine may look for, before one does.
    fn make_own_dirs(&self) -> io::Result<()> {
        let layout = &self.layout;
        let dirs = [
            layout.inboxes(),
            layout.all_claimed(),
            layout.tmp(),
            layout.beats(),
            layout.workers(),
            layout.cancel(),
            layout.pause(),
            layout.evidence(),
            layout.intake(),
            layout.results(),
            layout.runs(),
            layout.drain(),
            layout.ends(End::Processed),
            layout.ends(End::Failed),
            layout.ends(End::Cancelled),
        ];
        dirs.iter().try_for_each(|dir| self.disk.make_dirs(dir))
    }

    /// Returns the disk that holds the queue.
    pub(crate) fn disk(&self) -> &dyn Disk {
        &*self.disk
    }

    /// Returns the name of this process, new at every start.
    pub(crate) fn me(&self) -> &str {
        &self.me
    }

    /// Creates the directories of an agent. Fails if the name differs from another agent's only in
    /// case: on a case-insensitive file system, both would share one inbox.
    pub(crate) fn open_agent(&self, agent: &str) -> io::Result<()> {
        let inbox = self.inbox(agent)?;
        if !self.is_made(&inbox) {
            self.check_alike(agent)?;
        }
        self.need_dir(&inbox)?;
        self.need_dir(&self.layout.claimed(agent))
    }

    fn check_alike(&self, agent: &str) -> io::Result<()> {
        let mut patience = Patience::new(self.patience);
        let others = loop {
            match self.list_dirs(&self.layout.inboxes()) {
                Ok(others) => break others,
                Err(error) => patience.wait(error)?,
            }
        };
        let alike = |other: &&String| other.eq_ignore_ascii_case(agent);
        match others.iter().find(alike) {
            Some(other) if !others.iter().any(|other| other == agent) => {
                let text = format!(
                    "agents `{agent}` and `{other}`, which has an inbox, differ only in upper and \
                     lower case"
                );
                Err(io::Error::new(io::ErrorKind::InvalidInput, text))
            }
            _ => Ok(()),
        }
    }

    fn is_made(&self, dir: &Path) -> bool {
        self.made.read().unwrap_or_else(|poison| poison.into_inner()).contains(dir)
    }

    /// Returns the reason not to serve an agent's inbox: any user of the machine could write tasks
    /// into it. Returns `None` if the inbox is safe.
    pub(crate) fn unsafe_inbox(&self, agent: &str) -> io::Result<Option<String>> {
        for dir in [self.layout.inboxes(), self.inbox(agent)?] {
            let mode = match self.disk.mode(&dir) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                mode => mode?,
            };
            if mode & 0o002 != 0 {
                let dir = dir.display();
                let text =
                    format!("anybody may write to `{dir}`: make it safe by `chmod o-w {dir}`");
                return Ok(Some(text));
            }
        }
        Ok(None)
    }

    /// Returns an agent's inbox. Fails for a name whose path would lie elsewhere.
    fn inbox(&self, agent: &str) -> io::Result<PathBuf> {
        check_name(agent, "an agent")?;
        Ok(self.layout.inbox(agent))
    }

    /// Returns a random token that is not used twice.
    pub(crate) fn word(&self) -> String {
        random::word(self.random())
    }

    /// Returns an id for a new task. The ids that one process creates sort in creation order.
    pub(crate) fn new_id(&self, at_ms: u64) -> TaskId {
        let count = self.drawn.fetch_add(1, Ordering::Relaxed);
        let rest = u128::from(random::nth(self.seed, count)) & 0xffff_ffff_ffff;
        TaskId::new(at_ms, (u128::from(count & 0xffff_ffff) << 48) | rest)
    }

    fn random(&self) -> u64 {
        random::nth(self.seed, self.drawn.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns a path in `tmp/` that only this process can choose.
    fn temporary(&self) -> PathBuf {
        self.layout.tmp().join(format!("{}.{}", self.me, self.word()))
    }

    /// Creates a directory unless it is known to exist.
    pub(crate) fn need_dir(&self, dir: &Path) -> io::Result<()> {
        if self.is_made(dir) { Ok(()) } else { self.make_dir(dir) }
    }

    /// Creates a directory, even if it is known to exist: it may have been removed.
    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        self.need_volume()?;
        let mut patience = Patience::new(self.patience);
        while let Err(error) = self.disk.make_dirs(dir) {
            patience.wait(error)?;
        }
        self.made.write().unwrap_or_else(|poison| poison.into_inner()).insert(dir.to_owned());
        Ok(())
    }

    fn stock(&self, agent: &str) -> Arc<Mutex<Stock>> {
        let stocks = self.stocks.read().unwrap_or_else(|poison| poison.into_inner());
        if let Some(stock) = stocks.get(agent) {
            return stock.clone();
        }
        drop(stocks);
        let mut stocks = self.stocks.write().unwrap_or_else(|poison| poison.into_inner());
        stocks.entry(agent.to_owned()).or_default().clone()
    }

    /// Forgets claims that were found but not returned by a call yet. They are unknown again.
    fn forget_found(&self) {
        let stocks = self.stocks.read().unwrap_or_else(|poison| poison.into_inner());
        for stock in stocks.values() {
            lock(stock).found.drain(..).for_each(|name| self.let_go(&name));
        }
    }

    /// Records a claim as known. Returns false if it already was.
    fn hold(&self, name: &ClaimName) -> bool {
        lock(&self.held).insert(name.claim.clone())
    }

    fn let_go(&self, name: &ClaimName) {
        lock(&self.held).remove(&name.claim);
    }

    /// Writes the heartbeat of this process.
    pub(crate) fn beat(&self) -> io::Result<()> {
        let beats = self.beats.fetch_add(1, Ordering::Relaxed) + 1;
        let path = self.layout.beats().join(&self.me);
        // The record has a constant length, so a reader never sees parts of two numbers.
        let record = format!("{beats:020}\n");
        match self.disk.overwrite(&path, record.as_bytes()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.make_dir(&self.layout.beats())?;
                self.disk.overwrite(&path, record.as_bytes())
            }
            beaten => beaten,
        }
    }

    /// Returns the last heartbeat of a process, or `None` if it never wrote one.
    pub(crate) fn read_beat(&self, worker: &str) -> io::Result<Option<Vec<u8>>> {
        check_name(worker, "a worker")?;
        self.read_file(&self.layout.beats().join(worker))
    }
}

/// Fails unless `name` can be the name of a file or directory.
fn check_name(name: &str, what: &str) -> io::Result<()> {
    match ids::name_fault(name) {
        None => Ok(()),
        Some(fault) => {
            let text = format!("`{name}` cannot be the name of {what}: {fault}");
            Err(io::Error::new(io::ErrorKind::InvalidInput, text))
        }
    }
}

impl Task {
    /// Reads the members that the queue knows. Returns `None` if the batch is missing or unfit.
    pub(crate) fn read(name: TaskName, agent: &str, document: Map<String, Value>) -> Option<Task> {
        let batch = document.get("batch")?.as_str()?.to_owned();
        // The batch becomes a directory name.
        if ids::name_fault(&batch).is_some() {
            return None;
        }
        let crash_limit = document.get("crash_limit").and_then(Value::as_u64).unwrap_or(3);
        let crash_limit = u32::try_from(crash_limit).unwrap_or(u32::MAX);
        Some(Task { name, agent: agent.to_owned(), batch, crash_limit, document })
    }
}
