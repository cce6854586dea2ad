//! Types and functions without knowledge of workflows: ids, time, text, digests, randomness, and
//! the machine that a thread runs on.

pub mod ansi;
pub mod digest;
pub mod host;
pub mod ids;
pub mod json;
pub mod process;
pub mod program_name;
pub mod random;
pub mod text;
pub mod time;
