//! `fsck --repair` cut off at any point, twice at once, and beside one who mends already: nothing
//! is lost, and all is put right in the end.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;

use libtest_mimic::Trial;

use crate::shim;
use crate::world::{World, trial, until};

const SETTINGS: &str = "durability: process\nqueue: { beat_sec: 0.2, lease_sec: 0.6 }\n";
const WORKFLOW: &str = "version: \"1.1\"\nsteps: [{ name: A, command: [\"true\"] }]\n";
const TASKS: usize = 12;
const JUNK: usize = 12;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("repair: a repair that is killed is gone on with", killed),
        trial("repair: two who mend at once lose nothing", twice),
        trial("repair: one who mends keeps others from it", alone),
    ]
}

/// A workspace in which everything lies wrong: tasks in another's inbox, files that are no tasks,
/// a state that says something else than its journal.
fn damaged() -> World {
    let world = World::with(WORKFLOW);
    world.write(".orchestrate/config.yaml", SETTINGS);
    world.run(&["--quiet", "run", "w.yaml"]).exits(0);
    let texts: String = (0..TASKS).map(|n| format!("task number {n}.\n")).collect();
    world.write("texts", texts);
    let put = world.run(&["--quiet", "enqueue", "engineer", "--each-line", "--file", "texts"]);
    put.exits(0);
    fs::create_dir_all(world.path("inbox/qa")).unwrap();
    for name in world.list("inbox/engineer") {
        let inbox = |agent: &str| world.path(&format!("inbox/{agent}/{name}"));
        fs::rename(inbox("engineer"), inbox("qa")).unwrap();
    }
    for n in 0..JUNK {
        world.write(&format!(".orchestrate/claimed/engineer/junk{n}.txt"), format!("junk {n}."));
    }
    let state = format!(".orchestrate/runs/{}/state.json", world.run_id());
    world.write(&state, world.read(&state).replace("completed", "failed"));
    world.run(&["--quiet", "fsck"]).exits(7);
    world
}

/// How often each planted text lies anywhere in the workspace.
fn planted(world: &World) -> BTreeMap<String, usize> {
    fn walk(dir: &Path, into: &mut Vec<String>) {
        for entry in dir.read_dir().into_iter().flatten().flatten() {
            match entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                true => walk(&entry.path(), into),
                false => into.push(fs::read_to_string(entry.path()).unwrap_or_default()),
            }
        }
    }
    let mut files = Vec::new();
    for dir in ["inbox", "failed", "processed", ".orchestrate"] {
        walk(&world.path(dir), &mut files);
    }
    let tasks = (0..TASKS).map(|n| format!("task number {n}."));
    let junk = (0..JUNK).map(|n| format!("junk {n}."));
    let count = |text: &String| files.iter().filter(|file| file.contains(text.as_str())).count();
    tasks.chain(junk).map(|text| (text.clone(), count(&text))).collect()
}

/// All is whole, and every planted text is there once.
#[track_caller]
fn is_whole(world: &World) {
    let found = world.run(&["--quiet", "fsck"]).exits(0);
    assert_eq!(found.stdout, "", "nothing is left to be told");
    let counts = planted(world);
    assert!(counts.values().all(|count| *count == 1), "each is there once: {counts:?}");
    assert_eq!(world.list("inbox/engineer").len(), TASKS);
    assert_eq!(world.status(), "completed");
}

fn killed() {
    let world = damaged();
    // How far a repair has come is seen in `lost/` and in the right inbox.
    let come = || world.list(".orchestrate/lost").len() + world.list("inbox/engineer").len();
    let mut kills = 0;
    loop {
        let (before, mut mending) = (come(), world.start(&["--quiet", "fsck", "--repair"]));
        until("it has come further", || come() > before + 1 || !mending.is_running());
        if !mending.is_running() {
            break;
        }
        mending.kill();
        kills += 1;
        let counts = planted(&world);
        assert!(counts.values().all(|count| *count == 1), "after kill {kills}: {counts:?}");
    }
    assert!(kills > 3, "it was killed in the middle: {kills}");
    world.run(&["--quiet", "fsck", "--repair"]).exits(0);
    is_whole(&world);
}

fn twice() {
    let world = damaged();
    // Without locks nothing but the renames keeps them from each other.
    let start = |_| {
        let mut command = world.orchestrate(&["--quiet", "fsck", "--repair"]);
        world.spawn(shim::without_locks(&mut command))
    };
    let mending: Vec<_> = (1..=3).map(start).collect();
    for one in mending {
        let ended = one.wait();
        assert!([0, 7].contains(&ended.exit), "{ended:?}");
    }
    world.run(&["--quiet", "fsck", "--repair"]).exits(0);
    is_whole(&world);
}

fn alone() {
    let world = damaged();
    world.write(".orchestrate/repair.lock", "");
    let held = File::open(world.path(".orchestrate/repair.lock")).unwrap();
    held.lock().unwrap();
    world.run(&["fsck", "--repair"]).exits(5).says("mends this workspace already");
    assert!(!world.exists(".orchestrate/lost"), "nothing was moved");
    drop(held);
    world.run(&["--quiet", "fsck", "--repair"]).exits(0);
    is_whole(&world);
}
