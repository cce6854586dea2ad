//! Prompts for providers, and the reading of agents' answers: spells and the system prompt around
//! them, the files that a prompt depends on, the answer contract, and other required forms of an
//! answer.

pub mod answer;
pub mod contract;
pub mod echo;
pub mod inject;
pub mod limits;
pub mod signal;
pub mod spell;
