//! A fleet whose members are killed, frozen and starved, one fault at a time. Real processes; what
//! came of it is judged by `fsck` as well.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;

use libtest_mimic::Trial;
use nix::sys::signal::Signal::{SIGCONT, SIGSTOP, SIGTERM};
use serde_json::Value;

use crate::disk::{apart, mount};
use crate::world::{Started, World, is_alive, trial, until};

/// Beats that nobody has to wait for, and a lease that no slow machine reaches.
const SLOW: &str = "queue: { beat_sec: 0.1, lease_sec: 60, poll_ms: 20, idle_poll_ms: 100 }\n\
    limits: { grace_sec: 0.2 }\n";
/// The shortest lease that is allowed for its beat.
const SHORT: &str = "queue: { beat_sec: 0.2, lease_sec: 0.6, poll_ms: 20, idle_poll_ms: 100 }\n\
    limits: { grace_sec: 0.2 }\n";

/// Leaves a line for every execution: its step, its attempt, and the claim or attempt it is of.
const STEP: &str = "#!/bin/sh\n\
    printf '%s %s %s\\n' \"$ORCHESTRATE_STEP\" \"$ORCHESTRATE_ATTEMPT\" \
    \"${ORCHESTRATE_MARK%%;*}\" >> trace\n";

fn world(settings: &str, workflow: &str) -> World {
    let world = World::with(workflow);
    world.write(".orchestrate/config.yaml", settings);
    world.write("step", STEP);
    world
}

/// The status of a run, as its state tells it.
fn status(world: &World, run: &str) -> String {
    let text = world.read(&format!(".orchestrate/runs/{run}/state.json"));
    let state: Value = serde_json::from_str(&text).unwrap_or_default();
    state["status"].as_str().unwrap_or_default().to_owned()
}

/// Waits until a run is over and its task has ended.
#[track_caller]
fn comes_to(world: &World, run: &str, wanted: &str) {
    until("the run is over", || {
        !["", "running"].contains(&status(world, run).as_str())
            && held(world, "coordinator").is_empty()
    });
    assert_eq!(status(world, run), wanted);
}

/// The claims of an agent.
fn held(world: &World, agent: &str) -> Vec<String> {
    world.list(&format!(".orchestrate/claimed/{agent}"))
}

/// All events that the journals of a run hold, of whichever term.
fn events(world: &World, run: &str) -> Vec<Value> {
    let dir = format!(".orchestrate/runs/{run}");
    let journals = world.list(&dir).into_iter().filter(|name| name.starts_with("journal."));
    let lines = journals.flat_map(|name| world.lines(&format!("{dir}/{name}")));
    lines.filter_map(|line| serde_json::from_str(&line).ok()).collect()
}

/// How often each attempt ended.
fn ends(world: &World, run: &str) -> BTreeMap<String, usize> {
    let mut ends = BTreeMap::new();
    for event in events(world, run).iter().filter(|event| event["event"] == "ended") {
        let attempt = format!("{} {}", event["step"].as_str().unwrap_or(""), event["attempt"]);
        *ends.entry(attempt).or_default() += 1;
    }
    ends
}

/// Everything that was asked for is done, and lies where it must.
#[track_caller]
fn clean(world: &World) {
    let outcome = world.run(&["fsck", "--quiet-fleet"]);
    assert_eq!(outcome.exit, 0, "{}\n{}", outcome.stdout, outcome.stderr);
}

const HOLD: &str = "version: '1.1'\nsteps:\n\
    - { name: Hold, agent: engineer, command: [./hold] }\n\
    - { name: After, agent: engineer, command: [./step] }\n";

