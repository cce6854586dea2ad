//! Who does it: tasks on disk, claimed by renaming.
//!
//! **One idea:** every change of a task's state is one rename of one file to a name that never
//! existed before. The file is the task, the directory is its state, the name carries who and
//! which attempt. Nobody shares a deciding target name with anybody, so after any error an actor
//! looks for its own target: if it is there, the rename happened, whatever the call returned.
//!
//! The queue does not know what a workflow is. A task is a sealed document with a few members
//! that the queue reads ([`Task`]); the rest is for whoever executes it.

mod claim;
mod clock;
mod commit;
mod enqueue;
pub mod fs;
pub mod layout;
mod look;
mod lost;
mod markers;
mod mend;
mod moves;
pub mod name;
mod reap;
pub mod seal;
mod status;
mod stock;
#[cfg(test)]
mod tests;
pub mod turn;
mod volume;
pub mod watch;

use std::collections::HashSet;
use std::io;

use serde_json::{Map, Value};

pub use fs::FsQueue;
pub use layout::Layout;
pub use lost::VolumeFault;
pub use mend::{Judged, name_anew};
pub use name::{ClaimName, TaskId, TaskName};
pub use status::UNREADABLE;
pub use turn::{Turn, TurnHolder};
pub use volume::{fault_of, has_queue};

/// What is put into an inbox.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    pub name: TaskName,
    pub agent: String,
    /// The directory under `processed/` or `failed/` it ends in: a run's id, or a day.
    pub batch: String,
    /// How many holders may die over it before it is taken to be poison.
    pub crash_limit: u32,
    /// The whole document, these members included.
    pub document: Map<String, Value>,
}

/// A task that this process holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    pub name: ClaimName,
    pub agent: String,
    pub task: Task,
}

/// Where a task ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    Processed,
    Failed,
    Cancelled,
}

/// What came of moving a claimed task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It is where it was to go, and this process put it there.
    Committed,
    /// Somebody else moved it first: what was done does not count.
    Fenced,
}

/// How a claimed task is to end.
#[derive(Clone, Debug, PartialEq)]
pub struct Finish {
    pub claim: Claim,
    pub end: End,
    pub status: Map<String, Value>,
}

/// What a claim may come to.
#[derive(Clone, Debug, PartialEq)]
pub enum Claimed {
    Task(Box<Claim>),
    /// A file that is no sealed task. It has been put into `failed/unreadable/`, with a status
    /// that says why; the next claim goes on after it.
    Quarantined {
        name: ClaimName,
        reason: String,
    },
    Nothing,
}

/// Where a task is now.
#[derive(Clone, Debug, PartialEq)]
pub enum Place {
    Waiting { agent: String, name: TaskName },
    Claimed { agent: String, name: ClaimName },
    Ended { end: End, name: ClaimName, by: String },
}

/// What was done about a claim whose holder is gone.
#[derive(Clone, Debug, PartialEq)]
pub enum Reaped {
    /// Its holder had finished, and the task was moved on as it would have been; or it was no
    /// sealed task, and failed.
    Finished { name: ClaimName, end: End },
    /// It went back to the inbox.
    Returned { name: TaskName },
    /// It had killed too many holders.
    Poison { name: ClaimName },
    /// Somebody had asked for it to be cancelled.
    Cancelled { name: ClaimName },
}

/// What became of a task that was to be put into its inbox.
#[derive(Debug)]
pub enum Published {
    Yes,
    /// The caller did not want it any more. It never appeared.
    Refused,
    /// It never appeared and never will, so the same task may be published later.
    No(io::Error),
    /// It may be in its inbox, or taken from there already. It must not be published again.
    Unknown(io::Error),
}

/// Asked before a task appears: is it still to be put out?
pub type Still<'a> = &'a dyn Fn(&Task) -> io::Result<bool>;

/// Asked before a waiting task is claimed: is it wanted? What it says is read if that is asked for,
/// and nothing if it is gone or not whole.
pub type Wanted<'a> = &'a dyn Fn(&TaskName, &dyn Fn() -> Option<Task>) -> bool;

