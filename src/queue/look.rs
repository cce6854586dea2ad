//! Read-only queries of the queue.

use std::io;
use std::ops::ControlFlow;
use std::path::Path;

use serde_json::{Map, Value};

use super::census::{ENDS, Listed};
use super::check_name;
use super::claim::SIZE_MAX;
use super::moves::{Patience, parent};
use super::name::{ClaimName, TaskId, TaskName};
use super::{End, Place, Queue, Task, seal};

fn unseen(path: &Path) -> io::Error {
    io::Error::other(format!("`{}` is listed but cannot be read", path.display()))
}

impl Queue {
    /// Returns every agent that has an inbox or claims.
    pub(crate) fn agents(&self) -> io::Result<Vec<String>> {
        self.census().agents()
    }

    /// Returns all claims of an agent.
    pub(crate) fn claims(&self, agent: &str) -> io::Result<Vec<ClaimName>> {
        check_name(agent, "an agent")?;
        Ok(self.census().claims(agent)?.entries)
    }

    /// Returns all tasks that wait for an agent, in claim order.
    pub(crate) fn waiting(&self, agent: &str) -> io::Result<Vec<TaskName>> {
        Ok(self.inbox_listing(agent)?.entries)
    }

    /// Returns all tasks that wait for an agent, in claim order, and the names of other files in
    /// its inbox.
    pub(crate) fn inbox_listing(&self, agent: &str) -> io::Result<Listed<TaskName>> {
        check_name(agent, "an agent")?;
        let mut inbox = self.census().waiting(agent)?;
        inbox.entries.sort_unstable_by(|a, b| {
            (a.priority, &a.id, a.attempt).cmp(&(b.priority, &b.id, b.attempt))
        });
        Ok(inbox)
    }

    /// Returns the tasks of a batch that ended as `end`, each with the process that ended it.
    pub(crate) fn ended(&self, end: End, batch: &str) -> io::Result<Vec<(ClaimName, String)>> {
        check_name(batch, "a batch")?;
        Ok(self.census().batch(end, batch)?.tasks)
    }

    /// Returns the batches that have tasks which ended as `end`.
    pub(crate) fn batches(&self, end: End) -> io::Result<Vec<String>> {
        self.census().batches(end)
    }

    /// Returns the status of an ended task, or `None` if it is missing or incomplete.
    pub(crate) fn status(
        &self,
        end: End,
        batch: &str,
        name: &ClaimName,
    ) -> io::Result<Option<Map<String, Value>>> {
        check_name(batch, "a batch")?;
        let path = self.layout.end(end, batch).join(name.status());
        let mut patience = Patience::new(self.patience);
        let bytes = loop {
            match self.read_task_file(&path)? {
                // A cache may still hold that the file did not exist.
                None if self.is_there(&path)? => patience.wait_anyway(unseen(&path))?,
                read => break read,
            }
        };
        Ok(bytes.and_then(|bytes| seal::unseal(&bytes)))
    }

