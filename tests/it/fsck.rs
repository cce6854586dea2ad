//! `orchestrate fsck` against faults planted by hand: each must be found, and nothing else.

use std::collections::BTreeSet;
use std::path::PathBuf;

use libtest_mimic::Trial;
use serde_json::Value;

use crate::world::{Told, World, trial, until, with_digest};

const QUICK: &str = "queue: { beat_sec: 0.1, lease_sec: 60, poll_ms: 20, idle_poll_ms: 100 }\n\
    durability: process\n";
const STEPS: &str = "version: '1.1'\nsteps:\n\
    - { name: Here, command: ['true'] }\n\
    - { name: There, agent: engineer, command: ['true'] }\n";

/// A workspace in which one run of a fleet has completed and all members have gone home.
struct Calm {
    world: World,
    run: String,
}

impl Calm {
    fn new() -> Calm {
        let world = World::with(STEPS);
        world.write(".orchestrate/config.yaml", QUICK);
        let worker = world.start(&["worker", "engineer"]);
        let driven = world.run(&["run", "--fleet", "w.yaml", "--quiet"]);
        driven.exits(0);
        worker.signal(nix::sys::signal::Signal::SIGTERM);
        worker.wait().exits(0);
        let run = world.run_id();
        Calm { world, run }
    }

    /// The same once more, elsewhere.
    fn again(&self) -> Calm {
        let world = World::new();
        let copy = ["-a".into(), self.world.path("."), world.path("")];
        assert!(world.command("cp").args(copy).status().expect("it is copied").success());
        Calm { world, run: self.run.clone() }
    }

    /// The names of what `fsck` finds that is damage.
    fn found(&self) -> BTreeSet<String> {
        let outcome = self.world.run(&["fsck", "--quiet-fleet", "--json"]);
        let report: Value = serde_json::from_str(&outcome.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}{}", outcome.stdout, outcome.stderr));
        let findings = report["findings"].as_array().expect("a list");
        let damage = findings.iter().filter(|finding| finding["damage"] == true);
        let names: BTreeSet<String> =
            damage.map(|f| f["kind"].as_str().expect("a name").to_owned()).collect();
        assert_eq!(outcome.exit, if names.is_empty() { 0 } else { 7 }, "{report}");
        assert_eq!(report["damage"], findings.iter().filter(|f| f["damage"] == true).count());
        names
    }

    /// The ended task of the step `There`.
    fn task(&self) -> PathBuf {
        self.file(|name| name.contains("-There.") && name.ends_with(".task"))
    }

    fn status(&self) -> PathBuf {
        self.file(|name| name.contains("-There.") && name.ends_with(".status.json"))
    }

    fn file(&self, is_it: impl Fn(&str) -> bool) -> PathBuf {
        let dir = format!("processed/{}", self.run);
        let name = self.world.list(&dir).into_iter().find(|name| is_it(name)).expect("it ended");
        self.world.path(&dir).join(name)
    }

    fn run_file(&self, name: &str) -> PathBuf {
        self.world.path(&format!(".orchestrate/runs/{}/{name}", self.run))
    }

    /// The name that a task had when it waited: without who held and who ended it.
    fn waiting_name(task: &std::path::Path) -> String {
        let name = task.file_name().expect("a name").to_string_lossy().into_owned();
        let mut parts = name.split('.');
        let (head, attempt) = (parts.next().expect("a head"), parts.next().expect("an attempt"));
        format!("{head}.{attempt}.task")
    }
}

