//! Continues work that was done in another clone of the repository: fetches its branch from the
//! remote, or reports that it is unavailable.
//!
//! **Invariant:** a step that depends on other work starts with that work, or not at all. A branch
//! only moves forward, and no file in a worktree is overwritten.

use serde::{Deserialize, Serialize};

use super::{Hold, HoldRequest, Record, TreeError, Trees, branch, short_branch};
use crate::base::ids::{BeadId, shown};
use crate::disk::fs::OnVolume as _;
use crate::git::repo::{self, REMOTE};
use crate::git::{Git, GitError};

/// The work that a branch must contain before a step continues on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Expects {
    pub after: Vec<After>,
    /// True if bead branches are shared through the remote, so that the remote is checked each
    /// time.
    pub shared: bool,
}

/// Earlier work that a step depends on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct After {
    /// The tip of the branch after that work.
    pub commit: String,
    /// The step or task that did it.
    pub step: String,
}

/// The result of a search for earlier work on a branch.
pub(super) enum Has {
    All,
    /// It was on the branch and was taken off in this clone.
    Off(After),
    /// It is not in this clone.
    Lacks(After),
}

/// Fast-forwards a branch in the working copy that has it checked out. Files in the way are not
/// overwritten, even if they are ignored.
pub(super) fn move_forward(copy: Git, branch: &str, to: &str) -> Result<(), GitError> {
    let flags = ["--no-overwrite-ignore", "--no-verify", "--no-verify-signatures"];
    let rest = ["--quiet", "--no-stat", "--no-autostash", to];
    copy.plain_merges(branch).run(&[&["merge", "--ff-only"], &flags[..], &rest[..]].concat())
}

impl Trees {
    /// Checks that each expected commit is contained in one of `commits`.
    pub(super) fn has(&self, commits: &[&str], expects: &Expects) -> Result<Has, TreeError> {
        let git = self.git();
        let mut has = Has::All;
        for after in &expects.after {
            // Fast path: usually nothing has changed, and git need not run.
            if commits.contains(&after.commit.as_str()) {
                continue;
            }
            let Some(commit) = git.commit(&after.commit)? else {
                return Ok(Has::Lacks(after.clone()));
            };
            let mut found = false;
            for new in commits {
                found = found || git.contains(new, &commit)?;
            }
            if !found {
                has = Has::Off(after.clone());
            }
        }
        Ok(has)
    }

    /// Brings an existing local branch of a bead up to date with the work of other clones. The
    /// caller must hold the worktree. Returns warnings.
    pub(crate) fn follow(&self, id: &BeadId, expects: &Expects) -> Result<Vec<String>, TreeError> {
        let (git, whole, name) = (self.git(), branch(id), short_branch(id));
        let Some(tip) = git.commit(&whole)? else { return Ok(Vec::new()) };
        let has = self.has(&[&tip], expects)?;
        if (!expects.shared && !matches!(has, Has::Lacks(_))) || !self.repo.has_remote()? {
            return self.fits(id, &has).map(Vec::from_iter);
        }
        let mut warnings = Vec::new();
        match self.fetch_branch(id) {
            Err(GitError::Stopped { .. }) => return Err(TreeError::Stopped),
            Err(error) => {
                warnings.push(format!("cannot fetch `{name}` from `{REMOTE}`: {error}"));
            }
            Ok(None) => {}
            Ok(Some(theirs)) if git.contains(&tip, &theirs)? => {}
            Ok(Some(theirs)) if git.contains(&theirs, &tip)? => {
                let from = format!("{REMOTE}/{name}");
                self.forward(id, &tip, &theirs, &from)?;
                warnings.push(format!("`{name}` was brought up to `{from}`"));
            }
            Ok(Some(_)) => {
                return Err(TreeError::found(
                    format!("`{name}` and `{REMOTE}/{name}` have gone different ways"),
                    format!(
                        "merge `{REMOTE}/{name}` in `{}`, or push what is right: `git push \
                         --force-with-lease {REMOTE} {name}`",
                        self.path(id).display()
                    ),
                ));
            }
        }
        let tip = git.commit(&whole)?.unwrap_or(tip);
        let has = self.has(&[&tip], expects)?;
        warnings.extend(self.fits(id, &has)?);
        Ok(warnings)
    }

    /// Moves the branch of a bead forward to its base if the base contains all of its work, so that
    /// no step works in a tree without later commits: a run may fail before its first commit, and a
    /// merge may be killed before it removes the worktree. The caller must hold the worktree.
    ///
    /// A branch without work follows the remote's base if the remote has one, as a new branch does.
    ///
    /// Returns the base branch if the branch moved. Does nothing if the worktree has uncommitted
    /// changes.
    pub(crate) fn refresh(&self, id: &BeadId) -> Result<Option<String>, TreeError> {
        let git = self.git();
        let (Some(record), Some(tip)) = (self.record(id)?, git.commit(&branch(id))?) else {
            return Ok(None);
        };
        let theirs = git.commit(&repo::of_remote(&record.base_branch))?;
        let ours = match tip == record.base_commit && theirs.is_some() {
            true => None,
            false => git.commit(&repo::branch(&record.base_branch))?,
        };
        let mut newest = tip.clone();
        for commit in ours.into_iter().chain(theirs) {
            if git.contains(&commit, &newest)? {
                newest = commit;
            }
        }
        let path = self.path(id);
        if newest == tip || (path.is_present() && !self.dirty(&Git::at(&path))?.is_empty()) {
            return Ok(None);
        }
        let base = record.base_branch.clone();
        self.forward(id, &tip, &newest, &base)?;
        self.write_record(&Record { base_commit: newest, ..record })?;
        Ok(Some(base))
    }

