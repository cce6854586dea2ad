//! Generates JSON Schema (draft-07) from the tables, for editors.
//!
//! A schema describes the shape of a file. `validate` checks everything else: that names exist,
//! that paths stay inside the workspace, and that the control flow makes sense.

use serde_json::{Map, Value, json};

use super::{
    Field, NAME, Need, Rule, Shape, Table, documents, grimoire, nodes, settings, steps, task,
};
use crate::workflow::plan::Version;

/// A kind of document that has a schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topic {
    Workflow,
    Steps,
    Nodes,
    Grimoire,
    Config,
    TaskHead,
    Task,
    Status,
}

impl Topic {
    pub(crate) const ALL: [(&'static str, Topic); 8] = [
        ("workflow", Topic::Workflow),
        ("steps", Topic::Steps),
        ("nodes", Topic::Nodes),
        ("grimoire", Topic::Grimoire),
        ("config", Topic::Config),
        ("task-head", Topic::TaskHead),
        ("task", Topic::Task),
        ("status", Topic::Status),
    ];

    pub(crate) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, topic)| *topic == self).map_or("", |(name, _)| name)
    }

    fn table(self) -> Option<&'static Table> {
        match self {
            Topic::Workflow => None,
            Topic::Steps => Some(&steps::TOP),
            Topic::Nodes => Some(&nodes::TOP),
            Topic::Grimoire => Some(&grimoire::TOP),
            Topic::Config => Some(&settings::TOP),
            Topic::TaskHead => Some(&task::HEAD),
            Topic::Task => Some(&documents::TASK),
            Topic::Status => Some(&documents::STATUS),
        }
    }

    /// Returns a sentence that describes the document.
    pub(crate) fn about(self) -> &'static str {
        self.table().map_or("A workflow, in whichever of the languages.", |table| table.about)
    }
}

/// Returns the schema of a topic.
pub(crate) fn schema(topic: Topic) -> Value {
    let mut definitions = Map::new();
    let body = match topic.table() {
        Some(table) => reference(table, &mut definitions),
        None => any_workflow(&mut definitions),
    };
    let mut schema = Map::new();
    schema.insert("$schema".into(), "http://json-schema.org/draft-07/schema#".into());
    schema.insert("title".into(), format!("orchestrate: {}", topic.name()).into());
    schema.insert("description".into(), topic.about().into());
    // In this draft, a validator ignores all keys next to `$ref`.
    schema.insert("allOf".into(), json!([body]));
    schema.insert("definitions".into(), definitions.into());
    schema.into()
}

/// Returns the schema of any dialect. Decides as `compile` does: by `nodes`, then by `version`,
/// which a grimoire does not have.
fn any_workflow(definitions: &mut Map<String, Value>) -> Value {
    json!({
        "if": { "required": ["nodes"] },
        "then": reference(&nodes::TOP, definitions),
        "else": {
            "if": {
                "not": { "required": ["version"] },
                "properties": { "steps": { "contains": { "required": ["type"] } } },
                "required": ["steps"],
            },
            "then": reference(&grimoire::TOP, definitions),
            "else": reference(&steps::TOP, definitions),
        },
    })
}

fn reference(table: &'static Table, definitions: &mut Map<String, Value>) -> Value {
    if !definitions.contains_key(table.name) {
        // Tables refer to themselves, so reserve the name before the definition is known.
        definitions.insert(table.name.into(), Value::Null);
        let definition = of_table(table, definitions);
        definitions.insert(table.name.into(), definition);
    }
    json!({ "$ref": format!("#/definitions/{}", table.name) })
}

fn of_table(table: &'static Table, definitions: &mut Map<String, Value>) -> Value {
    if let Rule::ByType(kinds) = table.rule {
        return by_type(kinds, definitions);
    }
    let mut object = Map::new();
    let kind = match table.rule {
        Rule::Nullable => json!(["object", "null"]),
        _ => json!("object"),
    };
    object.insert("type".into(), kind);
    object.insert("description".into(), table.about.into());
    let properties: Map<_, _> =
        table.all().map(|field| (field.name.to_owned(), of_field(field, definitions))).collect();
    object.insert("properties".into(), properties.into());
    let required: Vec<_> = table.all().filter(|field| field.required).map(|f| f.name).collect();
    if !required.is_empty() {
        object.insert("required".into(), json!(required));
    }
    if !matches!(table.rule, Rule::Open) {
        object.insert("additionalProperties".into(), false.into());
    }
    let need = |name: &str| json!({ "required": [name] });
    match table.rule {
        Rule::OneOf(names) => {
            let each: Vec<_> = names.iter().map(|name| need(name)).collect();
            object.insert("oneOf".into(), each.into());
        }
        Rule::OneOfBeside { keys, first, beside } => {
            let each = keys.iter().map(|name| match *name == beside {
                true => json!({ "required": [name], "not": need(first) }),
                false => need(name),
            });
            object.insert("oneOf".into(), each.collect());
        }
        Rule::Some => _ = object.insert("minProperties".into(), 1.into()),
        _ => {}
    }
    let mut needs = Map::new();
    for (key, need) in table.needs {
        let all = needs.entry(*key).or_insert_with(|| json!({ "allOf": [] }));
        let all = all["allOf"].as_array_mut();
        all.into_iter().for_each(|all| all.push(needed(need)));
    }
    if !needs.is_empty() {
        object.insert("dependencies".into(), needs.into());
    }
    object.into()
}

