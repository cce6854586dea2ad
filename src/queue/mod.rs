//! Who does it: tasks on disk, claimed by renaming.
//!
//! **One idea:** every change of a task's state is one rename of one file to a name that never
//! existed before. The file is the task, the directory is its state, the name carries who and
//! which attempt. Nobody shares a deciding target name with anybody, so after any error an actor
//! looks for its own target: if it is there, the rename happened, whatever the call returned.
//!
//! The queue does not know what a workflow is. A task is a sealed document with a few members
//! that the queue reads ([`Task`]); the rest is for whoever executes it.

pub mod fs;
pub mod layout;
pub mod name;
pub mod seal;
#[cfg(test)]
mod tests;
pub mod watch;

use std::io;

use serde_json::{Map, Value};

pub use fs::FsQueue;
pub use layout::Layout;
pub use name::{ClaimName, TaskId, TaskName};

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// What a claim may come to.
#[derive(Clone, Debug, PartialEq)]
pub enum Claimed {
    Task(Box<Claim>),
    /// A file that is no sealed task; it was put aside under this name.
    Quarantined(String),
    Nothing,
}

/// Where a task is now.
#[derive(Clone, Debug, PartialEq)]
pub enum Place {
    Waiting { agent: String, name: TaskName },
    Claimed { agent: String, name: ClaimName },
    Ended { end: End, name: ClaimName, by: String },
}

/// What every backend offers. All of it may be called by any number of processes at once.
pub trait Queue {
    /// Puts a task into its agent's inbox. When it returns, the task will be executed.
    fn enqueue(&self, task: &Task) -> io::Result<()>;
    /// Takes the next task of an agent: the most urgent, and of those the oldest.
    fn claim(&mut self, agent: &str) -> io::Result<Claimed>;
    /// Ends a claimed task with its status. The move of the task is the commit.
    fn complete(&self, claim: &Claim, end: End, status: &Map<String, Value>) -> io::Result<Ending>;
    /// Gives a claimed task back, as an attempt that does not count against it.
    fn release(&self, claim: &Claim) -> io::Result<Ending>;
    /// Puts back, or ends, the claims of a holder that is known to be dead.
    fn reap(&self, worker: &str) -> io::Result<Vec<Reaped>>;
    /// Says that this process lives.
    fn beat(&mut self) -> io::Result<()>;
    /// All claims of an agent.
    fn claims(&self, agent: &str) -> io::Result<Vec<ClaimName>>;
    /// All tasks that wait for an agent, in order.
    fn waiting(&self, agent: &str) -> io::Result<Vec<TaskName>>;
    /// The tasks of a batch that ended so.
    fn ended(&self, end: End, batch: &str) -> io::Result<Vec<(ClaimName, String)>>;
    /// The status that goes with an ended task; nothing, if there is none or it is not whole.
    fn status(
        &self,
        end: End,
        batch: &str,
        name: &ClaimName,
    ) -> io::Result<Option<Map<String, Value>>>;
    /// Takes a waiting task out. `Fenced` when somebody claimed it first.
    fn cancel_waiting(&self, agent: &str, name: &TaskName) -> io::Result<Ending>;
}

/// What was done about a claim of the dead.
#[derive(Clone, Debug, PartialEq)]
pub enum Reaped {
    /// Its holder had finished: the task was moved on as it would have been.
    Finished { name: ClaimName, end: End },
    /// It went back to the inbox.
    Returned { name: TaskName },
    /// It had killed too many holders.
    Poison { name: ClaimName },
}
