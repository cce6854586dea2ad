//! The holder of a worktree. A worktree has one holder at a time; other steps wait in the order of
//! arrival. A hold is a [lease](crate::lease) in the metadata of the worktree.
//!
//! **Invariant:** the processes that a dead holder left running in a worktree have ended before the
//! next holder enters, as far as this is visible: on the machine on which the holder died.

use std::cell::RefCell;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::look::{named_dir, stays};
use super::{TreeError, Trees};
use crate::base::ids::{Attempt, BeadId, shown};
use crate::base::process::Process;
use crate::base::time::Time;
use crate::disk::fs::{self, OnVolume as _};
use crate::exec::{self, Stop};
use crate::lease::{Blocker, Lease, LeaseDir, LeaseError, Limit, Owner, Request, Wait};

/// A request for a worktree.
#[derive(Clone, Debug)]
pub(crate) struct HoldRequest<'a> {
    pub run: Option<&'a str>,
    pub step: &'a str,
    pub attempt: Attempt,
    /// Environment marker of the processes that are started there.
    pub mark: Option<&'a str>,
    /// Time without a heartbeat after which others consider the holder dead. It must have stopped
    /// by then.
    pub ttl: Duration,
}

impl<'a> HoldRequest<'a> {
    /// Returns the request of a user, outside any run.
    pub(crate) fn by_hand(step: &'a str) -> HoldRequest<'a> {
        HoldRequest { run: None, step, attempt: Attempt::FIRST, mark: None, ttl: Duration::ZERO }
    }

    fn for_lease(&self, id: &BeadId) -> Request {
        let HoldRequest { run, step, attempt, mark, ttl } = self;
        Request {
            purpose: format!("working in worktree `{id}`"),
            details: json!({ "run": run, "step": step, "attempt": attempt, "mark": mark }),
            ttl: *ttl,
        }
    }
}

/// The terms of a wait for a worktree.
#[derive(Clone, Copy)]
pub(crate) struct HoldWait<'a> {
    /// Timeout.
    pub limit: Duration,
    pub stop: &'a Stop,
    /// Called with a description of the current holder, whenever it changes.
    pub report: &'a dyn Fn(&str),
}

/// A step that holds a worktree or waits for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HoldingStep {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    pub step: String,
    pub attempt: Attempt,
}

/// The holder of a worktree.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Holder {
    #[serde(flatten)]
    pub step: HoldingStep,
    #[serde(flatten)]
    pub process: Process,
    pub since: Time,
    #[serde(skip)]
    owner: Owner,
}

impl Holder {
    /// Returns the holder that an owner describes, or `None` if it is not one.
    fn new(owner: Owner) -> Option<Holder> {
        let step = HoldingStep::deserialize(&owner.details).ok()?;
        Some(Holder { step, process: owner.process.clone(), since: owner.since, owner })
    }

    /// Returns true if the holder's process runs. A process that is not visible from here counts as
    /// running.
    pub(crate) fn may_live(&self) -> bool {
        self.owner.may_live()
    }
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let HoldingStep { run, step, attempt } = &self.step;
        write!(f, "step `{}`, attempt {attempt}", shown(step))?;
        run.as_ref().map_or(Ok(()), |run| write!(f, ", of run {run}"))?;
        write!(f, " (process {} on {})", self.process.pid, self.process.host)
    }
}

/// Describes the process that a request waits for.
fn describe(blocker: &Blocker) -> String {
    match blocker.owner.clone().and_then(Holder::new) {
        Some(holder) => format!("{holder}{}", blocker.evidence()),
        None => blocker.to_string(),
    }
}

/// A hold on a worktree, released when dropped.
#[derive(Debug)]
pub(crate) struct Hold {
    trees: Trees,
    pub id: BeadId,
    /// True if a previous holder died on another machine, where its child processes may still run.
    from_afar: bool,
    /// `None` only while the value is dropped.
    lease: Option<Lease>,
}

impl Trees {
    fn hold_dir(&self, id: &BeadId) -> PathBuf {
        self.home(id).join(super::LEASE)
    }

    /// Takes a worktree, also from a dead holder. Returns [`TreeError::Held`] if the holder is
    /// alive. Watches a holder on another machine until it sends a heartbeat or counts as dead.
    pub(crate) fn hold(&self, id: &BeadId, request: &HoldRequest) -> Result<Hold, TreeError> {
        self.acquire(id, request, &Wait::until_known(self.stop.as_ref()), Duration::ZERO)
    }

