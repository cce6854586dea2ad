//! `orchestrate schema`: prints JSON Schemas of the files that users write, for editors.

use serde_json::json;

use super::Common;
use super::output::{put_json, put_line};
use crate::run::failure::Failure;
use crate::workflow::schema::render::{Topic, schema};

#[derive(clap::Args, Clone, Debug)]
pub(super) struct SchemaArgs {
    /// What to print the schema of; without it, those that there are
    #[arg(value_name = "TOPIC", value_parser = parse)]
    pub topic: Option<Topic>,
}

/// Parses the name of a topic. The error lists all topics.
fn parse(name: &str) -> Result<Topic, String> {
    let found = Topic::ALL.iter().find(|(known, _)| *known == name);
    let names: Vec<_> = Topic::ALL.iter().map(|(name, _)| *name).collect();
    found.map(|(_, topic)| *topic).ok_or_else(|| format!("it is one of {}", names.join(", ")))
}

pub(super) fn main(args: &SchemaArgs, common: &Common) -> Result<u8, Failure> {
    match args.topic {
        // The output is JSON in both cases; without `--json` it is indented for readability.
        Some(topic) => {
            let schema = schema(topic);
            let text = match common.json {
                true => schema.to_string(),
                false => serde_json::to_string_pretty(&schema).unwrap_or_default(),
            };
            put_line(text)?;
        }
        None if common.json => {
            let topics: Vec<_> = Topic::ALL
                .iter()
                .map(|(name, topic)| json!({ "name": name, "about": topic.about() }))
                .collect();
            put_json("schemas/v1", json!({ "topics": topics }))?;
        }
        None => {
            for (name, topic) in Topic::ALL {
                put_line(format_args!("{name:<10} {}", topic.about()))?;
            }
        }
    }
    Ok(0)
}
