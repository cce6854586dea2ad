//! Of the runs that change the checkout one goes on at a time, in a fleet and beside it: several
//! coordinators, local runs, people who take their time, and members that are killed.

use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::world::{World, trial, until};

/// Beats that nobody has to wait for, and a lease that no slow machine reaches.
const SETTINGS: &str = "queue: { beat_sec: 0.1, lease_sec: 60, poll_ms: 20, idle_poll_ms: 100 }\n\
    limits: { grace_sec: 0.2 }\n";

/// Works alone, or leaves a line in `clash`; waits for `go.<run>` or `go`.
const WORK: &str = "#!/bin/bash\n\
    trap 'rmdir busy; exit 1' TERM\n\
    mkdir busy 2>/dev/null || echo \"$ORCHESTRATE_RUN_ID\" >> clash\n\
    echo \"$ORCHESTRATE_RUN_ID\" >> begun\n\
    until [ -e go ] || [ -e \"go.$ORCHESTRATE_RUN_ID\" ]; do sleep 0.02; done\n\
    rmdir busy\necho \"$ORCHESTRATE_RUN_ID\" >> ended\n";

const ALONE: &str = "name: w\ndescription: changes the checkout\nnodes:\n\
    - { id: a, bash: ./work }\n";

/// The same by workers.
const BY_WORKERS: &str = "name: w\ndescription: changes the checkout\nnodes:\n\
    - { id: a, bash: ./work, agent: engineer }\n";

/// Waits for a person between two pieces of work.
const GATED: &str = "name: g\ndescription: asks\nnodes:\n\
    - { id: a, bash: ./work }\n\
    - { id: gate, approval: { message: go on? }, depends_on: [a] }\n\
    - { id: b, bash: ./work, depends_on: [gate] }\n";

fn world(workflow: &str) -> World {
    let world = World::with(workflow);
    world.write("work", WORK);
    world.write(".orchestrate/config.yaml", SETTINGS);
    world
}

fn shown(world: &World, run: &str) -> Value {
    let outcome = world.run(&["status", run, "--json"]);
    serde_json::from_str(&outcome.stdout).unwrap_or_default()
}

#[track_caller]
fn comes_to(world: &World, run: &str, wanted: &str) {
    until(&format!("run {run} is {wanted}"), || shown(world, run)["state"] == *wanted);
}

#[track_caller]
fn says_why(world: &World, run: &str, told: &str) {
    let why = world.run(&["why", run]).exits(0).stdout;
    assert!(why.contains(told), "{why}");
}

/// Whose turn it is, by the name of its one file.
fn turn(world: &World) -> String {
    let mut files = world.list(".orchestrate/checkout");
    assert!(files.len() <= 1, "{files:?}");
    files.pop().unwrap_or_default()
}

#[track_caller]
fn in_peace(world: &World) {
    assert!(!world.exists("clash"), "at once: {:?}", world.lines("clash"));
    until("nothing is held", || world.list(".orchestrate/claimed/coordinator").is_empty());
    let outcome = world.run(&["fsck", "--quiet-fleet"]);
    assert_eq!(outcome.exit, 0, "{}\n{}", outcome.stdout, outcome.stderr);
    assert!(turn(world).ends_with(".free"), "{}", turn(world));
}

/// Many runs, three coordinators: one after the other, and all of them.
fn many_at_once() {
    let world = world(ALONE);
    world.write("go", "");
    let runs: Vec<String> = (0..9).map(|_| world.submit("w.yaml")).collect();
    let _coordinators = [world.coordinator(), world.coordinator(), world.coordinator()];
    runs.iter().for_each(|run| comes_to(&world, run, "completed"));
    assert_eq!(world.lines("ended").len(), 9);
    in_peace(&world);
}

