//! `orchestrate clean`: removes old runs with their tasks, and old finished entries of the queue.
//! It never touches unfinished work. The worktrees of beads are in `clean_trees.rs`.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::json;

use super::clean_trees::Cleaning;
use super::invocation::Invocation;
use super::output::put;
use super::{Common, failure, signals};
use crate::base::ids::RunId;
use crate::base::program_name::ORCHESTRATE;
use crate::base::time::{Clock, SystemClock, Time, parse_duration};
use crate::disk::fs::{self, OnVolume as _};
use crate::engine::RunStatus;
use crate::queue::{Place, Queue, TaskId};
use crate::run::failure::Failure;
use crate::run::project::{runs_in, unreadable_queue};
use crate::run::retention::{self, Heap, Kind, Runs};
use crate::run::{home, open, run_task};
use crate::store::lock::{self, LockError, RunLock};
use crate::store::{self, snapshot};
use crate::workspace::Workspace;
use crate::{disk, exec, view};

#[derive(clap::Args, Clone, Debug)]
pub(super) struct CleanArgs {
    /// Remove what was last touched longer ago than this: 7d, 12h [default: ORCHESTRATE_KEEP_RUNS
    /// days]
    #[arg(long, value_name = "AGE")]
    pub older_than: Option<String>,
    /// Also runs that are blocked, or were stopped or killed, and could be resumed. Those that wait
    /// for a person stay all the same
    #[arg(long)]
    pub stopped: bool,
    /// Show what would be removed, but remove nothing
    #[arg(long)]
    pub dry_run: bool,
}

pub(super) fn main(args: &CleanArgs, common: &Common) -> Result<u8, Failure> {
    let invocation = Invocation::read(common)?;
    signals::end_with_children()?;
    let age = match &args.older_than {
        Some(text) => parse_duration(text).ok_or_else(|| {
            Failure::invalid(format!("`{text}` is no length of time"))
                .hint("write a number and a unit: 7d, 12h, 30m")
        })?,
        None => days_kept(&invocation)?.ok_or_else(|| {
            Failure::invalid("how old may a run be?")
                .hint("give `--older-than 7d`, or set ORCHESTRATE_KEEP_RUNS to a number of days")
        })?,
    };
    let queue = invocation.queue_if_any()?;
    let old = Old::find(&invocation, queue.as_ref(), age, args.stopped, None)?;
    for (id, stays) in &old.staying {
        invocation.note(format!("{id} stays: {}", stays.words(id)));
    }
    let workspace = invocation.open_workspace()?;
    let mut gone = Vec::new();
    // A failure to remove one entry does not keep the others.
    let mut failed = None;
    for (id, path) in &old.runs {
        let goes = args.dry_run || {
            let removed = remove(&workspace, path, id, age, args.stopped);
            removed.unwrap_or_else(|failure| note(&mut failed, failure))
        };
        if goes {
            gone.push(id.clone());
            let line = json!({
                "schema": "clean/v1", "run_id": id.as_str(), "removed": !args.dry_run,
            });
            tell(common, args.dry_run, &format!("{id}"), &line)?;
        }
    }
    let mut heaps = Vec::new();
    let before = Time(SystemClock.now().0.saturating_sub_unsigned(age));
    let runs = old.without(gone.iter());
    if let Some(queue) = &queue {
        heaps = retention::old(queue, &runs, before).map_err(|error| unreadable_queue(&error))?;
    }
    heaps.extend(retention::old_conversations(&invocation.workspace, &runs, before));
    heaps.extend(retention::old_notes(&invocation.workspace, before));
    for heap in &heaps {
        let thrown = if args.dry_run { Ok(()) } else { throw_away(heap) };
        match thrown {
            Ok(()) => tell_heap(&invocation, args.dry_run, heap)?,
            Err(failure) => _ = note(&mut failed, failure),
        }
    }
    let in_use = beads_in(&invocation.state_dir, runs.open);
    let trees = Cleaning { before, in_use, dry_run: args.dry_run, invocation: &invocation }.clean();
    let trees = trees.unwrap_or_else(|failure| usize::from(note(&mut failed, failure)));
    if !args.dry_run {
        mend_latest(&invocation.state_dir);
    }
    if let Some(failure) = failed {
        return Err(failure);
    }
    if gone.is_empty() && old.staying.is_empty() {
        let nothing = heaps.is_empty() && trees == 0;
        invocation.note(if nothing { "nothing is that old" } else { "no run is that old" });
    }
    Ok(0)
}

