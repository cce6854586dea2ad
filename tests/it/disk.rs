//! A disk that is full, read-only or damaged: a clear word about it, and nothing lost.
//!
//! Mounting needs the right to; where it is refused these trials say so and pass.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use libtest_mimic::Trial;
use serde_json::Value;

use crate::world::{World, trial};

/// Runs a test in a mount namespace of its own, so that whatever it mounts is gone with it, even
/// if it is killed.
pub(crate) fn apart(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(move || {
        // SAFETY: a plain system call; it concerns this thread alone.
        let alone = unsafe { nix::libc::unshare(nix::libc::CLONE_NEWNS) } == 0
            && mount(&["--make-rprivate", "/"]);
        if alone {
            test();
        } else {
            eprintln!("skipped: mounting is refused here");
        }
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

pub(crate) fn mount(arguments: &[&str]) -> bool {
    Command::new("mount")
        .args(arguments)
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// A small file system in a directory of the workspace.
pub(crate) fn small_disk(world: &World, name: &str) {
    let path = world.path(name);
    std::fs::create_dir_all(&path).expect("a directory");
    let path = path.to_string_lossy();
    assert!(mount(&["-t", "tmpfs", "-o", "size=256k", "none", &path]), "a small disk");
}

/// Uses up all room.
fn fill(file: &Path) {
    let mut file = File::create(file).expect("a file");
    while file.write_all(&[b'x'; 4096]).is_ok() {}
}

const TWO: &str = "version: '1.1'\nsteps:\n\
    - { name: One, command: [sh, -c, 'echo one >> ran'] }\n\
    - { name: Two, command: [sh, -c, 'echo two >> ran'] }\n";

fn full_from_the_start() {
    let world = World::with(TWO);
    small_disk(&world, ".orchestrate");
    fill(&world.path(".orchestrate/ballast"));
    let outcome = world.run(&["run", "w.yaml"]).exits(1);
    let runs = world.path(".orchestrate/runs");
    assert!(outcome.stderr.contains(&*runs.to_string_lossy()), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("the disk is full"), "{}", outcome.stderr);
    assert_eq!(world.list(".orchestrate/runs"), [""; 0], "no half of a run is left");
    assert!(!world.exists("ran"));
    std::fs::remove_file(world.path(".orchestrate/ballast")).expect("room is made");
    world.run(&["run", "w.yaml"]).exits(0);
}

/// Some room is left, but not enough to begin: whatever was made is taken away again.
fn nearly_full() {
    let world = World::with(TWO);
    small_disk(&world, ".orchestrate");
    for pages in 1..12 {
        fill(&world.path(".orchestrate/ballast"));
        let ballast = File::options().write(true).open(world.path(".orchestrate/ballast"));
        let ballast = ballast.expect("the ballast");
        let size = ballast.metadata().expect("a size").len();
        ballast.set_len(size - pages * 4096).expect("a little room");
        let outcome = world.run(&["run", "w.yaml", "--quiet"]);
        if outcome.exit == 0 {
            assert!(pages > 1, "there was no room to run in");
            return;
        }
        let outcome = outcome.exits(1).says("the disk is full");
        if world.exists(".orchestrate/runs/latest") {
            // It had begun, so it can be gone on with.
            assert!(outcome.stderr.contains("resume"), "{}", outcome.stderr);
            ballast.set_len(0).expect("room is made");
            world.run(&["resume", "latest"]).exits(0);
            assert_eq!(world.status(), "completed");
            std::fs::remove_dir_all(world.path(".orchestrate/runs")).expect("a clean slate");
        } else {
            assert_eq!(world.list(".orchestrate/runs"), [""; 0], "{pages} pages of room");
        }
    }
    panic!("it never ran");
}

/// The disk fills up under a run: what is on record stays, and the rest is done when there is room.
fn full_in_the_middle() {
    let world = World::with(
        "version: '1.1'\nsteps:\n\
         - { name: One, command: [sh, -c, 'until [ -e .orchestrate/runs/latest/state.json ]; \
         do sleep 0.01; done; echo one >> ran'] }\n\
         - { name: Fill, command: [sh, -c, 'echo fill >> ran; [ -e room ] || cat /dev/zero \
         > .orchestrate/ballast 2>/dev/null; true'] }\n\
         - { name: Long, command: [sh, -c, 'echo long >> ran; yes | head -c 8000'] }\n\
         - { name: More, command: [sh, -c, 'echo more >> ran; yes | head -c 8000'] }\n\
         - { name: Last, command: [sh, -c, 'echo last >> ran'] }\n",
    );
    small_disk(&world, ".orchestrate");
    let outcome = world.run(&["run", "w.yaml"]).exits(1).says("the disk is full");
    assert!(outcome.stderr.contains(".orchestrate/runs/"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("orchestrate resume"), "{}", outcome.stderr);
    assert_eq!(world.status(), "running");
    let before = world.lines("ran");
    // As long as there is no room, resuming fails the same way and harms nothing.
    world.run(&["resume", "latest"]).exits(1).says("the disk is full");
    world.write("room", "");
    std::fs::remove_file(world.path(".orchestrate/ballast")).expect("room is made");
    world.run(&["resume", "latest"]).exits(0);
    assert_eq!(world.status(), "completed");
    let ran = world.lines("ran");
    let count = |name: &str| ran.iter().filter(|line| *line == name).count();
    assert_eq!((count("one"), count("last")), (1, 1), "{before:?}, then {ran:?}");
    let output = world.state()["steps"]["Long"]["output"].clone();
    assert_eq!(output.as_str().map(str::len), Some(8000), "the whole output is on record");
}

/// The results of a step go to a full disk, the state does not.
fn full_output() {
    let world = World::with(
        "version: '1.1'\nsteps:\n\
         - name: Big\n  command: [sh, -c, 'yes | head -c 600000']\n  output_file: out/big.txt\n",
    );
    small_disk(&world, "out");
    world.run(&["run", "w.yaml"]).exits(1);
    let error = &world.state()["steps"]["Big"]["error"]["message"];
    let error = error.as_str().unwrap_or_default();
    assert!(error.contains("No space left"), "{error}");
    assert!(error.contains("out/big.txt"), "it names the file: {error}");
    assert_eq!(world.status(), "failed");
}

fn read_only() {
    let world = World::with(TWO);
    let path = world.path("");
    let path = path.to_string_lossy();
    assert!(mount(&["--bind", &path, &path]) && mount(&["-o", "remount,bind,ro", &path]));
    let outcome = world.run(&["run", "w.yaml"]).exits(1).says("--state-dir");
    assert!(outcome.stderr.contains(".orchestrate"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("Read-only"), "{}", outcome.stderr);
    assert!(!world.exists(".orchestrate"));
    // The cure that is named is one: the first step then says what it cannot do.
    let state_dir = world.outside("runs");
    let state_dir = state_dir.to_string_lossy();
    world.run(&["run", "w.yaml", "--state-dir", &state_dir]).exits(1).says("`One`");
    world.run(&["validate", "w.yaml"]).exits(0);
}

/// A user who may not write here.
fn no_permission() {
    if !Command::new("setpriv").arg("--version").output().is_ok_and(|out| out.status.success())
        || !nix::unistd::geteuid().is_root()
    {
        eprintln!("skipped: this needs `setpriv` and the right to use it");
        return;
    }
    let world = World::with(TWO);
    // The program must be where anybody may look.
    let program = world.outside("orchestrate");
    std::fs::copy(crate::world::programs().join("orchestrate"), &program).expect("a copy");
    for dir in [world.outside(""), world.path("")] {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).expect("a mode");
    }
    let mut command = world.command("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program);
    let outcome = world.spawn(command.args(["run", "w.yaml"])).wait().exits(1);
    assert!(outcome.stderr.contains(".orchestrate"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("ermission denied"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("--state-dir"), "{}", outcome.stderr);
    assert!(!world.exists(".orchestrate"));
}

const STATE: &str = ".orchestrate/runs/latest/state.json";
const JOURNAL: &str = ".orchestrate/runs/latest/journal.jsonl";

/// A run that failed at its second step.
fn failed_run() -> World {
    let world = World::with(
        "version: '1.1'\ncontext: { greeting: hello }\nsteps:\n\
         - { name: One, command: [sh, -c, 'echo one >> ran'] }\n\
         - { name: Two, command: [sh, -c, 'echo two >> ran; [ -e go ]'] }\n\
         - { name: Three, command: [sh, -c, 'echo three >> ran'] }\n",
    );
    world.run(&["run", "w.yaml", "--context", "greeting=hi"]).exits(1);
    assert_eq!(world.lines("ran"), ["one", "two"]);
    world.write("go", "");
    world
}

/// Both cures are named, and both work.
fn half_a_state(repair: bool) {
    let world = failed_run();
    let id = world.run_id();
    let whole = world.read(STATE);
    world.write(STATE, &whole[..whole.len() / 2]);
    let outcome = world.run(&["resume", "latest"]).exits(7);
    for part in ["state.json", "--repair", "--force-restart"] {
        assert!(outcome.stderr.contains(part), "{}", outcome.stderr);
    }
    assert_eq!(world.read(STATE).len(), whole.len() / 2, "a refusal changes nothing");
    if repair {
        world.run(&["resume", "latest", "--repair"]).exits(0).says("rebuilt");
        assert_eq!(world.lines("ran"), ["one", "two", "two", "three"]);
        assert_eq!(world.run_id(), id);
    } else {
        world.run(&["resume", "latest", "--force-restart"]).exits(0);
        assert_eq!(world.lines("ran"), ["one", "two", "one", "two", "three"]);
        assert_ne!(world.run_id(), id);
    }
    assert_eq!(world.status(), "completed");
    assert_eq!(world.state()["context"]["greeting"], "hi", "the context is kept");
}

/// A state that is whole but empty, or of the wrong kind, is damage too.
fn no_state() {
    for text in ["", "null", "[]", "{}", "{\"status\": \"completed\"}"] {
        let world = failed_run();
        world.write(STATE, text);
        world.run(&["resume", "latest"]).exits(7).says("--repair");
        world.run(&["resume", "latest", "--repair"]).exits(0);
        assert_eq!(world.lines("ran"), ["one", "two", "two", "three"], "{text}");
    }
}

/// A completed run whose state was damaged has nothing left to do but to be mended.
fn half_a_state_of_a_completed_run() {
    let world = World::with(TWO);
    world.run(&["run", "w.yaml"]).exits(0);
    let whole = world.state();
    world.write(STATE, "{");
    world.run(&["resume", "latest", "--repair"]).exits(0);
    assert_eq!(world.state(), whole, "rebuilt from the journal, it is what it was");
    assert_eq!(world.lines("ran"), ["one", "two"]);
}

fn damaged_journal() {
    let world = failed_run();
    let whole = world.read(JOURNAL);
    assert_eq!(whole.matches("\"One\"").count(), 2, "launched and ended:\n{whole}");
    world.write(JOURNAL, whole.replacen("\"One\"", "\"Eno\"", 1));
    world.run(&["resume", "latest"]).exits(7).says("journal.jsonl");
    world.run(&["resume", "latest", "--repair"]).exits(0);
    assert_eq!(world.status(), "completed");
    let ran = world.lines("ran");
    assert_eq!(ran.last().map(String::as_str), Some("three"));
    assert_eq!(ran.iter().filter(|line| *line == "one").count(), 1, "{ran:?}");
    world.run(&["resume", "latest"]).exits(0).says("completed already");
}

/// What a crash left half-written is cut off, whatever it looks like.
fn torn_journal() {
    for tail in ["{", "{\"seq\":", "\0\0\0\0", "\u{fffd}\n", "{}\n", "\n"] {
        let world = failed_run();
        let whole = world.read(JOURNAL);
        world.write(JOURNAL, format!("{whole}{tail}"));
        world.run(&["resume", "latest"]).exits(0);
        assert_eq!(world.lines("ran"), ["one", "two", "two", "three"], "{tail:?}");
        let lines = world.lines(JOURNAL);
        assert!(lines.iter().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{tail:?}");
    }
}

/// Events that the snapshot has may be lost from the journal. What is appended then must not make
/// the journal look damaged later.
fn short_journal() {
    let world = failed_run();
    std::fs::remove_file(world.path("go")).expect("it is there");
    let whole = world.read(JOURNAL);
    world.write(JOURNAL, &whole[..whole.len() - 20]);
    world.run(&["resume", "latest"]).exits(1);
    world.run(&["resume", "latest"]).exits(1);
    world.write("go", "");
    world.run(&["resume", "latest"]).exits(0);
    assert_eq!(world.lines("ran"), ["one", "two", "two", "two", "two", "three"]);
}

/// A person may move the cursor while the run is stopped.
fn edited() {
    let world = failed_run();
    let mut state = world.state();
    assert_eq!(state["cursor"], "Two");
    state["cursor"] = "Three".into();
    state["status"] = "running".into();
    state["failed_steps"] = serde_json::json!([]);
    world.write(STATE, state.to_string());
    world.run(&["resume", "latest"]).exits(0);
    assert_eq!(world.lines("ran"), ["one", "two", "three"], "`Two` was passed over");
    let world = failed_run();
    let mut state = world.state();
    state["cursor"] = "One".into();
    state["status"] = "running".into();
    world.write(STATE, state.to_string());
    world.run(&["resume", "latest"]).exits(0);
    assert_eq!(world.lines("ran"), ["one", "two", "one", "two", "three"]);
    let world = failed_run();
    let mut state = world.state();
    state["cursor"] = "Tree".into();
    world.write(STATE, state.to_string());
    world.run(&["resume", "latest"]).exits(7).says("Tree");
}

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("disk/full from the start", || apart(full_from_the_start)),
        trial("disk/nearly full", || apart(nearly_full)),
        trial("disk/full in the middle", || apart(full_in_the_middle)),
        trial("disk/full where a step writes", || apart(full_output)),
        trial("disk/read-only", || apart(read_only)),
        trial("disk/no permission", no_permission),
        trial("disk/half a state, repaired", || half_a_state(true)),
        trial("disk/half a state, begun anew", || half_a_state(false)),
        trial("disk/a state of the wrong kind", no_state),
        trial("disk/half a state of a completed run", half_a_state_of_a_completed_run),
        trial("disk/a damaged journal", damaged_journal),
        trial("disk/a torn journal", torn_journal),
        trial("disk/a journal that ends too early", short_journal),
        trial("disk/a state edited by hand", edited),
    ]
}
