//! Marker files that users create for the fleet: tasks to cancel, agents to pause. Only the name
//! counts, and it is read from a directory listing.

use std::collections::HashSet;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::check_name;
use super::claim::Found;
use super::listing::Pace;
use super::moves::parent;
use super::name::TaskName;
use super::status::CANCELLED;
use super::{End, Ending, Queue, Task};
use crate::base::host::{self, lock};

/// Markers found by the last scan.
#[derive(Default)]
pub(super) struct Marks {
    pace: Pace,
    seen: Arc<Seen>,
}

#[derive(Default)]
pub(super) struct Seen {
    cancels: HashSet<String>,
    pauses: HashSet<String>,
}

impl Seen {
    pub(super) fn is_paused(&self, agent: &str) -> bool {
        self.pauses.contains(agent)
    }

    /// Returns true if a task is to be cancelled, by its own id or as a step of a cancelled run. A
    /// task that stands for the run itself is not a step of it: the coordinator that drives the run
    /// must receive it, to end the run in order.
    pub(super) fn is_cancelled(&self, task: &Task) -> bool {
        if self.cancels.is_empty() {
            return false;
        }
        let member = |key| task.document.get(key).and_then(Value::as_str);
        let run = member("run_id").filter(|_| task.document.contains_key("step"));
        self.cancels.contains(task.name.id.as_str())
            || run.is_some_and(|run| self.cancels.contains(run))
    }
}

impl Queue {
    /// Returns the markers, at most slightly outdated. Scans take at most a twentieth of the time,
    /// so a claim pays almost nothing for them.
    pub(super) fn current_marks(&self) -> io::Result<Arc<Seen>> {
        let mut marks = lock(&self.marks);
        if marks.pace.is_due(Duration::ZERO) {
            let since = host::instant();
            let cancels = self.markers(&self.layout.cancel())?;
            let pauses = self.markers(&self.layout.pause())?;
            marks.seen = Arc::new(Seen { cancels, pauses });
            marks.pace.looked(since);
        }
        Ok(marks.seen.clone())
    }

    fn forget_marks(&self) {
        lock(&self.marks).pace.forget();
    }

    fn markers(&self, dir: &Path) -> io::Result<HashSet<String>> {
        let mut markers = HashSet::new();
        self.scan(dir, &mut |file| {
            // Some systems create hidden files of their own.
            markers.extend((!file.starts_with('.')).then(|| file.to_owned()));
            ControlFlow::Continue(())
        })?;
        Ok(markers)
    }

    /// Returns the ids of tasks and runs whose cancellation is requested.
    pub(crate) fn cancel_requests(&self) -> io::Result<HashSet<String>> {
        let cancels = self.markers(&self.layout.cancel())?;
        if cancels.is_empty() {
            self.need_volume()?;
        }
        Ok(cancels)
    }

    /// Requests the cancellation of a task in any state, or of all tasks of a run.
    pub(crate) fn request_cancel(&self, id: &str) -> io::Result<()> {
        check_name(id, "a task or a run")?;
        self.mark(&self.layout.cancel().join(id), b"")
    }

    /// Removes a cancellation request. Does nothing if there is none.
    pub(crate) fn forget_cancel(&self, id: &str) -> io::Result<()> {
        check_name(id, "a task or a run")?;
        self.unmark(&self.layout.cancel().join(id))
    }

    /// Pauses an agent: no process claims its tasks until [`resume`](Self::resume).
    pub(crate) fn pause(&self, agent: &str, reason: &str) -> io::Result<()> {
        check_name(agent, "an agent")?;
        self.mark(&self.layout.pause().join(agent), reason.as_bytes())
    }

    pub(crate) fn resume(&self, agent: &str) -> io::Result<()> {
        check_name(agent, "an agent")?;
        self.unmark(&self.layout.pause().join(agent))
    }

    /// Returns the reason for an agent's pause, or `None` if it is not paused.
    pub(crate) fn paused(&self, agent: &str) -> io::Result<Option<String>> {
        use io::ErrorKind::{InvalidData, IsADirectory};
        check_name(agent, "an agent")?;
        match self.read_file(&self.layout.pause().join(agent)) {
            // Only the name counts; the file may be of any type.
            Err(error) if matches!(error.kind(), InvalidData | IsADirectory) => {
                Ok(Some(String::new()))
            }
            bytes => Ok(bytes?.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())),
        }
    }

    /// Creates or replaces a marker atomically.
    fn mark(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.need_dir(parent(path))?;
        let temporary = self.write_temporary(bytes, None)?;
        self.put(&temporary, path)?;
        self.forget_marks();
        self.sync_dirs([parent(path)]).check_all()
    }

    fn unmark(&self, path: &Path) -> io::Result<()> {
        let removed = match self.disk.remove(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            removed => removed,
        };
        self.forget_marks();
        removed?;
        self.sync_dirs([parent(path)]).check_all()
    }

    /// Cancels a waiting task. Returns `Fenced` if another process claimed it first.
    pub(crate) fn cancel_waiting(&self, agent: &str, name: &TaskName) -> io::Result<Ending> {
        let Some(name) = self.take_one(agent, name)? else { return Ok(Ending::Fenced) };
        let ending = match self.read_claim(agent, &name) {
            Ok(Found::Task(claim)) => {
                self.end_claim(*claim, End::Cancelled, CANCELLED, "cancelled before it was claimed")
            }
            Ok(Found::Unreadable(reason)) => self.end_unreadable(agent, &name, &reason),
            Ok(Found::Gone) => Ok(Ending::Fenced),
            Err(error) => Err(error),
        };
        self.let_go(&name);
        ending
    }
}
