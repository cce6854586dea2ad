//! The parts of a step that are maps of their own: waiting, dependencies, conditions, output,
//! environment, retries, lifecycle.

use std::time::Duration;

use serde_json::Value as Json;

use super::Reading;
use crate::template::Template;
use crate::workflow::check;
use crate::workflow::fields::{Fields, in_quotes, parse_template};
use crate::workflow::plan::{
    Arg, CaptureMode, Depends, Inject, InjectMode, Output, Position, Require, Retries, Test,
    WaitFor, When, Which,
};
use crate::workflow::schema::Table;
use crate::workflow::schema::steps::{
    DEPENDS, EQUALS, INJECT, MOVE, ON_ITEM, REQUIRE, RETRIES, WAIT_FOR, WHEN,
};
use crate::yaml::problem::{Place, Problem};
use crate::yaml::{Node, Value};

/// Reads and checks a path field of a step.
pub(crate) fn path(reading: &Reading, fields: &Fields, key: &str) -> Option<Template> {
    let template = fields.template(key)?;
    let place = fields.get(key)?.place;
    check::path(reading, &template, place, &format!("`{key}` of {}", fields.what));
    Some(template)
}

fn globs(reading: &Reading, fields: &Fields, key: &str) -> Vec<Template> {
    let found = fields.templates(key);
    for (template, place) in &found {
        check::glob(reading, template, *place, &format!("`{key}` of {}", fields.what));
    }
    found.into_iter().map(|(template, _)| template).collect()
}

fn glob(reading: &Reading, fields: &Fields, key: &str) -> Option<Template> {
    let template = fields.template(key)?;
    let place = fields.get(key)?.place;
    check::glob(reading, &template, place, &format!("`{key}` of {}", fields.what));
    Some(template)
}

/// Opens the map under `key` inside a step.
fn inner<'a>(
    reading: &Reading<'a>,
    fields: &Fields<'a>,
    key: &str,
    table: &Table,
) -> Option<Fields<'a>> {
    let what = format!("`{key}` of {}", fields.what);
    Fields::open(fields.findings, fields.get(key)?, what, table, reading.version)
}

pub(crate) fn wait_for<'a>(reading: &Reading<'a>, fields: &Fields<'a>) -> Option<WaitFor> {
    let wait = inner(reading, fields, "wait_for", &WAIT_FOR)?;
    if wait.get("glob").is_none() {
        wait.findings.error(wait.node.place, format!("{} has no `glob`", wait.what));
    }
    Some(WaitFor {
        timeout: wait.seconds("timeout_sec", true).unwrap_or(Duration::from_secs(300)),
        poll: Duration::from_millis(wait.integer("poll_ms", 1, 86_400_000).unwrap_or(500)),
        min_count: wait.integer("min_count", 1, 1_000_000).unwrap_or(1) as usize,
        glob: glob(reading, &wait, "glob")?,
    })
}

pub(crate) fn depends<'a>(reading: &Reading<'a>, fields: &Fields<'a>) -> Option<Depends> {
    let depends = inner(reading, fields, "depends_on", &DEPENDS)?;
    Some(Depends {
        required: globs(reading, &depends, "required"),
        optional: globs(reading, &depends, "optional"),
        inject: inject(reading, &depends),
    })
}

fn inject<'a>(reading: &Reading<'a>, depends: &Fields<'a>) -> Option<Inject> {
    let node = depends.get("inject")?;
    if let Value::Bool(on) = node.value {
        let plain =
            Inject { mode: InjectMode::List, instruction: None, position: Position::Prepend };
        return on.then_some(plain);
    }
    if !matches!(node.value, Value::Map(_)) {
        let message = format!(
            "`inject` of {} must be true, false or a map, not {}",
            depends.what,
            node.kind()
        );
        depends.findings.error(node.place, message);
        return None;
    }
    let inject = inner(reading, depends, "inject", &INJECT)?;
    let mode = inject
        .choice(
            "mode",
            &[
                ("list", Some(InjectMode::List)),
                ("content", Some(InjectMode::Content)),
                ("none", None),
            ],
        )
        .flatten();
    let position = inject
        .choice("position", &[("prepend", Position::Prepend), ("append", Position::Append)])
        .unwrap_or(Position::Prepend);
    if inject.get("mode").is_none() {
        let message = format!("{} has no `mode`, so nothing is injected", inject.what);
        inject.findings.warn(node.place, message);
    }
    let instruction = inject.text("instruction").map(str::to_owned);
    Some(Inject { mode: mode?, instruction, position })
}

