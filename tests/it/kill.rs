//! Kill -9 of the program at every point of a run, and what `resume` makes of it.
//!
//! The workflow has loops in loops, jumps backwards inside and outside of them, retries and items
//! that move. Every step appends its path to `trace`, which is the side effect that must happen
//! once. All of its steps may be repeated without changing where the run goes, so the trace of a
//! run that was killed is the trace of a calm one, but for the attempts that were open.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::world::{Dice, Told, World, is_alive, trial, until};

const WORKFLOW: &str = r#"
version: "1.2"
steps:
  - { name: Begin, command: [./step] }
  - name: Outer
    for_each:
      items: [a, b]
      as: outer
      steps:
        - { name: First, command: [./step] }
        - name: Inner
          for_each:
            items: [x, y]
            steps:
              - { name: Flaky, command: [./step, flaky], retries: { max: 1, delay_ms: 3 } }
              - { name: Tail, command: [./step] }
        - name: Check
          command: [./step, is, "round.${outer}"]
          on: { success: { goto: Last }, failure: { goto: Mark } }
        - name: Mark
          command: [./step, make, "round.${outer}"]
          on: { success: { goto: First } }
        - { name: Last, command: [./step] }
  - { name: List, command: [./step, list], output_capture: lines }
  - name: Items
    for_each:
      items_from: steps.List.lines
      on_item_complete: { success: { move_to: processed } }
      steps:
        - { name: Work, command: [./step, has, "${item}"] }
  - name: Again
    command: [./step, is, twice]
    on: { success: { goto: End }, failure: { goto: Twice } }
  - name: Twice
    command: [./step, make, twice]
    on: { success: { goto: List } }
  - { name: End, command: [./step] }
"#;

/// `Flaky` says which attempt it is, for a killed first one leaves nothing to retry.
const STEP: &str = r#"#!/bin/sh
case "$1" in
  flaky) [ "$ORCHESTRATE_ATTEMPT" = 1 ] && { echo "$ORCHESTRATE_STEP fails" >> trace; exit 1; };;
