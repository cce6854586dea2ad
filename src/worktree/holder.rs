//! The holder of a worktree. A worktree has one holder at a time.
//!
//! The liveness of a holder is visible ([`Presence`]): on its own machine by its process, on other
//! machines by a heartbeat that stands still for no longer than its lease, which takes that long to
//! detect ([`Trees::is_alive`]). [`lives`] checks only the process, returns at once, and counts a
//! holder on another machine as alive.
//!
//! **Invariant:** the file is replaced only under the repository's lock, by a process that has read
//! it under the same lock.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::look::{named_dir, stays};
use super::{TreeError, Trees};
use crate::base::ids::{Attempt, BeadId, shown};
use crate::base::process::Process;
use crate::base::time::{Clock, SystemClock, Time};
use crate::disk;
use crate::disk::fs::{self, OnVolume as _};
use crate::exec;
use crate::git::Lock;
use crate::git::heartbeat::Presence;
use crate::git::lock::owners;

/// A request for a worktree.
#[derive(Clone, Debug)]
pub(crate) struct Wants<'a> {
    pub run: Option<&'a str>,
    pub step: &'a str,
    pub attempt: Attempt,
    /// Environment marker of the processes that are started there.
    pub mark: Option<&'a str>,
    /// Time without a heartbeat after which others consider the holder dead. It must have stopped
    /// by then.
    pub lease: Duration,
}

impl<'a> Wants<'a> {
    /// Returns the request of a user, outside any run.
    pub(crate) fn by_hand(step: &'a str) -> Wants<'a> {
        Wants { run: None, step, attempt: Attempt::FIRST, mark: None, lease: Duration::ZERO }
    }
}

impl std::fmt::Display for Wants<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        name(f, self.step, self.attempt, self.run)
    }
}

fn name(
    f: &mut std::fmt::Formatter<'_>,
    step: &str,
    attempt: Attempt,
    run: Option<&str>,
) -> std::fmt::Result {
    write!(f, "step `{}`, attempt {attempt}", shown(step))?;
    run.map_or(Ok(()), |run| write!(f, ", of run {run}"))
}

/// The holder of a worktree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Holder {
    /// Unique token of this hold.
    pub word: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    pub step: String,
    pub attempt: Attempt,
    #[serde(flatten, deserialize_with = "crate::base::json::flattened")]
    pub process: Process,
    pub since: Time,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<String>,
    #[serde(default)]
    pub lease_ms: u64,
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Holder { run, step, attempt, process, .. } = self;
        name(f, step, *attempt, run.as_deref())?;
        write!(f, " (process {} on {})", process.pid, process.host)
    }
}

/// Returns true if a holder's process runs. A process that is not visible from here counts as
/// running.
pub(crate) fn lives(holder: &Holder) -> bool {
    !holder.process.is_beside(&Process::this()) || holder.process.lives_here()
}

/// A hold on a worktree, released when dropped.
#[derive(Debug)]
pub(crate) struct Hold {
    trees: Trees,
    pub id: BeadId,
    pub holder: Holder,
    /// True if the previous holder died on another machine, where its child processes may still
    /// run.
    from_afar: bool,
    _presence: Presence,
}

impl Trees {
    fn holder_path(&self, id: &BeadId) -> PathBuf {
        self.home(id).join("holder.json")
    }

    /// Takes a worktree, also from a dead holder. Returns [`TreeError::Held`] if the holder is
    /// alive.
    pub(crate) fn hold(&self, id: &BeadId, wants: &Wants) -> Result<Hold, TreeError> {
        loop {
            // A liveness check can take long, so it runs without the lock.
            let seen = self.holder(id)?;
            if let Some(holder) = &seen
                && self.is_alive(holder)?
            {
                let (id, holder) = (id.to_string(), holder.to_string());
                return Err(TreeError::Held { id, holder, waited: Duration::ZERO });
            }
            let lock = self.repo.lock(&format!("taking worktree `{id}`"))?;
            // Another process may have taken it first.
            if self.holder(id)? == seen {
                return self.take(lock, id, wants);
            }
        }
    }

    /// Takes a worktree that has no live holder. Then ends the processes that a dead holder left
    /// there, for every new holder; the lock is released first, so that others need not wait.
    pub(super) fn take(&self, lock: Lock, id: &BeadId, wants: &Wants) -> Result<Hold, TreeError> {
        let dead = self.holder(id)?;
        let hold = self.write_holder(id, wants, dead.as_ref())?;
        drop(lock);
        if let Some(dead) = dead {
            end_what_it_left(&dead);
            // Let a `git` that outlived its killed caller finish. A `git` that was killed with its
            // caller may have left its lock file.
            self.alone_in(id)?;
            hold.clear_lock()?;
        }
        Ok(hold)
    }

