//! The queue on a file system, local or shared.
//!
//! The order of operations is the protocol; `inbox-layout.md` tells it to people. What may not be
//! decided from: `stat`, times of files, locks. What is decided from: listings of directories and
//! one's own target name.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Map, Value, json};

use super::layout::Layout;
use super::name::{ClaimName, ENDING, TaskName};
use super::{Claim, Claimed, End, Ending, Queue, Reaped, Task, seal};
use crate::disk::Disk;

/// How many names a listing is drained of before the directory is listed again, at most.
const STOCK: usize = 4096;

/// A queue as one process sees it.
pub struct FsQueue {
    disk: Arc<dyn Disk>,
    pub layout: Layout,
    /// This process: new at every start.
    me: String,
    /// Syncs files and directories before it promises anything.
    durable: bool,
    /// Names that were listed and not yet tried, by agent: listing once and draining is what
    /// keeps the cost of a claim flat.
    listed: HashMap<String, VecDeque<TaskName>>,
    /// Random numbers are made of this and a counter.
    seed: u64,
    drawn: AtomicU64,
    beats: u64,
}

impl FsQueue {
    /// Opens the queue of a workspace, making its directories.
    pub fn open(
        disk: Arc<dyn Disk>,
        layout: Layout,
        me: &str,
        seed: u64,
        durable: bool,
    ) -> io::Result<FsQueue> {
        for dir in [
            layout.tmp(),
            layout.beats(),
            layout.workers(),
            layout.cancel(),
            layout.pause(),
            layout.quarantine(),
            layout.evidence(),
            layout.intake(),
        ] {
            disk.make_dirs(&dir)?;
        }
        Ok(FsQueue {
            disk,
            layout,
            me: me.to_owned(),
            durable,
            listed: HashMap::new(),
            seed,
            drawn: AtomicU64::new(0),
            beats: 0,
        })
    }

    /// This process's incarnation.
    pub fn me(&self) -> &str {
        &self.me
    }

    /// Makes the directories of an agent.
    pub fn open_agent(&self, agent: &str) -> io::Result<()> {
        self.disk.make_dirs(&self.layout.inbox(agent))?;
        self.disk.make_dirs(&self.layout.claimed(agent))
    }

    /// A word that was never drawn before.
    pub fn word(&self) -> String {
        const LETTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
        let mut bits = self.random();
        (0..10)
            .map(|_| {
                let letter = LETTERS[(bits % 36) as usize] as char;
                bits /= 36;
                letter
            })
            .collect()
    }

    /// 64 bits: the seed's, by the count of how many were drawn.
    fn random(&self) -> u64 {
        let drawn = self.drawn.fetch_add(1, Ordering::Relaxed);
        let mut z = self.seed.wrapping_add(drawn.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Renames to a name that only this process can have chosen.
    fn move_unique(&self, from: &Path, to: &Path) -> io::Result<Ending> {
        // A name that is listed but cannot be renamed is a stale cache; it clears in a while.
        for _ in 0..100 {
            let error = match self.disk.rename(from, to) {
                Ok(()) => return self.moved(from, to),
                Err(error) => error,
            };
            if self.is_listed(to)? {
                return self.moved(from, to);
            }
            if error.kind() != io::ErrorKind::NotFound {
                return Err(error);
            }
            if !self.is_listed(from)? {
                return Ok(Ending::Fenced);
            }
        }
        Err(io::Error::other(format!("`{}` is listed but cannot be moved", from.display())))
    }

    fn moved(&self, from: &Path, to: &Path) -> io::Result<Ending> {
        if self.durable {
            for path in [to, from] {
                self.disk.sync_dir(path.parent().unwrap_or(Path::new("")))?;
            }
        }
        Ok(Ending::Committed)
    }

    fn is_listed(&self, path: &Path) -> io::Result<bool> {
        let dir = path.parent().unwrap_or(Path::new(""));
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        Ok(self.list(dir)?.iter().any(|listed| listed == name))
    }

    /// A directory's names; one that is not there has none.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        match self.disk.list(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            listed => listed,
        }
    }

    /// Writes a new file under a name that nobody else writes to.
    fn write_new(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.disk.write(path, bytes)?;
        if self.durable { self.disk.sync(path) } else { Ok(()) }
    }

