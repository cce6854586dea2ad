//! The examples and the demo do what they say, offline, in a copy of `workflows/`.

use std::fs;
use std::path::Path;
use std::process::Command;

use libtest_mimic::Trial;

use crate::world::{World, trial, until};

pub(crate) fn workflows() -> &'static Path {
    concat!(env!("CARGO_MANIFEST_DIR"), "/workflows").as_ref()
}

/// Whether a tool that some example needs is there.
pub(crate) fn has(tool: &str) -> bool {
    Command::new(tool).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// A copy of `workflows/` to work in. What earlier runs in the original left is not part of it.
pub(crate) fn copy() -> World {
    fn walk(from: &Path, to: &Path) {
        fs::create_dir_all(to).expect("a directory");
        for entry in from.read_dir().expect("a directory").flatten() {
            let (from, to) = (entry.path(), to.join(entry.file_name()));
            if from.is_dir() {
                walk(&from, &to);
            } else {
                fs::copy(&from, &to).expect("a copy");
            }
        }
    }
    const MADE: [&str; 7] =
        [".orchestrate", "artifacts", "failed", "inbox", "processed", "reports", "temp"];
    let world = World::new();
    for entry in workflows().read_dir().expect("the examples are there").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.path().is_dir() && !MADE.contains(&name.as_str()) {
            walk(&entry.path(), &world.path(&name));
        }
    }
    world
}

/// A call that a header names, and how it ends.
struct Call {
    line: String,
    exit: i32,
}

/// Every call in the `Run:` part of a header. One ends with 1 if its line, or what is said of it
/// on the next, has `exit code 1`.
fn calls(text: &str) -> Vec<Call> {
    let header: Vec<&str> = text.lines().map_while(|line| line.strip_prefix('#')).collect();
    let mut calls = Vec::new();
    for (index, line) in header.iter().enumerate() {
        let line = line.trim().trim_start_matches("Run:").trim();
        if is_call(line) {
            let said = header.get(index + 1).map(|next| next.trim()).filter(|next| !is_call(next));
            let fails = [line, said.unwrap_or("")].iter().any(|line| line.contains("exit code 1"));
            let line = line.split("   ").next().unwrap_or_default().to_owned();
            calls.push(Call { line, exit: i32::from(fails) });
        }
    }
    calls
}

fn is_call(line: &str) -> bool {
    line.starts_with("orchestrate run") || line.starts_with("DEMO_TOKEN=")
}

fn runs(name: &str) {
    let text = fs::read_to_string(workflows().join("examples").join(name)).expect("the example");
    if text.contains("python3") && !has("python3") {
        eprintln!("skipped: {name} needs python3");
        return;
    }
    let calls = calls(&text);
    assert!(!calls.is_empty(), "its header has no `Run:` line that can be run");
    for Call { line, exit } in calls {
        let world = copy();
        world.run(&["validate", &format!("examples/{name}")]).exits(0);
        assert!(line.contains(name), "its header runs another file: {line}");
        let mut shell = world.command("bash");
        shell.args(["-c", &line]).env_remove("DEMO_TOKEN");
        world.spawn(&mut shell).wait().exits(exit);
        let status = if exit == 0 { "completed" } else { "failed" };
        assert_eq!(world.status(), status, "{line}");
        assert_eq!(world.processes(), [0; 0], "{line}");
        looked_at(&world, &text);
    }
}

/// The files that `Look:` promises, where they are named without a variable part and by every
/// call: the first call's are checked by each example's own lines below.
fn looked_at(world: &World, text: &str) {
    let look = text.lines().find_map(|line| line.strip_prefix("# Look:")).unwrap_or_default();
    let named = look.split([',', ';', ' ']).map(|word| word.trim_end_matches(['.', ':']));
    let promised = ["artifacts/", "temp/", "reports/", "src/impl", "processed/0"];
    for path in named.filter(|path| promised.iter().any(|start| path.starts_with(start))) {
        if !path.contains(['<', '*']) && world.status() == "completed" && !path.ends_with('/') {
            assert!(world.exists(path), "`{path}` was promised");
        }
    }
}

