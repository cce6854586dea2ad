//! `orchestrate watch`: runs, and runs again when something changed.

use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use nix::sys::signal::Signal::{SIGINT, SIGTERM};

use crate::world::{Started, World, trial, until};

fn workflow(word: &str) -> String {
    format!(
        "version: '1.1'\nproviders: {{ cat: {{ command: [cat], input_mode: stdin }} }}\nsteps:\n\
         - {{ name: Say, command: [sh, -c, 'echo {word} >> said'] }}\n\
         - {{ name: Ask, provider: cat, input_file: prompt.md, output_file: answer.md }}\n"
    )
}

/// Waits until it has run `runs` times and watches again.
fn watching(watch: &Started, runs: usize) {
    until("it watches", || watch.stderr().matches("for changes").count() >= runs);
}

fn edits() {
    let world = World::with(&workflow("one"));
    world.write("prompt.md", "first\n");
    let watch = world.start(&["watch", "w.yaml"]);
    watching(&watch, 1);
    assert_eq!(world.lines("said"), ["one"]);

    world.write("w.yaml", workflow("two"));
    watching(&watch, 2);
    assert_eq!(world.lines("said"), ["one", "two"]);

    world.write("w.yaml", "version: '1.1'\nsteps: [{ name: Bad, comand: [x] }]\n");
    until("it says what is wrong", || watch.stderr().contains("did you mean `command`"));
    watching(&watch, 3);

    // As editors do it: a new file, put in the place of the old one.
    world.write("w.yaml.new", workflow("three"));
    std::fs::rename(world.path("w.yaml.new"), world.path("w.yaml")).expect("a rename");
    watching(&watch, 4);
    assert_eq!(world.lines("said"), ["one", "two", "three"], "nothing ran of the invalid one");

    world.write("prompt.md", "second\n");
    watching(&watch, 5);
    assert_eq!(world.read("answer.md"), "second\n", "a prompt counts too");

    watch.signal(SIGINT);
    watch.wait().exits(130);
    assert_eq!(world.status(), "completed");
}

/// A file that the run itself writes is no reason to run again.
fn own_output() {
    let world = World::with(
        "version: '1.1'\nproviders: { cat: { command: [cat], input_mode: stdin } }\nsteps:\n\
         - { name: Write, command: [sh, -c, 'echo x >> said; date +%N > prompt.md'] }\n\
         - { name: Ask, provider: cat, input_file: prompt.md }\n",
    );
    world.write("prompt.md", "");
    let watch = world.start(&["watch", "w.yaml"]);
    watching(&watch, 1);
    // A change that must be seen comes after whatever else would have been seen by now.
    world.write("w.yaml", world.read("w.yaml").replace("echo x", "echo y"));
    watching(&watch, 2);
    watch.signal(SIGINT);
    watch.wait().exits(130);
    assert_eq!(world.lines("said"), ["x", "y"]);
}

/// Work items of steps, and spells, are there in every run, and a change of one begins another;
/// also of one that was wrong.
fn spells_and_beads() {
    let world = World::new();
    world.write(
        ".orchestrate/config.yaml",
        "default_provider: say\nproviders:\n  say:\n    input_mode: stdin\n    \
         command: [sh, -c, 'cat >> said; echo \"{\\\"success\\\": true}\"']\n",
    );
    world.write(
        "w.yaml",
        "version: '1.4'\nsteps:\n\
         - { name: A, spell: mine, system_prompt: none, bead: b.yaml, isolation: workspace }\n\
         - { name: B, spell: mine, system_prompt: none, bead: two, isolation: workspace }\n",
    );
    world.write(".coven/spells/mine.md", "{{if .bead.title}}torn\n");
    world.write("b.yaml", "id: b\ntitle: one\n");
    world.write(".beads/issues.jsonl", "{\"id\": \"two\", \"title\": \"listed\"}\n");
    let watch = world.start(&["watch", "w.yaml"]);
    watching(&watch, 1);
    assert!(watch.stderr().contains("has no `end`"), "{}", watch.stderr());
    world.write(".coven/spells/mine.md", "say {{.bead.title}}\n");
    watching(&watch, 2);
    assert_eq!(world.lines("said"), ["say one", "say listed"]);
    world.write("b.yaml", "id: b\ntitle: other\n");
    watching(&watch, 3);
    assert_eq!(world.lines("said")[2..], ["say other", "say listed"]);
    world.write(".beads/issues.jsonl", "{\"id\": \"two\", \"title\": \"last\"}\n");
    watching(&watch, 4);
    assert_eq!(world.lines("said")[4..], ["say other", "say last"]);
    watch.signal(SIGINT);
    watch.wait().exits(130);
}

/// Waits without waking: reading the watched files is no change of them.
fn rests() {
    let world = World::with(&workflow("one"));
    world.write("prompt.md", "first\n");
    let watch = world.start(&["watch", "w.yaml"]);
    watching(&watch, 1);
    let pid = watch.pid();
    // Each time a thread waits is one time that it was awake.
    let waits = || -> u64 {
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("its threads");
        let files = threads.flatten().map(|thread| thread.path().join("status"));
        let texts = files.map(|file| std::fs::read_to_string(file).unwrap_or_default());
        let count = |text: String| -> Option<u64> {
            let line = text.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"))?;
            line.trim().parse().ok()
        };
        texts.filter_map(count).sum()
    };
    // It looks by itself every 2 s; one that wakes itself does so thousands of times in a second.
    let (before, began) = (waits(), Instant::now());
    while began.elapsed() < Duration::from_secs(1) {
        // A thread that ends takes its count with it.
        assert!(waits().saturating_sub(before) < 30, "it wakes without end");
        std::thread::sleep(Duration::from_millis(10));
    }
    world.write("prompt.md", "second\n");
    watching(&watch, 2);
    watch.signal(SIGINT);
    watch.wait().exits(130);
}

fn terminated() {
    let world = World::with("version: '1.1'\nsteps: [{ name: A, command: ['true'] }]\n");
    let watch = world.start(&["watch", "w.yaml"]);
    watching(&watch, 1);
    watch.signal(SIGTERM);
    watch.wait().exits(143);
}

/// A signal while a step runs ends the step, the run and the watching.
fn in_a_run() {
    let world = World::with(
        "version: '1.1'\nsteps:\n- { name: A, command: [sh, -c, 'touch on; exec sleep 3600'] }\n",
    );
    let watch = world.start(&["watch", "w.yaml"]);
    until("the step runs", || world.exists("on"));
    watch.signal(SIGINT);
    watch.wait().exits(130);
    assert_eq!(world.status(), "running", "it can be resumed");
    assert_eq!(world.processes(), [0; 0]);
}

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("watch/edits, good and bad", edits),
        trial("watch/what the run writes itself", own_output),
        trial("watch/spells and work items", spells_and_beads),
        trial("watch/rests until something changes", rests),
        trial("watch/SIGTERM", terminated),
        trial("watch/a signal in a run", in_a_run),
    ]
}
