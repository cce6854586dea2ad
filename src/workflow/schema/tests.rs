//! The tables against the loaders: every field with values of every kind.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use serde_json::{Value, json};

use super::render::{Topic, schema};
use super::{Shape, Table, grimoire, nodes, settings, steps, task};
use crate::workflow::front::read_task_head;
use crate::workflow::plan::Provider;
use crate::workflow::{Configured, Problem, compile, read_config};

/// Settings with one provider.
struct One(BTreeMap<String, Provider>);

impl Configured for One {
    fn providers(&self) -> &BTreeMap<String, Provider> {
        &self.0
    }

    fn default_provider(&self) -> &str {
        "p"
    }
}

/// What the loader of a topic says of a text. JSON is YAML.
fn problems(topic: Topic, text: &str) -> Vec<Problem> {
    static ONE: LazyLock<One> = LazyLock::new(|| {
        let limits =
            "[\"${allowed_tools}${denied_tools}${settings}${mcp}${skills}${max_budget_usd}\"]";
        let text = format!("providers: {{ p: {{ command: [a, {limits}] }} }}");
        One(read_config(&text).expect("valid").providers)
    });
    match topic {
        Topic::Config => read_config(text).err().unwrap_or_default(),
        Topic::TaskHead => read_task_head(text).err().unwrap_or_default(),
        _ => match compile(text, &*ONE) {
            Ok(compiled) => compiled.warnings,
            Err(problems) => problems,
        },
    }
}

fn refused(topic: Topic, text: &str) -> bool {
    problems(topic, text).iter().any(Problem::is_error)
}

/// Where a table's map stands in a whole document, and one that is right.
struct Place {
    topic: Topic,
    table: &'static Table,
    /// The document, with `"HERE"` where the map goes.
    around: Value,
    right: Value,
}

fn place(topic: Topic, table: &'static Table, around: Value, right: Value) -> Place {
    Place { topic, table, around, right }
}

/// A step around something of its own.
fn in_step(extra: Value) -> Value {
    let mut step = json!({ "name": "A" });
    let object = step.as_object_mut().expect("a map");
    object.extend(extra.as_object().expect("a map").clone());
    json!({ "version": "1.4", "steps": [step] })
}

fn in_node(node: Value) -> Value {
    json!({ "name": "w", "description": "d", "nodes": [node] })
}

fn in_grimoire(step: Value) -> Value {
    json!({ "name": "g", "steps": [step] })
}

fn in_loop() -> Value {
    in_grimoire(json!({ "name": "l", "type": "loop", "steps": ["HERE"] }))
}

