//! Signals: the program stops what it started, keeps the run resumable and says so by its exit
//! code.

use libtest_mimic::Trial;
use nix::sys::signal::Signal::{self, SIGHUP, SIGINT, SIGTERM};
use nix::sys::signal::killpg;

use crate::world::{Started, World, is_alive, trial, until};

/// A step with a grandchild in a session of its own; neither minds SIGTERM. With `go` there, both
/// end.
const STUBBORN: &str = "#!/bin/bash\n\
    trap '' TERM INT HUP\n\
    hold='echo $$ >> pids; until [ -e go ]; do sleep 0.02; done'\n\
    setsid sh -c \"trap '' TERM INT HUP; $hold\" &\n\
    echo $$ >> pids\n\
    until [ -e go ]; do sleep 0.02; done\n\
    wait\n";

const STEPS: &str = "version: '1.1'\nsteps:\n\
    - { name: Before, command: [sh, -c, 'echo before >> ran'] }\n\
    - { name: Hold, command: [./hold] }\n\
    - { name: After, command: [sh, -c, 'echo after >> ran'] }\n";

/// A run of [`STUBBORN`] with the given grace, once both of its processes are there.
fn holding(grace_sec: &str) -> (World, Started, Vec<i32>) {
    let world = World::with(STEPS);
    world.write("hold", STUBBORN);
    world.write(".orchestrate/config.yaml", format!("limits: {{ grace_sec: {grace_sec} }}\n"));
    let run = world.start(&["run", "w.yaml"]);
    until("both hold", || world.lines("pids").len() == 2);
    let pids: Vec<i32> =
        world.lines("pids").iter().map(|pid| pid.parse().expect("a pid")).collect();
    assert!(pids.iter().all(|pid| is_alive(*pid)));
    (world, run, pids)
}

fn went_on(world: &World, pids: &[i32]) {
    assert!(!pids.iter().any(|pid| is_alive(*pid)), "what was started is gone");
    assert_eq!(world.processes(), [0; 0]);
    assert_eq!(world.status(), "running", "a stopped run is neither failed nor completed");
    assert_eq!(world.read("ran"), "before\n");
    world.write("go", "");
    world.run(&["resume", "latest"]).exits(0);
    assert_eq!(world.read("ran"), "before\nafter\n");
    assert_eq!(world.status(), "completed");
    assert_eq!(world.processes(), [0; 0]);
}

/// The stubborn are killed once the grace is over.
fn stubborn(signal: Signal, code: i32) {
    let (world, run, pids) = holding("0.2");
    run.signal(signal);
    run.wait().exits(code).says("orchestrate resume ");
    went_on(&world, &pids);
}

/// With a grace that nobody would wait for, a second signal ends it now.
fn hurried() {
    let (world, run, pids) = holding("3000");
    run.signal(SIGTERM);
    run.signal(SIGTERM);
    // Two of one kind may arrive as one; another kind cannot be lost.
    run.signal(SIGINT);
    let outcome = run.wait();
    assert!([130, 143].contains(&outcome.exit), "{outcome:?}");
    went_on(&world, &pids);
}

/// Ctrl-C on a terminal goes to the whole foreground group, of which the step is no part.
fn foreground() {
    let (world, run, pids) = holding("0.2");
    killpg(run.pid(), SIGINT).expect("its group is there");
    run.wait().exits(130);
    went_on(&world, &pids);
}

/// A step that ends itself when told to has its time, and is not recorded as failed.
fn polite() {
    let world = World::with(
        "version: '1.1'\nsteps:\n- { name: Hold, command: [./hold], retries: { max: 3 } }\n",
    );
    world.write(
        "hold",
        "#!/bin/bash\n\
         [ -e go ] && exit 0\n\
         trap 'echo tidied >> ran; exit 1' TERM\n\
         touch ready\n\
         while :; do sleep 0.02; done\n",
    );
    let run = world.start(&["run", "w.yaml"]);
    until("it is ready", || world.exists("ready"));
    run.signal(SIGTERM);
    run.wait().exits(143);
    assert_eq!(world.read("ran"), "tidied\n", "told once, and no retry of what was stopped");
    world.write("go", "");
    world.run(&["resume", "latest"]).exits(0);
}

fn resting() {
    let world = World::with(
        "version: '1.1'\nsteps:\n- name: Rest\n  retries: { max: 2, delay_ms: 3600000 }\n  \
         command: [sh, -c, 'echo x >> tries; [ -e go ]']\n",
    );
    let run = world.start(&["run", "w.yaml"]);
    until("it rests", || run.stderr().contains("trying again"));
    run.signal(SIGTERM);
    run.wait().exits(143);
    assert_eq!(world.status(), "running");
    assert_eq!(world.state()["steps"]["Rest"]["status"], "pending");
    // It still rests after a resume: the hour is not over.
    let resumed = world.start(&["resume", "latest"]);
    until("it is resumed", || resumed.stderr().contains("resumed"));
    resumed.signal(SIGINT);
    resumed.wait().exits(130);
    assert_eq!(world.read("tries"), "x\n");
}

fn waiting() {
    let world = World::with(
        "version: '1.1'\nsteps:\n\
         - { name: Begin, command: [touch, begun] }\n\
         - { name: Wait, wait_for: { glob: 'reply.*', timeout_sec: 3600, poll_ms: 3600000 } }\n",
    );
    let run = world.start(&["run", "w.yaml"]);
    let journal = ".orchestrate/runs/latest/journal.jsonl";
    let launched = "\"event\":\"launched\",\"step\":\"Wait\"";
    until("it waits", || world.read(journal).contains(launched));
    run.signal(SIGTERM);
    run.wait().exits(143);
    assert_eq!(world.status(), "running");
    world.write("reply.txt", "");
    world.run(&["resume", "latest"]).exits(0);
    assert_eq!(world.state()["steps"]["Wait"]["files"], serde_json::json!(["reply.txt"]));
}

/// A loop is stopped in an item, and goes on with that item.
fn in_a_loop() {
    let world = World::with(
        "version: '1.1'\nsteps:\n- name: Each\n  for_each:\n    items: [a, b, c]\n    steps:\n    \
         - { name: Do, command: [./do, '${item}'] }\n",
    );
    world.write("do", "#!/bin/sh\necho $1 >> ran\n[ $1 != b ] || [ -e go ] || exec sleep 3600\n");
    let run = world.start(&["run", "w.yaml"]);
    until("the second item runs", || world.lines("ran").len() == 2);
    run.signal(SIGINT);
    run.wait().exits(130);
    world.write("go", "");
    world.run(&["resume", "latest"]).exits(0);
    assert_eq!(world.lines("ran"), ["a", "b", "b", "c"]);
}

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("signals/SIGINT ends a stubborn tree, exit 130", || stubborn(SIGINT, 130)),
        trial("signals/SIGTERM ends a stubborn tree, exit 143", || stubborn(SIGTERM, 143)),
        trial("signals/SIGHUP ends a stubborn tree, exit 129", || stubborn(SIGHUP, 129)),
        trial("signals/a second one hurries", hurried),
        trial("signals/Ctrl-C reaches the whole foreground", foreground),
        trial("signals/a polite step has time to tidy up", polite),
        trial("signals/in a rest before a retry", resting),
        trial("signals/while waiting for files", waiting),
        trial("signals/in an item of a loop", in_a_loop),
    ]
}
