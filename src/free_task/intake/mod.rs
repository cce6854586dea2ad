//! Intake: turns files that users drop into an inbox into tasks.
//!
//! A dropped file is any `*.task` whose name is not in the queue's own format. The intake leaves it
//! alone until it has been unchanged for a while. Then it moves the file aside, under a name that
//! only this process can choose and that contains the ID of the future task; reads it once no
//! process can write to it; publishes it as a sealed task; and keeps the file in `intake/done/`. A
//! file that cannot be a task goes to `failed/`, with a status that states the reason.
//!
//! The move decides which process owns the file. A process that finds the files of a dead process
//! continues with them; the ID shows if the task is already published.
//!
//! **Invariant:** a file is never lost, never executed half-written, and never published twice. No
//! file blocks the others.

mod adopt;
pub(crate) mod files;
mod look;
mod recover;
mod refuse;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) use adopt::{Adopt, Adopted, Dropped, FreeTasks};
pub(crate) use files::{Aside, aside_by_id, beside_inboxes, count_dropped, ignored, is_dropped};

use self::files::{is_listed, list, move_unique, newly_ignored, shown};
use self::look::{Kind, Look, Writers};
use super::parse::{FreeTask, day, made_at};
use crate::base::host::{chance, uptime_ms};
use crate::base::random::Random;
use crate::base::time::{Clock, SystemClock};
use crate::disk::{self, Disk};
use crate::queue::census::DONE;
use crate::queue::{Layout, Published, Queue, Task, TaskId, TaskName};
use crate::settings::Config;

/// Minimum time without changes if changes become visible late, or if the kernel does not report
/// writers. It is longer than attributes are cached.
const REMOTE_SETTLE: Duration = Duration::from_secs(3);
/// Maximum wait for the rest of an incomplete text, if writers are unknown.
const HALF: Duration = Duration::from_secs(60);
/// Delay before the first retry.
const AGAIN: Duration = Duration::from_secs(1);
/// Validity of a listing, in milliseconds.
const MOMENT_MS: u64 = 100;
/// Maximum number of files per scan.
const GROUP: usize = 1000;

/// Settings of an intake.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub settle: Duration,
    pub task_bytes: u64,
    /// True to sync before a task counts as published.
    pub durable: bool,
}

impl Settings {
    pub(crate) fn of(config: &Config) -> Settings {
        let queue = &config.queue;
        Settings { settle: queue.settle, task_bytes: queue.task_bytes, durable: config.durable }
    }
}

/// The result of a scan.
#[derive(Debug, Default)]
pub(crate) struct Scanned {
    pub adopted: Vec<TaskName>,
    /// Files that are not tasks, each with the reason.
    pub refused: Vec<(String, String)>,
    /// Time of the next scan, even without a change. `None` if only a change requires one.
    pub next_look: Option<Instant>,
}

impl Scanned {
    fn look_at(&mut self, at: Instant) {
        self.next_look = Some(self.next_look.map_or(at, |other| other.min(at)));
    }
}

/// The state of a file in an inbox at its last observed change.
struct Seen {
    look: Look,
    since: Instant,
    /// True if the file cannot be moved and this was reported.
    stuck: bool,
}

/// A file that this process has moved aside.
struct Taken {
    agent: String,
    id: TaskId,
    source: String,
    path: PathBuf,
    since: Instant,
    /// Metadata and content at the last read, if the kernel does not report writers.
    read: Option<(Look, Vec<u8>)>,
    due: Instant,
    /// True if its task may already be published.
    tried: bool,
    /// Number of transient failures so far.
    failures: u32,
}

/// The result of examining a taken file.
enum Ready {
    Wait,
    /// Another process took the file.
    Gone,
    No(String),
    Text(String),
}

/// The next action for a taken file.
enum Step {
    Wait,
    Over,
    PutOut(Box<Task>),
    PutAway,
}

/// The intake of one process.
pub(crate) struct Intake {
    layout: Layout,
    me: String,
    settings: Settings,
    remote: bool,
    adopt: Box<dyn Adopt>,
    disk: Arc<dyn Disk>,
    random: Random,
    count: u64,
    seen: HashMap<(String, OsString), Seen>,
    /// Files that are no tasks by their names, and were reported.
    ignored: HashSet<PathBuf>,
    taken: Vec<Taken>,
    /// Time of the last recovery of files of dead processes.
    recovered: Option<Instant>,
    /// Directories with moves that may not be synced yet.
    unsynced: BTreeSet<PathBuf>,
}

