//! Ends claimed tasks and returns them to their inbox.
//!
//! The order: write the status into the directory that the task will end in and, in durable mode,
//! sync it and its name; then move the task, which is the commit; then sync the directories. No
//! process reads a status before its task is there, and a partial status has no seal, so the status
//! needs no rename of its own. If another process moved the task meanwhile, its status becomes
//! evidence.

use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::moves::{Patience, parent};
use super::name::{ClaimName, TaskName};
use super::{Claim, End, Ending, Finish, Queue, Unfinished, seal, status};

impl Queue {
    /// Ends claimed tasks, each with its status. The move of a task is its commit. Returns one
    /// result per task, in order.
    pub(crate) fn complete(&self, done: Vec<Finish>) -> Vec<Result<Ending, Unfinished>> {
        let results = self.complete_all(&done);
        let unfinished = |finish, error| Unfinished { finish: Box::new(finish), error };
        results
            .into_iter()
            .zip(done)
            .map(|(result, finish)| result.map_err(|error| unfinished(finish, error)))
            .collect()
    }

    /// Like [`complete`](Self::complete), for one task.
    pub(crate) fn complete_one(&self, done: Finish) -> Result<Ending, Unfinished> {
        self.complete(vec![done]).pop().unwrap_or(Ok(Ending::Fenced))
    }

    fn complete_all(&self, done: &[Finish]) -> Vec<io::Result<Ending>> {
        let dirs: Vec<PathBuf> =
            done.iter().map(|f| self.layout.end(f.end, &f.claim.task.batch)).collect();
        let mut results = self.write_statuses(done, &dirs);
        let unsynced = self.sync_dirs(good(&dirs, &results));
        for ((result, finish), dir) in results.iter_mut().zip(done).zip(&dirs) {
            if result.is_ok() {
                *result = unsynced.check(dir).and_then(|()| self.commit(&finish.claim, dir));
            }
        }
        let claimed: Vec<PathBuf> =
            done.iter().map(|f| self.layout.claimed(&f.claim.agent)).collect();
        // Sync the new names first: the file must not be missing from both places after a crash.

        let unsynced = self.sync_dirs(good(&dirs, &results));
        // If this fails, the reaper finds the file in both places and sees that it ended.
        let _ = self.sync_dirs(good(&claimed, &results));
        for ((result, finish), dir) in results.iter_mut().zip(done).zip(&dirs) {
            self.let_go(&finish.claim.name);
            if matches!(result, Ok(Ending::Committed)) {
                if let Err(error) = unsynced.check(dir) {
                    *result = Err(error);
                }
            } else if matches!(result, Ok(Ending::Fenced)) {
                self.keep_evidence(&finish.claim.name, dir);
            }
        }
        results
    }

    /// Writes each status. `Committed` means "written" here.
    fn write_statuses(&self, done: &[Finish], dirs: &[PathBuf]) -> Vec<io::Result<Ending>> {
        for dir in dirs {
            // If this fails, the write reports the error.
            let _ = self.need_dir(dir);
        }
        let files: Vec<(PathBuf, Vec<u8>)> = done
            .iter()
            .zip(dirs)
            .map(|(finish, dir)| (dir.join(finish.claim.name.status()), seal::seal(&finish.status)))
            .collect();
        let written = self.disk.write_new(&files, self.durable);
        let settle = |(written, (path, bytes)): (io::Result<()>, &(PathBuf, Vec<u8>))| match written
        {
            Ok(()) => Ok(Ending::Committed),
            Err(error) => self.write_status_again(path, bytes, error),
        };
        written.into_iter().zip(&files).map(settle).collect()
    }

    /// Writes a status after the first write failed with `error`.
    fn write_status_again(
        &self,
        path: &Path,
        bytes: &[u8],
        mut error: io::Error,
    ) -> io::Result<Ending> {
        let mut patience = Patience::new(self.patience);
        loop {
            match error.kind() {
                // The directory was removed.
                io::ErrorKind::NotFound => self.make_dir(parent(path))?,
                // An earlier attempt to end this claim left a status. The first complete status
                // counts.
                io::ErrorKind::AlreadyExists => return self.keep_or_replace(path, bytes),
                _ => patience.wait(error)?,
            }
            match self.write_one(path, bytes.to_vec(), self.durable) {
                Ok(()) => return Ok(Ending::Committed),
                Err(failed) => error = failed,
            }
        }
    }

    fn keep_or_replace(&self, path: &Path, bytes: &[u8]) -> io::Result<Ending> {
        let ours = seal::unseal(bytes);
        let found = self.read_file(path)?.and_then(|bytes| seal::unseal(&bytes));
        let ticket = |status: &Option<Map<String, Value>>| status.as_ref()?.get("ticket").cloned();
        // A status without the task's ticket does not come from a holder of the task.
        let ours_or_earlier = found.is_some() && ticket(&found) == ticket(&ours);
        if found.is_some() && !ours_or_earlier {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let aside = self.layout.evidence().join(format!("{name}.{}", self.word()));
            self.disk.rename(path, &aside)?;
        }
        if !ours_or_earlier {
            let temporary = self.write_temporary(bytes, None)?;
            self.disk.rename(&temporary, path)?;
        } else if self.durable {
            self.disk.sync(path)?;
        }
        Ok(Ending::Committed)
    }

