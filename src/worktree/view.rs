//! A read-only view of the worktrees of a workspace.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::look::Found;
use super::remove::some;
use super::{BRANCHES, Holder, Loss, Saved, TreeError, Trees, short_branch};
use crate::base::ids::BeadId;
use crate::base::time::Time;
use crate::disk::fs::{self, OnVolume as _};
use crate::git::repo::{self, git_dir};
use crate::git::{Git, Lock};

/// One bead's worktree, which may exist only in part.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub id: BeadId,
    pub path: PathBuf,
    pub branch: String,
    pub base_branch: Option<String>,
    pub base_commit: Option<String>,
    /// The commit at the tip of its branch.
    pub head: Option<String>,
    /// True if its directory exists.
    pub is_there: bool,
    /// True if only the branch exists and the registration is not locked to await the directory.
    pub branch_alone: bool,
    /// Number of commits that only the branch has, and that only the base has.
    pub ahead: Option<u64>,
    pub behind: Option<u64>,
    pub dirty: Vec<String>,
    /// True if the base contains everything in it.
    pub merged: bool,
    pub holder: Option<Holder>,
    pub holder_lives: bool,
    /// The reason why no step may use it, and a hint on how to continue.
    pub problem: Option<(String, String)>,
    /// Refs of work that was saved under its id.
    pub saved: Vec<Saved>,
    /// Time of its creation or of its last commit, the later of the two.
    pub touched_at: Option<Time>,
    /// Its content that is not in the base, or `None` if it cannot be inspected.
    pub loss: Option<Loss>,
    /// Ignored files, which are removed with it.
    pub ignored: Vec<String>,
}

/// The outcome of a removal without force, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Goes(String),
    Stays(String),
}

impl View {
    /// Returns the outcome of a removal without force. `remove` applies the same rules, but also
    /// removes some worktrees with a problem.
    pub(crate) fn fate(&self) -> Fate {
        let loss = match (&self.problem, &self.loss) {
            // If only the branch is left, the directory's content is lost already.
            (Some((problem, _)), _) if !self.branch_alone => return Fate::Stays(problem.clone()),
            (_, None) => return Fate::Stays("it cannot be looked into".into()),
            (_, Some(loss)) => loss,
        };
        if let Some(holder) = self.holder.as_ref().filter(|_| self.holder_lives) {
            return Fate::Stays(format!("{holder} works there"));
        }
        if !loss.nested.is_empty() {
            let nested = some(&loss.nested);
            return Fate::Stays(format!("it has repositories of its own in it: {nested}"));
        }
        if !loss.is_none() {
            return Fate::Stays(format!("it has {}", loss.tell()));
        }
        let why = match self.is_empty() {
            true => "nothing was done in it".to_owned(),
            false => format!("everything in it is in `{}`", loss.base),
        };
        Fate::Goes(match loss.strays.as_slice() {
            [] => why,
            _ => format!("{why}; commits that were taken off its branch are kept under a ref"),
        })
    }

    /// Returns true if no work was done in it yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.merged && self.head == self.base_commit
    }
}

/// Returns the message of an error and its hint.
fn told(error: &TreeError) -> (String, String) {
    (error.to_string(), error.cure().unwrap_or_default())
}

impl Trees {
    /// Returns all worktrees and all branches of beads, by id.
    pub(crate) fn views(&self) -> Result<Vec<View>, TreeError> {
        let lock = self.repo.lock("listing worktrees")?;
        let saved = self.saved()?;
        let ids = self.ids(&lock)?;
        ids.iter().map(|id| self.view(&lock, id, &saved)).collect()
    }

    fn ids(&self, lock: &Lock) -> Result<BTreeSet<BeadId>, TreeError> {
        let git = lock.git(&self.repo.workspace)?;
        let dir = self.dir();
        let mut names: Vec<String> = Vec::new();
        for entry in self.listed(&git)? {
            let ours = entry.path.parent() == Some(dir.as_path());
            let name = entry.path.file_name().filter(|_| ours);
            names.extend(name.map(|name| name.to_string_lossy().into_owned()));
        }
        let branches = git.text(&["for-each-ref", "--format=%(refname)", BRANCHES])?;
        names.extend(
            branches.lines().filter_map(|name| name.strip_prefix(BRANCHES).map(str::to_owned)),
        );
        let lying = fs::read_dir(&dir).into_iter().flatten().flatten();
        let lying = lying.filter(|entry| entry.path().is_present_dir());
        names.extend(lying.map(|entry| entry.file_name().to_string_lossy().into_owned()));
        Ok(names.iter().filter_map(|name| BeadId::parse(name).ok()).collect())
    }

