//! Creates a worktree, or adopts an existing one: after a crash, the same call finds the leftovers
//! of the last one and continues.

use std::path::Path;

use super::half_created::INITIALIZING;
use super::look::Found;
use super::record::RECORD;
use super::remote_sync::{Expects, Has};
use super::{BRANCHES, Record, TreeError, Trees, Worktree, arg, branch, short_branch};
use crate::base::ids::BeadId;
use crate::disk::fs::{self, OnVolume as _};
use crate::git::repo::{self, REMOTE};
use crate::git::{Git, GitError, Lock};

/// The way in which a worktree was obtained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// New, from its base.
    Made,
    /// It existed and is used with its current content.
    Reused,
    /// Its branch existed, its directory did not.
    Remade,
    /// Its branch comes from the remote.
    Fetched,
}

/// A worktree that is ready for use.
#[derive(Clone, Debug)]
pub(crate) struct Created {
    pub tree: Worktree,
    pub way: Way,
    /// Uncommitted files: a step was interrupted there.
    pub dirty: Vec<String>,
    pub warnings: Vec<String>,
}

/// The starting point of a new branch.
struct Start {
    /// The base branch, and its commit at which the work started.
    branch: String,
    commit: String,
    /// The current tip of the work.
    tip: String,
    warnings: Vec<String>,
    /// True if the remote did not answer; it is not asked again.
    silent: bool,
}

impl Trees {
    /// Creates the worktree of a bead, or adopts the existing one.
    pub(crate) fn create(&self, id: &BeadId, base: Option<&str>) -> Result<Created, TreeError> {
        self.create_after(id, base, &Expects::default())
    }

    /// Does the same, to continue earlier work. Returns an error and creates nothing if that work
    /// is not available.
    pub(crate) fn create_after(
        &self,
        id: &BeadId,
        base: Option<&str>,
        expects: &Expects,
    ) -> Result<Created, TreeError> {
        let doing = format!("making worktree `{id}`");
        let mut lock = self.repo.lock(&doing)?;
        let mut found = self.look_settled(&lock, id)?;
        let is_new = found.record.is_none() && found.tip.is_none();
        if is_new {
            self.alone_of_its_name(id)?;
            self.has_room(id)?;
        }
        let mut start = None;
        if found.is_nothing() {
            // The remote may be slow, and other processes need not wait for it.
            drop(lock);
            start = Some(self.begin(id, base, expects)?);
            lock = self.repo.lock(&doing)?;
            found = self.look_settled(&lock, id)?;
        }
        let (way, warnings) = match start {
            Some(start) if found.is_nothing() => {
                if is_new {
                    // Check again: another process may have created one meanwhile.
                    self.alone_of_its_name(id)?;
                    self.has_room(id)?;
                }
                let warnings = start.warnings.clone();
                let way = if start.tip == start.commit { Way::Made } else { Way::Fetched };
                self.make(&lock, id, start)?;
                (way, warnings)
            }
            _ => self.take_up(&lock, id, base, &found)?,
        };
        let found = self.look(&lock, id)?;
        let tree = self.fitting(id, &found)?;
        if let Some(record) = found.record.filter(|record| !record.ready) {
            self.write_record(&Record { ready: true, ..record })?;
        }
        let mut warnings = warnings;
        if matches!(way, Way::Made | Way::Fetched | Way::Remade)
            && tree.path.join(".gitmodules").is_present()
        {
            warnings.push(
                "its submodules are not checked out; `git submodule update --init` in it does that"
                    .into(),
            );
        }
        let dirty = self.dirty(&tree.git())?;
        Ok(Created { tree, way, dirty, warnings })
    }

