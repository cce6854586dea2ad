//! The queue on a file system, local or shared, as seen by one process.
//!
//! The order of operations is the protocol; `inbox-layout.md` documents it for users. Decisions
//! must not depend on `stat`, file times, or file locks. They depend on directory listings and on a
//! process's own target names.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use serde_json::{Map, Value};

use super::layout::Layout;
use super::listing::{Stock, Stuck};
use super::markers::Marks;
use super::moves::Patience;
use super::name::{ClaimName, TaskId, TaskName, is_word};
use super::{
    Claim, Claimed, End, Ending, Finish, Place, Published, Queue, Reaped, Still, Task, Wanted,
};
use crate::base::{ids, random};
use crate::disk::Disk;

/// Total time to retry an operation while the volume does not answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A queue as seen by one process.
pub(crate) struct FsQueue {
    pub(super) disk: Arc<dyn Disk>,
    pub layout: Layout,
    /// Name of this process, new at every start.
    pub(super) me: String,
    /// True if files and directories are synced before anything is promised.
    pub(super) durable: bool,
    /// Name of the volume at the time it was opened.
    pub(super) volume: String,
    pub(super) patience: Duration,
    /// Directories known to exist. Hot paths do not check them again.
    made: RwLock<HashSet<PathBuf>>,
    /// Listed names that were not tried yet, by agent.
    stocks: RwLock<HashMap<String, Arc<Mutex<Stock>>>>,
    /// Claims that this process made or is about to make, by their random part. A claim on disk
    /// that carries this process's name but is not in this set arrived late, without the knowledge
    /// of the thread that made it.
    held: Mutex<HashSet<String>>,
    pub(super) marks: Mutex<Marks>,
    pub(super) stuck: Stuck,
    /// Random numbers are derived from this seed and a counter.
    seed: u64,
    drawn: AtomicU64,
    beats: AtomicU64,
}

pub(super) use crate::base::host::lock;

