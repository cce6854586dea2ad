//! User interfaces: the command line, dashboards, progress output, and the log.

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