/// What every backend offers. All of it may be called by any number of threads and processes at
/// once.
pub trait Queue: Send + Sync {
    /// Puts tasks into their agents' inboxes. When it returns, they will be executed: in durable
    /// mode they survive a power cut.
    fn enqueue(&self, tasks: &[Task]) -> io::Result<()>;
    /// The same, each only if it is still to be put out when it is about to appear: writing takes
    /// long, and whoever is paused meanwhile may have lost its right to. One answer for each.
    fn enqueue_while(&self, tasks: &[Task], still: Still) -> Vec<Published>;
    /// Puts a task out as one that this process has claimed already.
    fn enqueue_claimed(&self, task: &Task) -> io::Result<Claim>;
    /// Takes the next task of an agent: the most urgent, and of those the oldest. Nothing while
    /// the agent is paused.
    fn claim(&self, agent: &str) -> io::Result<Claimed>;
    /// The same, of the tasks that are wanted.
    fn claim_wanted(&self, agent: &str, wanted: Wanted) -> io::Result<Claimed>;
    /// Takes one particular waiting task. Nothing if somebody else has it, or the agent is paused.
    fn claim_this(&self, agent: &str, name: &TaskName) -> io::Result<Claimed>;
    /// Ends claimed tasks, each with its status. The move of each is its commit. One result for
    /// each, in order.
    fn complete(&self, done: &[Finish]) -> Vec<io::Result<Ending>>;
    /// Gives a claimed task back, as an attempt that does not count against it.
    fn release(&self, claim: &Claim) -> io::Result<Ending>;
    /// Puts back, or ends, the claims of a holder that is known to be dead.
    fn reap(&self, worker: &str) -> io::Result<Vec<Reaped>>;
    /// Says that this process lives.
    fn beat(&self) -> io::Result<()>;
    /// What a process said last; nothing, if it never did.
    fn read_beat(&self, worker: &str) -> io::Result<Option<Vec<u8>>>;
    /// Every agent that has an inbox or claims.
    fn agents(&self) -> io::Result<Vec<String>>;
    /// All claims of an agent.
    fn claims(&self, agent: &str) -> io::Result<Vec<ClaimName>>;
    /// All tasks that wait for an agent, in the order of claims.
    fn waiting(&self, agent: &str) -> io::Result<Vec<TaskName>>;
    /// Whether any task waits for an agent. Cheap: looks no further than the first.
    fn has_waiting(&self, agent: &str) -> io::Result<bool>;
    /// The tasks of a batch that ended so, each with who ended it.
    fn ended(&self, end: End, batch: &str) -> io::Result<Vec<(ClaimName, String)>>;
    /// The batches that have tasks which ended so.
    fn batches(&self, end: End) -> io::Result<Vec<String>>;
    /// The status that goes with an ended task; nothing, if there is none or it is not whole.
    fn status(
        &self,
        end: End,
        batch: &str,
        name: &ClaimName,
    ) -> io::Result<Option<Map<String, Value>>>;
    /// How a claim ended, if its own holder ended it. Opens the names it would have and lists
    /// nothing. No answer is not an answer: somebody else may have ended it.
    fn ended_by_holder(
        &self,
        batch: &str,
        name: &ClaimName,
    ) -> io::Result<Option<(End, Map<String, Value>)>>;
    /// Where a task is. Looks along its way twice, so that a move in between cannot hide it.
    fn find(&self, agent: &str, batch: &str, id: &TaskId) -> io::Result<Option<Place>>;
    /// The task that lies somewhere; nothing, if it is not there or not whole.
    fn read(&self, place: &Place, batch: &str) -> io::Result<Option<Task>>;
    /// Asks for a task to be cancelled, wherever it is, or for all tasks of a run.
    fn request_cancel(&self, id: &str) -> io::Result<()>;
    /// What was asked to be cancelled: ids of tasks and runs.
    fn cancel_requests(&self) -> io::Result<HashSet<String>>;
    /// Drops a request. Nothing happens if there is none.
    fn forget_cancel(&self, id: &str) -> io::Result<()>;
    /// Takes a waiting task out. `Fenced` when somebody claimed it first.
    fn cancel_waiting(&self, agent: &str, name: &TaskName) -> io::Result<Ending>;
    /// Puts an ended task back into its inbox as the next attempt, its crashes and a request to
    /// cancel it forgotten. `by` is who ended it, as [`Queue::ended`] tells.
    fn requeue(&self, end: End, batch: &str, name: &ClaimName, by: &str) -> io::Result<Ending>;
    /// Lets nobody claim tasks of an agent.
    fn pause(&self, agent: &str, reason: &str) -> io::Result<()>;
    fn resume(&self, agent: &str) -> io::Result<()>;
    /// Why an agent is paused, if it is.
    fn paused(&self, agent: &str) -> io::Result<Option<String>>;
}
