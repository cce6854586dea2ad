//! Saves the whole content of a worktree under a ref (committed, changed, staged and untracked
//! files), and restores it.
//!
//! The worktree's own index is not touched: files are added to a copy of it. The first parent of a
//! saved commit is the commit that was checked out. Its further parents are commits that would be
//! lost otherwise: the staged state, the branch's tip if something else was checked out, and
//! commits that were taken off the branch.

use std::path::Path;

use super::{Record, SAVED, TreeError, Trees, Worktree, arg, branch, short_branch};
use crate::base::ids::BeadId;
use crate::base::random::{chance, word};
use crate::base::time::{Clock, SystemClock};
use crate::disk::fs::{self, OnVolume as _};
use crate::git::{Git, Lock};

/// `All` also saves ignored files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    Work,
    All,
}

/// A saved worktree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Saved {
    pub id: BeadId,
    /// Unique among saves of the same id; contains the time.
    pub stamp: String,
    pub name: String,
    pub commit: String,
    pub subject: String,
}

/// Returns a timestamp for a name, with a random suffix, because two saves may occur in one second.
pub(super) fn stamp() -> String {
    format!("{}-{}", SystemClock.now().to_stamp(), &word(chance())[..4])
}

impl Trees {
    /// Writes a tree of the whole content of a worktree. `inside` must hold the worktree's lock.
    /// Also returns the repositories that were left out.
    pub(super) fn whole_tree(
        &self,
        inside: &Git,
        git_dir: &Path,
        scope: Scope,
    ) -> Result<(String, Vec<String>), TreeError> {
        let copy = Copy::of_index(git_dir)?;
        let git = inside.clone().env("GIT_INDEX_FILE", copy.0.as_os_str());
        if !copy.0.is_present() {
            git.run(&["read-tree", "HEAD"])?;
        }
        self.reveal(&git)?;
        let left_out = self.add_all(&git, scope == Scope::All)?;
        Ok((git.text(&["write-tree"])?, left_out))
    }

    /// Writes the staged state as a tree. Returns `None` if there is no index or files are in
    /// conflict.
    fn staged_tree(&self, inside: &Git, git_dir: &Path) -> Result<Option<String>, TreeError> {
        let copy = Copy::of_index(git_dir)?;
        if !copy.0.is_present() {
            return Ok(None);
        }
        let git = inside.clone().env("GIT_INDEX_FILE", copy.0.as_os_str());
        let said = git.said(&["write-tree"])?;
        let whole = said.how.exit_code() == 0;
        Ok(whole.then(|| String::from_utf8_lossy(&said.out).trim().to_owned()))
    }

    /// Saves the whole content of a worktree. Returns the ref and its tree.
    pub(super) fn save(
        &self,
        id: &BeadId,
        git: &Git,
        git_dir: &Path,
        scope: Scope,
        base: &(String, String),
        strays: &[String],
    ) -> Result<(String, String), TreeError> {
        let (tree, _) = self.whole_tree(git, git_dir, scope)?;
        let head = git.commit("HEAD")?;
        let mut parents: Vec<String> = head.iter().cloned().collect();
        if let Some(staged) = self.staged_tree(git, git_dir)?
            && staged != tree
            && Some(&staged) != head.as_ref().map(|head| tree_of(git, head)).transpose()?.as_ref()
        {
            parents.push(commit_tree(git, &staged, &parents, &format!("staged in {id}"))?);
        }
        let tip = git.commit(&branch(id))?;
        if let (Some(tip), Some(head)) = (tip, &head)
            && !git.contains(head, &tip)?
        {
            parents.push(tip);
        }
        let others = strays.iter().filter(|stray| !parents.contains(stray));
        parents.extend(others.cloned().collect::<Vec<_>>());
        let mut message = message(id, "Everything that was in it before it was removed.", base);
        if scope == Scope::All {
            // A separate commit without ignored files, so that they are ignored again after a
            // restore.
            let (work, _) = self.whole_tree(git, git_dir, Scope::Work)?;
            let head = Vec::from_iter(head);
            let work = commit_tree(git, &work, &head, &format!("recovered: worktree {id}\n"))?;
            message.push_str(&format!("{WORK}: {work}\n"));
            parents.push(work);
        }
        let commit = commit_tree(git, &tree, &parents, &message)?;
        Ok((self.keep(id, &commit)?, tree))
    }

