//! Worktrees in real repositories: what cannot be brought about from outside the program.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use super::*;
use crate::base::ids::Attempt;
use crate::base::process::Process;
use crate::exec::Stop;
use crate::git::tests::{commit, repository};

fn id(text: &str) -> BeadId {
    BeadId::parse(text).unwrap()
}

fn trees() -> (tempfile::TempDir, PathBuf, Trees) {
    let (dir, top) = repository();
    let trees = Trees::open(&top).unwrap();
    (dir, top, trees)
}

const BUILD: HoldRequest = HoldRequest {
    run: Some("run-1"),
    step: "Build",
    attempt: Attempt::FIRST,
    mark: None,
    ttl: Duration::ZERO,
};

#[test]
fn one_works_in_a_worktree_at_a_time() {
    let (_dir, _top, trees) = trees();
    let a = id("a");
    trees.create(&a, None).unwrap();
    let held = trees.hold(&a, &BUILD).unwrap();
    let error = trees.hold(&a, &HoldRequest { step: "Test", ..BUILD }).unwrap_err();
    assert_eq!(error.exit_code(), 5);
    assert!(error.to_string().contains("step `Build`, attempt 1, of run run-1"), "{error}");
    let error = trees.remove(&a, Some(Scope::Work)).unwrap_err();
    assert!(matches!(error, TreeError::Held { .. }), "{error}");
    drop(held);
    assert_eq!(trees.holder(&a).unwrap(), None);
    trees.remove(&a, None).unwrap();
}

/// Names of the files in the lease of a worktree.
fn lease_files(trees: &Trees, id: &BeadId) -> Vec<PathBuf> {
    let entries = fs::read_dir(trees.home(id).join(LEASE)).unwrap().flatten();
    entries.map(|entry| entry.path()).collect()
}

#[test]
fn a_holder_that_was_considered_dead_takes_nothing_from_the_next() {
    let (_dir, _top, trees) = trees();
    let a = id("a");
    trees.create(&a, None).unwrap();
    let first = trees.hold(&a, &BUILD).unwrap();
    for ticket in lease_files(&trees, &a) {
        let text = fs::read_to_string(&ticket).unwrap();
        let this = format!("\"start_time\":{}", Process::this().start_time);
        fs::write(&ticket, text.replace(&this, "\"start_time\":1")).unwrap();
    }
    assert!(!trees.holder(&a).unwrap().unwrap().may_live());
    let second = trees.hold(&a, &HoldRequest { run: Some("run-2"), ..BUILD }).unwrap();
    first.check().unwrap_err();
    drop(first);
    second.check().unwrap();
    assert_eq!(trees.holder(&a).unwrap().unwrap().step.run.as_deref(), Some("run-2"));
}

#[test]
fn a_worktree_that_git_was_interrupted_at_is_finished() {
    let (_dir, top, trees) = trees();
    let a = id("a");
    let made = trees.create(&a, None).unwrap().tree;
    // As a power cut leaves it: half of the files, no index, git's own lock.
    let record = trees.record(&a).unwrap().unwrap();
    trees.write_record(&Record { ready: false, ..record }).unwrap();
    fs::write(made.git_dir.join("locked"), "initializing").unwrap();
    fs::write(made.git_dir.join("index.lock"), "").unwrap();
    fs::remove_file(made.git_dir.join("index")).unwrap();
    fs::write(made.path.join("file"), "o").unwrap();
    fs::write(made.path.join("untracked"), "kept").unwrap();
    let again = trees.create(&a, None).unwrap();
    assert_eq!(again.way, Way::Reused);
    assert_eq!(again.dirty, ["untracked"]);
    assert_eq!(fs::read_to_string(top.join(".coven/worktrees/a/file")).unwrap(), "one\n");
    // One that was handed out is never touched like this.
    fs::write(made.git_dir.join("locked"), "initializing").unwrap();
    fs::write(made.path.join("file"), "work").unwrap();
    assert!(trees.create(&a, None).unwrap_err().to_string().contains("is locked"));
    assert_eq!(fs::read_to_string(made.path.join("file")).unwrap(), "work");
}

#[test]
fn a_workspace_may_be_a_directory_of_the_repository() {
    let (_dir, top) = repository();
    fs::create_dir(top.join("part")).unwrap();
    commit(&top, "part/inner", "x");
    let trees = Trees::open(&top.join("part")).unwrap();
    let tree = trees.create(&id("a"), None).unwrap().tree;
    assert_eq!(tree.path, top.join("part/.coven/worktrees/a"));
    assert_eq!(tree.workspace, tree.path.join("part"));
    assert!(tree.workspace.join("inner").exists());
}

