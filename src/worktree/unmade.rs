//! Worktrees that were never whole: what is left of one when a `git` is killed while it makes it,
//! together with whoever called it.
//!
//! Git can do nothing with some of what it leaves; some of it even keeps all worktrees of the
//! repository from being listed. Our record tells that nobody was ever let in, so it is taken away,
//! and made anew from the branch or from the base; or finished, if only files are missing.
//!
//! **Invariant:** that is done only where our record is of just this directory and says that it is
//! not ready, or to the worktree of a merge. No branch is taken away, and no file that somebody may
//! have written.

use std::fs;
use std::path::{Path, PathBuf};

use super::away::Kept;
use super::look::{Found, stays};
use super::merge::is_stage;
use super::{TreeError, Trees, arg, branch};
use crate::git::repo::{Entry, git_dir};
use crate::git::{Git, GitError, Lock};
use crate::ids::BeadId;

/// What git says of a worktree that it has not finished making.
pub(super) const INITIALIZING: &str = "initializing";

impl Trees {
    /// All worktrees, by a `git` that holds the lock.
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
                // Git does not look at it.
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

    /// What is there of a worktree, once what was never whole is finished or taken away.
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

    /// Whether a worktree is one that nobody was ever let into.
    fn is_unmade(&self, path: &Path) -> bool {
        let name = path.file_name().and_then(|name| name.to_str());
        let Some(id) = name.and_then(|name| BeadId::parse(name).ok()) else { return false };
        let record = self.record(&id).ok().flatten();
        record.is_some_and(|record| !record.ready && record.path == path)
    }

    /// Takes away what git can do nothing with. It checks out no file before it has all it needs,
    /// so where there are files, it is for a person to look what they are.
    fn clear(&self, path: &Path, kept: Option<&Kept>) -> Result<(), TreeError> {
        let mut others = fs::read_dir(path).into_iter().flatten().flatten();
        let has_files = others.any(|entry| entry.file_name() != ".git");
        if path.is_dir() && (is_stage(path) || !has_files) {
            self.put_away(path)?;
        }
        match kept {
            // Somebody may still want to repair it.
            Some(kept) if kept.is_whole() && has_files => Ok(()),
            Some(kept) => self.forget_kept(&kept.dir),
            None => Ok(()),
        }
    }

    /// Finishes what git was interrupted at, if it was: nobody was let in, so there is no work in
    /// the files that are written over.
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

/// Whether something is kept for a worktree, also if it does not say so yet.
fn is_for(kept: &Kept, path: &Path) -> bool {
    let begun = || {
        let locked = fs::read_to_string(kept.dir.join("locked")).unwrap_or_default();
        kept.dir.file_name() == path.file_name() && locked.trim_end() == INITIALIZING
    };
    kept.path.as_deref().map_or_else(begun, |said| said == path)
}

/// Locks of git's own in what it keeps of a worktree.
fn locks_in(dir: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    files.filter(|path| path.extension().is_some_and(|ending| ending == "lock")).collect()
}

/// Takes away a lock that a `git` left which was killed.
fn remove_stale(lock: &Path) -> Result<(), TreeError> {
    match stays(lock) {
        true => fs::remove_file(lock).map_err(|error| TreeError::io("remove", lock, error)),
        false => Ok(()),
    }
}