    /// Ends the processes that a dead holder left, for a caller that does not take the worktree.
    /// Returns the holder if it is alive.
    pub(crate) fn relieve(&self, id: &BeadId) -> Result<Option<Holder>, TreeError> {
        match self.holder(id)? {
            Some(holder) if !self.is_alive(&holder)? => {
                self.hold(id, &Wants::by_hand("add")).map(|_| None)
            }
            holder => Ok(holder),
        }
    }

    fn write_holder(
        &self,
        id: &BeadId,
        wants: &Wants,
        dead: Option<&Holder>,
    ) -> Result<Hold, TreeError> {
        let from_afar = dead.is_some_and(|dead| !dead.process.is_beside(&Process::this()));
        if dead.is_some() {
            // The heartbeat file of the dead holder is no longer needed.
            self.sweep_owners()?;
        }
        let owners = owners(&self.repo.home());
        let presence = Presence::enter(&owners, &format!("working in worktree `{id}` for {wants}"))
            .map_err(|error| TreeError::io("write", &owners, error))?;
        let holder = Holder {
            word: presence.word.clone(),
            run: wants.run.map(str::to_owned),
            step: wants.step.to_owned(),
            attempt: wants.attempt,
            process: Process::this(),
            since: SystemClock.now(),
            mark: wants.mark.map(str::to_owned),
            lease_ms: wants.lease.as_millis() as u64,
        };
        let path = self.holder_path(id);
        let bytes = serde_json::to_vec_pretty(&holder).unwrap_or_default();
        fs::create_dir_all(self.home(id))
            .and_then(|()| disk::replace(&*disk::machine(), &path, &bytes))
            .map_err(|error| TreeError::io("write", &path, error))?;
        Ok(Hold { trees: self.clone(), id: id.clone(), holder, from_afar, _presence: presence })
    }

    /// Returns the holder of a worktree, dead or alive.
    pub(crate) fn holder(&self, id: &BeadId) -> Result<Option<Holder>, TreeError> {
        let path = self.holder_path(id);
        match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| {
                let what = format!("`{}` is damaged: {error}", path.display());
                TreeError::found(what, "remove it, once you know that nobody works there")
            }),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(TreeError::io("read", &path, error)),
        }
    }
}

/// Ends the processes that a dead holder on this machine left running.
fn end_what_it_left(dead: &Holder) {
    let Holder { mark: Some(mark), process, .. } = dead else { return };
    if process.is_beside(&Process::this()) {
        let ended = exec::sweep_if(&|other| other == mark);
        if ended > 0 {
            tracing::info!("ended {ended} processes that were left in a worktree");
        }
    }
}

impl Hold {
    /// Returns an error if another process took the worktree because it considered this one dead.
    pub(crate) fn still_holds(&self) -> Result<(), TreeError> {
        let Hold { trees, id, holder, .. } = self;
        match trees.holder(id)? {
            Some(there) if there.word == holder.word => Ok(()),
            _ => Err(TreeError::found(
                format!("worktree `{id}` was lost: others thought that this process was dead"),
                "somebody else may be at work there; nothing was committed",
            )),
        }
    }

    /// Removes the index lock that a killed `git` left, for example one that was killed with an
    /// agent. A holder with no running child processes knows that the lock is unused, provided that
    /// no `git` of another process works there.
    pub(crate) fn clear_lock(&self) -> Result<(), TreeError> {
        let path = self.trees.path(&self.id);
        if self.from_afar || !path.is_present_dir() || self.trees.linked(&self.id).is_err() {
            return Ok(());
        }
        // Do not ask git: it does not know a worktree whose creation was interrupted.
        let Some(git_dir) = named_dir(&path) else { return Ok(()) };
        let lock = git_dir.join("index.lock");
        if stays(&lock) && !exec::at_work(&lock, "git", &path) {
            tracing::warn!("a `git` that was killed in worktree `{}` left a lock", self.id);
            fs::remove_file(&lock).map_err(|error| TreeError::io("remove", &lock, error))?;
        }
        Ok(())
    }

    fn let_go(&self) -> Result<(), TreeError> {
        let Hold { trees, id, holder, .. } = self;
        let _lock = trees.repo.lock(&format!("leaving worktree `{id}`"))?;
        // Another process may hold it by now, if it considered this one dead.
        if trees.holder(id)?.is_some_and(|there| there.word == holder.word) {
            let path = trees.holder_path(id);
            fs::remove_file(&path).map_err(|error| TreeError::io("remove", &path, error))?;
            // Remove the metadata directory if it is empty: no worktree was created.
            let _ = fs::remove_dir(trees.home(id));
        }
        Ok(())
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Err(error) = self.let_go() {
            tracing::warn!("worktree `{}` stays taken: {error}", self.id);
        }
    }
}
