//! A run belongs to the workspace that it was begun in. Where runs of several are kept together,
//! nobody goes on with one from another.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::Failure;
use super::common::Surroundings;
use crate::engine::Origin;
use crate::fleet::open;
use crate::ids::RunId;

/// The workspace of a run, if it is not this one. A run that does not tell is taken to be of this.
pub fn elsewhere(around: &Surroundings, root: &Path) -> Option<PathBuf> {
    let home = of(&open::origin(root)?, root)?;
    (!is_same(&home, &around.workspace)).then_some(home)
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

/// The workspace that a run was begun in, as it tells. Its directory tells it where it lies inside;
/// so a workspace may be moved, or be mounted under several names.
fn of(origin: &Origin, root: &Path) -> Option<PathBuf> {
    if let Some(workspace) = &origin.workspace {
        return Some(PathBuf::from(workspace));
    }
    let inside = Path::new(&origin.run_root);
    let levels = inside.components().count();
    let is_there = inside.is_relative() && levels > 0 && root.ends_with(inside);
    is_there.then(|| root.ancestors().nth(levels).map(Path::to_owned))?
}

/// Whether two paths lead to one directory.
fn is_same(one: &Path, other: &Path) -> bool {
    let which = |path: &Path| path.metadata().ok().map(|known| (known.dev(), known.ino()));
    one == other || which(one).is_some_and(|one| Some(one) == which(other))
}
