//! Enqueues tasks.
//!
//! The order: write each file completely under a private name and, in durable mode, sync it; then
//! rename all of them into their inboxes; then sync each inbox once. Only then is anything
//! promised. A crash before that leaves private files, which a sweep removes, or tasks that were
//! not promised to any caller.

use std::io;
use std::path::{Path, PathBuf};

use super::check_name;
use super::moves::{Patience, again, parent};
use super::name::ClaimName;
use super::{Claim, End, Ending, Published, Queue, Still, Task, seal};

/// Maximum number of serialized tasks in memory at once.
const GROUP: usize = 256;

impl Queue {
    /// Puts tasks into their agents' inboxes. After `Ok`, they will be executed: in durable mode
    /// they survive a power failure.
    pub(crate) fn enqueue(&self, tasks: &[Task]) -> io::Result<()> {
        let published = self.enqueue_while(tasks, &|_| Ok(true)).into_iter();
        let mut failed = published.filter_map(|published| match published {
            Published::Yes | Published::Refused => None,
            Published::No(error) | Published::Unknown(error) => Some(error),
        });
        failed.next().map_or(Ok(()), Err)
    }

    /// Like [`enqueue`](Self::enqueue), but publishes each task only if `still` accepts it right
    /// before it appears: writing takes long, and a process that was paused meanwhile may have lost
    /// its right to publish. Returns one result per task, in order.
    pub(crate) fn enqueue_while(&self, tasks: &[Task], still: Still) -> Vec<Published> {
        let moves = match self.write_all(tasks) {
            Ok(moves) => moves,
            Err(error) => return tasks.iter().map(|_| Published::No(again(&error))).collect(),
        };
        let mut fault: Option<io::Error> = None;
        let mut published = Vec::with_capacity(tasks.len());
        for (task, (from, to)) in tasks.iter().zip(&moves) {
            let put = match &fault {
                // After the first failure, no further task is tried.
                Some(error) => self.put_none(from, again(error)),
                None => match still(task) {
                    Ok(true) => self
                        .put(from, to)
                        .map_or_else(|error| self.put_none(from, error), |()| Published::Yes),
                    Ok(false) => {
                        self.drop_half(from);
                        Published::Refused
                    }
                    Err(error) => self.put_none(from, error),
                },
            };
            if let (None, Published::No(error) | Published::Unknown(error)) = (&fault, &put) {
                fault = Some(again(error));
            }
            published.push(put);
        }
        let unsynced = self.sync_dirs(moves.iter().map(|(_, to)| parent(to)));
        for (put, (_, to)) in published.iter_mut().zip(&moves) {
            // The task may be lost after a power failure.
            if let (Published::Yes, Err(error)) = (&put, unsynced.check(parent(to))) {
                *put = Published::Unknown(error);
            }
        }
        published
    }

    /// Writes tasks under private names, all or none. Returns the private path and the target path
    /// of each.
    fn write_all(&self, tasks: &[Task]) -> io::Result<Vec<(PathBuf, PathBuf)>> {
        let mut moves: Vec<(PathBuf, PathBuf)> = Vec::with_capacity(tasks.len());
        for group in tasks.chunks(GROUP) {
            let written = self.make_dirs_of(group).and_then(|()| self.write_tasks(group));
            let written = written.inspect_err(|_| {
                moves.iter().for_each(|(from, _)| self.drop_half(from));
            })?;
            let targets = group.iter().map(|t| self.layout.inbox(&t.agent).join(t.name.file()));
            moves.extend(written.into_iter().zip(targets));
        }
        Ok(moves)
    }

    /// Creates the directories that the tasks will use, before any machine looks for them.
    fn make_dirs_of(&self, tasks: &[Task]) -> io::Result<()> {
        for task in tasks {
            check_name(&task.batch, "a batch")?;
            self.open_agent(&task.agent)?;
            self.need_dir(&self.layout.end(End::Processed, &task.batch))?;
        }
        Ok(())
    }

