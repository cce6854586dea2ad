//! The census: a read-only listing of everything in the directories of a queue.
//!
//! The dashboard, `fsck`, `clean`, and the queue itself list the queue through these functions, so
//! one place knows which names may lie in which directory. Each function lists one kind of
//! directory once and returns typed entries.
//!
//! **Invariant:** a census changes nothing. It is a snapshot of each directory, not of all of them
//! together: list the places of a task in the order in which tasks move (inbox, claims, ends), so
//! that a task which moves meanwhile is found twice rather than not at all.

use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use super::name::{ClaimName, TaskName};
use super::{End, Layout, Queue, TaskId, Turn};
use crate::base::ids;
use crate::disk::{Disk, Visit, none_if_absent};

/// Every end of a task.
pub(crate) const ENDS: [End; 3] = [End::Processed, End::Failed, End::Cancelled];
/// Directory in `intake/` of dropped files whose tasks were enqueued.
pub(crate) const DONE: &str = "done";
const STATUS: &str = ".status.json";
/// Larger than any file of the queue.
const SIZE_MAX: u64 = 1 << 30;

/// Typed entries of a directory, in no order.
#[derive(Debug, PartialEq)]
pub(crate) struct Listed<T> {
    pub entries: Vec<T>,
    /// Names that the queue gives to no file in this directory.
    pub foreign: Vec<String>,
}

/// The files of one batch of ended tasks.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Batch {
    /// Ended tasks, each with the process that ended it.
    pub tasks: Vec<(ClaimName, String)>,
    /// Stems of the statuses: the names of their claims without an ending.
    pub statuses: Vec<String>,
    pub foreign: Vec<String>,
}

/// A dropped file that a member took in and that is not a task yet.
#[derive(Debug, PartialEq)]
pub(crate) struct TakenIn {
    /// The ID of its future task.
    pub id: TaskId,
    /// The member that took the file in.
    pub member: String,
    pub agent: String,
    pub path: PathBuf,
}

/// Directories of marker files: only the names count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Marker {
    /// Registrations of members, `<member>.json`.
    Registration,
    /// Heartbeats, named after their members.
    Heartbeat,
    /// Requests to cancel a task or a run, named after it.
    Cancel,
    /// Requests to drain a member, named after it.
    Drain,
    /// Private files, named after their member up to the first dot.
    Temporary,
    /// Statuses that never counted.
    Evidence,
}

impl Marker {
    pub(crate) fn dir(self, layout: &Layout) -> PathBuf {
        match self {
            Marker::Registration => layout.workers(),
            Marker::Heartbeat => layout.beats(),
            Marker::Cancel => layout.cancel(),
            Marker::Drain => layout.drain(),
            Marker::Temporary => layout.tmp(),
            Marker::Evidence => layout.evidence(),
        }
    }
}

/// Lists the directories of a queue.
pub(crate) struct Census<'a> {
    disk: &'a dyn Disk,
    layout: &'a Layout,
    /// Confirms that a directory is missing or empty, and not its volume.
    queue: Option<&'a Queue>,
}

impl Queue {
    /// Returns a census that trusts an empty or missing directory only while the queue's volume is
    /// mounted, and retries while the volume does not answer.
    pub(crate) fn census(&self) -> Census<'_> {
        Census { disk: &*self.disk, layout: &self.layout, queue: Some(self) }
    }
}

