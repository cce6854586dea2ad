//! Putting tasks out.
//!
//! The order: each file is written whole under a private name and, in durable mode, synced; then
//! all are renamed into their inboxes; then each inbox is synced once. Only then is anything
//! promised. A crash before that leaves private files, which are swept, or tasks that nobody was
//! promised.

use std::io;
use std::path::{Path, PathBuf};

use super::fs::check_name;
use super::moves::{Patience, parent};
use super::name::ClaimName;
use super::{Claim, Ending, FsQueue, Still, Task, seal};

/// How many tasks are held in memory, written out, at once.
const GROUP: usize = 256;

impl FsQueue {
    pub(super) fn put_out(&self, tasks: &[Task], still: Still) -> io::Result<Vec<bool>> {
        let mut moves = Vec::with_capacity(tasks.len());
        let put = self.write_and_put(tasks, still, &mut moves);
        if put.is_err() {
            // Those that were put have left their private names; nobody will ask for the others.
            moves.iter().for_each(|(from, _)| self.drop_half(from));
        }
        put
    }

    fn write_and_put(
        &self,
        tasks: &[Task],
        still: Still,
        moves: &mut Vec<(PathBuf, PathBuf)>,
    ) -> io::Result<Vec<bool>> {
        for group in tasks.chunks(GROUP) {
            for task in group {
                check_name(&task.batch, "a batch")?;
                self.open_agent(&task.agent)?;
            }
            let targets = group.iter().map(|t| self.layout.inbox(&t.agent).join(t.name.file()));
            moves.extend(self.write_tasks(group)?.into_iter().zip(targets));
        }
        let mut out = Vec::with_capacity(tasks.len());
        for (task, (from, to)) in tasks.iter().zip(moves.iter()) {
            let wanted = still(task)?;
            if wanted {
                self.put(from, to)?;
            } else {
                self.drop_half(from);
            }
            out.push(wanted);
        }
        self.sync_dirs(moves.iter().map(|(_, to)| parent(to))).check_all()?;
        Ok(out)
    }

    pub(super) fn put_out_claimed(&self, task: &Task) -> io::Result<Claim> {
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
        Ok(Claim { name, agent: task.agent.clone(), task: task.clone() })
    }

    /// Gives a private file the name that it is for.
    pub(super) fn put(&self, from: &Path, to: &Path) -> io::Result<()> {
        match self.move_unique(from, to)? {
            Ending::Committed => Ok(()),
            Ending::Fenced => {
                let text = format!("`{}` was removed before it was put out", from.display());
                Err(io::Error::other(text))
            }
        }
    }

    /// Writes tasks under private names.
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
                    // After one that cannot be written, no other is waited for.
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
        // All or none: what could be written is nobody's.
        written.iter().for_each(|path| self.drop_half(path));
        Err(error)
    }

    /// Writes a private file, after an earlier one that failed with `error`. Each try has a new
    /// name and is synced as a whole, so nothing of a failed one counts.
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

    /// Removes what a write that failed may have left, if it can.
    fn drop_half(&self, path: &Path) {
        let _ = self.disk.remove(path);
    }
}

/// A task's file, with the members that the queue reads.
fn document(task: &Task) -> Vec<u8> {
    let over = [
        ("agent", task.agent.as_str().into()),
        ("batch", task.batch.as_str().into()),
        ("crash_limit", task.crash_limit.into()),
    ];
    seal::seal_with(&task.document, &over)
}
