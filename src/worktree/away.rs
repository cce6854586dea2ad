//! Taking worktrees away so that none is ever there by half.
//!
//! What goes is renamed first, within its file system and so at once, and deleted after that. The
//! order is: the directory, and then what git keeps of it. Killed in between, there is a worktree
//! whose directory is gone, or a branch alone; both are made again from the branch, or removed.
//! What was renamed and not deleted is deleted by whoever makes or removes a worktree next.

use std::fs;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use super::{TreeError, Trees};
use crate::disk::{self, Disk, RealDisk};
use crate::git::Lock;
use crate::git::presence::new_word;

/// What the names of that begin with which is on its way out. No id does.
const GONE: &str = ".gone-";

/// What git keeps of one worktree.
pub(super) struct Kept {
    pub dir: PathBuf,
    /// The worktree that it says it is for.
    pub path: Option<PathBuf>,
}

impl Kept {
    /// Whether git can use it. One that is being made gets these before any file is checked out.
    pub(super) fn is_whole(&self) -> bool {
        let has = |name: &str| fs::metadata(self.dir.join(name)).is_ok_and(|file| file.len() > 0);
        self.path.is_some() && has("commondir") && has("HEAD")
    }
}

impl Trees {
    /// All that git keeps of worktrees.
    pub(super) fn kept(&self) -> Vec<Kept> {
        let entries = fs::read_dir(self.repo.common.join("worktrees")).into_iter().flatten();
        let dirs = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir());
        dirs.map(|dir| Kept { path: path_in(&dir), dir }).collect()
    }

    /// What git keeps of a worktree, wherever its directory is.
    pub(super) fn kept_for(&self, path: &Path) -> Option<Kept> {
        self.kept().into_iter().find(|kept| kept.path.as_deref() == Some(path))
    }

    /// Takes away a worktree and what git keeps of it, whatever is left of the two.
    pub(super) fn take_away(&self, lock: &Lock, path: &Path) -> Result<(), TreeError> {
        lock.is_held()?;
        let kept = self.kept_for(path);
        self.put_away(path)?;
        kept.map_or(Ok(()), |kept| self.forget_kept(&kept.dir))
    }

    /// Takes away the directory of a worktree.
    pub(super) fn put_away(&self, path: &Path) -> Result<(), TreeError> {
        move_out(path, path.parent().unwrap_or(path))
    }

    /// Lets git forget a worktree.
    pub(super) fn forget_kept(&self, dir: &Path) -> Result<(), TreeError> {
        move_out(dir, &self.repo.home())?;
        // As git does it: nothing is left once the last is gone.
        let _ = fs::remove_dir(self.repo.common.join("worktrees"));
        Ok(())
    }

    /// Deletes what somebody was killed at deleting.
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

/// The worktree that git keeps a directory for.
fn path_in(dir: &Path) -> Option<PathBuf> {
    let said = fs::read_to_string(dir.join("gitdir")).ok()?;
    let link = said.trim_end_matches('\n');
    if link.is_empty() {
        return None;
    }
    // It may be told from there.
    let mut path = PathBuf::new();
    for part in dir.join(link).components() {
        match part {
            Component::ParentDir => _ = path.pop(),
            part => path.push(part),
        }
    }
    path.parent().map(Path::to_owned)
}

/// Renames what is to go to a name in a directory of the same file system, and deletes it there.
fn move_out(path: &Path, to: &Path) -> Result<(), TreeError> {
    let gone = to.join(format!("{GONE}{}", new_word()));
    match disk::rename(path, &gone) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) if gone.symlink_metadata().is_err() => {
            return Err(TreeError::io("remove", path, error));
        }
        _ => {}
    }
    // No file of it is to be missing as long as it has its old name, also after a power cut.
    let synced = RealDisk::default().sync_dir(path.parent().unwrap_or(path));
    synced.map_err(|error| TreeError::io("sync", path, error))?;
    delete(&gone);
    Ok(())
}

/// What cannot be deleted is in nobody's way.
fn delete(gone: &Path) {
    let deleted = match gone.symlink_metadata() {
        Ok(kind) if kind.is_dir() => fs::remove_dir_all(gone),
        _ => fs::remove_file(gone),
    };
    if let Err(error) = deleted {
        tracing::warn!("`{}` is of no use any more, but stays: {error}", gone.display());
    }
}
