//! The examples of the `nodes:` language do what their headers say, gates included, offline, in a
//! copy of `workflows/`.
//!
//! A header's calls are made in their order. `orchestrate run` begins anew, in a copy of its own;
//! every other call goes on with the run before it. A call ends with the exit code that its line
//! names, else with 0.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::examples::{copy, has, workflows};
use crate::world::{World, trial};

/// What is so after an example was run for the n-th time, from 0.
type Check = fn(&World, usize);

/// Every example, how often it is run, and what is so then.
const EXAMPLES: [(&str, usize, Check); 7] = [
    ("issue_triage", 2, triage),
    ("plan_implement_review", 1, implement),
    ("requirements_interview", 1, interview),
    ("parallel_review", 2, parallel),
    ("release", 2, release),
    ("deploy_guard", 2, guard),
    ("script_report", 1, report),
];

struct Call {
    line: String,
    exit: i32,
}

/// The calls of a header, in groups that begin with a run.
fn calls(text: &str) -> Vec<Vec<Call>> {
    let header = text.lines().map_while(|line| line.strip_prefix('#'));
    let mut groups: Vec<Vec<Call>> = Vec::new();
    for line in header.map(|line| line.trim().trim_start_matches("Run:").trim()) {
        if !line.starts_with("orchestrate ") {
            continue;
        }
        let (call, said) = line.split_once("   ").unwrap_or((line, ""));
        let code = said.split_once("exit code ").map(|(_, code)| code.trim_end_matches(')'));
        let exit = code.map_or(0, |code| code.parse().expect("an exit code"));
        if call.starts_with("orchestrate run ") {
            groups.push(Vec::new());
        }
        let group = groups.last_mut().expect("a run comes first");
        group.push(Call { line: call.to_owned(), exit });
    }
    groups
}

fn runs(name: &str, times: usize, check: Check) {
    let file = format!("nodes/{name}.yaml");
    let text = fs::read_to_string(workflows().join(&file)).expect("the example");
    let groups = calls(&text);
    assert_eq!(groups.len(), times, "its header runs it so often");
    for (index, group) in groups.iter().enumerate() {
        let world = copy();
        let path = runtimes(&world);
        let validate = format!("orchestrate validate --strict {file} --config config/offline.yaml");
        let mut shell = world.command("bash");
        shell.args(["-c", &format!("PATH={path}$PATH\n{validate}")]);
        world.spawn(&mut shell).wait().exits(0);
        for Call { line, exit } in group {
            let fits = !line.starts_with("orchestrate run ") || line.contains(&file);
            assert!(fits, "its header runs another file: {line}");
            let mut shell = world.command("bash");
            shell.args(["-c", &format!("PATH={path}$PATH\n{line}")]);
            world.spawn(&mut shell).wait().exits(*exit);
        }
        assert_eq!(world.processes(), [0; 0], "{name}");
        check(&world, index);
    }
}

/// Stand-ins for the runtimes that are not here: the first is Python, the second knows the answer.
fn runtimes(world: &World) -> String {
    let stubs = [
        ("uv", "#!/bin/sh\nfor file; do :; done\nexec python3 \"$file\"\n"),
        (
            "bun",
            "#!/bin/sh\ntest -s \"$ARTIFACTS_DIR/figures.json\" || exit 1\n\
             echo '| 2024-01 | 12 | 380 |'\necho '| 2024-02 | 97 | 910 |'\n",
        ),
    ];
    let missing = stubs.iter().filter(|(name, _)| !has(name));
    for (name, text) in missing {
        let file = format!("stand-ins/{name}");
        world.write(&file, text);
        fs::set_permissions(world.path(&file), fs::Permissions::from_mode(0o755)).expect("a mode");
    }
    format!("{}:", world.path("stand-ins").display())
}

/// The states of nodes, as `name state` for each, in the order of their names.
fn states(world: &World) -> Vec<String> {
    let state = world.state();
    let steps = state["steps"].as_object().expect("steps");
    let mut states: Vec<String> = steps
        .iter()
        .filter_map(|(name, step)| Some(format!("{name} {}", step["status"].as_str()?)))
        .collect();
    states.sort();
    states
}

fn step(world: &World, name: &str) -> Value {
    world.state()["steps"][name].clone()
}