/// The child outlives its worker, and would clash with the one of the next attempt.
fn a_killed_worker() {
    let world = world(SLOW, HOLD);
    world.write(
        "hold",
        "#!/bin/bash\n\
         trap '' TERM\n\
         for pid in $(cat pids 2>/dev/null); do\n\
         \x20 grep -qs '^State:.[^ZX]' /proc/$pid/status && echo $pid >> clash\n\
         done\n\
         echo $$ >> pids\n\
         until [ -e go ]; do sleep 0.02; done\n",
    );
    let _coordinator = world.coordinator();
    let first = world.worker("engineer", &[]);
    let run = world.submit("w.yaml");
    until("the first holds", || world.lines("pids").len() == 1);
    let orphan: i32 = world.lines("pids")[0].parse().expect("a pid");
    first.kill();
    let _second = world.worker("engineer", &[]);
    until("the second holds", || world.lines("pids").len() == 2);
    assert!(!is_alive(orphan), "what the first left is ended first");
    world.write("go", "");
    comes_to(&world, &run, "completed");
    assert_eq!(world.read("clash"), "", "two attempts at once");
    assert_eq!(world.lines("trace").len(), 1, "the next step once");
    let ended = world.list(&format!("processed/{run}"));
    assert!(ended.iter().any(|name| name.contains("-Hold.a02c1.")), "{ended:?}");
    clean(&world);
}

/// The step freezes its own worker and then ends: its result is complete, and too late.
fn a_frozen_worker() {
    let step = "version: '1.1'\nsteps:\n- { name: Late, agent: engineer, command: [./late] }\n";
    let world = world(SHORT, step);
    world.write(
        "late",
        format!("{STEP}[ -e once ] || {{ touch once; kill -STOP $PPID; }}\necho $PPID > by\n"),
    );
    let _coordinator = world.coordinator();
    let workers = [world.worker("engineer", &[]), world.worker("engineer", &[])];
    let run = world.submit("w.yaml");
    until("the task was given to another", || world.lines("trace").len() == 2);
    comes_to(&world, &run, "completed");
    let finisher: i32 = world.read("by").trim().parse().expect("a pid");
    let frozen = workers.iter().find(|worker| worker.pid().as_raw() != finisher);
    let frozen = frozen.expect("one of them finished it");
    frozen.signal(SIGCONT);
    until("its result is refused", || frozen.stderr().contains("too late"));
    let late = world.list(".orchestrate/evidence");
    assert_eq!(late.len(), 1, "what it found out lies aside: {late:?}");
    assert!(late[0].contains("-Late.a01."), "{late:?}");
    assert_eq!(ends(&world, &run).into_iter().collect::<Vec<_>>(), [("Late 1".into(), 1)]);
    assert_eq!(world.list(&format!("processed/{run}")).len(), 4, "two tasks and their statuses");
    clean(&world);
}

const CHAIN: &str = "version: '1.1'\nsteps:\n\
    - { name: A, command: [./step] }\n\
    - { name: B, agent: engineer, command: [./step] }\n\
    - { name: C, command: [./step] }\n\
    - name: Each\n  for_each:\n    items: [x, y]\n    steps:\n    \
    - { name: D, agent: engineer, command: [./step] }\n";
const CHAIN_PATH: [&str; 5] = ["A", "B", "C", "Each.0.D", "Each.1.D"];

/// A coordinator is killed after each line that its run's journal can have.
fn a_killed_coordinator() {
    let world = world(SLOW, CHAIN);
    let _worker = world.worker("engineer", &[]);
    for lines in 1.. {
        let _ = std::fs::remove_file(world.path("trace"));
        let first = world.coordinator();
        let run = world.submit("w.yaml");
        until("the journal has grown", || {
            events(&world, &run).len() >= lines || status(&world, &run) == "completed"
        });
        let over = status(&world, &run) == "completed";
        first.kill();
        let second = world.coordinator();
        comes_to(&world, &run, "completed");
        let trace = world.lines("trace");
        let mut path: Vec<&str> = trace.iter().filter_map(|line| line.split(' ').next()).collect();
        path.dedup();
        assert_eq!(path, CHAIN_PATH, "killed after line {lines}: {trace:?}");
        for (attempt, times) in ends(&world, &run) {
            assert_eq!(times, 1, "killed after line {lines}: {attempt} ended {times} times");
        }
        // What has ended well is not executed again: nothing comes after it but other steps.
        let completed = events(&world, &run)
            .into_iter()
            .filter(|event| event["event"] == "ended" && event["record"]["status"] == "completed");
        assert_eq!(completed.count(), CHAIN_PATH.len(), "killed after line {lines}");
        second.signal(SIGTERM);
        second.wait().exits(0);
        if over {
            break;
        }
    }
    clean(&world);
}

