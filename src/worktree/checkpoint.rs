//! Commits the uncommitted changes in a worktree to the bead's branch after a step.
//!
//! If the process is killed before the commit, the files are unchanged; after it, nothing is left
//! to do.

use super::{TreeError, Trees, Worktree};
use crate::base::ids::{Attempt, BeadId};
use crate::git::Git;

/// The step whose work a checkpoint saves.
#[derive(Clone, Debug)]
pub(crate) struct Why<'a> {
    pub run: Option<&'a str>,
    pub step: &'a str,
    pub attempt: Attempt,
}

/// The result of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    /// The commit, or `None` if there were no changes.
    pub commit: Option<String>,
    pub files: Vec<String>,
    /// Repositories in the worktree, whose files cannot be part of its commits.
    pub left_out: Vec<String>,
}

impl Trees {
    /// Commits the content of the worktree, without ignored files.
    pub(crate) fn checkpoint(&self, id: &BeadId, why: &Why) -> Result<Checkpoint, TreeError> {
        let tree = self.verify(id)?;
        self.checkpoint_verified(&tree, why)
    }

    pub(super) fn checkpoint_verified(
        &self,
        tree: &Worktree,
        why: &Why,
    ) -> Result<Checkpoint, TreeError> {
        let git = self.alone_in(&tree.id)?;
        if self.dirty(&git)?.is_empty() {
            return Ok(Checkpoint::default());
        }
        self.reveal(&git)?;
        let left_out = self.add_all(&git, false)?;
        // Settings may exclude submodules from diffs.
        let diff = ["diff-index", "--cached", "--ignore-submodules=none", "--no-renames"];
        if git.is(&[&diff[..], &["--quiet", "HEAD", "--"]].concat())? {
            return Ok(Checkpoint { left_out, ..Checkpoint::default() });
        }
        let files = git.names(&[&diff[..], &["--name-only", "-z", "HEAD", "--"]].concat())?;
        let author = git.clone().with_author()?;
        let flags = ["--quiet", "--no-verify", "--no-gpg-sign", "--cleanup=whitespace"];
        author.run(&[&["commit"], &flags[..], &["-m", &message(&tree.id, why)]].concat())?;
        let commit = git.text(&["rev-parse", "HEAD"])?;
        Ok(Checkpoint { commit: Some(commit), files, left_out })
    }

    /// Adds everything to the index that `git` is set to. Returns the repositories that were left
    /// out.
    pub(super) fn add_all(&self, git: &Git, ignored: bool) -> Result<Vec<String>, TreeError> {
        let nested = self.nested(git, ignored)?;
        // Pass the names through stdin: there may be many, and they need not be UTF-8.
        let mut paths = b".\0".to_vec();
        for name in &nested {
            paths.extend([b":(exclude,top,literal)", name.as_slice(), b"\0"].concat());
        }
        // Also add files outside a sparse checkout: they are work too.
        let mut args = vec!["add", "--all", "--sparse"];
        args.extend(ignored.then_some("--force"));
        args.extend(["--pathspec-from-file=-", "--pathspec-file-nul"]);
        git.fed(&args, &paths)?;
        let mut left_out: Vec<String> = nested.iter().map(|name| readable(name)).collect();
        left_out.extend(self.changed_submodules(git)?);
        Ok(left_out)
    }

    /// Returns submodules with uncommitted changes, which stay where they are: only a commit made
    /// in a submodule can be recorded here.
    fn changed_submodules(&self, git: &Git) -> Result<Vec<String>, TreeError> {
        if git.names(&["ls-files", "-z", "--", ".gitmodules"])?.is_empty() {
            return Ok(Vec::new());
        }
        Ok(git.names(&["diff-files", "--name-only", "-z", "--ignore-submodules=none"])?)
    }
}

/// Converts a file name to text for messages.
pub(super) fn readable(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

fn message(id: &BeadId, why: &Why) -> String {
    let Why { run, step, attempt } = why;
    let run = run.map(|run| format!("Run: {run}\n")).unwrap_or_default();
    format!(
        "checkpoint of {id}: {step}, attempt {attempt}\n\n\
         Bead: {id}\n{run}Step: {step}\nAttempt: {attempt}\n"
    )
}
