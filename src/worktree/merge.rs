//! Merging a bead's branch into its base: in a worktree of its own, checked there, and then moved
//! to with one compare-and-swap.
//!
//! Nothing is checked out in a copy that a person works in. Where the base is checked out
//! somewhere, moving the branch alone would make that copy look changed, so it is moved forward
//! there by git itself, if it is clean; else the merge is blocked.
//!
//! **Invariant:** the base moves from the very commit that was merged and checked, or not at all.
//! What is merged is what was reviewed. Whatever happens, no worktree of a merge is left: the next
//! merge takes away what one that was killed left behind.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::checkpoint::Why;
use super::checks::Checks;
use super::follow::move_forward;
use super::lane::Turn;
use super::look::{under_way, works_at};
use super::remove::some;
use super::save::tree_of;
use super::{BRANCHES, Hold, Holder, TreeError, Trees, Wants, arg, branch, lives, short_branch};
use crate::exec::{self, Stop};
use crate::git::repo::{self, git_dir};
use crate::git::{Git, GitError, Lock, failed, lock};
use crate::ids::BeadId;

/// How often a merge is done anew because the base has moved meanwhile.
const ROUNDS: u32 = 5;
/// What the names of worktrees for merges begin with. No id does.
const PREFIX: &str = ".merge-";

/// What is to be merged, and how.
#[derive(Clone, Copy)]
pub struct Merge<'a> {
    pub id: &'a BeadId,
    /// What the bead is about, for the message.
    pub title: Option<&'a str>,
    pub checks: Checks<'a>,
    /// The digest of the review diff that somebody approved; nothing where nobody has to.
    pub approval: Option<&'a str>,
    /// How long to wait for other merges.
    pub wait: Duration,
}

/// How a merge went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Merged {
    /// The base is at this commit now.
    Done {
        commit: String,
        base: String,
        /// The copy that was moved forward with it.
        moved: Option<PathBuf>,
        rounds: u32,
    },
    /// Everything in the branch is in the base already.
    Already {
        base: String,
    },
    Blocked(Block),
}

/// What keeps a branch from being merged. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Block {
    #[error("it conflicts with `{base}` in {}", some(files))]
    Conflicts { base: String, files: Vec<String> },
    #[error("the check `{command}` failed with exit code {code}: {said}")]
    Check {
        command: String,
        code: i32,
        said: String,
        /// The last lines that it printed.
        stdout: Vec<String>,
        stderr: Vec<String>,
    },
    #[error("`{base}` is checked out in `{}`: {why}", path.display())]
    Copy { base: String, path: PathBuf, why: String },
    /// Somebody works on the base.
    #[error("`{base}` is checked out in `{}`: {holder} works there", path.display())]
    Held { base: String, path: PathBuf, holder: String },
    #[error("`{base}` moved {times} times while it was being merged")]
    Moving { base: String, times: u32 },
}

impl Block {
    /// How to go on.
    pub fn cure(&self, id: &BeadId) -> String {
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

    /// The exit code of a program that can do no more.
    pub fn exit_code(&self) -> u8 {
        match self {
            Block::Held { .. } => 5,
            _ => 1,
        }
    }
}

/// Where the base is, if it may be moved.
enum Landing {
    /// It is checked out nowhere.
    Nowhere,
    /// A clean copy.
    Copy(PathBuf),
}

/// One try.
struct Round<'a> {
    trees: &'a Trees,
    order: &'a Merge<'a>,
    turn: &'a Turn,
    alone: Option<Arc<File>>,
    stop: &'a Stop,
    base: &'a str,
    tip: &'a str,
    /// Who worked on the base, and is known to be dead.
    dead: Option<&'a Holder>,
}