impl Intake {
    pub(crate) fn new(
        layout: Layout,
        me: &str,
        settings: Settings,
        adopt: Box<dyn Adopt>,
    ) -> Intake {
        Intake {
            remote: disk::is_remote(&layout.root),
            layout,
            me: me.to_owned(),
            settings,
            adopt,
            disk: disk::machine(),
            random: Random::new(chance()),
            count: 0,
            seen: HashMap::new(),
            ignored: HashSet::new(),
            taken: Vec::new(),
            recovered: None,
            unsynced: BTreeSet::new(),
        }
    }

    /// Scans an inbox once, and continues with the files that were taken before.
    pub(crate) fn scan(&mut self, queue: &Queue, agent: &str) -> io::Result<Scanned> {
        self.scan_at(queue, agent, Instant::now())
    }

    fn scan_at(&mut self, queue: &Queue, agent: &str, now: Instant) -> io::Result<Scanned> {
        let mut scanned = Scanned::default();
        let settled = self.settled(agent, now, &mut scanned)?;
        self.take(agent, settled, now, &mut scanned)?;
        self.sync_moves()?;
        self.advance(queue, now, &mut scanned);
        for taken in &self.taken {
            scanned.look_at(taken.due);
        }
        Ok(scanned)
    }

    /// Returns the dropped files that have been unchanged for long enough, oldest first.
    fn settled(
        &mut self,
        agent: &str,
        now: Instant,
        scanned: &mut Scanned,
    ) -> io::Result<Vec<OsString>> {
        let inbox = self.layout.inbox(agent);
        let names = list(&inbox)?;
        scanned.refused.extend(newly_ignored(&inbox, &names, &mut self.ignored));
        let mut settled = Vec::new();
        let mut still = HashMap::new();
        for name in names.into_iter().filter(|name| is_dropped(name)) {
            let key = (agent.to_owned(), name.clone());
            let (look, file) = match look::look(&inbox.join(&name)) {
                Ok(Some(found)) => found,
                Ok(None) => continue,
                // A file that cannot be opened now must not block the others.
                Err(error) => {
                    tracing::debug!("`{}` cannot be looked at: {error}", name.to_string_lossy());
                    scanned.look_at(now + AGAIN);
                    continue;
                }
            };
            let seen = match self.seen.remove(&key) {
                Some(seen) if seen.look == look => seen,
                _ => Seen { look, since: now, stuck: false },
            };
            let due = self.settles(&seen, file.as_ref(), now);
            match due {
                Some(due) if due <= now => settled.push((seen.look.modified, name)),
                Some(due) => scanned.look_at(due),
                None => {}
            }
            still.insert(key, seen);
        }
        self.seen.retain(|(other, _), _| other != agent);
        self.seen.extend(still);
        settled.sort();
        if settled.len() > GROUP {
            scanned.look_at(now);
        }
        Ok(settled.into_iter().take(GROUP).map(|(_, name)| name).collect())
    }

    /// Returns the time when an unchanged file may be taken, or `None` if it must change first.
    fn settles(&self, seen: &Seen, file: Option<&File>, now: Instant) -> Option<Instant> {
        if seen.stuck || (seen.look.kind == Kind::File && seen.look.size == 0) {
            return None;
        }
        let quick = seen.since + self.settings.settle;
        let Some(file) = file else { return Some(quick) };
        if quick > now && !self.remote {
            return Some(quick);
        }
        match self.writers(file) {
            Writers::None => Some(quick),
            Writers::Some => Some(now + self.settings.settle.max(Duration::from_millis(10))),
            Writers::Unknown => Some(seen.since + self.settle()),
        }
    }

    /// Minimum time without changes if writers are unknown.
    fn settle(&self) -> Duration {
        self.settings.settle.max(REMOTE_SETTLE)
    }

    /// Returns the writers of a file. They are unknown on a network volume.
    fn writers(&self, file: &File) -> Writers {
        if self.remote { Writers::Unknown } else { look::writers(file) }
    }

    /// Moves settled files aside.
    fn take(
        &mut self,
        agent: &str,
        names: Vec<OsString>,
        now: Instant,
        scanned: &mut Scanned,
    ) -> io::Result<()> {
        if names.is_empty() {
            return Ok(());
        }
        let (inbox, aside) = (self.layout.inbox(agent), self.aside(&self.me, agent));
        self.disk.make_dirs(&aside)?;
        let before = self.taken.len();
        for name in names {
            let id = self.new_id();
            let path = aside.join(format!("{id}-{}", shown(&name)));
            match move_unique(&inbox.join(&name), &path) {
                Ok(true) => {
                    self.seen.remove(&(agent.to_owned(), name.clone()));
                    let source = name.to_string_lossy().into_owned();
                    self.taken.push(Taken::new(agent, id, source, path, now, false));
                }
                Ok(false) => {}
                Err(error) => {
                    if let Some(seen) = self.seen.get_mut(&(agent.to_owned(), name.clone())) {
                        seen.stuck = true;
                    }
                    let reason = format!("it cannot be taken: {error}");
                    scanned.refused.push((name.to_string_lossy().into_owned(), reason));
                }
            }
        }
        if self.taken.len() > before {
            self.unsynced.extend([aside, inbox]);
        }
        Ok(())
    }

