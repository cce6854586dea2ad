//! What to say to a provider, and what an agent's answer says: spells and what is around them,
//! the files a prompt depends on, the contract of answers, and the other forms an answer may have
//! to have.

pub mod answer;
pub mod contract;
pub mod echo;
pub mod inject;
pub mod limits;
pub mod signal;
pub mod spell;
