//! The live dashboard: the screen of `top` as functions of the last scan and the pressed keys.
//!
//! [`update`] applies a key to the [`State`] and returns a request; [`draw`] draws a state and a
//! scan ([`Seen`]). `ui/cli/top.rs` scans, executes actions, and controls the terminal.
//!
//! **Invariant:** this module uses no file, terminal, or clock, and color is never the only sign of
//! a state.

mod draw;
mod panels;
pub(crate) mod scanner;
mod screens;
mod state;
pub(crate) mod terminal;

#[cfg(test)]
mod tests;

pub(crate) use draw::{Look, doing, draw};
pub(crate) use state::{Screen, State, Wish, update};

use crate::base::time::Time;
use crate::view::{Gate, InboxView, RunDetail, RunView, TaskView, WorkerView};

/// The result of one scan.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Name of the workspace directory.
    pub place: String,
    pub now: Option<Time>,
    pub runs: Vec<RunView>,
    pub workers: Vec<WorkerView>,
    pub inboxes: Vec<InboxView>,
    pub gates: Vec<Gate>,
    /// Providers that are at a limit or suspended, one sentence each.
    pub parked: Vec<String>,
    pub failed_tasks: usize,
    /// The open run, or an error message if it cannot be read.
    pub detail: Option<Result<RunDetail, String>>,
    /// The first tasks of the open queue, and their total number.
    pub tasks: Option<(Vec<TaskView>, usize)>,
    /// The end of the open log, and true if more output may follow.
    pub log: Option<(Vec<String>, bool)>,
    /// Reason why the scan failed.
    pub trouble: Option<String>,
}

impl Seen {
    /// Returns the milliseconds from `at` to this scan.
    fn since(&self, at: Option<Time>) -> Option<u64> {
        Some(self.now?.ms_since(at?))
    }

    fn run(&self, id: &str) -> Option<&RunView> {
        self.runs.iter().find(|run| run.run_id == id)
    }

    /// Returns true if a run has an unanswered question.
    fn asks(&self, run: &str) -> bool {
        self.gates_of(run).next().is_some()
    }

    /// Returns the unanswered questions of a run.
    fn gates_of<'a>(&'a self, run: &'a str) -> impl Iterator<Item = &'a Gate> {
        self.gates.iter().filter(move |gate| gate.run_id.as_str() == run && !gate.answered)
    }
}