    /// Syncs the moves before any moved file is processed: a file that reappears in the inbox after
    /// a power cut would be taken a second time.
    fn sync_moves(&mut self) -> io::Result<()> {
        while let Some(dir) = self.unsynced.last() {
            if self.settings.durable {
                self.disk.sync_dir(dir)?;
            }
            self.unsynced.pop_last();
        }
        Ok(())
    }

    /// Continues with the taken files that are due.
    fn advance(&mut self, queue: &Queue, now: Instant, scanned: &mut Scanned) {
        let mut ready = Vec::new();
        for mut taken in std::mem::take(&mut self.taken) {
            if taken.due > now {
                self.taken.push(taken);
                continue;
            }
            match self.go_on(&mut taken, queue, now, scanned) {
                Ok(Step::Wait) => self.taken.push(taken),
                Ok(Step::Over) => {}
                Ok(Step::PutOut(task)) => ready.push((taken, *task)),
                Ok(Step::PutAway) => self.put_away(taken, now),
                Err(error) => self.try_again(taken, &error, now),
            }
        }
        self.put_out(queue, ready, now, scanned);
    }

    /// Decides the next action for a taken file.
    fn go_on(
        &mut self,
        taken: &mut Taken,
        queue: &Queue,
        now: Instant,
        scanned: &mut Scanned,
    ) -> io::Result<Step> {
        let adopted = match self.examine(taken, now)? {
            Ready::Gone => return Ok(Step::Over),
            Ready::Wait => return Ok(Step::Wait),
            Ready::No(reason) => Adopted::Refused(reason),
            Ready::Text(text) => {
                let Taken { agent, id, source, .. } = &*taken;
                self.adopt.adopt(&Dropped { agent, id, source, text: &text })?
            }
        };
        match adopted {
            Adopted::Refused(reason) => {
                self.refuse(taken, &reason)?;
                scanned.refused.push((taken.source.clone(), reason));
                Ok(Step::Over)
            }
            Adopted::Task(task) => {
                let known = |task: &Task| queue.find(&task.agent, &task.batch, &task.name.id);
                let out = taken.tried && known(&task)?.is_some();
                Ok(if out { Step::PutAway } else { Step::PutOut(task) })
            }
        }
    }

    /// Reads a taken file as soon as no process can write to it.
    fn examine(&self, taken: &mut Taken, now: Instant) -> io::Result<Ready> {
        let Some((look, file)) = look::look(&taken.path)? else { return Ok(Ready::Gone) };
        let file = match (&look.kind, file) {
            (Kind::Other(what), _) => {
                return Ok(Ready::No(format!("it is {what}, but a task is a plain file")));
            }
            (Kind::Locked(why), _) => return Ok(Ready::No(format!("it cannot be read: {why}"))),
            (Kind::File, None) => return Ok(Ready::No("it cannot be read".into())),
            // It may link to another user's file, which the user who dropped it could not read.
            (Kind::File, Some(_)) if look.names > 1 => {
                let text = "it is a hard link: the file has another name; drop a copy of it";
                return Ok(Ready::No(text.into()));
            }
            (Kind::File, Some(file)) => file,
        };
        let writers = self.writers(&file);
        let late = now.saturating_duration_since(taken.since) >= HALF;
        if writers == Writers::Some {
            // The writer's handle moved with the file; closing it ends the wait.
            taken.due = now + if late { AGAIN } else { self.settings.settle };
            return Ok(Ready::Wait);
        }
        let limit = self.settings.task_bytes;
        let Some(bytes) = look::read(&file, limit)? else {
            let text =
                format!("it is longer than {limit} bytes, the most that `queue.task_bytes` allows");
            return Ok(Ready::No(text));
        };
        if writers == Writers::Unknown && !self.stood_still(taken, &look, &bytes, now, late) {
            return Ok(Ready::Wait);
        }
        if bytes.is_empty() {
            return Ok(Ready::No("it is empty".into()));
        }
        Ok(match String::from_utf8(bytes) {
            Ok(text) => Ready::Text(text),
            Err(error) => {
                let at = error.utf8_error().valid_up_to();
                Ready::No(format!("it is not UTF-8 text (byte {at})"))
            }
        })
    }