fn places() -> Vec<Place> {
    use Topic::{Config, Grimoire, Nodes, Steps, TaskHead};
    let run = json!(["true"]);
    let ask = |more: Value| in_step(json!({ "provider": "p", "depends_on": more }));
    let with = |key: &str| in_step(json!({ "command": ["true"], key: "HERE" }));
    let step = json!({ "name": "A", "command": run });
    vec![
        place(Steps, &steps::TOP, json!("HERE"), json!({ "version": "1.4", "steps": [step] })),
        place(Steps, &steps::STEP, json!({ "version": "1.4", "steps": ["HERE"] }), step.clone()),
        place(
            Steps,
            &steps::STEP,
            json!({ "version": "1.4", "steps": ["HERE"] }),
            json!({ "name": "A", "spell": "s" }),
        ),
        place(
            Steps,
            &steps::STEP,
            json!({ "version": "1.4", "steps": ["HERE"] }),
            json!({ "name": "A", "provider": "p", "output_capture": "json" }),
        ),
        place(
            Steps,
            &steps::PROVIDER,
            json!({ "version": "1.4", "providers": { "q": "HERE" }, "steps": [step] }),
            json!({ "command": ["a"] }),
        ),
        place(
            Config,
            &steps::PROVIDER_SETTING,
            json!({ "providers": { "q": "HERE" } }),
            json!({ "command": ["a"] }),
        ),
        place(
            Steps,
            &steps::DEPENDS,
            in_step(json!({ "provider": "p", "depends_on": "HERE" })),
            json!({}),
        ),
        place(Steps, &steps::INJECT, ask(json!({ "inject": "HERE" })), json!({ "mode": "list" })),
        place(
            Steps,
            &steps::REQUIRE,
            in_step(
                json!({ "command": ["a"], "output_capture": "json", "output_require": ["HERE"] }),
            ),
            json!({ "pointer": "/a" }),
        ),
        place(
            Steps,
            &steps::WAIT_FOR,
            in_step(json!({ "wait_for": "HERE" })),
            json!({ "glob": "x" }),
        ),
        place(Steps, &steps::RETRIES, with("retries"), json!({})),
        place(Steps, &steps::WHEN, with("when"), json!({ "exists": "x" })),
        place(
            Steps,
            &steps::EQUALS,
            in_step(json!({ "command": ["true"], "when": { "equals": "HERE" } })),
            json!({ "left": "a", "right": "b" }),
        ),
        place(Steps, &steps::ON, with("on"), json!({})),
        place(
            Steps,
            &steps::GOTO,
            in_step(json!({ "command": ["true"], "on": { "always": "HERE" } })),
            json!({ "goto": "_end" }),
        ),
        place(
            Steps,
            &steps::FOR_EACH,
            in_step(json!({ "for_each": "HERE" })),
            json!({ "items": [], "steps": [step] }),
        ),
        place(
            Steps,
            &steps::ON_ITEM,
            in_step(
                json!({ "for_each": { "items": [], "steps": [step], "on_item_complete": "HERE" } }),
            ),
            json!({}),
        ),
        place(
            Steps,
            &steps::MOVE,
            in_step(json!({ "for_each": {
                "items": [], "steps": [step], "on_item_complete": { "success": "HERE" } } })),
            json!({}),
        ),
        place(Nodes, &nodes::TOP, json!("HERE"), in_node(json!({ "id": "a", "bash": "true" }))),
        place(
            Nodes,
            nodes::node(),
            json!({ "name": "w", "description": "d", "nodes": ["HERE"] }),
            json!({ "id": "a", "prompt": "p" }),
        ),
        place(
            Nodes,
            nodes::node(),
            json!({ "name": "w", "description": "d", "nodes": ["HERE"] }),
            json!({ "id": "a", "spell": "s" }),
        ),
        place(
            Nodes,
            nodes::node(),
            json!({ "name": "w", "description": "d", "nodes": ["HERE"] }),
            json!({ "id": "a", "script": "print(1)", "runtime": "uv" }),
        ),
        place(
            Nodes,
            &nodes::LOOP,
            in_node(json!({ "id": "a", "loop": "HERE" })),
            json!({ "prompt": "p", "until": "DONE", "max_iterations": 2 }),
        ),
        place(
            Nodes,
            &nodes::APPROVAL,
            in_node(json!({ "id": "a", "approval": "HERE" })),
            json!({ "message": "m" }),
        ),
        place(
            Nodes,
            &nodes::ON_REJECT,
            in_node(json!({ "id": "a", "approval": { "message": "m", "on_reject": "HERE" } })),
            json!({ "prompt": "p" }),
        ),
        place(
            Nodes,
            &nodes::RETRY,
            in_node(json!({ "id": "a", "bash": "true", "retry": "HERE" })),
            json!({ "max_attempts": 1 }),
        ),
        place(
            Nodes,
            &nodes::HOOK,
            in_node(json!({ "id": "a", "prompt": "p", "hooks": { "Stop": ["HERE"] } })),
            json!({ "response": {} }),
        ),
        place(
            Grimoire,
            &grimoire::TOP,
            json!("HERE"),
            in_grimoire(json!({ "name": "a", "type": "merge" })),
        ),
        place(
            Grimoire,
            &grimoire::AGENT,
            in_loop(),
            json!({ "name": "a", "type": "agent", "spell": "s" }),
        ),
        place(
            Grimoire,
            &grimoire::SCRIPT,
            in_loop(),
            json!({ "name": "a", "type": "script", "command": "true" }),
        ),
        place(
            Grimoire,
            &grimoire::LOOP,
            in_grimoire(json!("HERE")),
            json!({ "name": "a", "type": "loop", "steps": [{ "name": "b", "type": "merge" }] }),
        ),
        place(
            Grimoire,
            &grimoire::MERGE,
            in_grimoire(json!("HERE")),
            json!({ "name": "a", "type": "merge" }),
        ),
        place(Config, &settings::TOP, json!("HERE"), json!({})),
        place(Config, &settings::AGENT, json!({ "agents": { "a": "HERE" } }), json!({})),
        place(
            Config,
            &settings::SANDBOX,
            json!({ "agents": { "a": { "sandbox": "HERE" } } }),
            json!({ "level": "workspace" }),
        ),
        place(Config, &settings::QUEUE, json!({ "queue": "HERE" }), json!({})),
        place(Config, &settings::NOTIFY, json!({ "notify": "HERE" }), json!({})),
        place(Config, &settings::METRICS, json!({ "metrics": "HERE" }), json!({})),
        place(Config, &settings::LIMITS, json!({ "limits": "HERE" }), json!({})),
        place(Config, &settings::WORKTREE, json!({ "worktree": "HERE" }), json!({})),
        place(TaskHead, &task::HEAD, json!("HERE"), json!({})),
    ]
}

