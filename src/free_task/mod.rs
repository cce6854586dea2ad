//! Tasks without a workflow: a person or an agent describes the work in plain text, and the
//! settings of the agent that receives it determine how it is executed.

pub(crate) mod answer;
pub(crate) mod intake;
pub(crate) mod parse;
pub(crate) mod prompt;
pub(crate) mod result;
