//! Removes a worktree: only one whose content is in the base, empty, or saved before.
//!
//! The order is: save under a ref, remove the directory, remove the branch, remove the record.
//! After a kill at any point, the next call continues with the rest: a directory disappears as a
//! whole ([`super::trash`]).

use std::collections::BTreeSet;
use std::path::Path;

use super::checkpoint::readable;
use super::look::Found;
use super::save::Scope;
use super::{Hold, HoldRequest, TreeError, Trees, branch};
use crate::base::ids::BeadId;
use crate::disk::fs;
use crate::git::repo::{self, git_dir, top_level};
use crate::git::{Git, Lock};

/// The work that would be lost with a worktree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Loss {
    /// Files that no commit has in their current form.
    pub dirty: Vec<String>,
    /// Number of commits that its branch or its HEAD has and the base does not.
    pub commits: usize,
    pub base: String,
    /// The git operation in progress there.
    pub under_way: Option<&'static str>,
    /// Repositories in it, whose contents cannot be saved.
    pub nested: Vec<String>,
    /// Ignored files and directories.
    pub ignored: Vec<String>,
    /// Commits that would become unreachable. They are saved in every case.
    pub strays: Vec<String>,
}

impl Loss {
    /// Returns true if the worktree contains no work.
    pub(crate) fn is_none(&self) -> bool {
        self.dirty.is_empty() && self.commits == 0 && self.under_way.is_none()
    }

    /// Describes the loss for messages.
    pub(crate) fn tell(&self) -> String {
        let mut parts = Vec::new();
        if !self.dirty.is_empty() {
            let count = self.dirty.len();
            let files = if count == 1 { "file" } else { "files" };
            parts.push(format!("{count} {files} not committed ({})", some(&self.dirty)));
        }
        if self.commits > 0 {
            let commits = if self.commits == 1 { "commit" } else { "commits" };
            parts.push(format!("{} {commits} not in `{}`", self.commits, self.base));
        }
        parts.extend(self.under_way.map(|what| format!("{what} under way")));
        parts.join(", ")
    }
}

/// Returns the first few names of a list, for messages.
pub(super) fn some(names: &[String]) -> String {
    const SHOWN: usize = 5;
    let shown: Vec<_> = names.iter().take(SHOWN).map(String::as_str).collect();
    let more = names.len().saturating_sub(SHOWN);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", shown.join(", "))
}

/// The result of a removal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Removed {
    /// The ref under which the content, or the otherwise unreachable commits, are saved.
    pub saved: Option<String>,
    /// True if the ref has the whole content, false if it has only commits that the branch had
    /// lost.
    pub whole: bool,
    /// Ignored files that are gone.
    pub ignored: Vec<String>,
}

impl Trees {
    /// Removes a worktree and its branch. If work would be lost, returns an error, or, with
    /// `force`, saves it first.
    pub(crate) fn remove(&self, id: &BeadId, force: Option<Scope>) -> Result<Removed, TreeError> {
        // From here on, no other process can take it, and the processes of a dead holder have
        // ended.
        let _held = self.hold(id, &HoldRequest::by_hand("rm"))?;
        self.remove_held(id, force)
    }

    /// Removes a merged worktree and its branch, for the process that holds it. Refuses a worktree
    /// with anything that the base does not have.
    pub(crate) fn remove_merged(&self, id: &BeadId, hold: &Hold) -> Result<Removed, TreeError> {
        hold.check()?;
        self.remove_held(id, None)
    }

    fn remove_held(&self, id: &BeadId, force: Option<Scope>) -> Result<Removed, TreeError> {
        let lock = self.repo.lock(&format!("removing worktree `{id}`"))?;
        self.sweep_gone();
        let found = self.look_settled(&lock, id)?;
        if found.is_nothing() {
            // The remains of a call that was killed at its end.
            let was = found.record.is_some();
            self.forget(id)?;
            return match was {
                true => Ok(Removed { saved: None, whole: false, ignored: Vec::new() }),
                false => Err(TreeError::found(
                    format!("there is no worktree `{id}`"),
                    "`orchestrate worktree ls` shows those there are",
                )),
            };
        }
        self.remove_found(&lock, id, &found, force)
    }