/// A document with the map in its place.
fn put(around: &Value, map: &Value) -> Value {
    match around {
        Value::String(text) if text == "HERE" => map.clone(),
        Value::Array(items) => items.iter().map(|item| put(item, map)).collect(),
        Value::Object(pairs) => {
            pairs.iter().map(|(key, value)| (key.clone(), put(value, map))).collect()
        }
        other => other.clone(),
    }
}

/// Values of every kind, and what a shape asks for at its bounds.
fn samples(shape: &Shape) -> Vec<Value> {
    let mut samples = vec![
        json!(null),
        json!(true),
        json!(0),
        json!(1),
        json!(2.5),
        json!(-1),
        json!(1e15),
        json!(""),
        json!(" "),
        json!("word"),
        json!("p"),
        json!([{ "name": "b", "type": "merge" }]),
        json!("a b"),
        json!("15m"),
        json!("0s"),
        json!("1h30m"),
        json!("none"),
        json!("/x"),
        json!("https://x"),
        json!(["/x"]),
        json!("a..b"),
        json!("=x"),
        json!(".task"),
        json!("steps.B.lines"),
        json!("_end"),
        json!([]),
        json!([1]),
        json!([[]]),
        json!(["x"]),
        json!([["x"]]),
        json!([{}]),
        json!({}),
        json!({ "k": "v" }),
        json!({ "k": 1 }),
        json!({ "id": "b-1" }),
        json!({ "goto": "_end" }),
        json!({ "nope": { "nope": 1 } }),
    ];
    collect(shape, &mut samples, 0);
    samples
}

fn collect(shape: &Shape, into: &mut Vec<Value>, depth: usize) {
    match shape {
        Shape::OneOf(words) => into.extend(words.iter().map(|word| json!(word))),
        Shape::Integer(least, most) => {
            let around = [least.checked_sub(1), Some(*least), Some(*most), most.checked_add(1)];
            into.extend(around.into_iter().flatten().map(|number| json!(number)));
        }
        Shape::Number { most, .. } => into.extend([json!(most), json!(most * 2.0)]),
        Shape::Table(table) => into.extend(right_of(table, depth)),
        Shape::List(inner)
        | Shape::Some(inner)
        | Shape::Argv(inner)
        | Shape::Each(inner)
        | Shape::Keyed(_, inner) => {
            let mut inside = Vec::new();
            collect(inner, &mut inside, depth);
            let listed = !matches!(shape, Shape::Each(_) | Shape::Keyed(..));
            let wrap = |value| if listed { json!([value]) } else { json!({ "k": value }) };
            into.extend(inside.into_iter().map(wrap));
        }
        Shape::Either(shapes) => shapes.iter().for_each(|shape| collect(shape, into, depth)),
        Shape::Maybe(inner) => collect(inner, into, depth),
        _ => {}
    }
}

