//! One attempt at a step: from the step that a run owes, through the work that a task file can
//! carry, to the record that the engine applies.

pub mod artifacts;
pub mod bead_tree;
pub(crate) mod command_line;
pub mod credentials;
pub mod documents;
pub mod exec_env;
pub mod gates;
pub(crate) mod loopback;
pub mod parking;
pub mod perform;
pub mod prepare;
pub mod prompt;
pub mod provider_check;
pub mod sandboxes;
pub mod source_files;
pub mod spellbook;
pub mod work;
