//! Repairs misplaced files: by the moves of the protocol, or by moving them to `lost/`.
//!
//! **Invariant:** no file is removed. A file that no move of the protocol fits goes to `lost/`,
//! with a note that states its origin. The note is written and synced before the move.
//!
//! **Invariant:** each move is one rename to a name that only this process can choose. A crash
//! between two moves leaves a state that the next scan finds again, and two concurrent repairs do
//! not undo each other's work.

use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::claim::Found;
use super::moves::parent;
use super::name::{ClaimName, TaskId, TaskName};
use super::{Claim, End, Ending, Layout, Queue, Task, VolumeFault, seal, status, volume};
use crate::disk::Disk;

/// Reason in the status of a task whose own status was lost.
const STATUS_LOST: &str = "status_lost";

/// Result of the diagnosis of a waiting file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Judged {
    /// The task waits in the correct inbox, under this name.
    Put { agent: String, name: TaskName },
    /// The file is not a complete task, and it ended in `failed/unreadable/`.
    Unreadable,
    /// The file fits nowhere, or is a copy; it was moved to this path.
    Aside(PathBuf),
    /// Another process took the file first.
    Gone,
}

impl Queue {
    /// Moves any file to `lost/`, with a note next to it that states its origin and the reason.
    /// Returns the new path, or `None` if the file no longer exists.
    pub(crate) fn set_aside(
        &self,
        path: &Path,
        kind: &str,
        why: &str,
    ) -> io::Result<Option<PathBuf>> {
        let (dir, word) = (self.layout.lost(), self.word());
        self.need_dir(&dir)?;
        let from = path.strip_prefix(&self.layout.root).unwrap_or(path);
        let note = json!({
            "schema": "lost/v1", "from": from.to_string_lossy(), "kind": kind, "why": why,
            "by": self.me,
        });
        let (to, beside) = (dir.join(&word), dir.join(format!("{word}.json")));
        self.write_one(&beside, format!("{note}\n").into_bytes(), true)?;
        self.disk.sync_dir(&dir)?;
        if self.move_unique(path, &to)? == Ending::Fenced {
            // The note describes no file.
            self.disk.remove(&beside)?;
            return Ok(None);
        }
        // Sync the new name first: the file must not be missing from both places after a crash.
        self.disk.sync_dir(&dir)?;
        self.disk.sync_dir(parent(path))?;
        Ok(Some(to.strip_prefix(&self.layout.root).unwrap_or(&to).to_owned()))
    }

    /// Claims a waiting file and moves it to the place that its content states: the inbox of its
    /// own agent, under its own id, as the next attempt. `lies_elsewhere` returns true if another
    /// file already is that task.
    pub(crate) fn judge_waiting(
        &self,
        agent: &str,
        name: &TaskName,
        lies_elsewhere: &dyn Fn(&TaskId) -> bool,
    ) -> io::Result<Judged> {
        let Some(held) = self.take_one(agent, name)? else { return Ok(Judged::Gone) };
        let judged = self.judge_held(agent, &held, lies_elsewhere);
        self.let_go(&held);
        judged
    }

    fn judge_held(
        &self,
        agent: &str,
        held: &ClaimName,
        lies_elsewhere: &dyn Fn(&TaskId) -> bool,
    ) -> io::Result<Judged> {
        let claim = match self.read_claim(agent, held)? {
            Found::Task(claim) => *claim,
            Found::Unreadable(reason) => {
                self.end_unreadable(agent, held, &reason)?;
                return Ok(Judged::Unreadable);
            }
            Found::Gone => return Ok(Judged::Gone),
        };
        let from = self.layout.claimed(agent).join(held.file());
        let text = |key: &str| claim.task.document.get(key).and_then(Value::as_str);
        let own = text("id").map_or(Some(held.task.id.clone()), TaskId::parse);
        let owner = text("agent").unwrap_or(agent).to_owned();
        let fits = own.filter(|id| *id == held.task.id || !lies_elsewhere(id));
        let (Some(id), Ok(inbox)) = (fits, self.inbox(&owner)) else {
            let why = "it says that it is a task that lies elsewhere, or that cannot be";
            let aside = self.set_aside(&from, "misplaced", why)?;
            return Ok(aside.map_or(Judged::Gone, Judged::Aside));
        };
        self.open_agent(&owner)?;
        let next = held.task.next(false);
        let next = TaskName { id, crashes: next.crashes.min(held.task.attempt.number()), ..next };
        match self.move_unique(&from, &inbox.join(next.file()))? {
            Ending::Fenced => Ok(Judged::Gone),
            Ending::Committed => {
                self.sync_dirs([inbox.as_path(), parent(&from)]).check_all()?;
                Ok(Judged::Put { agent: owner, name: next })
            }
        }
    }