/// A map of this table that is right, where one is known.
fn right_of(table: &Table, depth: usize) -> Option<Value> {
    // A table refers to itself through lists of steps.
    let known = (depth < 1).then(places)?;
    known.into_iter().find(|place| std::ptr::eq(place.table, table)).map(|place| place.right)
}

/// Whether a message is about the kind of value under a key.
fn about(problem: &Problem, key: &str) -> bool {
    problem.is_error()
        && problem.message.contains("must be")
        && problem.message.contains(&format!("`{key}`"))
}

#[test]
fn loaders_and_schemas_agree_on_every_field() {
    let mut apart = Vec::new();
    let (mut fields, mut accepted) = (BTreeSet::new(), BTreeSet::new());
    for Place { topic, table, around, right } in places() {
        let validator = jsonschema::draft7::new(&schema(topic)).expect("a schema");
        let whole = put(&around, &right);
        let text = whole.to_string();
        assert!(problems(topic, &text).is_empty(), "{text}: {:?}", problems(topic, &text));
        assert!(validator.is_valid(&whole), "{text}");
        for field in table.all() {
            fields.insert((table.name, field.name));
            for value in samples(&field.shape) {
                // A form that excludes the one that is there stands in its place.
                for swap in [false, true] {
                    let mut map = right.clone();
                    let object = map.as_object_mut().expect("a map");
                    if swap {
                        let forms = ["command", "prompt", "items", "exists"];
                        object.retain(|key, _| !forms.contains(&key.as_str()));
                    }
                    object.insert(field.name.into(), value.clone());
                    let whole = put(&around, &map);
                    let text = whole.to_string();
                    let problems = problems(topic, &text);
                    let refused = problems.iter().any(Problem::is_error);
                    let valid = validator.is_valid(&whole);
                    if !refused {
                        accepted.insert((table.name, field.name));
                    }
                    // What has no effect where it stands is not looked at, and warned of.
                    if !valid && problems.is_empty() {
                        let faults: Vec<_> = validator.iter_errors(&whole).collect();
                        apart.push(format!("the schema refuses {text}: {faults:?}"));
                    }
                    let ill = problems.iter().find(|problem| about(problem, field.name));
                    if let Some(ill) = ill.filter(|_| valid) {
                        apart.push(format!("the schema accepts {text}: {}", ill.message));
                    }
                }
            }
        }
    }
    for (table, field) in fields.difference(&accepted) {
        apart.push(format!("no value was right for `{field}` of {table}"));
    }
    assert!(apart.is_empty(), "{}", apart.join("\n"));
}

