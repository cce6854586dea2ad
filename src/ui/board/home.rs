//! Whose a run is: it belongs to the workspace that it was begun in. Where runs of several are kept
//! together, each is told from those of others.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::engine::Origin;

/// What a run tells of where it was begun.
pub struct Birth {
    /// Its directory, from the workspace where it lies inside.
    pub run_root: String,
    /// The workspace, where it does not.
    pub workspace: Option<String>,
}

impl Birth {
    pub fn of(origin: &Origin) -> Birth {
        Birth { run_root: origin.run_root.clone(), workspace: origin.workspace.clone() }
    }

    /// The workspace of the run in `root`, if it is not this one. A run that does not tell is taken
    /// to be of this.
    pub fn elsewhere(&self, here: &Path, root: &Path) -> Option<PathBuf> {
        let home = self.home(root)?;
        (!is_same(&home, here)).then_some(home)
    }

    /// The workspace that a run was begun in, as it tells. Its directory tells it where it lies
    /// inside; so a workspace may be moved, or be mounted under several names.
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

/// Whether two paths lead to one directory.
fn is_same(one: &Path, other: &Path) -> bool {
    let which = |path: &Path| path.metadata().ok().map(|known| (known.dev(), known.ino()));
    one == other || which(one).is_some_and(|one| Some(one) == which(other))
}
