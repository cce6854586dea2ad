//! The state of a worktree on disk, and the checks before a step may use it.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::remove::some;
use super::{DIR, Record, TreeError, Trees, branch, short_branch};
use crate::base::ids::BeadId;
use crate::disk::fs::{self, OnVolume as _};
use crate::git::repo::{self, Entry, git_dir, top_level};
use crate::git::{Git, Lock};

/// A worktree that was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Worktree {
    pub id: BeadId,
    pub path: PathBuf,
    /// The directory in it that corresponds to the workspace: the worktree itself, unless the
    /// workspace is a subdirectory of the repository.
    pub workspace: PathBuf,
    /// Git's administrative directory for it.
    pub git_dir: PathBuf,
    /// Short name, `coven/<id>`.
    pub branch: String,
    pub base_branch: String,
    pub base_commit: String,
}

impl Worktree {
    pub(crate) fn git(&self) -> Git {
        Git::at(&self.path)
    }
}

/// Everything found under the name of a bead.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub entry: Option<Entry>,
    /// True if its path exists, as any kind of file.
    pub is_there: bool,
    /// The commit at the tip of its branch.
    pub tip: Option<String>,
    /// Another worktree that has its branch checked out, or rebases or bisects it on a detached
    /// HEAD.
    pub elsewhere: Option<PathBuf>,
    /// Other worktrees inside its directory.
    pub inside: Vec<PathBuf>,
    pub record: Option<Record>,
}

impl Found {
    pub(super) fn is_nothing(&self) -> bool {
        self.entry.is_none() && !self.is_there && self.tip.is_none()
    }

    /// Returns the workspace of the same worktree under another path, if there is one: it may be
    /// this workspace, as another machine sees it.
    fn other_workspace(&self, id: &BeadId) -> Option<&Path> {
        let path = self.elsewhere.as_deref()?;
        let ending = Path::new(DIR).join(id.as_str());
        path.ends_with(&ending).then(|| path.ancestors().nth(ending.components().count()))?
    }

    /// Returns true if only the branch exists: the directory is gone, the registration is not
    /// locked, and no other worktree of the repository has the branch.
    pub(super) fn is_branch_alone(&self) -> bool {
        let locked = self.entry.as_ref().is_some_and(|entry| entry.locked.is_some());
        !self.is_there && !locked && self.tip.is_some() && self.elsewhere.is_none()
    }
}

/// Files that git keeps in a worktree's administrative directory during an operation, and the name
/// of that operation.
const UNDER_WAY: [(&str, &str); 7] = [
    ("MERGE_HEAD", "a merge"),
    ("rebase-merge", "a rebase"),
    ("rebase-apply", "a rebase"),
    ("CHERRY_PICK_HEAD", "a cherry-pick"),
    ("REVERT_HEAD", "a revert"),
    ("BISECT_LOG", "a bisection"),
    ("sequencer", "a cherry-pick or a revert of several commits"),
];

/// Returns the git operation that is in progress in a worktree.
pub(super) fn under_way(git_dir: &Path) -> Option<&'static str> {
    let there = |name: &str| fs::symlink_metadata(git_dir.join(name)).is_ok();
    UNDER_WAY.iter().find(|(name, _)| there(name)).map(|(_, what)| *what)
}

