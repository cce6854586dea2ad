//! The diff that a person reviews before a merge: everything that the branch would bring, including
//! uncommitted changes. Its digest binds an approval to it.
//!
//! The diff is between two trees, so a checkpoint that commits dirty files does not change it.
//! Every option that settings could change is explicit, so that all machines produce the same diff.

use super::look::Found;
use super::save::{Scope, tree_of};
use super::{TreeError, Trees, short_branch};
use crate::base::digest::sha256;
use crate::base::ids::BeadId;
use crate::git::repo::git_dir;

/// A diff to be reviewed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Review {
    pub text: Vec<u8>,
    /// SHA-256 of the text, in hexadecimal.
    pub hash: String,
    /// The commit at which the branch diverged from its base.
    pub merge_base: String,
    /// The tree that would be merged.
    pub tree: String,
    pub dirty: Vec<String>,
    /// Repositories in the worktree that the diff does not include.
    pub left_out: Vec<String>,
}

const DIFF: [&str; 19] = [
    "diff-tree",
    "-r",
    "-p",
    "--no-commit-id",
    "--full-index",
    "--binary",
    "--no-renames",
    "--no-ext-diff",
    "--no-textconv",
    "--no-color",
    "--no-relative",
    "--unified=3",
    "--inter-hunk-context=0",
    "--diff-algorithm=myers",
    "--no-indent-heuristic",
    "--src-prefix=a/",
    "--dst-prefix=b/",
    "--submodule=short",
    "--ignore-submodules=none",
];

impl Trees {
    /// Returns the diff of the current content of a worktree.
    pub(crate) fn review(&self, id: &BeadId) -> Result<Review, TreeError> {
        let lock = self.repo.lock(&format!("reviewing worktree `{id}`"))?;
        let found = self.look(&lock, id)?;
        drop(lock);
        self.review_found(id, &found)
    }

    pub(super) fn review_found(&self, id: &BeadId, found: &Found) -> Result<Review, TreeError> {
        let alone = found.entry.is_none() && found.is_branch_alone();
        let there = !alone && !found.is_nothing();
        let name = short_branch(id);
        if there {
            self.verified(id, found)?;
        }
        let tip = found.tip.as_deref().ok_or_else(|| {
            TreeError::found(
                format!("there is no branch `{name}`"),
                "`orchestrate worktree ls` shows what there is",
            )
        })?;
        let (base, _) = self.base_of(id, found)?;
        let common = self.merge_base(&base, tip)?;
        let merge_base = common.map_or_else(|| Err(self.apart(id, &base)), Ok)?;
        let mut review = Review {
            text: Vec::new(),
            hash: String::new(),
            merge_base,
            tree: tree_of(&self.git(), tip)?,
            dirty: Vec::new(),
            left_out: Vec::new(),
        };
        if there {
            let git = self.alone_in(id)?;
            review.dirty = self.dirty(&git)?;
            if !review.dirty.is_empty() {
                (review.tree, review.left_out) =
                    self.whole_tree(&git, &git_dir(&git)?, Scope::Work)?;
            }
        }
        let args = [&DIFF[..], &[&review.merge_base, &review.tree, "--"]].concat();
        review.text = self.git().bytes(&args)?;
        review.hash = sha256(&review.text);
        Ok(review)
    }
}
