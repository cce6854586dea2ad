//! Removes worktrees such that none is ever half removed.
//!
//! A directory is first renamed within its file system, which is atomic, and then deleted. The
//! order is: the worktree's directory, then git's administrative directory for it. A kill in
//! between leaves a registered worktree without a directory, or a branch alone; either is recreated
//! from the branch, or removed. A directory that was renamed but not deleted is deleted by the next
//! process that creates or removes a worktree.

use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use super::{TreeError, Trees};
use crate::base::random::{chance, word};
use crate::disk::fs::{self, OnVolume as _};
use crate::disk::machine;
use crate::git::Lock;

/// Prefix of directories that are being removed. Bead ids never start with a dot.
const GONE: &str = ".gone-";

/// Git's administrative directory for one worktree.
pub(super) struct Kept {
    pub dir: PathBuf,
    /// The worktree that it names, if it names one.
    pub path: Option<PathBuf>,
}

impl Kept {
    /// Returns true if git can use it. Git writes these files before it checks out any file.
    pub(super) fn is_whole(&self) -> bool {
        let has = |name: &str| fs::metadata(self.dir.join(name)).is_ok_and(|file| file.len() > 0);
        self.path.is_some() && has("commondir") && has("HEAD")
    }
}

impl Trees {
    /// Returns git's administrative directories of all worktrees.
    pub(super) fn kept(&self) -> Vec<Kept> {
        let entries = fs::read_dir(self.repo.common.join("worktrees")).into_iter().flatten();
        let dirs = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_present_dir());
        dirs.map(|dir| Kept { path: path_in(&dir), dir }).collect()
    }

    /// Returns git's administrative directory for a worktree, which may itself be missing.
    pub(super) fn kept_for(&self, path: &Path) -> Option<Kept> {
        self.kept().into_iter().find(|kept| kept.path.as_deref() == Some(path))
    }

    /// Removes a worktree and git's administrative directory for it. Either may be missing.
    pub(super) fn take_away(&self, lock: &Lock, path: &Path) -> Result<(), TreeError> {
        lock.check()?;
        let kept = self.kept_for(path);
        self.put_away(path)?;
        kept.map_or(Ok(()), |kept| self.forget_kept(&kept.dir))
    }

    /// Removes the directory of a worktree.
    pub(super) fn put_away(&self, path: &Path) -> Result<(), TreeError> {
        move_out(path, path.parent().unwrap_or(path))
    }

    /// Removes git's administrative directory for a worktree.
    pub(super) fn forget_kept(&self, dir: &Path) -> Result<(), TreeError> {
        move_out(dir, &self.repo.home())?;
        // Like git, remove the parent directory after the last worktree.
        let _ = fs::remove_dir(self.repo.common.join("worktrees"));
        Ok(())
    }

    /// Deletes directories whose deletion was interrupted by a kill.
    pub(super) fn sweep_gone(&self) {
        for dir in [self.dir(), self.repo.home()] {
            let entries = fs::read_dir(dir).into_iter().flatten().flatten();
            let gone =
                |name: &std::ffi::OsStr| name.as_encoded_bytes().starts_with(GONE.as_bytes());
            for entry in entries.filter(|entry| gone(&entry.file_name())) {
                delete(&entry.path());
            }
        }
    }
}

/// Returns the worktree that an administrative directory belongs to.
fn path_in(dir: &Path) -> Option<PathBuf> {
    let said = fs::read_to_string(dir.join("gitdir")).ok()?;
    let link = said.trim_end_matches('\n');
    if link.is_empty() {
        return None;
    }
    // The link may be relative to `dir`.
    let mut path = PathBuf::new();
    for part in dir.join(link).components() {
        match part {
            Component::ParentDir => _ = path.pop(),
            part => path.push(part),
        }
    }
    path.parent().map(Path::to_owned)
}

/// Renames a directory to a name in `to`, on the same file system, and deletes it there.
fn move_out(path: &Path, to: &Path) -> Result<(), TreeError> {
    let gone = to.join(format!("{GONE}{}", word(chance())));
    match machine().rename(path, &gone) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) if fs::symlink_metadata(&gone).is_err() => {
            return Err(TreeError::io("remove", path, error));
        }
        _ => {}
    }
    // No file may be missing while the directory has its old name, even after a power failure.
    let synced = machine().sync_dir(path.parent().unwrap_or(path));
    synced.map_err(|error| TreeError::io("sync", path, error))?;
    delete(&gone);
    Ok(())
}

/// Deletes a renamed directory. A failure is only logged, because the leftover does no harm.
fn delete(gone: &Path) {
    let deleted = match fs::symlink_metadata(gone) {
        Ok(kind) if kind.is_dir() => fs::remove_dir_all(gone),
        _ => fs::remove_file(gone),
    };
    if let Err(error) = deleted {
        tracing::warn!("`{}` is of no use any more, but stays: {error}", gone.display());
    }
}