    /// Makes the branch of a bead available locally, with all expected work, for a caller that does
    /// not work in it. A caller that already holds the worktree passes its hold.
    pub(crate) fn bring(
        &self,
        id: &BeadId,
        base: Option<&str>,
        expects: &Expects,
        hold: Option<&Hold>,
    ) -> Result<Vec<String>, TreeError> {
        let tip = self.git().commit(&branch(id))?;
        let fits = match &tip {
            Some(tip) => !matches!(self.has(&[tip], expects)?, Has::Lacks(_)),
            None => expects.after.is_empty(),
        };
        if fits && !expects.shared {
            return Ok(Vec::new());
        }
        let _held = match hold {
            Some(_) => None,
            None => Some(self.hold(id, &HoldRequest::by_hand("review"))?),
        };
        match tip {
            Some(_) => self.follow(id, expects),
            None => Ok(self.create_after(id, base, expects)?.warnings),
        }
    }

    /// Returns the warning about an existing branch, if any, or an error if work must not continue
    /// on it.
    fn fits(&self, id: &BeadId, has: &Has) -> Result<Option<String>, TreeError> {
        match has {
            Has::All => Ok(None),
            Has::Lacks(after) => Err(self.lacks(id, after)),
            Has::Off(After { commit, step }) => Ok(Some(format!(
                "`{}` does not have commit {commit} any more, where `{}` left it",
                short_branch(id),
                shown(step)
            ))),
        }
    }

    /// Returns the error for a worktree whose earlier work, done in another clone, is unavailable
    /// here.
    pub(super) fn lacks(&self, id: &BeadId, after: &After) -> TreeError {
        let (name, After { commit, step }) = (short_branch(id), after);
        let step = shown(step);
        TreeError::found(
            format!(
                "`{step}` left `{name}` at commit {commit}, which is neither in this clone nor on \
                 `{REMOTE}`"
            ),
            format!(
                "push it from where that was done, `git push {REMOTE} {name}`, and try again; with \
                 `worktree: {{ push: true }}` in the settings that is done after each step"
            ),
        )
    }

    /// Returns the error for a branch that is gone, which is not recreated from its base.
    pub(super) fn gone(&self, id: &BeadId, after: &After) -> TreeError {
        let (name, After { commit, step }) = (short_branch(id), after);
        let step = shown(step);
        TreeError::found(
            format!("`{name}` is gone; `{step}` left it at commit {commit}"),
            format!("`git branch {name} {commit}` brings it back"),
        )
    }

    /// Moves a branch forward to the tip of the branch `from`, with its worktree.
    fn forward(&self, id: &BeadId, tip: &str, to: &str, from: &str) -> Result<(), TreeError> {
        let lock = self.repo.lock(&format!("bringing worktree `{id}` up to date"))?;
        let found = self.look(&lock, id)?;
        if found.is_branch_alone() && found.entry.is_none() {
            let args = ["update-ref", "--no-deref", &branch(id), to, tip];
            return Ok(lock.git(&self.repo.workspace)?.run(&args)?);
        }
        let tree = self.verified(id, &found)?;
        drop(lock);
        let git = self.alone_in(id)?;
        let dirty = self.dirty(&git)?;
        if !dirty.is_empty() {
            let name = short_branch(id);
            return Err(TreeError::found(
                format!(
                    "`{name}` is behind `{from}`, and its worktree has what no commit has: {}",
                    super::remove::some(&dirty)
                ),
                format!("look what it is in `{}`, and commit or remove it", tree.path.display()),
            ));
        }
        let name = short_branch(id);
        move_forward(git, &name, to).map_err(|error| match error {
            GitError::Failed { .. } => TreeError::found(
                format!("`{name}` cannot be brought up to `{from}`: {error}"),
                format!("see to what is in `{}`, and try again", tree.path.display()),
            ),
            error => error.into(),
        })
    }

    /// Fetches the branch of a bead from the remote. Returns `None` if the remote does not have it.
    pub(super) fn fetch_branch(&self, id: &BeadId) -> Result<Option<String>, GitError> {
        let (git, name) = (self.remote_git(), short_branch(id));
        let whole = branch(id);
        let listed = git.text(&["ls-remote", "--refs", "--quiet", REMOTE, &whole])?;
        let is_it = |line: &str| line.split_once('\t').is_some_and(|(_, there)| there == whole);
        if !listed.lines().any(is_it) {
            return Ok(None);
        }
        self.fetch(&name)?;
        git.commit(&repo::of_remote(&name))
    }

    /// Returns true if the remote, at its last known state, has the branch of a bead with work that
    /// is not in its base.
    pub(crate) fn is_on_remote(&self, id: &BeadId) -> Result<bool, TreeError> {
        let git = self.git();
        let Some(theirs) = git.commit(&repo::of_remote(&short_branch(id)))? else {
            return Ok(false);
        };
        let Some(base) = self.repo.default_base()? else { return Ok(true) };
        for name in [repo::branch(&base), repo::of_remote(&base)] {
            if git.commit(&name)?.is_some() && git.contains(&name, &theirs)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Pushes a branch to the remote, so that other clones can continue the work.
    pub(crate) fn push(&self, id: &BeadId) -> Result<(), TreeError> {
        if !self.repo.has_remote()? {
            return Err(TreeError::found(
                format!("there is no remote `{REMOTE}` to push `{}` to", short_branch(id)),
                format!("`git remote add {REMOTE} URL`"),
            ));
        }
        let what = format!("{0}:{0}", branch(id));
        let flags = ["--quiet", "--no-verify", "--no-follow-tags"];
        let args = [&["push"], &flags[..], &[REMOTE, &what]].concat();
        Ok(self.remote_git().run(&args)?)
    }
}