    /// The next name in the order of claims, from the listing at hand or a new one.
    fn next_name(&mut self, agent: &str) -> io::Result<Option<TaskName>> {
        if self.listed.get(agent).is_none_or(VecDeque::is_empty) {
            let names = self.waiting(agent)?;
            self.listed.insert(agent.to_owned(), names.into_iter().take(STOCK).collect());
        }
        Ok(self.listed.get_mut(agent).and_then(VecDeque::pop_front))
    }

    /// Reads a claimed file, or puts it aside if it is no task.
    fn read_claim(&self, agent: &str, name: ClaimName) -> io::Result<Claimed> {
        let path = self.layout.claimed(agent).join(name.file());
        let document = seal::unseal(&self.disk.read(&path)?);
        match document.and_then(|document| Task::read(name.task.clone(), agent, document)) {
            Some(task) => {
                let agent = agent.to_owned();
                Ok(Claimed::Task(Box::new(Claim { name, agent, task })))
            }
            None => {
                let aside = name.ended(&self.me);
                self.move_unique(&path, &self.layout.quarantine().join(&aside))?;
                Ok(Claimed::Quarantined(aside))
            }
        }
    }

    /// Moves a claimed task to its end.
    fn commit(&self, claim: &Claim, end: End) -> io::Result<Ending> {
        let from = self.layout.claimed(&claim.agent).join(claim.name.file());
        let to = self.layout.end(end, &claim.task.batch).join(claim.name.ended(&self.me));
        self.move_unique(&from, &to)
    }

