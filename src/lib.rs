//! x
pub mod exec;
