//! Checks JSON output against its schema and its other requirements.

use std::cmp::Ordering;

use serde_json::{Value, json};

use crate::attempt::exec_env::Site;
use crate::attempt::prepare::{Unusable, usable_schema};
use crate::attempt::work::Work;
use crate::template::number;
use crate::workflow::plan::Require;

/// Maximum number of reported problems of one value.
const FAULTS: usize = 20;

/// Checks a value. The error states why it cannot be used.
pub(super) fn check_json(site: &Site, work: &Work, value: &Value) -> Result<(), Unusable> {
    if let Some(path) = &work.schema {
        check_schema(site, path, value)?;
    }
    for require in &work.require {
        if let Some(reason) = unmet(require, value) {
            let message = format!("JSON output does not meet `{}`: {reason}", require.pointer);
            let detail = json!({ "pointer": require.pointer, "reason": reason });
            let context = [("json_require_failed".to_owned(), detail)].into_iter().collect();
            return Err(Unusable { message, context });
        }
    }
    Ok(())
}

fn check_schema(site: &Site, path: &str, value: &Value) -> Result<(), Unusable> {
    let validator = usable_schema(site, path)?;
    let errors = faults(&validator, value);
    if errors.is_empty() {
        return Ok(());
    }
    Err(Unusable {
        message: format!("JSON output does not match the schema `{path}`: {}", errors[0]),
        context: [("json_schema_errors".to_owned(), json!(errors))].into_iter().collect(),
    })
}

/// Returns the schema violations of a value, each with its position in the value.
pub(super) fn faults(validator: &jsonschema::Validator, value: &Value) -> Vec<String> {
    let told = |error: jsonschema::ValidationError| match error.instance_path().to_string() {
        place if place.is_empty() => error.to_string(),
        place => format!("{place}: {error}"),
    };
    validator.iter_errors(value).take(FAULTS).map(told).collect()
}

/// Returns the reason why a value does not meet a requirement, or `None` if it does.
fn unmet(require: &Require, value: &Value) -> Option<String> {
    let found = value.pointer(&require.pointer);
    let found = match (found, require.exists) {
        (None, false) => return None,
        (Some(_), false) => return Some("it is there but must not be".into()),
        (None, true) => return Some("it is missing".into()),
        (Some(found), true) => found,
    };
    if let Some(wanted) = &require.equals
        && !same(found, wanted)
    {
        return Some(format!("it is {found}, not {wanted}"));
    }
    let kind = match found {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    match &require.kind {
        Some(wanted) if wanted != kind => Some(format!("it is of type {kind}, not {wanted}")),
        _ => None,
    }
}

/// Compares JSON values, with numbers by value: 1 equals 1.0.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => number::compare(a, b).is_some_and(Ordering::is_eq),
        _ => a == b,
    }
}
