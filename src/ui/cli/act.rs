//! What people do to runs where they look at them: the same that the verbs do, told in a sentence.

use super::cancel::{self, TimeoutArg, Wait};
use super::common::{RunOptions, Surroundings};
use super::show::{self, Target};
use super::{Failure, decide, retry};
use crate::ids::RunId;

/// Something to be done. Runs and tasks go by their ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deed {
    Approve { run: String, node: String, comment: String },
    Reject { run: String, node: String, reason: String },
    Cancel { target: String },
    Retry { run: String },
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    Said(String),
    /// It is on record, and the run goes on once somebody drives it: nobody does.
    Undriven {
        said: String,
        run: RunId,
    },
}

/// How long somebody who looks on waits until nothing of what was cancelled runs any more.
const PATIENCE: TimeoutArg = TimeoutArg { timeout: 30 };

/// Does it. It may take seconds: nothing is said to be done before it is.
pub fn act(around: &Surroundings, deed: &Deed) -> Result<Done, Failure> {
    let mut around = around.clone();
    // Nothing is to be printed over what is shown.
    (around.common.quiet, around.common.json) = (true, false);
    match deed {
        Deed::Approve { run, node, comment } => answer(&around, run, node, true, comment),
        Deed::Reject { run, node, reason } => answer(&around, run, node, false, reason),
        Deed::Cancel { target } => cancel(&around, target),
        Deed::Retry { run } => go_on(&mut around, run),
    }
}

fn answer(
    around: &Surroundings,
    run: &str,
    node: &str,
    approve: bool,
    comment: &str,
) -> Result<Done, Failure> {
    let given = decide::give(around, run, Some(node), approve, comment, None)?;
    let word = if approve { "approved" } else { "rejected" };
    let said = format!("`{node}` of run {} {word}", given.id);
    match decide::is_taken_in(around, &given)? {
        true => Ok(Done::Said(said)),
        false => Ok(Done::Undriven { said, run: given.id }),
    }
}

fn cancel(around: &Surroundings, target: &str) -> Result<Done, Failure> {
    let queue = show::queue_if_any(around)?;
    let board = show::board(around, queue.clone())?;
    let target = show::target(around, &board, target)?;
    let cancelled = cancel::cancel(around, queue, &board, &target, Wait::new(&PATIENCE))?;
    Ok(Done::Said(cancelled.words()))
}

fn go_on(around: &mut Surroundings, run: &str) -> Result<Done, Failure> {
    let queue = show::queue_if_any(around)?;
    let board = show::board(around, queue.clone())?;
    let Target::Run(id) = show::target(around, &board, run)? else {
        return Err(Failure::new(2, format!("`{run}` is no run")));
    };
    let root = board.run_root(&id);
    let Some(queue) = queue.filter(|_| board.run(&id).fleet) else {
        return Ok(Done::Undriven { said: format!("run {id} is to go on"), run: id });
    };
    let options = RunOptions::default();
    match retry::hand_over(around, &queue, &board, (&id, &root), None, &options)? {
        Some(_) => Ok(Done::Said(format!("run {id} has completed already"))),
        None if board.coordinators() == 0 => {
            Ok(Done::Said(format!("run {id} waits for a coordinator, and none is alive")))
        }
        None => Ok(Done::Said(format!("run {id} goes on"))),
    }
}
