//! YAML with places: a tree in which every value knows its position in the text.
//!
//! The scalar rules are those of YAML 1.2: `on` and `yes` are text, `012` is twelve. The parser
//! rejects duplicate keys, several documents, and aliases that multiply excessively.

pub(crate) mod fault;
#[cfg(test)]
pub(crate) mod fault_tests;
pub(crate) mod problem;
pub(crate) mod scalar;
pub(crate) mod unclosed;

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value as Json};
use serde_saphyr::Spanned;

use problem::{Place, Problem};

/// A value and its place.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub place: Place,
    pub value: Value,
}

#[derive(Clone, Debug)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(Node, Node)>),
}

/// Parses a document. The parser stops at its first error, which is returned with its place.
pub(crate) fn parse(text: &str) -> Result<Node, Problem> {
    let options = serde_saphyr::options! { strict_booleans: true };
    let text = without_bom(text);
    let read = serde_saphyr::from_str_with_options::<Node>(text, options);
    let lines: Vec<&str> = text.lines().collect();
    read.map(|mut node| {
        node.restore_numbers(&lines);
        node
    })
    .map_err(|error| {
        let place = error.location().map(|at| Place {
            line: at.line() as usize,
            column: at.column() as usize,
            len: 1,
        });
        fault::explain(&error.to_string(), place, &lines)
    })
}

impl Node {
    /// Returns the kind of this value, in an author's terms.
    pub(crate) fn kind(&self) -> &'static str {
        match &self.value {
            Value::Null => "nothing",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::Text(_) => "text",
            Value::List(_) => "a list",
            Value::Map(_) => "a map",
        }
    }

    /// Replaces floats by the number in the text: a JSON number as it is written, or an integer,
    /// which the parser reads as a float if it has a leading zero or too many digits.
    fn restore_numbers(&mut self, lines: &[&str]) {
        match &mut self.value {
            Value::Number(number) if number.is_f64() => {
                let token = token(self.place, lines);
                let digits = token.strip_prefix(['-', '+']).unwrap_or(&token);
                if let Ok(written) = token.parse() {
                    *number = written;
                } else if !digits.is_empty()
                    && digits.bytes().all(|b| b.is_ascii_digit())
                    && let Ok(integer) = token.parse::<i64>()
                {
                    *number = integer.into();
                }
            }
            Value::List(items) => items.iter_mut().for_each(|item| item.restore_numbers(lines)),
            Value::Map(pairs) => pairs.iter_mut().for_each(|(key, value)| {
                key.restore_numbers(lines);
                value.restore_numbers(lines);
            }),
            _ => {}
        }
    }

    pub(crate) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the value under `key`, or `None` if this is not a map or has no such key.
    pub(crate) fn get(&self, key: &str) -> Option<&Node> {
        match &self.value {
            Value::Map(pairs) => {
                pairs.iter().find(|(k, _)| k.text() == Some(key)).map(|(_, value)| value)
            }
            _ => None,
        }
    }

    /// Returns the same value as JSON. Keys that are not text become their text form.
    pub(crate) fn to_json(&self) -> Json {
        match &self.value {
            Value::Null => Json::Null,
            Value::Bool(b) => Json::Bool(*b),
            Value::Number(n) => Json::Number(n.clone()),
            Value::Text(t) => Json::String(t.clone()),
            Value::List(items) => items.iter().map(Node::to_json).collect(),
            Value::Map(pairs) => Json::Object(
                pairs
                    .iter()
                    .map(|(key, value)| (key.key_text(), value.to_json()))
                    .collect::<Map<_, _>>(),
            ),
        }
    }

    fn key_text(&self) -> String {
        match self.to_json() {
            Json::String(text) => text,
            other => other.to_string(),
        }
    }
}

/// Returns the text at a place.
fn token(place: Place, lines: &[&str]) -> String {
    let line = lines.get(place.line - 1).copied().unwrap_or_default();
    line.chars().skip(place.column - 1).take(place.len).collect()
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Value>::deserialize(deserializer)?;
        let at = spanned.referenced;
        let place = Place {
            line: at.line() as usize,
            column: at.column() as usize,
            len: (at.span().len() as usize).max(1),
        };
        Ok(Node { place, value: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value)
            .map(Value::Number)
            .ok_or_else(|| E::custom("`.inf` and `.nan` have no place in a workflow"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::Text(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Value::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut pairs = Vec::new();
        while let Some(key) = access.next_key()? {
            pairs.push((key, access.next_value()?));
        }
        Ok(Value::Map(pairs))
    }
}

/// Strips the byte order mark that some editors write before a text.
pub(crate) fn without_bom(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> String {
        parse(text).unwrap().to_json().to_string()
    }

    #[test]
    fn scalars_follow_yaml_1_2() {
        assert_eq!(json("on: yes"), r#"{"on":"yes"}"#);
        assert_eq!(
            json("[no, off, y, true, ~, 012, 0o14, 1.5, 1.0]"),
            r#"["no","off","y",true,null,12,12,1.5,1.0]"#
        );
        assert_eq!(
            json("[123456789012345678901234567890, 1.50, 1e3, -1E+40, +1.50, .5]"),
            r#"[123456789012345678901234567890,1.50,1e+3,-1e+40,1.5,0.5]"#
        );
        assert_eq!(json("v: \"1.1\""), r#"{"v":"1.1"}"#);
    }

    #[test]
    fn every_value_knows_its_place() {
        let node = parse("a: 1\non: { failure: { goto: X } }\n").unwrap();
        let goto = node.get("on").unwrap().get("failure").unwrap().get("goto").unwrap();
        assert_eq!((goto.place.line, goto.place.column), (2, 24));
    }

    #[test]
    fn what_is_not_one_document_is_refused_with_its_place() {
        for (text, line) in [("a: 1\na: 2\n", 2), ("a: [1\nb: 2\n", 1), ("a: 1\n---\nb: 2\n", 3)] {
            assert_eq!(parse(text).unwrap_err().place.unwrap().line, line, "{text}");
        }
    }

    #[test]
    fn aliases_that_multiply_are_refused() {
        let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for n in 1..12 {
            let refs = vec![format!("*a{}", n - 1); 10].join(", ");
            bomb.push_str(&format!("a{n}: &a{n} [{refs}]\n"));
        }
        assert!(parse(&bomb).is_err());
    }
}
