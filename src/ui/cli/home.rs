//! A run belongs to the workspace that it was begun in. Where runs of several are kept together,
//! nobody goes on with one from another.

use std::path::{Path, PathBuf};

use super::Failure;
use super::common::Surroundings;
use crate::fleet::open;
use crate::ids::RunId;
use crate::ui::board::Birth;

/// The workspace of a run, if it is not this one.
pub fn elsewhere(around: &Surroundings, root: &Path) -> Option<PathBuf> {
    Birth::of(&open::origin(root)?).elsewhere(&around.workspace, root)
}

/// Refuses to do something to a run from another workspace than its own.
pub fn check(around: &Surroundings, id: &RunId, root: &Path) -> Result<(), Failure> {
    let Some(home) = elsewhere(around, root) else { return Ok(()) };
    let (home, here) = (home.display(), around.workspace.display());
    let message = format!("run {id} is of the workspace `{home}`, and this is `{here}`");
    Err(Failure::new(2, message).hint(format!(
        "`cd {home}` first, or set ORCHESTRATE_WORKSPACE to it; if it was moved, a link where it \
         was will do"
    )))
}
