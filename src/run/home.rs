//! Ownership of runs: a run belongs to the workspace in which it was started. If one directory
//! holds the runs of several workspaces, this module distinguishes them.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::failure::Failure;
use super::project::Project;
use crate::base::ids::RunId;
use crate::disk::fs;
use crate::engine::Origin;
use crate::store;

/// A run's record of the place where it was started.
pub(crate) struct Birth {
    /// Its directory; relative if it lies inside the workspace.
    pub run_root: String,
    /// The workspace, if its directory lies outside.
    pub workspace: Option<String>,
}

impl Birth {
    pub(crate) fn of(origin: &Origin) -> Birth {
        Birth { run_root: origin.run_root.clone(), workspace: origin.workspace.clone() }
    }

    /// Returns the workspace of the run in `root`, if it is not this one. A run without a record
    /// counts as a run of this workspace.
    pub(crate) fn elsewhere(&self, here: &Path, root: &Path) -> Option<PathBuf> {
        let home = self.home(root)?;
        (!is_same(&home, here)).then_some(home)
    }

    /// Returns the workspace in which a run was started. For a run inside its workspace, its
    /// directory determines it, so a workspace may be moved or mounted under several names.
    fn home(&self, root: &Path) -> Option<PathBuf> {
        if let Some(workspace) = &self.workspace {
            return Some(PathBuf::from(workspace));
        }
        let inside = Path::new(&self.run_root);
        let levels = inside.components().count();
        let is_there = inside.is_relative() && levels > 0 && root.ends_with(inside);
        is_there.then(|| root.ancestors().nth(levels).map(Path::to_owned))?
    }
}

/// Returns true if two paths lead to the same directory.
fn is_same(one: &Path, other: &Path) -> bool {
    let which = |path: &Path| fs::metadata(path).ok().map(|known| (known.dev(), known.ino()));
    one == other || which(one).is_some_and(|one| Some(one) == which(other))
}

/// Returns the workspace of a run if it is not this one.
pub(crate) fn elsewhere(project: &Project, root: &Path) -> Option<PathBuf> {
    Birth::of(&store::origin(root)?).elsewhere(&project.workspace, root)
}

/// Refuses to change a run from a workspace other than its own.
pub(crate) fn check(project: &Project, id: &RunId, root: &Path) -> Result<(), Failure> {
    let Some(home) = elsewhere(project, root) else { return Ok(()) };
    let (home, here) = (home.display(), project.workspace.display());
    let message = format!("run {id} is of the workspace `{home}`, and this is `{here}`");
    Err(Failure::invalid(message).hint(format!(
        "`cd {home}` first, or set ORCHESTRATE_WORKSPACE to it; if it was moved, a link where it \
         was will do"
    )))
}