/// Two coordinators drive what is submitted, each its part.
fn two_coordinators() {
    let world = world(SLOW, CHAIN);
    let _worker = world.worker("engineer", &[]);
    let both = [world.coordinator(), world.coordinator()];
    let mut runs = Vec::new();
    until("both have taken up runs", || {
        runs.push(world.submit("w.yaml"));
        both.iter().all(|one| one.stderr().contains("taken up"))
    });
    for run in &runs {
        comes_to(&world, run, "completed");
    }
    assert_eq!(world.lines("trace").len(), runs.len() * CHAIN_PATH.len(), "each step once");
    clean(&world);
}

/// A step that kills whoever executes it is given up after three of them.
fn poison_for_workers() {
    let step = "version: '1.1'\nsteps:\n\
        - { name: Poison, agent: engineer, command: [sh, -c, 'kill -9 $PPID; sleep 60'] }\n";
    let world = world(SLOW, step);
    let _coordinator = world.coordinator();
    let run = world.submit("w.yaml");
    for _ in 0..3 {
        assert_eq!(world.worker("engineer", &[]).wait().exit, 137, "it is killed");
    }
    comes_to(&world, &run, "failed");
    let state: Value =
        serde_json::from_str(&world.read(&format!(".orchestrate/runs/{run}/state.json"))).unwrap();
    let error = &state["steps"]["Poison"]["error"];
    let message = error["message"].as_str().unwrap_or_default();
    assert!(message.contains("its worker died 3 times"), "{error}");
    assert_eq!(error["context"]["reason"], "crash_limit");
    let failed = world.list(&format!("failed/{run}"));
    assert!(failed.iter().any(|name| name.contains("-Poison.a03c2.")), "{failed:?}");
    assert!(held(&world, "engineer").is_empty());
    clean(&world);
}

/// The same for a step that is executed by the coordinator itself.
fn poison_for_coordinators() {
    let step = "version: '1.1'\nsteps:\n\
        - { name: Poison, command: [sh, -c, 'kill -9 $PPID; sleep 60'] }\n";
    let world = world(SLOW, step);
    let run = world.submit("w.yaml");
    for _ in 0..3 {
        assert_eq!(world.coordinator().wait().exit, 137, "it is killed");
    }
    let _last = world.coordinator();
    comes_to(&world, &run, "failed");
    let state = world.read(&format!(".orchestrate/runs/{run}/state.json"));
    assert!(state.contains("its coordinator died 3 times over it"), "{state}");
    clean(&world);
}

/// Many short tasks, and two workers of four hands each: every task is executed once.
fn a_race() {
    const TASKS: usize = 200;
    let settings = format!(
        "{SLOW}durability: process\nproviders: {{ mine: {{ \
         command: [sh, -c, './step && echo done'] }} }}\n\
         agents: {{ engineer: {{ provider: mine }} }}\n"
    );
    let world = world(&settings, "");
    let lines: String = (0..TASKS).map(|number| format!("task {number}\n")).collect();
    world.write("tasks", lines);
    let each = ["enqueue", "engineer", "--each-line", "--file", "tasks", "--quiet"];
    world.run(&each).exits(0);
    let serve = ["worker", "engineer", "--concurrency", "4", "--drain"];
    let both = [world.start(&serve), world.start(&serve)];
    for worker in both {
        worker.wait().exits(0);
    }
    let trace = world.lines("trace");
    let mut marks: Vec<&str> =
        trace.iter().filter_map(|line| line.split(' ').next_back()).collect();
    marks.sort_unstable();
    marks.dedup();
    assert_eq!((trace.len(), marks.len()), (TASKS, TASKS), "each is executed once");
    clean(&world);
}

