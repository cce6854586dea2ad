//! Scripts of nodes with the runtimes themselves, not with stand-ins: what is asked of `bun` and
//! `uv` must be what they understand, and the packages that they install must be found.
//!
//! Where a runtime is not installed, its tests are left out, unless `ORCHESTRATE_TEST_RUNTIMES=1`
//! says that it must be there.

use std::path::Path;

use libtest_mimic::Trial;

use crate::world::{World, trial};

pub(crate) fn trials() -> Vec<Trial> {
    let must = std::env::var_os("ORCHESTRATE_TEST_RUNTIMES").is_some_and(|value| value == "1");
    let tests: [(&str, &str, fn()); 5] = [
        ("bun", "an inline script", bun_inline),
        ("bun", "packages are installed once and found by scripts", bun_packages),
        ("bun", "a package that is not there", bun_no_package),
        ("uv", "an inline script", uv_inline),
        ("uv", "packages are found by scripts", uv_packages),
    ];
    let made = |(runtime, name, test): (&str, &str, fn())| {
        let left_out = !must && !is_installed(runtime);
        trial(format!("runtimes/{runtime}: {name}"), test).with_ignored_flag(left_out)
    };
    tests.into_iter().map(made).collect()
}

fn is_installed(runtime: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(runtime).is_file())
}

/// A workspace with a workflow of these nodes, and how running it ended. It sees the home of the
/// user, who may have said there where packages come from.
fn run(world: &World, nodes: &str, code: i32) {
    world.write("w.yaml", format!("name: scripts\ndescription: scripts\nnodes:\n{nodes}"));
    let mut command = world.orchestrate(&["run", "w.yaml"]);
    if let Some(home) = std::env::var_os("HOME") {
        command.env("HOME", home);
    }
    world.spawn(&mut command).wait().exits(code);
}

fn output(world: &World, node: &str) -> String {
    world.state()["steps"][node]["output"].as_str().unwrap_or_default().to_owned()
}

fn bun_inline() {
    let world = World::new();
    world.write("lib.ts", "export const three: number = 3;");
    world.write(".env", "LEAK=yes");
    let nodes = r#"
  - id: number
    bash: echo 39
  - id: script
    depends_on: [number]
    runtime: bun
    script: |
      import { three } from "./lib";
      const sum: number = $number.output + three;
      await Bun.write("made.txt", "made");
      console.log(sum, process.env.LEAK, process.env.ARTIFACTS_DIR === "$ARTIFACTS_DIR");
"#;
    run(&world, nodes, 0);
    assert_eq!(output(&world, "script"), "42 undefined true");
    assert_eq!(world.read("made.txt"), "made");
}

fn bun_packages() {
    let world = World::new();
    let nodes = r#"
  - id: first
    runtime: bun
    deps: [is-odd@3.0.1]
    script: |
      import isOdd from "is-odd";
      import { existsSync } from "node:fs";
      console.log(isOdd(3), existsSync("w.yaml"));
  - id: second
    depends_on: [first]
    runtime: bun
    deps: [is-odd@3.0.1]
    script: console.log(require("is-odd/package.json").version)
"#;
    run(&world, nodes, 0);
    assert_eq!(output(&world, "first"), "true true");
    assert_eq!(output(&world, "second"), "3.0.1");
    let logs = ".orchestrate/runs/latest/logs";
    assert!(world.read(&format!("{logs}/first.install.log")).contains("is-odd@3.0.1"));
    assert!(!world.exists(&format!("{logs}/second.install.log")), "they are there already");
    let sets = world.list(".orchestrate/cache/bun");
    assert_eq!(sets.len(), 1, "{sets:?}");
    assert!(!world.exists("node_modules") && !world.exists("package.json"));
    let set = Path::new(".orchestrate/cache/bun").join(&sets[0]);
    assert!(world.exists(&set.join("node_modules/is-odd").to_string_lossy()));
}

fn bun_no_package() {
    let world = World::new();
    let nodes = r#"
  - id: script
    runtime: bun
    deps: ["orchestrate-test-no-such-package-7f3a"]
    script: console.log("never")
"#;
    run(&world, nodes, 1);
    let state = world.state();
    let error = &state["steps"]["script"]["error"];
    let message = error["message"].as_str().unwrap_or_default();
    assert!(
        message.contains("`bun add orchestrate-test-no-such-package-7f3a` failed"),
        "{message}"
    );
    assert!(error["stderr_tail"].to_string().contains("no-such-package"), "{error}");
    assert!(world.list(".orchestrate/cache/bun").is_empty());
}

fn uv_inline() {
    let world = World::new();
    // A project of the workspace is not what the script is about.
    world.write("pyproject.toml", "[project]\nname = 'x'\nversion = '0'\ndependencies = ['no==0']");
    let nodes = r#"
  - id: number
    bash: echo 39
  - id: script
    depends_on: [number]
    runtime: uv
    script: |
      import os
      print($number.output + 3, os.path.exists("w.yaml"))
"#;
    run(&world, nodes, 0);
    assert_eq!(output(&world, "script"), "42 True");
    assert!(!world.exists("uv.lock") && !world.exists(".venv"));
}

fn uv_packages() {
    let world = World::new();
    let nodes = r#"
  - id: script
    runtime: uv
    deps: ["six==1.16.0"]
    script: |
      import six
      print(six.__version__)
"#;
    run(&world, nodes, 0);
    assert_eq!(output(&world, "script"), "1.16.0");
}