    fn commit(&self, claim: &Claim, dir: &Path) -> io::Result<Ending> {
        let from = self.layout.claimed(&claim.agent).join(claim.name.file());
        self.move_unique(&from, &dir.join(claim.name.ended(&self.me)))
    }

    /// Ends a claim with a status that the queue writes itself.
    pub(super) fn end_claim(
        &self,
        claim: Claim,
        end: End,
        reason: &str,
        message: &str,
    ) -> io::Result<Ending> {
        let status = status::of_claim(&claim, reason, message);
        Ok(self.complete_one(Finish { claim, end, status })?)
    }

    /// Ends a claim whose status already exists.
    pub(super) fn finish_forward(&self, claim: Claim, end: End) -> io::Result<Ending> {
        let dir = self.layout.end(end, &claim.task.batch);
        let from = self.layout.claimed(&claim.agent).join(claim.name.file());
        // After a power failure, a disk without a journal may keep a file under both names.

        if self.is_ended(&dir, &claim.name)? {
            self.disk.remove(&from)?;
            return Ok(Ending::Fenced);
        }
        if self.durable {
            self.disk.sync(&dir.join(claim.name.status()))?;
        }
        self.sync_dirs([dir.as_path()]).check_all()?;
        let ending = self.commit(&claim, &dir)?;
        self.sync_dirs([dir.as_path()]).check_all()?;
        Ok(ending)
    }

    /// Returns a claimed task to its inbox. The attempt does not count as a crash. After an error
    /// the task is a claim that no thread knows of: [`adopt_surprises`](Self::adopt_surprises)
    /// returns it later.
    pub(crate) fn release(&self, claim: Claim) -> io::Result<Ending> {
        let next = claim.name.task.next(false);
        self.give_back(claim, &next)
    }

    /// Puts a claimed task back into its inbox. Needs no sync: if a power failure undoes the move,
    /// it is done again.
    pub(super) fn give_back(&self, claim: Claim, next: &TaskName) -> io::Result<Ending> {
        let from = self.layout.claimed(&claim.agent).join(claim.name.file());
        let to = self.inbox(&claim.agent)?.join(next.file());
        let moved = self.move_unique(&from, &to);
        self.let_go(&claim.name);
        moved
    }

    /// Returns true if a claim ended in `dir`, no matter which process ended it.
    fn is_ended(&self, dir: &Path, name: &ClaimName) -> io::Result<bool> {
        let stem = name.stem();
        let is_it = |file: &str| {
            file.starts_with(&stem) && ClaimName::parse_ended(file).is_some_and(|(n, _)| n == *name)
        };
        Ok(self.first(dir, |file| is_it(file).then_some(()))?.is_some())
    }

    /// Moves the status of a fenced claim to the evidence directory, for users to inspect. If the
    /// claim ended in `dir` after all, another process finished it forward, and the status stays.
    fn keep_evidence(&self, name: &ClaimName, dir: &Path) {
        let path = dir.join(name.status());
        let aside = self.layout.evidence().join(format!("{}.{}", name.status(), self.me));
        let kept = self.is_ended(dir, name).and_then(|counts| match counts {
            true => Ok(Ending::Committed),
            false => self.move_unique(&path, &aside),
        });
        if let Err(error) = kept {
            tracing::warn!("`{}` stays where it is: {error}", path.display());
        }
    }

    /// Puts an ended task back into its inbox as the next attempt. Resets its crash count and
    /// removes a request to cancel it. `by` is the process that ended it, as [`Queue::ended`]
    /// returns it.
    pub(crate) fn requeue(
        &self,
        end: End,
        batch: &str,
        name: &ClaimName,
        by: &str,
    ) -> io::Result<Ending> {
        let dir = self.layout.end(end, batch);
        let from = dir.join(name.ended(by));
        let Some(bytes) = self.read_task_file(&from)? else { return Ok(Ending::Fenced) };
        let agent = seal::unseal(&bytes).and_then(|d| Some(d.get("agent")?.as_str()?.to_owned()));
        let Some(agent) = agent else {
            let text = format!("`{}` is no whole task: it cannot be executed", from.display());
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        };
        self.open_agent(&agent)?;
        // Otherwise the next claim would cancel the task again.
        self.forget_cancel(name.task.id.as_str())?;
        let next = TaskName { crashes: 0, ..name.task.next(false) };
        let to = self.layout.inbox(&agent).join(next.file());
        let ending = self.move_unique(&from, &to)?;
        self.sync_dirs([parent(&to)]).check_all()?;
        self.sync_dirs([dir.as_path()]).check_all()?;
        if ending == Ending::Committed {
            self.keep_evidence(name, &dir);
        }
        Ok(ending)
    }
}

/// Returns the directories of the tasks without an error so far.
fn good<'a>(dirs: &'a [PathBuf], results: &[io::Result<Ending>]) -> impl Iterator<Item = &'a Path> {
    let well = |(dir, result): (&'a PathBuf, &io::Result<Ending>)| {
        matches!(result, Ok(Ending::Committed)).then_some(dir.as_path())
    };
    let dirs: Vec<&Path> = dirs.iter().zip(results).filter_map(well).collect();
    dirs.into_iter()
}