impl Trees {
    /// Merges a branch into its base, when its turn has come. Who holds the worktree already
    /// gives its hold.
    pub fn merge(
        &self,
        order: &Merge,
        hold: Option<&Hold>,
        stop: &Stop,
    ) -> Result<Merged, TreeError> {
        let id = order.id;
        let turn = self.draw(&format!("merging `{id}`"))?;
        self.wait_turn(&turn, order.wait, stop)?;
        // One that was killed may have left a `git` at work in a stage of its own.
        let alone = lock::take_kernel(&self.repo.home().join("lane.kernel"), order.wait)?;
        let _held = match hold {
            Some(hold) if hold.id == *id => None,
            _ => Some(self.hold(id, &Wants::by_hand("merge"))?),
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
        // At once: to let go of a hold needs the lock.
        drop(lock);
        let base = self.real_base(self.base_of(id, &found)?.0)?;
        let tip = self.reviewed(order, &found)?;
        let dead = self.dead_at(&base)?;
        for round in 1..=ROUNDS {
            let (base, tip, alone) = (base.as_str(), tip.as_str(), alone.clone());
            let one = Round {
                trees: self,
                order,
                turn: &turn,
                alone,
                stop,
                base,
                tip,
                dead: dead.as_ref(),
            };
            if let Some(merged) = one.go(round)? {
                return Ok(merged);
            }
        }
        Ok(Merged::Blocked(Block::Moving { base, times: ROUNDS }))
    }

    /// The branch that a base is in the end: one may be another name of another, and that is what
    /// is moved, and what may be checked out.
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

    /// The commit to be merged: the branch with everything in its worktree, as it was reviewed.
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
            self.checkpoint_verified(&tree, &Why { run: None, step: "merge", attempt: 1 })?;
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

    /// Takes away what merges left that were killed. Whoever has its turn is alone in the lane, so
    /// whatever lies there is of nobody.
    fn sweep_merges(&self, lock: &Lock) -> Result<(), TreeError> {
        self.sweep_owners()?;
        let git = lock.git(&self.repo.workspace)?;
        let registered = self.listed(&git)?.into_iter().map(|entry| entry.path);
        let lying = fs::read_dir(self.dir()).into_iter().flatten().flatten();
        for path in registered.chain(lying.map(|entry| entry.path())) {
            let Some(word) = stage_word(&path) else { continue };
            // Its checks may still be at work.
            exec::sweep(&mark(word));
            self.take_away(lock, &path)?;
        }
        Ok(())
    }

    /// Who has the worktree of a branch, dead or alive, if it is one of ours: a bead's may be the
    /// base of another, wherever its worktree lies.
    fn holder_of(&self, branch: &str) -> Result<Option<Holder>, TreeError> {
        let id = branch.strip_prefix(BRANCHES).and_then(|id| BeadId::parse(id).ok());
        match id {
            Some(id) => self.holder(&id),
            None => Ok(None),
        }
    }

    /// Who worked on a base and is dead. It can take long to see, so nobody is kept from the lock
    /// meanwhile.
    fn dead_at(&self, base: &str) -> Result<Option<Holder>, TreeError> {
        match self.holder_of(&repo::branch(base))? {
            Some(holder) if !self.is_alive(&holder)? => Ok(Some(holder)),
            _ => Ok(None),
        }
    }

    /// Whether the base may be moved, and what has to move with it.
    fn landing(
        &self,
        git: &Git,
        base: &str,
        dead: Option<&Holder>,
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
            if !entry.path.is_dir() {
                return blocked("that directory is gone; `git worktree prune` forgets it".into());
            }
            if matches!(landing, Landing::Copy(_)) {
                return blocked("and in another copy too".into());
            }
            let works = |holder: &Holder| lives(holder) && dead != Some(holder);
            if let Some(holder) = self.holder_of(&name)?.filter(works) {
                let (base, path) = (base.to_owned(), entry.path.clone());
                let holder = holder.to_string();
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
    /// Nothing, if the base has moved meanwhile.
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
        let lock = trees.repo.lock(&format!("merging `{}`", self.order.id))?;
        if let Err(block) = trees.landing(&lock.git(&trees.repo.workspace)?, base, self.dead)? {
            // Known before the checks are run, which may take long.
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

    /// Makes a stage under the lock, and gives the lock back.
    fn stage(&self, lock: Lock, round: u32, from: &str) -> Result<Stage<'_>, TreeError> {
        let trees = self.trees;
        trees.make_dir()?;
        let word = format!("{}-{round}", self.turn.me.word);
        let path = trees.dir().join(format!("{PREFIX}{word}"));
        // Where the files are not all in this clone, git asks the remote for them.
        let git = lock.git(&trees.repo.workspace)?.until(Some(self.stop.clone()));
        let made = git.run(&["worktree", "add", "--quiet", "--detach", arg(&path)?, from]);
        // Both hold it, and to take the stage away needs it.
        drop((git, lock));
        // From here on it is taken away whatever happens.
        let stage = Stage { trees, path, word };
        made?;
        Ok(stage)
    }

    /// Merges in a stage of its own. Gives the merge commit, or the files in conflict.
    fn merge_in(&self, stage: &Stage) -> Result<Result<String, Block>, TreeError> {
        // On no branch, git takes the settings of one of this name.
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

    /// Moves the base, if it is where it was.
    fn land(&self, old: Option<&str>, new: &str, round: u32) -> Result<Option<Merged>, TreeError> {
        let Round { trees, base, order, .. } = self;
        let lock = trees.repo.lock(&format!("landing `{}`", order.id))?;
        trees.has_turn(self.turn)?;
        let git = lock.git(&trees.repo.workspace)?;
        let name = repo::branch(base);
        let landing = match trees.landing(&git, base, self.dead)? {
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

/// A worktree for one merge, gone when dropped.
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

/// What tells a worktree of a merge from others, if a directory is one.
fn stage_word(path: &Path) -> Option<&str> {
    let ours = path.parent().is_some_and(|parent| parent.ends_with(super::DIR));
    path.file_name()?.to_str()?.strip_prefix(PREFIX).filter(|_| ours)
}

/// Whether a directory is the worktree of a merge. Nothing in it is anybody's work.
pub(super) fn is_stage(path: &Path) -> bool {
    stage_word(path).is_some()
}
