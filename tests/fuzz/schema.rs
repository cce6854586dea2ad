//! The published schemas agree with the loaders on every workflow and settings file.

use jsonschema::Validator;
use serde_json::{Value, json};

use super::texts::texts;
use crate::settings::Config;
use crate::workflow::schema::render::{Topic, schema};
use crate::workflow::{Problem, compile, read_config};
use crate::yaml;

fn validator(topic: Topic) -> Validator {
    jsonschema::draft7::new(&schema(topic)).expect("a schema")
}

fn faults(validator: &Validator, document: &Value) -> Vec<String> {
    validator.iter_errors(document).map(|error| error.to_string()).collect()
}

/// Returns the difference between loader and schema on a workflow. Counts accepted and rejected
/// workflows.
fn compare(
    validator: &Validator,
    (name, text): &(String, String),
    counts: &mut (usize, usize),
) -> Option<String> {
    let document = yaml::parse(text).ok()?.to_json();
    if document.get("nodes").is_none() && document.get("steps").is_none() {
        return None;
    }
    let valid = validator.is_valid(&document);
    match compile(text, &Config::built_in()) {
        Ok(compiled) => {
            counts.0 += 1;
            // The schema rejects unknown keys and keys without effect; the loader warns of them.
            let lax = compiled.warnings.iter().any(|warning| {
                ["has no field", "no effect", "must be"].iter().any(|w| warning.message.contains(w))
            });
            (!valid && !lax).then(|| {
                format!("the schema rejects {name}: {:?}\n{text}", faults(validator, &document))
            })
        }
        Err(problems) => {
            counts.1 += 1;
            let is_shape = |problem: &&Problem| {
                let message = &problem.message;
                let of_shape = message.contains("has no field") || message.contains("must be a");
                problem.is_error() && of_shape
            };
            let problem = problems.iter().find(is_shape).filter(|_| valid)?;
            Some(format!("the schema accepts {name}: {}\n{text}", problem.message))
        }
    }
}

#[test]
fn schema_and_loader_agree_on_every_workflow() {
    let validator = validator(Topic::Workflow);
    let mut counts = (0, 0);
    let texts = texts();
    let workflows = texts.iter().filter(|(name, _)| name.ends_with(".yaml"));
    let differences: Vec<String> =
        workflows.filter_map(|file| compare(&validator, file, &mut counts)).collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    assert!(counts.0 > 300 && counts.1 > 20, "few workflows were compared: {counts:?}");
}

#[test]
fn the_schema_of_settings_accepts_the_shipped_settings() {
    let validator = validator(Topic::Config);
    for text in [
        include_str!("../../config/orchestrate.yaml"),
        include_str!("../../workflows/init/config.yaml"),
    ] {
        read_config(text).expect("settings");
        let document = yaml::parse(text).expect("YAML").to_json();
        assert_eq!(faults(&validator, &document), [""; 0]);
    }
    assert!(!validator.is_valid(&json!({ "agents": { "qa": { "concurency": 2 } } })));
}