#[test]
fn what_was_staged_and_then_changed_again_is_saved_too() {
    let (_dir, _top, trees) = trees();
    let a = id("a");
    let tree = trees.create(&a, None).unwrap().tree;
    fs::write(tree.path.join("file"), "staged").unwrap();
    tree.git().run(&["add", "file"]).unwrap();
    fs::write(tree.path.join("file"), "changed again").unwrap();
    let index = fs::read(tree.git_dir.join("index")).unwrap();
    let base = (tree.base_branch.clone(), tree.base_commit.clone());
    let inside = trees.alone_in(&a).unwrap();
    let (name, _) = trees.save(&a, &inside, &tree.git_dir, Scope::Work, &base, &[]).unwrap();
    assert_eq!(fs::read(tree.git_dir.join("index")).unwrap(), index, "it is not touched");
    let show = |what: String| trees.git().text(&["show", &what]).unwrap();
    assert_eq!(show(format!("{name}:file")), "changed again");
    assert_eq!(show(format!("{name}^2:file")), "staged");
    assert_eq!(show(format!("{name}^1:file")), "one");
    let left = fs::read_dir(&tree.git_dir).unwrap().flatten();
    let left = left.filter(|entry| entry.file_name().to_string_lossy().starts_with("coven."));
    assert_eq!(left.count(), 0);
}

#[test]
fn a_merge_by_the_holder_of_the_worktree_needs_no_second_hold() {
    let (_dir, top, trees) = trees();
    let a = id("a");
    let tree = trees.create(&a, None).unwrap().tree;
    let hold = trees.hold(&a, &BUILD).unwrap();
    commit(&tree.path, "new", "x");
    let stop = Stop::new().unwrap();
    let order = Merge {
        id: &a,
        title: None,
        checks: Checks::default(),
        approval: None,
        wait: Duration::from_secs(60),
    };
    let error = trees.merge(&order, None, &stop).unwrap_err();
    assert!(matches!(error, TreeError::Held { .. }), "{error}");
    let merged = trees.merge(&order, Some(&hold), &stop).unwrap();
    assert!(matches!(merged, Merged::Done { moved: Some(_), rounds: 1, .. }), "{merged:?}");
    assert!(top.join("new").exists());
    let merged = trees.merge(&order, Some(&hold), &stop).unwrap();
    assert!(matches!(merged, Merged::Already { .. }), "{merged:?}");
}

#[test]
fn a_base_that_somebody_works_on_is_not_moved_under_them() {
    let (_dir, _top, trees) = trees();
    let (a, b) = (id("a"), id("b"));
    trees.create(&a, None).unwrap();
    let tree = trees.create(&b, Some("coven/a")).unwrap().tree;
    commit(&tree.path, "new", "x");
    let hold = trees.hold(&a, &BUILD).unwrap();
    let stop = Stop::new().unwrap();
    let order = Merge {
        id: &b,
        title: None,
        checks: Checks::default(),
        approval: None,
        wait: Duration::from_secs(60),
    };
    let merged = trees.merge(&order, None, &stop).unwrap();
    let Merged::Blocked(block) = merged else { panic!("{merged:?}") };
    assert!(block.to_string().contains("step `Build`, attempt 1, of run run-1"), "{block}");
    drop(hold);
    let merged = trees.merge(&order, None, &stop).unwrap();
    assert!(matches!(merged, Merged::Done { .. }), "{merged:?}");
    assert!(trees.path(&a).join("new").exists());
}

#[test]
fn what_comes_from_the_remote_writes_over_nothing_that_is_ignored() {
    let (dir, top, trees) = trees();
    commit(&top, ".gitignore", "*.mine\n");
    let at = |path: &str| Git::at(&dir.path().join(path));
    at("").run(&["clone", "--quiet", "--bare", "repo", "far"]).unwrap();
    at("repo").run(&["remote", "add", "origin", "../far"]).unwrap();
    let a = id("a");
    let tree = trees.create(&a, None).unwrap().tree;
    fs::write(tree.path.join("notes.mine"), "mine").unwrap();
    trees.push(&a).unwrap();
    at("").run(&["clone", "--quiet", "--branch", "coven/a", "far", "other"]).unwrap();
    let other = dir.path().join("other");
    for (key, value) in [("user.name", "Tester"), ("user.email", "tester@example.org")] {
        at("other").run(&["config", key, value]).unwrap();
    }
    fs::write(other.join("notes.mine"), "theirs").unwrap();
    at("other").run(&["add", "--force", "notes.mine"]).unwrap();
    commit(&other, "more", "x");
    at("other").run(&["push", "--quiet"]).unwrap();
    let shared = Expects { shared: true, ..Expects::default() };
    let error = trees.follow(&a, &shared).unwrap_err();
    assert!(error.to_string().contains("notes.mine"), "{error}");
    assert_eq!(fs::read_to_string(tree.path.join("notes.mine")).unwrap(), "mine");
    fs::remove_file(tree.path.join("notes.mine")).unwrap();
    trees.follow(&a, &shared).unwrap();
    assert_eq!(fs::read_to_string(tree.path.join("notes.mine")).unwrap(), "theirs");
}