    fn remove_found(
        &self,
        lock: &Lock,
        id: &BeadId,
        found: &Found,
        force: Option<Scope>,
    ) -> Result<Removed, TreeError> {
        let git_dir = self.removable(id, found)?;
        let loss = self.loss_of(id, found, git_dir.as_deref())?;
        if !loss.nested.is_empty() {
            return Err(TreeError::found(
                format!(
                    "worktree `{id}` has repositories of its own in it: {}",
                    some(&loss.nested)
                ),
                "what is in them cannot be saved here: move them away first",
            ));
        }
        let mut removed = Removed { saved: None, whole: false, ignored: loss.ignored.clone() };
        let saves_ignored = force == Some(Scope::All) && !loss.ignored.is_empty();
        match force {
            None if !loss.is_none() => {
                let merge = match self.is_branch(&loss.base)? {
                    true => {
                        format!("`orchestrate worktree merge {id}` brings it into `{}`", loss.base)
                    }
                    false => format!(
                        "its base `{}` is gone, and `orchestrate worktree add {id} --base BRANCH` \
                         gives it another one",
                        loss.base
                    ),
                };
                return Err(TreeError::found(
                    format!("worktree `{id}` has work that is nowhere else: {}", loss.tell()),
                    format!(
                        "{merge}; `orchestrate worktree rm {id} --force` saves it under a ref first"
                    ),
                ));
            }
            Some(scope) if !loss.is_none() || saves_ignored => {
                let strays = &loss.strays;
                removed.saved =
                    Some(self.save_all(id, found, git_dir.as_deref(), scope, strays)?);
                removed.whole = true;
                if scope == Scope::All {
                    removed.ignored.clear();
                }
            }
            _ if !loss.strays.is_empty() => {
                removed.saved = Some(self.keep_strays(id, found, &loss.strays)?);
            }
            _ => {}
        }
        let git = lock.git(&self.repo.workspace)?;
        if found.entry.is_some() {
            let path = self.path(id);
            let is_dirty = || self.dirty(&Git::at(&path)).map(|files| !files.is_empty());
            if found.is_there && !removed.whole && is_dirty()? {
                return Err(TreeError::found(
                    format!("somebody is writing in worktree `{id}`"),
                    "find out who, and try again",
                ));
            }
            self.take_away(lock, &path)?;
        }
        if let Some(tip) = &found.tip {
            git.run(&["update-ref", "--no-deref", "-d", &branch(id), tip])?;
        }
        self.forget(id)?;
        Ok(removed)
    }

    /// Rejects a worktree that cannot be one of ours. Returns git's administrative directory for
    /// it, or `None` if its directory is gone.
    fn removable(
        &self,
        id: &BeadId,
        found: &Found,
    ) -> Result<Option<std::path::PathBuf>, TreeError> {
        let path = self.path(id);
        if let Some(error) = self.elsewhere(id, found) {
            let strange = found.is_there && found.entry.is_none();
            return Err(if strange { self.misfit(id, found) } else { error });
        }
        let Some(entry) = &found.entry else {
            return if found.is_there { Err(self.misfit(id, found)) } else { Ok(None) };
        };
        if entry.locked.is_some() {
            return Err(self.misfit(id, found));
        }
        if !found.is_there {
            return Ok(None);
        }
        // Check this before git runs in it.
        if self.linked(id).is_err() {
            return Err(self.misfit(id, found));
        }
        let git = Git::at(&path);
        if top_level(&git)?.canonicalize().ok() != path.canonicalize().ok() {
            return Err(self.misfit(id, found));
        }
        Ok(Some(git_dir(&git)?))
    }

