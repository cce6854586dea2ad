//! Text with placeholders ("holes"), parsed when a workflow is loaded and filled when a step runs.
//! Two kinds have their own language: spells, in [`spell`], and the text of nodes, in [`nodes`].
//!
//! A [`Template`] is parsed from left to right in one pass: `$$` is a dollar sign, `${a.b}` is a
//! hole, and any other dollar sign is literal. Inserted values are never parsed again, so a value
//! cannot become a reference.

pub(crate) mod nodes;
pub(crate) mod number;
pub(crate) mod spell;
pub(crate) mod written;

use std::borrow::Cow;
use std::ops::Range;

use serde_json::Value;

/// Text with holes. No unparsed hole remains at execution.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Template {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq)]
enum Part {
    Text(String),
    /// A hole and its range in the text, from the dollar sign to the closing brace.
    Hole(Hole, Range<usize>),
}

/// A reference such as `${steps.List.lines}`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Hole {
    /// The text between the braces.
    pub raw: String,
    /// The parts of `raw` between the dots.
    pub path: Vec<String>,
}

impl Hole {
    pub(crate) fn new(raw: &str) -> Self {
        Hole { raw: raw.to_owned(), path: raw.split('.').map(str::to_owned).collect() }
    }

    /// Returns the first part, which identifies the namespace of the variable.
    pub(crate) fn root(&self) -> &str {
        &self.path[0]
    }
}

/// The reason why a text is not a valid template, and its position.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum TemplateError {
    #[error("`${{` is opened here but never closed")]
    Unclosed(Range<usize>),
    #[error("`${{}}` names no variable")]
    Empty(Range<usize>),
}

/// The source of the values.
pub(crate) trait Scope {
    fn look_up(&self, hole: &Hole) -> Result<Cow<'_, Value>, Missing>;
}

/// A hole without a value, and the reason.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Missing {
    pub raw: String,
    pub reason: String,
}

impl Template {
    pub(crate) fn parse(text: &str) -> Result<Template, TemplateError> {
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some(dollar) = rest.find('$') {
            plain.push_str(&rest[..dollar]);
            let begin = text.len() - rest.len() + dollar;
            let after = &rest[dollar + 1..];
            if let Some(tail) = after.strip_prefix('$') {
                plain.push('$');
                rest = tail;
            } else if let Some(inner) = after.strip_prefix('{') {
                let end = inner.find('}').ok_or(TemplateError::Unclosed(begin..begin + 2))?;
                let place = begin..begin + "${".len() + end + "}".len();
                if inner[..end].trim().is_empty() {
                    return Err(TemplateError::Empty(place));
                }
                if !plain.is_empty() {
                    parts.push(Part::Text(std::mem::take(&mut plain)));
                }
                parts.push(Part::Hole(Hole::new(inner[..end].trim()), place));
                rest = &inner[end + 1..];
            } else {
                plain.push('$');
                rest = after;
            }
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            parts.push(Part::Text(plain));
        }
        Ok(Template { parts })
    }

    /// Returns true if the template has a hole with this name, or this word in its text.
    pub(crate) fn names(&self, hole: &str, word: &str) -> bool {
        self.parts.iter().any(|part| match part {
            Part::Text(text) => text.contains(word),
            Part::Hole(found, _) => found.raw == hole,
        })
    }

    pub(crate) fn holes(&self) -> impl Iterator<Item = &Hole> {
        self.placed().map(|(hole, _)| hole)
    }

    /// Returns the holes, each with its range in the parsed text.
    pub(crate) fn placed(&self) -> impl Iterator<Item = (&Hole, &Range<usize>)> {
        self.parts.iter().filter_map(|part| match part {
            Part::Hole(hole, place) => Some((hole, place)),
            Part::Text(_) => None,
        })
    }

    /// Returns the text if it has no hole.
    pub(crate) fn literal(&self) -> Option<&str> {
        match self.parts.as_slice() {
            [] => Some(""),
            [Part::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// Returns the text with every hole replaced by `filler`: enough to check the fixed parts of a
    /// path.
    pub(crate) fn with_holes_as(&self, filler: &str) -> String {
        self.parts
            .iter()
            .map(|part| match part {
                Part::Text(text) => text.as_str(),
                Part::Hole(..) => filler,
            })
            .collect()
    }

    /// Fills the holes. The error lists every hole that cannot be filled.
    pub(crate) fn render(&self, scope: &dyn Scope) -> Result<String, Vec<Missing>> {
        let mut out = String::new();
        let mut missing = Vec::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => out.push_str(text),
                Part::Hole(hole, _) => match scope.look_up(hole) {
                    Ok(value) => out.push_str(&display(&value)),
                    Err(fault) => missing.push(fault),
                },
            }
        }
        if missing.is_empty() { Ok(out) } else { Err(missing) }
    }
}

/// Formats a value for text: strings as they are, everything else as compact JSON.
pub(crate) fn display(value: &Value) -> Cow<'_, str> {
    match value {
        Value::String(text) => Cow::Borrowed(text),
        other => Cow::Owned(other.to_string()),
    }
}

/// Names the type of a value for messages.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Walks from `value` along keys and, in arrays, indices.
pub(crate) fn descend<'a>(value: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, key| match value {
        Value::Object(map) => map.get(key),
        Value::Array(items) => items.get(key.parse::<usize>().ok()?),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    struct Fixed(Value);

    impl Scope for Fixed {
        fn look_up(&self, hole: &Hole) -> Result<Cow<'_, Value>, Missing> {
            descend(&self.0, &hole.path)
                .map(Cow::Borrowed)
                .ok_or_else(|| Missing { raw: hole.raw.clone(), reason: "absent".into() })
        }
    }

    fn render(text: &str) -> Result<String, Vec<Missing>> {
        let scope = Fixed(json!({
            "k": "v", "again": "${k}", "n": 1, "b": true, "z": null,
            "list": ["a", {"x": 1.5}], "o": {"p": "q"}
        }));
        Template::parse(text).unwrap().render(&scope)
    }

    #[test]
    fn one_pass_from_left_to_right() {
        for (text, wanted) in [
            ("plain", "plain"),
            ("${k}", "v"),
            ("$k $1 $(date) $", "$k $1 $(date) $"),
            ("$$", "$"),
            ("$${k}", "${k}"),
            ("$$${k}", "$v"),
            ("$$$$", "$$"),
            ("${again}", "${k}"),
            ("${n} ${b} ${z}", "1 true null"),
            ("${list}", r#"["a",{"x":1.5}]"#),
            ("${list.1.x} ${o.p}", "1.5 q"),
        ] {
            assert_eq!(render(text).as_deref(), Ok(wanted), "{text}");
        }
    }

    #[test]
    fn every_missing_hole_is_named() {
        let missing = render("${a} ${k} ${o.zz}").unwrap_err();
        let raw: Vec<_> = missing.iter().map(|m| m.raw.as_str()).collect();
        assert_eq!(raw, ["a", "o.zz"]);
    }

    #[test]
    fn a_hole_must_be_closed_and_named() {
        assert_eq!(Template::parse("a ${b"), Err(TemplateError::Unclosed(2..4)));
        assert_eq!(Template::parse("a ${ }"), Err(TemplateError::Empty(2..6)));
        assert!(Template::parse("a $${b").is_ok());
    }
}
