//! Merges a bead's branch into its base: in a temporary worktree, with checks there, and then with
//! one compare-and-swap of the base.
//!
//! Nothing is checked out in a working copy that a person uses. If the base is checked out in some
//! copy, moving the branch alone would make that copy look changed. So git itself fast-forwards
//! that copy if it is clean; otherwise the merge is blocked.
//!
//! **Invariant:** the base moves from exactly the commit that was merged and checked, or not at
//! all. The merged content is the reviewed content. No worktree of a merge remains in any case: the
//! next merge removes the leftovers of a killed one.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::checkpoint::Why;
use super::checks::Checks;
use super::look::{under_way, works_at};
use super::remote_sync::move_forward;
use super::remove::some;
use super::save::tree_of;
use super::{BRANCHES, Hold, HoldRequest, TreeError, Trees, arg, branch, short_branch};
use crate::base::ids::{Attempt, BeadId};
use crate::disk::fs::{self, OnVolume as _};
use crate::exec::{self, Stop};
use crate::git::repo::{self, git_dir};
use crate::git::{Git, GitError, Lock, LockError, failed, lock};
use crate::lease::{Lease, LeaseDir, Limit, Request, Wait};

/// Maximum number of attempts if the base moves during the merge.
const ROUNDS: u32 = 5;
/// Prefix of worktrees for merges. Bead ids never start with a dot.
const PREFIX: &str = ".merge-";

/// A merge request.
#[derive(Clone, Copy)]
pub(crate) struct Merge<'a> {
    pub id: &'a BeadId,
    /// The bead's title, for the commit message.
    pub title: Option<&'a str>,
    pub checks: Checks<'a>,
    /// The digest of the approved review diff, or `None` if no approval is required.
    pub approval: Option<&'a str>,
    /// Time to wait for other merges.
    pub wait: Duration,
}

/// The outcome of a merge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Merged {
    /// The base is now at this commit.
    Done {
        commit: String,
        base: String,
        /// The working copy that was fast-forwarded with it.
        moved: Option<PathBuf>,
        rounds: u32,
    },
    /// The base already contains the whole branch.
    Already {
        base: String,
    },
    Blocked(Block),
}

/// The reason why a branch cannot be merged. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Block {
    #[error("it conflicts with `{base}` in {}", some(files))]
    Conflicts { base: String, files: Vec<String> },
    #[error("the check `{command}` failed with exit code {code}: {said}")]
    Check {
        command: String,
        code: i32,
        said: String,
        /// The last lines of its output.
        stdout: Vec<String>,
        stderr: Vec<String>,
    },
    #[error("`{base}` is checked out in `{}`: {why}", path.display())]
    Copy { base: String, path: PathBuf, why: String },
    /// A holder uses a worktree in which the base is checked out.
    #[error("`{base}` is checked out in `{}`: {holder} works there", path.display())]
    Held { base: String, path: PathBuf, holder: String },
    #[error("`{base}` moved {times} times while it was being merged")]
    Moving { base: String, times: u32 },
}

impl Block {
    /// Returns a hint for the user on how to continue.
    pub(crate) fn cure(&self, id: &BeadId) -> String {
        match self {
            Block::Conflicts { base, .. } => {
                format!("merge `{base}` into `{}` in its worktree, and try again", short_branch(id))
            }
            Block::Check { .. } => "make it succeed in the worktree, and try again".into(),
            Block::Copy { .. } => "see to that copy, and try again".into(),
            Block::Held { .. } => "try again when that is done".into(),
            Block::Moving { .. } => "try again".into(),
        }
    }

    /// Returns the exit code of a program that stops with this result.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Block::Held { .. } => 5,
            _ => 1,
        }
    }
}

/// The working copy of a base that may be moved.
enum Landing {
    /// The base is not checked out.
    Nowhere,
    /// A clean working copy.
    Copy(PathBuf),
}

/// One attempt.
struct Round<'a> {
    trees: &'a Trees,
    order: &'a Merge<'a>,
    turn: &'a Lease,
    alone: Option<Arc<File>>,
    stop: &'a Stop,
    base: &'a str,
    tip: &'a str,
}