fn triage(world: &World, time: usize) {
    let bug = ["completed", "skipped"][time];
    let feature = ["skipped", "completed"][time];
    assert_eq!(
        states(world),
        [
            "answer skipped".to_owned(),
            "classify completed".to_owned(),
            format!("investigate {bug}"),
            format!("page {bug}"),
            "reply completed".to_owned(),
            format!("sketch {feature}"),
        ]
    );
    assert_eq!(world.exists("artifacts/page.txt"), time == 0);
    let reply = world.read("artifacts/reply.md");
    assert!(reply.contains(["The address is split", "two sets"][time]), "{reply}");
}

fn implement(world: &World, _: usize) {
    assert_eq!(world.status(), "completed");
    assert!(world.read("temp/sum.sh").contains("for x in"), "the second round's");
    assert!(world.read("artifacts/review.md").contains("sum of nothing"));
    let plan = world.read(".orchestrate/runs/latest/artifacts/nodes/plan.md");
    assert!(plan.contains("two and with four"), "{plan}");
    assert_eq!(step(world, "refuse")["status"], "skipped");
}

fn interview(world: &World, _: usize) {
    assert_eq!(world.status(), "completed");
    let document = world.read("artifacts/requirements.md");
    assert!(document.contains("three stations") && document.contains("loses one"), "{document}");
    assert!(!document.contains("NOTHING IS OPEN"), "the sign is no part of it");
}

fn parallel(world: &World, time: usize) {
    let security = ["completed", "failed"][time];
    assert_eq!(
        states(world),
        [
            "clarity completed".to_owned(),
            "log completed".to_owned(),
            format!("security {security}"),
            "speed completed".to_owned(),
            "summary completed".to_owned(),
        ]
    );
    assert_eq!(world.lines("artifacts/summary.md").len(), [5, 4][time], "a line for each");
    let log = world.read("artifacts/log.txt");
    assert_eq!(log, format!("{} reviewed {}\n", world.run_id(), ["safe", "risky"][time]));
}

fn release(world: &World, time: usize) {
    assert_eq!(world.status(), ["completed", "cancelled"][time]);
    let notes = world.read("artifacts/release_notes.md");
    assert_eq!(notes.contains("An empty address"), time == 0, "{notes}");
    assert_eq!(world.exists("artifacts/RELEASED"), time == 0);
    if time == 0 {
        assert_eq!(world.read("artifacts/RELEASED"), "v1.4.0\n");
    }
}

fn guard(world: &World, time: usize) {
    assert_eq!(world.status(), ["completed", "cancelled"][time]);
    assert_eq!(world.exists("artifacts/deployed.txt"), time == 0);
    assert!(world.exists("config/pipeline.yaml"), "what somebody says is never run");
    if time == 1 {
        let error = world.state()["error"].to_string();
        assert!(error.contains("no settings for this place"), "{error}");
    }
}

fn report(world: &World, _: usize) {
    assert_eq!(world.status(), "completed");
    let figures = world.read(".orchestrate/runs/latest/artifacts/figures.json");
    let figures: Value = serde_json::from_str(&figures).expect("JSON");
    assert_eq!(figures["2024-02"]["count"], json!("97"));
    let report = world.read("artifacts/report.md");
    assert!(report.contains("| 2024-02 | 97 | 910 |\n\nErrors rose"), "{report}");
}

/// Each kind of node is in one of them, and each of them is run here.
fn all_kinds() {
    let entries = workflows().join("nodes").read_dir().expect("the examples").flatten();
    let paths = entries.map(|entry| entry.path());
    let texts: Vec<(String, String)> = paths
        .filter(|path| path.extension().is_some_and(|ending| ending == "yaml"))
        .map(|path| {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            (name, fs::read_to_string(&path).expect("text"))
        })
        .collect();
    assert_eq!(texts.len(), EXAMPLES.len());
    for (name, _) in &texts {
        assert!(EXAMPLES.iter().any(|(known, ..)| known == name), "{name} is not run");
    }
    for kind in ["command", "prompt", "bash", "script", "loop", "approval", "cancel"] {
        let is = |line: &str| line.starts_with(&format!("    {kind}:"));
        let some = texts.iter().any(|(_, text)| text.lines().any(is));
        assert!(some, "no example has a `{kind}` node");
    }
}

pub(crate) fn trials() -> Vec<Trial> {
    let examples = EXAMPLES.into_iter().filter(|(name, ..)| {
        let left_out = *name == "script_report" && !has("uv") && !has("python3");
        if left_out {
            eprintln!("skipped: {name} needs uv, or python3 in its place");
        }
        !left_out
    });
    let examples = examples.map(|(name, times, check)| {
        trial(format!("examples/nodes/{name}.yaml"), move || runs(name, times, check))
    });
    examples.chain([trial("examples/nodes/every kind of node", all_kinds)]).collect()
}
