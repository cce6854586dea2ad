//! Finds ended and old data that can be removed: ended tasks, their logs, the files they were
//! dropped as, statuses that never counted, completed requests.
//!
//! **Invariant:** nothing that may still be needed is removed: a task that waits, is claimed or is
//! being accepted keeps all its data, and a run that is kept keeps its tasks. A task is removed
//! before its status, so that a crash during the removal leaves no damage.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::run_task;
use crate::attempt::parking;
use crate::attempt::perform::SESSIONS;
use crate::base::ids::RunId;
use crate::base::time::Time;
use crate::disk;
use crate::disk::fs::{self, OnVolume as _};
use crate::disk::locks::try_lock;
use crate::free_task::intake::files;
use crate::free_task::parse::made_at;
use crate::queue::census::{Batch, DONE, ENDS};
use crate::queue::{ClaimName, End, Queue, TaskId, UNREADABLE};

/// Removable files of one directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Heap {
    pub kind: Kind,
    pub dir: PathBuf,
    /// Groups of files: the later files of a group are removed only if the first one existed.
    items: Vec<Vec<PathBuf>>,
    /// True if the directory is removed too, once it is empty.
    whole: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Tasks,
    /// Logs of tasks that belong to no run.
    Logs,
    Dropped,
    Evidence,
    /// Requests to cancel.
    Requests,
    /// State of conversations with providers.
    Conversations,
    /// Notes about parked providers.
    Parked,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Tasks => "tasks",
            Kind::Logs => "logs",
            Kind::Dropped => "dropped",
            Kind::Evidence => "evidence",
            Kind::Requests => "requests",
            Kind::Conversations => "conversations",
            Kind::Parked => "parked",
        }
    }
}

impl Heap {
    pub(crate) fn count(&self) -> usize {
        self.items.len()
    }

    /// Removes the files.
    pub(crate) fn remove(&self) -> io::Result<()> {
        let disk = disk::machine();
        for item in &self.items {
            for path in item {
                match disk.remove(path) {
                    // It was put back, or another process is cleaning up: leave the rest of the
                    // group.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                    // A user dropped a directory, which could not become a task.
                    Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
                        fs::remove_dir_all(path)?;
                    }
                    removed => removed?,
                }
            }
        }
        if self.whole {
            // A directory that is not empty holds files of other processes.
            let _ = fs::remove_dir(&self.dir);
        }
        Ok(())
    }
}

/// The runs of a workspace, as a cleanup needs them.
pub(crate) struct Runs {
    /// Runs that stay.
    pub kept: HashSet<RunId>,
    /// Kept runs that have not ended.
    pub open: HashSet<RunId>,
    /// Runs that are removed together with their tasks.
    pub gone: HashSet<RunId>,
}

/// A scan for removable data.
struct Looker<'a> {
    queue: &'a Queue,
    runs: &'a Runs,
    /// Data last written before this time is old.
    before: Time,
    /// Tasks that wait, are claimed or are being accepted; and the stems of existing claims.
    live: HashSet<TaskId>,
    held: HashSet<String>,
    /// Ended tasks that stay.
    stay: HashSet<TaskId>,
}

/// Returns everything in a queue that can be removed, confirmed by a second scan: if a task was
/// claimed and ended during one scan, its status seems to belong to no task.
pub(crate) fn old(queue: &Queue, runs: &Runs, before: Time) -> io::Result<Vec<Heap>> {
    let mut heaps = old_now(queue, runs, before)?;
    if heaps.is_empty() {
        return Ok(heaps);
    }
    let again = old_now(queue, runs, before)?;
    let again: HashSet<Vec<PathBuf>> = again.into_iter().flat_map(|heap| heap.items).collect();
    for heap in &mut heaps {
        heap.items.retain(|item| again.contains(item));
    }
    heaps.retain(|heap| !heap.items.is_empty());
    Ok(heaps)
}

fn old_now(queue: &Queue, runs: &Runs, before: Time) -> io::Result<Vec<Heap>> {
    let mut looker = Looker::new(queue, runs, before)?;
    let mut heaps = looker.ended(|_| true)?;
    heaps.extend(looker.logs()?);
    heaps.extend(looker.dropped()?);
    heaps.extend(looker.evidence()?);
    heaps.extend(looker.requests()?);
    Ok(heaps)
}

/// Returns only the tasks of the runs that are being removed.
pub(crate) fn tasks_of_runs(queue: &Queue, runs: &Runs) -> io::Result<Vec<Heap>> {
    let of_them = |batch: &str| RunId::parse(batch).is_some_and(|run| runs.gone.contains(&run));
    Looker::new(queue, runs, Time::default())?.ended(of_them)
}

