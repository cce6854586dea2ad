//! Several machines at one bead: clones of their own that share a remote, and one workspace that
//! machines see under different paths. Whoever goes on with work has that work, or is stopped.

use std::fs;

use libtest_mimic::Trial;
use serde_json::Value;

use crate::world::{Outcome, World, trial, until};

const CONFIG: &str = "default_provider: robot\nagents: { east: {}, west: {} }\n\
    providers: { robot: { command: [sh, robot.sh], input_mode: stdin } }\nqueue: { poll_ms: 5 }\n";
const PUSH: &str = "worktree: { push: true }\n";
const GRIMOIRE: &str = "name: g\nsteps:\n\
    \x20 - { name: one, type: agent, spell: \"Do\\nit.\", agent: east }\n\
    \x20 - { name: two, type: agent, spell: \"Do\\nmore.\", agent: west }\n\
    \x20 - { name: merge, type: merge, require_review: false }\n";
/// Leaves a file that tells what it found.
const ROBOT: &str = "cat > /dev/null; echo after $(ls *.out 2> /dev/null) > $ORCHESTRATE_STEP.out\n\
    echo '{\"success\": true, \"summary\": \"s\"}'\n";

/// What git prints in a clone, which must succeed.
#[track_caller]
fn git(world: &World, dir: &str, arguments: &[&str]) -> String {
    let mut command = world.command("git");
    command.current_dir(world.path(dir)).args(arguments).env("GIT_CONFIG_NOSYSTEM", "1");
    let output = command.output().expect("git runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "git {arguments:?}: {said}");
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

/// A remote and its clones `a` and `b`, with a project in them.
fn clones(settings: &str) -> World {
    let world = World::new();
    git(&world, "", &["init", "--quiet", "--bare", "--initial-branch=main", "far"]);
    git(&world, "", &["clone", "--quiet", "far", "a"]);
    git(&world, "a", &["checkout", "--quiet", "-B", "main"]);
    name_author(&world, "a");
    world.write("a/robot.sh", ROBOT);
    world.write("a/g.yaml", GRIMOIRE);
    world.write("a/x.yaml", "id: x\ntitle: X\n");
    let ignored = "/.orchestrate/\n/.coven/\n/inbox/\n/processed/\n/failed/\n/artifacts/\n";
    world.write("a/.gitignore", ignored);
    commit(&world, "a", "first");
    git(&world, "a", &["push", "--quiet", "origin", "main"]);
    git(&world, "", &["clone", "--quiet", "far", "b"]);
    name_author(&world, "b");
    for clone in ["a", "b"] {
        world.write(&format!("{clone}/.orchestrate/config.yaml"), format!("{CONFIG}{settings}"));
    }
    world
}

fn name_author(world: &World, dir: &str) {
    for (key, value) in [("user.name", "Tester"), ("user.email", "tester@example.org")] {
        git(world, dir, &["config", key, value]);
    }
}

fn commit(world: &World, dir: &str, message: &str) {
    git(world, dir, &["add", "--all"]);
    git(world, dir, &["commit", "--quiet", "--message", message]);
}

/// Runs the program in a clone.
fn run_in(world: &World, clone: &str, arguments: &[&str]) -> Outcome {
    let mut command = world.orchestrate(arguments);
    world.spawn(command.current_dir(world.path(clone))).wait()
}

/// What is pushed is gone on with in another clone, wherever that one stands.
fn a_branch_that_was_pushed_is_gone_on_with() {
    let world = clones(PUSH);
    world.write(
        "step.yaml",
        "name: s\nsteps:\n  - { name: STEP, type: agent, spell: \"Do\\nit.\" }\n",
    );
    let step = |clone: &str, name: &str| {
        let text = world.read("step.yaml").replace("STEP", name);
        world.write(&format!("{clone}/.orchestrate/{name}.yaml"), text);
        let file = format!(".orchestrate/{name}.yaml");
        run_in(&world, clone, &["run", &file, "--bead", "x.yaml"])
    };
    step("a", "first").exits(0);
    // Not here at all: it is fetched, and says so.
    let made = run_in(&world, "b", &["worktree", "add", "x", "--json"]).exits(0);
    let made: Value = serde_json::from_str(&made.stdout).unwrap();
    assert_eq!(made["way"], "fetched");
    assert!(made["warnings"][0].as_str().unwrap().contains("goes on from `origin/coven/x`"));
    assert_eq!(made["base_commit"], git(&world, "b", &["rev-parse", "main"]).as_str());
    step("b", "second").exits(0);
    // Here, and behind: it is moved forward.
    step("a", "third").exits(0).says("`coven/x` was brought up to `origin/coven/x`");
    assert_eq!(git(&world, "a", &["show", "coven/x:third.out"]), "after first.out second.out");
    // Behind, with something in no commit: it stops and leaves it.
    world.write("b/.coven/worktrees/x/mine", "m");
    step("b", "fourth").exits(1).says("its worktree has what no commit has: mine");
    assert_eq!(world.read("b/.coven/worktrees/x/mine"), "m");
    // Gone different ways: it stops, and nothing is moved.
    git(&world, "b/.coven/worktrees/x", &["add", "mine"]);
    git(&world, "b/.coven/worktrees/x", &["commit", "--quiet", "--message", "mine"]);
    let before = git(&world, "b", &["rev-parse", "coven/x"]);
    step("b", "fourth").exits(1).says("`coven/x` and `origin/coven/x` have gone different ways");
    assert_eq!(git(&world, "b", &["rev-parse", "coven/x"]), before);
    git(&world, "b/.coven/worktrees/x", &["merge", "--quiet", "--no-edit", "origin/coven/x"]);
    step("b", "fourth").exits(0);
    assert_eq!(git(&world, "", &["-C", "far", "rev-parse", "coven/x"]), {
        git(&world, "b", &["rev-parse", "coven/x"])
    });
    // A remote that does not answer: what is here is what the run expects, so it goes on, and says
    // that nobody else has it.
    fs::rename(world.path("far"), world.path("farther")).unwrap();
    step("b", "fifth").exits(0).says("`coven/x` is not pushed");
    fs::rename(world.path("farther"), world.path("far")).unwrap();
    step("b", "sixth").exits(0);
    // What is removed here is still there, which is said, and so is that it comes back.
    let removed = run_in(&world, "a", &["worktree", "rm", "x", "--force"]).exits(0);
    removed.says("`git push origin --delete coven/x`");
    let made = run_in(&world, "a", &["worktree", "add", "x"]).exits(0);
    made.says("the work goes on from `origin/coven/x`").says("fetched from `main`");
    // What is merged there is begun anew from its base.
    run_in(&world, "b", &["worktree", "merge", "x"]).exits(0);
    git(&world, "b", &["push", "--quiet", "origin", "main"]);
    git(&world, "a", &["fetch", "--quiet", "origin", "main"]);
    run_in(&world, "a", &["worktree", "rm", "x", "--force"]).exits(0);
    let made = run_in(&world, "a", &["worktree", "add", "x", "--json"]).exits(0);
    assert!(made.stdout.contains("\"made\""), "{}", made.stdout);
}

/// A run whose steps are done in two clones, with one queue: each machine sees the workspace with
/// a `.git` and worktrees of its own.
fn a_step_on_another_machine_has_the_work_of_the_one_before() {
    if !can_mount() {
        eprintln!("skipped: this machine lets nobody make mounts of their own");
        return;
    }
    let world = clones("");
    fs::create_dir_all(world.path("a/.coven/worktrees")).unwrap();
    fs::create_dir_all(world.path("b/trees")).unwrap();
    let mut east = world.orchestrate(&["worker", "east"]);
    let east = world.spawn(east.current_dir(world.path("a")));
    let script = "mount --make-rprivate / && mount --bind b/.git a/.git && \
                  mount --bind b/trees a/.coven/worktrees && cd a && exec orchestrate worker west";
    let mut command = world.command("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script]);
    let west = world.spawn(command.current_dir(world.path("")));
    // Nobody pushes: it stops, with what to do, and nothing was begun there.
    let blocked = run_in(&world, "a", &["run", "--fleet", "g.yaml", "--bead", "x.yaml"]).exits(1);
    let left = git(&world, "a", &["rev-parse", "coven/x"]);
    let said = format!("`one` left `coven/x` at commit {left}, which is neither in this clone nor");
    let blocked = blocked.says(&said).says("`git push origin coven/x`");
    blocked.says("run").says("blocked");
    assert_eq!(world.list("b/trees").len(), 0, "nothing was begun from the base");
    // As it says: pushed, and gone on with; and the merge has what was done there.
    git(&world, "a", &["push", "--quiet", "origin", "coven/x"]);
    let stopped = run_in(&world, "a", &["resume", "latest"]).exits(1);
    stopped.says("`two` left `coven/x` at commit");
    assert_eq!(git(&world, "b", &["show", "coven/x:two.out"]), "after one.out");
    git(&world, "b", &["push", "--quiet", "origin", "coven/x"]);
    run_in(&world, "a", &["resume", "latest"]).exits(0);
    assert_eq!(git(&world, "a", &["show", "main:two.out"]), "after one.out");
    // With `push`, it goes by itself. The workers have their settings from their start.
    for worker in [east, west] {
        worker.signal(nix::sys::signal::Signal::SIGTERM);
        worker.wait();
    }
    world.write("a/.orchestrate/config.yaml", format!("{CONFIG}{PUSH}"));
    world.write("a/y.yaml", "id: y\ntitle: Y\n");
    let mut east = world.orchestrate(&["worker", "east"]);
    let east = world.spawn(east.current_dir(world.path("a")));
    let west = world.spawn(command.current_dir(world.path("")));
    run_in(&world, "a", &["run", "--fleet", "g.yaml", "--bead", "y.yaml"]).exits(0);
    assert!(world.exists("b/trees/y/two.out"));
    // So do tasks that follow on one another without a run.
    world.write("a/t", "---\nbead: z\nnext: [west]\n---\nDo it.\n");
    run_in(&world, "a", &["enqueue", "east", "--file", "t"]).exits(0);
    until("both have worked", || {
        let log = world
            .command("git")
            .args(["-C", "far", "rev-list", "--count", "main..coven/z"])
            .current_dir(world.path(""))
            .output()
            .unwrap();
        String::from_utf8_lossy(&log.stdout).trim().parse::<u32>().is_ok_and(|count| count >= 2)
    });
    for worker in [east, west] {
        worker.signal(nix::sys::signal::Signal::SIGTERM);
        worker.wait();
    }
}

/// Whether mounts of one's own can be made here.
fn can_mount() -> bool {
    let mut command = std::process::Command::new("unshare");
    let script = "mount --make-rprivate / && mount --bind /tmp /tmp";
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script]);
    command.output().is_ok_and(|output| output.status.success())
}

/// A workspace that another machine has under another path.
fn a_workspace_of_another_path_is_told() {
    let world = clones("");
    run_in(&world, "a", &["worktree", "add", "x"]).exits(0);
    world.write("a/.coven/worktrees/x/mine", "m");
    fs::rename(world.path("a"), world.path("moved")).unwrap();
    let run = ["run", "g.yaml", "--bead", "x.yaml"];
    for arguments in [&["worktree", "add", "x"][..], &["worktree", "checkpoint", "x"], &run] {
        let stopped = run_in(&world, "moved", arguments).exits(1);
        stopped.says("git knows worktree `x` as").says("the same path on all machines");
    }
    assert_eq!(world.read("moved/.coven/worktrees/x/mine"), "m");
    // As it says, for one that was moved for good.
    git(&world, "moved", &["worktree", "repair", ".coven/worktrees/x"]);
    run_in(&world, "moved", &["worktree", "checkpoint", "x"]).exits(0);
}

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial(
            "clones/a branch that was pushed is gone on with",
            a_branch_that_was_pushed_is_gone_on_with,
        ),
        trial(
            "clones/a step on another machine has the work of the one before",
            a_step_on_another_machine_has_the_work_of_the_one_before,
        ),
        trial("clones/a workspace of another path is told", a_workspace_of_another_path_is_told),
    ]
}
