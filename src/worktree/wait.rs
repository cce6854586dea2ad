//! Waits for a worktree that another step uses: in arrival order, visibly, and with a timeout.
//!
//! A process that finds the worktree taken draws a number, as in the merge queue. It enters when no
//! live process has a smaller number and the previous holder has left or is dead.
//!
//! **Invariant:** the processes that a dead holder left running in a worktree have ended before the
//! next holder enters, as far as this is visible: on the machine on which the holder died.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::merge_queue::Turn;
use super::{Hold, Holder, TreeError, Trees, Wants};
use crate::base::ids::{Attempt, BeadId};
use crate::base::process::Process;
use crate::disk::fs::{self, OnVolume as _};
use crate::exec::Stop;
use crate::git::heartbeat::Watch;
use crate::git::lock::owners;

const POLL: Duration = Duration::from_millis(200);
/// Silence after which a warning is logged. A live holder sends at least two heartbeats in this
/// time.
const SILENCE: Duration = Duration::from_secs(5);

/// The terms on which a caller waits.
#[derive(Clone, Copy)]
pub(crate) struct Patience<'a> {
    /// Timeout.
    pub wait: Duration,
    pub stop: &'a Stop,
    /// Called with a description of the current holder, whenever it changes.
    pub tell: &'a dyn Fn(&str),
}

/// A step that waits for a worktree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Waiter {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    pub step: String,
    pub attempt: Attempt,
}

impl Trees {
    /// Returns the directory of the numbers drawn for a worktree.
    fn line(&self, id: &BeadId) -> PathBuf {
        self.home(id).join("line")
    }

    /// Waits until no other process holds a worktree, then takes it. Returns [`TreeError::Held`] on
    /// timeout.
    pub(crate) fn wait_for(
        &self,
        id: &BeadId,
        wants: &Wants,
        patience: &Patience,
    ) -> Result<Hold, TreeError> {
        let mut sight = Sight::default();
        let (mut turn, mut told) = (None, String::new());
        let began = Instant::now();
        loop {
            let mut before = self.before(id, turn.as_ref(), &mut sight)?;
            if before.is_none() {
                let lock = self.repo.lock(&format!("taking worktree `{id}`"))?;
                // Check again: under the lock, no other process can take it.
                before = self.before(id, turn.as_ref(), &mut sight)?;
                if before.is_none() {
                    return self.take(lock, id, wants);
                }
            }
            let holder = before.unwrap_or_default();
            if began.elapsed() >= patience.wait {
                let (id, waited) = (id.to_string(), patience.wait);
                return Err(TreeError::Held { id, holder, waited });
            }
            if turn.is_none() {
                turn = Some(self.draw_for(id, wants)?);
            }
            if told != holder {
                (patience.tell)(&holder);
                told = holder;
            }
            if !patience.stop.sleep(POLL) {
                return Err(TreeError::Stopped);
            }
        }
    }

    /// Returns true if a holder is alive. Watches a holder on another machine until it sends a
    /// heartbeat or its lease expires.
    pub(crate) fn is_alive(&self, holder: &Holder) -> Result<bool, TreeError> {
        let beat = || fs::read(owners(&self.repo.home()).join(&holder.word)).ok();
        let (first, began) = (beat(), Instant::now());
        let (mut sight, mut told) = (Sight::default(), false);
        loop {
            if !sight.sees(self, holder) {
                return Ok(false);
            }
            if holder.process.is_beside(&Process::this()) || beat() != first {
                return Ok(true);
            }
            if !told && began.elapsed() > SILENCE {
                tracing::warn!("no sign of life of {holder}: waiting until it can be called dead");
                told = true;
            }
            match &self.stop {
                Some(stop) if !stop.sleep(POLL) => return Err(TreeError::Stopped),
                Some(_) => {}
                None => std::thread::sleep(POLL),
            }
        }
    }

    fn draw_for(&self, id: &BeadId, wants: &Wants) -> Result<Turn, TreeError> {
        let run = wants.run.map(str::to_owned);
        let waiter = Waiter { run, step: wants.step.to_owned(), attempt: wants.attempt };
        let bytes = serde_json::to_vec(&waiter).unwrap_or_default();
        let doing = format!("waiting for worktree `{id}` for {wants}");
        self.draw_in(&self.line(id), &doing, &bytes)
    }

    /// Returns the holder or waiter that comes before a number, or before all if there is no number
    /// yet.
    fn before(
        &self,
        id: &BeadId,
        turn: Option<&Turn>,
        sight: &mut Sight,
    ) -> Result<Option<String>, TreeError> {
        if let Some(holder) = self.holder(id)?
            && sight.sees(self, &holder)
        {
            return Ok(Some(holder.to_string()));
        }
        self.first_before(&self.line(id), turn, &mut sight.watch)
    }

    /// Returns the process that a waiter waits for, or `None` if the waiter is not in the queue.
    /// Only reads: it declares no process dead and takes no lock.
    pub(crate) fn waits_for(&self, id: &BeadId, waiter: &Waiter) -> Option<String> {
        let drawn = self.numbers_in(&self.line(id)).ok()?;
        let is = |path: &PathBuf| {
            let bytes = fs::read(path).unwrap_or_default();
            serde_json::from_slice::<Waiter>(&bytes).is_ok_and(|there| there == *waiter)
        };
        let mine = drawn.iter().position(|drawn| is(&drawn.path))?;
        let holder = self.holder(id).ok().flatten().map(|holder| holder.to_string());
        let first = || {
            let owner = Watch::new().look(&owners(&self.repo.home()), &drawn.first()?.word).owner;
            owner.filter(|_| mine > 0).map(|owner| owner.to_string())
        };
        Some(holder.or_else(first).unwrap_or_else(|| "nobody any more".into()))
    }
}

/// Observes holders repeatedly.
#[derive(Default)]
struct Sight {
    watch: Watch,
    /// Token and monitor of the current holder, with that holder's lease.
    of_holder: Option<(String, Watch)>,
}

impl Sight {
    /// Returns true if a holder is alive.
    fn sees(&mut self, trees: &Trees, holder: &Holder) -> bool {
        let owners = owners(&trees.repo.home());
        if holder.process.is_beside(&Process::this()) {
            // A holder that failed to release the worktree has removed its heartbeat file.
            return holder.process.lives_here() && owners.join(&holder.word).is_present();
        }
        let known = self.of_holder.take().filter(|(word, _)| *word == holder.word);
        let fresh = || (holder.word.clone(), Watch::with_lease(holder.lease_ms));
        let (word, mut watch) = known.unwrap_or_else(fresh);
        let dead = watch.look(&owners, &word).dead;
        self.of_holder = Some((word, watch));
        !dead
    }
}