    fn reap_claim(&self, agent: &str, name: ClaimName) -> io::Result<Option<Reaped>> {
        let claim = match self.read_claim(agent, name.clone()) {
            Ok(Claimed::Task(claim)) => claim,
            Ok(_) => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        for end in [End::Processed, End::Failed, End::Cancelled] {
            if self.status(end, &claim.task.batch, &name)?.is_some() {
                let ending = self.commit(&claim, end)?;
                return Ok((ending == Ending::Committed).then_some(Reaped::Finished { name, end }));
            }
        }
        if name.task.crashes + 1 >= claim.task.crash_limit {
            let message =
                format!("its worker died {} times; it is not tried again", name.task.crashes + 1);
            let status = poison_status(&claim, &message);
            let ending = self.complete(&claim, End::Failed, &status)?;
            return Ok((ending == Ending::Committed).then_some(Reaped::Poison { name }));
        }
        let next = name.task.next(true);
        let ending = self.go_back(&claim, &next)?;
        Ok((ending == Ending::Committed).then_some(Reaped::Returned { name: next }))
    }

    fn go_back(&self, claim: &Claim, next: &TaskName) -> io::Result<Ending> {
        let from = self.layout.claimed(&claim.agent).join(claim.name.file());
        let to = self.layout.inbox(&claim.agent).join(next.file());
        self.move_unique(&from, &to)
    }
}

fn poison_status(claim: &Claim, message: &str) -> Map<String, Value> {
    let status = json!({
        "schema": "status/v1",
        "agent": claim.agent,
        "task_id": claim.name.task.id.as_str(),
        "attempt": claim.name.task.attempt,
        "worker": claim.name.worker,
        "ticket": claim.task.document.get("ticket"),
        "success": false,
        "exit_code": 1,
        "error": { "reason": "crash_limit", "message": message },
        "message": message,
    });
    match status {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

impl Task {
    /// Reads the members that the queue knows.
    pub fn read(name: TaskName, agent: &str, document: Map<String, Value>) -> Option<Task> {
        let batch = document.get("batch")?.as_str()?.to_owned();
        // It becomes a directory.
        if crate::ids::name_fault(&batch).is_some() {
            return None;
        }
        let crash_limit = document.get("crash_limit").and_then(Value::as_u64).unwrap_or(3);
        let crash_limit = u32::try_from(crash_limit).unwrap_or(u32::MAX);
        Some(Task { name, agent: agent.to_owned(), batch, crash_limit, document })
    }
}

impl Queue for FsQueue {
    fn enqueue(&self, task: &Task) -> io::Result<()> {
        self.open_agent(&task.agent)?;
        let mut document = task.document.clone();
        document.insert("batch".into(), task.batch.clone().into());
        document.insert("crash_limit".into(), task.crash_limit.into());
        let temporary = self.layout.tmp().join(format!("{}.{}", self.me, self.word()));
        self.write_new(&temporary, &seal::seal(&document))?;
        let target = self.layout.inbox(&task.agent).join(task.name.file());
        match self.move_unique(&temporary, &target)? {
            Ending::Committed => Ok(()),
            Ending::Fenced => Err(io::Error::other("the task was lost before it was put out")),
        }
    }

    fn claim(&mut self, agent: &str) -> io::Result<Claimed> {
        while let Some(task) = self.next_name(agent)? {
            let from = self.layout.inbox(agent).join(task.file());
            let name = ClaimName { task, worker: self.me.clone(), claim: self.word() };
            let to = self.layout.claimed(agent).join(name.file());
            match self.move_unique(&from, &to)? {
                Ending::Committed => return self.read_claim(agent, name),
                // Somebody was faster; the next may still be there.
                Ending::Fenced => {}
            }
        }
        Ok(Claimed::Nothing)
    }

    fn complete(&self, claim: &Claim, end: End, status: &Map<String, Value>) -> io::Result<Ending> {
        let dir = self.layout.end(end, &claim.task.batch);
        self.disk.make_dirs(&dir)?;
        let path = dir.join(claim.name.status());
        // Nobody reads a status before its task is there, and half of one has no seal.
        self.write_new(&path, &seal::seal(status))?;
        if self.durable {
            self.disk.sync_dir(&dir)?;
        }
        let ending = self.commit(claim, end)?;
        if ending == Ending::Fenced {
            let aside = format!("{}.{}", claim.name.status(), self.me);
            self.move_unique(&path, &self.layout.evidence().join(aside))?;
        }
        Ok(ending)
    }

    fn release(&self, claim: &Claim) -> io::Result<Ending> {
        self.go_back(claim, &claim.name.task.next(false))
    }

    fn reap(&self, worker: &str) -> io::Result<Vec<Reaped>> {
        let mut reaped = Vec::new();
        for agent in self.list(&self.layout.all_claimed())? {
            for name in self.claims(&agent)? {
                if name.worker == worker {
                    reaped.extend(self.reap_claim(&agent, name)?);
                }
            }
        }
        Ok(reaped)
    }

    fn beat(&mut self) -> io::Result<()> {
        self.beats += 1;
        let path = self.layout.beats().join(&self.me);
        // Of one size always, so that a reader never sees a longer one with an old end.
        self.disk.write(&path, format!("{:020}\n", self.beats).as_bytes())
    }

    fn claims(&self, agent: &str) -> io::Result<Vec<ClaimName>> {
        let names = self.list(&self.layout.claimed(agent))?;
        Ok(names.iter().filter_map(|file| ClaimName::parse(file)).collect())
    }

    fn waiting(&self, agent: &str) -> io::Result<Vec<TaskName>> {
        let mut names: Vec<_> = self
            .list(&self.layout.inbox(agent))?
            .iter()
            .filter(|file| file.ends_with(ENDING))
            .filter_map(|file| TaskName::parse(file))
            .collect();
        names.sort_by(|a, b| (a.priority, &a.id).cmp(&(b.priority, &b.id)));
        Ok(names)
    }

    fn ended(&self, end: End, batch: &str) -> io::Result<Vec<(ClaimName, String)>> {
        let names = self.list(&self.layout.end(end, batch))?;
        Ok(names.iter().filter_map(|file| ClaimName::parse_ended(file)).collect())
    }

    fn status(
        &self,
        end: End,
        batch: &str,
        name: &ClaimName,
    ) -> io::Result<Option<Map<String, Value>>> {
        match self.disk.read(&self.layout.end(end, batch).join(name.status())) {
            Ok(bytes) => Ok(seal::unseal(&bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn cancel_waiting(&self, agent: &str, name: &TaskName) -> io::Result<Ending> {
        let claim = ClaimName { task: name.clone(), worker: self.me.clone(), claim: self.word() };
        let from = self.layout.inbox(agent).join(name.file());
        let to = self.layout.claimed(agent).join(claim.file());
        if self.move_unique(&from, &to)? == Ending::Fenced {
            return Ok(Ending::Fenced);
        }
        match self.read_claim(agent, claim)? {
            Claimed::Task(claim) => {
                let status = poison_status(&claim, "cancelled before it was claimed");
                self.complete(&claim, End::Cancelled, &status)
            }
            _ => Ok(Ending::Fenced),
        }
    }
}