/// What waits says for whom; the oldest goes first; what changes nothing goes at once.
fn it_is_told() {
    let world = world(ALONE);
    world.write("free.yaml", ALONE.replace("nodes:", "mutates_checkout: false\nnodes:"));
    let _coordinator = world.coordinator();
    let first = world.submit("w.yaml");
    until("it works", || world.lines("begun").len() == 1);
    assert!(turn(&world).ends_with(&format!(".a01.{first}")), "{}", turn(&world));
    let second = world.submit("w.yaml");
    let third = world.submit("w.yaml");
    comes_to(&world, &third, "queued");
    let before = format!("run {first}");
    assert_eq!(shown(&world, &second)["turn_after"], *before);
    let told = format!("waits for its turn: {before} works on this checkout");
    says_why(&world, &second, &told);
    let status = world.run(&["status"]).exits(0).stdout;
    assert!(status.contains(&format!("waits for its turn after {before}")), "{status}");
    assert_eq!(shown(&world, &first)["state"], "running");
    // Beside them.
    let beside = world.submit("free.yaml");
    until("it works beside", || world.lines("begun").contains(&beside));
    world.write("go", "");
    for run in [&first, &second, &third, &beside] {
        comes_to(&world, run, "completed");
    }
    let ended = world.lines("ended");
    let place = |run: &String| ended.iter().position(|line| line == run);
    assert!(place(&second) < place(&third), "{ended:?}");
    assert_eq!(world.lines("clash"), [beside], "only what said that it changes nothing");
}

/// A run that waits for a person lets others go on, and waits for its turn when it is answered.
fn at_a_gate() {
    let world = world(GATED);
    world.write("alone.yaml", ALONE);
    let _coordinators = [world.coordinator(), world.coordinator()];
    let gated = world.submit("w.yaml");
    world.write(&format!("go.{gated}"), "");
    comes_to(&world, &gated, "paused");
    until("it gave up its turn", || turn(&world).ends_with(".free"));
    let other = world.submit("alone.yaml");
    until("the other works", || world.lines("begun").contains(&other));
    world.run(&["approve", &gated]).exits(0);
    comes_to(&world, &gated, "queued");
    assert_eq!(world.lines("begun").len(), 2);
    world.write("go", "");
    comes_to(&world, &other, "completed");
    comes_to(&world, &gated, "completed");
    in_peace(&world);
}

/// A waiting run is cancelled without its turn; one at work makes room for the next.
fn cancelled() {
    let world = world(ALONE);
    let _coordinator = world.coordinator();
    let first = world.submit("w.yaml");
    until("it works", || world.lines("begun").len() == 1);
    let (second, third) = (world.submit("w.yaml"), world.submit("w.yaml"));
    comes_to(&world, &third, "queued");
    world.run(&["cancel", &second]).exits(0);
    comes_to(&world, &second, "cancelled");
    assert_eq!(world.lines("begun").len(), 1);
    world.run(&["cancel", &first]).exits(0);
    comes_to(&world, &first, "cancelled");
    world.write("go", "");
    comes_to(&world, &third, "completed");
    assert_eq!(world.lines("begun"), [first, third]);
    in_peace(&world);
}

/// The coordinator of the one at work is killed: another takes it up with its turn, while a worker
/// is still at it, and nobody else comes between.
fn a_killed_coordinator() {
    let world = world(BY_WORKERS);
    world.write("alone.yaml", ALONE);
    let _worker = world.start(&["worker", "engineer"]);
    let killed = world.coordinator();
    let first = world.submit("w.yaml");
    until("it works", || world.lines("begun").len() == 1);
    let other = world.coordinator();
    // The second is driven by whoever lives on, from the beginning or in the end.
    let second = world.submit("alone.yaml");
    killed.kill();
    until("it is taken up", || other.stderr().contains(&format!("run {first} of w.yaml")));
    until("it has its turn", || turn(&world).ends_with(&format!(".a02.{first}")));
    comes_to(&world, &second, "queued");
    world.write("go", "");
    comes_to(&world, &first, "completed");
    comes_to(&world, &second, "completed");
    assert_eq!(world.lines("ended"), [first, second], "nothing twice, nothing at once");
    in_peace(&world);
}

