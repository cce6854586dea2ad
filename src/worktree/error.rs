//! Errors of worktree operations: what was found, and how to continue.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::git::repo::RepoError;
use crate::git::{GitError, LockError};

#[derive(Debug, thiserror::Error)]
pub(crate) enum TreeError {
    #[error(transparent)]
    Git(GitError),
    #[error(transparent)]
    Lock(LockError),
    #[error("{what}")]
    NoRepo { what: String },
    #[error("cannot {doing} `{}`: {source}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
    /// The state on disk is not as expected. Nothing was changed.
    #[error("{what}")]
    Found { what: String, cure: String },
    /// Another holder uses the worktree.
    #[error("worktree `{id}` is in use by {holder}{}", after(waited))]
    Held { id: String, holder: String, waited: Duration },
    /// The current diff differs from the approved one.
    #[error(
        "the approval is void: the review diff of `{id}` is `{found}` now, but `{approved}` was \
         approved"
    )]
    Void { id: String, approved: String, found: String },
    #[error("stopped while waiting")]
    Stopped,
}

fn after(waited: &Duration) -> String {
    match waited.as_secs() {
        0 => String::new(),
        secs => format!("; waited {secs} s"),
    }
}

impl TreeError {
    pub(crate) fn found(what: impl Into<String>, cure: impl Into<String>) -> TreeError {
        TreeError::Found { what: what.into(), cure: cure.into() }
    }

    pub(super) fn io(doing: &'static str, path: &Path, source: io::Error) -> TreeError {
        TreeError::Io { doing, path: path.to_owned(), source }
    }

    /// Returns a hint for the user on how to continue.
    pub(crate) fn cure(&self) -> Option<String> {
        match self {
            TreeError::Git(GitError::NotThere | GitError::TooOld { .. }) => {
                Some("worktrees need git 2.36 or newer; install it".into())
            }
            TreeError::NoRepo { .. } => {
                Some("run this in a checkout, or make one: `git init`, then a first commit".into())
            }
            TreeError::Found { cure, .. } => Some(cure.clone()),
            TreeError::Held { .. } => {
                Some("`orchestrate worktree ls` shows who works where".into())
            }
            TreeError::Void { id, .. } => Some(format!(
                "look at `orchestrate worktree diff {id}` again, and approve what it shows"
            )),
            _ => None,
        }
    }

    /// Returns the exit code of a program that stops with this error.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            TreeError::Git(GitError::NotThere) => 127,
            TreeError::NoRepo { .. } => 2,
            TreeError::Lock(LockError::Busy { .. }) | TreeError::Held { .. } => 5,
            TreeError::Stopped => 143,
            _ => 1,
        }
    }
}

impl From<GitError> for TreeError {
    fn from(error: GitError) -> TreeError {
        match error {
            GitError::Stopped { .. } => TreeError::Stopped,
            error => TreeError::Git(error),
        }
    }
}

impl From<LockError> for TreeError {
    fn from(error: LockError) -> TreeError {
        match error {
            LockError::Stopped => TreeError::Stopped,
            error => TreeError::Lock(error),
        }
    }
}

impl From<RepoError> for TreeError {
    fn from(error: RepoError) -> TreeError {
        match error {
            RepoError::Git(error) => error.into(),
            RepoError::Io { path, source } => TreeError::Io { doing: "open", path, source },
            none @ RepoError::None { .. } => TreeError::NoRepo { what: none.to_string() },
        }
    }
}
