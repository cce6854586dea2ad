//! `orchestrate`: a fleet of coding agents over plain files.
//!
//! The path of a workflow: text becomes a plan ([`workflow`]); a plan and events become a run, and
//! a run states the work that it is owed ([`engine`]); events are stored ([`store`]); workers and
//! the local process do the work ([`fleet`], using [`prompt`], [`workspace`] and [`exec`]); and the
//! results are shown ([`ui`]). The modules from [`provider`] to `prompt`, in the order below, do no
//! I/O.

pub mod ansi;
pub mod digest;
pub mod host;
pub mod ids;
pub mod json;
pub mod process;
pub mod random;
pub mod time;

pub mod provider;
pub mod template;

pub mod workflow;

pub mod bead;

pub mod engine;

pub mod prompt;

pub mod disk;
pub mod exec;
pub mod git;
pub mod queue;
pub mod store;
pub mod workspace;
pub mod worktree;

pub mod offline;

pub mod fleet;
#[cfg(test)]
mod sim;
pub mod ui;