    /// Creates a new ref for a commit.
    pub(super) fn keep(&self, id: &BeadId, commit: &str) -> Result<String, TreeError> {
        let name = format!("{SAVED}{id}/{}", stamp());
        self.git().run(&["update-ref", "--no-deref", "-m", "saved", &name, commit, ""])?;
        Ok(name)
    }

    /// Returns all saved worktrees, the latest first within each id.
    pub(crate) fn saved(&self) -> Result<Vec<Saved>, TreeError> {
        let format = "--format=%(refname) %(objectname) %(subject)";
        let list = self.git().bytes(&["for-each-ref", "--sort=-refname", format, SAVED])?;
        let list = String::from_utf8_lossy(&list).into_owned();
        let saved = list.lines().filter_map(|line| {
            let mut parts = line.splitn(3, ' ');
            let (name, commit) = (parts.next()?, parts.next()?);
            let (id, stamp) = name.strip_prefix(SAVED)?.split_once('/')?;
            Some(Saved {
                id: BeadId::parse(id).ok()?,
                stamp: stamp.to_owned(),
                name: name.to_owned(),
                commit: commit.to_owned(),
                subject: parts.next().unwrap_or_default().to_owned(),
            })
        });
        Ok(saved.collect())
    }

    /// Creates a worktree from a saved one. The ref stays.
    pub(crate) fn restore(&self, saved: &Saved, id: &BeadId) -> Result<Worktree, TreeError> {
        let lock = self.repo.lock(&format!("recovering worktree `{id}`"))?;
        let found = self.look_settled(&lock, id)?;
        if found.is_nothing() {
            self.alone_of_its_name(id)?;
            self.has_room(id)?;
            return self.restore_under(&lock, saved, id);
        }
        let made_of_it = |record: &&Record| record.from.as_ref() == Some(&saved.name);
        let record = found.record.as_ref().filter(made_of_it);
        if record.is_some_and(|record| !record.ready) {
            // A killed call left it, and no caller has received it.
            self.take_up(&lock, id, None, &found)?;
            return self.restored(&lock, id, saved);
        }
        let there = if found.is_there { "its directory" } else { "its branch" };
        let made = record.map(|_| format!("it was made of `{}`; ", saved.name));
        Err(TreeError::found(
            format!("worktree `{id}` exists: {there} is there"),
            format!("{}recover it under another id: `--as {id}-2`", made.unwrap_or_default()),
        ))
    }

    fn restore_under(
        &self,
        lock: &Lock,
        saved: &Saved,
        id: &BeadId,
    ) -> Result<Worktree, TreeError> {
        self.make_dir()?;
        let git = lock.git(&self.repo.workspace)?;
        let trailer = |key: &str| trailer(&git, &saved.commit, key);
        let start = match trailer("Coven-Id")?.is_empty() {
            true => saved.commit.clone(),
            false => unwrapped(&git, saved)?,
        };
        let base_branch = match trailer("Coven-Base")? {
            none if none.is_empty() => self.repo.default_base()?.unwrap_or_else(|| "main".into()),
            base => base,
        };
        let base_commit = match trailer("Coven-Base-Commit")? {
            none if none.is_empty() => {
                self.merge_base(&base_branch, &start)?.unwrap_or_else(|| start.clone())
            }
            commit => commit,
        };
        let path = self.path(id);
        self.begin_record(id, base_branch, base_commit, Some(saved.name.clone()))?;
        let name = short_branch(id);
        git.run(&["worktree", "add", "--quiet", "--no-track", "-b", &name, arg(&path)?, &start])?;
        self.restored(lock, id, saved)
    }