    /// Returns an ended task as a claim, so that it can get a status. Returns `None` if the task is
    /// not readable.
    pub(crate) fn ended_claim(
        &self,
        end: End,
        batch: &str,
        name: &ClaimName,
        by: &str,
    ) -> io::Result<Option<Claim>> {
        let path = self.layout.end(end, batch).join(name.ended(by));
        let document = self.read_task_file(&path)?.and_then(|bytes| seal::unseal(&bytes));
        let Some(document) = document else { return Ok(None) };
        let agent = document.get("agent").and_then(Value::as_str).unwrap_or_default().to_owned();
        let task = Task::read(name.task.clone(), &agent, document);
        Ok(task.map(|task| Claim::new(name.clone(), &agent, task)))
    }

    /// Writes a status for an ended task, unless it has one.
    pub(crate) fn give_status(
        &self,
        end: End,
        claim: &Claim,
        status: &Map<String, Value>,
    ) -> io::Result<()> {
        let dir = self.layout.end(end, &claim.task.batch);
        self.need_dir(&dir)?;
        let temporary = self.write_temporary(&seal::seal(status), None)?;
        let path = dir.join(claim.name.status());
        if self.disk.mode(&path).is_err() {
            self.disk.rename(&temporary, &path)?;
            return self.disk.sync_dir(&dir);
        }
        // Another process wrote a status first.
        self.disk.remove(&temporary)
    }

    /// Returns a status for a task whose own status is lost, so that its result is unknown.
    pub(crate) fn lost_status(&self, claim: &Claim, success: bool) -> Map<String, Value> {
        let message = "it has ended, but its status is lost: nobody knows how it went";
        let mut status = status::of_claim(claim, STATUS_LOST, message);
        status.insert("attempt".into(), claim.name.task.attempt.into());
        if success {
            status.insert("success".into(), true.into());
            status.insert("exit_code".into(), 0.into());
            status.shift_remove("error");
        }
        status
    }

    /// Moves an ended task to `failed/`. Its status must already be there.
    pub(crate) fn end_as_failed(&self, end: End, claim: &Claim, by: &str) -> io::Result<Ending> {
        let from = self.layout.end(end, &claim.task.batch).join(claim.name.ended(by));
        let dir = self.layout.end(End::Failed, &claim.task.batch);
        self.move_synced(&from, &dir.join(claim.name.ended(&self.me)))
    }

    /// Moves an ended task from one batch to its own batch, its status first.
    pub(crate) fn move_to_batch(
        &self,
        end: End,
        (from, to): (&str, &str),
        name: &ClaimName,
        by: &str,
    ) -> io::Result<Ending> {
        super::check_name(to, "a batch")?;
        let (old, new) = (self.layout.end(end, from), self.layout.end(end, to));
        self.need_dir(&new)?;
        // An earlier repair that was interrupted may have moved the status already.
        self.move_synced(&old.join(name.status()), &new.join(name.status()))?;
        self.move_synced(&old.join(name.ended(by)), &new.join(name.ended(by)))
    }

    /// Moves a status that belongs to no ended task to the evidence directory.
    pub(crate) fn keep_stray(&self, path: &Path) -> io::Result<Ending> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let dir = self.layout.evidence();
        self.need_dir(&dir)?;
        self.move_synced(path, &dir.join(format!("{name}.{}", self.word())))
    }

    /// Returns true if a worker holds the claim.
    pub(crate) fn is_held(&self, name: &ClaimName) -> io::Result<bool> {
        for agent in self.list_dirs(&self.layout.all_claimed())? {
            if self.claims(&agent)?.contains(name) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn move_synced(&self, from: &Path, to: &Path) -> io::Result<Ending> {
        self.need_dir(parent(to))?;
        let ending = self.move_unique(from, to)?;
        if ending == Ending::Committed {
            self.disk.sync_dir(parent(to))?;
            self.disk.sync_dir(parent(from))?;
        }
        Ok(ending)
    }
}

/// Gives a queue a new name if its name is missing or damaged; keeps the damaged file in `lost/`.
/// Call it only while no process works on the queue: such a process knows the queue by its old
/// name.
pub(crate) fn name_anew(
    disk: &dyn Disk,
    layout: &Layout,
    fault: &VolumeFault,
    word: &str,
) -> io::Result<()> {
    let (file, dir) = (layout.fleet_file(), layout.lost());
    disk.make_dirs(&dir)?;
    if let VolumeFault::Damaged { reason, .. } = fault {
        let note = json!({
            "schema": "lost/v1", "from": ".orchestrate/fleet.json", "kind": "volume", "why": reason,
        });
        let beside = dir.join(format!("{word}.json"));
        disk.write(&beside, format!("{note}\n").as_bytes())?;
        disk.sync(&beside)?;
        disk.rename(&file, &dir.join(word))?;
        disk.sync_dir(&dir)?;
    }
    let temporary = dir.join(format!("{word}.name"));
    disk.write(&temporary, format!("{}\n", volume::document(word)).as_bytes())?;
    disk.sync(&temporary)?;
    // Fails if an operator restored the file meanwhile: the restored name is the right one.
    let linked = disk.link(&temporary, &file);
    disk.remove(&temporary)?;
    linked?;
    disk.sync_dir(parent(&file))
}
