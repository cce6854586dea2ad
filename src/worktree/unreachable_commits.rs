//! Commits that only a worktree's own reflog and refs reach: commits that `git reset` or `git
//! commit --amend` took off the branch, and commits that a rebase or a merge set aside. They would
//! be lost with the worktree, so they are saved under a ref first.

use std::collections::BTreeSet;

use super::look::Found;
use super::save::{commit_tree, tree_of};
use super::trash::Kept;
use super::{TreeError, Trees, branch};
use crate::base::ids::BeadId;
use crate::disk::fs::{self, OnVolume as _};
use crate::git::repo::Entry;

/// Files in which git records the state of a merge, rebase or the like in a worktree, or commits
/// that it set aside.
const OWN: [&str; 6] = [
    "rebase-merge/autostash",
    "rebase-apply/autostash",
    "MERGE_AUTOSTASH",
    "MERGE_HEAD",
    "CHERRY_PICK_HEAD",
    "REVERT_HEAD",
];

impl Trees {
    /// Returns the commits that would become unreachable if a worktree and its branch were removed.
    /// Ancestors of a returned commit are not listed.
    pub(super) fn strays(&self, id: &BeadId, found: &Found) -> Result<Vec<String>, TreeError> {
        let own = branch(id);
        let (mut logs, mut known) = match &found.entry {
            Some(entry) => self.known_of(entry)?,
            None => Default::default(),
        };
        logs.extend(found.tip.is_some().then(|| own.clone()));
        known.extend(found.tip.clone());
        self.lost_without(&logs, known, Some(&own))
    }

    /// Returns the same for a worktree that is unregistered while its branch stays.
    pub(super) fn strays_of_entry(&self, entry: &Entry) -> Result<Vec<String>, TreeError> {
        let (logs, known) = self.known_of(entry)?;
        self.lost_without(&logs, known, None)
    }

    /// Saves commits under a ref: one commit without changes that has all of them as parents.
    pub(super) fn keep_strays(
        &self,
        id: &BeadId,
        found: &Found,
        strays: &[String],
    ) -> Result<String, TreeError> {
        let git = self.git();
        let head = found.entry.as_ref().and_then(|entry| entry.head.clone());
        let first = head.or(found.tip.clone());
        let others = strays.iter().filter(|stray| Some(*stray) != first.as_ref());
        let parents: Vec<String> = first.iter().chain(others).cloned().collect();
        let base = self.base_of(id, found).unwrap_or_default();
        let what = "Commits that its branch did not have any more.";
        let tree = tree_of(&git, &parents[0])?;
        let commit = commit_tree(&git, &tree, &parents, &super::save::message(id, what, &base))?;
        self.keep(id, &commit)
    }

    /// Returns the ref names of a worktree's reflogs, valid in the whole repository, and the
    /// commits that only it refers to. Its directory may be missing.
    fn known_of(&self, entry: &Entry) -> Result<(Vec<String>, BTreeSet<String>), TreeError> {
        let (mut logs, mut known) = (Vec::new(), BTreeSet::from_iter(entry.head.clone()));
        let Some(Kept { dir, .. }) = self.kept_for(&entry.path) else { return Ok((logs, known)) };
        // A worktree whose HEAD never moved has no reflog.
        if let Some(name) = dir.file_name().and_then(|name| name.to_str())
            && dir.join("logs/HEAD").is_present()
        {
            logs.push(format!("worktrees/{name}/HEAD"));
        }
        let git = self.git().env("GIT_DIR", &dir);
        let mut names = Vec::new();
        for file in OWN {
            let said = fs::read_to_string(dir.join(file)).unwrap_or_default();
            names.extend(said.lines().map(|line| line.trim().to_owned()));
            names.extend(self.pseudo_ref(&dir, file)?);
        }
        let refs = ["for-each-ref", "--format=%(objectname)"];
        let refs = [&refs[..], &["refs/worktree", "refs/bisect", "refs/rewritten"]].concat();
        names.extend(git.text(&refs)?.lines().map(str::to_owned));
        for name in names.iter().filter(|name| !name.is_empty()) {
            known.extend(git.commit(name)?);
        }
        Ok((logs, known))
    }

    /// Returns the commits in these reflogs and in `known` that no ref other than `without`
    /// reaches.
    fn lost_without(
        &self,
        logs: &[String],
        mut known: BTreeSet<String>,
        without: Option<&str>,
    ) -> Result<Vec<String>, TreeError> {
        let git = self.git();
        if !logs.is_empty() {
            let mut args = vec!["rev-list", "--walk-reflogs", "--ignore-missing"];
            args.extend(logs.iter().map(String::as_str));
            args.push("--");
            known.extend(git.text(&args)?.lines().map(str::to_owned));
        }
        if known.is_empty() {
            return Ok(Vec::new());
        }
        let list: String = known.iter().map(|commit| format!("{commit}\n")).collect();
        let without = without.map(|name| format!("--exclude={name}"));
        let mut args = vec!["rev-list", "--parents", "--ignore-missing", "--single-worktree"];
        args.extend(["--stdin", "--not"]);
        args.extend(without.as_deref());
        args.push("--all");
        let listed = git.fed(&args, list.as_bytes())?;
        let listed = String::from_utf8_lossy(&listed).into_owned();
        let mut lost: Vec<&str> = Vec::new();
        let mut below: BTreeSet<&str> = BTreeSet::new();
        for line in listed.lines() {
            let mut commits = line.split(' ');
            lost.extend(commits.next());
            below.extend(commits);
        }
        lost.retain(|commit| !below.contains(commit));
        Ok(lost.into_iter().map(str::to_owned).collect())
    }
}