/// One fault: how it is planted, and by which names it must be found.
type Fault = (&'static str, fn(&Calm), &'static [&'static str]);

const FAULTS: [Fault; 15] = [
    (
        "a task copied to where it waited",
        |calm| {
            let task = calm.task();
            let inbox = calm.world.path("inbox/engineer").join(Calm::waiting_name(&task));
            std::fs::copy(task, inbox).expect("a copy");
        },
        &["two-places", "restless"],
    ),
    (
        "a task that ended twice",
        |calm| {
            let (task, status) = (calm.task(), calm.status());
            let dir = calm.world.path("failed").join(&calm.run);
            std::fs::create_dir_all(&dir).expect("a directory");
            for file in [task, status] {
                std::fs::copy(&file, dir.join(file.file_name().unwrap())).expect("a copy");
            }
        },
        &["ended-twice"],
    ),
    (
        "a status removed",
        |calm| std::fs::remove_file(calm.status()).expect("it was there"),
        &["no-status"],
    ),
    (
        "a status cut off",
        |calm| {
            let bytes = std::fs::read(calm.status()).expect("it is there");
            std::fs::write(calm.status(), &bytes[..bytes.len() / 2]).expect("written");
        },
        &["no-status"],
    ),
    (
        "the status of another claim",
        |calm| {
            let other = calm.file(|name| name.contains("-w.") && name.ends_with(".status.json"));
            std::fs::copy(other, calm.status()).expect("a copy");
        },
        &["wrong-status", "unbacked"],
    ),
    (
        "a task cut off",
        |calm| {
            let bytes = std::fs::read(calm.task()).expect("it is there");
            std::fs::write(calm.task(), &bytes[..bytes.len() / 2]).expect("written");
        },
        &["unsealed"],
    ),
    (
        "a task under the name of another",
        |calm| {
            let other = calm.file(|name| name.contains("-w.") && name.ends_with(".task"));
            std::fs::copy(other, calm.task()).expect("a copy");
        },
        &["misplaced"],
    ),
    (
        "an ended task without its files",
        |calm| {
            std::fs::remove_file(calm.task()).expect("it was there");
            std::fs::remove_file(calm.status()).expect("it was there");
        },
        &["unbacked"],
    ),
    (
        "a name that nobody gives",
        |calm| calm.world.write(".orchestrate/claimed/engineer/mine.task", "x"),
        &["bad-name"],
    ),
    (
        "a claim of nobody",
        |calm| {
            let task = calm.task();
            let name = Calm::waiting_name(&task).replace(".task", ".nobody.claim.task");
            let claimed = calm.world.path(".orchestrate/claimed/engineer").join(name);
            std::fs::rename(task, claimed).expect("a rename");
        },
        &["held-by-dead", "restless", "unbacked"],
    ),
    (
        "a second end of one attempt",
        |calm| {
            let path = calm.run_file("journal.jsonl");
            let text = std::fs::read_to_string(&path).expect("a journal");
            let last = text.lines().last().expect("an end");
            let mut again: Value = serde_json::from_str(last).expect("an event");
            again["seq"] = (again["seq"].as_u64().expect("a number") + 1).into();
            again.as_object_mut().expect("an object").shift_remove("sum");
            std::fs::write(&path, text + &with_digest(&again, "sum", 8)).expect("written");
        },
        &["ended-again"],
    ),
    (
        "an event changed",
        |calm| {
            let path = calm.run_file("journal.jsonl");
            let text = std::fs::read_to_string(&path).expect("a journal");
            std::fs::write(&path, text.replacen("launched", "lunched", 1)).expect("written");
        },
        &["journal"],
    ),
    (
        "a state that says something else",
        |calm| {
            let path = calm.run_file("state.json");
            let text = std::fs::read_to_string(&path).expect("a state");
            std::fs::write(&path, text.replacen("\"exit_code\": 0", "\"exit_code\": 3", 1))
                .expect("written");
        },
        &["state"],
    ),
    (
        "a state of before",
        |calm| {
            let path = calm.run_file("state.json");
            let text = std::fs::read_to_string(&path).expect("a state");
            let text = text.replacen("\"completed\"", "\"running\"", 1);
            std::fs::write(&path, text.replacen("\"cursor\": null", "\"cursor\": \"There\"", 1))
                .expect("written");
        },
        &["state", "stale-state"],
    ),
    (
        "a private file of nobody",
        |calm| calm.world.write(".orchestrate/tmp/nobody.x", "half"),
        &["left-tmp"],
    ),
];

/// Each fault alone.
fn planted() {
    let sound = Calm::new();
    assert_eq!(sound.found(), BTreeSet::new(), "nothing is wrong yet");
    for (what, plant, wanted) in FAULTS {
        let _told = Told(format!("planted: {what}"));
        let calm = sound.again();
        plant(&calm);
        let wanted: BTreeSet<String> = wanted.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(calm.found(), wanted, "{what}");
    }
}

/// Finished tasks may be thrown away, whole batches at a time.
fn cleaned() {
    let calm = Calm::new();
    std::fs::remove_dir_all(calm.world.path("processed")).expect("it was there");
    assert_eq!(calm.found(), BTreeSet::new());
}

/// What a crash leaves is no damage, and a fleet at work is none either.
fn no_false_alarm() {
    let world = World::with(
        "version: '1.1'\nsteps:\n- { name: Hold, agent: engineer, command: [./hold] }\n",
    );
    world.write(".orchestrate/config.yaml", QUICK);
    world.write("hold", "#!/bin/sh\ntouch holds\nuntil [ -e go ]; do sleep 0.02; done\n");
    let worker = world.start(&["worker", "engineer"]);
    let run = world.start(&["run", "--fleet", "w.yaml"]);
    until("it holds", || world.exists("holds"));
    world.run(&["fsck"]).exits(0);
    // Nobody is left who would put the task back.
    run.kill();
    worker.kill();
    let outcome = world.run(&["fsck"]).exits(0);
    assert!(outcome.stdout.contains("note: held-by-dead"), "{}", outcome.stdout);
    world.run(&["fsck", "--quiet-fleet"]).exits(7);
    world.write("go", "");
    let _worker = world.start(&["worker", "engineer"]);
    world.run(&["resume", "latest"]).exits(0);
    world.run(&["fsck", "--quiet-fleet"]).exits(0);
}

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("fsck/every planted fault is named", planted),
        trial("fsck/finished tasks may be thrown away", cleaned),
        trial("fsck/a fleet at work and a crash are no damage", no_false_alarm),
    ]
}