impl Trees {
    /// Waits for its turn in the merge queue, then merges a branch into its base. A caller that
    /// already holds the worktree passes its hold.
    pub(crate) fn merge(
        &self,
        order: &Merge,
        hold: Option<&Hold>,
        stop: &Stop,
    ) -> Result<Merged, TreeError> {
        let id = order.id;
        let turn = self.enter_merge_queue(order, stop)?;
        // A killed merge may have left a `git` running in its temporary worktree.
        let alone = lock::take_kernel(&self.repo.home().join("merge.kernel"), order.wait)?;
        let _held = match hold {
            Some(hold) if hold.id == *id => None,
            _ => Some(self.hold(id, &HoldRequest::by_hand("merge"))?),
        };
        let lock = self.repo.lock(&format!("beginning to merge `{id}`"))?;
        self.sweep_merges(&lock)?;
        let found = self.look(&lock, id)?;
        if found.is_nothing() {
            return Err(TreeError::found(
                format!("there is no worktree `{id}`"),
                "`orchestrate worktree ls` shows those there are",
            ));
        }
        drop(lock);
        let base = self.real_base(self.base_of(id, &found)?.0)?;
        let tip = self.reviewed(order, &found)?;
        for round in 1..=ROUNDS {
            let (base, tip, alone) = (base.as_str(), tip.as_str(), alone.clone());
            let one = Round { trees: self, order, turn: &turn, alone, stop, base, tip };
            if let Some(merged) = one.go(round)? {
                return Ok(merged);
            }
        }
        Ok(Merged::Blocked(Block::Moving { base, times: ROUNDS }))
    }

    /// Waits until all earlier merges of the repository have ended.
    fn enter_merge_queue(&self, order: &Merge, stop: &Stop) -> Result<Lease, TreeError> {
        let dir = self.repo.home().join("leases/merge");
        let wait = Wait { limit: Limit::Time(order.wait), stop: Some(stop), report: &|_| {} };
        let request = Request::new(format!("merging `{}`", order.id));
        let mut lease = LeaseDir::new(dir.clone())
            .acquire(&request, &wait)
            .map_err(|error| LockError::of_lease(error, &dir, order.wait))?;
        lease.forget_dead();
        Ok(lease)
    }

    /// Resolves a base that is a symbolic ref to its target: the target is the branch that moves
    /// and that may be checked out.
    fn real_base(&self, base: String) -> Result<String, TreeError> {
        let Some(whole) = repo::symbolic(&self.git(), &repo::branch(&base))? else {
            return Ok(base);
        };
        let real = whole.strip_prefix("refs/heads/").map(str::to_owned);
        real.ok_or_else(|| {
            TreeError::found(
                format!("the base `{base}` stands for `{whole}`, which is no branch"),
                format!("make it one: `git symbolic-ref --delete {}`", repo::branch(&base)),
            )
        })
    }

    /// Returns the commit to merge: the branch with all changes in its worktree, as reviewed.
    fn reviewed(&self, order: &Merge, found: &super::look::Found) -> Result<String, TreeError> {
        let id = order.id;
        let review = self.review_found(id, found)?;
        let void = |approved: &str, found: String| {
            let (id, approved) = (id.to_string(), approved.to_owned());
            Err(TreeError::Void { id, approved, found })
        };
        if let Some(approved) = order.approval
            && !approved.eq_ignore_ascii_case(&review.hash)
        {
            return void(approved, review.hash);
        }
        if !review.dirty.is_empty() {
            let tree = self.verified(id, found)?;
            self.checkpoint_verified(
                &tree,
                &Why { run: None, step: "merge", attempt: Attempt::FIRST },
            )?;
        }
        let git = self.git();
        let tip = git.commit(&branch(id))?.ok_or_else(|| {
            TreeError::found(format!("the branch `{}` is gone", short_branch(id)), "try again")
        })?;
        if tree_of(&git, &tip)? != review.tree {
            return match order.approval {
                Some(approved) => void(approved, self.review(id)?.hash),
                None => Err(TreeError::found(
                    format!("somebody is writing in worktree `{id}`"),
                    "find out who, and try again",
                )),
            };
        }
        Ok(tip)
    }

    /// Removes the leftovers of killed merges. The caller is first in the merge queue, so no other
    /// merge is active and every leftover is stale.
    fn sweep_merges(&self, lock: &Lock) -> Result<(), TreeError> {
        let git = lock.git(&self.repo.workspace)?;
        let registered = self.listed(&git)?.into_iter().map(|entry| entry.path);
        let lying = fs::read_dir(self.dir()).into_iter().flatten().flatten();
        for path in registered.chain(lying.map(|entry| entry.path())) {
            let Some(word) = stage_word(&path) else { continue };
            // Its checks may still be running.
            exec::sweep(&mark(word));
            self.take_away(lock, &path)?;
        }
        Ok(())
    }

