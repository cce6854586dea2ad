//! Runs of the `nodes:` dialect in one process: killed at any moment, answered twice or too late,
//! stopped, limited, and large.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use libtest_mimic::Trial;
use nix::sys::signal::Signal::SIGINT;
use serde_json::{Value, json};

use crate::world::{Dice, Started, Told, World, is_alive, trial, until};

const RUN: &str = ".orchestrate/runs/latest";

/// Leaves a line for every execution: its step and its attempt.
const STEP: &str = "#!/bin/sh\necho \"$ORCHESTRATE_STEP $ORCHESTRATE_ATTEMPT\" >> trace\n";

/// An agent that is done in the third round.
const AGENT: &str = "#!/bin/sh\ncat > /dev/null\n./step\n\
    case $ORCHESTRATE_STEP in *.2.prompt) echo DONE;; *) echo going on;; esac\n";

const SETTINGS: &str =
    "providers: { robot: { command: [./agent], input_mode: stdin } }\nlimits: { grace_sec: 0.2 }\n";

/// Parallel nodes, a loop, a gate, a node that is skipped, and a join.
const GRAPH: &str = "name: graph\ndescription: a bit of everything\nprovider: robot\nnodes:\n\
    - { id: a, bash: ./step }\n\
    - { id: b, bash: ./step }\n\
    - { id: rounds, loop: { prompt: go, until: DONE, max_iterations: 5 }, depends_on: [a] }\n\
    - { id: ok, approval: { message: 'Fine?', capture_response: true }, depends_on: [b] }\n\
    - { id: never, bash: ./step, depends_on: [b], when: \"$b.output == 'x'\" }\n\
    - { id: c, bash: './step; echo $ok.output', depends_on: [ok] }\n\
    - { id: join, bash: ./step, depends_on: [rounds, c, never], \
        trigger_rule: none_failed_min_one_success }\n";

fn world(workflow: &str) -> World {
    let world = World::with(workflow);
    world.write("step", STEP);
    world.write("agent", AGENT);
    world.write(".orchestrate/config.yaml", SETTINGS);
    world
}