pub(crate) fn when<'a>(reading: &Reading<'a>, fields: &Fields<'a>) -> Option<When> {
    let when = inner(reading, fields, "when", &WHEN)?;
    if matches!(&when.node.value, Value::Map(pairs) if pairs.is_empty()) {
        when.findings.error(when.node.place, format!("{} has no condition", when.what));
    }
    Some(When::Test(Test {
        equals: equals(reading, &when),
        exists: glob(reading, &when, "exists"),
        not_exists: glob(reading, &when, "not_exists"),
    }))
}

fn equals<'a>(reading: &Reading<'a>, when: &Fields<'a>) -> Option<(Template, Template)> {
    let equals = inner(reading, when, "equals", &EQUALS)?;
    let side = |key: &str| {
        let Some(node) = equals.get(key) else {
            equals.findings.error(equals.node.place, format!("{} has no `{key}`", equals.what));
            return None;
        };
        match &node.value {
            // Values are compared as text, so a number or boolean becomes its text.
            Value::Number(_) | Value::Bool(_) => Template::parse(&node.to_json().to_string()).ok(),
            _ => equals.template(key),
        }
    };
    let (left, right) = (side("left"), side("right"));
    Some((left?, right?))
}

pub(crate) fn output<'a>(reading: &Reading<'a>, fields: &Fields<'a>) -> Output {
    let modes =
        [("text", CaptureMode::Text), ("lines", CaptureMode::Lines), ("json", CaptureMode::Json)];
    let capture = fields.choice("output_capture", &modes).unwrap_or_default();
    let allow_parse_error = fields.boolean("allow_parse_error").unwrap_or(false);
    let schema = path(reading, fields, "output_schema");
    let require = require(reading, fields);
    for key in ["output_schema", "output_require"] {
        let Some(node) = fields.get(key) else { continue };
        let place = fields.place_of_key(key);
        if capture != CaptureMode::Json {
            fields.findings.add(
                Problem::error(format!("`{key}` of {} needs `output_capture: json`", fields.what))
                    .at(place),
            );
        }
        if allow_parse_error {
            let message = format!(
                "{} has `{key}` and `allow_parse_error`, which exclude each other",
                fields.what
            );
            fields.findings.error(node.place, message);
        }
    }
    if allow_parse_error && capture != CaptureMode::Json {
        let message = format!(
            "`allow_parse_error` of {} has no effect without `output_capture: json`",
            fields.what
        );
        fields.findings.warn(fields.place_of_key("allow_parse_error"), message);
    }
    Output {
        file: path(reading, fields, "output_file"),
        capture,
        allow_parse_error,
        schema,
        require,
    }
}

const JSON_TYPES: [&str; 6] = ["string", "number", "boolean", "array", "object", "null"];

fn require<'a>(reading: &Reading<'a>, fields: &Fields<'a>) -> Vec<Require> {
    let Some(items) = fields.list("output_require") else { return Vec::new() };
    let mut found = Vec::new();
    for node in items {
        let what = format!("`output_require` of {}", fields.what);
        let Some(item) = Fields::open(fields.findings, node, what, &REQUIRE, reading.version)
        else {
            continue;
        };
        let Some(pointer) = item.text("pointer") else {
            if item.get("pointer").is_none() {
                item.findings.error(node.place, format!("{} has no `pointer`", item.what));
            }
            continue;
        };
        if !pointer.is_empty() && !pointer.starts_with('/') {
            item.findings.add(
                Problem::error(format!("`{pointer}` is no JSON Pointer"))
                    .at(item.get("pointer").map_or(node.place, |n| n.place))
                    .hint(format!("begin it with a slash: `/{pointer}`")),
            );
        }
        let kinds = JSON_TYPES.map(|kind| (kind, kind));
        found.push(Require {
            pointer: pointer.to_owned(),
            exists: item.boolean("exists").unwrap_or(true),
            equals: item.get("equals").and_then(|node| scalar(&item, node)),
            kind: item.choice("type", &kinds).map(str::to_owned),
        });
    }
    found
}

