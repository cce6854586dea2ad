//! The functions of spells: their names, their numbers of arguments, and the implementations of
//! those that need only their arguments.

use std::cmp::Ordering;

use serde_json::Value;

use super::MAX_OUTPUT;
use super::value::{compare, print, to_json, truth};
use crate::template::kind;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Function {
    And,
    Or,
    Not,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    Len,
    Index,
    Default,
    Upper,
    Lower,
    Trim,
    Quote,
    Indent,
    Join,
    Json,
    Include,
}

use Function::*;

impl Function {
    /// Every function: its name, and its minimum and maximum number of arguments.
    pub(super) const ALL: [(&'static str, Function, usize, usize); 20] = [
        ("and", And, 1, usize::MAX),
        ("or", Or, 1, usize::MAX),
        ("not", Not, 1, 1),
        ("eq", Eq, 2, usize::MAX),
        ("ne", Ne, 2, 2),
        ("lt", Lt, 2, 2),
        ("le", Le, 2, 2),
        ("gt", Gt, 2, 2),
        ("ge", Ge, 2, 2),
        ("len", Len, 1, 1),
        ("index", Index, 2, usize::MAX),
        ("default", Default, 2, 2),
        ("upper", Upper, 1, 1),
        ("lower", Lower, 1, 1),
        ("trim", Trim, 1, 1),
        ("quote", Quote, 1, 1),
        ("indent", Indent, 2, 2),
        ("join", Join, 2, 2),
        ("json", Json, 1, 1),
        ("include", Include, 1, usize::MAX),
    ];

    pub(super) fn named(word: &str) -> Option<Function> {
        Self::ALL.iter().find(|(name, ..)| *name == word).map(|(_, function, ..)| *function)
    }

    /// Returns an error message if `count` is not a valid number of arguments.
    pub(super) fn miscount(self, count: usize) -> Option<String> {
        let (name, _, least, most) = Self::ALL.iter().find(|(_, found, ..)| *found == self)?;
        let plural = |n: usize| if n == 1 { "value" } else { "values" };
        if count < *least {
            let more = if least == most { "" } else { "at least " };
            let wanted = plural(*least);
            Some(format!("`{name}` wants {more}{least} {wanted}, but gets {count}"))
        } else if count > *most {
            Some(format!("`{name}` wants {most} {}, but gets {count}", plural(*most)))
        } else {
            None
        }
    }

    pub(super) fn name(self) -> &'static str {
        let found = Self::ALL.iter().find(|(_, function, ..)| *function == self);
        found.map_or("", |(name, ..)| name)
    }
}

/// Calls a function that needs only its arguments, whose number is valid. The error is a message.
pub(super) fn call(function: Function, values: &[&Value]) -> Result<Value, String> {
    let made = match function {
        Not => Value::Bool(!truth(values[0])),
        Eq => Value::Bool(equal(values)?),
        Ne => Value::Bool(!equal(values)?),
        Lt | Le | Gt | Ge => Value::Bool(ordered(function, values[0], values[1])?),
        Len => length(values[0])?.into(),
        Upper => print(values[0]).to_uppercase().into(),
        Lower => print(values[0]).to_lowercase().into(),
        Trim => print(values[0]).trim().into(),
        Quote => Value::String(print(values[0]).into_owned()).to_string().into(),
        Indent => indent(values[0], &print(values[1]))?.into(),
        Join => join(values[0], values[1]).into(),
        Json => to_json(values[0]).into(),
        And | Or | Default | Index | Include => Value::Null,
    };
    match &made {
        Value::String(text) if text.len() > MAX_OUTPUT => Err(too_large(function.name())),
        _ => Ok(made),
    }
}

fn too_large(name: &str) -> String {
    format!("`{name}` makes more than {MAX_OUTPUT} bytes")
}

/// Returns true if the first value equals any other.
fn equal(values: &[&Value]) -> Result<bool, String> {
    for other in &values[1..] {
        if values[0].is_null() || other.is_null() {
            if values[0] == *other {
                return Ok(true);
            }
        } else if compare(values[0], other).ok_or_else(|| unlike(values[0], other))?
            == Some(Ordering::Equal)
        {
            return Ok(true);
        }
    }
    Ok(false)
}

fn unlike(a: &Value, b: &Value) -> String {
    format!("{} cannot be compared with {}", kind(a), kind(b))
}

/// Compares two values; `null` is not ordered relative to anything.
fn ordered(function: Function, a: &Value, b: &Value) -> Result<bool, String> {
    if a.is_null() || b.is_null() {
        return Ok(false);
    }
    if !matches!(
        (a, b),
        (Value::Number(_), Value::Number(_)) | (Value::String(_), Value::String(_))
    ) {
        let fault = unlike(a, b);
        return Err(format!("`{}` wants two numbers or two texts: {fault}", function.name()));
    }
    let order = compare(a, b).flatten();
    Ok(order.is_some_and(|order| match function {
        Lt => order.is_lt(),
        Le => order.is_le(),
        Gt => order.is_gt(),
        _ => order.is_ge(),
    }))
}

fn length(value: &Value) -> Result<usize, String> {
    match value {
        Value::Null => Ok(0),
        Value::String(text) => Ok(text.chars().count()),
        Value::Array(items) => Ok(items.len()),
        Value::Object(map) => Ok(map.len()),
        other => Err(format!("{} has no length", kind(other))),
    }
}

/// Prepends spaces to every line that is not empty.
fn indent(count: &Value, text: &str) -> Result<String, String> {
    let Some(count) = count.as_u64().and_then(|count| usize::try_from(count).ok()) else {
        return Err(format!(
            "`indent` wants a number of spaces first, not {}",
            match count {
                Value::Number(number) => format!("{number}"),
                other => kind(other).to_owned(),
            }
        ));
    };
    let lines = text.split('\n').filter(|line| !line.is_empty()).count();
    let size = count.checked_mul(lines).and_then(|added| added.checked_add(text.len()));
    if size.is_none_or(|size| size > MAX_OUTPUT) {
        return Err(too_large("indent"));
    }
    let spaces = " ".repeat(if lines == 0 { 0 } else { count });
    let pad = |line: &str| if line.is_empty() { String::new() } else { format!("{spaces}{line}") };
    Ok(text.split('\n').map(pad).collect::<Vec<_>>().join("\n"))
}

/// Joins a list with a separator, in either argument order; prints any other value.
fn join(a: &Value, b: &Value) -> String {
    let (separator, list) = if a.is_array() && !b.is_array() { (b, a) } else { (a, b) };
    match list {
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(print).collect();
            items.join(&print(separator))
        }
        other => print(other).into_owned(),
    }
}