    /// Takes the worktree of a base that is a bead's branch, so that no step starts in it while the
    /// base moves. The error describes its holder. One bead may be the base of another, and its
    /// worktree may be in any workspace. Call it without the repository's lock, because the check
    /// of a holder on another machine can take long.
    fn hold_base(&self, base: &str) -> Result<Result<Option<Hold>, String>, TreeError> {
        let name = repo::branch(base);
        let id = name.strip_prefix(BRANCHES).and_then(|id| BeadId::parse(id).ok());
        let Some(id) = id else { return Ok(Ok(None)) };
        match self.hold(&id, &HoldRequest::by_hand("merge")) {
            Ok(hold) => Ok(Ok(Some(hold))),
            Err(TreeError::Held { holder, .. }) => Ok(Err(holder)),
            Err(error) => Err(error),
        }
    }

    /// Checks that the base may be moved, and returns the working copy that has to move with it.
    /// `holder` describes the step that uses the base's worktree, if there is one.
    fn landing(
        &self,
        git: &Git,
        base: &str,
        holder: Option<String>,
    ) -> Result<Result<Landing, Block>, TreeError> {
        let name = repo::branch(base);
        let mut landing = Landing::Nowhere;
        for entry in self.listed(git)? {
            let blocked = |why: String| {
                let (base, path) = (base.to_owned(), entry.path.clone());
                Ok(Err(Block::Copy { base, path, why }))
            };
            let here = entry.branch.as_ref() == Some(&name);
            if !here {
                if works_at(&entry, &name) {
                    return blocked("it is being rebased or bisected there".into());
                }
                continue;
            }
            if !entry.path.is_present_dir() {
                return blocked("that directory is gone; `git worktree prune` forgets it".into());
            }
            if matches!(landing, Landing::Copy(_)) {
                return blocked("and in another copy too".into());
            }
            if let Some(holder) = holder {
                let (base, path) = (base.to_owned(), entry.path.clone());
                return Ok(Err(Block::Held { base, path, holder }));
            }
            let inside = Git::at(&entry.path);
            if let Some(what) = under_way(&git_dir(&inside)?) {
                return blocked(format!("{what} is under way there"));
            }
            let args = ["status", "--porcelain", "-z", "--untracked-files=no", "--no-renames"];
            let dirty = inside.names(&args)?;
            if !dirty.is_empty() {
                let files: Vec<String> =
                    dirty.iter().filter_map(|line| line.get(3..).map(str::to_owned)).collect();
                return blocked(format!("it has changes not committed there ({})", some(&files)));
            }
            landing = Landing::Copy(entry.path);
        }
        Ok(Ok(landing))
    }
}

