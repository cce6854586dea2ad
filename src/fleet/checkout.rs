//! Whose turn it is to change the checkout: of the runs that do, one goes on at a time.
//!
//! A local run has its turn while its process holds the lock of the checkout. A run of a fleet
//! has it by a file of the queue ([`crate::queue::turn`]) until it is over or waits for people
//! alone, whoever drives it: its steps go on while its coordinator is dead. The coordinator that
//! drives it holds the lock too, for local runs to see.
//!
//! **Invariant:** a run of a fleet is driven by whoever moved the turn to the attempt of its own
//! claim. So a turn is never taken from somebody who goes on with it: of the two who move it, one
//! finds it gone.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::member;
use super::open;
use super::post::{self, Asked, COORDINATOR};
use super::run_task;
use crate::exec;
use crate::host;
use crate::queue::{Claim, FsQueue, Place, Queue, TaskId, Turn, TurnHolder};
use crate::store::lock::{self, LockError, RunLock};
use crate::workspace::Workspace;

/// Where runs lie whose task does not say it any more.
const RUNS: &str = ".orchestrate/runs";

/// The turn of a run that is driven here.
pub struct Held {
    turn: Turn,
    _lock: RunLock,
}

impl Held {
    /// Lets others have their turn. It may be that somebody has taken it from the dead.
    pub fn give_up(self, queue: &FsQueue) -> io::Result<()> {
        queue.pass_turn(&self.turn, None).map(drop)
    }
}

/// Whom a run waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Before {
    /// A run of the fleet, by its id.
    Run(String),
    /// A local run, by what is known of its process.
    Process(String),
    /// Somebody was faster, and it is not known who.
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

/// What came of asking for the turn.
pub enum Taken {
    Turn(Held),
    After(Before),
}

/// Takes the lock of a workspace, or says who has it. What a holder that was killed has left
/// running is ended first.
pub fn take_lock(workspace: &Path) -> Result<RunLock, LockError> {
    lock::take_checkout(workspace, exec::own_mark(), &|left| {
        let ended = member::sweep_if(&|mark| mark == left);
        if ended > 0 {
            tracing::info!("ended {ended} processes of a run that was killed in this checkout");
        }
    })
}

/// Somebody who wants the turn, and what it has seen of whoever has it.
#[derive(Default)]
pub struct Suitor {
    /// A turn that nobody goes on with, since when.
    idle: Option<(Turn, Instant)>,
}

impl Suitor {
    /// Takes the turn for the run that a claim is, or says who has it. What nobody has taken up
    /// for so long as `patience` is taken to be left.
    pub fn ask(
        &mut self,
        queue: &FsQueue,
        workspace: &Workspace,
        claim: &Claim,
        patience: Duration,
    ) -> io::Result<Taken> {
        // From here on no local run of this machine comes between.
        let lock = match take_lock(workspace.root()) {
            Ok(lock) => lock,
            Err(LockError::Held { owner }) => return Ok(Taken::After(before(queue, owner)?)),
            Err(LockError::Io(error)) => return Err(error),
        };
        let turn = queue.turn()?;
        // The run may have been put out anew, as another task.
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

    /// Whether nobody goes on with a turn: its run is over, or nobody takes it up, and nothing of
    /// it is being executed.
    fn is_left(
        &mut self,
        queue: &FsQueue,
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
            // On its way from one coordinator to the next, unless there is none.
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

/// Whom a lock is waited for.
fn before(queue: &FsQueue, owner: String) -> io::Result<Before> {
    Ok(match holder(queue)? {
        Some(holder) => Before::Run(holder.batch),
        None => Before::Process(owner),
    })
}

/// The run of a fleet that has the turn, if it is not over.
pub fn holder(queue: &FsQueue) -> io::Result<Option<TurnHolder>> {
    let Some(holder) = queue.turn()?.holder else { return Ok(None) };
    let place = queue.find(COORDINATOR, &holder.batch, &holder.task)?;
    let out = matches!(place, Some(Place::Waiting { .. } | Place::Claimed { .. }));
    Ok(out.then_some(holder))
}

/// Whether something of a run is being executed, or will be as soon as a worker comes.
pub fn is_at_work(queue: &FsQueue, workspace: &Workspace, holder: &TurnHolder) -> io::Result<bool> {
    let place = queue.find(COORDINATOR, &holder.batch, &holder.task)?;
    has_steps_out(queue, workspace, holder, place.as_ref())
}

fn has_steps_out(
    queue: &FsQueue,
    workspace: &Workspace,
    holder: &TurnHolder,
    place: Option<&Place>,
) -> io::Result<bool> {
    let root = root_of(queue, workspace.root(), holder, place)?;
    let run = match open::look(workspace, &root) {
        Ok((_, run)) => run,
        Err(error) if error.may_pass() => return Err(io::Error::other(error.to_string())),
        // Nobody can go on with it.
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
    queue: &FsQueue,
    workspace: &Path,
    holder: &TurnHolder,
    place: Option<&Place>,
) -> io::Result<PathBuf> {
    if let Some(place) = place
        && let Some(task) = queue.read(place, &holder.batch)?
        && let Ok(Asked::Run(run)) = post::read(&task.document)
    {
        return Ok(workspace.join(run.run_root));
    }
    Ok(workspace.join(RUNS).join(&holder.batch))
}
