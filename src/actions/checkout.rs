//! Locks the checkout for a run that changes it.

use std::time::{Duration, Instant};

use crate::disk::fs;
use crate::queue::{Layout, Turn};
use crate::run::checkout;
use crate::run::create::{self, NewRun};
use crate::run::failure::Failure;
use crate::run::locked::LockedRun;
use crate::run::project::Project;
use crate::run::wording::with_disk_hint;
use crate::store::lock::{LockError, RunLock};
use crate::view::Board;
use crate::workflow::Plan;

/// Maximum time that a run needs to release the checkout after its status shows that it is over.
const LETTING_GO: Duration = Duration::from_secs(1);

/// Locks the checkout for a run that changes it, so that no other such run uses it at the same
/// time. Returns `None` if the plan does not change the checkout.
pub(crate) fn take_checkout(project: &Project, plan: &Plan) -> Result<Option<RunLock>, Failure> {
    if !plan.is_exclusive() {
        return Ok(None);
    }
    // A run's status shows that it is over shortly before it releases the checkout.
    let until = Instant::now() + LETTING_GO;
    loop {
        match try_checkout(project)? {
            Ok(lock) => return Ok(Some(lock)),
            Err(who) if Instant::now() >= until => return Err(checkout_taken(&who)),
            Err(_) => std::thread::sleep(LETTING_GO / 20),
        }
    }
}

/// Locks the checkout. The inner error names the run that holds it.
fn try_checkout(project: &Project) -> Result<Result<RunLock, String>, Failure> {
    let taken = match checkout::take_lock(&project.workspace) {
        Ok(lock) => lock,
        Err(LockError::Held { owner }) => {
            let run = run_with_turn(project).map(|run| format!("run {run}"));
            return Ok(Err(run.unwrap_or_else(|| format!("a run of {owner}"))));
        }
        Err(LockError::Io(error)) => {
            let failure = Failure::failed(format!("cannot lock the checkout: {error}"));
            return Err(with_disk_hint(failure, &error, "try again"));
        }
    };
    // A run of a fleet can use the checkout although no process of this machine holds the lock.
    Ok(match run_with_turn(project) {
        Some(run) => Err(format!("run {run}")),
        None => Ok(taken),
    })
}

fn checkout_taken(who: &str) -> Failure {
    Failure::owned(format!("{who} works on this checkout already")).hint(
        "wait for it to end, or say `mutates_checkout: false` in a workflow that changes nothing",
    )
}

/// Returns the fleet run that may currently change the checkout, if a process drives it. Also
/// returns `None` if the queue is unreadable: that must not block a run that needs no fleet.
pub(crate) fn run_with_turn(project: &Project) -> Option<String> {
    let dir = Layout::new(&project.workspace).checkout();
    let names = fs::read_dir(&dir).ok()?.flatten();
    let mut turns = names.filter_map(|entry| Turn::parse(entry.file_name().to_str()?));
    turns.find(|turn| turn.holder.is_some())?;
    let board = Board::scan(project, project.queue_if_any().ok()?).ok()?;
    board.run_with_turn()
}

/// Creates a run. Locks the checkout first if this process drives the run and the run changes the
/// checkout; a run of a fleet waits for the checkout when it is driven.
pub(crate) fn create_run(project: &Project, new: NewRun) -> Result<LockedRun, Failure> {
    new.check()?;
    let checkout = if new.fleet { None } else { take_checkout(project, &new.plan)? };
    create::create(project, new, checkout)
}