fn events(world: &World) -> Vec<Value> {
    let lines = world.lines(&format!("{RUN}/journal.jsonl"));
    lines.iter().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Every attempt that is on record as completed, by step.
fn completed(world: &World) -> BTreeMap<String, Vec<u64>> {
    let mut found: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for event in events(world) {
        if event["event"] == "ended" && event["record"]["status"] == "completed" {
            let step = event["step"].as_str().unwrap_or_default().to_owned();
            found.entry(step).or_default().push(event["attempt"].as_u64().unwrap_or_default());
        }
    }
    found
}

/// How often each line of the trace is there.
fn traced(world: &World) -> BTreeMap<String, usize> {
    world.lines("trace").into_iter().fold(BTreeMap::new(), |mut count, line| {
        *count.entry(line).or_default() += 1;
        count
    })
}

/// Kills a process once the journal has so many lines. Gives its exit code if it ended before.
fn kill_at(world: &World, mut started: Started, lines: usize) -> Option<i32> {
    let journal = format!("{RUN}/journal.jsonl");
    until("the journal grows or the program ends", || {
        world.lines(&journal).len() >= lines || !started.is_running()
    });
    match started.is_running() {
        true => {
            started.kill();
            None
        }
        false => Some(started.wait().exit),
    }
}

/// A run is killed again and again, and taken up each time, until it is over.
fn killed_at_random(seed: u64) {
    let _told = Told(format!("seed {seed}"));
    let world = world(GRAPH);
    let mut dice = Dice::new(seed);
    let mut lines = 1 + dice.below(4) as usize;
    kill_at(&world, world.start(&["run", "w.yaml"]), lines);
    for round in 0.. {
        assert!(round < 60, "it never ends");
        let gates = world.run(&["pending", "--json"]).exits(0).stdout;
        let verb: &[&str] = match gates.contains("\"answered\":false") {
            true => &["approve", "latest", "--comment", "fine"],
            false => &["resume", "latest"],
        };
        let before = world.lines(&format!("{RUN}/journal.jsonl")).len();
        lines = before + 1 + dice.below(6) as usize;
        match kill_at(&world, world.start(verb), lines) {
            Some(0) => break,
            None | Some(3) => {}
            Some(other) => panic!("{verb:?} ends with {other}"),
        }
    }
    let state = world.state();
    assert_eq!(state["status"], "completed", "{state}");
    assert_eq!(state["steps"]["c"]["output"], "fine");
    assert_eq!(state["steps"]["never"]["skip_cause"], "condition");
    let traced = traced(&world);
    let completed = completed(&world);
    let steps: Vec<&str> = completed.keys().map(String::as_str).collect();
    let rounds = ["rounds.0.prompt", "rounds.1.prompt", "rounds.2.prompt"];
    assert_eq!(steps, [&["a", "b", "c", "join"], &rounds[..]].concat());
    for (step, attempts) in completed {
        assert_eq!(attempts.len(), 1, "`{step}` completed once");
        let line = format!("{step} {}", attempts[0]);
        assert_eq!(traced.get(&line), Some(&1), "its effect is there once: {line}");
    }
    assert!(traced.values().all(|times| *times == 1), "no attempt was made twice: {traced:?}");
    assert_eq!(world.processes(), [0; 0]);
    world.run(&["fsck"]).exits(0);
}

const GATE: &str = "name: gate\ndescription: one gate\nnodes:\n\
    - { id: first, bash: './step; cat shown.txt' }\n\
    - { id: aside, bash: ./step }\n\
    - { id: ok, approval: { message: 'Ship $first.output?' }, depends_on: [first] }\n\
    - { id: last, bash: ./step, depends_on: [ok] }\n";

/// A run that waits at `ok`.
fn at_the_gate() -> World {
    let world = world(GATE);
    world.write("shown.txt", "one");
    world.run(&["run", "w.yaml"]).exits(3);
    world
}

fn answer(world: &World, attempt: u32, answer: &Value) {
    world.write(&format!("{RUN}/control/ok.0.gate.{attempt}.answer"), answer.to_string());
}

/// What is on record as shown at the gate.
fn shown(world: &World) -> String {
    let gates = world.run(&["pending", "--json"]).exits(0).stdout;
    let gates: Value = serde_json::from_str(&gates).expect("JSON");
    gates["gates"][0]["shown"].as_str().expect("a gate is open").to_owned()
}

fn two_answers_at_once() {
    let world = at_the_gate();
    let verbs: [&[&str]; 2] = [
        &["approve", "latest", "--no-resume"],
        &["reject", "latest", "--reason", "no", "--no-resume"],
    ];
    let both = verbs.map(|verb| world.start(verb));
    let mut exits = both.map(|one| one.wait().exit);
    let approved = exits[0] == 0;
    exits.sort_unstable();
    assert_eq!(exits, [0, 5], "one wins");
    world.run(&["resume", "latest"]).exits(if approved { 0 } else { 4 });
    assert_eq!(world.exists("trace") && world.read("trace").contains("last"), approved);
}

/// An answer to what is no longer shown is put aside, and the gate stays open.
fn a_stale_answer() {
    let world = at_the_gate();
    answer(&world, 1, &json!({ "approve": true, "shown": "something else" }));
    world.run(&["resume", "latest"]).exits(3).says("does not count");
    assert_eq!(world.list(&format!("{RUN}/control")), ["ok.0.gate.1.answer-refused"]);
    world.run(&["approve", "latest"]).exits(0);
    assert_eq!(world.status(), "completed");
}

/// A file that is no answer is put aside too.
fn an_unreadable_answer() {
    let world = at_the_gate();
    world.write(&format!("{RUN}/control/ok.0.gate.1.answer"), "yes!");
    world.run(&["resume", "latest"]).exits(3).says("does not count");
    assert!(world.exists(&format!("{RUN}/control/ok.0.gate.1.answer-refused")));
}

/// What was approved before its inputs were made anew is asked again.
fn an_answer_to_something_older() {
    let world = at_the_gate();
    let old = shown(&world);
    world.write("shown.txt", "two");
    world.run(&["approve", "latest", "--no-resume"]).exits(0);
    world.run(&["retry", "latest", "--from", "first"]).exits(3).says("Ship two?");
    assert_ne!(shown(&world), old);
    answer(&world, 2, &json!({ "approve": true, "shown": old }));
    world.run(&["resume", "latest"]).exits(3).says("has changed");
    world.run(&["approve", "latest"]).exits(0);
    assert!(world.read("trace").contains("last 1"));
}

fn a_dropped_answer() {
    let world = at_the_gate();
    answer(&world, 1, &json!({ "approve": true }));
    world.run(&["resume", "latest"]).exits(3).says("does not say what was `shown`");
    answer(&world, 1, &json!({ "approve": true, "shown": shown(&world) }));
    world.run(&["resume", "latest"]).exits(0);
    assert_eq!(world.status(), "completed");
    let gate = &world.state()["steps"]["ok"]["rounds"][0]["gate"]["gate"];
    assert_eq!(gate["answer"]["approve"], true);
}

/// `retry --from` executes a node and what comes after it, and nothing else.
fn retry_from_a_node() {
    let chain = "name: chain\ndescription: two branches\nnodes:\n\
        - { id: a, bash: ./step }\n\
        - { id: b, bash: ./step, depends_on: [a] }\n\
        - { id: c, bash: ./step, depends_on: [b] }\n\
        - { id: aside, bash: ./step, depends_on: [a] }\n";
    let world = world(chain);
    world.run(&["run", "w.yaml"]).exits(0);
    world.run(&["retry", "latest", "--from", "b"]).exits(0);
    let mut trace = world.lines("trace");
    trace.sort();
    assert_eq!(trace, ["a 1", "aside 1", "b 1", "b 2", "c 1", "c 2"]);
    let outcome = world.run(&["retry", "latest", "--from", "nobody"]).exits(2);
    assert!(outcome.stderr.contains("has no node `nobody`"), "{}", outcome.stderr);
}

/// A process that minds no SIGTERM until `go` is there.
const HOLD: &str = "#!/bin/bash\ntrap '' TERM INT HUP\necho $$ >> pids\n\
    until [ -e go ]; do sleep 0.02; done\n./step\n";

fn stopped_with_many_out() {
    let world = world(
        "name: stop\ndescription: three at once\nnodes:\n\
         - { id: a, bash: ./hold }\n- { id: b, bash: ./hold }\n- { id: c, bash: ./hold }\n\
         - { id: done, bash: ./step, depends_on: [a, b, c] }\n",
    );
    world.write("hold", HOLD);
    let run = world.start(&["run", "w.yaml"]);
    until("all hold", || world.lines("pids").len() == 3);
    run.signal(SIGINT);
    run.wait().exits(130).says("orchestrate resume ");
    let left: Vec<String> =
        world.lines("pids").into_iter().filter(|p| is_alive(p.parse().unwrap())).collect();
    assert_eq!(left, [""; 0], "what was started is gone");
    assert_eq!(world.processes(), [0; 0]);
    assert_eq!(world.status(), "running");
    world.write("go", "");
    world.run(&["resume", "latest"]).exits(0);
    let mut trace = world.lines("trace");
    trace.sort();
    assert_eq!(trace, ["a 2", "b 2", "c 2", "done 1"]);
}

/// As many nodes at once as `--jobs` says, and no more.
fn jobs(most: usize) {
    let mut workflow = "name: jobs\ndescription: side by side\nnodes:\n".to_owned();
    for node in 0..6 {
        let _ = writeln!(workflow, "- {{ id: n{node}, bash: './count {most}' }}");
    }
    let world = world(&workflow);
    // Nobody leaves before as many as may have met, once.
    world.write(
        "count",
        "#!/bin/bash\nmkdir -p now; touch now/$ORCHESTRATE_STEP\n\
         until [ -e met ] || [ $(ls now | wc -l) -ge $1 ]; do sleep 0.01; done\n\
         touch met; ls now | wc -l >> counts; rm now/$ORCHESTRATE_STEP\n",
    );
    world.run(&["run", "w.yaml", "--jobs", &most.to_string()]).exits(0);
    let counts = world.lines("counts");
    assert_eq!(counts.len(), 6);
    let highest = counts.iter().map(|count| count.parse::<usize>().unwrap()).max();
    assert_eq!(highest, Some(most));
}

fn a_checkout_for_one() {
    let hold = |mutates: bool| {
        format!(
            "name: checkout\ndescription: in the same place\nmutates_checkout: {mutates}\nnodes:\n\
             - {{ id: a, bash: 'echo x >> pids; until [ -e go ]; do sleep 0.02; done' }}\n"
        )
    };
    let world = world(&hold(true));
    world.write("free.yaml", hold(false));
    let first = world.start(&["run", "w.yaml"]);
    until("it holds", || world.lines("pids").len() == 1);
    world.run(&["run", "w.yaml"]).exits(5);
    let beside = world.start(&["run", "free.yaml"]);
    until("both hold", || world.lines("pids").len() == 2);
    world.write("go", "");
    first.wait().exits(0);
    beside.wait().exits(0);
    world.run(&["run", "w.yaml"]).exits(0);
}

/// Every node after the first is barred by its condition: nothing is executed, all is gone through.
fn large(name: &str, before: impl Fn(usize) -> String) {
    const NODES: usize = 2000;
    let mut workflow =
        format!("name: {name}\ndescription: many nodes\nnodes:\n- {{ id: n0, bash: echo }}\n");
    for node in 1..NODES {
        let before = before(node);
        let _ = writeln!(
            workflow,
            "- {{ id: n{node}, bash: 'false', depends_on: [{before}], trigger_rule: all_done, \
             when: \"$n0.output == 'x'\" }}"
        );
    }
    let all: Vec<String> = (0..NODES).map(|node| format!("n{node}")).collect();
    let all = all.join(", ");
    let _ = writeln!(
        workflow,
        "- {{ id: join, bash: ./step, depends_on: [{all}], trigger_rule: all_done }}"
    );
    let world = world(&workflow);
    world.run(&["run", "w.yaml", "--quiet"]).exits(0);
    assert_eq!(world.lines("trace"), ["join 1"]);
    let state = world.state();
    let steps = state["steps"].as_object().expect("steps");
    assert_eq!(steps.len(), NODES + 1);
    world.run(&["status", "latest"]).exits(0);
    world.run(&["retry", "latest", "--from", "n1999", "--quiet"]).exits(0);
    assert_eq!(world.lines("trace"), ["join 1", "join 2"]);
}

/// An approval given while whoever drives the run is about to leave it is never lost.
fn an_answer_just_in_time() {
    for _ in 0..4 {
        let world = world(GATE);
        world.write("shown.txt", "one");
        let run = world.start(&["run", "w.yaml"]);
        until("the gate is open", || {
            world.read(&format!("{RUN}/journal.jsonl")).contains("\"gated\"")
        });
        world.run(&["approve", "latest"]).exits(0);
        let exit = run.wait().exit;
        assert!([0, 3].contains(&exit), "{exit}");
        assert_eq!(world.status(), "completed");
        assert_eq!(world.read("trace").matches("last").count(), 1);
    }
}

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials: Vec<Trial> = (1..=6)
        .map(|seed| {
            trial(format!("nodes/killed at random, {seed}"), move || killed_at_random(seed))
        })
        .collect();
    trials.extend([
        trial("nodes/two answers at once", two_answers_at_once),
        trial("nodes/a stale answer is put aside", a_stale_answer),
        trial("nodes/an answer that is none is put aside", an_unreadable_answer),
        trial("nodes/an answer to something older", an_answer_to_something_older),
        trial("nodes/a dropped answer", a_dropped_answer),
        trial("nodes/an answer just in time", an_answer_just_in_time),
        trial("nodes/retry from a node", retry_from_a_node),
        trial("nodes/stopped with many out", stopped_with_many_out),
        trial("nodes/one job", || jobs(1)),
        trial("nodes/two jobs", || jobs(2)),
        trial("nodes/a checkout for one", a_checkout_for_one),
        trial("nodes/a long chain", || large("chain", |node| format!("n0, n{}", node - 1))),
        trial("nodes/a wide fan", || large("fan", |_| "n0".to_owned())),
    ]);
    trials
}