/// Stores the first of several failures in `first`, to be returned at the end, and prints the
/// others. Always returns false.
fn note(first: &mut Option<Failure>, failure: Failure) -> bool {
    match first {
        None => *first = Some(failure),
        Some(_) => failure::print(&failure, false),
    }
    false
}

fn tell(
    common: &Common,
    dry_run: bool,
    what: &str,
    line: &serde_json::Value,
) -> Result<(), Failure> {
    match common.json {
        true => put(&format!("{line}\n")),
        false => put(&format!("{} {what}\n", if dry_run { "would remove" } else { "removed" })),
    }
}

fn tell_heap(invocation: &Invocation, dry_run: bool, heap: &Heap) -> Result<(), Failure> {
    let dir =
        heap.dir.strip_prefix(&invocation.workspace).unwrap_or(&heap.dir).display().to_string();
    let (one, several) = match heap.kind {
        Kind::Tasks => ("task", "tasks"),
        Kind::Logs => ("log", "logs"),
        Kind::Dropped => ("file that was dropped", "files that were dropped"),
        Kind::Evidence => ("status that did not count", "statuses that did not count"),
        Kind::Requests => ("request to cancel", "requests to cancel"),
        Kind::Conversations => ("conversation", "conversations"),
        Kind::Parked => ("note on a provider", "notes on providers"),
    };
    let count = heap.count();
    let noun = if count == 1 { one } else { several };
    let line = json!({
        "schema": "clean/v1", "kind": heap.kind.name(), "dir": dir, "count": count,
        "removed": !dry_run,
    });
    tell(&invocation.common, dry_run, &format!("{count} {noun} in {dir}"), &line)
}

fn throw_away(heap: &Heap) -> Result<(), Failure> {
    heap.remove().map_err(|error| {
        Failure::failed(format!("cannot tidy up `{}`: {error}", heap.dir.display()))
    })
}

/// Returns ORCHESTRATE_KEEP_RUNS (days) in milliseconds, or `None` if it is unset or empty.
pub(super) fn days_kept(invocation: &Invocation) -> Result<Option<u64>, Failure> {
    let Some(text) = invocation.environment.get("ORCHESTRATE_KEEP_RUNS") else { return Ok(None) };
    match text.to_string_lossy().trim() {
        "" => Ok(None),
        text => match text.parse::<u64>() {
            Ok(days) => Ok(Some(days.saturating_mul(86_400_000))),
            Err(_) => {
                let message = format!("ORCHESTRATE_KEEP_RUNS is `{text}`, not a number of days");
                Err(Failure::invalid(message))
            }
        },
    }
}

/// Removes runs older than ORCHESTRATE_KEEP_RUNS days, with their tasks; does nothing if `age_ms`
/// is `None`. A failure is printed, not returned: it does not change the outcome of the current
/// run.
pub(super) fn keep_days(invocation: &Invocation, age_ms: Option<u64>, current: &RunId) {
    let Some(age_ms) = age_ms else { return };
    let removed = invocation.queue_if_any().and_then(|queue| {
        let old = Old::find(invocation, queue.as_ref(), age_ms, false, Some(current))?;
        let workspace = invocation.open_workspace()?;
        let mut gone = Vec::new();
        for (id, path) in &old.runs {
            tracing::info!("removing run {id}, which is old");
            if remove(&workspace, path, id, age_ms, false)? {
                gone.push(id.clone());
            }
        }
        let Some(queue) = queue.filter(|_| !gone.is_empty()) else { return Ok(()) };
        let heaps = retention::tasks_of_runs(&queue, &old.without(gone.iter()));
        heaps.map_err(|error| unreadable_queue(&error))?.iter().try_for_each(throw_away)
    });
    if let Err(failure) = removed {
        failure::print(&failure, false);
    }
}

