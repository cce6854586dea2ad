//! What to say to a provider, and what an agent's answer says: spells and what is around them,
//! the files a prompt depends on, and the contract of answers.

pub mod answer;
pub mod contract;
pub mod inject;
pub mod limits;
pub mod signal;
pub mod spell;
