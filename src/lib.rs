//! `orchestrate`: a fleet of coding agents over plain files.
//!
//! The way of a workflow through the house: text becomes a plan ([`workflow`]); a plan and events
//! become a run, and a run says what it is owed ([`engine`]); what happened is kept ([`store`]);
//! what is owed is done ([`fleet`], by way of [`prompt`], [`workspace`] and [`exec`]); and all of
//! it is shown ([`ui`]). Everything up to `prompt` touches nothing outside itself.

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
