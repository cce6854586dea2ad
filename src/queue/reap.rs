//! Handles the claims, and the other files, of a holder that is gone.
//!
//! Any process may do this at any time, concurrently with others: each claim is moved by a rename,
//! so exactly one process handles it.

use std::collections::HashSet;
use std::io;
use std::path::Path;

use serde_json::{Map, Value};

use super::census::ENDS;
use super::claim::Found;
use super::moves::is_transient;
use super::name::ClaimName;
use super::status::{CANCELLED, CRASH_LIMIT};
use super::{Claim, End, Ending, Queue, Reaped};
use crate::base::ids::counted;

/// Reason why a holder is gone.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gone {
    /// It died while it held the task, which counts against the task.
    Died,
    /// It never knew that it held the task.
    Unaware,
}

impl Queue {
    /// Requeues or ends the claims of a holder that is known to be dead.
    pub(crate) fn reap(&self, worker: &str) -> io::Result<Vec<Reaped>> {
        self.reap_where(Gone::Died, |name| name.worker == worker)
    }

    /// Handles claims that this process made without knowing: a rename reported an error, but
    /// happened later. `known` contains the file names of the claims that the caller holds.
    pub(crate) fn adopt_surprises(&self, known: &HashSet<String>) -> io::Result<Vec<Reaped>> {
        self.forget_found();
        let mine = |name: &ClaimName| name.worker == self.me && !known.contains(&name.file());
        // A claim that is held from here on is known to the thread that made it.
        self.reap_where(Gone::Unaware, |name| mine(name) && self.hold(name))
    }

    fn reap_where(
        &self,
        gone: Gone,
        is_theirs: impl Fn(&ClaimName) -> bool,
    ) -> io::Result<Vec<Reaped>> {
        let mut reaped = Vec::new();
        for (agent, name) in self.census().all_claims()? {
            if !is_theirs(&name) {
                continue;
            }
            let done = self.reap_claim(&agent, &name, gone);
            self.let_go(&name);
            match done {
                Ok(done) => reaped.extend(done),
                Err(error) if is_transient(&error) => return Err(error),
                // A claim that cannot be moved must not block the others.
                Err(error) => tracing::warn!("`{}` stays claimed: {error}", name.file()),
            }
        }
        Ok(reaped)
    }

    fn reap_claim(&self, agent: &str, name: &ClaimName, gone: Gone) -> io::Result<Option<Reaped>> {
        let claim = match self.read_claim(agent, name)? {
            Found::Task(claim) => *claim,
            Found::Unreadable(reason) => {
                let ending = self.end_unreadable(agent, name, &reason)?;
                return Ok(if_ours(
                    ending,
                    Reaped::Finished { name: name.clone(), end: End::Failed },
                ));
            }
            Found::Gone => return Ok(None),
        };
        for end in ENDS {
            let status = self.status(end, &claim.task.batch, name)?;
            if status.is_some_and(|status| is_of(&status, &claim)) {
                let ending = self.finish_forward(claim, end)?;
                return Ok(if_ours(ending, Reaped::Finished { name: name.clone(), end }));
            }
        }
        self.reap_unfinished(claim, gone)
    }

    fn reap_unfinished(&self, claim: Claim, gone: Gone) -> io::Result<Option<Reaped>> {
        let name = claim.name.clone();
        if self.current_marks()?.is_cancelled(&claim.task) {
            let message = "cancelled; its worker was gone";
            let ending = self.end_claim(claim, End::Cancelled, CANCELLED, message)?;
            return Ok(if_ours(ending, Reaped::Cancelled { name }));
        }
        let next = name.task.next(gone == Gone::Died);
        if gone == Gone::Died && next.crashes >= claim.task.crash_limit {
            let deaths = next.crashes;
            let times = counted(deaths as usize, "time");
            let message = format!("its worker died {times}; it is not tried again");
            let ending = self.end_claim(claim, End::Failed, CRASH_LIMIT, &message)?;
            return Ok(if_ours(ending, Reaped::Poison { name }));
        }
        let ending = self.give_back(claim, &next)?;
        Ok(if_ours(ending, Reaped::Returned { name: next }))
    }

    /// Removes temporary files of dead processes. Whether a process is dead decides, never a file's
    /// age. Returns the number of files.
    pub(crate) fn sweep_tmp(&self, is_dead: &dyn Fn(&str) -> bool) -> io::Result<usize> {
        self.remove_tmp(|worker| worker != self.me && is_dead(worker))
    }

    /// Removes temporary files of this process, which failed operations leave. Call it only after
    /// all other work has ended.
    pub(crate) fn sweep_own_tmp(&self) -> io::Result<usize> {
        self.remove_tmp(|worker| worker == self.me)
    }

    fn remove_tmp(&self, is_theirs: impl Fn(&str) -> bool) -> io::Result<usize> {
        let left = self.list(&self.layout.tmp(), |file| {
            let (worker, _) = file.split_once('.')?;
            is_theirs(worker).then(|| file.to_owned())
        })?;
        for file in &left {
            match self.remove_left(&self.layout.tmp().join(file)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(left.len())
    }

    /// Removes a file, or a directory of files.
    pub(super) fn remove_left(&self, path: &Path) -> io::Result<()> {
        match self.disk.remove(path) {
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => {}
            removed => return removed,
        }
        for file in self.disk.list(path)? {
            self.disk.remove(&path.join(file))?;
        }
        self.disk.remove_dir(path)
    }
}

/// Returns true if a status carries the ticket of the claimed task. A status without it does not
/// come from a holder of the task, and ends nothing.
fn is_of(status: &Map<String, Value>, claim: &Claim) -> bool {
    let ticket = |of: &Map<String, Value>| of.get("ticket").filter(|t| !t.is_null()).cloned();
    ticket(status) == ticket(&claim.task.document)
}

/// Returns `done` unless another process did it first.
fn if_ours(ending: Ending, done: Reaped) -> Option<Reaped> {
    (ending == Ending::Committed).then_some(done)
}
