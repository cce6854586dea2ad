//! `orchestrate`: a fleet of coding agents over plain files.
//!
//! The path of a workflow: text becomes a plan ([`workflow`]); a plan and events become a run, and
//! a run states the work that it is owed ([`engine`]); events are stored ([`store`]); an
//! [`attempt`] does the work of one step and reports an event, in the process that drives the
//! [`run`] or in a worker of the [`fleet`]; and a [`view`] shows the state. The modules are
//! declared bottom-up: a module uses only those above it (docs/architecture.md has the table).

pub mod agent;
pub mod base;
pub mod engine;
pub mod template;
pub mod workflow;
pub mod yaml;

pub mod disk;
pub mod exec;
pub mod git;
pub mod queue;
pub mod settings;
pub mod store;
pub mod workspace;
pub mod worktree;

pub mod attempt;
pub mod fleet;
pub mod free_task;
pub mod health;
pub mod run;
#[cfg(test)]
mod sim;

pub mod cli;
pub mod graph;
pub mod offline;
pub mod report;
pub mod serve;
pub mod top;
pub mod view;

pub use cli::main;
