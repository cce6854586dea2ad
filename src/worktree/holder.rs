//! Who works in a worktree: one at a time.
//!
//! A holder can be seen to live ([`Presence`]): on its own machine by its process, from others by
//! a beat that stands still for no longer than its lease, which takes that long to see
//! ([`Trees::is_alive`]). [`lives`] answers by the process alone, at once, and takes one of another
//! machine for alive.
//!
//! **Invariant:** the file is replaced under the repository's lock only, and whoever replaces it
//! has read it under the same lock.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::look::{named_dir, stays};
use super::{TreeError, Trees};
use crate::disk::{self, RealDisk};
use crate::exec;
use crate::git::Lock;
use crate::git::lock::owners;
use crate::git::presence::Presence;
use crate::ids::{Attempt, BeadId, shown};
use crate::process::Process;
use crate::time::{Clock, SystemClock, Time};

/// What somebody wants a worktree for.
#[derive(Clone, Debug)]
pub struct Wants<'a> {
    pub run: Option<&'a str>,
    pub step: &'a str,
    pub attempt: Attempt,
    /// The mark of what is started there.
    pub mark: Option<&'a str>,
    /// How long it may be silent until others think it dead. It must have stopped by then.
    pub lease: Duration,
}

impl<'a> Wants<'a> {
    /// What a person wants it for, beside any run.
    pub fn by_hand(step: &'a str) -> Wants<'a> {
        Wants { run: None, step, attempt: 1, mark: None, lease: Duration::ZERO }
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

/// Who has a worktree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Tells this hold from all others.
    pub word: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    pub step: String,
    pub attempt: Attempt,
    #[serde(flatten, deserialize_with = "crate::json::flattened")]
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

/// Whether a holder's process runs; one that cannot be seen from here does.
pub fn lives(holder: &Holder) -> bool {
    !holder.process.is_beside(&Process::this()) || holder.process.lives_here()
}

/// A hold on a worktree, let go when dropped.
#[derive(Debug)]
pub struct Hold {
    trees: Trees,
    pub id: BeadId,
    pub holder: Holder,
    /// Who had it before died on another machine, where something of it may still be at work.
    from_afar: bool,
    _presence: Presence,
}

impl Trees {
    fn holder_path(&self, id: &BeadId) -> PathBuf {
        self.home(id).join("holder.json")
    }

    /// Takes a worktree for oneself, also from a holder that is not alive.
    pub fn hold(&self, id: &BeadId, wants: &Wants) -> Result<Hold, TreeError> {
        loop {
            // Whether one lives can take long to see, so it is looked at without the lock.
            let seen = self.holder(id)?;
            if let Some(holder) = &seen
                && self.is_alive(holder)?
            {
                let (id, holder) = (id.to_string(), holder.to_string());
                return Err(TreeError::Held { id, holder, waited: Duration::ZERO });
            }
            let lock = self.repo.lock(&format!("taking worktree `{id}`"))?;
            // Another may have come first.
            if self.holder(id)? == seen {
                return self.take(lock, id, wants);
            }
        }
    }

    /// Takes a worktree that nobody has who lives. What the one before left at work there is
    /// ended, whoever comes and whatever for; others need not wait for that.
    pub(super) fn take(&self, lock: Lock, id: &BeadId, wants: &Wants) -> Result<Hold, TreeError> {
        let dead = self.holder(id)?;
        let hold = self.write_holder(id, wants, dead.as_ref())?;
        drop(lock);
        if let Some(dead) = dead {
            end_what_it_left(&dead);
            // A `git` that outlived a process which was killed is let finish; one that was killed
            // with it may have left its lock.
            self.alone_in(id)?;
            hold.clear_lock()?;
        }
        Ok(hold)
    }

    /// Ends what a dead holder left at work, for whoever does not take the worktree. Gives one
    /// that lives.
    pub fn relieve(&self, id: &BeadId) -> Result<Option<Holder>, TreeError> {
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
            // What tells that the dead one lived is of no use any more.
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
            .and_then(|()| disk::replace(&RealDisk::default(), &path, &bytes))
            .map_err(|error| TreeError::io("write", &path, error))?;
        Ok(Hold { trees: self.clone(), id: id.clone(), holder, from_afar, _presence: presence })
    }

    /// Who has a worktree, dead or alive.
    pub fn holder(&self, id: &BeadId) -> Result<Option<Holder>, TreeError> {
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

/// Ends what a dead holder of this machine left running.
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
    /// Proves that nobody took the worktree, thinking that this process was dead.
    pub fn still_holds(&self) -> Result<(), TreeError> {
        let Hold { trees, id, holder, .. } = self;
        match trees.holder(id)? {
            Some(there) if there.word == holder.word => Ok(()),
            _ => Err(TreeError::found(
                format!("worktree `{id}` was lost: others thought that this process was dead"),
                "somebody else may be at work there; nothing was committed",
            )),
        }
    }

    /// Takes away the lock that a `git` left on the index which was killed: with an agent, for one.
    /// Whoever holds the worktree and has nothing running in it knows that nobody needs it, if no
    /// `git` of anybody else is at work there.
    pub fn clear_lock(&self) -> Result<(), TreeError> {
        let path = self.trees.path(&self.id);
        if self.from_afar || !path.is_dir() || self.trees.linked(&self.id).is_err() {
            return Ok(());
        }
        // Not by asking git: what was killed while it was made is not yet what git knows.
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
        // Another may have it by now, if this process was thought dead.
        if trees.holder(id)?.is_some_and(|there| there.word == holder.word) {
            let path = trees.holder_path(id);
            fs::remove_file(&path).map_err(|error| TreeError::io("remove", &path, error))?;
            // What never came to be a worktree leaves nothing behind.
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
