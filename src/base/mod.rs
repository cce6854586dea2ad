//! Types and functions without knowledge of workflows: ids, time, text, digests, randomness, and
//! the machine that a thread runs on.

pub(crate) mod ansi;
pub(crate) mod digest;
pub(crate) mod host;
pub(crate) mod ids;
pub(crate) mod json;
pub(crate) mod process;
pub(crate) mod program_name;
pub(crate) mod random;
pub(crate) mod text;
pub(crate) mod time;
