//! A git worktree for each bead: made, verified, kept, saved, merged and removed, so that no work
//! in it is ever lost.
//!
//! A bead `<id>` has the directory `.coven/worktrees/<id>` of the workspace and the branch
//! `coven/<id>`. What we know of it (its base, who works in it) is in the repository's common
//! directory, `coven/worktrees/<id>/`, never in the checkout, where an agent could change it.
//!
//! **Invariant:** what is in a worktree is removed only if it is in the base, or if everything in
//! it is under a ref first. Whatever is found that does not fit is left as it is, and told.
//!
//! **Invariant:** the list of worktrees is read and changed under the repository's lock only, and
//! so are the records here.

mod away;
mod checkpoint;
mod checks;
mod create;
mod error;
mod follow;
mod hidden;
mod holder;
mod lane;
mod look;
mod merge;
mod record;
mod remove;
mod review;
mod save;
mod strays;
#[cfg(test)]
mod tests;
mod unmade;
mod view;
mod wait;

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::exec::Stop;
use crate::git::{Git, Repo, lock};
use crate::ids::BeadId;

pub use checkpoint::{Checkpoint, Why};
pub use checks::Checks;
pub use create::{Created, Way};
pub use error::TreeError;
pub use follow::{After, Expects};
pub use holder::{Hold, Holder, Wants, lives};
pub use look::Worktree;
pub use merge::{Block, Merge, Merged};
pub use record::Record;
pub use remove::{Loss, Removed};
pub use review::Review;
pub use save::{Saved, Scope};
pub use view::{Fate, View};
pub use wait::{Patience, Waiter};

/// Where worktrees lie in a workspace.
pub const DIR: &str = ".coven/worktrees";
/// What the names of their branches begin with.
pub const BRANCHES: &str = "refs/heads/coven/";
/// Where work is saved before a worktree goes.
pub const SAVED: &str = "refs/coven/saved/";

/// The worktrees of a workspace.
#[derive(Clone, Debug)]
pub struct Trees {
    pub repo: Repo,
    /// How long the remote may take to answer, each time.
    remote_limit: Duration,
    /// By which asking it can be stopped.
    stop: Option<Stop>,
}

/// How long a remote may take to answer, where nobody says how long.
pub const REMOTE_TIMEOUT: Duration = Duration::from_secs(60);

impl Trees {
    pub fn open(workspace: &Path) -> Result<Trees, TreeError> {
        let repo = Repo::open(workspace)?;
        Ok(Trees { repo, remote_limit: REMOTE_TIMEOUT, stop: None })
    }

    /// The same, for whoever waits for the remote only so long, and until they are to stop.
    pub fn patient(self, limit: Duration, stop: Option<&Stop>) -> Trees {
        Trees { remote_limit: limit, stop: stop.cloned(), ..self }
    }

    /// `git` to ask the remote with.
    fn remote_git(&self) -> Git {
        self.git().within(self.remote_limit).until(self.stop.clone())
    }

    pub fn dir(&self) -> PathBuf {
        self.repo.workspace.join(DIR)
    }

    /// Where the worktree of a bead lies, or would lie.
    pub fn path(&self, id: &BeadId) -> PathBuf {
        self.dir().join(id.as_str())
    }

    /// What we keep of a bead's worktree.
    fn home(&self, id: &BeadId) -> PathBuf {
        self.repo.home().join("worktrees").join(id.as_str())
    }

    /// What all worktrees of the repository share.
    pub fn common(&self) -> &Path {
        &self.repo.common
    }

    fn git(&self) -> Git {
        self.repo.git()
    }

    /// `git` in the worktree of a bead, with no other of ours at work there: one that a killed
    /// process left behind is waited for.
    fn alone_in(&self, id: &BeadId) -> Result<Git, TreeError> {
        let home = self.home(id);
        std::fs::create_dir_all(&home).map_err(|error| TreeError::io("make", &home, error))?;
        let alone = lock::take_kernel(&home.join("lock.kernel"), lock::WAIT)?;
        Ok(Git::at(&self.path(id)).holding(alone))
    }
}

/// The branch of a bead, as people write it.
pub fn short_branch(id: &BeadId) -> String {
    format!("coven/{id}")
}

/// The branch of a bead, whole.
pub fn branch(id: &BeadId) -> String {
    format!("{BRANCHES}{id}")
}

/// A path as an argument. Only one that is not UTF-8 has none.
fn arg(path: &Path) -> Result<&str, TreeError> {
    path.to_str().ok_or_else(|| {
        TreeError::found(
            format!("the path `{}` is not UTF-8 text", path.display()),
            "worktrees need a workspace whose path is",
        )
    })
}