    /// Returns how a claim ended, if its own holder ended it. Opens the file names it would have
    /// and lists nothing. `None` is not conclusive: another process may have ended the claim.
    pub(crate) fn ended_by_holder(
        &self,
        batch: &str,
        name: &ClaimName,
    ) -> io::Result<Option<(End, Map<String, Value>)>> {
        check_name(batch, "a batch")?;
        let file = name.ended(&name.worker);

        for end in ENDS {
            match self.disk.read_regular(&self.layout.end(end, batch).join(&file), SIZE_MAX) {
                Ok(_) => {
                    return Ok(self.status(end, batch, name)?.map(|status| (end, status)));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        self.need_volume().map(|()| None)
    }

    /// Finds a task. Searches its possible places twice, in the order it moves through them, so
    /// that a concurrent move cannot hide it.
    pub(crate) fn find(&self, agent: &str, batch: &str, id: &TaskId) -> io::Result<Option<Place>> {
        for _ in 0..2 {
            if let Some(place) = self.find_once(agent, batch, id)? {
                return Ok(Some(place));
            }
        }
        Ok(None)
    }

    /// Finds a task after it changes each directory that the task may be in. An NFS v3 server
    /// reports changes by a timestamp that does not advance within a tick of its clock: a client
    /// that listed a directory within that tick sees the old listing until the directory changes
    /// again. The only change that this client can cause is its own.
    pub(crate) fn find_surely(
        &self,
        agent: &str,
        batch: &str,
        id: &TaskId,
    ) -> io::Result<Option<Place>> {
        if self.disk.is_shared(&self.layout.root) {
            let mut dirs = vec![self.inbox(agent)?, self.layout.claimed(agent)];
            for end in ENDS {
                dirs.extend([self.layout.ends(end), self.layout.end(end, batch)]);
            }
            dirs.iter().try_for_each(|dir| self.change(dir))?;
        }
        self.find(agent, batch, id)
    }

    /// Creates and removes a hidden file in a directory. A missing directory is not an error.
    fn change(&self, dir: &Path) -> io::Result<()> {
        let path = dir.join(format!(".{}.{}", self.me, self.word()));
        match self.write_one(&path, Vec::new(), false) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            written => written.and_then(|()| self.disk.remove(&path)),
        }
    }

    fn find_once(&self, agent: &str, batch: &str, id: &TaskId) -> io::Result<Option<Place>> {
        check_name(batch, "a batch")?;
        let inbox = self.inbox(agent)?;
        let waiting =
            |file: &str| TaskName::is_name_of(file, id).then(|| TaskName::parse(file)).flatten();
        if let Some(name) = self.first(&inbox, waiting)? {
            return Ok(Some(Place::Waiting { agent: agent.to_owned(), name }));
        }
        // The id has the same position in every name.
        let of_it = |file: &str| file.get(2..28) == Some(id.as_str());
        let claimed = |file: &str| of_it(file).then(|| ClaimName::parse(file)).flatten();
        if let Some(name) = self.first(&self.layout.claimed(agent), claimed)? {
            return Ok(Some(Place::Claimed { agent: agent.to_owned(), name }));
        }
        let ended = |file: &str| of_it(file).then(|| ClaimName::parse_ended(file)).flatten();
        for end in ENDS {
            if let Some((name, by)) = self.first(&self.layout.end(end, batch), ended)? {
                return Ok(Some(Place::Ended { end, name, by }));
            }
        }
        Ok(None)
    }

    /// Returns the first result of `pick` over the names in a directory.
    pub(super) fn first<T>(
        &self,
        dir: &Path,
        pick: impl Fn(&str) -> Option<T>,
    ) -> io::Result<Option<T>> {
        let mut found = None;
        self.scan(dir, &mut |file| {
            found = pick(file);
            if found.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        Ok(found)
    }

    pub(super) fn is_there(&self, path: &Path) -> io::Result<bool> {
        let file = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let found = self.first(parent(path), |name| (name == file).then_some(()))?;
        Ok(found.is_some())
    }

    /// Reads the task at `place`. Returns `None` if it is not there or not complete.
    pub(crate) fn read(&self, place: &Place, batch: &str) -> io::Result<Option<Task>> {
        check_name(batch, "a batch")?;
        let (path, name, agent) = match place {
            Place::Waiting { agent, name } => (self.inbox(agent)?.join(name.file()), name, agent),
            Place::Claimed { agent, name } => {
                (self.layout.claimed(agent).join(name.file()), &name.task, agent)
            }
            Place::Ended { end, name, by } => {
                (self.layout.end(*end, batch).join(name.ended(by)), &name.task, &String::new())
            }
        };
        let bytes = self.read_task_file(&path)?;
        Ok(bytes.and_then(|bytes| {
            let document = seal::unseal(&bytes)?;
            let told = document.get("agent").and_then(Value::as_str).unwrap_or(agent).to_owned();
            Task::read(name.clone(), &told, document)
        }))
    }

    /// Reads a task or a status. Returns `None` if the file is missing or not a regular file of
    /// allowed size.
    pub(super) fn read_task_file(&self, path: &Path) -> io::Result<Option<Vec<u8>>> {
        match self.disk.read_regular(path, SIZE_MAX) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.need_volume().map(|()| None)
            }
            Err(error) => Err(error),
        }
    }
}