/// Whoever may write to an inbox gives orders.
fn a_world_writable_inbox() {
    let world = world(SLOW, "");
    world.write("inbox/engineer/.keep", "");
    let inbox = world.path("inbox/engineer");
    std::fs::set_permissions(&inbox, std::fs::Permissions::from_mode(0o777)).expect("a mode");
    let outcome = world.run(&["worker", "engineer", "--drain"]).exits(2);
    assert!(outcome.stderr.contains("anybody may write to"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("world_writable"), "{}", outcome.stderr);
    let allowed = SLOW.replacen("queue: { ", "queue: { world_writable: true, ", 1);
    world.write(".orchestrate/config.yaml", allowed);
    world.run(&["worker", "engineer", "--drain"]).exits(0);
}

/// Nor is one served that belongs to somebody else, unless root made it.
fn an_inbox_of_a_stranger() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED: an inbox of a stranger, which only root can make");
        return;
    }
    let world = world(SLOW, "");
    world.write("inbox/engineer/.keep", "");
    std::os::unix::fs::chown(world.path("inbox/engineer"), Some(4242), None).expect("an owner");
    let outcome = world.run(&["worker", "engineer", "--drain"]).exits(2);
    assert!(outcome.stderr.contains("belongs to user 4242"), "{}", outcome.stderr);
    let allowed = SLOW.replacen("queue: { ", "queue: { world_writable: true, ", 1);
    world.write(".orchestrate/config.yaml", allowed);
    world.run(&["worker", "engineer", "--drain"]).exits(0);
}

/// A worker that cannot write says so; one whose disk fills up goes on when there is room.
fn a_full_volume() {
    apart(|| {
        let world = World::with("");
        let root = world.path("");
        let place = root.to_string_lossy();
        assert!(mount(&["-t", "tmpfs", "-o", "size=2m", "none", &place]), "a small disk");
        for (name, content) in [
            (".orchestrate/config.yaml", SLOW),
            ("step", STEP),
            ("w.yaml", HOLD),
            ("hold", "#!/bin/sh\ntouch holds\nuntil [ -e go ]; do sleep 0.02; done\n"),
        ] {
            world.write(name, content);
        }
        assert!(mount(&["-o", "remount,ro", &place]));
        let outcome = world.run(&["worker", "engineer", "--drain"]).exits(1);
        assert!(outcome.stderr.contains("Read-only file system"), "{}", outcome.stderr);
        assert!(mount(&["-o", "remount,rw", &place]));
        let _coordinator = world.coordinator();
        let worker = world.worker("engineer", &[]);
        let run = world.submit("w.yaml");
        until("it holds", || world.exists("holds"));
        world.write("go.tmp", "");
        let mut ballast = File::create(world.path("ballast")).expect("a file");
        while ballast.write_all(&[b'x'; 4096]).is_ok() {}
        std::fs::rename(world.path("go.tmp"), world.path("go")).expect("a rename needs no room");
        until("somebody has no room", || worker.stderr().contains("No space left"));
        ballast.set_len(0).expect("room is made");
        comes_to(&world, &run, "completed");
        clean(&world);
    });
}