/// Returns true if a file exists and persists. Even `git status` locks the index for a moment.
pub(super) fn stays(path: &Path) -> bool {
    let began = Instant::now();
    while path.is_present() {
        if began.elapsed() >= MOMENTS {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

const MOMENTS: Duration = Duration::from_secs(2);

/// Returns the administrative directory that a worktree's `.git` file names.
pub(super) fn named_dir(path: &Path) -> Option<PathBuf> {
    let link = path.join(".git");
    let is_file = fs::symlink_metadata(&link).is_ok_and(|kind| kind.is_file());
    let said = fs::read_to_string(&link).ok().filter(|_| is_file)?;
    Some(path.join(said.strip_prefix("gitdir: ")?.trim_end_matches('\n')))
}

/// Returns true if a worktree has a detached HEAD because this branch is being rebased or bisected
/// there.
pub(super) fn works_at(entry: &Entry, name: &str) -> bool {
    if entry.branch.is_some() || !entry.path.is_present_dir() {
        return false;
    }
    // Do not ask git: every worktree is checked for each bead.
    let git_dir = named_dir(&entry.path).unwrap_or_else(|| entry.path.join(".git"));
    let short = name.trim_start_matches("refs/heads/");
    ["rebase-merge/head-name", "rebase-apply/head-name", "BISECT_START"].iter().any(|file| {
        let head = fs::read_to_string(git_dir.join(file)).unwrap_or_default();
        [name, short].contains(&head.trim())
    })
}

impl Trees {
    pub(super) fn look(&self, lock: &Lock, id: &BeadId) -> Result<Found, TreeError> {
        let git = lock.git(&self.repo.workspace)?;
        let (path, branch) = (self.path(id), branch(id));
        self.is_its_own(&git, id)?;
        let mut found = Found {
            entry: None,
            is_there: fs::symlink_metadata(&path).is_ok(),
            tip: git.commit(&branch)?,
            elsewhere: None,
            inside: Vec::new(),
            record: self.record(id)?,
        };
        for entry in self.listed(&git)? {
            if entry.path == path {
                found.entry = Some(entry);
                continue;
            }
            if entry.path.starts_with(&path) {
                found.inside.push(entry.path.clone());
            }
            if entry.branch.as_ref() == Some(&branch) || works_at(&entry, &branch) {
                found.elsewhere = Some(entry.path);
            }
        }
        Ok(found)
    }

    /// Rejects a bead's branch that is a symbolic ref: every change to it would change its target.
    fn is_its_own(&self, git: &Git, id: &BeadId) -> Result<(), TreeError> {
        let Some(other) = repo::symbolic(git, &branch(id))? else { return Ok(()) };
        let other = other.trim_start_matches("refs/heads/");
        Err(TreeError::found(
            format!("`{}` is no branch of its own: it stands for `{other}`", short_branch(id)),
            format!("`git symbolic-ref --delete {}` ends that, and leaves `{other}`", branch(id)),
        ))
    }

    /// Returns the error for a branch that another worktree has. The content of that worktree is
    /// not visible from here, so the branch must not be changed.
    pub(super) fn elsewhere(&self, id: &BeadId, found: &Found) -> Option<TreeError> {
        let path = found.elsewhere.as_ref()?;
        let cure = match (path.is_present_dir(), found.other_workspace(id)) {
            (false, _) => {
                "that directory is not there: `git worktree prune` forgets it, once you know that \
                 it is not of another machine"
                    .into()
            }
            (true, Some(workspace)) => {
                format!("it belongs to another workspace: `cd {}` first", workspace.display())
            }
            (true, None) => "it is no worktree of this workspace: switch it to another branch, or \
                             remove it"
                .into(),
        };
        let what = format!("`{}` is checked out in `{}`", short_branch(id), path.display());
        Some(TreeError::Found { what, cure })
    }

    /// Returns the git operation that is in progress in a worktree, for every storage format of
    /// refs.
    pub(super) fn under_way(&self, git_dir: &Path) -> Result<Option<&'static str>, TreeError> {
        if let Some(what) = under_way(git_dir) {
            return Ok(Some(what));
        }
        for (name, what) in UNDER_WAY.iter().filter(|(name, _)| name.ends_with("_PICK_HEAD")) {
            if self.pseudo_ref(git_dir, name)?.is_some() {
                return Ok(Some(what));
            }
        }
        Ok(None)
    }

    /// Returns the commit of a per-worktree ref that is not a file, as in the reftable format.
    pub(super) fn pseudo_ref(
        &self,
        git_dir: &Path,
        name: &str,
    ) -> Result<Option<String>, TreeError> {
        match self.repo.common.join("reftable").is_present_dir() {
            true => Ok(self.git().env("GIT_DIR", git_dir).commit(name)?),
            false => Ok(None),
        }
    }

    /// Checks that a worktree is registered, complete and on its branch, with no git operation in
    /// progress, before a step may use it. The error describes what was found instead.
    pub(crate) fn verify(&self, id: &BeadId) -> Result<Worktree, TreeError> {
        let lock = self.repo.lock(&format!("verifying worktree `{id}`"))?;
        let found = self.look(&lock, id)?;
        self.verified(id, &found)
    }

    /// Checks that a worktree still belongs to its repository, before git runs in it: a process
    /// that works there may have pointed it at another repository, whose settings git would
    /// execute.
    pub(crate) fn linked(&self, id: &BeadId) -> Result<(), TreeError> {
        let path = self.path(id);
        if !path.is_present_dir() {
            return Err(self.lost_directory(id));
        }
        let (common, shown) = (&self.repo.common, path.display());
        let is_ours = || -> Option<bool> {
            let dir = named_dir(&path)?.canonicalize().ok()?;
            let shared = fs::read_to_string(dir.join("commondir")).ok()?;
            let shared = dir.join(shared.trim_end_matches('\n')).canonicalize().ok()?;
            Some(dir.parent()? == common.join("worktrees") && &shared == common)
        };
        match is_ours() {
            Some(true) => Ok(()),
            _ => Err(TreeError::Found {
                what: format!("`{shown}` is no worktree any more: its file `.git` was changed"),
                cure: "nothing in it is trusted now; `git worktree repair` may help, after a look \
                       at what is there"
                    .into(),
            }),
        }
    }

    fn lost_directory(&self, id: &BeadId) -> TreeError {
        TreeError::found(
            format!("the directory of worktree `{id}` is gone: `{}`", self.path(id).display()),
            format!("`orchestrate worktree add {id}` makes it again from its branch"),
        )
    }

    pub(super) fn verified(&self, id: &BeadId, found: &Found) -> Result<Worktree, TreeError> {
        let is_unmade = found.record.as_ref().is_some_and(|record| !record.ready);
        if is_unmade && found.is_there {
            return Err(TreeError::found(
                format!("worktree `{id}` is not finished: whoever made it was stopped"),
                format!("`orchestrate worktree add {id}` goes on with it"),
            ));
        }
        self.fitting(id, found)
    }

    /// Does the same as `verified`, for a worktree that may never have been complete.
    pub(super) fn fitting(&self, id: &BeadId, found: &Found) -> Result<Worktree, TreeError> {
        let path = self.path(id);
        let shown = path.display();
        let stop = |what: String, cure: String| Err(TreeError::Found { what, cure });
        let Some(entry) = &found.entry else {
            let elsewhere =
                found.elsewhere.as_ref().filter(|_| found.other_workspace(id).is_some());
            return match (found.is_there, elsewhere) {
                (false, _) => Err(self.elsewhere(id, found).unwrap_or_else(|| {
                    TreeError::found(
                        format!("there is no worktree `{id}`"),
                        format!("`orchestrate worktree add {id}` makes it"),
                    )
                })),
                (true, Some(other)) => stop(
                    format!("git knows worktree `{id}` as `{}`, not as `{shown}`", other.display()),
                    format!(
                        "a workspace must have the same path on all machines; if it was moved for \
                         good, `git worktree repair {shown}`"
                    ),
                ),
                (true, None) => stop(
                    format!("`{shown}` is there, but git does not know it as a worktree"),
                    "look what it is and move it away; or `git worktree repair` it, if it was \
                     moved here"
                        .into(),
                ),
            };
        };
        if let Some(reason) = &entry.locked {
            let reason = if reason.is_empty() { "no reason is given" } else { reason };
            return stop(
                format!("worktree `{id}` is locked: {reason}"),
                format!("`git worktree unlock {shown}`, once you know that nobody needs the lock"),
            );
        }
        self.linked(id)?;
        let git = Git::at(&path);
        let top = top_level(&git)?;
        if top.canonicalize().ok().as_ref() != path.canonicalize().ok().as_ref() {
            return stop(
                format!("`{shown}` is no worktree any more: git takes it for `{}`", top.display()),
                "its file `.git` is missing or wrong: `git worktree repair` may help".into(),
            );
        }
        let git_dir = git_dir(&git)?;
        // Check this before the branch: a rebase detaches HEAD while it runs.
        if let Some(what) = self.under_way(&git_dir)? {
            return stop(
                format!("{what} is under way in worktree `{id}`"),
                format!("finish or abort it in `{shown}`; `git -C {shown} status` tells how"),
            );
        }
        let conflicts = self.conflicts(&git)?;
        if !conflicts.is_empty() {
            return stop(
                format!("files are in conflict in worktree `{id}`: {}", some(&conflicts)),
                format!(
                    "resolve them in `{shown}`, and `git add` them; `git -C {shown} status` tells \
                     how"
                ),
            );
        }
        let wanted = short_branch(id);
        if entry.branch.as_deref() != Some(branch(id).as_str()) {
            let at = match (&entry.branch, &entry.head) {
                (Some(branch), _) => format!("on `{}`", branch.trim_start_matches("refs/heads/")),
                (None, Some(head)) => format!("at commit {head} and on no branch"),
                (None, None) => "on no branch".into(),
            };
            return stop(
                format!("worktree `{id}` is {at}, but must be on `{wanted}`"),
                format!("`git -C {shown} switch {wanted}`, after a look at what is there"),
            );
        }
        if found.tip.is_none() {
            return stop(
                format!("the branch `{wanted}` of worktree `{id}` is gone"),
                format!("`git -C {shown} reflog` shows where it was"),
            );
        }
        if stays(&git_dir.join("index.lock")) {
            return stop(
                format!("a git command is at work in worktree `{id}`, or was killed there"),
                format!("if none is, remove `{}`", git_dir.join("index.lock").display()),
            );
        }
        let (base_branch, base_commit) = self.base_of(id, found)?;
        let workspace = path.join(&self.repo.prefix);
        Ok(Worktree {
            id: id.clone(),
            path,
            workspace,
            git_dir,
            branch: wanted,
            base_branch,
            base_commit,
        })
    }

    /// Returns the base branch and commit of a worktree: as recorded, or else derived from its
    /// branch.
    pub(super) fn base_of(
        &self,
        id: &BeadId,
        found: &Found,
    ) -> Result<(String, String), TreeError> {
        if let Some(record) = &found.record {
            return Ok((record.base_branch.clone(), record.base_commit.clone()));
        }
        let unknown = || {
            TreeError::found(
                format!("nobody knows what the worktree `{id}` began at"),
                "name the branch: `orchestrate worktree add ID --base BRANCH`",
            )
        };
        let base = self.repo.default_base()?.ok_or_else(unknown)?;
        let tip = found.tip.as_deref().unwrap_or("HEAD");
        let commit = self.merge_base(&base, tip)?.ok_or_else(unknown)?;
        Ok((base, commit))
    }

    /// Returns true if a branch exists, locally or at the last known state of the remote.
    pub(super) fn is_branch(&self, name: &str) -> Result<bool, TreeError> {
        let git = self.git();
        let here = git.commit(&repo::branch(name))?.is_some();
        Ok(here || git.commit(&repo::of_remote(name))?.is_some())
    }

    /// Returns the error for a branch that has no common commit with its base.
    pub(super) fn apart(&self, id: &BeadId, base: &str) -> TreeError {
        match self.is_branch(base) {
            Ok(false) => self.baseless(id, base),
            Err(error) => error,
            Ok(true) => TreeError::found(
                format!("`{}` and `{base}` have no commit in common", short_branch(id)),
                "name the branch that it began at, with `--base`",
            ),
        }
    }

    /// Returns the error for a worktree whose base is gone.
    pub(super) fn baseless(&self, id: &BeadId, base: &str) -> TreeError {
        TreeError::found(
            format!("the base of worktree `{id}` is gone: there is no branch `{base}`"),
            format!(
                "`orchestrate worktree add {id} --base BRANCH` gives it another one; or bring \
                 `{base}` back"
            ),
        )
    }

    /// Returns the last common commit of a branch and its base: the local base or the remote's, the
    /// later of the two results.
    pub(super) fn merge_base(&self, base: &str, tip: &str) -> Result<Option<String>, TreeError> {
        let git = self.git();
        let mut best: Option<String> = None;
        for name in [repo::branch(base), repo::of_remote(base)] {
            if git.commit(&name)?.is_none() || !git.is(&["merge-base", &name, tip])? {
                continue;
            }
            let common = git.text(&["merge-base", &name, tip])?;
            match &best {
                Some(known) if !git.contains(&common, known)? => {}
                _ => best = Some(common),
            }
        }
        Ok(best)
    }

    /// Returns the files with unresolved merge conflicts.
    fn conflicts(&self, git: &Git) -> Result<Vec<String>, TreeError> {
        let lines = git.names(&["ls-files", "-z", "--unmerged"])?;
        let names = lines.iter().filter_map(|line| line.split_once('\t'));
        let mut names: Vec<String> = names.map(|(_, name)| name.to_owned()).collect();
        // Each side has a separate line.
        names.dedup();
        Ok(names)
    }

    /// Returns the files of a worktree that differ from its last commit, without ignored files.
    pub(crate) fn dirty(&self, git: &Git) -> Result<Vec<String>, TreeError> {
        let (git, _index) = self.seeing(git)?;
        let all = ["--untracked-files=all", "--ignore-submodules=none", "--no-renames"];
        let lines = git.names(&[&["status", "--porcelain", "-z"], &all[..]].concat())?;
        let names = lines.iter().filter_map(|line| line.get(3..).map(str::to_owned));
        // A file that was removed from the index but still exists has two lines.
        let mut known = HashSet::new();
        Ok(names.filter(|name| known.insert(name.clone())).collect())
    }

    /// Returns the directories in a worktree that are separate repositories, whose files git does
    /// not add. Includes ignored ones if `ignored` is set. Their names need not be UTF-8.
    pub(super) fn nested(&self, git: &Git, ignored: bool) -> Result<Vec<Vec<u8>>, TreeError> {
        let mut args = vec!["ls-files", "-z", "--others"];
        args.extend((!ignored).then_some("--exclude-standard"));
        let others = git.bytes(&args)?;
        let nested = others.split(|byte| *byte == 0).filter_map(|name| name.strip_suffix(b"/"));
        Ok(nested.map(<[u8]>::to_vec).collect())
    }

    /// Returns all repositories in a worktree, whose contents no commit of it has: those whose
    /// files git does not add, and those that a commit contains only as a link.
    pub(super) fn repositories(&self, git: &Git) -> Result<Vec<Vec<u8>>, TreeError> {
        let mut found = self.nested(git, true)?;
        let staged = git.bytes(&["ls-files", "-z", "--stage"])?;
        let links = staged.split(|byte| *byte == 0).filter(|line| line.starts_with(b"160000 "));
        for link in links {
            let Some(tab) = link.iter().position(|byte| *byte == b'\t') else { continue };
            let name = &link[tab + 1..];
            let inside = git.dir().join(OsStr::from_bytes(name)).join(".git");
            if fs::symlink_metadata(&inside).is_ok() {
                found.push(name.to_vec());
            }
        }
        Ok(found)
    }
}