    fn view(&self, lock: &Lock, id: &BeadId, saved: &[Saved]) -> Result<View, TreeError> {
        let found = match self.look(lock, id) {
            Ok(found) => found,
            // One unreadable worktree must not hide the others.
            Err(error @ TreeError::Found { .. }) => {
                return Ok(View { problem: Some(told(&error)), ..self.bare(id) });
            }
            Err(error) => return Err(error),
        };
        let base = self.base_of(id, &found).ok();
        let problem = match self.verified(id, &found) {
            Ok(tree) if !self.is_branch(&tree.base_branch)? => {
                Some(told(&self.baseless(id, &tree.base_branch)))
            }
            Ok(_) => self.elsewhere(id, &found).as_ref().map(told),
            // A branch alone is not a problem: the directory is recreated when it is needed.
            Err(_) if found.entry.is_none() && found.is_branch_alone() => None,
            Err(error) => Some(told(&error)),
        };
        // An unreadable lease is reported when a step takes the worktree.
        let holder = self.holder(id).ok().flatten();
        let mut view = View {
            base_branch: base.as_ref().map(|(branch, _)| branch.clone()),
            base_commit: base.map(|(_, commit)| commit),
            head: found.tip.clone(),
            is_there: found.is_there,
            branch_alone: found.is_branch_alone(),
            holder_lives: holder.as_ref().is_some_and(Holder::may_live),
            holder,
            problem,
            saved: saved.iter().filter(|saved| saved.id == *id).cloned().collect(),
            ..self.bare(id)
        };
        self.count(&mut view, &found)?;
        Ok(view)
    }

    /// Returns a view with only the name filled in.
    fn bare(&self, id: &BeadId) -> View {
        View {
            id: id.clone(),
            path: self.path(id),
            branch: short_branch(id),
            base_branch: None,
            base_commit: None,
            head: None,
            is_there: self.path(id).is_present_dir(),
            branch_alone: false,
            ahead: None,
            behind: None,
            dirty: Vec::new(),
            merged: false,
            holder: None,
            holder_lives: false,
            problem: None,
            saved: Vec::new(),
            touched_at: None,
            loss: None,
            ignored: Vec::new(),
        }
    }

    /// Fills in the distance between a branch and its base, and the uncommitted changes.
    fn count(&self, view: &mut View, found: &Found) -> Result<(), TreeError> {
        let git = self.git();
        if let (Some(base), Some(tip)) = (&view.base_branch, &found.tip) {
            let here = git.commit(&repo::branch(base))?;
            let base = match here {
                Some(commit) => Some(commit),
                None => git.commit(&repo::of_remote(base))?,
            };
            if let Some(base) = base {
                let range = format!("{base}...{tip}");
                let counts = git.text(&["rev-list", "--left-right", "--count", &range])?;
                let mut counts = counts.split_whitespace().map(|count| count.parse().ok());
                view.behind = counts.next().flatten();
                view.ahead = counts.next().flatten();
            }
        }
        if let Some(tip) = &found.tip {
            let seconds = git.text(&["log", "-1", "--format=%ct", tip])?;
            let made = found.record.as_ref().map(|record| record.created_at);
            let committed = seconds.parse::<i64>().ok().map(|seconds| Time(seconds * 1000));
            view.touched_at = committed.max(made);
        }
        let git_dir = match found.entry.is_some() && found.is_there {
            false => None,
            // Do not inspect a worktree that is not linked to this repository: git would execute
            // commands from its settings.
            true if self.linked(&view.id).is_err() => return Ok(()),
            true => git_dir(&Git::at(&view.path)).ok(),
        };
        let loss = self.loss_of(&view.id, found, git_dir.as_deref());
        // A worktree that cannot be inspected has a problem, which is reported.
        if let Ok(loss) = loss {
            view.merged = loss.is_none();
            (view.dirty, view.ignored) = (loss.dirty.clone(), loss.ignored.clone());
            view.loss = Some(loss);
        }
        Ok(())
    }
}
