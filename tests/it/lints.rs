//! Lints: each is told where it is meant, and never where it only looks like it.

use std::fs;

use libtest_mimic::Trial;
use serde_json::Value;

use crate::examples;
use crate::world::{World, trial};

/// The problems that `validate` finds in files: each with its file, its lint and its message.
fn found(world: &World, files: &[&str], more: &[&str]) -> Vec<(String, String, String)> {
    let mut arguments = vec!["validate", "--json"];
    arguments.extend(more);
    arguments.extend(files);
    let said: Value = serde_json::from_str(&world.run(&arguments).stdout).expect("a document");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let problems = said["problems"].as_array().expect("problems").iter();
    problems.map(|one| (text(&one["file"]), text(&one["lint"]), text(&one["message"]))).collect()
}

/// The workflows below a directory of a workspace.
fn in_dir(world: &World, dir: &str) -> Vec<String> {
    let names = world.list(dir).into_iter().filter(|name| name.ends_with(".yaml"));
    names.map(|name| format!("{dir}/{name}")).collect()
}

/// What is shipped is right, and is not called wrong: examples, the demonstration, what `init`
/// makes, and what is built in.
fn nothing_that_is_shipped() {
    let world = examples::copy();
    let mut files = in_dir(&world, "examples");
    files.extend(in_dir(&world, "nodes"));
    files.extend(["implement-bead", "review-loop", "spec-to-beads"].map(str::to_owned));
    assert!(files.len() > 20, "{files:?}");
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let none: [(String, String, String); 0] = [];
    // What is missing on the machine of the test is no fault of what is shipped.
    let found = |world: &World, files: &[&str], more: &[&str]| {
        let mut found = found(world, files, more);
        found.retain(|(_, lint, _)| lint != "missing-here");
        found
    };
    assert_eq!(found(&world, &files, &["--config", "config/offline.yaml"]), none);
    let world = World::new();
    world.run(&["init"]).exits(0);
    assert_eq!(found(&world, &["workflow.yaml"], &[]), none);
    let world = examples::copy();
    for (name, text) in ["workflow.yaml", "offline.yaml"].map(|name| {
        (name, fs::read_to_string(world.path(&format!("demo/{name}"))).expect("the demonstration"))
    }) {
        world.write(name, text);
    }
    assert_eq!(found(&world, &["workflow.yaml"], &[]), none);
}

fn steps(text: &str) -> String {
    format!("version: '1.4'\nsteps:\n{text}")
}

fn nodes(script: &str) -> String {
    format!(
        "name: n\ndescription: d\nnodes:\n- {{ id: a, bash: 'echo 1' }}\n\
         - id: b\n  depends_on: [a]\n  bash: |\n    {}\n",
        script.replace('\n', "\n    ")
    )
}