fn scalar(item: &Fields, node: &Node) -> Option<Json> {
    if matches!(node.value, Value::List(_) | Value::Map(_)) {
        let message =
            format!("`equals` of {} must be a single value, not {}", item.what, node.kind());
        item.findings.error(node.place, message);
        return None;
    }
    Some(node.to_json())
}

/// Reads a provider's command: texts, and lists of texts that are omitted together.
pub(crate) fn command(fields: &Fields) -> Vec<Arg> {
    let template = |node: &Node| match node.text() {
        Some(text) => parse_template(fields.findings, text, node.place),
        None => {
            let message =
                format!("`command` of {} must be a list of text and of lists of text", fields.what);
            fields.findings.error(node.place, message);
            None
        }
    };
    let arg = |node: &Node| match &node.value {
        Value::List(group) => {
            if group.is_empty() {
                let message = format!("a group of `command` of {} is empty", fields.what);
                fields.findings.error(node.place, message);
            }
            Some(Arg::Group(group.iter().filter_map(template).collect()))
        }
        _ => template(node).map(Arg::One),
    };
    let nodes = fields.list("command").unwrap_or_default();
    nodes.iter().filter_map(arg).collect()
}

/// Reports a command whose first word, the program, is empty.
pub(crate) fn program(fields: &Fields, words: &[Node]) {
    if let Some(first) = words.first().filter(|word| word.text() == Some("")) {
        let message =
            format!("`command` of {} names no program: its first word is empty", fields.what);
        fields.findings.error(first.place, message);
    }
}

pub(crate) fn env(fields: &Fields) -> Vec<(String, String)> {
    let Some(node) = fields.get("env") else { return Vec::new() };
    let Value::Map(pairs) = &node.value else {
        if !matches!(node.value, Value::Null) {
            let message = format!("`env` of {} must be a map, not {}", fields.what, node.kind());
            fields.findings.error(node.place, message);
        }
        return Vec::new();
    };
    let mut found = Vec::new();
    for (key, value) in pairs {
        let Some(name) = key.text() else {
            fields.findings.error(key.place, "the name of a variable must be text");
            continue;
        };
        variable_name(fields, name, key.place);
        match value.text() {
            Some(text) if !text.contains('\0') => found.push((name.to_owned(), text.to_owned())),
            Some(_) => fields.findings.error(value.place, format!("`{name}` holds a NUL byte")),
            None => fields.findings.add(
                Problem::error(format!("`{name}` in `env` must be text, not {}", value.kind()))
                    .at(value.place)
                    .hint(format!("put it in quotes: \"{}\"", in_quotes(fields.findings, value))),
            ),
        }
    }
    found
}

fn variable_name(fields: &Fields, name: &str, place: Place) {
    if name.is_empty() || name.contains(['=', '\0']) {
        fields.findings.error(place, format!("`{name}` cannot name an environment variable"));
    }
}

pub(crate) fn secrets(fields: &Fields) -> Vec<String> {
    let texts = fields.texts("secrets").unwrap_or_default();
    for (name, place) in &texts {
        variable_name(fields, name, *place);
    }
    texts.into_iter().map(|(name, _)| name.to_owned()).collect()
}

pub(crate) fn retries<'a>(reading: &Reading<'a>, fields: &Fields<'a>) -> Option<Retries> {
    let node = fields.get("retries")?;
    if let Value::Number(number) = &node.value {
        fields.findings.add(
            Problem::error(format!("`retries` of {} must be a map, not a number", fields.what))
                .at(node.place)
                .hint(format!("write `retries: {{ max: {number} }}`")),
        );
        return None;
    }
    let retries = inner(reading, fields, "retries", &RETRIES)?;
    Some(Retries {
        max: retries.integer("max", 0, 1_000).unwrap_or(0) as u32,
        delay_ms: retries.integer("delay_ms", 0, 86_400_000),
        which: Which::ByCode,
    })
}

/// Reads the directories that an item moves to after a success and after a failure.
pub(crate) fn on_item_complete<'a>(
    reading: &Reading<'a>,
    each: &Fields<'a>,
) -> (Option<Template>, Option<Template>) {
    let Some(on) = inner(reading, each, "on_item_complete", &ON_ITEM) else { return (None, None) };
    let move_to = |key: &str| {
        let end = inner(reading, &on, key, &MOVE)?;
        path(reading, &end, "move_to")
    };
    (move_to("success"), move_to("failure"))
}
