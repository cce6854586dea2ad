//! The task queue: tasks are files on disk, and a worker claims one by renaming it.
//!
//! **One idea:** every change of a task's state is one rename of one file to a name that never
//! existed before. The file is the task, the directory is its state, and the name carries the
//! holder and the attempt. No two processes share a target name that decides anything. After any
//! error, a process therefore looks for its own target: if the target exists, the rename happened,
//! even if the call returned an error.
//!
//! The queue does not know what a workflow is. A task is a sealed document with a few members that
//! the queue reads ([`Task`]); the executor of the task reads the rest.

pub(crate) mod checkout_token;
mod claim;
mod clock;
mod commit;
mod enqueue;
pub(crate) mod fs;
pub(crate) mod layout;
pub(crate) mod listing;
mod look;
mod markers;
pub(crate) mod missing_volume;
mod moves;
pub(crate) mod name;
mod reap;
pub(crate) mod repair;
pub(crate) mod seal;
mod status;
#[cfg(test)]
mod tests;
mod volume;
pub(crate) mod watch;

use std::collections::HashSet;
use std::io;

use serde_json::{Map, Value};

pub(crate) use crate::queue::checkout_token::{Turn, TurnHolder};
pub(crate) use crate::queue::missing_volume::VolumeFault;
pub(crate) use crate::queue::repair::{Judged, name_anew};
pub(crate) use fs::FsQueue;
pub(crate) use layout::Layout;
pub(crate) use name::{ClaimName, TaskId, TaskName};
pub(crate) use status::UNREADABLE;
pub(crate) use volume::{fault_of, has_queue};

/// A task to be put into an inbox.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Task {
    pub name: TaskName,
    pub agent: String,
    /// Subdirectory of `processed/` or `failed/` that the task ends in: a run's id, or a day.
    pub batch: String,
    /// Number of holders that may die while they hold the task. After that it fails as poison.
    pub crash_limit: u32,
    /// The whole document, including the members above.
    pub document: Map<String, Value>,
}

/// A task that this process has claimed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Claim {
    pub name: ClaimName,
    pub agent: String,
    pub task: Task,
}

/// Final state of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum End {
    Processed,
    Failed,
    Cancelled,
}

/// Result of an attempt to move a claimed task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// This process moved the task to its target.
    Committed,
    /// Another process moved the task first. The result of this process does not count.
    Fenced,
}

/// A claimed task with the end and the status it is to get.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Finish {
    pub claim: Claim,
    pub end: End,
    pub status: Map<String, Value>,
}

/// Result of a claim.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Claimed {
    Task(Box<Claim>),
    /// The file is not a sealed task. It is now in `failed/unreadable/`, with a status that states
    /// the reason. The next claim continues after it.
    Quarantined {
        name: ClaimName,
        reason: String,
    },
    Nothing,
}

/// Current place of a task.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Place {
    Waiting { agent: String, name: TaskName },
    Claimed { agent: String, name: ClaimName },
    Ended { end: End, name: ClaimName, by: String },
}

/// Action taken on a claim whose holder is gone.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reaped {
    /// The holder had written a status, so the task was moved to the end that the status belongs
    /// to; or the file was not a sealed task, and it failed.
    Finished { name: ClaimName, end: End },
    /// The task went back to its inbox.
    Returned { name: TaskName },
    /// The task had killed too many holders, and it failed.
    Poison { name: ClaimName },
    /// A cancellation of the task had been requested.
    Cancelled { name: ClaimName },
}

/// Result of publishing one task.
#[derive(Debug)]
pub(crate) enum Published {
    Yes,
    /// The caller's [`Still`] check rejected the task. It never appeared in its inbox.
    Refused,
    /// The task never appeared and never will, so the caller may publish it again later.
    No(io::Error),
    /// The task may be in its inbox, or already claimed. The caller must not publish it again.
    Unknown(io::Error),
}

/// Callback that runs right before a task appears in its inbox: returns true if the task is still
/// to be published.
pub(crate) type Still<'a> = &'a dyn Fn(&Task) -> io::Result<bool>;

/// Callback that runs before a waiting task is claimed: returns true if the caller wants the task.
/// Its second argument reads the task, or returns `None` if the file is gone or incomplete.
pub(crate) type Wanted<'a> = &'a dyn Fn(&TaskName, &dyn Fn() -> Option<Task>) -> bool;