    /// Completes a worktree that was created from a saved one, and marks it as ready.
    fn restored(&self, lock: &Lock, id: &BeadId, saved: &Saved) -> Result<Worktree, TreeError> {
        let found = self.look(lock, id)?;
        let tree = self.fitting(id, &found)?;
        let git = lock.git(&tree.path)?;
        if !trailer(&git, &saved.commit, WORK)?.is_empty() {
            // The index stays unchanged, so ignored files are ignored again.
            let source = format!("--source={}", saved.commit);
            git.run(&["restore", "--worktree", "--overlay", &source, "--", "."])?;
        }
        if let Some(record) = found.record {
            self.write_record(&Record { ready: true, ..record })?;
        }
        Ok(tree)
    }
}

/// Trailer that names the commit of the saved work without ignored files.
const WORK: &str = "Coven-Work";

/// Returns the value of a trailer of a saved commit, or an empty text if there is none.
fn trailer(git: &Git, commit: &str, key: &str) -> Result<String, TreeError> {
    let format = format!("--format=%(trailers:key={key},valueonly,separator=)");
    Ok(git.text(&["log", "-1", &format, commit])?.trim().to_owned())
}

/// Returns the message of a saved commit, for users and for a later restore.
pub(super) fn message(id: &BeadId, what: &str, base: &(String, String)) -> String {
    let (base_branch, base_commit) = base;
    format!(
        "saved: worktree {id}\n\n{what}\n\n\
         Coven-Id: {id}\nCoven-Base: {base_branch}\nCoven-Base-Commit: {base_commit}\n"
    )
}

/// Returns the commit to continue from: the one that was checked out, or, if there was uncommitted
/// work, a commit of that work on top of it.
fn unwrapped(git: &Git, saved: &Saved) -> Result<String, TreeError> {
    let work = trailer(git, &saved.commit, WORK)?;
    if !work.is_empty() {
        let head = git.commit(&format!("{work}^1"))?;
        let same = |head: &String| Ok::<_, TreeError>(tree_of(git, head)? == tree_of(git, &work)?);
        return Ok(match head {
            Some(head) if same(&head)? => head,
            _ => work,
        });
    }
    let Some(head) = git.commit(&format!("{}^1", saved.commit))? else {
        return Ok(saved.commit.clone());
    };
    let tree = tree_of(git, &saved.commit)?;
    if tree_of(git, &head)? == tree {
        return Ok(head);
    }
    let Saved { id, stamp, .. } = saved;
    commit_tree(git, &tree, &[head], &format!("recovered: worktree {id} of {stamp}\n"))
}

pub(super) fn tree_of(git: &Git, commit: &str) -> Result<String, TreeError> {
    Ok(git.text(&["rev-parse", "--verify", &format!("{commit}^{{tree}}")])?)
}

pub(super) fn commit_tree(
    git: &Git,
    tree: &str,
    parents: &[String],
    message: &str,
) -> Result<String, TreeError> {
    let git = git.clone().with_author()?;
    let mut args = vec!["commit-tree", "-m", message];
    args.extend(parents.iter().flat_map(|parent| ["-p", parent.as_str()]));
    args.push(tree);
    Ok(git.text(&args)?)
}

/// A copy of an index, removed when dropped.
pub(super) struct Copy(std::path::PathBuf);

impl Copy {
    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Copies the index of a worktree. Copies nothing if there is no index.
    ///
    /// Git reads a file's content if the file is as new as the index, because the timestamp then
    /// cannot prove that the file is unchanged. No file would be as new as a fresh copy, so the
    /// copy keeps the timestamp of the index.
    pub(super) fn of_index(git_dir: &Path) -> Result<Copy, TreeError> {
        let copy = Copy(git_dir.join(format!("coven.{}.index", word(chance()))));
        let index = git_dir.join("index");
        if index.is_present() {
            let copied = fs::metadata(&index).and_then(|kind| {
                let written = kind.modified()?;
                fs::copy(&index, &copy.0)?;
                fs::OpenOptions::new().write(true).open(&copy.0)?.set_modified(written)
            });
            copied.map_err(|error| TreeError::io("copy", &index, error))?;
        }
        Ok(copy)
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
        let _ = fs::remove_file(self.0.with_extension("index.lock"));
    }
}
