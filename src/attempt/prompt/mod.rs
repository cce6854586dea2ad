//! Prompts for providers, and the reading of agents' answers: spells and the system prompt around
//! them, the files that a prompt depends on, the answer contract, and other required forms of an
//! answer.

pub(crate) mod inject;
pub(crate) mod spell;