/// Operations of a queue backend. Any number of threads and processes may call them concurrently.
pub(crate) trait Queue: Send + Sync {
    /// Puts tasks into their agents' inboxes. After `Ok`, they will be executed: in durable mode
    /// they survive a power failure.
    fn enqueue(&self, tasks: &[Task]) -> io::Result<()>;
    /// Like [`enqueue`](Self::enqueue), but publishes each task only if `still` accepts it right
    /// before it appears: writing takes long, and a process that was paused meanwhile may have lost
    /// its right to publish. Returns one result per task, in order.
    fn enqueue_while(&self, tasks: &[Task], still: Still) -> Vec<Published>;
    /// Enqueues a task that this process has already claimed.
    fn enqueue_claimed(&self, task: &Task) -> io::Result<Claim>;
    /// Claims the next task of an agent: the most urgent, and among those the oldest. Returns
    /// `Claimed::Nothing` while the agent is paused.
    fn claim(&self, agent: &str) -> io::Result<Claimed>;
    /// Like [`claim`](Self::claim), but considers only the tasks that `wanted` accepts.
    fn claim_wanted(&self, agent: &str, wanted: Wanted) -> io::Result<Claimed>;
    /// Claims the given waiting task. Returns `Claimed::Nothing` if another process has it or the
    /// agent is paused.
    fn claim_this(&self, agent: &str, name: &TaskName) -> io::Result<Claimed>;
    /// Ends claimed tasks, each with its status. The move of a task is its commit. Returns one
    /// result per task, in order.
    fn complete(&self, done: &[Finish]) -> Vec<io::Result<Ending>>;
    /// Returns a claimed task to its inbox. The attempt does not count as a crash.
    fn release(&self, claim: &Claim) -> io::Result<Ending>;
    /// Requeues or ends the claims of a holder that is known to be dead.
    fn reap(&self, worker: &str) -> io::Result<Vec<Reaped>>;
    /// Writes the heartbeat of this process.
    fn beat(&self) -> io::Result<()>;
    /// Returns the last heartbeat of a process, or `None` if it never wrote one.
    fn read_beat(&self, worker: &str) -> io::Result<Option<Vec<u8>>>;
    /// Returns every agent that has an inbox or claims.
    fn agents(&self) -> io::Result<Vec<String>>;
    /// Returns all claims of an agent.
    fn claims(&self, agent: &str) -> io::Result<Vec<ClaimName>>;
    /// Returns all tasks that wait for an agent, in claim order.
    fn waiting(&self, agent: &str) -> io::Result<Vec<TaskName>>;
    /// Returns true if any task waits for an agent. Cheap: stops at the first one.
    fn has_waiting(&self, agent: &str) -> io::Result<bool>;
    /// Returns the tasks of a batch that ended as `end`, each with the process that ended it.
    fn ended(&self, end: End, batch: &str) -> io::Result<Vec<(ClaimName, String)>>;
    /// Returns the batches that have tasks which ended as `end`.
    fn batches(&self, end: End) -> io::Result<Vec<String>>;
    /// Returns the status of an ended task, or `None` if it is missing or incomplete.
    fn status(
        &self,
        end: End,
        batch: &str,
        name: &ClaimName,
    ) -> io::Result<Option<Map<String, Value>>>;
    /// Returns how a claim ended, if its own holder ended it. Opens the file names it would have
    /// and lists nothing. `None` is not conclusive: another process may have ended the claim.
    fn ended_by_holder(
        &self,
        batch: &str,
        name: &ClaimName,
    ) -> io::Result<Option<(End, Map<String, Value>)>>;
    /// Finds a task. Searches its possible places twice, in the order it moves through them, so
    /// that a concurrent move cannot hide it.
    fn find(&self, agent: &str, batch: &str, id: &TaskId) -> io::Result<Option<Place>>;
    /// Reads the task at `place`. Returns `None` if it is not there or not complete.
    fn read(&self, place: &Place, batch: &str) -> io::Result<Option<Task>>;
    /// Requests the cancellation of a task in any state, or of all tasks of a run.
    fn request_cancel(&self, id: &str) -> io::Result<()>;
    /// Returns the ids of tasks and runs whose cancellation is requested.
    fn cancel_requests(&self) -> io::Result<HashSet<String>>;
    /// Removes a cancellation request. Does nothing if there is none.
    fn forget_cancel(&self, id: &str) -> io::Result<()>;
    /// Cancels a waiting task. Returns `Fenced` if another process claimed it first.
    fn cancel_waiting(&self, agent: &str, name: &TaskName) -> io::Result<Ending>;
    /// Puts an ended task back into its inbox as the next attempt. Resets its crash count and
    /// removes a request to cancel it. `by` is the process that ended it, as [`Queue::ended`]
    /// returns it.
    fn requeue(&self, end: End, batch: &str, name: &ClaimName, by: &str) -> io::Result<Ending>;
    /// Pauses an agent: no process claims its tasks until [`resume`](Self::resume).
    fn pause(&self, agent: &str, reason: &str) -> io::Result<()>;
    fn resume(&self, agent: &str) -> io::Result<()>;
    /// Returns the reason for an agent's pause, or `None` if it is not paused.
    fn paused(&self, agent: &str) -> io::Result<Option<String>>;
}
