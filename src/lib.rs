//! `orchestrate`: a fleet of coding agents over plain files.
//!
//! The path of a workflow: text becomes a plan ([`workflow`]); a plan and events become a run, and
//! a run states the work that it is owed ([`engine`]); events are stored ([`store`]); an
//! [`attempt`] does the work of one step and reports an event, in the process that drives the
//! [`run`] or in a worker of the [`fleet`]; and a [`view`] shows the state. A module uses only
//! modules of the groups before it and some of its own: docs/architecture.md has the table.

mod agent;
mod base;
mod engine;
mod template;
mod workflow;
mod yaml;

mod disk;
mod exec;
mod git;
mod lease;
mod queue;
mod settings;
mod store;
mod workspace;
mod worktree;

mod attempt;
mod fleet;
mod free_task;
mod health;
mod run;
#[cfg(test)]
mod sim;

mod actions;
mod cli;
mod graph;
mod offline;
mod report;
mod serve;
mod top;
mod view;

#[cfg(any(test, fuzzing))]
#[path = "../tests/fuzz/targets.rs"]
pub mod fuzz_targets;

pub use cli::main;