/// Each lint with what it is told of, and with what only looks like that.
fn cases() -> Vec<(&'static str, Vec<String>, Vec<String>)> {
    let goes = "- { name: A, command: ['true'], on: { failure: { goto: Handle } } }\n";
    let last = "- { name: Handle, command: ['true'] }\n";
    let ends = "- { name: B, command: ['true'], on: { success: { goto: _end } } }\n";
    let shell = |rest: &str| steps(&format!("- {{ name: A, command: {rest} }}\n"));
    let timed = |seconds: &str| {
        steps(&format!("- {{ name: A, command: ['true'], timeout_sec: {seconds} }}\n"))
    };
    let waits = |glob: &str| steps(&format!("- {{ name: A, wait_for: {{ glob: '{glob}' }} }}\n"));
    vec![
        (
            "fall-through",
            vec![steps(&format!("{goes}{last}"))],
            vec![
                steps(&format!("{goes}{ends}{last}")),
                steps(&format!(
                    "{}{last}",
                    goes.replace(" } } }", " }, success: { goto: _end } } }")
                )),
            ],
        ),
        (
            "quoted-reference",
            vec![nodes("echo \"$a.output\""), nodes("echo \"so: $a.output.\"")],
            vec![
                nodes("value=$a.output\necho \"$value\""),
                nodes("echo $a.output"),
                nodes("echo \"$a\""),
                nodes("x=$a.output; echo \"${x}.output\""),
                nodes("echo \"a.output\""),
            ],
        ),
        (
            "agent-cycle",
            vec![
                cycle("provider: offline, input_file: p.md"),
                cycle("provider: offline, spell: s"),
            ],
            vec![cycle("command: ['true']"), cycle("wait_for: { glob: x }")],
        ),
        (
            "long-timeout",
            vec![timed("86401"), timed("604800")],
            vec![timed("86400"), timed("1"), nodes("sleep 90000; x=$a.output")],
        ),
        (
            "missing-here",
            vec![
                shell("[no-such-program]"),
                shell("[./no-such-program]"),
                steps("- { name: A, provider: offline, input_file: none.md }\n"),
                steps("- { name: A, command: ['true'], secrets: [NO_SUCH_SECRET] }\n"),
                "providers: { p: { command: [no-such-program] } }\n".to_owned()
                    + &steps("- { name: A, provider: p }\n"),
            ],
            vec![
                shell("['true']"),
                shell("['${context.program}']"),
                steps("- { name: A, provider: offline, input_file: '${context.file}' }\n"),
                steps(
                    "- { name: A, command: ['true'], output_file: made.md }\n\
                     - { name: B, provider: offline, input_file: made.md }\n",
                ),
                steps("- { name: A, command: ['true'], secrets: [PATH] }\n"),
            ],
        ),
        (
            "shell-in-glob",
            vec![waits("x/$(date).md"), waits("~/x.md"), waits("x/`date`.md")],
            vec![
                waits("x/(a)*.md"),
                waits("x/~old/*.md"),
                waits("${context.dir}/*.md"),
                waits("x/file~"),
            ],
        ),
        (
            "shell-value",
            vec![
                shell("[bash, -c, 'echo ${context.t}']"),
                shell("[sh, -c, 'x=\"${context.t}\"; echo $x']"),
            ],
            vec![
                shell("[bash, -c, 'echo \"$1\"', _, '${context.t}']"),
                shell("[echo, -c, '${context.t}']"),
                shell("[bash, run.sh, '${context.t}']"),
                shell("[bash, -c, 'echo ${run.id}']"),
                shell("[bash, -c, 'echo $${context.t}']"),
            ],
        ),
        (
            "unreachable-step",
            vec![steps(&format!("{ends}{}", last.replace("Handle", "Never")))],
            vec![
                steps(&format!("{goes}{ends}{last}")),
                steps(&format!("{}{last}", ends.replace("success", "failure"))),
                steps(last),
            ],
        ),
        (
            "unshown-input",
            vec![gated("plan", "ok, build")],
            vec![
                gated("plan, build", "ok, build"),
                gated("plan", "ok"),
                gated("build", "ok, build"),
            ],
        ),
        (
            "unused-parameter",
            vec![
                asking("claude", "max_budget: 1"),
                asking("claude", "permision_mode: plan"),
                asking("codex", "max_budget_usd: 1"),
            ],
            vec![
                asking("claude", "max_budget_usd: 1, permission_mode: plan"),
                asking("codex", "model: x"),
                asking("offline", "whatever: 1"),
            ],
        ),
    ]
}

/// A step that is repeated until another one succeeds.
fn cycle(what: &str) -> String {
    steps(&format!(
        "- {{ name: A, {what} }}\n\
         - {{ name: B, command: ['true'], on: {{ failure: {{ goto: A }} }} }}\n"
    ))
}

/// A gate that waits for some of `plan` and `build`, and a node behind it.
fn gated(gate: &str, node: &str) -> String {
    format!(
        "name: n\ndescription: d\nnodes:\n- {{ id: plan, bash: 'echo 1' }}\n\
         - {{ id: build, bash: 'echo 1' }}\n\
         - {{ id: ok, depends_on: [{gate}], approval: {{ message: Well? }} }}\n\
         - {{ id: deploy, depends_on: [{node}], bash: ls }}\n"
    )
}

/// A step that gives a provider parameters.
fn asking(provider: &str, params: &str) -> String {
    steps(&format!(
        "- {{ name: A, provider: {provider}, input_file: p.md, provider_params: {{ {params} }} }}\n"
    ))
}

fn told_where_it_is_meant_alone() {
    let world = World::new();
    let mut files = Vec::new();
    for (id, hits, misses) in cases() {
        for (kind, texts) in [("hit", hits), ("miss", misses)] {
            for (number, text) in texts.into_iter().enumerate() {
                let name = format!("{id}.{kind}{number}.yaml");
                world.write(&name, text);
                files.push(name);
            }
        }
    }
    let names: Vec<&str> = files.iter().map(String::as_str).collect();
    let found = found(&world, &names, &[]);
    for name in &files {
        let told = found.iter().filter(|(file, _, _)| file == name);
        let told: Vec<&str> = told.map(|(_, lint, _)| lint.as_str()).collect();
        let id = name.split('.').next().unwrap_or_default();
        let text = world.read(name);
        match name.contains(".hit") {
            true => assert!(told.contains(&id), "{name}: {told:?} of\n{text}"),
            false => assert!(told.iter().all(|lint| *lint != id), "{name}: {told:?} of\n{text}"),
        }
    }
    let ids: Vec<&str> = cases().iter().map(|(id, _, _)| *id).collect();
    let page = world.run(&["help", "lints"]).exits(0).stdout;
    let listed = page.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let listed: Vec<&str> = listed.filter(|id| *id != "#").collect();
    assert_eq!(listed, ids, "every lint is here");
}

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("lints/nothing that is shipped", nothing_that_is_shipped),
        trial("lints/told where it is meant alone", told_where_it_is_meant_alone),
    ]
}
