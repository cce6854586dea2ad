//! The live board: what is on the screen of `top`, as functions of what was seen and of the keys
//! that were pressed.
//!
//! [`update`] folds a key into the [`State`] and says what is wished for; [`draw`] draws a state
//! and what was [`Seen`]. Looking, doing and the terminal itself are in `ui/cli/top.rs`.
//!
//! **Invariant:** nothing here touches a file, a terminal or a clock, and no state is told by its
//! colour alone.

mod draw;
mod panels;
mod screens;
mod state;
pub mod text;

#[cfg(test)]
mod tests;

pub use draw::{Look, doing, draw};
pub use state::{Screen, State, Wish, update};

use super::board::{Gate, InboxView, RunDetail, RunView, TaskView, WorkerView};
use crate::time::Time;

/// What one look has found.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// What the workspace is called.
    pub place: String,
    pub now: Option<Time>,
    pub runs: Vec<RunView>,
    pub workers: Vec<WorkerView>,
    pub inboxes: Vec<InboxView>,
    pub gates: Vec<Gate>,
    /// Providers that are at a limit or suspended, a sentence each.
    pub parked: Vec<String>,
    pub failed_tasks: usize,
    /// The run that is open, or why it cannot be read.
    pub detail: Option<Result<RunDetail, String>>,
    /// The first tasks of the queue that is open, and how many there are.
    pub tasks: Option<(Vec<TaskView>, usize)>,
    /// The end of the log that is open, and whether more may come.
    pub log: Option<(Vec<String>, bool)>,
    /// Why nothing can be seen.
    pub trouble: Option<String>,
}

impl Seen {
    /// Milliseconds from a moment to this look.
    fn since(&self, at: Option<Time>) -> Option<u64> {
        Some(self.now?.ms_since(at?))
    }

    fn run(&self, id: &str) -> Option<&RunView> {
        self.runs.iter().find(|run| run.run_id == id)
    }

    /// Whether a run asks people anything.
    fn asks(&self, run: &str) -> bool {
        self.gates_of(run).next().is_some()
    }

    /// What a run asks people and nobody has answered yet.
    fn gates_of<'a>(&'a self, run: &'a str) -> impl Iterator<Item = &'a Gate> {
        self.gates.iter().filter(move |gate| gate.run_id.as_str() == run && !gate.answered)
    }
}
