//! A git worktree for each bead: created, verified, kept, saved, merged and removed, so that no
//! work in it is ever lost.
//!
//! A bead `<id>` has the directory `.coven/worktrees/<id>` of the workspace and the branch
//! `coven/<id>`. Its metadata (its base, its holder) is in the repository's common directory,
//! `coven/worktrees/<id>/`, never in the checkout, where an agent could change it.
//!
//! **Invariant:** the content of a worktree is removed only if it is in the base, or after all of
//! it is saved under a ref. Anything unexpected is left unchanged and reported.
//!
//! **Invariant:** the list of worktrees and the records in this module are read and changed only
//! under the repository's lock.

mod checkpoint;
mod checks;
mod create;
mod error;
pub(crate) mod half_created;
mod holder;
mod look;
mod merge;
mod record;
pub(crate) mod remote_sync;
mod remove;
mod review;
mod save;
pub(crate) mod skip_worktree;
#[cfg(test)]
mod tests;
pub(crate) mod trash;
pub(crate) mod unreachable_commits;
mod view;

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::base::ids::BeadId;
use crate::disk::fs;
use crate::exec::Stop;
use crate::git::{Git, Repo, lock};

pub(crate) use crate::worktree::remote_sync::{After, Expects};
pub(crate) use checkpoint::{Checkpoint, Why};
pub(crate) use checks::Checks;
pub(crate) use create::{Created, Way};
pub(crate) use error::TreeError;
pub(crate) use holder::{Hold, HoldRequest, HoldWait, Holder, HoldingStep};
pub(crate) use look::Worktree;
pub(crate) use merge::{Block, Merge, Merged};
pub(crate) use record::Record;
pub(crate) use remove::{Loss, Removed};
pub(crate) use review::Review;
pub(crate) use save::{Saved, Scope};
pub(crate) use view::{Fate, View};

/// Directory of the worktrees in a workspace.
pub(crate) const DIR: &str = ".coven/worktrees";
/// Prefix of their branches.
pub(crate) const BRANCHES: &str = "refs/heads/coven/";
/// Prefix of the refs under which work is saved before a worktree is removed.
pub(crate) const SAVED: &str = "refs/coven/saved/";

/// File that every `git` of ours in a worktree locks, in its metadata.
const KERNEL_LOCK: &str = "lock.kernel";
/// Directory of a worktree's lease, in its metadata.
const LEASE: &str = "lease";

/// The worktrees of a workspace.
#[derive(Clone, Debug)]
pub(crate) struct Trees {
    pub repo: Repo,
    /// Timeout of each request to the remote.
    remote_limit: Duration,
    /// Signal that aborts a request to the remote.
    stop: Option<Stop>,
}

/// Default timeout of a request to a remote.
pub(crate) const REMOTE_TIMEOUT: Duration = Duration::from_secs(60);

impl Trees {
    pub(crate) fn open(workspace: &Path) -> Result<Trees, TreeError> {
        let repo = Repo::open(workspace)?;
        Ok(Trees { repo, remote_limit: REMOTE_TIMEOUT, stop: None })
    }

    /// Sets the timeout of requests to the remote, and the signal that aborts them.
    pub(crate) fn patient(self, limit: Duration, stop: Option<&Stop>) -> Trees {
        Trees { remote_limit: limit, stop: stop.cloned(), ..self }
    }

    /// Returns a `git` for requests to the remote.
    fn remote_git(&self) -> Git {
        self.git().within(self.remote_limit).until(self.stop.clone())
    }

    pub(crate) fn dir(&self) -> PathBuf {
        self.repo.workspace.join(DIR)
    }

    /// Returns the path of a bead's worktree, which may not exist.
    pub(crate) fn path(&self, id: &BeadId) -> PathBuf {
        self.dir().join(id.as_str())
    }

    /// Returns the directory of the metadata of a bead's worktree.
    fn home(&self, id: &BeadId) -> PathBuf {
        self.repo.home().join("worktrees").join(id.as_str())
    }

    /// Returns the git directory that all worktrees of the repository share.
    pub(crate) fn common(&self) -> &Path {
        &self.repo.common
    }

    fn git(&self) -> Git {
        self.repo.git()
    }

    /// Returns a `git` in the worktree of a bead, with a kernel lock that excludes our other `git`
    /// processes there. Waits for a `git` that a killed process left running.
    fn alone_in(&self, id: &BeadId) -> Result<Git, TreeError> {
        let home = self.home(id);
        fs::create_dir_all(&home).map_err(|error| TreeError::io("make", &home, error))?;
        let alone = lock::take_kernel(&home.join(KERNEL_LOCK), lock::WAIT)?;
        Ok(Git::at(&self.path(id)).holding(alone))
    }
}

/// Returns the short name of a bead's branch, as users write it.
pub(crate) fn short_branch(id: &BeadId) -> String {
    format!("coven/{id}")
}

/// Returns the full ref name of a bead's branch.
pub(crate) fn branch(id: &BeadId) -> String {
    format!("{BRANCHES}{id}")
}

/// Returns a path as a command-line argument, or an error if it is not UTF-8.
fn arg(path: &Path) -> Result<&str, TreeError> {
    path.to_str().ok_or_else(|| {
        TreeError::found(
            format!("the path `{}` is not UTF-8 text", path.display()),
            "worktrees need a workspace whose path is",
        )
    })
}
