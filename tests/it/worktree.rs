//! Worktrees of beads in real repositories: every rule of them, and kill -9 at every call of
//! `git`.
//!
//! To kill at a certain point, a `git` of our own stands first in PATH. It counts its calls; at
//! the n-th it kills the process that called it, and then does what it was called for or not.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::Trial;
use serde_json::Value;

use crate::world::{Outcome, World, trial, until};

/// A repository in a fresh workspace, with one commit on `main`.
fn repository() -> World {
    let world = World::new();
    git(&world, "", &["init", "--quiet", "--initial-branch=main"]);
    name_author(&world, "");
    world.write("file", "one\n");
    world.write(".gitignore", "*.log\n");
    commit(&world, "", "first");
    world
}

fn name_author(world: &World, dir: &str) {
    for (key, value) in [("user.name", "Tester"), ("user.email", "tester@example.org")] {
        git(world, dir, &["config", key, value]);
    }
}

fn git_command(world: &World, dir: &str, arguments: &[&str]) -> Command {
    let mut command = world.command("git");
    command.current_dir(world.path(dir)).args(arguments).env("GIT_CONFIG_NOSYSTEM", "1");
    command
}

/// What git prints, which must succeed.
#[track_caller]
fn git(world: &World, dir: &str, arguments: &[&str]) -> String {
    let output = git_command(world, dir, arguments).output().expect("git runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "git {arguments:?}: {said}");
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

fn commit(world: &World, dir: &str, message: &str) {
    git(world, dir, &["add", "--all"]);
    git(world, dir, &["commit", "--quiet", "--message", message]);
}

/// Runs `orchestrate worktree …`.
fn worktree(world: &World, arguments: &[&str]) -> Outcome {
    world.run(&[&["worktree"], arguments].concat())
}

fn json(outcome: &Outcome) -> Value {
    let text = &outcome.stdout;
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// What `worktree ls` says of one.
fn view(world: &World, id: &str) -> Value {
    let list = json(&worktree(world, &["ls", "--json"]).exits(0));
    let views = list["worktrees"].as_array().expect("a list");
    let found = views.iter().find(|view| view["id"] == id);
    found.unwrap_or_else(|| panic!("no `{id}` in {list}")).clone()
}

fn place(id: &str) -> String {
    format!(".coven/worktrees/{id}")
}

/// A bead's worktree with a change, an addition, a deletion and an ignored file in it.
fn with_work(world: &World, id: &str) {
    worktree(world, &["add", id]).exits(0);
    let dir = place(id);
    world.write(&format!("{dir}/file"), format!("changed by {id}\n"));
    world.write(&format!("{dir}/deep/new {id}"), id);
    world.write(&format!("{dir}/noise.log"), "ignored");
}

/// Nothing of ours is left that somebody would hold.
#[track_caller]
fn nobody_is_there(world: &World) {
    for lease in ["repository", "merge"] {
        let dir = format!(".git/coven/leases/{lease}");
        if world.exists(&dir) {
            let names = world.list(&dir);
            assert!(names.len() == 1 && names[0].ends_with(".free"), "{lease}: {names:?}");
        }
    }
    let places = world.list(".coven/worktrees");
    assert!(!places.iter().any(|name| name.starts_with(".merge-")), "{places:?}");
    let list = git(world, "", &["worktree", "list", "--porcelain"]);
    assert!(!list.contains("/.merge-"), "{list}");
}

fn ids_name_directories_and_branches() {
    let world = repository();
    let made = worktree(&world, &["add", "bd-1.2_x", "--json"]).exits(0);
    let made = json(&made);
    assert_eq!(made["branch"], "coven/bd-1.2_x");
    assert_eq!(made["path"], world.path(&place("bd-1.2_x")).to_str().unwrap());
    assert_eq!(made["way"], "made");
    assert_eq!(made["base_branch"], "main");
    assert_eq!(git(&world, &place("bd-1.2_x"), &["branch", "--show-current"]), "coven/bd-1.2_x");
    assert_eq!(git(&world, "", &["status", "--porcelain"]), "", "the copy around it is clean");
    for bad in ["a..b", ".a", "a/../b", "a.lock", "a b", "", "ä", "a."] {
        let refused = worktree(&world, &["add", "--", bad]);
        assert_eq!(refused.exit, 2, "`{bad}`: {}", refused.stderr);
    }
    assert_eq!(worktree(&world, &["add", "--", "-a"]).exit, 2);
    world.write("beads/work.md", "---\nid: from-file\ntitle: T\n---\nDo it.\n");
    assert!(worktree(&world, &["add", "beads/work.md"]).exits(0).stdout.contains("from-file"));
    world.write("beads/bad.yaml", "id: ..\ntitle: T\n");
    worktree(&world, &["add", "beads/bad.yaml"]).exits(2).says("--> beads/bad.yaml:1:5");
}

fn work_begins_at_the_base_of_the_remote() {
    let world = repository();
    let far = world.outside("far");
    git(&world, "", &["clone", "--quiet", "--bare", ".", far.to_str().unwrap()]);
    git(&world, "", &["remote", "add", "origin", far.to_str().unwrap()]);
    // Somebody else goes on.
    let other = world.outside("other");
    git(&world, "", &["clone", "--quiet", far.to_str().unwrap(), other.to_str().unwrap()]);
    let other = format!("../{}", other.file_name().unwrap().to_string_lossy());
    name_author(&world, &other);
    world.write(&format!("{other}/news"), "n");
    commit(&world, &other, "news");
    git(&world, &other, &["push", "--quiet", "origin", "main"]);
    let newest = git(&world, &other, &["rev-parse", "HEAD"]);
    let made = json(&worktree(&world, &["add", "a", "--base", "main", "--json"]).exits(0));
    assert_eq!(made["base_commit"], newest.as_str());
    assert_eq!(made["warnings"], Value::Array(Vec::new()));
    assert!(world.exists(&format!("{}/news", place("a"))));
    // Commits that were not pushed are not in it, which is said.
    world.write("local", "l");
    commit(&world, "", "local");
    worktree(&world, &["add", "b"]).exits(0).says("begins without them");
    assert!(!world.exists(&format!("{}/local", place("b"))));
    // A base that is nowhere but there comes here with the merge.
    git(&world, "", &["push", "--quiet", "origin", "main:release"]);
    worktree(&world, &["add", "r", "--base", "release"]).exits(0);
    world.write(&format!("{}/released", place("r")), "r");
    let merged = worktree(&world, &["merge", "r"]).exits(0).stdout.trim().to_owned();
    assert_eq!(git(&world, "", &["rev-parse", "release"]), merged);
    // Without an answer, what was fetched last will do.
    fs::rename(&far, world.outside("farther")).unwrap();
    let made = worktree(&world, &["add", "c"]).exits(0).says("cannot fetch `main`");
    let made = made.says("as old as the last fetch");
    assert!(made.stderr.contains("warning: "));
    assert_eq!(view(&world, "c")["base_commit"], newest.as_str());
    // A branch that only exists here.
    git(&world, "", &["branch", "mine"]);
    let made = worktree(&world, &["add", "d", "--base", "mine"]).exits(0);
    made.says("begins at the local `mine`");
    worktree(&world, &["add", "e", "--base", "none"]).exits(1).says("no branch `none`");
    worktree(&world, &["add", "e", "--base", "a b"]).exits(1).says("cannot be the name");
    // A record that cannot be read is told, and hides no other.
    world.write(".git/coven/worktrees/d/record.json", "{");
    assert!(view(&world, "d")["problem"].as_str().unwrap().contains("is damaged"));
    assert_eq!(view(&world, "c")["state"], "empty");
    worktree(&world, &["add", "d"]).exits(1).says("the base is then found anew");
}

fn without_a_place_to_begin_nothing_is_made() {
    let world = World::new();
    worktree(&world, &["ls"]).exits(2).says("in no working copy");
    git(&world, "", &["init", "--quiet", "--initial-branch=main"]);
    worktree(&world, &["add", "a"]).exits(1).says("no commits yet");
    name_author(&world, "");
    world.write("file", "one\n");
    commit(&world, "", "first");
    git(&world, "", &["branch", "--move", "trunk"]);
    git(&world, "", &["checkout", "--quiet", "--detach"]);
    worktree(&world, &["add", "a"]).exits(1).says("no branch is checked out");
    worktree(&world, &["add", "a", "--base", "trunk"]).exits(0).says("the local `trunk`");
    assert_eq!(view(&world, "a")["base_branch"], "trunk");
    assert!(!world.exists(&place("b")));
}

fn git_must_be_there() {
    let world = repository();
    let mut command = world.orchestrate(&["worktree", "ls"]);
    command.env("PATH", world.outside("home"));
    world.spawn(&mut command).wait().exits(127).says("`git` was not found in PATH");
    // What a hook has in its environment leads us nowhere else.
    let mut command = world.orchestrate(&["worktree", "add", "a"]);
    command.env("GIT_DIR", "/nowhere").env("GIT_INDEX_FILE", "/nowhere").env("GIT_WORK_TREE", "/");
    world.spawn(&mut command).wait().exits(0);
    assert!(world.exists(&format!("{}/file", place("a"))));
}

/// What may be wrong with a worktree, how it is brought about, and what is said of it.
type Fault = (&'static str, fn(&World, &str), &'static str);

const FAULTS: [Fault; 10] = [
    ("branch", |w, d| _ = git(w, d, &["checkout", "-q", "-b", "other"]), "is on `other`"),
    ("detached", |w, d| _ = git(w, d, &["checkout", "-q", "--detach"]), "on no branch"),
    ("locked", |w, d| _ = git(w, "", &["worktree", "lock", "--reason", "why", d]), "locked: why"),
    ("gone", |w, d| fs::remove_dir_all(w.path(d)).unwrap(), "is gone"),
    ("unlinked", |w, d| fs::remove_file(w.path(d).join(".git")).unwrap(), "no worktree any more"),
    ("foreign", forget_and_leave, "does not know it"),
    ("merging", merge_halfway, "a merge is under way"),
    ("rebasing", rebase_halfway, "a rebase is under way"),
    ("conflict", stash_halfway, "files are in conflict in worktree `a`: file"),
    ("index", leave_index_lock, "a git command is at work"),
];

fn forget_and_leave(world: &World, dir: &str) {
    git(world, "", &["worktree", "remove", "--force", dir]);
    world.write(&format!("{dir}/precious"), "p");
}

fn conflict(world: &World, dir: &str) {
    world.write("file", "two\n");
    commit(world, "", "two");
    world.write(&format!("{dir}/file"), "three\n");
    commit(world, dir, "three");
}

fn merge_halfway(world: &World, dir: &str) {
    conflict(world, dir);
    let merged = git_command(world, dir, &["merge", "main"]).output().unwrap();
    assert!(!merged.status.success());
}

fn rebase_halfway(world: &World, dir: &str) {
    conflict(world, dir);
    let rebased = git_command(world, dir, &["rebase", "main"]).output().unwrap();
    assert!(!rebased.status.success());
}

/// Unlike a merge, it leaves nothing that tells of it but the index.
fn stash_halfway(world: &World, dir: &str) {
    world.write(&format!("{dir}/file"), "mine\n");
    git(world, dir, &["stash", "--quiet"]);
    world.write(&format!("{dir}/file"), "other\n");
    commit(world, dir, "other");
    let popped = git_command(world, dir, &["stash", "pop"]).output().unwrap();
    assert!(!popped.status.success());
}

fn leave_index_lock(world: &World, dir: &str) {
    let path = git(world, dir, &["rev-parse", "--absolute-git-dir"]);
    fs::write(Path::new(&path).join("index.lock"), "").unwrap();
}

/// Every file below a directory, with its content.
fn contents(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut open = vec![dir.to_owned()];
    let mut found = Vec::new();
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(path.read_dir().unwrap().map(|entry| entry.unwrap().path()));
        } else {
            found.push((path.clone(), fs::read(&path).unwrap_or_default()));
        }
    }
    found.sort();
    found
}

fn what_does_not_fit_is_told_and_left_alone(fault: &Fault) {
    let (_, bring_about, said) = *fault;
    let world = repository();
    worktree(&world, &["add", "a"]).exits(0);
    let dir = place("a");
    world.write(&format!("{dir}/untracked"), "u");
    bring_about(&world, &dir);
    let before = contents(&world.path(&dir).canonicalize().unwrap_or_default());
    let stopped = worktree(&world, &["checkpoint", "a"]).exits(1).says(said);
    assert!(stopped.stderr.contains("= hint: "), "{}", stopped.stderr);
    assert_eq!(contents(&world.path(&dir).canonicalize().unwrap_or_default()), before);
    assert!(view(&world, "a")["problem"].as_str().unwrap().contains(said));
    // Taking it up again stops as well, but for a directory that can be made from the branch.
    let again = worktree(&world, &["add", "a"]);
    if fault.0 == "gone" {
        assert!(again.exits(0).stderr.contains("remade"));
        worktree(&world, &["checkpoint", "a"]).exits(0);
    } else {
        again.exits(1).says(said);
        assert_eq!(contents(&world.path(&dir)), before);
    }
}

fn commits_of_a_directory_that_was_deleted_are_kept() {
    let world = repository();
    worktree(&world, &["add", "a"]).exits(0);
    let dir = place("a");
    world.write(&format!("{dir}/work"), "w");
    commit(&world, &dir, "work");
    git(&world, &dir, &["checkout", "--quiet", "--detach"]);
    world.write(&format!("{dir}/loose"), "l");
    commit(&world, &dir, "on no branch");
    let loose = git(&world, &dir, &["rev-parse", "HEAD"]);
    fs::remove_dir_all(world.path(&dir)).unwrap();
    worktree(&world, &["add", "a"]).exits(0);
    assert_eq!(world.read(&format!("{dir}/work")), "w");
    let saved = git(&world, "", &["for-each-ref", "--format=%(objectname)", "refs/coven/saved/a"]);
    assert_eq!(saved, loose);
    // A branch alone, as another machine finds it.
    git(&world, "", &["worktree", "remove", &dir]);
    let made = json(&worktree(&world, &["add", "a", "--json"]).exits(0));
    assert_eq!((&made["way"], &made["base_branch"]), (&"remade".into(), &"main".into()));
    assert_eq!(world.read(&format!("{dir}/work")), "w");
}

fn a_branch_that_is_checked_out_elsewhere_is_not_taken() {
    let world = repository();
    let elsewhere = world.outside("elsewhere");
    let path = elsewhere.to_str().unwrap();
    git(&world, "", &["worktree", "add", "--quiet", "-b", "coven/a", path]);
    worktree(&world, &["add", "a"]).exits(1).says("`coven/a` is checked out in");
    assert!(!world.exists(&place("a")) && elsewhere.join("file").exists());
    // Something that is no directory of ours is no better.
    world.write(&place("b"), "a file");
    worktree(&world, &["add", "b"]).exits(1).says("does not know it");
    assert_eq!(world.read(&place("b")), "a file");
}

fn a_step_ends_in_a_checkpoint() {
    let world = repository();
    with_work(&world, "a");
    let dir = place("a");
    let hook = git(&world, "", &["rev-parse", "--absolute-git-dir"]) + "/hooks/pre-commit";
    world.write("hook", "#!/bin/sh\nexit 1\n");
    fs::create_dir_all(Path::new(&hook).parent().unwrap()).unwrap();
    fs::copy(world.path("hook"), &hook).unwrap();
    for key in ["user.name", "user.email"] {
        git(&world, "", &["config", "--unset", key]);
    }
    git(&world, "", &["config", "commit.gpgSign", "true"]);
    let done = worktree(&world, &["checkpoint", "a", "--step", "Build", "--json"]).exits(0);
    let done = json(&done);
    assert_eq!(done["files"], serde_json::json!(["deep/new a", "file"]));
    assert_eq!(done["commit"], git(&world, &dir, &["rev-parse", "coven/a"]).as_str());
    let message = git(&world, &dir, &["log", "-1", "--format=%an <%ae>%n%B"]);
    assert!(message.starts_with("orchestrate <orchestrate@localhost>\n"), "{message}");
    assert!(message.contains("Step: Build\nAttempt: 1"), "{message}");
    assert_eq!(git(&world, &dir, &["status", "--porcelain"]), "");
    assert!(world.exists(&format!("{dir}/noise.log")));
    let again = worktree(&world, &["checkpoint", "a", "--json"]).exits(0);
    assert_eq!(json(&again)["commit"], Value::Null);
    assert_eq!(git(&world, "", &["log", "-1", "--format=%s", "main"]), "first");
}

fn repositories_in_a_worktree_are_left_out_and_never_removed() {
    let world = repository();
    worktree(&world, &["add", "a"]).exits(0);
    let dir = place("a");
    for (nested, born) in [("sub/empty", false), ("full", true)] {
        let nested = format!("{dir}/{nested}");
        fs::create_dir_all(world.path(&nested)).unwrap();
        git(&world, &nested, &["init", "--quiet"]);
        world.write(&format!("{nested}/inner"), "i");
        if born {
            name_author(&world, &nested);
            commit(&world, &nested, "inner");
        }
    }
    world.write(&format!("{dir}/work"), "w");
    let done = worktree(&world, &["checkpoint", "a"]).exits(0).says("`full` is a repository");
    done.says("`sub/empty` is a repository");
    let files = git(&world, &dir, &["ls-tree", "-r", "--name-only", "HEAD"]);
    assert_eq!(files, ".gitignore\nfile\nwork");
    worktree(&world, &["rm", "a", "--force"]).exits(1).says("repositories of its own");
    assert_eq!(world.read(&format!("{dir}/full/inner")), "i");
}

fn nothing_is_removed_that_is_nowhere_else() {
    let world = repository();
    with_work(&world, "a");
    let dir = place("a");
    let told = worktree(&world, &["rm", "a"]).exits(1).says("2 files not committed");
    told.says("deep/new a");
    worktree(&world, &["checkpoint", "a"]).exits(0);
    worktree(&world, &["rm", "a"]).exits(1).says("1 commit not in `main`");
    world.write(&format!("{dir}/later"), "untracked");
    let index = git(&world, &dir, &["rev-parse", "--absolute-git-dir"]) + "/index";
    let before = fs::read(&index).unwrap();
    worktree(&world, &["diff", "a"]).exits(0);
    assert_eq!(fs::read(&index).unwrap(), before, "a look changes nothing");
    let removed = worktree(&world, &["rm", "a", "--force"]).exits(0).says("noise.log");
    let saved = removed.stdout.trim().to_owned();
    assert!(saved.starts_with("refs/coven/saved/a/"), "{saved}");
    assert!(!world.exists(&dir));
    assert_eq!(git(&world, "", &["branch", "--list", "coven/*"]), "");
    let files = git(&world, "", &["ls-tree", "-r", "--name-only", &saved]);
    assert_eq!(files, ".gitignore\ndeep/new a\nfile\nlater");
    assert_eq!(git(&world, "", &["show", &format!("{saved}:file")]), "changed by a");
    worktree(&world, &["rm", "a"]).exits(1).says("there is no worktree `a`");

    // And back again.
    let list = json(&worktree(&world, &["recover", "--json"]).exits(0));
    assert_eq!(list["saved"][0]["ref"], saved.as_str());
    worktree(&world, &["recover", "b"]).exits(2).says("nothing was saved of `b`");
    worktree(&world, &["recover", "a"]).exits(0);
    assert_eq!(world.read(&format!("{dir}/later")), "untracked");
    assert_eq!(world.read(&format!("{dir}/file")), "changed by a\n");
    let found = view(&world, "a");
    assert_eq!((&found["base_branch"], &found["ahead"]), (&"main".into(), &2.into()));
    assert_eq!(found["saved"], serde_json::json!([saved]));
    worktree(&world, &["recover", "a"]).exits(1).says("--as a-2");
    worktree(&world, &["recover", "a", "--as", "again"]).exits(0);
    assert_eq!(world.read(&format!("{}/later", place("again"))), "untracked");
}

fn what_is_merged_or_empty_or_ignored_goes_without_force() {
    let world = repository();
    worktree(&world, &["add", "empty"]).exits(0);
    let removed = json(&worktree(&world, &["rm", "empty", "--json"]).exits(0));
    assert_eq!(removed["saved"], Value::Null);
    with_work(&world, "a");
    worktree(&world, &["merge", "a"]).exits(0).says("ignored files went with it: noise.log");
    assert!(!world.exists(&place("a")));
    worktree(&world, &["rm", "a"]).exits(1).says("there is no worktree `a`");
    // By hand, too.
    with_work(&world, "m");
    worktree(&world, &["checkpoint", "m"]).exits(0);
    git(&world, "", &["merge", "--quiet", "--no-edit", "coven/m"]);
    assert_eq!(view(&world, "m")["state"], "merged");
    worktree(&world, &["rm", "m"]).exits(0).says("ignored files went with it: noise.log");
    // Ignored files can be saved too.
    worktree(&world, &["add", "b"]).exits(0);
    world.write(&format!("{}/noise.log", place("b")), "kept");
    let removed = worktree(&world, &["rm", "b", "--force", "--ignored"]).exits(0);
    let saved = removed.stdout.trim().to_owned();
    assert_eq!(git(&world, "", &["show", &format!("{saved}:noise.log")]), "kept");
    // Work on no branch is work.
    worktree(&world, &["add", "c"]).exits(0);
    git(&world, &place("c"), &["checkout", "--quiet", "--detach"]);
    world.write(&format!("{}/loose", place("c")), "l");
    commit(&world, &place("c"), "loose");
    worktree(&world, &["rm", "c"]).exits(1).says("1 commit not in");
    let saved = worktree(&world, &["rm", "c", "--force"]).exits(0).stdout.trim().to_owned();
    assert_eq!(git(&world, "", &["show", &format!("{saved}:loose")]), "l");
}

fn the_copy_of_the_base_goes_along_if_it_is_clean() {
    let world = repository();
    with_work(&world, "a");
    world.write("scratch", "an untracked file is no hindrance");
    let merged = worktree(&world, &["merge", "a", "--title", "Change it"]).exits(0);
    assert_eq!(merged.stdout.trim(), git(&world, "", &["rev-parse", "main"]));
    assert_eq!(world.read("file"), "changed by a\n");
    assert_eq!(git(&world, "", &["status", "--porcelain"]), "?? scratch");
    let message = git(&world, "", &["log", "-1", "--format=%s"]);
    assert_eq!(message, "merge coven/a: Change it");
    worktree(&world, &["merge", "a"]).exits(1).says("there is no worktree `a`");
    // One that has changes is left alone, whatever they are.
    with_work(&world, "b");
    let before = git(&world, "", &["rev-parse", "main"]);
    world.write("file", "my own change\n");
    let blocked = worktree(&world, &["merge", "b", "--json"]).exits(1);
    let told = json(&blocked);
    let reason = told["reason"].as_str().unwrap_or_else(|| panic!("{told}"));
    assert!(reason.contains("not committed there (file)"), "{reason}");
    assert_eq!(world.read("file"), "my own change\n");
    assert_eq!(git(&world, "", &["rev-parse", "main"]), before);
    git(&world, "", &["checkout", "--quiet", "file"]);
    // An untracked file in the way is not written over.
    world.write("deep/new b", "mine");
    worktree(&world, &["merge", "b"]).exits(1).says("cannot be moved forward");
    assert_eq!(world.read("deep/new b"), "mine");
    assert_eq!(git(&world, "", &["rev-parse", "main"]), before);
    nobody_is_there(&world);
}

fn a_base_that_is_checked_out_nowhere_is_moved_alone() {
    let world = repository();
    with_work(&world, "a");
    git(&world, "", &["checkout", "--quiet", "-b", "mine"]);
    world.write("file", "my own change\n");
    let merged = worktree(&world, &["merge", "a"]).exits(0).stdout.trim().to_owned();
    assert_eq!(git(&world, "", &["rev-parse", "main"]), merged);
    assert_eq!(world.read("file"), "my own change\n");
    assert_eq!(git(&world, "", &["branch", "--show-current"]), "mine");
    assert_eq!(git(&world, "", &["show", "main:file"]), "changed by a");
    // A base that is being rebased somewhere is not moved under it.
    git(&world, "", &["commit", "--quiet", "--all", "--message", "mine"]);
    git(&world, "", &["checkout", "--quiet", "main"]);
    let rebase = git_command(&world, "", &["rebase", "mine"]).output().unwrap();
    assert!(!rebase.status.success());
    worktree(&world, &["add", "b", "--base", "main"]).exits(0);
    world.write(&format!("{}/b", place("b")), "b");
    worktree(&world, &["merge", "b"]).exits(1).says("it is being rebased or bisected there");
}

fn a_conflict_blocks_with_its_files() {
    let world = repository();
    with_work(&world, "a");
    world.write("file", "another change\n");
    commit(&world, "", "another");
    let before = git(&world, "", &["rev-parse", "main"]);
    let blocked = json(&worktree(&world, &["merge", "a", "--json"]).exits(1));
    assert_eq!(blocked["conflicts"], serde_json::json!(["file"]));
    assert_eq!(blocked["outcome"], "blocked");
    assert_eq!(git(&world, "", &["rev-parse", "main"]), before);
    assert_eq!(git(&world, "", &["status", "--porcelain"]), "");
    nobody_is_there(&world);
    assert_eq!(view(&world, "a")["holder"], Value::Null);
    worktree(&world, &["merge", "none"]).exits(1).says("there is no worktree `none`");
}

fn checks_see_the_merged_tree() {
    let world = repository();
    with_work(&world, "a");
    world.write("base only", "b");
    commit(&world, "", "base");
    let both = "test -e 'base only' -a -e 'deep/new a' && pwd > ../../../where";
    worktree(&world, &["merge", "a", "--check", both, "--check", "echo broken >&2; exit 3"])
        .exits(1)
        .says("failed with exit code 3: broken");
    assert!(world.read("where").contains(".coven/worktrees/.merge-"));
    assert!(!world.exists("deep"));
    worktree(&world, &["merge", "a", "--check", "sleep 60", "--check-timeout", "100ms"])
        .exits(1)
        .says("exit code 124");
    nobody_is_there(&world);
    worktree(&world, &["merge", "a", "--check", both]).exits(0);
    assert!(world.exists("deep/new a"));
}

fn a_base_that_moves_is_merged_anew() {
    let world = repository();
    with_work(&world, "a");
    let workspace = world.path("");
    let ws = workspace.to_str().unwrap();
    let go_on = format!("cd '{ws}' && date +%N%s > moved && git add moved && git commit -qm moved");
    let once = format!("test -e '{ws}/moved' || ( {go_on} )");
    let merged = worktree(&world, &["merge", "a", "--check", &once, "--json"]).exits(0);
    assert_eq!(json(&merged)["outcome"], "merged");
    assert!(world.exists("moved") && world.exists("deep/new a"));
    assert_eq!(git(&world, "", &["status", "--porcelain"]), "");
    // One that never rests is given up.
    with_work(&world, "b");
    world.write(&format!("{}/file", place("b")), world.read("file"));
    let blocked = worktree(&world, &["merge", "b", "--check", &go_on]).exits(1);
    blocked.says("`main` moved 5 times");
    nobody_is_there(&world);
    // The same where it is checked out nowhere.
    git(&world, "", &["checkout", "--quiet", "-b", "mine"]);
    let go_on = "git update-ref refs/heads/main $(git commit-tree main^{tree} -p main -m on)";
    let once = format!("test -e '{ws}/again' || ( touch '{ws}/again' && {go_on} )");
    worktree(&world, &["merge", "b", "--check", &once]).exits(0);
    let log = git(&world, "", &["log", "-2", "--first-parent", "--format=%s", "main"]);
    assert_eq!(log, "merge coven/b\non");
}

fn an_approval_is_bound_to_what_was_reviewed() {
    let world = repository();
    with_work(&world, "a");
    let diff = worktree(&world, &["diff", "a"]).exits(0);
    assert!(diff.stdout.contains("+changed by a") && diff.stdout.contains("deep/new a"));
    assert!(!diff.stdout.contains("noise.log"));
    let hash = json(&worktree(&world, &["diff", "a", "--json"]).exits(0))["sha256"].clone();
    let hash = hash.as_str().unwrap();
    assert!(diff.stderr.contains(&format!("sha256 {hash}")), "{}", diff.stderr);
    let sum = world.command("sh").args(["-c", "orchestrate worktree diff a | sha256sum"]).output();
    assert!(String::from_utf8_lossy(&sum.unwrap().stdout).starts_with(hash));
    // Neither a checkpoint nor settings nor a base that goes on change what is reviewed.
    worktree(&world, &["checkpoint", "a"]).exits(0);
    for (key, value) in [("diff.noprefix", "true"), ("diff.algorithm", "histogram")] {
        git(&world, "", &["config", key, value]);
    }
    world.write("elsewhere", "e");
    commit(&world, "", "elsewhere");
    let again = worktree(&world, &["diff", "a"]).exits(0);
    assert!(again.stderr.contains(hash), "{}", again.stderr);
    // A file that comes after it does.
    world.write(&format!("{}/sneaked in", place("a")), "x");
    let void = worktree(&world, &["merge", "a", "--approval", hash]).exits(1);
    void.says("the approval is void");
    assert!(!world.exists("deep"));
    fs::remove_file(world.path(&place("a")).join("sneaked in")).unwrap();
    worktree(&world, &["merge", "a", "--approval", hash]).exits(0);
    assert!(world.exists("deep/new a"));
}

fn many_at_once_make_what_each_wants() {
    let world = repository();
    let ids = ["same", "same", "same", "one", "two"];
    let started: Vec<_> =
        ids.iter().map(|id| world.start(&["worktree", "add", id, "--json"])).collect();
    let ways: Vec<String> = started
        .into_iter()
        .map(|started| json(&started.wait().exits(0))["way"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(ways[..3].iter().filter(|way| *way == "made").count(), 1, "{ways:?}");
    assert_eq!(ways[..3].iter().filter(|way| *way == "reused").count(), 2, "{ways:?}");
    assert_eq!(git(&world, "", &["branch", "--list", "coven/*"]).lines().count(), 3);
    nobody_is_there(&world);
}

fn merges_go_one_after_the_other_in_the_order_they_came() {
    let world = repository();
    let ids = ["a", "b", "c"];
    for id in ids {
        worktree(&world, &["add", id]).exits(0);
        world.write(&format!("{}/{id}", place(id)), id);
    }
    let workspace = world.path("");
    // The first is at it until all have come.
    let check = format!("until [ -e '{}/go' ]; do sleep 0.01; done", workspace.display());
    let mut started = Vec::new();
    for (number, id) in ids.iter().enumerate() {
        started.push(world.start(&["worktree", "merge", id, "--check", &check]));
        let tickets = || {
            let names = world.list(".git/coven/leases/merge");
            names.iter().filter(|name| name.contains('-')).count()
        };
        until("it is in the merge queue", || tickets() == number + 1);
    }
    worktree(&world, &["add", "d"]).exits(0);
    let waiting = worktree(&world, &["merge", "d", "--wait", "0s"]).exits(5);
    waiting.says("the repository is in use: process");
    let held = worktree(&world, &["merge", "a", "--wait", "0s"]).exits(5);
    held.says("worktree `a` is in use by step `merge`, attempt 1 (process");
    world.write("go", "");
    for started in started {
        started.wait().exits(0);
    }
    let log = git(&world, "", &["log", "--first-parent", "--reverse", "--format=%s", "main"]);
    assert_eq!(log, "first\nmerge coven/a\nmerge coven/b\nmerge coven/c");
    nobody_is_there(&world);
}

/// Settings, a bead, and an agent that works until it is let go.
fn with_agent(world: &World) {
    world.write(
        ".orchestrate/config.yaml",
        "default_provider: robot\nproviders:\n  robot:\n    command: [sh, robot.sh]\n    \
         input_mode: stdin\n",
    );
    world.write(
        "robot.sh",
        "cat >/dev/null; echo in >> \"$HOME/log\"; echo $PPID >> work; \
         until [ -e \"$HOME/go\" ]; do sleep 0.01; done; echo out >> \"$HOME/log\"; \
         echo '{\"success\": true, \"summary\": \"s\"}'\n",
    );
    world.write("bead.md", "---\nid: bd\ntitle: T\n---\nDo it.\n");
    world.write(
        "g.yaml",
        "name: g\nsteps:\n  - { name: implement, type: agent, spell: \"do\\nit\" }\n",
    );
    world.write(".gitignore", "*.log\n.orchestrate/\n.coven/\n");
    commit(world, "", "the project");
}

fn one_waits_its_turn_for_a_worktree_in_sight_of_all() {
    let world = repository();
    with_agent(&world);
    let home = world.path("home");
    fs::create_dir_all(&home).unwrap();
    let start = || {
        let mut command = world.orchestrate(&["run", "g.yaml", "--bead", "bead.md"]);
        world.spawn(command.env("HOME", &home))
    };
    let log = || fs::read_to_string(home.join("log")).unwrap_or_default();
    let first = start();
    until("the first is in", || log() == "in\n");
    let second = start();
    until("the second waits", || world.list(".git/coven/worktrees/bd/lease").len() == 3);
    let why = world.run(&["why", "latest"]).exits(0).stdout;
    assert!(why.contains("`implement` waits for worktree `bd`, which step `implement`"), "{why}");
    let status = world.run(&["status", "latest", "--json"]).exits(0).stdout;
    assert!(status.contains("waits_for_worktree"), "{status}");
    // A third that may not wait is told who has it.
    world.write("impatient.yaml", "worktree: { wait: 1s }\n");
    let third = world.run(&["run", "g.yaml", "--bead", "bead.md", "--config", "impatient.yaml"]);
    third.exits(1).says("worktree `bd` is in use by step `implement`, attempt 1, of run");
    assert_eq!(log(), "in\n", "nobody else was let in");
    fs::write(home.join("go"), "").unwrap();
    first.wait().exits(0);
    second.wait().exits(0);
    assert_eq!(log(), "in\nout\nin\nout\n");
    assert_eq!(git(&world, "", &["rev-list", "--count", "main..coven/bd"]), "2");
    nobody_is_there(&world);
}

/// A run that is killed leaves its agent at work. Whoever takes the worktree next ends it first.
fn what_the_dead_left_at_work_is_ended_before_the_next_is_let_in() {
    let world = repository();
    with_agent(&world);
    let home = world.path("home");
    fs::create_dir_all(&home).unwrap();
    let start = || {
        let mut command = world.orchestrate(&["run", "g.yaml", "--bead", "bead.md"]);
        world.spawn(command.env("HOME", &home))
    };
    let killed = start();
    let log = || fs::read_to_string(home.join("log")).unwrap_or_default();
    until("it is in", || log() == "in\n");
    killed.kill();
    let next = start();
    until("the next is in", || log() == "in\nin\n");
    fs::write(home.join("go"), "").unwrap();
    next.wait().exits(0);
    assert_eq!(log(), "in\nin\nout\n", "the one that was left did not go on");
    assert!(git(&world, &place("bd"), &["show", "HEAD:work"]).lines().count() == 2, "no work lost");
}

/// A holder on another machine is known by its beat: refused while it beats, and taken for dead
/// once it stood still for its lease, by whoever comes and whatever for.
fn a_holder_on_another_machine_is_known_by_its_beat() {
    let (world, other) = (repository(), repository());
    let holds = |world: &World, id: &str| {
        worktree(world, &["add", id]).exits(0);
        let owner = serde_json::json!({
            "host": "far", "boot_id": "another", "pid_namespace": "another", "pid": 1,
            "start_time": 1, "since": "2026-11-16T05:55:02.089Z", "purpose": "building",
            "details": { "step": "Build", "attempt": 1 },
        });
        let lease = format!(".git/coven/worktrees/{id}/lease");
        if world.exists(&lease) {
            fs::remove_dir_all(world.path(&lease)).unwrap();
        }
        world.write(&format!("{lease}/1.far"), "");
        world.write(&ticket(id), format!("000000000001\n{owner}\n"));
    };
    fn ticket(id: &str) -> String {
        format!(".git/coven/worktrees/{id}/lease/0000000001-far")
    }
    for id in ["beats", "removed", "kept", "base"] {
        holds(&world, id);
    }
    holds(&other, "cleaned");
    world.write(&format!("{}/work", place("kept")), "done\n");
    worktree(&world, &["add", "part", "--base", "coven/base"]).exits(0);
    world.write(&format!("{}/part", place("part")), "done\n");
    let dead: Vec<_> = [
        &["worktree", "rm", "removed"][..],
        &["worktree", "checkpoint", "kept"],
        &["worktree", "merge", "part"],
    ]
    .into_iter()
    .map(|arguments| world.start(arguments))
    .chain([other.start(&["clean", "--older-than", "0s"])])
    .collect();

    let beat = "i=2; while :; do printf %012d $i 1<>$1; i=$((i+1)); sleep 0.1; done";
    let ticket = world.path(&ticket("beats"));
    let _beating = world.spawn(world.command("sh").args(["-c", beat, "sh"]).arg(ticket));
    let held = worktree(&world, &["rm", "beats"]).exits(5);
    held.says("worktree `beats` is in use by step `Build`, attempt 1 (process 1 on far)");
    worktree(&world, &["checkpoint", "beats"]).exits(5);

    for started in dead {
        started.wait().exits(0);
    }
    assert!(!world.exists(&place("removed")) && !other.exists(&place("cleaned")));
    assert_eq!(git(&world, &place("kept"), &["show", "HEAD:work"]), "done");
    assert_eq!(git(&world, &place("base"), &["show", "HEAD:part"]), "done");
    assert_eq!(view(&world, "beats")["holder_alive"], true);
}

/// What the `git` of ours does to its caller at the n-th call.
#[derive(Clone, Copy, Debug)]
enum Kill {
    /// Kills it and does nothing.
    Instead,
    /// Kills it, and goes on as an orphan that takes its time, so that the next one meets it.
    During,
}

/// Runs the program so that it is killed at its n-th call of git. False if it ended before.
fn killed(world: &World, kill: Kill, at: usize, arguments: &[&str]) -> bool {
    let bin = world.outside("bin");
    let count = world.outside("count");
    let found = world.command("sh").args(["-c", "command -v git"]).output().unwrap();
    let real = String::from_utf8(found.stdout).unwrap();
    let (real, count_path) = (real.trim(), count.display());
    let then = match kill {
        Kill::Instead => "exit 1",
        Kill::During => "sleep 0.1",
    };
    let script = format!(
        "#!/bin/sh\necho >> '{count_path}'\n\
         if [ $(wc -l < '{count_path}') = {at} ]; then kill -9 $PPID; {then}; fi\n\
         exec {real} \"$@\"\n"
    );
    fs::create_dir_all(&bin).unwrap();
    let _ = fs::remove_file(&count);
    world.write("git.tmp", script);
    fs::rename(world.path("git.tmp"), bin.join("git")).unwrap();
    let mut command = world.orchestrate(&[&["worktree"], arguments].concat());
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
    let ended = world.spawn(command.env("PATH", path)).wait();
    match ended.exit {
        137 => true,
        0 => false,
        other => panic!("exit {other} at call {at}: {}", ended.stderr),
    }
}

/// Kills at every call, each time with another bead, until one is not reached any more.
fn at_every_call(kill: Kill, mut story: impl FnMut(&dyn Fn(&[&str]) -> bool, &str, &World)) {
    let world = repository();
    for at in 1.. {
        let id = format!("k{at}");
        let reached = std::cell::Cell::new(true);
        let run = |arguments: &[&str]| {
            reached.set(killed(&world, kill, at, arguments));
            reached.get()
        };
        story(&run, &id, &world);
        if !reached.get() {
            assert!(at > 5, "{at} calls are too few to be true");
            break;
        }
    }
    nobody_is_there(&world);
    git(&world, "", &["fsck", "--no-dangling"]);
    assert_eq!(git(&world, "", &["status", "--porcelain"]), "");
}

fn making_goes_on_after_a_kill(kill: Kill) {
    at_every_call(kill, |run, id, world| {
        run(&["add", id]);
        worktree(world, &["add", id]).exits(0);
        let dir = place(id);
        assert_eq!(world.read(&format!("{dir}/file")), "one\n");
        assert_eq!(git(world, &dir, &["status", "--porcelain"]), "");
        world.write(&format!("{dir}/work"), id);
        worktree(world, &["checkpoint", id]).exits(0);
    });
}

fn a_checkpoint_goes_on_after_a_kill(kill: Kill) {
    at_every_call(kill, |run, id, world| {
        with_work(world, id);
        run(&["checkpoint", id]);
        let dir = place(id);
        assert_eq!(world.read(&format!("{dir}/deep/new {id}")), id);
        worktree(world, &["checkpoint", id]).exits(0);
        assert_eq!(git(world, &dir, &["status", "--porcelain"]), "");
        assert_eq!(git(world, &dir, &["show", "HEAD:file"]), format!("changed by {id}"));
        assert_eq!(git(world, &dir, &["rev-list", "--count", "main..HEAD"]), "1");
    });
}

fn a_merge_goes_on_after_a_kill(kill: Kill) {
    at_every_call(kill, |run, id, world| {
        worktree(world, &["add", id]).exits(0);
        world.write(&format!("{}/{id}", place(id)), id);
        run(&["merge", id, "--check", "true"]);
        let again = worktree(world, &["merge", id, "--check", "true"]);
        let done = again.exit == 0 || again.stderr.contains("there is no worktree");
        assert!(done, "{}", again.stderr);
        assert!(!world.exists(&place(id)), "a merged worktree is removed");
        assert_eq!(world.read(id), id, "the copy of the base went along");
        let count = git(world, "", &["log", "--format=%s", &format!("--grep=^merge coven/{id}$")]);
        assert_eq!(count.lines().count(), 1, "it was merged once");
        nobody_is_there(world);
    });
}

fn a_removal_goes_on_after_a_kill(kill: Kill) {
    at_every_call(kill, |run, id, world| {
        with_work(world, id);
        run(&["rm", id, "--force"]);
        let again = worktree(world, &["rm", id, "--force"]);
        let done = again.exit == 0 || again.stderr.contains("there is no worktree");
        assert!(done, "{}", again.stderr);
        assert!(!world.exists(&place(id)));
        let format = "--format=%(refname)";
        let saved = git(world, "", &["for-each-ref", format, &format!("refs/coven/saved/{id}/")]);
        let last = saved.lines().last().expect("it was saved");
        assert_eq!(git(world, "", &["show", &format!("{last}:deep/new {id}")]), id);
        assert_eq!(git(world, "", &["show", &format!("{last}:file")]), format!("changed by {id}"));
    });
}

fn a_recovery_goes_on_after_a_kill(kill: Kill) {
    at_every_call(kill, |run, id, world| {
        with_work(world, id);
        worktree(world, &["rm", id, "--force"]).exits(0);
        if run(&["recover", id]) {
            worktree(world, &["recover", id]).exits(0);
        }
        let dir = place(id);
        assert_eq!(world.read(&format!("{dir}/deep/new {id}")), id);
        assert_eq!(git(world, &dir, &["status", "--porcelain"]), "");
        // What it was made of is not made again over what was done since.
        world.write(&format!("{dir}/file"), "later\n");
        worktree(world, &["recover", id]).exits(1).says("exists: its directory is there");
        assert_eq!(world.read(&format!("{dir}/file")), "later\n");
    });
}

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = vec![
        trial("worktree/ids name directories and branches", ids_name_directories_and_branches),
        trial("worktree/work begins at the remote's base", work_begins_at_the_base_of_the_remote),
        trial("worktree/there must be a beginning", without_a_place_to_begin_nothing_is_made),
        trial("worktree/git must be there", git_must_be_there),
        trial("worktree/commits are kept", commits_of_a_directory_that_was_deleted_are_kept),
        trial("worktree/a branch elsewhere", a_branch_that_is_checked_out_elsewhere_is_not_taken),
        trial("worktree/checkpoints", a_step_ends_in_a_checkpoint),
        trial("worktree/nested", repositories_in_a_worktree_are_left_out_and_never_removed),
        trial("worktree/save and recover", nothing_is_removed_that_is_nowhere_else),
        trial("worktree/removal", what_is_merged_or_empty_or_ignored_goes_without_force),
        trial("worktree/merge into a copy", the_copy_of_the_base_goes_along_if_it_is_clean),
        trial("worktree/merge alone", a_base_that_is_checked_out_nowhere_is_moved_alone),
        trial("worktree/conflict", a_conflict_blocks_with_its_files),
        trial("worktree/checks", checks_see_the_merged_tree),
        trial("worktree/a base that moves", a_base_that_moves_is_merged_anew),
        trial("worktree/approval", an_approval_is_bound_to_what_was_reviewed),
        trial("worktree/many at once", many_at_once_make_what_each_wants),
        trial("worktree/waiting", one_waits_its_turn_for_a_worktree_in_sight_of_all),
        trial("worktree/left", what_the_dead_left_at_work_is_ended_before_the_next_is_let_in),
        trial("worktree/far holders", a_holder_on_another_machine_is_known_by_its_beat),
        trial("worktree/merge lane", merges_go_one_after_the_other_in_the_order_they_came),
    ];
    for fault in &FAULTS {
        let name = format!("worktree/verified: {}", fault.0);
        trials.push(trial(name, move || what_does_not_fit_is_told_and_left_alone(fault)));
    }
    for (kill, how) in [(Kill::Instead, "instead of"), (Kill::During, "during")] {
        type Story = (&'static str, fn(Kill));
        let stories: [Story; 5] = [
            ("making", making_goes_on_after_a_kill),
            ("checkpoint", a_checkpoint_goes_on_after_a_kill),
            ("merge", a_merge_goes_on_after_a_kill),
            ("removal", a_removal_goes_on_after_a_kill),
            ("recovery", a_recovery_goes_on_after_a_kill),
        ];
        for (what, story) in stories {
            let name = format!("worktree/kill -9 {how} every git of a {what}");
            trials.push(trial(name, move || story(kill)));
        }
    }
    trials
}
