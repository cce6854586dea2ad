//! Runs of the `nodes:` dialect in a fleet: several tasks out at once, gates, and members that are
//! killed meanwhile. Real processes; what came of it is judged by `fsck` as well.

use std::collections::BTreeMap;

use libtest_mimic::Trial;
use serde_json::Value;

use crate::world::{World, is_alive, trial, until};

/// Beats that nobody has to wait for, and a lease that no slow machine reaches.
const SETTINGS: &str = "queue: { beat_sec: 0.1, lease_sec: 60, poll_ms: 20, idle_poll_ms: 100 }\n\
    command_agent: engineer\ndefault_agent: engineer\nlimits: { grace_sec: 0.2 }\n";

/// Leaves a line for every execution: its step and its attempt.
const STEP: &str = "#!/bin/sh\necho \"$ORCHESTRATE_STEP $ORCHESTRATE_ATTEMPT\" >> trace\n";

/// Says who it is and waits for `go`.
const HOLD: &str = "#!/bin/bash\ntrap '' TERM INT HUP\necho $$ >> pids\n\
    until [ -e go ]; do sleep 0.02; done\n./step\n";

fn world(workflow: &str) -> World {
    let world = World::with(workflow);
    world.write("step", STEP);
    world.write("hold", HOLD);
    world.write(".orchestrate/config.yaml", SETTINGS);
    world
}

fn state(world: &World, run: &str) -> Value {
    let text = world.read(&format!(".orchestrate/runs/{run}/state.json"));
    serde_json::from_str(&text).unwrap_or_default()
}

#[track_caller]
fn comes_to(world: &World, run: &str, wanted: &str) {
    until(&format!("the run is {wanted}"), || {
        let status = state(world, run)["status"].as_str().unwrap_or_default().to_owned();
        let over = ["completed", "failed", "cancelled"].contains(&status.as_str());
        assert!(!over || status == wanted, "it is {status}: {}", state(world, run));
        status == wanted
    });
}

/// Nobody holds anything any more, and everything lies where it must.
#[track_caller]
fn clean(world: &World) {
    for agent in ["coordinator", "engineer", "qa"] {
        until(&format!("nothing of `{agent}` is held"), || {
            world.list(&format!(".orchestrate/claimed/{agent}")).is_empty()
        });
    }
    let outcome = world.run(&["fsck", "--quiet-fleet"]);
    assert_eq!(outcome.exit, 0, "{}\n{}", outcome.stdout, outcome.stderr);
}

/// How often each step left its line, whatever the attempt.
fn traced(world: &World) -> BTreeMap<String, usize> {
    world.lines("trace").into_iter().fold(BTreeMap::new(), |mut count, line| {
        let step = line.split(' ').next().unwrap_or_default().to_owned();
        *count.entry(step).or_default() += 1;
        count
    })
}

const GATE: &str = "name: gate\ndescription: a gate beside work\nnodes:\n\
    - { id: a, bash: ./hold }\n\
    - { id: b, bash: ./hold, agent: qa }\n\
    - { id: ok, approval: { message: 'Fine?' } }\n\
    - { id: last, bash: ./step, depends_on: [a, b, ok] }\n";

/// A coordinator finds an answer while tasks are out; whoever gave it need not drive anything.
fn answered_while_driven() {
    let world = world(GATE);
    let _coordinator = world.coordinator();
    let _workers = [
        world.worker("engineer", &["--concurrency", "3"]),
        world.worker("qa", &["--concurrency", "3"]),
    ];
    let run = world.submit("w.yaml");
    until("both hold", || world.lines("pids").len() == 2);
    let gates = world.run(&["pending"]).exits(0).stdout;
    assert!(gates.contains("waits at `ok`"), "{gates}");
    world.run(&["approve", &run]).exits(0);
    world.write("go", "");
    comes_to(&world, &run, "completed");
    assert_eq!(traced(&world).into_values().collect::<Vec<_>>(), [1, 1, 1]);
    clean(&world);
}