impl Round<'_> {
    /// Runs the attempt. Returns `None` if the base has moved meanwhile.
    fn go(&self, round: u32) -> Result<Option<Merged>, TreeError> {
        let Round { trees, base, tip, .. } = self;
        let git = trees.git();
        let old = git.commit(&repo::branch(base))?;
        let from = match &old {
            Some(old) => Some(old.clone()),
            None => git.commit(&repo::of_remote(base))?,
        };
        let Some(from) = from else { return Err(trees.baseless(self.order.id, base)) };
        if git.contains(&from, tip)? {
            return Ok(Some(Merged::Already { base: (*base).to_owned() }));
        }
        // Not held during the checks, which may take long.
        let holder = trees.hold_base(base)?.err();
        let lock = trees.repo.lock(&format!("merging `{}`", self.order.id))?;
        if let Err(block) = trees.landing(&lock.git(&trees.repo.workspace)?, base, holder)? {
            return Ok(Some(Merged::Blocked(block)));
        }
        let stage = self.stage(lock, round, &from)?;
        let new = match self.merge_in(&stage)? {
            Ok(new) => new,
            Err(block) => return Ok(Some(Merged::Blocked(block))),
        };
        if let Some(block) = self.check_in(&stage)? {
            return Ok(Some(Merged::Blocked(block)));
        }
        self.land(old.as_deref(), &new, round)
    }

    /// Creates the temporary worktree under the lock, then releases the lock.
    fn stage(&self, lock: Lock, round: u32, from: &str) -> Result<Stage<'_>, TreeError> {
        let trees = self.trees;
        trees.make_dir()?;
        let word = format!("{}-{round}", self.turn.word());
        let path = trees.dir().join(format!("{PREFIX}{word}"));
        // In a partial clone, git fetches missing files from the remote.
        let git = lock.git(&trees.repo.workspace)?.until(Some(self.stop.clone()));
        let made = git.run(&["worktree", "add", "--quiet", "--detach", arg(&path)?, from]);
        // Both hold the lock, and the removal of the worktree needs it.
        drop((git, lock));
        // From here on, the worktree is removed in every case.
        let stage = Stage { trees, path, word };
        made?;
        Ok(stage)
    }

    /// Merges in the temporary worktree. Returns the merge commit, or the files in conflict.
    fn merge_in(&self, stage: &Stage) -> Result<Result<String, Block>, TreeError> {
        // On a detached HEAD, git uses the settings of a branch of this name.
        let git = Git::at(&stage.path).holding(self.alone.clone()).plain_merges("HEAD");
        let git = git.with_author()?.until(Some(self.stop.clone()));
        let (id, tip) = (self.order.id, self.tip);
        let title = self.order.title.map(|title| format!(": {title}")).unwrap_or_default();
        let message = format!("merge {}{title}\n\nBead: {id}\n", short_branch(id));
        let flags = ["--no-ff", "--no-edit", "--no-verify", "--no-verify-signatures"];
        let more = ["--no-gpg-sign", "--no-stat", "--quiet", "--no-autostash", "-m", &message, tip];
        let args = [&["merge"], &flags[..], &more[..]].concat();
        let said = git.said(&args)?;
        if said.how.exit_code() == 0 {
            return Ok(Ok(git.text(&["rev-parse", "HEAD"])?));
        }
        let files = git.names(&["diff", "--name-only", "--diff-filter=U", "-z"])?;
        match files.is_empty() {
            true => Err(failed(&args, &said).into()),
            false => Ok(Err(Block::Conflicts { base: self.base.to_owned(), files })),
        }
    }

    fn check_in(&self, stage: &Stage) -> Result<Option<Block>, TreeError> {
        let cwd = stage.path.join(&self.trees.repo.prefix);
        self.order.checks.run(&cwd, &mark(&stage.word), self.stop)
    }

    /// Moves the base, unless it has moved meanwhile.
    fn land(&self, old: Option<&str>, new: &str, round: u32) -> Result<Option<Merged>, TreeError> {
        let Round { trees, base, order, .. } = self;
        let base_hold = trees.hold_base(base)?;
        let lock = trees.repo.lock(&format!("landing `{}`", order.id))?;
        if !self.turn.check().map_err(|error| TreeError::io("read", &trees.repo.home(), error))? {
            return Err(LockError::Lost.into());
        }
        let git = lock.git(&trees.repo.workspace)?;
        let name = repo::branch(base);
        let landing = match trees.landing(&git, base, base_hold.as_ref().err().cloned())? {
            Ok(landing) => landing,
            Err(block) => return Ok(Some(Merged::Blocked(block))),
        };
        let has_moved = || Ok::<_, TreeError>(git.commit(&name)?.as_deref() != old);
        if has_moved()? {
            return Ok(None);
        }
        let moved = match landing {
            Landing::Nowhere => {
                let why = format!("merge {}", short_branch(order.id));
                let old = old.unwrap_or_default();
                let args = ["update-ref", "--no-deref", "-m", &why, &name, new, old];
                let said = git.said(&args)?;
                if said.how.exit_code() != 0 {
                    return if has_moved()? { Ok(None) } else { Err(failed(&args, &said).into()) };
                }
                None
            }
            Landing::Copy(path) => {
                match move_forward(lock.git(&path)?, base, new) {
                    Ok(()) => {}
                    Err(GitError::Failed { .. }) if has_moved()? => return Ok(None),
                    Err(error @ GitError::Failed { .. }) => {
                        let why = format!("it cannot be moved forward: {error}");
                        let base = (*base).to_owned();
                        return Ok(Some(Merged::Blocked(Block::Copy { base, path, why })));
                    }
                    Err(error) => return Err(error.into()),
                }
                Some(path)
            }
        };
        if !git.contains(&name, new)? {
            return Err(TreeError::found(
                format!("git says that it moved `{base}` to {new}, but it is not there"),
                format!("look at `git log {base}` and at the settings for merges, and try again"),
            ));
        }
        let (commit, base) = (new.to_owned(), (*base).to_owned());
        Ok(Some(Merged::Done { commit, base, moved, rounds: round }))
    }
}

/// A temporary worktree for one merge, removed when dropped.
struct Stage<'a> {
    trees: &'a Trees,
    path: PathBuf,
    word: String,
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        let lock = self.trees.repo.lock("tidying up after a merge").map_err(TreeError::from);
        let gone = lock.and_then(|lock| self.trees.take_away(&lock, &self.path));
        if let Err(error) = gone {
            tracing::warn!("`{}` stays until the next merge: {error}", self.path.display());
        }
    }
}

fn mark(word: &str) -> String {
    format!("merge-{word}")
}

/// Returns the token of a merge worktree, or `None` if the directory is not one.
fn stage_word(path: &Path) -> Option<&str> {
    let ours = path.parent().is_some_and(|parent| parent.ends_with(super::DIR));
    path.file_name()?.to_str()?.strip_prefix(PREFIX).filter(|_| ours)
}

/// Returns true if a directory is the worktree of a merge, which contains no user's work.
pub(super) fn is_stage(path: &Path) -> bool {
    stage_word(path).is_some()
}
