//! What people do to runs where they look at them: the same that the verbs do, told in a sentence.

use super::cancel::{self, TimeoutArg, Wait};
use super::common::{RunOptions, Surroundings};
use super::resume::Why;
use super::show::{self, Target};
use super::{Failure, decide, retry};
use crate::ids::RunId;

/// A question as somebody has seen it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    pub run: String,
    pub node: String,
    /// The very question: a node may ask again in another round.
    pub step: String,
    /// The digest of what was shown: an answer counts for nothing else.
    pub shown: String,
}

/// Something to be done. Runs and tasks go by their ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deed {
    Approve { asked: Question, comment: String },
    Reject { asked: Question, reason: String },
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
        why: Why,
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
        Deed::Approve { asked, comment } => answer(&around, asked, true, comment),
        Deed::Reject { asked, reason } => answer(&around, asked, false, reason),
        Deed::Cancel { target } => cancel(&around, target),
        Deed::Retry { run } => go_on(&mut around, run),
    }
}

fn answer(
    around: &Surroundings,
    asked: &Question,
    approve: bool,
    comment: &str,
) -> Result<Done, Failure> {
    let Question { run, node, step, shown } = asked;
    let given = decide::give(around, run, Some(step), approve, comment, Some(shown))?;
    let word = if approve { "approved" } else { "rejected" };
    let said = format!("`{node}` of run {} {word}", given.id);
    match decide::is_taken_in(around, &given)? {
        true => Ok(Done::Said(said)),
        false => Ok(Done::Undriven { said, run: given.id, why: Why::Answered }),
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
        let (said, why) = (format!("run {id} is to go on"), Why::Asked);
        return Ok(Done::Undriven { said, run: id, why });
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