    /// Waits until no other process holds a worktree, then takes it. Returns [`TreeError::Held`] on
    /// timeout.
    pub(crate) fn wait_for(
        &self,
        id: &BeadId,
        request: &HoldRequest,
        wait: &HoldWait,
    ) -> Result<Hold, TreeError> {
        let reported = RefCell::new(String::new());
        let report = |blocker: &Blocker| {
            let holder = describe(&Blocker { silence: None, ..blocker.clone() });
            if *reported.borrow() != holder {
                (wait.report)(&holder);
                reported.replace(holder);
            }
        };
        let terms = Wait { limit: Limit::Time(wait.limit), stop: Some(wait.stop), report: &report };
        self.acquire(id, request, &terms, wait.limit)
    }

    /// Acquires the lease. Then ends the processes that dead holders left there. If that fails, the
    /// next holder does it.
    fn acquire(
        &self,
        id: &BeadId,
        request: &HoldRequest,
        wait: &Wait,
        waited: Duration,
    ) -> Result<Hold, TreeError> {
        let dir = self.hold_dir(id);
        let lease = LeaseDir::new(dir.clone()).acquire(&request.for_lease(id), wait);
        let lease = lease.map_err(|error| match error {
            LeaseError::Busy(blocker) => {
                TreeError::Held { id: id.to_string(), holder: describe(&blocker), waited }
            }
            LeaseError::Stopped => TreeError::Stopped,
            LeaseError::Io(error) => TreeError::io("lock", &dir, error),
        })?;
        let this = Process::this();
        let dead: Vec<Owner> = lease.dead_owners().cloned().collect();
        let from_afar = dead.iter().any(|owner| !owner.process.is_beside(&this));
        let mut hold = Hold { trees: self.clone(), id: id.clone(), from_afar, lease: Some(lease) };
        if !dead.is_empty() {
            dead.iter().filter(|owner| owner.process.is_beside(&this)).for_each(end_leftovers);
            // Let a `git` that outlived its killed caller finish. A `git` that was killed with its
            // caller may have left its lock file.
            self.alone_in(id)?;
            hold.clear_lock()?;
            hold.lease.iter_mut().for_each(Lease::forget_dead);
        }
        Ok(hold)
    }

    /// Ends the processes that a dead holder left, for a caller that does not take the worktree.
    /// Returns a description of the holder if it is alive.
    pub(crate) fn relieve(&self, id: &BeadId) -> Result<Option<String>, TreeError> {
        match self.hold(id, &HoldRequest::by_hand("relieve")) {
            Ok(_) => Ok(None),
            Err(TreeError::Held { holder, .. }) => Ok(Some(holder)),
            Err(error) => Err(error),
        }
    }

    /// Returns the holder of a worktree, dead or alive.
    pub(crate) fn holder(&self, id: &BeadId) -> Result<Option<Holder>, TreeError> {
        let dir = self.hold_dir(id);
        let owner = LeaseDir::new(dir.clone()).holder();
        Ok(owner.map_err(|error| TreeError::io("read", &dir, error))?.and_then(Holder::new))
    }

    /// Returns the process that a step waits for, or `None` if the step does not wait. Only reads:
    /// it declares no process dead.
    pub(crate) fn waits_for(&self, id: &BeadId, step: &HoldingStep) -> Option<String> {
        let lease = LeaseDir::new(self.hold_dir(id));
        let waiters = lease.waiters().ok()?.into_iter().filter_map(Holder::new);
        let waiters: Vec<Holder> = waiters.collect();
        let place = waiters.iter().position(|waiter| waiter.step == *step)?;
        let holder = lease.holder().ok().flatten().and_then(Holder::new);
        let first = holder.or_else(|| waiters.into_iter().next().filter(|_| place > 0));
        Some(first.map_or("no other step".into(), |first| first.to_string()))
    }
}

/// Ends the processes that a dead owner on this machine left running.
fn end_leftovers(dead: &Owner) {
    let Some(mark) = dead.details.get("mark").and_then(|mark| mark.as_str()) else { return };
    let ended = exec::sweep_if(&|other| other == mark);
    if ended > 0 {
        tracing::info!("ended {ended} processes that were left in a worktree");
    }
}

impl Hold {
    /// Returns an error if another process took the worktree because it considered this one dead.
    pub(crate) fn check(&self) -> Result<(), TreeError> {
        let failed = |error| TreeError::io("read", &self.trees.hold_dir(&self.id), error);
        let held = self.lease.as_ref().map_or(Ok(false), Lease::check).map_err(failed)?;
        match held {
            true => Ok(()),
            false => Err(TreeError::found(
                format!(
                    "worktree `{}` was lost: other processes considered this process dead",
                    self.id
                ),
                "another step may use the worktree now; nothing was committed",
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
}

impl Drop for Hold {
    fn drop(&mut self) {
        let Some(lease) = self.lease.take() else { return };
        match self.trees.record(&self.id) {
            // There is no worktree, so nothing is left to hold.
            Ok(None) => {
                lease.remove();
                let _ = fs::remove_dir(self.trees.home(&self.id));
            }
            _ => drop(lease),
        }
    }
}
