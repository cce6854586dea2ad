//! One attempt at a step: from the step that a run owes, through the work that a task file can
//! carry, to the record that the engine applies.

pub(crate) mod artifacts;
pub(crate) mod bead_tree;
pub(crate) mod command_line;
pub(crate) mod credentials;
pub(crate) mod documents;
pub(crate) mod exec_env;
pub(crate) mod gates;
pub(crate) mod loopback;
pub(crate) mod parking;
pub(crate) mod perform;
pub(crate) mod prepare;
pub(crate) mod prompt;
pub(crate) mod provider_check;
pub(crate) mod sandboxes;
pub(crate) mod source_files;
pub(crate) mod spellbook;
pub(crate) mod work;
