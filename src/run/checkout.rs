//! Serializes the runs that change the checkout: only one of them proceeds at a time.
//!
//! A local run has the turn while its process holds the lock of the checkout. A run of a fleet has
//! the turn through a file of the queue ([`crate::queue::checkout_token`]) until it ends or waits
//! only for users. The turn survives its coordinator: the run's steps continue while no coordinator
//! drives it. The coordinator that drives the run also holds the lock, so that local runs see it.
//!
//! **Invariant:** a run of a fleet is driven by the coordinator that moved the turn to the attempt
//! of its own claim. A coordinator that still drives the run therefore cannot lose the turn
//! unnoticed: of two processes that move the turn, one finds it gone.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{open, run_task};
use crate::attempt::documents::{self, Asked, COORDINATOR};
use crate::base::host;
use crate::exec;
use crate::queue::{Claim, Place, Queue, TaskId, Turn, TurnHolder};
use crate::store::lock::{self, LockError, RunLock};
use crate::workspace::Workspace;

/// Default directory of runs, used if a run's task no longer names its own.
const RUNS: &str = ".orchestrate/runs";

/// The turn of a run that this process drives.
pub(crate) struct Held {
    turn: Turn,
    _lock: RunLock,
}

impl Held {
    /// Releases the turn. Does nothing if another process has taken it over in the meantime.
    pub(crate) fn give_up(self, queue: &Queue) -> io::Result<()> {
        queue.pass_turn(&self.turn, None).map(drop)
    }
}

/// The run that another run waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Before {
    /// A run of the fleet, by its ID.
    Run(String),
    /// A local run, by the description of its process.
    Process(String),
    /// An unknown run that took the turn first.
    Somebody,
}

impl std::fmt::Display for Before {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Before::Run(run) => write!(f, "run {run}"),
            Before::Process(owner) => write!(f, "a run of {owner}"),
            Before::Somebody => f.write_str("another run"),
        }
    }
}

/// Result of a request for the turn.
pub(crate) enum Taken {
    Turn(Held),
    After(Before),
}

/// Takes the lock of a workspace, or returns its owner as an error. First ends the processes that a
/// killed holder left running.
pub(crate) fn take_lock(workspace: &Path) -> Result<RunLock, LockError> {
    lock::take_checkout(workspace, exec::own_mark(), &|left| {
        let ended = exec::sweep_if(&|mark| mark == left);
        if ended > 0 {
            tracing::info!("ended {ended} processes of a run that was killed in this checkout");
        }
    })
}

/// A process that requests the turn, with its observations of the current holder.
#[derive(Default)]
pub(crate) struct Suitor {
    /// A turn that no process seems to continue, and the time since when.
    idle: Option<(Turn, Instant)>,
}

impl Suitor {
    /// Takes the turn for the run of `claim`, or returns the run that has it. A turn whose run no
    /// coordinator has claimed for `patience` counts as abandoned.
    pub(crate) fn ask(
        &mut self,
        queue: &Queue,
        workspace: &Workspace,
        claim: &Claim,
        patience: Duration,
    ) -> io::Result<Taken> {
        // From here on, no local run of this machine can start.
        let lock = match take_lock(workspace.root()) {
            Ok(lock) => lock,
            Err(LockError::Held { owner }) => return Ok(Taken::After(before(queue, owner)?)),
            Err(LockError::Io(error)) => return Err(error),
        };
        let turn = queue.turn()?;
        // The run may have been enqueued again, as another task.
        let own = |holder: &TurnHolder| holder.batch == claim.task.batch;
        if let Some(holder) = turn.holder.as_ref().filter(|holder| !own(holder))
            && !self.is_left(queue, workspace, &turn, holder, patience)?
        {
            return Ok(Taken::After(Before::Run(holder.batch.clone())));
        }
        Ok(match queue.pass_turn(&turn, Some(claim))? {
            Some(turn) => Taken::Turn(Held { turn, _lock: lock }),
            None => Taken::After(Before::Somebody),
        })
    }

    /// Returns true if a turn is abandoned: its run has ended, or no coordinator has claimed it for
    /// `patience`, and none of its steps is queued or executing.
    fn is_left(
        &mut self,
        queue: &Queue,
        workspace: &Workspace,
        turn: &Turn,
        holder: &TurnHolder,
        patience: Duration,
    ) -> io::Result<bool> {
        let place = queue.find(COORDINATOR, &holder.batch, &holder.task)?;
        match &place {
            Some(Place::Claimed { .. }) => {
                self.idle = None;
                return Ok(false);
            }
            Some(Place::Ended { .. }) => {}
            // The run is between two coordinators, unless no coordinator is running.
            Some(Place::Waiting { .. }) | None => {
                let since = match &self.idle {
                    Some((seen, since)) if seen == turn => *since,
                    _ => host::instant(),
                };
                self.idle = Some((turn.clone(), since));
                if host::since(since) < patience {
                    return Ok(false);
                }
            }
        }
        has_steps_out(queue, workspace, holder, place.as_ref()).map(|out| !out)
    }
}

/// Returns the run that holds the lock.
fn before(queue: &Queue, owner: String) -> io::Result<Before> {
    Ok(match holder(queue)? {
        Some(holder) => Before::Run(holder.batch),
        None => Before::Process(owner),
    })
}

/// Returns the run of a fleet that has the turn, or `None` if that run has ended.
pub(crate) fn holder(queue: &Queue) -> io::Result<Option<TurnHolder>> {
    let Some(holder) = queue.turn()?.holder else { return Ok(None) };
    let place = queue.find(COORDINATOR, &holder.batch, &holder.task)?;
    let out = matches!(place, Some(Place::Waiting { .. } | Place::Claimed { .. }));
    Ok(out.then_some(holder))
}

/// Returns true if a step of a run is executing or queued for a worker.
pub(crate) fn is_at_work(
    queue: &Queue,
    workspace: &Workspace,
    holder: &TurnHolder,
) -> io::Result<bool> {
    let place = queue.find(COORDINATOR, &holder.batch, &holder.task)?;
    has_steps_out(queue, workspace, holder, place.as_ref())
}

fn has_steps_out(
    queue: &Queue,
    workspace: &Workspace,
    holder: &TurnHolder,
    place: Option<&Place>,
) -> io::Result<bool> {
    let root = root_of(queue, workspace.root(), holder, place)?;
    let run = match open::look(workspace, &root) {
        Ok((_, run)) => run,
        Err(error) if error.may_pass() => return Err(io::Error::other(error.to_string())),
        // The run is damaged: no process can continue it.
        Err(_) => return Ok(false),
    };
    for task in run_task::steps_out(&run) {
        let Some(id) = TaskId::parse(&task.id) else { continue };
        let place = queue.find(&task.agent, run.id.as_str(), &id)?;
        if matches!(place, Some(Place::Waiting { .. } | Place::Claimed { .. })) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn root_of(
    queue: &Queue,
    workspace: &Path,
    holder: &TurnHolder,
    place: Option<&Place>,
) -> io::Result<PathBuf> {
    if let Some(place) = place
        && let Some(task) = queue.read(place, &holder.batch)?
        && let Ok(Asked::Run(run)) = documents::read(&task.document)
    {
        return Ok(workspace.join(run.run_root));
    }
    Ok(workspace.join(RUNS).join(&holder.batch))
}
