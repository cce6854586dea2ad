//! A repository as seen from a workspace in it: its location, worktrees, and branches.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::lock::{self, Lock, LockError};
use super::{Git, GitError};

/// Name of the remote in use.
pub(crate) const REMOTE: &str = "origin";

/// A repository and the working copy that contains the workspace.
#[derive(Clone, Debug)]
pub(crate) struct Repo {
    /// The workspace, with symlinks resolved: the top of the working copy or a directory in it.
    pub workspace: PathBuf,
    /// Path from the top to the workspace; empty if they are the same.
    pub prefix: PathBuf,
    /// The common directory of all worktrees.
    pub common: PathBuf,
}

/// One entry of the list of worktrees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    pub path: PathBuf,
    /// The commit that it is at.
    pub head: Option<String>,
    /// The full name, such as `refs/heads/main`, or `None` for a detached HEAD.
    pub branch: Option<String>,
    /// Reason why it is locked; may be empty.
    pub locked: Option<String>,
    /// Reason why git would prune it: its directory is gone.
    pub prunable: Option<String>,
}

/// Reason why a directory is not in a usable working copy.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RepoError {
    #[error("`{}` is in no working copy of a git repository", path.display())]
    None { path: PathBuf },
    #[error("cannot open `{}`: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Git(#[from] GitError),
}

impl Repo {
    pub(crate) fn open(workspace: &Path) -> Result<Repo, RepoError> {
        let io = |source| RepoError::Io { path: workspace.to_owned(), source };
        let workspace = workspace.canonicalize().map_err(io)?;
        let git = Git::at(&workspace);
        let none = || RepoError::None { path: workspace.clone() };
        let args = ["rev-parse", "--is-inside-work-tree"];
        let said = git.said(&args)?;
        let inside = said.how.exit_code() == 0 && said.out.trim_ascii() == b"true";
        // Other errors (ownership of the files, a damaged repository) are returned as they are.
        let told = String::from_utf8_lossy(&said.err);
        if said.how.exit_code() != 0 && !told.contains("not a git repository") {
            return Err(super::failed(&args, &said).into());
        }
        if !inside {
            return Err(none());
        }
        let top = path_of(&git, "--show-toplevel")?;
        let common = path_of(&git, "--git-common-dir")?;
        let top = top.canonicalize().map_err(io)?;
        let common = common.canonicalize().map_err(io)?;
        let prefix = workspace.strip_prefix(&top).map_err(|_| none())?.to_owned();
        Ok(Repo { workspace, prefix, common })
    }

    pub(crate) fn git(&self) -> Git {
        Git::at(&self.workspace)
    }

    /// Directory for orchestrate's files of the repository: never in a working copy.
    pub(crate) fn home(&self) -> PathBuf {
        self.common.join("coven")
    }

    pub(crate) fn lock(&self, doing: &str) -> Result<Lock, LockError> {
        self.lock_within(doing, lock::WAIT)
    }

    pub(crate) fn lock_within(&self, doing: &str, wait: Duration) -> Result<Lock, LockError> {
        Lock::take(&self.home(), doing, wait)
    }

    /// Returns all worktrees. Call it under the lock, because the list cannot be read while a
    /// worktree is being added.
    pub(crate) fn worktrees(&self, git: &Git) -> Result<Vec<Entry>, GitError> {
        match git.bytes(&["worktree", "list", "--porcelain", "-z"]) {
            Ok(list) => Ok(entries(&list)),
            // An unknown option: this one is the newest of all options that orchestrate uses.
            Err(GitError::Failed { code: 129, .. }) => {
                Err(GitError::TooOld { version: git.text(&["--version"])? })
            }
            Err(error) => Err(error),
        }
    }

    /// Returns true if there is a remote to fetch from.
    pub(crate) fn has_remote(&self) -> Result<bool, GitError> {
        self.git().is(&["config", "--get", &format!("remote.{REMOTE}.url")])
    }

    /// Returns the default base branch: the one that is checked out here, else the default branch
    /// of the remote, else `main` or `master`.
    pub(crate) fn default_base(&self) -> Result<Option<String>, GitError> {
        let git = self.git();
        if let Some(name) = symbolic(&git, "HEAD")? {
            return Ok(name.strip_prefix("refs/heads/").map(str::to_owned));
        }
        let of_remote = format!("refs/remotes/{REMOTE}/HEAD");
        if let Some(name) = symbolic(&git, &of_remote)? {
            let head = format!("refs/remotes/{REMOTE}/");
            return Ok(name.strip_prefix(&head).map(str::to_owned));
        }
        for name in ["main", "master"] {
            if git.commit(&branch(name))?.is_some() {
                return Ok(Some(name.to_owned()));
            }
        }
        Ok(None)
    }
}

/// Returns the full name of a branch.
pub(crate) fn branch(name: &str) -> String {
    format!("refs/heads/{name}")
}

/// Returns the full name of a remote branch, as of the last fetch.
pub(crate) fn of_remote(name: &str) -> String {
    format!("refs/remotes/{REMOTE}/{name}")
}