    /// Returns the error that `verify` reports for the worktree.
    fn misfit(&self, id: &BeadId, found: &Found) -> TreeError {
        match self.verified(id, found) {
            Err(error) => error,
            // It has changed since it was inspected.
            Ok(_) => TreeError::found(format!("worktree `{id}` is changing"), "try again"),
        }
    }

    /// Saves the whole content of a worktree, or its branch if its directory is gone.
    fn save_all(
        &self,
        id: &BeadId,
        found: &Found,
        git_dir: Option<&Path>,
        scope: Scope,
        strays: &[String],
    ) -> Result<String, TreeError> {
        let base = self.base_of(id, found).unwrap_or_default();
        if let Some(git_dir) = git_dir {
            let inside = self.alone_in(id)?;
            let (name, tree) = self.save(id, &inside, git_dir, scope, &base, strays)?;
            // Check again: a process may have written while the content was saved.
            if self.whole_tree(&inside, git_dir, scope)?.0 != tree {
                return Err(TreeError::found(
                    format!("somebody is writing in worktree `{id}`"),
                    format!("find out who; what was there before is under `{name}`"),
                ));
            }
            return Ok(name);
        }
        let head = found.entry.as_ref().and_then(|entry| entry.head.clone());
        let git = self.git();
        let mut saved: Option<(String, String)> = None;
        for commit in [head, found.tip.clone()].into_iter().flatten() {
            let known = match &saved {
                Some((_, known)) => git.contains(known, &commit)?,
                None => false,
            };
            if !known {
                saved = Some((self.keep(id, &commit)?, commit));
            }
        }
        let kept = saved.as_ref().map(|(_, commit)| commit);
        for stray in strays.iter().filter(|stray| Some(*stray) != kept) {
            self.keep(id, stray)?;
        }
        saved.map(|(name, _)| name).ok_or_else(|| {
            let what = format!("worktree `{id}` has nothing that could be saved");
            TreeError::found(what, "`git worktree list` shows what git knows of it")
        })
    }

    pub(super) fn loss_of(
        &self,
        id: &BeadId,
        found: &Found,
        git_dir: Option<&Path>,
    ) -> Result<Loss, TreeError> {
        let (base, base_commit) = self.base_of(id, found).unwrap_or_default();
        let mut loss = Loss { base: base.clone(), ..Loss::default() };
        let git = self.git();
        let head = found.entry.as_ref().and_then(|entry| entry.head.clone());
        let tips: Vec<String> = [found.tip.clone(), head].into_iter().flatten().collect();
        if !tips.is_empty() {
            let mut args = vec!["rev-list".to_owned(), "--count".to_owned()];
            args.extend(tips);
            args.push("--not".to_owned());
            for name in [repo::branch(&base), repo::of_remote(&base), base_commit] {
                args.extend(if name.is_empty() { None } else { git.commit(&name)? });
            }
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            loss.commits = git.text(&args)?.parse().unwrap_or(usize::MAX);
        }
        loss.strays = self.strays(id, found)?;
        if let Some(git_dir) = git_dir {
            let inside = Git::at(&self.path(id));
            loss.dirty = self.dirty(&inside)?;
            loss.under_way = self.under_way(git_dir)?;
            let mut nested: BTreeSet<String> =
                self.repositories(&inside)?.iter().map(|name| readable(name)).collect();
            nested.extend(submodules(git_dir));
            let path = self.path(id);
            let others = found.inside.iter().flat_map(|other| other.strip_prefix(&path));
            nested.extend(others.map(|other| other.display().to_string()));
            loss.nested = nested.into_iter().collect();
            let flags = ["--others", "--ignored", "--exclude-standard", "--directory", "-z"];
            loss.ignored = inside.names(&[&["ls-files"], &flags[..]].concat())?;
        }
        Ok(loss)
    }
}

/// Returns submodules whose commits are stored only with this worktree and would be lost with it.
fn submodules(git_dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(git_dir.join("modules")).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}