impl<'a> Census<'a> {
    /// Returns a census of directories that may be damaged, or may not be a queue at all.
    pub(crate) fn of_disk(disk: &'a dyn Disk, layout: &'a Layout) -> Census<'a> {
        Census { disk, layout, queue: None }
    }

    /// Returns every agent that has an inbox or claims, sorted.
    pub(crate) fn agents(&self) -> io::Result<Vec<String>> {
        let mut agents = self.agents_with_inbox()?;
        agents.extend(self.agents_with_claims()?);
        agents.sort_unstable();
        agents.dedup();
        Ok(agents)
    }

    /// Returns the agents that have a directory in the inbox. A link to a directory does not count.
    pub(crate) fn agents_with_inbox(&self) -> io::Result<Vec<String>> {
        self.named_dirs(&self.layout.inboxes())
    }

    /// Returns the agents that have a directory for claims.
    pub(crate) fn agents_with_claims(&self) -> io::Result<Vec<String>> {
        self.named_dirs(&self.layout.all_claimed())
    }

    /// Returns the tasks that wait for an agent. The foreign names are those of users' files.
    pub(crate) fn waiting(&self, agent: &str) -> io::Result<Listed<TaskName>> {
        self.list(&self.layout.inbox(agent), TaskName::parse)
    }

    pub(crate) fn claims(&self, agent: &str) -> io::Result<Listed<ClaimName>> {
        self.list(&self.layout.claimed(agent), ClaimName::parse)
    }

    /// Returns the claims of all agents, each with its agent.
    pub(crate) fn all_claims(&self) -> io::Result<Vec<(String, ClaimName)>> {
        let mut claims = Vec::new();
        for agent in self.agents_with_claims()? {
            let of_agent = self.claims(&agent)?.entries.into_iter();
            claims.extend(of_agent.map(|claim| (agent.clone(), claim)));
        }
        Ok(claims)
    }

    /// Returns the batches that have tasks which ended as `end`.
    pub(crate) fn batches(&self, end: End) -> io::Result<Vec<String>> {
        self.named_dirs(&self.layout.ends(end))
    }

    pub(crate) fn batch(&self, end: End, batch: &str) -> io::Result<Batch> {
        let mut found = Batch::default();
        self.scan(&self.layout.end(end, batch), &mut |file| {
            match (ClaimName::parse_ended(file), file.strip_suffix(STATUS)) {
                (Some(ended), _) => found.tasks.push(ended),
                (None, Some(stem)) => found.statuses.push(stem.to_owned()),
                (None, None) => found.foreign.push(file.to_owned()),
            }
            ControlFlow::Continue(())
        })?;
        self.confirm(found.tasks.is_empty())?;
        Ok(found)
    }

    /// Returns the dropped files that are not tasks yet.
    pub(crate) fn taken_in(&self) -> io::Result<Vec<TakenIn>> {
        let mut found = Vec::new();
        let root = self.layout.intake();
        for member in self.dirs(&root)?.into_iter().filter(|member| member != DONE) {
            for agent in self.dirs(&root.join(&member))? {
                let dir = root.join(&member).join(&agent);
                let named = |file: &str| {
                    let (id, rest) = file.split_at_checked(26)?;
                    (rest.starts_with('-')).then_some((TaskId::parse(id)?, dir.join(file)))
                };
                for (id, path) in self.list(&dir, named)?.entries {
                    found.push(TakenIn { id, member: member.clone(), agent: agent.clone(), path });
                }
            }
        }
        Ok(found)
    }

    /// Returns the names in a directory of markers, sorted.
    pub(crate) fn markers(&self, of: Marker) -> io::Result<Vec<String>> {
        let mut names = self.list(&of.dir(self.layout), |file| Some(file.to_owned()))?.entries;
        names.sort_unstable();
        Ok(names)
    }

    /// Returns the checkout tokens. There is at most one, except during its rename.
    pub(crate) fn turns(&self) -> io::Result<Listed<Turn>> {
        self.list(&self.layout.checkout(), Turn::parse)
    }

    /// Returns the entries of a directory that `parse` knows; none if the directory is missing.
    fn list<T>(&self, dir: &Path, parse: impl Fn(&str) -> Option<T>) -> io::Result<Listed<T>> {
        let mut listed = Listed { entries: Vec::new(), foreign: Vec::new() };
        self.scan(dir, &mut |file| {
            match parse(file) {
                Some(entry) => listed.entries.push(entry),
                None => listed.foreign.push(file.to_owned()),
            }
            ControlFlow::Continue(())
        })?;
        self.confirm(listed.entries.is_empty())?;
        Ok(listed)
    }

    /// Returns true if a path is a directory.
    pub(crate) fn is_dir(&self, path: &Path) -> bool {
        self.disk.scan(path, &mut |_| ControlFlow::Break(())).is_ok()
    }

    /// Returns true if a path still exists.
    pub(crate) fn exists(&self, path: &Path) -> bool {
        self.disk.mode(path).is_ok()
    }

    /// Reads a file. Returns `None` if it does not exist, and no bytes if it is not a regular file.
    pub(crate) fn read(&self, path: &Path) -> io::Result<Option<Vec<u8>>> {
        match self.disk.read_regular(path, SIZE_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(Some(Vec::new())),
            read => read.map(Some),
        }
    }

    fn scan(&self, dir: &Path, visit: Visit) -> io::Result<()> {
        match self.queue {
            Some(queue) => queue.scan(dir, visit).map(drop),
            None => none_if_absent(self.disk.scan(dir, visit)),
        }
    }

    /// Returns the subdirectories whose names the queue accepts.
    fn named_dirs(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = self.dirs(dir)?;
        names.retain(|name| ids::name_fault(name).is_none());
        Ok(names)
    }

    /// Returns the subdirectories of a directory, sorted; none if it is missing.
    fn dirs(&self, dir: &Path) -> io::Result<Vec<String>> {
        match self.queue {
            Some(queue) => queue.list_dirs(dir),
            None => none_if_absent(self.disk.list_dirs(dir)),
        }
    }

    fn confirm(&self, is_empty: bool) -> io::Result<()> {
        match self.queue {
            Some(queue) if is_empty => queue.need_volume(),
            _ => Ok(()),
        }
    }
}