impl<'a> Looker<'a> {
    fn new(queue: &'a Queue, runs: &'a Runs, before: Time) -> io::Result<Self> {
        let (mut live, mut held) = (HashSet::new(), HashSet::new());
        // A file that is being accepted may already be a task, unknown to the process that made it.
        let census = queue.census();
        live.extend(census.taken_in()?.into_iter().map(|taken| taken.id));
        for agent in census.agents()? {
            live.extend(census.waiting(&agent)?.entries.into_iter().map(|name| name.id));
            for claim in census.claims(&agent)?.entries {
                held.insert(claim.stem());
                live.insert(claim.task.id);
            }
        }
        Ok(Looker { queue, runs, before, live, held, stay: HashSet::new() })
    }

    fn is_old(&self, path: &Path) -> bool {
        written(path).is_some_and(|at| at < self.before)
    }

    fn keeps_run(&self, run: &str) -> bool {
        RunId::parse(run).is_some_and(|run| self.runs.kept.contains(&run))
    }

    /// Finds ended tasks. Tasks of a run are removed with it; tasks of a run that is gone already,
    /// all or none.
    fn ended(&mut self, wanted: impl Fn(&str) -> bool) -> io::Result<Vec<Heap>> {
        let mut heaps = Vec::new();
        for end in ENDS {
            for batch in self.queue.batches(end)?.into_iter().filter(|batch| wanted(batch)) {
                let of_run = RunId::parse(&batch);
                let ours = of_run.is_some() || is_day(&batch) || batch == UNREADABLE;
                if !ours || of_run.as_ref().is_some_and(|run| self.runs.kept.contains(run)) {
                    continue;
                }
                heaps.extend(self.batch(end, &batch, of_run)?);
            }
        }
        Ok(heaps)
    }

    fn batch(&mut self, end: End, batch: &str, run: Option<RunId>) -> io::Result<Option<Heap>> {
        let dir = self.queue.layout.end(end, batch);
        let at_any_age = run.as_ref().is_some_and(|run| self.runs.gone.contains(run));
        let mut items = Vec::new();
        let mut of_tasks = HashSet::new();
        let mut stays = false;
        let Batch { tasks, statuses, .. } = self.queue.census().batch(end, batch)?;
        for (claim, by) in tasks {
            let status = dir.join(claim.status());
            of_tasks.insert(claim.stem());
            // A task without a status is damaged, and a user may want to investigate it.
            let old = if at_any_age { status.is_present() } else { self.is_old(&status) };
            if old && !self.live.contains(&claim.task.id) {
                items.push(vec![dir.join(claim.ended(&by)), status]);
            } else {
                stays = true;
                self.stay.insert(claim.task.id);
            }
        }
        for stem in statuses.into_iter().filter(|stem| !of_tasks.contains(stem)) {
            // If the holder of a claim is dead, this status ends the claim.
            let Some(claim) = ClaimName::parse(&format!("{stem}.task")) else { continue };
            let path = dir.join(claim.status());
            if !self.held.contains(&stem) && (at_any_age || self.is_old(&path)) {
                items.push(vec![path]);
            }
        }
        // The results of a run that is kept elsewhere need all of its tasks or none.
        if items.is_empty() || (run.is_some() && !at_any_age && stays) {
            return Ok(None);
        }
        Ok(Some(Heap { kind: Kind::Tasks, dir, items, whole: true }))
    }

    /// Collects the removable files of a directory, each as its own group.
    fn heap(
        &self,
        kind: Kind,
        dir: PathBuf,
        whole: bool,
        goes: impl Fn(&str, &Path) -> bool,
    ) -> io::Result<Option<Heap>> {
        let mut items = Vec::new();
        for file in disk::none_if_absent(disk::machine().list(&dir))? {
            let path = dir.join(&file);
            if goes(&file, &path) {
                items.push(vec![path]);
            }
        }
        Ok((!items.is_empty()).then_some(Heap { kind, dir, items, whole }))
    }

    fn is_needed(&self, id: &TaskId) -> bool {
        self.live.contains(id) || self.stay.contains(id)
    }

    fn logs(&self) -> io::Result<Vec<Heap>> {
        let mut heaps = Vec::new();
        for dir in dirs(&self.queue.layout.results())? {
            let goes = |file: &str, path: &Path| {
                let id = file.get(..26).and_then(TaskId::parse);
                id.is_some_and(|id| !self.is_needed(&id)) && self.is_old(path)
            };
            heaps.extend(self.heap(Kind::Logs, dir, true, goes)?);
        }
        Ok(heaps)
    }

