//! Loads the faulty disk and clock of `faulty_disk.c` into programs under test.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use libtest_mimic::Trial;

use crate::world::{World, trial};

/// Compiles the faulty disk, once for all tests of a process, and returns its path.
pub(crate) fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/chaos/faulty_disk.c");
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let made = dir.join(format!("faulty_disk.{}.so", std::process::id()));
        let mut gcc = Command::new("gcc");
        gcc.args(["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o"]);
        let status = gcc.arg(&made).arg(source).arg("-ldl").status().expect("gcc starts");
        assert!(status.success(), "the faulty disk does not compile");
        // Another test process may have loaded the library of before, which stays as it is.
        let library = dir.join("faulty_disk.so");
        std::fs::rename(made, &library).expect("a rename");
        library
    })
}

/// Makes calls of a program on the fleet's state in `workspace` fail: `rate` in a thousand.
pub(crate) fn fail(command: &mut Command, workspace: &Path, (seed, rate): (u64, u64)) {
    command
        .env("LD_PRELOAD", library())
        .env("FAULTY_DISK_ROOT", workspace)
        .env("FAULTY_DISK_SEED", seed.to_string())
        .env("FAULTY_DISK_RATE", rate.to_string());
}

/// Makes the wall clock of a program wrong.
pub(crate) fn set_clock(command: &mut Command, by_ms: i64) {
    command.env("LD_PRELOAD", library()).env("FAULTY_CLOCK_MS", by_ms.to_string());
}

/// Makes a program find no locks on any volume.
pub(crate) fn without_locks(command: &mut Command) -> &mut Command {
    command.env("LD_PRELOAD", library()).env("FAULTY_DISK_NO_LOCKS", "1")
}

/// Enqueues tasks on a failing disk: an acknowledged task is there, and nothing is damaged. A task
/// that was not acknowledged may be there too, because a call may report an error after success.
fn acknowledged_tasks_are_kept() {
    let world = World::new();
    let workspace = world.path("").canonicalize().expect("a path");
    let (mut acknowledged, mut failures) = (BTreeSet::new(), 0);
    for seed in 1..=40 {
        let mut command = world.orchestrate(&["enqueue", "engineer", "x", "--quiet"]);
        fail(&mut command, &workspace, (seed, 100));
        let outcome = world.spawn(&mut command).wait();
        match outcome.exit {
            0 => _ = acknowledged.insert(outcome.stdout.trim().to_owned()),
            _ => failures += 1,
        }
    }
    assert!(failures > 4 && acknowledged.len() > 4, "{failures} of 40 calls failed");
    let kept = world.list("inbox/engineer");
    let kept: BTreeSet<String> =
        kept.iter().filter_map(|name| name.get(2..28)).map(str::to_owned).collect();
    assert!(acknowledged.is_subset(&kept), "{acknowledged:?} are not all among {kept:?}");
    world.run(&["fsck"]).exits(0);
}

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("chaos/a failing disk keeps acknowledged tasks", acknowledged_tasks_are_kept)]
}