#[test]
fn what_stands_in_no_single_field_is_refused_by_both() {
    let step = |more: Value| {
        let mut step = json!({ "name": "A", "command": ["true"] });
        step.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
        json!({ "version": "1.4", "steps": [step] })
    };
    let one = json!([{ "name": "B", "command": ["b"] }]);
    let top = |key: &str, value: Value| json!({ "version": "1.4", key: value, "steps": one });
    let json = |lenient: bool| {
        step(json!({
            "output_schema": "x", "output_capture": "json", "allow_parse_error": lenient }))
    };
    for (topic, whole) in [
        (Topic::Steps, step(json!({ "command": [""] }))),
        (Topic::Steps, step(json!({ "output_schema": "x" }))),
        (Topic::Steps, step(json!({ "output_schema": "x", "output_capture": "text" }))),
        (Topic::Steps, json(true)),
        (Topic::Steps, step(json!({ "output_file": "../x" }))),
        (Topic::Steps, step(json!({ "output_file": "a/.." }))),
        (Topic::Steps, step(json!({ "depends_on": { "required": ["a/../b"] } }))),
        (Topic::Steps, step(json!({ "env": { "": "x" } }))),
        (Topic::Steps, step(json!({ "env": { "A=B": "x" } }))),
        (Topic::Steps, top("inbox_dir", json!("../x"))),
        (Topic::Steps, top("providers", json!({ "a b": { "command": ["a"] } }))),
        (Topic::Steps, top("providers", json!({ "a": { "command": [""] } }))),
        (
            Topic::Steps,
            in_step(json!({ "for_each": { "items": [], "as": "steps", "steps": one } })),
        ),
        (Topic::Steps, in_step(json!({ "spell": "s", "system_prompt": "" }))),
        (Topic::Nodes, in_node(json!({ "id": "a", "script": "print(1)" }))),
        (Topic::Nodes, in_node(json!({ "id": "a", "command": "a/b" }))),
        (Topic::Grimoire, in_grimoire(json!({ "name": "loop", "type": "merge" }))),
        (Topic::Config, json!({ "providers": { "a b": { "command": ["a"] } } })),
    ] {
        let validator = jsonschema::draft7::new(&schema(topic)).expect("a schema");
        assert!(!validator.is_valid(&whole), "the schema accepts {whole}");
        assert!(refused(topic, &whole.to_string()), "the loader accepts {whole}");
    }
    for whole in [
        json(false),
        step(json!({ "output_file": "a..b/..c/d.." })),
        step(json!({ "command": ["a", ""] })),
    ] {
        let validator = jsonschema::draft7::new(&schema(Topic::Steps)).expect("a schema");
        assert!(validator.is_valid(&whole), "the schema refuses {whole}");
        assert!(!refused(Topic::Steps, &whole.to_string()), "the loader refuses {whole}");
    }
}

#[test]
fn what_is_required_is_missed_by_both() {
    for Place { topic, table, around, right } in places() {
        let validator = jsonschema::draft7::new(&schema(topic)).expect("a schema");
        for field in table.all().filter(|field| field.required) {
            let mut map = right.clone();
            map.as_object_mut().expect("a map").remove(field.name);
            let whole = put(&around, &map);
            let what = format!("{} without `{}`", table.name, field.name);
            assert!(!validator.is_valid(&whole), "the schema accepts {what}");
            assert!(refused(topic, &whole.to_string()), "the loader accepts {what}");
        }
    }
}

/// What is tried above is all there is.
#[test]
fn no_table_is_left_out() {
    let mut tried: BTreeSet<&str> = places().iter().map(|place| place.table.name).collect();
    // One that stands for four others, and a work item, whose other keys are free.
    tried.extend(["grimoire-step", "bead"]);
    for topic in [Topic::Steps, Topic::Nodes, Topic::Grimoire, Topic::Config, Topic::TaskHead] {
        let schema = schema(topic);
        for name in schema["definitions"].as_object().expect("definitions").keys() {
            assert!(tried.contains(name.as_str()), "`{name}` is not tried");
        }
    }
}

#[test]
fn every_schema_is_one_and_every_field_says_what_it_is() {
    for (name, topic) in Topic::ALL {
        let schema = schema(topic);
        jsonschema::draft7::meta::validate(&schema).expect("draft-07");
        assert_eq!(schema["title"], format!("orchestrate: {name}"));
        let text = schema.to_string();
        assert!(!text.contains("null,\"null") && text.contains("description"), "{name}");
        for (table, definition) in schema["definitions"].as_object().expect("definitions") {
            let properties = definition["properties"].as_object().into_iter().flatten();
            for (key, field) in properties {
                let about = field["description"].as_str().unwrap_or_default();
                assert!(about.ends_with('.'), "`{key}` of {table}: {about}");
            }
        }
    }
}
