//! Tasks without a workflow: a person or an agent describes the work in plain text, and the
//! settings of the agent that receives it determine how it is executed.

pub mod answer;
pub mod intake;
pub mod parse;
pub mod prompt;
pub mod result;
