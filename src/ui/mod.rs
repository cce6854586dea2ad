//! Showing it: the command line, what is told while a run goes on, and the log.

pub mod board;
pub mod cli;
mod log;
mod progress;
mod text;
