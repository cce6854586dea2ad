//! The semantics of values in a spell: truth, printing, comparison and field access.

use std::borrow::Cow;
use std::cmp::Ordering;

use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use serde_json::Value;

use super::FACE;
use crate::template::number;

/// Returns the value that an object stands for when it is used as a whole.
pub(super) fn face(value: &Value) -> &Value {
    value.as_object().and_then(|map| map.get(FACE)).unwrap_or(value)
}

/// Returns the truth of a value as Go defines it: null, `false`, zero and everything empty are
/// false.
pub(super) fn truth(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(value) => *value,
        Value::Number(number) => !number::is_zero(number),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(map) => !map.is_empty(),
    }
}

/// Formats a value for text: null as empty, text as it is, lists and objects as compact JSON.
pub(super) fn print(value: &Value) -> Cow<'_, str> {
    match face(value) {
        Value::Null => Cow::Borrowed(""),
        Value::String(text) => Cow::Borrowed(text),
        other => Cow::Owned(to_json(other)),
    }
}

/// Returns compact JSON, in which the results of steps are replaced by their faces.
pub(super) fn to_json(value: &Value) -> String {
    serde_json::to_string(&Faced(value)).unwrap_or_default()
}

struct Faced<'v>(&'v Value);

impl Serialize for Faced<'_> {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        match face(self.0) {
            Value::Array(items) => {
                let mut list = out.serialize_seq(Some(items.len()))?;
                for item in items {
                    list.serialize_element(&Faced(item))?;
                }
                list.end()
            }
            Value::Object(fields) => {
                let mut map = out.serialize_map(Some(fields.len()))?;
                for (key, value) in fields {
                    map.serialize_entry(key, &Faced(value))?;
                }
                map.end()
            }
            plain => plain.serialize(out),
        }
    }
}

/// Compares values of one type. The outer `None` means different types, the inner one no order.
pub(super) fn compare(a: &Value, b: &Value) -> Option<Option<Ordering>> {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => Some(number::compare(a, b)),
        (Value::String(a), Value::String(b)) => Some(Some(a.cmp(b))),
        (Value::Bool(a), Value::Bool(b)) => Some(Some(a.cmp(b))),
        (Value::Array(_), Value::Array(_)) | (Value::Object(_), Value::Object(_)) => {
            Some((a == b).then_some(Ordering::Equal))
        }
        _ => None,
    }
}

/// Returns a field: of an object by its key, of a list by its index from 0.
pub(super) fn field<'v>(value: &'v Value, name: &str) -> Option<&'v Value> {
    let find = |value: &'v Value| match value {
        Value::Object(map) => map.get(name),
        Value::Array(items) => items.get(name.parse::<usize>().ok()?),
        _ => None,
    };
    find(value).or_else(|| find(face(value)))
}