    /// Finds dropped files. Their authors set their timestamps; the ID contains the time of
    /// acceptance.
    fn dropped(&self) -> io::Result<Vec<Heap>> {
        let mut heaps = Vec::new();
        for dir in dirs(&self.queue.layout.intake().join(DONE))? {
            let goes = |file: &str, _: &Path| {
                let id = files::read_name(file).map(|(id, _)| id);
                id.is_some_and(|id| !self.is_needed(&id) && made_at(&id) < self.before)
            };
            heaps.extend(self.heap(Kind::Dropped, dir, true, goes)?);
        }
        Ok(heaps)
    }

    fn evidence(&self) -> io::Result<Option<Heap>> {
        let goes = |file: &str, path: &Path| {
            let id = file.get(2..28).and_then(TaskId::parse);
            id.is_some_and(|id| !self.live.contains(&id))
                && self.is_old(path)
                && !run_of(path).is_some_and(|run| self.keeps_run(&run))
        };
        self.heap(Kind::Evidence, self.queue.layout.evidence(), false, goes)
    }

    /// Finds requests whose target has ended or does not exist.
    fn requests(&self) -> io::Result<Option<Heap>> {
        let out = run_task::out(self.queue)?;
        let goes = |file: &str, path: &Path| {
            let over = match (TaskId::parse(file), RunId::parse(file)) {
                (Some(id), _) => !self.live.contains(&id),
                (_, Some(run)) => !out.contains_key(file) && !self.runs.open.contains(&run),
                _ => false,
            };
            over && self.is_old(path)
        };
        self.heap(Kind::Requests, self.queue.layout.cancel(), false, goes)
    }
}

/// Returns the run that a status or a conversation's state belongs to.
fn run_of(path: &Path) -> Option<String> {
    let document: Value = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    Some(document.get("run_id")?.as_str()?.to_owned())
}

/// Finds the state of conversations that are unused for long and belong to no kept run: a resumed
/// run continues its conversations.
pub(crate) fn old_conversations(workspace: &Path, runs: &Runs, before: Time) -> Option<Heap> {
    let dir = workspace.join(SESSIONS);
    let list = fs::read_dir(&dir).into_iter().flatten().flatten();
    let mut kept: Vec<PathBuf> = list.map(|entry| entry.path()).collect();
    kept.retain(|path| path.extension().is_some_and(|ending| ending == "json"));
    let of_kept = |path: &Path| {
        let run = run_of(path).and_then(|run| RunId::parse(&run));
        run.is_some_and(|run| runs.kept.contains(&run))
    };
    kept.retain(|path| {
        written(path).is_some_and(|at| at < before) && !is_held(path) && !of_kept(path)
    });
    kept.sort();
    let items: Vec<Vec<PathBuf>> =
        kept.into_iter().map(|path| vec![path.clone(), path.with_extension("lock")]).collect();
    (!items.is_empty()).then_some(Heap { kind: Kind::Conversations, dir, items, whole: false })
}

/// Finds notes about parked providers that are available again.
pub(crate) fn old_notes(workspace: &Path, before: Time) -> Option<Heap> {
    let dir = workspace.join(parking::PARKED);
    let list = fs::read_dir(&dir).into_iter().flatten().flatten();
    let mut old: Vec<PathBuf> = list.map(|entry| entry.path()).collect();
    old.retain(|path| written(path).is_some_and(|at| at < before) && parking::is_over(path));
    old.sort();
    let items: Vec<Vec<PathBuf>> = old.into_iter().map(|path| vec![path]).collect();
    (!items.is_empty()).then_some(Heap { kind: Kind::Parked, dir, items, whole: false })
}

/// Returns true if a process holds the lock of a conversation.
fn is_held(kept: &Path) -> bool {
    let lock = fs::open(kept.with_extension("lock"));
    lock.is_ok_and(|lock| !try_lock(&lock).unwrap_or(false))
}

/// Returns the modification time of a file, by the clock of its volume. It decides only if the file
/// is worth keeping.
fn written(path: &Path) -> Option<Time> {
    let at = fs::symlink_metadata(path).ok()?.modified().ok()?;
    let since = at.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Some(Time(i64::try_from(since.as_millis()).unwrap_or(i64::MAX)))
}

fn is_day(batch: &str) -> bool {
    batch.len() == 8 && batch.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns the subdirectories of a directory; none if it does not exist.
fn dirs(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let names = disk::none_if_absent(disk::machine().list_dirs(dir))?;
    Ok(names.into_iter().map(|name| dir.join(name)).collect())
}