impl FsQueue {
    /// Opens the queue of a workspace and creates its directories. `me` names this process:
    /// lower-case letters and digits that no earlier process used.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        layout: Layout,
        me: &str,
        seed: u64,
        durable: bool,
    ) -> io::Result<FsQueue> {
        if !is_word(me) {
            let text = format!("`{me}` cannot name a worker: only `a`–`z` and `0`–`9` can");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let mut queue = FsQueue {
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
    pub(super) fn inbox(&self, agent: &str) -> io::Result<PathBuf> {
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

    pub(super) fn random(&self) -> u64 {
        random::nth(self.seed, self.drawn.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns a path in `tmp/` that only this process can choose.
    pub(super) fn temporary(&self) -> PathBuf {
        self.layout.tmp().join(format!("{}.{}", self.me, self.word()))
    }

    /// Creates a directory unless it is known to exist.
    pub(crate) fn need_dir(&self, dir: &Path) -> io::Result<()> {
        if self.is_made(dir) { Ok(()) } else { self.make_dir(dir) }
    }

    /// Creates a directory, even if it is known to exist: it may have been removed.
    pub(super) fn make_dir(&self, dir: &Path) -> io::Result<()> {
        self.need_volume()?;
        let mut patience = Patience::new(self.patience);
        while let Err(error) = self.disk.make_dirs(dir) {
            patience.wait(error)?;
        }
        self.made.write().unwrap_or_else(|poison| poison.into_inner()).insert(dir.to_owned());
        Ok(())
    }

    pub(super) fn stock(&self, agent: &str) -> Arc<Mutex<Stock>> {
        let stocks = self.stocks.read().unwrap_or_else(|poison| poison.into_inner());
        if let Some(stock) = stocks.get(agent) {
            return stock.clone();
        }
        drop(stocks);
        let mut stocks = self.stocks.write().unwrap_or_else(|poison| poison.into_inner());
        stocks.entry(agent.to_owned()).or_default().clone()
    }

    /// Forgets claims that were found but not returned by a call yet. They are unknown again.
    pub(super) fn forget_found(&self) {
        let stocks = self.stocks.read().unwrap_or_else(|poison| poison.into_inner());
        for stock in stocks.values() {
            lock(stock).found.drain(..).for_each(|name| self.let_go(&name));
        }
    }

    /// Records a claim as known. Returns false if it already was.
    pub(super) fn hold(&self, name: &ClaimName) -> bool {
        lock(&self.held).insert(name.claim.clone())
    }

    pub(super) fn let_go(&self, name: &ClaimName) {
        lock(&self.held).remove(&name.claim);
    }
}

/// Fails unless `name` can be the name of a file or directory.
pub(super) fn check_name(name: &str, what: &str) -> io::Result<()> {
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

impl Queue for FsQueue {
    fn enqueue(&self, tasks: &[Task]) -> io::Result<()> {
        let published = self.put_out(tasks, &|_| Ok(true)).into_iter();
        let mut failed = published.filter_map(|published| match published {
            Published::Yes | Published::Refused => None,
            Published::No(error) | Published::Unknown(error) => Some(error),
        });
        failed.next().map_or(Ok(()), Err)
    }

    fn enqueue_while(&self, tasks: &[Task], still: Still) -> Vec<Published> {
        self.put_out(tasks, still)
    }

    fn enqueue_claimed(&self, task: &Task) -> io::Result<Claim> {
        self.put_out_claimed(task)
    }

    fn claim(&self, agent: &str) -> io::Result<Claimed> {
        self.claim_next(agent, None)
    }

    fn claim_wanted(&self, agent: &str, wanted: Wanted) -> io::Result<Claimed> {
        self.claim_next(agent, Some(wanted))
    }

    fn claim_this(&self, agent: &str, name: &TaskName) -> io::Result<Claimed> {
        self.claim_one(agent, name)
    }

    fn complete(&self, done: &[Finish]) -> Vec<io::Result<Ending>> {
        self.commit_all(done)
    }

    fn release(&self, claim: &Claim) -> io::Result<Ending> {
        self.give_back(claim, &claim.name.task.next(false))
    }

    fn reap(&self, worker: &str) -> io::Result<Vec<Reaped>> {
        self.reap_worker(worker)
    }

    fn beat(&self) -> io::Result<()> {
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

    fn read_beat(&self, worker: &str) -> io::Result<Option<Vec<u8>>> {
        check_name(worker, "a worker")?;
        self.read_file(&self.layout.beats().join(worker))
    }

    fn agents(&self) -> io::Result<Vec<String>> {
        self.list_agents()
    }

    fn claims(&self, agent: &str) -> io::Result<Vec<ClaimName>> {
        self.list_claims(agent)
    }

    fn waiting(&self, agent: &str) -> io::Result<Vec<TaskName>> {
        self.list_waiting(agent)
    }

    fn has_waiting(&self, agent: &str) -> io::Result<bool> {
        self.any_waiting(agent)
    }

    fn ended(&self, end: End, batch: &str) -> io::Result<Vec<(ClaimName, String)>> {
        self.list_ended(end, batch)
    }

    fn batches(&self, end: End) -> io::Result<Vec<String>> {
        self.list_batches(end)
    }

    fn status(
        &self,
        end: End,
        batch: &str,
        name: &ClaimName,
    ) -> io::Result<Option<Map<String, Value>>> {
        self.read_status(end, batch, name)
    }

    fn ended_by_holder(
        &self,
        batch: &str,
        name: &ClaimName,
    ) -> io::Result<Option<(End, Map<String, Value>)>> {
        self.guess_end(batch, name)
    }

    fn find(&self, agent: &str, batch: &str, id: &TaskId) -> io::Result<Option<Place>> {
        self.find_task(agent, batch, id)
    }

    fn read(&self, place: &Place, batch: &str) -> io::Result<Option<Task>> {
        self.read_task(place, batch)
    }

    fn request_cancel(&self, id: &str) -> io::Result<()> {
        self.mark_cancel(id)
    }

    fn cancel_requests(&self) -> io::Result<HashSet<String>> {
        self.list_cancels()
    }

    fn forget_cancel(&self, id: &str) -> io::Result<()> {
        self.unmark_cancel(id)
    }

    fn cancel_waiting(&self, agent: &str, name: &TaskName) -> io::Result<Ending> {
        self.take_out(agent, name)
    }

    fn requeue(&self, end: End, batch: &str, name: &ClaimName, by: &str) -> io::Result<Ending> {
        self.put_again(end, batch, name, by)
    }

    fn pause(&self, agent: &str, reason: &str) -> io::Result<()> {
        self.mark_pause(agent, reason)
    }

    fn resume(&self, agent: &str) -> io::Result<()> {
        self.unmark_pause(agent)
    }

    fn paused(&self, agent: &str) -> io::Result<Option<String>> {
        self.pause_reason(agent)
    }
}
