//! The schemas that the program prints, against the documents that it writes.

use std::fs;
use std::path::{Path, PathBuf};

use jsonschema::Validator;
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::world::{World, trial};

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

fn validator(world: &World, topic: &str) -> Validator {
    let printed = world.run(&["schema", topic]).exits(0).stdout;
    let schema = serde_json::from_str(&printed).expect("JSON");
    jsonschema::draft7::new(&schema).expect("a schema")
}

/// The tasks and statuses that the program writes match the schemas that it prints.
fn documents() {
    let world = World::new();
    world.run(&["init"]).exits(0);
    world.write("inbox/qa/look.task", "---\ntitle: Look\npriority: 1\n---\nLook at it.\n");
    world.run(&["worker", "qa", "--drain"]).exits(0);
    world.run(&["enqueue", "engineer", "Do it."]).exits(0);
    let (task, status) = (validator(&world, "task"), validator(&world, "status"));
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

/// `init` writes the schemas that the program prints.
fn written() {
    let world = World::new();
    world.run(&["init"]).exits(0);
    for topic in ["workflow", "config"] {
        let printed = world.run(&["schema", topic]).exits(0).stdout;
        assert_eq!(world.read(&format!(".orchestrate/schemas/{topic}.json")), printed);
    }
}

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("schema/tasks and statuses as they are written", documents),
        trial("schema/what init writes is what is printed", written),
    ]
}