    /// Gives up on a task that could not be published. If its private file can be removed, the file
    /// was not renamed, and no call still on its way to the server can rename it.
    fn put_none(&self, from: &Path, error: io::Error) -> Published {
        match self.disk.remove(from) {
            Ok(()) => Published::No(error),
            Err(_) => Published::Unknown(error),
        }
    }

    /// Enqueues a task that this process has already claimed.
    pub(crate) fn enqueue_claimed(&self, task: &Task) -> io::Result<Claim> {
        check_name(&task.batch, "a batch")?;
        self.open_agent(&task.agent)?;
        let name =
            ClaimName { task: task.name.clone(), worker: self.me.clone(), claim: self.word() };
        let target = self.layout.claimed(&task.agent).join(name.file());
        let written = self.write_tasks(std::slice::from_ref(task))?;
        self.hold(&name);
        let put = written.iter().try_for_each(|from| self.put(from, &target));
        let put = put.and_then(|()| self.sync_dirs([parent(&target)]).check_all());
        if let Err(error) = put {
            self.let_go(&name);
            return Err(error);
        }
        Ok(Claim::new(name, &task.agent, task.clone()))
    }

    /// Renames a private file to its target name.
    pub(super) fn put(&self, from: &Path, to: &Path) -> io::Result<()> {
        match self.move_unique(from, to)? {
            Ending::Committed => Ok(()),
            Ending::Fenced => {
                let text = format!("`{}` was removed before it was put out", from.display());
                Err(io::Error::other(text))
            }
        }
    }

    /// Writes tasks under private names, all or none.
    fn write_tasks(&self, tasks: &[Task]) -> io::Result<Vec<PathBuf>> {
        let files: Vec<(PathBuf, Vec<u8>)> =
            tasks.iter().map(|task| (self.temporary(), document(task))).collect();
        let results = self.disk.write_new(&files, self.durable);
        let (mut written, mut fault) = (Vec::with_capacity(files.len()), None);
        for ((path, bytes), result) in files.into_iter().zip(results) {
            match result {
                Ok(()) => written.push(path),
                Err(error) => {
                    self.drop_half(&path);
                    // After the first failure, no further write is retried.
                    if fault.is_none() {
                        match self.write_temporary(&bytes, Some(error)) {
                            Ok(path) => written.push(path),
                            Err(error) => fault = Some(error),
                        }
                    }
                }
            }
        }
        let Some(error) = fault else { return Ok(written) };
        // All or none: remove the files that were written.
        written.iter().for_each(|path| self.drop_half(path));
        Err(error)
    }

    /// Writes a private file, after an earlier write that failed with `error`. Each try uses a new
    /// name and is synced as a whole, so nothing of a failed try counts.
    pub(super) fn write_temporary(
        &self,
        bytes: &[u8],
        mut error: Option<io::Error>,
    ) -> io::Result<PathBuf> {
        let mut patience = Patience::new(self.patience);
        loop {
            match error.take() {
                Some(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.make_dir(&self.layout.tmp())?;
                }
                Some(error) => patience.wait(error)?,
                None => {}
            }
            let path = self.temporary();
            match self.write_one(&path, bytes.to_vec(), self.durable) {
                Ok(()) => return Ok(path),
                Err(failed) => error = Some(failed),
            }
            self.drop_half(&path);
        }
    }

    /// Removes the remains of a failed write, if possible.
    fn drop_half(&self, path: &Path) {
        let _ = self.disk.remove(path);
    }
}

/// Returns the content of a task's file, including the members that the queue reads.
fn document(task: &Task) -> Vec<u8> {
    let over = [
        ("agent", task.agent.as_str().into()),
        ("batch", task.batch.as_str().into()),
        ("crash_limit", task.crash_limit.into()),
    ];
    seal::seal_with(&task.document, &over)
}
