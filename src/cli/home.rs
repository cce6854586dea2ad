//! A run belongs to the workspace it was created in. If several workspaces share a state directory,
//! a run can be continued only from its own workspace.

use std::path::{Path, PathBuf};

use super::Failure;
use super::common::Surroundings;
use crate::base::ids::RunId;
use crate::view::Birth;

/// Returns the workspace of a run if it is not this one.
pub(super) fn elsewhere(around: &Surroundings, root: &Path) -> Option<PathBuf> {
    Birth::of(&crate::store::origin(root)?).elsewhere(&around.workspace, root)
}

/// Refuses to change a run from a workspace other than its own.
pub(super) fn check(around: &Surroundings, id: &RunId, root: &Path) -> Result<(), Failure> {
    let Some(home) = elsewhere(around, root) else { return Ok(()) };
    let (home, here) = (home.display(), around.workspace.display());
    let message = format!("run {id} is of the workspace `{home}`, and this is `{here}`");
    Err(Failure::new(2, message).hint(format!(
        "`cd {home}` first, or set ORCHESTRATE_WORKSPACE to it; if it was moved, a link where it \
         was will do"
    )))
}
