//! The published schemas against every workflow that there is: examples, what `init` writes, and
//! the files of all cases.

use std::fs;
use std::path::{Path, PathBuf};

use jsonschema::Validator;
use libtest_mimic::Trial;
use orchestrate::settings::Config;
use orchestrate::workflow::schema::render::{Topic, schema};
use orchestrate::workflow::{Problem, compile, read_config};
use orchestrate::yaml;
use serde_json::{Value, json};

use crate::world::{World, trial};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn files(below: &Path, ending: &str, into: &mut Vec<PathBuf>) {
    for entry in below.read_dir().into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            files(&path, ending, into);
        } else if path.extension().is_some_and(|found| found == ending) {
            into.push(path);
        }
    }
}

fn validator(topic: Topic) -> Validator {
    jsonschema::draft7::new(&schema(topic)).expect("a schema")
}

/// A YAML text as JSON; nothing for what is none.
fn parsed(text: &str) -> Option<Value> {
    yaml::parse(text).ok().map(|node| node.to_json())
}

fn is_workflow(document: &Value) -> bool {
    document.get("nodes").is_some() || document.get("steps").is_some()
}

/// Says how loader and schema differ on a workflow. Counts those that are valid and those that are
/// not.
fn compare(name: &str, text: &str, counts: &mut (usize, usize)) -> Option<String> {
    let document = parsed(text).filter(is_workflow)?;
    let valid = validator(Topic::Workflow).is_valid(&document);
    match compile(text, &Config::built_in()) {
        Ok(compiled) => {
            counts.0 += 1;
            // The schema is strict about keys and about what has no effect; `validate` warns.
            let lax = compiled.warnings.iter().any(|warning| {
                ["has no field", "no effect", "must be"].iter().any(|w| warning.message.contains(w))
            });
            let faults = || {
                let validator = validator(Topic::Workflow);
                validator.iter_errors(&document).map(|e| e.to_string()).collect::<Vec<_>>()
            };
            (!valid && !lax).then(|| format!("the schema refuses {name}: {:?}", faults()))
        }
        Err(problems) => {
            counts.1 += 1;
            let shape = |problem: &&Problem| {
                let said = &problem.message;
                problem.is_error() && (said.contains("has no field") || said.contains("must be a"))
            };
            let ill = problems.iter().find(shape).filter(|_| valid)?;
            Some(format!("the schema accepts {name}: {}", ill.message))
        }
    }
}

fn workflows() {
    let mut paths = Vec::new();
    files(&root().join("workflows"), "yaml", &mut paths);
    let mut counts = (0, 0);
    let mut apart = Vec::new();
    for path in paths {
        let text = fs::read_to_string(&path).expect("text");
        apart.extend(compare(&path.display().to_string(), &text, &mut counts));
    }
    assert!(apart.is_empty(), "{}", apart.join("\n"));
    assert!(counts.0 > 25, "few workflows were looked at: {counts:?}");
}

fn cases() {
    let mut paths = Vec::new();
    files(&root().join("tests/cases"), "case", &mut paths);
    let mut counts = (0, 0);
    let mut apart = Vec::new();
    for path in paths {
        let text = fs::read_to_string(&path).expect("text");
        for part in text.split("\n-- ").skip(1) {
            let Some((name, body)) = part.split_once(" --\n") else { continue };
            if name.ends_with(".yaml") {
                let name = format!("{}: {name}", path.display());
                apart.extend(compare(&name, body, &mut counts));
            }
        }
    }
    assert!(apart.is_empty(), "{}", apart.join("\n"));
    assert!(counts.0 > 300 && counts.1 > 20, "few workflows were looked at: {counts:?}");
}

fn settings() {
    let validator = validator(Topic::Config);
    for file in ["config/orchestrate.yaml", "workflows/init/config.yaml"] {
        let text = fs::read_to_string(root().join(file)).expect("text");
        read_config(&text).expect("settings");
        let document = parsed(&text).expect("YAML");
        let faults: Vec<_> = validator.iter_errors(&document).map(|e| e.to_string()).collect();
        assert!(faults.is_empty(), "{file}: {faults:?}");
    }
    assert!(!validator.is_valid(&json!({ "agents": { "qa": { "concurency": 2 } } })));
}

/// Tasks and statuses as the programs write them.
fn documents() {
    let world = World::new();
    world.run(&["init"]).exits(0);
    world.write("inbox/qa/look.task", "---\ntitle: Look\npriority: 1\n---\nLook at it.\n");
    world.run(&["worker", "qa", "--drain"]).exits(0);
    world.run(&["enqueue", "engineer", "Do it."]).exits(0);
    let (task, status) = (validator(Topic::Task), validator(Topic::Status));
    let mut seen = (0, 0);
    for below in ["inbox", "processed", "failed"] {
        let mut paths = Vec::new();
        files(&world.path(below), "task", &mut paths);
        files(&world.path(below), "json", &mut paths);
        for path in paths {
            let text = fs::read_to_string(&path).expect("text");
            let Ok(document) = serde_json::from_str::<Value>(&text) else { continue };
            let validator = match document["schema"].as_str() {
                Some("task/v1") => {
                    seen.0 += 1;
                    &task
                }
                Some("status/v1") => {
                    seen.1 += 1;
                    &status
                }
                _ => continue,
            };
            let faults: Vec<_> = validator.iter_errors(&document).map(|e| e.to_string()).collect();
            assert!(faults.is_empty(), "{}: {faults:?}\n{text}", path.display());
        }
    }
    assert!(seen.0 >= 2 && seen.1 >= 1, "{seen:?} {:?}", world.list("processed"));
    assert!(!task.is_valid(&json!({ "schema": "task/v1" })));
    assert!(!status.is_valid(&json!({ "schema": "status/v1", "success": "yes" })));
}

/// What `init` writes is what the program prints.
fn written() {
    let world = World::new();
    world.run(&["init"]).exits(0);
    for topic in ["workflow", "config"] {
        let printed = world.run(&["schema", topic]).exits(0).stdout;
        assert_eq!(world.read(&format!(".orchestrate/schemas/{topic}.json")), printed);
    }
}

pub fn trials() -> Vec<Trial> {
    vec![
        trial("schema/every example", workflows),
        trial("schema/the workflows of all cases", cases),
        trial("schema/settings", settings),
        trial("schema/tasks and statuses as they are written", documents),
        trial("schema/what init writes is what is printed", written),
    ]
}