/// Nobody takes up what a killed process drove: others wait for what is out of it, and no longer.
fn left_by_the_dead() {
    let world = world(BY_WORKERS);
    let short = SETTINGS.replace("lease_sec: 60", "lease_sec: 1");
    world.write(".orchestrate/config.yaml", short);
    world.write("alone.yaml", ALONE);
    let _worker = world.start(&["worker", "engineer"]);
    let killed = world.start(&["run", "w.yaml", "--fleet"]);
    until("it works", || world.lines("begun").len() == 1);
    let first = world.lines("begun").remove(0);
    killed.kill();
    world.run(&["run", "alone.yaml"]).exits(5).says(&format!("run {first} works on this"));
    let second = world.start(&["run", "alone.yaml", "--fleet"]);
    until("it waits", || second.stderr().contains("waits for its turn"));
    assert_eq!(world.lines("begun").len(), 1);
    world.write("go", "");
    second.wait().exits(0);
    assert_eq!(world.lines("begun").len(), 2);
    // And the first goes on when somebody wants it to.
    world.run(&["resume", &first]).exits(0);
    assert_eq!(world.lines("ended").len(), 2);
    in_peace(&world);
}

/// A process that waits for its turn can be stopped, and the run taken up again.
fn stopped_while_it_waits() {
    let world = world(ALONE);
    let first = world.start(&["run", "w.yaml", "--fleet"]);
    until("it works", || world.lines("begun").len() == 1);
    let second = world.start(&["run", "w.yaml", "--fleet"]);
    until("it waits", || second.stderr().contains("waits for its turn"));
    second.signal(Signal::SIGINT);
    let stopped = second.wait().exits(130);
    assert_eq!(world.lines("begun").len(), 1);
    let line = stopped.stderr.lines().find(|line| line.starts_with("run ")).unwrap().to_owned();
    let run = line.split(' ').nth(1).unwrap().to_owned();
    world.write("go", "");
    first.wait().exits(0);
    world.run(&["resume", &run]).exits(0);
    in_peace(&world);
}

/// Local runs and runs of a fleet keep out of each other's way.
fn beside_local_runs() {
    let world = world(ALONE);
    let local = world.start(&["run", "w.yaml"]);
    until("it works", || world.lines("begun").len() == 1);
    let _coordinator = world.coordinator();
    let run = world.submit("w.yaml");
    comes_to(&world, &run, "queued");
    let told = format!("a run of process {} works on this checkout", local.pid());
    says_why(&world, &run, &told);
    world.write(&format!("go.{}", world.lines("begun")[0]), "");
    local.wait().exits(0);
    until("it works", || world.lines("begun").contains(&run));
    for verb in [&["run", "w.yaml"][..], &["run-step", "a", "--workflow", "w.yaml"]] {
        world.run(verb).exits(5).says(&format!("run {run} works on this checkout already"));
    }
    world.write("go", "");
    comes_to(&world, &run, "completed");
    world.run(&["run", "w.yaml"]).exits(0);
    in_peace(&world);
}

/// A turn that somebody removed is made again, one that is there twice is found.
fn damaged() {
    let world = world(ALONE);
    world.write("go", "");
    world.run(&["run", "w.yaml", "--fleet"]).exits(0);
    std::fs::remove_file(world.path(".orchestrate/checkout").join(turn(&world))).unwrap();
    world.run(&["run", "w.yaml", "--fleet"]).exits(0);
    assert_eq!(turn(&world), "2.free");
    world.write(".orchestrate/checkout/1.free", "");
    world.write(".orchestrate/checkout/mine", "");
    let found = world.run(&["fsck"]).exits(7).stdout;
    assert!(found.contains("two-turns `.orchestrate/checkout/1.free`"), "{found}");
    assert!(found.contains("bad-name `.orchestrate/checkout/mine`"), "{found}");
    world.run(&["run", "w.yaml", "--fleet"]).exits(0);
}

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("turns/many at once", many_at_once),
        trial("turns/it is told", it_is_told),
        trial("turns/at a gate", at_a_gate),
        trial("turns/cancelled", cancelled),
        trial("turns/a killed coordinator", a_killed_coordinator),
        trial("turns/left by the dead", left_by_the_dead),
        trial("turns/stopped while it waits", stopped_while_it_waits),
        trial("turns/beside local runs", beside_local_runs),
        trial("turns/damaged", damaged),
    ]
}