    /// Rejects a bead whose id differs from another one only in case: on a file system that ignores
    /// case, both would share one worktree and one branch.
    pub(super) fn alone_of_its_name(&self, id: &BeadId) -> Result<(), TreeError> {
        let remote = repo::of_remote(&short_branch(id));
        let remote = remote.strip_suffix(id.as_str()).unwrap_or(&remote);
        let refs = self.git().text(&["for-each-ref", "--format=%(refname)", BRANCHES, remote])?;
        let mut names: Vec<String> = refs
            .lines()
            .filter_map(|name| name.strip_prefix(BRANCHES).or(name.strip_prefix(remote)))
            .map(str::to_owned)
            .collect();
        let listed = |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten();
        // A worktree that was never created may have left a lock, but no record.
        let known = listed(&self.repo.home().join("worktrees"));
        let known = known.filter(|entry| entry.path().join(RECORD).is_present());
        for entry in listed(&self.dir()).chain(known) {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
        let alike = |name: &&String| *name != id.as_str() && name.eq_ignore_ascii_case(id.as_str());
        match names.iter().find(alike) {
            None => Ok(()),
            Some(other) => Err(TreeError::found(
                format!("bead `{id}` differs from bead `{other}` by capital letters only"),
                format!(
                    "give it another id, or remove the other: `orchestrate worktree rm {other}`"
                ),
            )),
        }
    }

    /// Rejects a bead whose branch cannot exist next to another one: git stores branches like
    /// files, so a name is either a directory or a file.
    pub(super) fn has_room(&self, id: &BeadId) -> Result<(), TreeError> {
        let (top, own) = (BRANCHES.trim_end_matches('/'), branch(id));
        let git = self.git();
        let names = git.text(&["for-each-ref", "--format=%(refname)", top])?;
        let below = format!("{own}/");
        let is_in_the_way = |name: &&str| *name == top || name.starts_with(&below);
        let Some(other) = names.lines().find(is_in_the_way) else { return Ok(()) };
        let other = other.trim_start_matches("refs/heads/");
        let name = short_branch(id);
        Err(TreeError::found(
            format!("the branch `{other}` is in the way: git cannot have `{name}` beside it"),
            format!("give it another name: `git branch -m {other} NAME`"),
        ))
    }

    /// Checks, before anything is started, that work on a bead can start at a branch: the branch
    /// exists, and, if `insists` is set, an existing worktree started at it.
    pub(crate) fn may_begin_at(
        &self,
        id: &BeadId,
        base: &str,
        insists: bool,
    ) -> Result<(), TreeError> {
        if let Some(record) = self.record(id)? {
            let began = &record.base_branch;
            return match insists && began != base && self.is_branch(began)? {
                false => Ok(()),
                true => Err(TreeError::found(
                    format!("worktree `{id}` began at `{began}`, not at `{base}`"),
                    format!(
                        "leave the base out to go on and to merge into `{began}`; or remove the \
                         worktree first: `orchestrate worktree rm {id}`"
                    ),
                )),
            };
        }
        self.is_name(base)?;
        if self.is_branch(base)? {
            return Ok(());
        }
        if self.repo.has_remote()? {
            let asked = self.remote_git().text(&["ls-remote", REMOTE, &repo::branch(base)]);
            // A remote that does not answer is asked again when the work starts.
            if asked.map_or(true, |listed| !listed.is_empty()) {
                return Ok(());
            }
        }
        Err(no_branch(base))
    }

    fn is_name(&self, name: &str) -> Result<(), TreeError> {
        if self.git().is(&["check-ref-format", "--branch", name]).unwrap_or(false) {
            return Ok(());
        }
        let what = format!("`{name}` cannot be the name of a branch");
        Err(TreeError::found(what, "name a branch of the repository"))
    }

    fn make(&self, lock: &Lock, id: &BeadId, start: Start) -> Result<(), TreeError> {
        self.make_dir()?;
        let (path, name) = (self.path(id), short_branch(id));
        self.begin_record(id, start.branch, start.commit, None)?;
        let git = self.adding_git(lock)?;
        let tip = start.tip.as_str();
        git.run(&["worktree", "add", "--quiet", "--no-track", "-b", &name, arg(&path)?, tip])?;
        Ok(())
    }

    /// Returns a `git` for checkouts. In a partial clone, it fetches missing files from the remote.
    fn adding_git(&self, lock: &Lock) -> Result<Git, TreeError> {
        Ok(lock.git(&self.repo.workspace)?.until(self.stop.clone()))
    }

    /// Adopts the result of an earlier call, complete or not.
    pub(super) fn take_up(
        &self,
        lock: &Lock,
        id: &BeadId,
        base: Option<&str>,
        found: &Found,
    ) -> Result<(Way, Vec<String>), TreeError> {
        let mut warnings = Vec::new();
        if let (Some(base), Some(record)) = (base, &found.record)
            && base != record.base_branch
        {
            let began = &record.base_branch;
            warnings.push(match self.is_branch(began)? {
                true => format!("worktree `{id}` began at `{began}`, not at `{base}`"),
                false => {
                    self.move_to_base(id, record, base, found)?;
                    format!(
                        "`{began}`, which worktree `{id}` began at, is gone; from now on it is \
                         merged into `{base}`"
                    )
                }
            });
        }
        if found.is_there {
            return Ok((Way::Reused, warnings));
        }
        if let Some(error) = self.elsewhere(id, found) {
            return Err(error);
        }
        let name = short_branch(id);
        let Some(tip) = &found.tip else {
            let path = self.path(id);
            return Err(TreeError::found(
                format!("worktree `{id}` is registered, but its branch `{name}` is gone"),
                format!("`git worktree remove {}` forgets it", path.display()),
            ));
        };
        self.remake(lock, id, base, found, tip)?;
        Ok((Way::Remade, warnings))
    }

    /// Gives a worktree another base, because its original base is gone.
    fn move_to_base(
        &self,
        id: &BeadId,
        record: &Record,
        base: &str,
        found: &Found,
    ) -> Result<(), TreeError> {
        if !self.is_branch(base)? {
            return Err(no_branch(base));
        }
        let tip = found.tip.as_deref().unwrap_or("HEAD");
        let common = self.merge_base(base, tip)?;
        let base_commit = common.map_or_else(|| Err(self.apart(id, base)), Ok)?;
        let base_branch = base.to_owned();
        self.write_record(&Record { base_branch, base_commit, ..record.clone() })
    }

    /// Recreates the directory. Committed work is on the branch.
    fn remake(
        &self,
        lock: &Lock,
        id: &BeadId,
        base: Option<&str>,
        found: &Found,
        tip: &str,
    ) -> Result<(), TreeError> {
        let locked = found.entry.as_ref().and_then(|entry| entry.locked.as_deref());
        if locked.is_some_and(|reason| reason != INITIALIZING) {
            // Reports that it is locked, and the reason.
            return self.fitting(id, found).map(drop);
        }
        self.make_dir()?;
        let path = self.path(id);
        if let Some(record) = &found.record {
            // Until the worktree is complete again, its files contain no work.
            self.write_record(&Record { ready: false, ..record.clone() })?;
        }
        if let Some(entry) = &found.entry {
            // Save commits that only the worktree's reflog reaches; they would become unreachable.
            for stray in self.strays_of_entry(entry)? {
                self.keep(id, &stray)?;
            }
            self.take_away(lock, &path)?;
        }
        if found.record.is_none() {
            let base_branch = match base {
                Some(base) => base.to_owned(),
                None => self.base_of(id, found)?.0,
            };
            let common = self.merge_base(&base_branch, tip)?;
            let base_commit = common.map_or_else(|| Err(self.apart(id, &base_branch)), Ok)?;
            self.begin_record(id, base_branch, base_commit, None)?;
        }
        let args = ["worktree", "add", "--quiet", arg(&path)?, &short_branch(id)];
        self.adding_git(lock)?.run(&args)?;
        Ok(())
    }

    /// Creates the directory of all worktrees, and makes the surrounding working copy ignore it.
    pub(super) fn make_dir(&self) -> Result<(), TreeError> {
        let dir = self.dir();
        let make = |path: &Path| {
            fs::create_dir_all(path).map_err(|error| TreeError::io("make", path, error))
        };
        make(&dir)?;
        let real = dir.canonicalize().map_err(|error| TreeError::io("open", &dir, error))?;
        if real != dir {
            return Err(TreeError::found(
                format!("`{}` leads to `{}`", dir.display(), real.display()),
                "worktrees lie in the workspace itself: take the link away",
            ));
        }
        let ignore = dir.join(".gitignore");
        if !ignore.is_present() {
            fs::write(&ignore, "*\n").map_err(|error| TreeError::io("write", &ignore, error))?;
        }
        self.sweep_gone();
        Ok(())
    }

    /// Returns the starting point of a branch that does not exist locally: the remote's branch, or
    /// else its base.
    fn begin(
        &self,
        id: &BeadId,
        base: Option<&str>,
        expects: &Expects,
    ) -> Result<Start, TreeError> {
        let mut start = self.start(base)?;
        let (git, name) = (self.git(), short_branch(id));
        if self.repo.has_remote()? {
            let asked = if start.silent { None } else { Some(self.fetch_branch(id)) };
            let theirs = match asked.transpose() {
                Ok(None) => git.commit(&repo::of_remote(&name))?,
                Ok(Some(theirs)) => theirs,
                Err(GitError::Stopped { .. }) => return Err(TreeError::Stopped),
                Err(error) => {
                    let known = git.commit(&repo::of_remote(&name))?;
                    let warning = match known {
                        Some(_) => format!("`{REMOTE}/{name}` is as old as the last fetch"),
                        None => format!("cannot ask `{REMOTE}` for `{name}`: {error}"),
                    };
                    start.warnings.push(warning);
                    known
                }
            };
            if let Some(theirs) = theirs
                && !git.contains(&start.commit, &theirs)?
            {
                start.commit = self.merge_base(&start.branch, &theirs)?.ok_or_else(|| {
                    TreeError::found(
                        format!(
                            "`{REMOTE}/{name}` and `{}` have no commit in common",
                            start.branch
                        ),
                        "name the branch that it began at, with `--base`",
                    )
                })?;
                start.warnings.push(format!("the work goes on from `{REMOTE}/{name}`"));
                start.tip = theirs;
            }
        }
        if let Some(local) = git.commit(&repo::branch(&start.branch))?
            && !matches!(self.has(&[&start.tip, &start.commit], expects)?, Has::All)
            && matches!(self.has(&[&local], expects)?, Has::All)
        {
            // The work was merged locally, and the remote does not have the merge yet.
            (start.tip, start.commit) = (local.clone(), local);
        }
        match self.has(&[&start.tip, &start.commit], expects)? {
            Has::All => Ok(start),
            Has::Lacks(after) => Err(self.lacks(id, &after)),
            Has::Off(after) => Err(self.gone(id, &after)),
        }
    }

    /// Returns the starting point of a new branch: the base as the remote has it, or else the local
    /// one.
    fn start(&self, base: Option<&str>) -> Result<Start, TreeError> {
        let git = self.git();
        let name = match base {
            Some(base) => base.to_owned(),
            None => self.repo.default_base()?.ok_or_else(|| {
                TreeError::found(
                    "no branch is checked out, and there is neither `main` nor `master`",
                    "name the branch to begin at: `--base BRANCH`",
                )
            })?,
        };
        self.is_name(&name)?;
        let (mut warnings, mut silent) = (Vec::new(), false);
        let local = git.commit(&repo::branch(&name))?;
        if self.repo.has_remote()? {
            let fetched = self.fetch(&name);
            if let Err(GitError::Stopped { .. }) = fetched {
                return Err(TreeError::Stopped);
            }
            silent = matches!(fetched, Err(GitError::TimedOut { .. }));
            if let Err(error) = &fetched {
                warnings.push(format!("cannot fetch `{name}` from `{REMOTE}`: {error}"));
            }
            if let Some(commit) = git.commit(&repo::of_remote(&name))? {
                if fetched.is_err() {
                    warnings.push(format!("`{REMOTE}/{name}` is as old as the last fetch"));
                }
                if let Some(local) = &local
                    && !git.contains(&commit, local)?
                {
                    warnings.push(format!(
                        "`{name}` has commits that `{REMOTE}/{name}` does not; the worktree \
                         begins without them"
                    ));
                }
                return Ok(Start { branch: name, tip: commit.clone(), commit, warnings, silent });
            }
        }
        match local {
            Some(commit) => {
                warnings.push(format!("the worktree begins at the local `{name}`"));
                Ok(Start { branch: name, tip: commit.clone(), commit, warnings, silent })
            }
            None if git.commit("HEAD")?.is_none() && base.is_none() => Err(TreeError::found(
                "the repository has no commits yet",
                "make a first commit; work has to begin somewhere",
            )),
            None => Err(no_branch(&name)),
        }
    }

    pub(super) fn fetch(&self, name: &str) -> Result<(), GitError> {
        let what = format!("+{}:{}", repo::branch(name), repo::of_remote(name));
        let flags = ["--quiet", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head"];
        let args = [&["fetch"], &flags[..], &[REMOTE, &what]].concat();
        self.remote_git().run(&args)
    }
}

fn no_branch(name: &str) -> TreeError {
    TreeError::found(
        format!("there is no branch `{name}` to begin at"),
        "`git branch --all` lists those there are",
    )
}