/// The runs that can be removed, and all runs.
struct Old {
    runs: Vec<(RunId, PathBuf)>,
    /// Runs that are old enough but are kept, each with the reason.
    staying: Vec<(RunId, Stays)>,
    all: HashSet<RunId>,
    open: HashSet<RunId>,
}

/// The reason to keep a run that is old enough.
enum Stays {
    /// It waits for a user's answer.
    Asks,
    /// This many of its processes are alive. Without the run, no command could end them.
    Runs(usize),
    /// It belongs to another workspace.
    Elsewhere(PathBuf),
}

impl Stays {
    fn words(&self, id: &RunId) -> String {
        match self {
            Stays::Asks => format!(
                "it waits for a person; answer it, or end it with `{ORCHESTRATE} cancel {id}`"
            ),
            Stays::Runs(left) => format!(
                "{}; `{ORCHESTRATE} cancel {id}` ends it and what is left",
                view::still_run(*left)
            ),
            Stays::Elsewhere(home) => format!("it is of the workspace `{}`", home.display()),
        }
    }
}

impl Old {
    fn find(
        invocation: &Invocation,
        queue: Option<&Arc<Queue>>,
        age_ms: u64,
        stopped: bool,
        current: Option<&RunId>,
    ) -> Result<Old, Failure> {
        let dir = &invocation.state_dir;
        if let Err(error) = fs::read_dir(dir)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            return Err(Failure::failed(format!("cannot list `{}`: {error}", dir.display())));
        }
        let workspace = invocation.open_workspace()?;
        // A run whose task is waiting for a coordinator, or is claimed by one, is not over.
        let out = queue.map(|queue| run_task::out(queue)).transpose();
        let out = out.map_err(|error| unreadable_queue(&error))?.unwrap_or_default();
        let (mut runs, mut staying) = (Vec::new(), Vec::new());
        let (mut all, mut open) = (HashSet::new(), HashSet::new());
        for id in runs_in(dir) {
            let path = dir.join(id.as_str());
            let (over, old) = look_at(&path, &id, age_ms);
            if !over {
                open.insert(id.clone());
            }
            let goes = old && (over || stopped) && Some(&id) != current;
            let elsewhere = if goes { home::elsewhere(invocation, &path) } else { None };
            if let Some(home) = elsewhere {
                staying.push((id.clone(), Stays::Elsewhere(home)));
            } else if goes && !over && asks(&workspace, &path) {
                staying.push((id.clone(), Stays::Asks));
            } else if goes && !lock::is_held(&path) && !out.contains_key(id.as_str()) {
                let queue = queue.filter(|_| !over);
                let left = if over { 0 } else { exec::left_behind(&format!("{id}/")) };
                if left > 0 {
                    staying.push((id.clone(), Stays::Runs(left)));
                } else if !queue.is_some_and(|queue| has_steps_out(queue, &workspace, &path)) {
                    runs.push((id.clone(), path));
                }
            }
            all.insert(id);
        }
        runs.sort();
        staying.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(Old { runs, staying, all, open })
    }

    /// Returns the runs that remain when `gone` are removed.
    fn without<'a>(&self, gone: impl Iterator<Item = &'a RunId>) -> Runs {
        let gone: HashSet<RunId> = gone.cloned().collect();
        let kept = self.all.difference(&gone).cloned().collect();
        Runs { kept, open: self.open.difference(&gone).cloned().collect(), gone }
    }
}

/// Returns whether a run is over and whether it is old. A blocked or stopped run can be resumed,
/// and an unreadable run may be repaired: none of these is over.
fn look_at(path: &Path, id: &RunId, age_ms: u64) -> (bool, bool) {
    let (status, touched) = last_known(path, id);
    let over =
        matches!(status, Some(RunStatus::Completed | RunStatus::Failed | RunStatus::Cancelled));
    (over, SystemClock.now().ms_since(touched) > age_ms)
}