/// Without its secret a step fails before it is started.
fn a_missing_secret() {
    let world = copy();
    let mut command = world.orchestrate(&["run", "examples/env_and_secrets.yaml"]);
    world.spawn(command.env_remove("DEMO_TOKEN")).wait().exits(1);
    let error = &world.state()["steps"]["UseToken"]["error"];
    assert_eq!(error["context"]["missing_secrets"], serde_json::json!(["DEMO_TOKEN"]));
}

fn a_missing_dataset() {
    let world = copy();
    let example = "examples/data_pipeline_with_dependencies.yaml";
    world.run(&["run", example, "--context", "dataset=missing"]).exits(1);
    let state = world.state();
    let steps = state["steps"].as_object().expect("steps");
    assert_eq!(steps.values().next().expect("a first step")["exit_code"], 2, "before any work");
}

fn demo() {
    if !has("python3") {
        eprintln!("skipped: the demo needs python3");
        return;
    }
    let world = World::new();
    let outcome = world.run(&["demo", "team", "--quiet"]).exits(0);
    assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("", ""), "quiet is quiet");
    for path in [
        "team/workflow.yaml",
        "team/artifacts/report.md",
        "team/done",
        "team/report.html",
        "team/team.log",
        "team/.orchestrate/runs/latest/state.json",
        "team/.orchestrate/runs/latest/logs",
    ] {
        assert!(world.exists(path), "`{path}` was promised");
    }
    let verdicts = world.list("team/artifacts/qa");
    assert!(verdicts.iter().any(|name| name.ends_with(".verdict.json")), "{verdicts:?}");
    assert!(world.read("team/.orchestrate/runs/latest/state.json").contains("\"completed\""));
    world.run(&["demo", "team"]).exits(2).says("not empty");
}

/// Stopped in the middle, by Ctrl-C or otherwise, it leaves nobody behind.
fn demo_stopped() {
    if !has("python3") {
        eprintln!("skipped: the demo needs python3");
        return;
    }
    use nix::sys::signal::Signal::{SIGINT, SIGTERM};
    for (signal, code) in [(SIGINT, 130), (SIGTERM, 143)] {
        let world = World::new();
        let demo = world.start(&["demo", "team"]);
        until("an agent is at work", || demo.stderr().contains("Design (architect)"));
        let here = world.path("team").canonicalize().expect("a path");
        let there = || {
            let entries = Path::new("/proc").read_dir().into_iter().flatten().flatten();
            let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
            let cwd = |pid: &i32| fs::read_link(format!("/proc/{pid}/cwd")).ok();
            pids.filter(|pid| cwd(pid).as_ref() == Some(&here)).collect::<Vec<i32>>()
        };
        assert!(there().len() >= 5, "itself, a coordinator and three workers: {:?}", there());
        demo.signal(signal);
        let ended = demo.wait().exits(code);
        assert!(ended.stderr.contains("everything that was started has ended"), "{}", ended.stderr);
        until("nobody is left", || there().is_empty());
    }
}

pub(crate) fn trials() -> Vec<Trial> {
    let entries = workflows().join("examples").read_dir().into_iter().flatten().flatten();
    let mut names: Vec<_> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    let examples = names
        .into_iter()
        .filter(|name| name.ends_with(".yaml"))
        .map(|name| trial(format!("examples/{name}"), move || runs(&name)));
    // The demo takes its time, so it comes first and others run beside it.
    [trial("examples/the demo", demo), trial("examples/the demo, stopped", demo_stopped)]
        .into_iter()
        .chain(examples)
        .chain([
            trial("examples/a missing secret", a_missing_secret),
            trial("examples/a missing dataset", a_missing_dataset),
        ])
        .collect()
}
