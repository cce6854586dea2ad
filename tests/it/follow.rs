//! Following what goes on: what a step prints is seen while it runs, and once.

use libtest_mimic::Trial;
use nix::sys::signal::Signal;

use crate::world::{World, trial, until};

/// Three steps: one that is over at once, one that prints a little and waits, and a last one.
const WAITS: &str = "version: '1.1'\nsteps:\n\
    - { name: Quick, command: [echo, at once] }\n\
    - { name: Slow, command: [sh, -c, 'echo begun; until [ -e go ]; do sleep 0.02; done; \
    echo done'] }\n\
    - { name: Last, command: [echo, the end] }\n";

/// What is in the log of the slow step now.
fn printed(world: &World) -> String {
    let log = world.path(".orchestrate/runs/latest/logs/Slow.stdout");
    std::fs::read_to_string(log).unwrap_or_default()
}

/// A local run writes no log of what is short. Whoever looks on sees it all the same, at once.
fn a_short_output_is_seen_while_the_step_runs() {
    let world = World::with(WAITS);
    let run = world.start(&["run", "w.yaml"]);
    until("it waits", || printed(&world) == "begun\n");
    let follower = world.start(&["logs", "--follow", "latest"]);
    until("it is followed", || follower.stdout().contains("Slow | begun\n"));
    let status = world.run(&["status", "latest"]).exits(0).stdout;
    assert!(status.contains("says: begun"), "{status}");
    let once = world.run(&["logs", "latest", "Slow"]).exits(0).stdout;
    assert_eq!(once, "begun\n");
    world.write("go", "");
    run.wait().exits(0);
    let all = "Quick | at once\nSlow | begun\nSlow | done\nLast | the end\n";
    assert_eq!(follower.wait().exits(0).stdout, all, "each line once");
    assert_eq!(world.run(&["logs", "latest"]).exits(0).stdout, all, "the state has it all");
    let logs = world.list(".orchestrate/runs/latest/logs");
    assert_eq!(logs, ["orchestrator.log"], "what is short leaves no log");
}

/// Of an attempt that was stopped no record has what it printed: the log stays.
fn what_a_stopped_step_printed_is_kept() {
    let world = World::with(WAITS);
    let run = world.start(&["run", "w.yaml"]);
    until("it waits", || printed(&world) == "begun\n");
    run.signal(Signal::SIGTERM);
    run.wait().exits(143);
    assert_eq!(world.run(&["logs", "latest", "Slow"]).exits(0).stdout, "begun\n");
    world.write("go", "");
    world.run(&["resume", "latest"]).exits(0);
    assert_eq!(world.run(&["logs", "latest", "Slow"]).exits(0).stdout, "begun\ndone\n");
    let first = world.run(&["logs", "latest", "Slow", "--attempt", "1"]).exits(0).stdout;
    assert_eq!(first, "begun\n");
}

/// A killed `orchestrate` leaves what was printed until then.
fn what_was_printed_before_a_kill_is_kept() {
    let world = World::with(WAITS);
    let run = world.start(&["run", "w.yaml"]);
    until("it waits", || printed(&world) == "begun\n");
    run.kill();
    assert_eq!(world.run(&["logs", "latest", "Slow"]).exits(0).stdout, "begun\n");
    world.write("go", "");
    world.run(&["resume", "latest"]).exits(0);
    assert_eq!(world.run(&["logs", "latest", "Slow"]).exits(0).stdout, "begun\ndone\n");
}

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("follow/a short output is seen at once", a_short_output_is_seen_while_the_step_runs),
        trial("follow/what a stopped step printed", what_a_stopped_step_printed_is_kept),
        trial("follow/what was printed before a kill", what_was_printed_before_a_kill_is_kept),
    ]
}