/// `run --fleet` leaves a run that waits for a person alone to whoever drives runs.
fn left_at_a_gate() {
    let gate = "name: gate\ndescription: only a gate\nnodes:\n\
        - { id: ok, approval: { message: 'Fine?' } }\n\
        - { id: last, bash: ./step, depends_on: [ok] }\n";
    let world = world(gate);
    let _worker = world.worker("engineer", &["--concurrency", "3"]);
    world.run(&["run", "--fleet", "w.yaml"]).exits(3).says("orchestrate approve");
    let run = world.run_id();
    assert_eq!(state(&world, &run)["status"], "paused");
    let _coordinator = world.coordinator();
    until("it is taken up", || !world.list(".orchestrate/claimed/coordinator").is_empty());
    world.run(&["approve", &run]).exits(0);
    comes_to(&world, &run, "completed");
    clean(&world);
}

/// A gate that nobody answers expires while a coordinator drives the run.
fn an_expired_gate() {
    let gate = "name: gate\ndescription: not for long\nnodes:\n\
        - { id: ok, approval: { message: 'Fine?' }, timeout: 300 }\n";
    let world = world(gate);
    let _coordinator = world.coordinator();
    let run = world.submit("w.yaml");
    comes_to(&world, &run, "failed");
    let error = &state(&world, &run)["steps"]["ok"]["error"]["message"];
    assert_eq!(error, "nobody answered in time (`timeout`)");
    clean(&world);
}

const CANCEL: &str = "name: cancel\ndescription: a node ends the run\nnodes:\n\
    - { id: a, bash: ./hold, agent: qa }\n\
    - { id: look, bash: 'until [ -e pids ]; do sleep 0.02; done' }\n\
    - { id: stop, cancel: enough, depends_on: [look] }\n\
    - { id: last, bash: ./step, depends_on: [stop] }\n";

#[track_caller]
fn gone(world: &World) {
    let pids: Vec<i32> = world.lines("pids").iter().map(|pid| pid.parse().unwrap()).collect();
    assert!(!pids.is_empty() && !pids.iter().any(|pid| is_alive(*pid)), "they are gone: {pids:?}");
}

/// What other agents do for a run that a node ends is ended too.
fn cancelled_by_a_node() {
    let world = world(CANCEL);
    let _coordinator = world.coordinator();
    let _workers = [
        world.worker("engineer", &["--concurrency", "3"]),
        world.worker("qa", &["--concurrency", "3"]),
    ];
    let run = world.submit("w.yaml");
    comes_to(&world, &run, "cancelled");
    clean(&world);
    gone(&world);
    assert_eq!(state(&world, &run)["error"], "enough");
    assert!(!world.exists("trace"));
    world.write("go", "");
}

/// A coordinator that dies before it could end the tasks of such a run: the next one does.
fn cancelled_and_orphaned() {
    let world = world(CANCEL);
    world.write(".orchestrate/config.yaml", SETTINGS.replace("grace_sec: 0.2", "grace_sec: 3000"));
    let first = world.coordinator();
    let _workers = [
        world.worker("engineer", &["--concurrency", "3"]),
        world.worker("qa", &["--concurrency", "3"]),
    ];
    let run = world.submit("w.yaml");
    let journal = format!(".orchestrate/runs/{run}/journal.jsonl");
    let over = || {
        let lines = world.lines(&journal);
        lines.iter().any(|line| line.contains("\"ended\"") && line.contains("\"stop\""))
    };
    until("the node has ended the run", over);
    first.kill();
    let _second = world.coordinator();
    world.write("go", "");
    until("the run's task has ended", || {
        world.list(".orchestrate/claimed/coordinator").is_empty()
            && !world.list(&format!(".orchestrate/cancelled/{run}")).is_empty()
    });
    clean(&world);
    assert_eq!(state(&world, &run)["status"], "cancelled");
}

