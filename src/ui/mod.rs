//! Showing it: the command line, what is told while a run goes on, and the log.

pub mod board;
mod bundle;
pub mod cli;
pub mod graph;
mod log;
mod metrics;
mod progress;
pub mod report;
mod rows;
pub mod serve;
mod talk;
mod text;
mod top;
pub mod web;