    /// Returns true if two reads far enough apart gave the same result. A text that is empty or
    /// does not parse must also have waited for [`HALF`].
    fn stood_still(
        &self,
        taken: &mut Taken,
        look: &Look,
        bytes: &[u8],
        now: Instant,
        late: bool,
    ) -> bool {
        let before = taken.read.replace((look.clone(), bytes.to_vec()));
        let says = |task: FreeTask| !task.text.trim().is_empty();
        let whole =
            std::str::from_utf8(bytes).is_ok_and(|text| FreeTask::parse(text).is_ok_and(says));
        taken.due = now + self.settle();
        before.is_some_and(|(seen, said)| seen == *look && said == bytes) && (whole || late)
    }

    /// Publishes tasks in one group, and keeps their files.
    fn put_out(
        &mut self,
        queue: &Queue,
        ready: Vec<(Taken, Task)>,
        now: Instant,
        scanned: &mut Scanned,
    ) {
        let (mut files, tasks): (Vec<_>, Vec<_>) = self.still_mine(ready, now).into_iter().unzip();
        if tasks.is_empty() {
            return;
        }
        files.iter_mut().for_each(|taken| taken.tried = true);
        let sure_ms = Cell::new(uptime_ms());
        let paths: HashMap<&TaskId, &Path> =
            files.iter().map(|taken| (&taken.id, taken.path.as_path())).collect();
        let still = |task: &Task| {
            let now_ms = uptime_ms();
            let Some(path) = paths.get(&task.name.id) else { return Ok(true) };
            // The file was listed a moment ago; only a process suspended since then can have lost
            // it.
            let mine = now_ms.saturating_sub(sure_ms.get()) < MOMENT_MS || is_listed(path)?;
            if mine {
                sure_ms.set(now_ms);
            }
            Ok(mine)
        };
        let published = queue.enqueue_while(&tasks, &still);
        for ((taken, task), published) in files.into_iter().zip(tasks).zip(published) {
            match published {
                Published::Yes => {
                    scanned.adopted.push(task.name);
                    self.put_away(taken, now);
                }
                Published::Refused => {}
                Published::No(error) | Published::Unknown(error) => {
                    self.try_again(taken, &error, now);
                }
            }
        }
    }

    /// Filters out files that another process has taken because it declared this process dead.
    fn still_mine(&mut self, ready: Vec<(Taken, Task)>, now: Instant) -> Vec<(Taken, Task)> {
        let mut listed: HashMap<PathBuf, BTreeSet<OsString>> = HashMap::new();
        let mut mine = Vec::new();
        for (taken, task) in ready {
            let dir = taken.path.parent().unwrap_or(Path::new("")).to_owned();
            let names = match listed.entry(dir) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(unknown) => match list(unknown.key()) {
                    Ok(names) => unknown.insert(names.into_iter().collect()),
                    Err(error) => {
                        self.try_again(taken, &error, now);
                        continue;
                    }
                },
            };
            if taken.path.file_name().is_some_and(|name| names.contains(name)) {
                mine.push((taken, task));
            }
        }
        mine
    }

    fn try_again(&mut self, taken: Taken, error: &io::Error, now: Instant) {
        if taken.failures == 0 {
            tracing::warn!("`{}` cannot be taken in yet: {error}", taken.source);
        }
        let due = now + AGAIN * (1 << taken.failures.min(6));
        self.taken.push(Taken { due, failures: taken.failures + 1, ..taken });
    }

    /// Moves the file of a published task to `intake/done/`.
    fn put_away(&mut self, taken: Taken, now: Instant) {
        let dir = self.layout.intake().join(DONE).join(day(made_at(&taken.id)));
        let name = taken.path.file_name().unwrap_or_default();
        let moved = self.disk.make_dirs(&dir);
        let moved = moved.and_then(|()| move_unique(&taken.path, &dir.join(name)));
        if let Err(error) = moved {
            self.try_again(Taken { tried: true, ..taken }, &error, now);
        }
    }

    /// Returns true if every taken file has become a task or was refused.
    pub(crate) fn is_idle(&self) -> bool {
        self.taken.is_empty()
    }

    fn aside(&self, owner: &str, agent: &str) -> PathBuf {
        self.layout.intake().join(owner).join(agent)
    }

    /// Returns a new ID. IDs of one process sort in the order of their creation.
    fn new_id(&mut self) -> TaskId {
        self.count += 1;
        let rest = u128::from(self.random.draw() & 0xffff_ffff_ffff);
        let at_ms = SystemClock.now().0.unsigned_abs();
        TaskId::new(at_ms, (u128::from(self.count & 0xffff_ffff) << 48) | rest)
    }
}

impl Taken {
    fn new(
        agent: &str,
        id: TaskId,
        source: String,
        path: PathBuf,
        now: Instant,
        tried: bool,
    ) -> Taken {
        let agent = agent.to_owned();
        Taken { agent, id, source, path, since: now, read: None, due: now, tried, failures: 0 }
    }
}