fn needed(need: &Need) -> Value {
    match need {
        Need::Key(key) => json!({ "required": [key] }),
        Need::Word(key, word) => {
            json!({ "required": [key], "properties": { *key: { "const": word } } })
        }
        Need::Off(key) => json!({ "properties": { *key: { "const": false } } }),
    }
}

/// Returns the schema of a map that matches one of several tables, selected by its field `type`.
fn by_type(
    kinds: &'static [(&'static str, &'static Table)],
    definitions: &mut Map<String, Value>,
) -> Value {
    let names: Vec<_> = kinds.iter().map(|(name, _)| *name).collect();
    let mut all = vec![json!({
        "type": "object",
        "properties": { "type": { "enum": names } },
        "required": ["type"],
    })];
    for (name, table) in kinds {
        all.push(json!({
            "if": { "properties": { "type": { "const": name } }, "required": ["type"] },
            "then": reference(table, definitions),
        }));
    }
    json!({ "allOf": all })
}

fn of_field(field: &'static Field, definitions: &mut Map<String, Value>) -> Value {
    let mut about = field.about.to_owned();
    if field.since > Version::V1_1 {
        about.push_str(&format!(" Since version {}.", field.since.name()));
    }
    let mut schema = match of_shape(&field.shape, definitions) {
        Value::Object(schema) if !schema.contains_key("$ref") => schema,
        reference => Map::from_iter([("allOf".to_owned(), json!([reference]))]),
    };
    schema.insert("description".into(), about.into());
    schema.into()
}

const DURATION: &str = "([0-9]+(ms|s|m|h|d|w))*[1-9][0-9]*(ms|s|m|h|d|w)([0-9]+(ms|s|m|h|d|w))*";

fn of_shape(shape: &'static Shape, definitions: &mut Map<String, Value>) -> Value {
    match shape {
        Shape::Any => json!({}),
        Shape::Text => json!({ "type": "string" }),
        Shape::Filled => json!({ "type": "string", "pattern": "\\S" }),
        Shape::Name => json!({ "type": "string", "pattern": NAME }),
        Shape::Like(pattern) => json!({ "type": "string", "pattern": pattern }),
        Shape::OneOf(words) => json!({ "enum": words }),
        Shape::Bool => json!({ "type": "boolean" }),
        Shape::Integer(least, most) => {
            json!({ "type": "integer", "minimum": least, "maximum": most })
        }
        Shape::Number { least, itself, most } => {
            let mut number = Map::from_iter([("type".to_owned(), json!("number"))]);
            let bound = if *itself { "minimum" } else { "exclusiveMinimum" };
            if *least > f64::MIN {
                number.insert(bound.into(), json!(least));
                number.insert("maximum".into(), json!(most));
            }
            number.into()
        }
        Shape::Duration { or_none } => {
            let none = if *or_none { "|none" } else { "" };
            json!({ "type": "string", "pattern": format!("^({DURATION}{none})$") })
        }
        Shape::List(inner) => json!({ "type": "array", "items": of_shape(inner, definitions) }),
        Shape::Some(inner) => {
            json!({ "type": "array", "minItems": 1, "items": of_shape(inner, definitions) })
        }
        Shape::Argv(inner) => {
            let word = of_shape(inner, definitions);
            let first = json!({ "allOf": [word], "minLength": 1 });
            json!({ "type": "array", "minItems": 1, "items": [first], "additionalItems": word })
        }
        Shape::Keyed(names, inner) => json!({
            "type": "object",
            "propertyNames": { "pattern": names },
            "additionalProperties": of_shape(inner, definitions),
        }),
        Shape::Each(inner) => {
            json!({ "type": "object", "additionalProperties": of_shape(inner, definitions) })
        }
        Shape::Table(table) => reference(table, definitions),
        Shape::Scalar => json!({ "type": ["string", "number", "boolean"] }),
        Shape::Either(shapes) => {
            let each: Vec<_> = shapes.iter().map(|shape| of_shape(shape, definitions)).collect();
            json!({ "anyOf": each })
        }
        Shape::Maybe(inner) => {
            json!({ "anyOf": [of_shape(inner, definitions), { "type": "null" }] })
        }
    }
}
