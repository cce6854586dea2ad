//! `orchestrate`: a fleet of coding agents over plain files.
pub mod disk;
pub mod engine;
pub mod ids;
pub mod prompt;
pub mod store;
pub mod template;
pub mod time;
pub mod workflow;
pub mod workspace;
