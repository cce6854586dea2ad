//! Half-created worktrees: the leftovers of a `git` that was killed, together with its caller,
//! while it created a worktree.
//!
//! Git cannot use some of these leftovers; some of them even prevent it from listing the worktrees
//! of the repository. Our record shows that no step ever used the worktree, so it is removed and
//! recreated from the branch or the base, or completed if only files are missing.
//!
//! **Invariant:** this happens only if our record names exactly this directory and is not ready, or
//! to the worktree of a merge. No branch is removed, and no file that a user may have written.

use std::path::{Path, PathBuf};

use super::look::{Found, stays};
use super::merge::is_stage;
use super::trash::Kept;
use super::{TreeError, Trees, arg, branch};
use crate::base::ids::BeadId;
use crate::disk::fs::{self, OnVolume as _};
use crate::git::repo::{Entry, git_dir};
use crate::git::{Git, GitError, Lock};

/// Git's lock reason for a worktree that it has not finished creating.
pub(super) const INITIALIZING: &str = "initializing";

impl Trees {
    /// Returns all worktrees. `git` must hold the repository's lock.
    pub(super) fn listed(&self, git: &Git) -> Result<Vec<Entry>, TreeError> {
        match self.repo.worktrees(git) {
            Err(GitError::Failed { .. }) => {}
            listed => return Ok(listed?),
        }
        let mut in_the_way = None;
        for kept in self.kept().iter().filter(|kept| !kept.is_whole()) {
            match &kept.path {
                Some(path) if is_stage(path) || self.is_unmade(path) => {
                    self.clear(path, Some(kept))?;
                }
                Some(path) => in_the_way = Some((path.clone(), kept.dir.clone())),
                // Git ignores it.
                None => {}
            }
        }
        self.repo.worktrees(git).map_err(|error| match (&error, in_the_way) {
            (GitError::Failed { .. }, Some((path, dir))) => TreeError::found(
                format!("`{}` is damaged, and git can list no worktree: {error}", dir.display()),
                format!(
                    "`rm -r {}` makes git forget the worktree `{}`, once you know that nobody \
                     makes or needs it",
                    dir.display(),
                    path.display()
                ),
            ),
            _ => error.into(),
        })
    }

    /// Returns the state of a worktree after completing or removing a half-created one.
    pub(super) fn look_settled(&self, lock: &Lock, id: &BeadId) -> Result<Found, TreeError> {
        let found = self.look(lock, id)?;
        let path = self.path(id);
        if !self.is_unmade(&path) {
            return Ok(found);
        }
        remove_stale(&self.repo.common.join(format!("{}.lock", branch(id))))?;
        let kept = self.kept().into_iter().find(|kept| is_for(kept, &path));
        let is_whole = kept.as_ref().is_some_and(Kept::is_whole);
        if is_whole && (!found.is_there || self.linked(id).is_ok()) {
            self.finish(lock, id, &found)?;
        } else {
            self.clear(&path, kept.as_ref())?;
        }
        self.look(lock, id)
    }

    /// Returns true if a worktree was never used by any step.
    fn is_unmade(&self, path: &Path) -> bool {
        let name = path.file_name().and_then(|name| name.to_str());
        let Some(id) = name.and_then(|name| BeadId::parse(name).ok()) else { return false };
        let record = self.record(&id).ok().flatten();
        record.is_some_and(|record| !record.ready && record.path == path)
    }

    /// Removes leftovers that git cannot use. Git checks out no file before its administrative
    /// directory is complete, so if there are files, a person must decide about them.
    fn clear(&self, path: &Path, kept: Option<&Kept>) -> Result<(), TreeError> {
        let mut others = fs::read_dir(path).into_iter().flatten().flatten();
        let has_files = others.any(|entry| entry.file_name() != ".git");
        if path.is_present_dir() && (is_stage(path) || !has_files) {
            self.put_away(path)?;
        }
        match kept {
            // A user may still want to repair it.
            Some(kept) if kept.is_whole() && has_files => Ok(()),
            Some(kept) => self.forget_kept(&kept.dir),
            None => Ok(()),
        }
    }

    /// Completes an interrupted checkout, if there was one. No step ever used the worktree, so the
    /// overwritten files contain no work.
    fn finish(&self, lock: &Lock, id: &BeadId, found: &Found) -> Result<(), TreeError> {
        let locked = found.entry.as_ref().and_then(|entry| entry.locked.as_deref());
        if !found.is_there || locked != Some(INITIALIZING) {
            return Ok(());
        }
        let path = self.path(id);
        let inside = lock.git(&path)?;
        for stale in locks_in(&git_dir(&inside)?) {
            remove_stale(&stale)?;
        }
        inside.run(&["reset", "--hard", "--quiet"])?;
        lock.git(&self.repo.workspace)?.run(&["worktree", "unlock", arg(&path)?])?;
        Ok(())
    }
}

/// Returns true if an administrative directory is for a worktree, even if it does not name it yet.
fn is_for(kept: &Kept, path: &Path) -> bool {
    let begun = || {
        let locked = fs::read_to_string(kept.dir.join("locked")).unwrap_or_default();
        kept.dir.file_name() == path.file_name() && locked.trim_end() == INITIALIZING
    };
    kept.path.as_deref().map_or_else(begun, |said| said == path)
}

/// Returns git's own lock files in an administrative directory.
fn locks_in(dir: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    files.filter(|path| path.extension().is_some_and(|ending| ending == "lock")).collect()
}

/// Removes a lock file that a killed `git` left.
fn remove_stale(lock: &Path) -> Result<(), TreeError> {
    match stays(lock) {
        true => fs::remove_file(lock).map_err(|error| TreeError::io("remove", lock, error)),
        false => Ok(()),
    }
}