/// Returns true if a run waits for a user's answer, which has no time limit. A run that cannot be
/// repaired accepts no answer, so it counts as false.
fn asks(workspace: &Workspace, path: &Path) -> bool {
    match open::look(workspace, path) {
        Ok((_, run)) => run.has_gate(),
        Err(error) if error.is_final() => false,
        Err(_) => {
            let state = disk::machine().read(&path.join(store::STATE)).unwrap_or_default();
            matches!(snapshot::peek(&state), Some((RunStatus::Paused, _)))
        }
    }
}

/// Returns true if a step of the run is queued for a worker or being executed by one.
fn has_steps_out(queue: &Queue, workspace: &Workspace, path: &Path) -> bool {
    let Ok((_, run)) = open::look(workspace, path) else { return false };
    run_task::steps_out(&run).iter().any(|task| {
        let id = TaskId::parse(&task.id);
        let place = id.map(|id| queue.find(&task.agent, run.id.as_str(), &id));
        // A task whose place cannot be read counts as not ended.
        !matches!(place, None | Some(Ok(None | Some(Place::Ended { .. }))))
    })
}

/// Returns a run's status and the time of its last write, from its state file. If that cannot be
/// read, the time comes from the run's id.
fn last_known(path: &Path, id: &RunId) -> (Option<RunStatus>, Time) {
    let state = disk::machine().read(&path.join(store::STATE)).unwrap_or_default();
    let by_id = || {
        let s = id.stamp();
        Time::parse(&format!(
            "{}-{}-{}T{}:{}:{}Z",
            &s[..4],
            &s[4..6],
            &s[6..8],
            &s[9..11],
            &s[11..13],
            &s[13..15]
        ))
    };
    match snapshot::peek(&state) {
        Some((status, at)) => (Some(status), at),
        None => (None, by_id().unwrap_or_default()),
    }
}

/// Removes a run. Returns false if another process has picked it up since it was checked.
fn remove(
    workspace: &Workspace,
    path: &Path,
    id: &RunId,
    age_ms: u64,
    stopped: bool,
) -> Result<bool, Failure> {
    // A run that cannot be locked cannot be resumed either, so it is removed without a lock.
    let lock = lock::take_if_any(path);
    if matches!(lock, Err(LockError::Held { .. })) {
        return Ok(false);
    }
    let (over, old) = look_at(path, id, age_ms);
    if !old || !(over || stopped) || (!over && asks(workspace, path)) {
        return Ok(false);
    }
    remove_run(path, lock)
        .map_err(|error| Failure::failed(format!("cannot remove `{}`: {error}", path.display())))?;
    Ok(true)
}

/// Removes the directory of a locked run. Removes the definition first: without it no process can
/// lock the run. The lock is then released before the rest is removed, because an NFS client keeps
/// an open file that is removed as `.nfs*`, and the directory would not be empty.
fn remove_run(path: &Path, lock: Result<RunLock, LockError>) -> std::io::Result<()> {
    match fs::remove_file(path.join(store::DEFINITION)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => drop(lock),
    }
    fs::remove_dir_all(path)
}

/// Returns the ids of the beads of some runs, each with its run.
fn beads_in(dir: &Path, runs: HashSet<RunId>) -> HashMap<String, RunId> {
    let mut beads = HashMap::new();
    for run in runs {
        let origin = crate::store::origin(&dir.join(run.as_str()));
        let Some(request) = origin.and_then(|origin| origin.request) else { continue };
        for bead in request.bead.iter().chain(request.beads.values()) {
            beads.extend(bead["id"].as_str().map(|id| (id.to_owned(), run.clone())));
        }
    }
    beads
}

/// Removes the link `latest` if its target is missing.
fn mend_latest(dir: &Path) {
    let link = dir.join("latest");
    if fs::symlink_metadata(&link).is_ok() && !link.is_present() {
        let _ = fs::remove_file(link);
    }
}