const PARALLEL: &str = "name: parallel\ndescription: several tasks at once\nnodes:\n\
    - { id: a, bash: ./hold }\n\
    - { id: b, bash: ./hold, agent: qa }\n\
    - { id: c, bash: ./step, agent: qa }\n\
    - { id: ok, approval: { message: 'Fine?' } }\n\
    - { id: last, bash: ./step, depends_on: [a, b, c, ok] }\n";

/// A worker dies over one of several tasks: that one is done again, the others are not.
fn a_killed_worker() {
    let world = world(PARALLEL);
    let _coordinator = world.coordinator();
    let first = world.worker("engineer", &["--concurrency", "3"]);
    let _qa = world.worker("qa", &["--concurrency", "3"]);
    let run = world.submit("w.yaml");
    until("both hold", || world.lines("pids").len() == 2);
    until("the third is done", || traced(&world).contains_key("c"));
    first.kill();
    let _second = world.worker("engineer", &["--concurrency", "3"]);
    until("it is begun again", || world.lines("pids").len() == 3);
    world.run(&["approve", &run]).exits(0);
    world.write("go", "");
    comes_to(&world, &run, "completed");
    let once: Vec<_> = traced(&world).into_iter().collect();
    let want = ["a", "b", "c", "last"].map(|step| (step.to_owned(), 1));
    assert_eq!(once, want);
    clean(&world);
}

/// A coordinator dies with tasks out, one of them over meanwhile, and a gate open: the next one
/// waits for the others and finds the answer.
fn a_killed_coordinator() {
    let world = world(PARALLEL);
    let first = world.coordinator();
    let _workers = [
        world.worker("engineer", &["--concurrency", "3"]),
        world.worker("qa", &["--concurrency", "3"]),
    ];
    let run = world.submit("w.yaml");
    until("both hold", || world.lines("pids").len() == 2);
    first.kill();
    world.run(&["approve", &run, "--no-resume"]).exits(0);
    let _second = world.coordinator();
    world.write("go", "");
    comes_to(&world, &run, "completed");
    let once: Vec<_> = traced(&world).into_iter().collect();
    let want = ["a", "b", "c", "last"].map(|step| (step.to_owned(), 1));
    assert_eq!(once, want, "nothing was executed twice");
    clean(&world);
}

/// What is redone of a run of a fleet is redone by the fleet.
fn retried_from_a_node() {
    let chain = "name: chain\ndescription: a chain\nnodes:\n\
        - { id: a, bash: ./step }\n\
        - { id: b, bash: ./step, depends_on: [a] }\n\
        - { id: c, bash: ./step, depends_on: [b] }\n";
    let world = world(chain);
    let _coordinator = world.coordinator();
    let _worker = world.worker("engineer", &["--concurrency", "3"]);
    let run = world.submit("w.yaml");
    comes_to(&world, &run, "completed");
    clean(&world);
    world.run(&["retry", &run, "--from", "b"]).exits(0);
    until("it is done again", || world.lines("trace").len() == 5);
    comes_to(&world, &run, "completed");
    assert_eq!(world.lines("trace"), ["a 1", "b 1", "c 1", "b 2", "c 2"]);
    clean(&world);
}

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("nodes-fleet/answered while driven", answered_while_driven),
        trial("nodes-fleet/left at a gate", left_at_a_gate),
        trial("nodes-fleet/an expired gate", an_expired_gate),
        trial("nodes-fleet/cancelled by a node", cancelled_by_a_node),
        trial("nodes-fleet/cancelled and orphaned", cancelled_and_orphaned),
        trial("nodes-fleet/a killed worker", a_killed_worker),
        trial("nodes-fleet/a killed coordinator", a_killed_coordinator),
        trial("nodes-fleet/retried from a node", retried_from_a_node),
    ]
}