esac
echo "$ORCHESTRATE_STEP" >> trace
case "$1" in
  is) [ -e "$2" ];;
  make) : > "$2";;
  has) [ -e "$2" ];;
  list) for task in inbox/*.task; do [ ! -e "$task" ] || echo "$task"; done;;
esac
"#;

const TASKS: [&str; 3] = ["one.task", "two.task", "three.task"];

fn world() -> World {
    let world = World::with(WORKFLOW);
    world.write("step", STEP);
    for task in TASKS {
        world.write(&format!("inbox/{task}"), task);
    }
    world
}

/// The trace of a run that nobody disturbs, without first attempts that fail.
fn calm() -> Vec<String> {
    let mut trace = vec!["Begin".to_owned()];
    for outer in 0..2 {
        for ends in [["Check", "Mark"], ["Check", "Last"]] {
            trace.push(format!("Outer.{outer}.First"));
            for inner in 0..2 {
                trace.push(format!("Outer.{outer}.Inner.{inner}.Flaky"));
                trace.push(format!("Outer.{outer}.Inner.{inner}.Tail"));
            }
            trace.extend(ends.map(|step| format!("Outer.{outer}.{step}")));
        }
    }
    trace.push("List".into());
    trace.extend((0..3).map(|item| format!("Items.{item}.Work")));
    trace.extend(["Again", "Twice", "List", "Again", "End"].map(str::to_owned));
    trace
}

/// How often every line occurs.
fn count<'a>(lines: impl IntoIterator<Item = &'a String>) -> BTreeMap<&'a str, usize> {
    lines.into_iter().fold(BTreeMap::new(), |mut count, line| {
        *count.entry(line.as_str()).or_default() += 1;
        count
    })
}

/// The step whose attempt the journal leaves open.
fn open_step(world: &World) -> Option<String> {
    let journal = world.read(".orchestrate/runs/latest/journal.jsonl");
    let mut open = None;
    for line in journal.lines() {
        let Ok(event) = serde_json::from_str::<Value>(line) else { continue };
        match event["event"].as_str() {
            Some("launched") => open = event["step"].as_str().map(str::to_owned),
            Some("ended") => open = None,
            _ => {}
        }
    }
    open
}

/// Checks everything that must hold at the end. `open` are the steps that a kill left open.
fn judge(world: &World, open: &[String]) {
    let trace = world.lines("trace");
    let works: Vec<String> =
        trace.iter().filter(|line| !line.ends_with(" fails")).cloned().collect();
    let mut once = works.clone();
    once.dedup();
    assert_eq!(once, calm(), "the order of steps; left open were {open:?}");
    let (calm, open) = (calm(), count(open));
    for (step, times) in count(&works) {
        let wanted = count(&calm)[step];
        let spare = open.get(step).copied().unwrap_or(0);
        assert!(times <= wanted + spare, "`{step}` ran {times} times, open {spare}: {trace:?}");
    }
    assert_eq!(world.status(), "completed");
    assert_eq!(world.list("inbox"), [""; 0], "every item was moved");
    let mut moved = TASKS.map(str::to_owned);
    moved.sort();
    assert_eq!(world.list("processed"), moved, "and once");
    for task in TASKS {
        assert_eq!(world.read(&format!("processed/{task}")), task);
    }
    assert_eq!(world.processes(), [0; 0], "processes are left");
}

/// Reads the state all the time. It must be whole whenever it is read, and must not say that
/// anything was done before it was.
struct Reader {
    done: Arc<AtomicBool>,
    thread: JoinHandle<Result<usize, String>>,
}

impl Reader {
    fn of(world: &World) -> Reader {
        let done = Arc::new(AtomicBool::new(false));
        let told = done.clone();
        let state = world.path(".orchestrate/runs/latest/state.json");
        let trace = world.path("trace");
        let thread = std::thread::spawn(move || {
            let (mut reads, mut seq) = (0, 0);
            while !told.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_micros(500));
                let Ok(text) = std::fs::read_to_string(&state) else { continue };
                let value: Value = serde_json::from_str(&text)
                    .map_err(|error| format!("half a state was seen: {error}\n{text}"))?;
                let trace = std::fs::read_to_string(&trace).unwrap_or_default();
                let ended = trace.lines().any(|line| line == "End");
                match value["status"].as_str() {
                    Some("running") => {}
                    Some("completed") if ended => {}
                    other => return Err(format!("the status was {other:?} after\n{trace}")),
                }
                for (step, record) in value["steps"].as_object().into_iter().flatten() {
                    let ran = trace.lines().any(|line| line == step);
                    if record["status"] == "completed" && !ran {
                        return Err(format!("`{step}` was said to be completed too early"));
                    }
                }
                let newer = value["journal_seq"].as_u64().unwrap_or(0);
                if newer < seq {
                    return Err(format!("the state went back from event {seq} to {newer}"));
                }
                (reads, seq) = (reads + 1, newer);
            }
            Ok(reads)
        });
        Reader { done, thread }
    }

    fn judge(self) {
        self.done.store(true, Ordering::SeqCst);
        let reads = self.thread.join().expect("the reader lives").unwrap_or_else(|e| panic!("{e}"));
        assert!(reads > 0, "the state was never read");
    }
}

/// Starts the program, kills it when `trace` has `lines` lines and a moment has passed, and says
/// which step that left open. Nothing if it ended before.
fn kill_after(world: &World, arguments: &[&str], lines: usize, pause: Duration) -> Option<String> {
    let mut started = world.start(arguments);
    let mut running = true;
    until("the trace grows, or the run ends", || {
        running = started.is_running();
        !running || world.lines("trace").len() >= lines
    });
    if running {
        // The one pause of this file that is no wait: it only moves the point of the kill.
        std::thread::sleep(pause);
        started.kill();
    }
    open_step(world)
}

/// One kill after a given line.
fn once(lines: usize, seed: u64) {
    let world = world();
    let reader = Reader::of(&world);
    let pause = Duration::from_micros(Dice::new(seed).below(6_000));
    let _told = Told(format!("kill after line {lines} and {pause:?}"));
    let open = kill_after(&world, &["run", "w.yaml"], lines, pause);
    world.run(&["resume", "latest", "--quiet"]).exits(0);
    judge(&world, &open.into_iter().collect::<Vec<_>>());
    reader.judge();
}

/// Kills the run and every resumption of it a few lines on, and some at once.
fn storm(seed: u64) {
    let mut dice = Dice::new(seed);
    let _told = Told(format!("seed {seed}"));
    let world = world();
    let reader = Reader::of(&world);
    let mut open = Vec::new();
    let mut arguments = vec!["run", "w.yaml"];
    for _ in 0..14 {
        let lines = world.lines("trace").len() + dice.below(5) as usize;
        let pause = Duration::from_micros(dice.below(9_000));
        // Before there is a run there is nothing to resume.
        let lines = if arguments[0] == "run" { lines.max(1) } else { lines };
        open.extend(kill_after(&world, &arguments, lines, pause));
        arguments = vec!["resume", "latest", "--quiet"];
    }
    world.run(&arguments).exits(0);
    judge(&world, &open);
    reader.judge();
}

/// A step that does not end and will not be told to: its next attempt must be alone.
fn orphan() {
    let world = World::with(
        "version: '1.1'\nsteps:\n\
         - { name: Before, command: [sh, -c, 'echo before >> ran'] }\n\
         - { name: Hold, command: [./hold] }\n",
    );
    world.write(
        "hold",
        "#!/bin/bash\n\
         trap '' TERM\n\
         for pid in $(cat pids 2>/dev/null); do\n\
         \x20 grep -qs '^State:.[^ZX]' /proc/$pid/status && echo $pid >> clash\n\
         done\n\
         setsid sh -c 'trap \"\" TERM; echo $$ >> pids; until [ -e go ]; do sleep 0.02; done' &\n\
         echo $$ >> pids\n\
         until [ -e go ]; do sleep 0.02; done\n\
         wait\n",
    );
    let pids = |attempts: usize| {
        until("two processes hold", || world.lines("pids").len() == 2 * attempts);
        let pids = world.lines("pids").split_off(2 * (attempts - 1));
        pids.iter().map(|pid| pid.parse::<i32>().expect("a pid")).collect::<Vec<_>>()
    };
    let run = world.start(&["run", "w.yaml"]);
    let first = pids(1);
    run.kill();
    assert!(first.iter().all(|pid| is_alive(*pid)), "they outlive the program");
    let resumed = world.start(&["resume", "latest"]);
    let second = pids(2);
    assert!(!first.iter().any(|pid| is_alive(*pid)), "the old ones are gone");
    assert!(second.iter().all(|pid| is_alive(*pid)));
    resumed.kill();
    let resumed = world.start(&["resume", "latest"]);
    pids(3);
    world.write("go", "");
    resumed.wait().exits(0).says("ended ");
    assert_eq!(world.read("clash"), "", "two attempts at once");
    assert_eq!(world.read("ran"), "before\n", "a completed step is not repeated");
    assert_eq!(world.processes(), [0; 0]);
}

/// Everything is on record, only the snapshot is behind: there is nothing left to do but that.
fn the_last_moment() {
    let world = World::with("version: '1.1'\nsteps:\n- { name: Only, command: ['true'] }\n");
    world.run(&["run", "w.yaml"]).exits(0);
    let state = ".orchestrate/runs/latest/state.json";
    let mut earlier = world.state();
    earlier["journal_seq"] = 1.into();
    earlier["status"] = "running".into();
    earlier["steps"] = serde_json::json!({});
    earlier["cursor"] = "Only".into();
    world.write(state, earlier.to_string());
    world.run(&["resume", "latest"]).exits(0).says("completed already");
    assert_eq!(world.status(), "completed", "the state is brought up to date");
    assert_eq!(world.state()["steps"]["Only"]["attempt"], 1, "and nothing ran again");
}

/// A kill while the step rests before it is tried again: the rest is kept, and so is the count.
fn in_a_rest() {
    let world = World::with(
        "version: '1.1'\nsteps:\n- name: Rest\n  command: [sh, -c, 'echo x >> tries; exit 1']\n  \
         retries: { max: 1, delay_ms: 300 }\n",
    );
    let run = world.start(&["run", "w.yaml"]);
    until("the step rests", || world.status_or_none() == "pending");
    run.kill();
    world.run(&["resume", "latest"]).exits(1);
    assert_eq!(world.read("tries"), "x\nx\n", "one retry, also across a resume");
}

impl World {
    /// The status of the step `Rest`, if the state says one.
    fn status_or_none(&self) -> String {
        let text = self.read(".orchestrate/runs/latest/state.json");
        let state: Value = serde_json::from_str(&text).unwrap_or_default();
        state["steps"]["Rest"]["status"].as_str().unwrap_or_default().to_owned()
    }
}

/// A signal that stops the program and one that lets it go on are no kill.
fn stopped_and_continued() {
    let world = world();
    let run = world.start(&["run", "w.yaml"]);
    until("it runs", || world.lines("trace").len() > 3);
    run.signal(Signal::SIGSTOP);
    run.signal(Signal::SIGCONT);
    run.wait().exits(0);
    judge(&world, &[]);
}

/// Starts one process of each kind that is hard to find, and goes on for ever.
const FAMILY: &str = "#!/bin/sh\n\
    trap '' TERM\n\
    setsid sleep 3600 & echo $! >> pids\n\
    env -i sleep 3600 & echo $! >> pids\n\
    (setsid sh -c 'sleep 3600 & echo $! >> pids; wait' &)\n\
    echo $$ >> pids\n\
    exec sleep 3600\n";

/// The processes of a step that is at work, once all are there.
fn family(world: &World) -> Vec<i32> {
    until("all are there", || world.lines("pids").len() == 4);
    world.lines("pids").iter().map(|pid| pid.parse().expect("a pid")).collect()
}

/// However a process that executes steps ends, no child of it lives on.
fn children_die_too(who: &str) {
    let agent = if who == "worker" { "agent: qa, " } else { "" };
    // A process has no guard before a child of it has run for some milliseconds.
    let world = World::with(&format!(
        "version: '1.1'\nsteps:\n- {{ name: Nap, {agent}command: [sleep, '0.1'] }}\n\
         - {{ name: Work, {agent}command: [./family] }}\n"
    ));
    world.write("family", FAMILY);
    let started = match who {
        "run" => world.start(&["run", "w.yaml"]),
        "coordinator" => world.coordinator(),
        _ => world.worker("qa", &[]),
    };
    // The coordinator of a worker's run must not live to bury the worker.
    let mut other = None;
    if who == "coordinator" {
        world.submit("w.yaml");
    } else if who == "worker" {
        other = Some(world.start(&["run", "--fleet", "w.yaml"]));
    }
    let pids = family(&world);
    if let Some(other) = other {
        other.signal(Signal::SIGSTOP);
    }
    started.kill();
    until("none is left", || pids.iter().all(|pid| !is_alive(*pid)));
}

/// A checkout is not free while something of a run that was killed works in it.
fn a_checkout_is_free_of_the_dead() {
    let world = World::with("name: w\ndescription: d\nnodes:\n- { id: a, bash: ./family }\n");
    world.write("family", FAMILY);
    let first = world.start(&["run", "w.yaml"]);
    let pids = family(&world);
    first.kill_unguarded();
    assert!(pids.iter().all(|pid| is_alive(*pid)), "nothing has ended them yet");
    // The dead may wait for pid 1 to reap them.
    let looks =
        "for pid in $(cat pids); do grep -s State: /proc/$pid/status | grep -v Z; done; true";
    let node = format!("{{ id: b, bash: '{looks}' }}");
    world.write("w.yaml", format!("name: w\ndescription: d\nnodes:\n- {node}\n"));
    world.run(&["run", "w.yaml", "--quiet"]).exits(0);
    assert_eq!(world.state()["steps"]["b"]["output"], "", "they are gone before it begins");
}

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = vec![
        trial("kill/the attempt that was open is ended before the next", orphan),
        trial("kill/between the last event and the last snapshot", the_last_moment),
        trial("kill/in a rest before a retry", in_a_rest),
        trial("kill/children die with their run", || children_die_too("run")),
        trial("kill/children die with their worker", || children_die_too("worker")),
        trial("kill/children die with their coordinator", || children_die_too("coordinator")),
        trial("kill/a checkout is free of the dead", a_checkout_is_free_of_the_dead),
        trial("kill/stopped and continued", stopped_and_continued),
    ];
    // Ten points to a trial, so that trials are few and still share the work among threads.
    let points: Vec<usize> = (1..=calm().len() + 4).collect();
    for chunk in points.chunks(10) {
        let chunk = chunk.to_vec();
        let name = format!("kill/after lines {} to {}", chunk[0], chunk[chunk.len() - 1]);
        trials.push(trial(name, move || {
            chunk.iter().for_each(|lines| once(*lines, *lines as u64));
        }));
    }
    for seed in 1..=4 {
        trials.push(trial(format!("kill/again and again, seed {seed}"), move || storm(seed)));
    }
    trials
}