/// Without a watcher to be had, changes are looked for, which is said once.
fn without_inotify() {
    let world = world(SLOW, CHAIN);
    let apart = |verb: &str| {
        let program = crate::world::programs().join("orchestrate");
        let script = format!(
            "echo 0 > /proc/sys/user/max_inotify_instances && exec {} {verb}",
            program.display()
        );
        world.spawn(world.command("unshare").args(["-U", "-r", "sh", "-c", &script]))
    };
    let mut members = [apart("coordinator"), apart("worker engineer")];
    let mut may = true;
    until("both are there, or cannot be", || {
        may = members.iter_mut().all(Started::is_running);
        let said = ["drives the runs", "serves inbox"];
        !may || members.iter().zip(said).all(|(member, said)| member.stderr().contains(said))
    });
    if !may {
        eprintln!("skipped: namespaces are refused here: {}", members[0].stderr());
        return;
    }
    let run = world.submit("w.yaml");
    comes_to(&world, &run, "completed");
    for member in members {
        let said = member.stderr();
        let warnings = said.matches("changes of directories are not told").count();
        assert_eq!(warnings, 1, "{said}");
        member.signal(SIGTERM);
        member.wait().exits(0);
    }
    clean(&world);
}

/// Frozen before it did anything, a coordinator does nothing with a run that went on without it.
fn a_frozen_coordinator() {
    let world = world(SHORT, CHAIN);
    let _worker = world.worker("engineer", &[]);
    let first = world.coordinator();
    let run = world.submit("w.yaml");
    until("it drives the run", || events(&world, &run).len() > 2);
    first.signal(SIGSTOP);
    let second = world.coordinator();
    // The run's lock is a lock of this machine: as long as the first one is frozen it is held.
    until("its claim was taken from it", || {
        held(&world, "coordinator").is_empty() || !held(&world, "coordinator")[0].contains(".a01.")
    });
    first.signal(SIGCONT);
    comes_to(&world, &run, "completed");
    let mut path: Vec<String> =
        world.lines("trace").iter().filter_map(|l| Some(l.split(' ').next()?.into())).collect();
    path.dedup();
    assert_eq!(path, CHAIN_PATH);
    for member in [first, second] {
        member.signal(SIGTERM);
        member.wait().exits(0);
    }
    clean(&world);
}

/// What a power cut may leave of a task without syncs: it is put aside, and another is made.
fn a_torn_task() {
    let world =
        world(SLOW, "version: '1.1'\nsteps:\n- { name: A, agent: engineer, command: [./step] }\n");
    let coordinator = world.coordinator();
    let run = world.submit("w.yaml");
    until("its task waits", || !world.list("inbox/engineer").is_empty());
    let torn = format!("inbox/engineer/{}", world.list("inbox/engineer")[0]);
    let text = world.read(&torn);
    world.write(&torn, &text[..text.len() / 2]);
    let worker = world.worker("engineer", &[]);
    comes_to(&world, &run, "completed");
    let tasks = |dir: &str| -> Vec<String> {
        let names = world.list(dir).into_iter().filter(|name| name.ends_with(".task"));
        names.map(|name| name[2..28].to_owned()).collect()
    };
    let (aside, done) = (tasks("failed/unreadable"), tasks(&format!("processed/{run}")));
    assert_eq!(aside.len(), 1, "{aside:?}");
    assert!(!done.contains(&aside[0]), "an id is used twice: {done:?}");
    assert_eq!(world.lines("trace").len(), 1, "{:?}", world.lines("trace"));
    coordinator.signal(SIGTERM);
    worker.signal(SIGTERM);
    coordinator.wait();
    worker.wait();
    world.run(&["fsck", "--quiet-fleet"]).exits(0);
}

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("faults/a killed worker", a_killed_worker),
        trial("faults/a frozen worker", a_frozen_worker),
        trial("faults/a coordinator killed after every line", a_killed_coordinator),
        trial("faults/a frozen coordinator", a_frozen_coordinator),
        trial("faults/two coordinators share what is submitted", two_coordinators),
        trial("faults/a torn task", a_torn_task),
        trial("faults/poison for workers", poison_for_workers),
        trial("faults/poison for coordinators", poison_for_coordinators),
        trial("faults/two workers and two hundred tasks", a_race),
        trial("faults/an inbox that anybody may write to", a_world_writable_inbox),
        trial("faults/an inbox of a stranger", an_inbox_of_a_stranger),
        trial("faults/a full and a read-only volume", a_full_volume),
        trial("faults/without inotify", without_inotify),
    ]
}