fn path_of(git: &Git, question: &str) -> Result<PathBuf, GitError> {
    let bytes = git.bytes(&["rev-parse", "--path-format=absolute", question])?;
    Ok(PathBuf::from(OsStr::from_bytes(bytes.strip_suffix(b"\n").unwrap_or(&bytes))))
}

/// Returns the git directory of one worktree.
pub(crate) fn git_dir(git: &Git) -> Result<PathBuf, GitError> {
    path_of(git, "--absolute-git-dir")
}

/// Returns the top of the working copy that contains a directory.
pub(crate) fn top_level(git: &Git) -> Result<PathBuf, GitError> {
    path_of(git, "--show-toplevel")
}

/// Returns the final target of a symbolic ref, or `None` if the name is not one.
pub(crate) fn symbolic(git: &Git, name: &str) -> Result<Option<String>, GitError> {
    let args = ["symbolic-ref", "--quiet", name];
    let said = git.said(&args)?;
    match said.how.exit_code() {
        0 => Ok(Some(String::from_utf8_lossy(&said.out).trim().to_owned())),
        1 => Ok(None),
        _ => Err(super::failed(&args, &said)),
    }
}

/// Parses the list: attributes end with NUL, and an empty one ends a worktree.
fn entries(bytes: &[u8]) -> Vec<Entry> {
    let mut found: Vec<Entry> = Vec::new();
    let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
    for attribute in bytes.split(|byte| *byte == 0) {
        let space = attribute.iter().position(|byte| *byte == b' ').unwrap_or(attribute.len());
        let (key, value) = (&attribute[..space], attribute.get(space + 1..).unwrap_or_default());
        if key == b"worktree" {
            let path = PathBuf::from(OsStr::from_bytes(value));
            found.push(Entry { path, ..Entry::default() });
        }
        let Some(entry) = found.last_mut() else { continue };
        match key {
            b"HEAD" => entry.head = Some(text(value)).filter(|id| !id.bytes().all(|b| b == b'0')),
            b"branch" => entry.branch = Some(text(value)),
            b"locked" => entry.locked = Some(text(value)),
            b"prunable" => entry.prunable = Some(text(value)),
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::git::tests::{commit, repository};

    #[test]
    fn a_repository_is_known_from_any_directory_in_it() {
        let (dir, top) = repository();
        std::fs::create_dir_all(top.join("a/b")).unwrap();
        let repo = Repo::open(&top.join("a/b")).unwrap();
        assert_eq!(repo.prefix, Path::new("a/b"));
        assert_eq!(repo.common, top.join(".git"));
        assert!(matches!(Repo::open(dir.path()), Err(RepoError::None { .. })));
        assert!(matches!(Repo::open(&top.join(".git")), Err(RepoError::None { .. })));
        assert!(matches!(Repo::open(&top.join("none")), Err(RepoError::Io { .. })));
    }

    #[test]
    fn worktrees_are_listed_with_everything_that_is_told_of_them() {
        let (_dir, top) = repository();
        let git = Git::at(&top);
        for (path, name) in [("../a b", "one"), ("../gone", "two"), ("../kept", "three")] {
            git.run(&["worktree", "add", "-b", name, path]).unwrap();
        }
        git.run(&["worktree", "lock", "--reason", "on a stick", "../kept"]).unwrap();
        std::fs::remove_dir_all(top.join("../gone")).unwrap();
        let repo = Repo::open(&top).unwrap();
        let list = repo.worktrees(&git).unwrap();
        assert_eq!(list.len(), 4);
        assert_eq!(list[0].branch.as_deref(), Some("refs/heads/main"));
        assert_eq!(list[1].path, top.parent().unwrap().join("a b"));
        assert!(list[2].prunable.is_some() && list[1].prunable.is_none());
        assert_eq!(list[3].locked.as_deref(), Some("on a stick"));
    }

    #[test]
    fn the_base_is_what_is_checked_out_else_what_the_remote_calls_its_own() {
        let (dir, top) = repository();
        let git = Git::at(&top);
        let base = |top: &Path| Repo::open(top).unwrap().default_base().unwrap();
        assert_eq!(base(&top).as_deref(), Some("main"));
        git.run(&["checkout", "--quiet", "-b", "work"]).unwrap();
        assert_eq!(base(&top).as_deref(), Some("work"));
        git.run(&["checkout", "--quiet", "--detach"]).unwrap();
        assert_eq!(base(&top).as_deref(), Some("main"));
        commit(&top, "more", "x");
        git.run(&["checkout", "--quiet", "main"]).unwrap();
        Git::at(dir.path()).run(&["clone", "--quiet", "repo", "clone"]).unwrap();
        let clone = dir.path().join("clone");
        let git = Git::at(&clone);
        git.run(&["checkout", "--quiet", "-b", "other"]).unwrap();
        assert_eq!(base(&clone).as_deref(), Some("other"));
        git.run(&["checkout", "--quiet", "--detach"]).unwrap();
        git.run(&["branch", "--quiet", "-D", "main"]).unwrap();
        assert_eq!(base(&clone).as_deref(), Some("main"));
    }
}
