//! The `when` condition of a node: comparisons of other nodes' outputs, joined by `&&` and `||`.
//!
//! ```text
//! condition  := clause ('||' clause)*        clause := comparison ('&&' comparison)*
//! comparison := reference operator literal
//! reference  := $id.output | $id.output.field | $id.field
//! operator   := == != < > <= >=
//! literal    := 'text without single quotes' | number | true | false
//! ```
//!
//! Every text is a condition. A comparison that cannot be parsed is kept as undecidable: the loader
//! warns about it, and a node that depends on it does not run.
//!
//! **Invariant:** evaluation stops as soon as the outcome is decided. It then reads no further
//! reference and ignores every further comparison that cannot be parsed.

use std::cmp::Ordering;

use serde_json::Value;

use crate::template::display;
use crate::template::nodes::{NodeRef, Var, name_length};
use crate::template::number::leading_number;

/// A condition that must hold for a node to run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Condition {
    text: String,
    /// The condition holds if one clause holds; a clause holds if all its comparisons hold. Neither
    /// list is ever empty.
    clauses: Vec<Vec<Comparison>>,
}

#[derive(Clone, Debug, PartialEq)]
enum Comparison {
    Read {
        reference: NodeRef,
        /// Byte offset and byte length of the reference in the text.
        at: (usize, usize),
        operator: Operator,
        literal: String,
    },
    Broken(ConditionError),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Operator {
    Equal,
    Unequal,
    Less,
    Greater,
    AtMost,
    AtLeast,
}

/// A part of a condition that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct ConditionError {
    pub message: String,
    /// Byte offset in the text.
    pub at: usize,
}

/// The reason why a condition has no outcome.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unheld {
    /// The condition cannot be decided: the node is skipped with a warning.
    #[error("{0}")]
    Unparseable(String),
    /// A field cannot be read: the node fails.
    #[error("{0}")]
    Unreadable(String),
}

impl Condition {
    pub(crate) fn parse(text: &str) -> Condition {
        let comparison = |(at, part)| Comparison::parse(at, part);
        let clause = |(at, part)| split(at, part, "&&").into_iter().map(comparison).collect();
        let clauses = split(0, text, "||").into_iter().map(clause).collect();
        Condition { text: text.trim().to_owned(), clauses }
    }

    /// Returns the condition as it was written.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the references of all comparisons that can be parsed.
    pub(crate) fn refs(&self) -> impl Iterator<Item = &NodeRef> {
        self.clauses.iter().flatten().filter_map(|comparison| match comparison {
            Comparison::Read { reference, .. } => Some(reference),
            Comparison::Broken(_) => None,
        })
    }

    /// Returns the same references, each with its byte offset and byte length in the text.
    pub(crate) fn placed_refs(&self) -> impl Iterator<Item = (usize, usize, &NodeRef)> {
        self.clauses.iter().flatten().filter_map(|comparison| match comparison {
            Comparison::Read { reference, at: (at, len), .. } => Some((*at, *len, reference)),
            Comparison::Broken(_) => None,
        })
    }

    /// Returns the parts that cannot be parsed, in text order.
    pub(crate) fn faults(&self) -> Vec<ConditionError> {
        let broken = |comparison: &Comparison| match comparison {
            Comparison::Broken(fault) => Some(fault.clone()),
            Comparison::Read { .. } => None,
        };
        self.clauses.iter().flatten().filter_map(broken).collect()
    }

    /// Returns true if the node runs. `look` returns the value of a reference, or the reason why it
    /// cannot be read.
    pub(crate) fn holds(
        &self,
        look: &mut dyn FnMut(&NodeRef) -> Result<Value, String>,
    ) -> Result<bool, Unheld> {
        for clause in &self.clauses {
            let mut all = true;
            for comparison in clause {
                if !comparison.holds(look)? {
                    all = false;
                    break;
                }
            }
            if all {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Comparison {
    fn parse(at: usize, text: &str) -> Comparison {
        match read(text) {
            Ok(Comparison::Read { reference, at: (offset, len), operator, literal }) => {
                Comparison::Read { reference, at: (at + offset, len), operator, literal }
            }
            Ok(broken) => broken,
            Err((offset, message)) => {
                Comparison::Broken(ConditionError { message, at: at + offset })
            }
        }
    }

    fn holds(
        &self,
        look: &mut dyn FnMut(&NodeRef) -> Result<Value, String>,
    ) -> Result<bool, Unheld> {
        let (reference, operator, literal) = match self {
            Comparison::Broken(fault) => return Err(Unheld::Unparseable(fault.message.clone())),
            Comparison::Read { reference, operator, literal, .. } => (reference, operator, literal),
        };
        let value = look(reference).map_err(Unheld::Unreadable)?;
        let found = display(&value);
        let order = || order(reference, &found, literal).map_err(Unheld::Unparseable);
        Ok(match operator {
            Operator::Equal => found == *literal,
            Operator::Unequal => found != *literal,
            Operator::Less => order()?.is_lt(),
            Operator::Greater => order()?.is_gt(),
            Operator::AtMost => order()?.is_le(),
            Operator::AtLeast => order()?.is_ge(),
        })
    }
}

/// Compares the number at the start of each text. Returns an error if one of them has none.
fn order(reference: &NodeRef, found: &str, literal: &str) -> Result<Ordering, String> {
    let left = leading_number(found)
        .ok_or_else(|| format!("`{reference}` has no size: {}", no_number(found)))?;
    let right = leading_number(literal).ok_or_else(|| no_number(literal))?;
    Ok(left.compare(&right))
}

/// Splits a text at the separators outside quotes. Returns each part with its byte offset.
fn split<'t>(begin: usize, text: &'t str, separator: &str) -> Vec<(usize, &'t str)> {
    let mut parts = Vec::new();
    let (mut start, mut at, mut quoted) = (0, 0, false);
    while let Some(next) = text[at..].find(['\'', '&', '|']).map(|next| at + next) {
        at = next + 1;
        if text[next..].starts_with('\'') {
            quoted = !quoted;
        } else if !quoted && text[next..].starts_with(separator) {
            parts.push((begin + start, &text[start..next]));
            at = next + separator.len();
            start = at;
        }
    }
    parts.push((begin + start, &text[start..]));
    parts
}

/// Parses a comparison. On failure, returns the byte offset and the reason.
fn read(text: &str) -> Result<Comparison, (usize, String)> {
    let rest = text.trim_start();
    let place = |rest: &str| text.len() - rest.len();
    let wrong = |rest: &str, message: String| Err((place(rest), message));
    let written = rest;
    let Some(after) = rest.strip_prefix('$') else {
        return wrong(rest, no_reference(rest));
    };
    let node = &after[..name_length(after, true)];
    let path = &after[node.len()..];
    if node.is_empty() {
        return wrong(rest, "`$` must be followed by the id of a node".into());
    }
    let field = path.strip_prefix('.').unwrap_or_default();
    let field = &field[..name_length(field, false)];
    if field.is_empty() {
        return wrong(
            rest,
            match Var::named(node) {
                Some(var) => {
                    format!("`{var}` is a variable, and a condition compares outputs only")
                }
                None => format!("`${node}` must be followed by `.output` or by a field"),
            },
        );
    }
    let mut rest = &path[1 + field.len()..];
    let mut reference = NodeRef { node: node.to_owned(), field: Some(field.to_owned()) };
    if field == "output" {
        let inner = rest.strip_prefix('.').unwrap_or_default();
        let inner = &inner[..name_length(inner, false)];
        reference.field = (!inner.is_empty()).then(|| inner.to_owned());
        rest = &rest[reference.field.as_ref().map_or(0, |inner| 1 + inner.len())..];
    }
    let at = (place(written), written.len() - rest.len());
    if rest.starts_with('.') {
        return wrong(rest, format!("`{reference}` cannot be followed by another part"));
    }
    let rest = rest.trim_start();
    let Some((operator, sign)) = operator(rest) else {
        return wrong(rest, no_operator(rest, &reference));
    };
    let rest = rest[sign.len()..].trim();
    let literal = match literal(rest) {
        Ok(literal) => literal.to_owned(),
        // A missing literal is reported at the end of the text.
        Err(message) => return Err((text.trim_end().len() - rest.len(), message)),
    };
    let by_text = matches!(operator, Operator::Equal | Operator::Unequal);
    if !by_text && leading_number(&literal).is_none() {
        let message = format!("`{sign}` needs a number: {}", no_number(&literal));
        return Err((text.trim_end().len() - rest.len(), message));
    }
    Ok(Comparison::Read { reference, at, operator, literal })
}

fn operator(text: &str) -> Option<(Operator, &'static str)> {
    // Longer signs come first, because two of them start with a shorter one.
    [
        (Operator::Equal, "=="),
        (Operator::Unequal, "!="),
        (Operator::AtMost, "<="),
        (Operator::AtLeast, ">="),
        (Operator::Less, "<"),
        (Operator::Greater, ">"),
    ]
    .into_iter()
    .find(|(_, sign)| text.starts_with(sign))
}

fn literal(text: &str) -> Result<&str, String> {
    if let Some(inner) = text.strip_prefix('\'') {
        return match inner.find('\'') {
            None => Err("`'` is opened here but never closed".into()),
            Some(end) if end + 1 == inner.len() => Ok(&inner[..end]),
            Some(end) => Err(format!("`{}` follows the text in quotes", head(&inner[end + 1..]))),
        };
    }
    if text == "true" || text == "false" || is_number(text) {
        return Ok(text);
    }
    Err(match text {
        "" => "there is nothing to compare with".into(),
        text if text.starts_with('"') => {
            format!("`{}` must be in single quotes", head(text))
        }
        text if text.starts_with('$') => {
            format!("`{}` cannot be compared with: only a fixed value can", head(text))
        }
        text => format!("`{}` must be in single quotes, or a number, true or false", head(text)),
    })
}

/// Returns true if a text is digits, with an optional minus sign and an optional fraction.
fn is_number(text: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let text = text.strip_prefix('-').unwrap_or(text);
    match text.split_once('.') {
        Some((whole, fraction)) => digits(whole) && digits(fraction),
        None => digits(text),
    }
}

fn no_number(text: &str) -> String {
    match text.trim() {
        "" => "it is empty".into(),
        text => format!("`{}` begins with none", head(text)),
    }
}

fn no_reference(text: &str) -> String {
    match text.trim() {
        "" => "a comparison is missing here".into(),
        text if text.starts_with(['(', '!', ')']) => {
            format!("`{}` cannot be read: there are no parentheses and no negation", head(text))
        }
        text => format!("`{}` must begin with `$` and the id of a node", head(text)),
    }
}

fn no_operator(text: &str, reference: &NodeRef) -> String {
    match text.trim() {
        "" => format!("`{reference}` is compared with nothing"),
        text if text.starts_with('=') => "`=` is no comparison; write `==`".into(),
        text => format!("`{}` is none of ==, !=, <, >, <= and >=", head(text)),
    }
}

/// Cuts a text to a length that still identifies it.
fn head(text: &str) -> String {
    const HEAD: usize = 40;
    let mut head: String = text.chars().take(HEAD).collect();
    if text.chars().nth(HEAD).is_some() {
        head.push('…');
    }
    head
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::random::Random;
    use serde_json::json;

    /// What the nodes gave. `bad` has a field that cannot be read, and `gone` nothing.
    fn look(reference: &NodeRef) -> Result<Value, String> {
        let nodes = json!({
            "a": {"type": "BUG", "n": 5, "f": 2.5, "yes": true, "no": null, "list": [1, "x"],
                  "o": {"k": 1}, "text": "it is", "output": "inner", "neg": -3, "id": "007"},
            "score": {}, "bad-one": {}
        });
        match (reference.node.as_str(), reference.field.as_deref()) {
            ("score", None) => Ok(json!("80abc")),
            ("a", None) => Ok(json!("whole")),
            ("gone", None) => Ok(json!("")),
            (node, Some(field)) if nodes[node].get(field).is_some() => {
                Ok(nodes[node][field].clone())
            }
            _ => Err(format!("cannot read {reference}")),
        }
    }

    /// `yes`, `no`, `skip: WHY`, or `fail: WHY`.
    fn decide(text: &str) -> String {
        match Condition::parse(text).holds(&mut look) {
            Ok(true) => "yes".into(),
            Ok(false) => "no".into(),
            Err(Unheld::Unparseable(why)) => format!("skip: {why}"),
            Err(Unheld::Unreadable(why)) => format!("fail: {why}"),
        }
    }

    fn decides(cases: &[(&str, &str)]) {
        for (text, wanted) in cases {
            assert_eq!(decide(text), *wanted, "{text}");
        }
    }

    #[test]
    fn text_is_compared_exactly() {
        decides(&[
            ("$a.output.type == 'BUG'", "yes"),
            ("$a.type == 'BUG'", "yes"),
            ("$a.type == 'bug'", "no"),
            ("$a.type != 'FEATURE'", "yes"),
            ("$a.output == 'whole'", "yes"),
            ("$a.output != 'whole'", "no"),
            ("$a.output.output == 'inner'", "yes"),
            ("$a.output.text=='it is'", "yes"),
            ("  $a.type\n ==\t'BUG' \n", "yes"),
            ("$gone.output == ''", "yes"),
            ("$a.type == ' BUG'", "no"),
        ]);
    }

    #[test]
    fn what_is_no_text_is_compared_as_it_would_be_shown() {
        decides(&[
            ("$a.n == '5'", "yes"),
            ("$a.n == 5", "yes"),
            ("$a.n == 5.0", "no"),
            ("$a.neg == -3", "yes"),
            ("$a.f == 2.5", "yes"),
            ("$a.yes == true", "yes"),
            ("$a.yes == 'true'", "yes"),
            ("$a.yes != false", "yes"),
            ("$a.no == 'null'", "yes"),
            ("$a.list == '[1,\"x\"]'", "yes"),
            ("$a.o == '{\"k\":1}'", "yes"),
            ("$a.id == 7", "no"),
        ]);
    }

    #[test]
    fn order_needs_a_number_on_both_sides() {
        decides(&[
            ("$score.output >= '80'", "yes"),
            ("$score.output > 80", "no"),
            ("$score.output <= 80", "yes"),
            ("$score.output < 80.5", "yes"),
            ("$a.n > '4 apples'", "yes"),
            ("$a.neg < 0", "yes"),
            ("$a.f > 2", "yes"),
            ("$a.id >= 7", "yes"),
            ("$a.type > 3", "skip: `$a.output.type` has no size: `BUG` begins with none"),
            ("$gone.output < 3", "skip: `$gone.output` has no size: it is empty"),
            ("$a.n > 'many'", "skip: `>` needs a number: `many` begins with none"),
            ("$a.n <= true", "skip: `<=` needs a number: `true` begins with none"),
        ]);
    }

    #[test]
    fn a_number_is_read_off_the_beginning() {
        for (text, wanted) in [
            ("80abc", Some("80")),
            (" \n-1.5e2x", Some("-150")),
            ("+3", Some("3")),
            (".5", Some("0.5")),
            ("5.", Some("5")),
            ("5.x", Some("5")),
            ("1e", Some("1")),
            ("1e+", Some("1")),
            ("1e5", Some("100000")),
            ("1.2.3", Some("1.2")),
            ("0x10", Some("0")),
            ("-", None),
            (".", None),
            ("-.e1", None),
            ("", None),
            ("x1", None),
            ("Infinity", None),
            ("NaN", None),
            ("1e99999999999999999999", None),
        ] {
            let found = leading_number(text);
            assert_eq!(found.is_some(), wanted.is_some(), "{text}");
            let wanted = wanted.and_then(leading_number);
            let same =
                found.zip(wanted).is_none_or(|(found, wanted)| found.compare(&wanted).is_eq());
            assert!(same, "{text}");
        }
        decides(&[("$a.n > '-0'", "yes")]);
    }

    #[test]
    fn zero_is_zero_whatever_its_sign() {
        let zero = |text: &str| Condition::parse(text).holds(&mut |_| Ok(json!("-0")));
        assert_eq!(zero("$a.output >= 0"), Ok(true));
        assert_eq!(zero("$a.output < 0"), Ok(false));
    }

    #[test]
    fn and_binds_closer_than_or() {
        let (yes, no) = ("$a.n == 5", "$a.n == 6");
        for (text, wanted) in [
            (format!("{yes} && {yes}"), "yes"),
            (format!("{yes} && {no}"), "no"),
            (format!("{no} || {yes}"), "yes"),
            (format!("{no} || {no}"), "no"),
            (format!("{yes} || {yes} && {no}"), "yes"),
            (format!("{no} && {yes} || {yes}"), "yes"),
            (format!("{no}&&{yes}||{yes}&&{no}"), "no"),
        ] {
            assert_eq!(decide(&text), wanted, "{text}");
        }
    }

    #[test]
    fn signs_within_quotes_do_not_split() {
        decides(&[
            ("$a.type == 'x || y' || $a.type == 'BUG'", "yes"),
            ("$a.type != 'a && b == c' && $a.n == 5", "yes"),
            ("$a.type == '|| $a.n == 5'", "no"),
            ("$a.type == '<=\"$'", "no"),
        ]);
    }

    #[test]
    fn what_is_decided_is_not_looked_at_further() {
        decides(&[
            ("$a.n == 5 || nonsense", "yes"),
            ("$a.n == 6 && nonsense", "no"),
            ("$a.n == 5 || $bad-one.x == 'y'", "yes"),
            ("$a.n == 6 && $bad-one.x == 'y' || $a.n == 5", "yes"),
            ("nonsense || $a.n == 5", "skip: `nonsense` must begin with `$` and the id of a node"),
            ("$bad-one.x == 'y' || $a.n == 5", "fail: cannot read $bad-one.output.x"),
        ]);
        let mut seen = Vec::new();
        let condition = Condition::parse("$a.x == 1 && $b.x == 1 || $c.x == 2 || $d.x == 2");
        let holds = condition.holds(&mut |reference| {
            seen.push(reference.node.clone());
            Ok(json!(2))
        });
        assert_eq!((holds, seen.concat()), (Ok(true), "ac".into()));
        assert_eq!(condition.refs().count(), 4);
    }

    #[test]
    fn what_cannot_be_read_is_told_with_its_place() {
        for (text, at, wanted) in [
            ("", 0, "a comparison is missing here"),
            ("$a.n == 5 &&", 12, "a comparison is missing here"),
            ("|| $a.n == 5", 0, "a comparison is missing here"),
            ("$a.n", 4, "`$a.output.n` is compared with nothing"),
            ("$a == 'x'", 0, "`$a` must be followed by `.output` or by a field"),
            ("$ == 'x'", 0, "`$` must be followed by the id of a node"),
            ("$a.n = 5", 5, "`=` is no comparison; write `==`"),
            ("$a.n is 5", 5, "`is 5` is none of ==, !=, <, >, <= and >="),
            ("$a.n ==", 7, "there is nothing to compare with"),
            ("$a.n == ", 7, "there is nothing to compare with"),
            ("  $a.n == \"x\"", 10, "`\"x\"` must be in single quotes"),
            ("$a.n == x", 8, "`x` must be in single quotes, or a number, true or false"),
            ("$a.n == 5x", 8, "`5x` must be in single quotes, or a number, true or false"),
            ("$a.n == 'x' y", 8, "` y` follows the text in quotes"),
            ("$a.n == 'x", 8, "`'` is opened here but never closed"),
            ("$a.n == 'it's'", 8, "`s'` follows the text in quotes"),
            ("$a.n == $b.n", 8, "`$b.n` cannot be compared with: only a fixed value can"),
            ("$a.output.b.c == 1", 11, "`$a.output.b` cannot be followed by another part"),
            ("$a.b.c == 1", 4, "`$a.output.b` cannot be followed by another part"),
            ("$a.output. == 1", 9, "`$a.output` cannot be followed by another part"),
            (
                "$ARGUMENTS == 'x'",
                0,
                "`$ARGUMENTS` is a variable, and a condition compares \
              outputs only",
            ),
            (
                "($a.n == 5)",
                0,
                "`($a.n == 5)` cannot be read: there are no parentheses and no \
              negation",
            ),
            ("!$a.n", 0, "`!$a.n` cannot be read: there are no parentheses and no negation"),
            ("$a.n == 5 || true", 13, "`true` must begin with `$` and the id of a node"),
            ("$a.n === 5", 7, "`= 5` must be in single quotes, or a number, true or false"),
            ("$a.n > 'x'", 7, "`>` needs a number: `x` begins with none"),
            (
                "$a.n == 5 | $a.n == 6",
                8,
                "`5 | $a.n == 6` must be in single quotes, or a number, \
              true or false",
            ),
            ("$é.n == 1", 0, "`$` must be followed by the id of a node"),
        ] {
            let faults = Condition::parse(text).faults();
            assert_eq!(faults, [ConditionError { message: wanted.into(), at }], "{text}");
        }
        let both = Condition::parse("x && $a.n == 5 || y");
        assert_eq!(both.faults().iter().map(|fault| fault.at).collect::<Vec<_>>(), [0, 18]);
        assert_eq!(both.refs().count(), 1);
        assert_eq!(Condition::parse("$a.n == 1").faults(), []);
    }

    #[test]
    fn a_node_called_like_a_variable_can_be_compared() {
        let condition = Condition::parse("$CONTEXT.output == 'x'");
        let wanted = NodeRef { node: "CONTEXT".into(), field: None };
        assert_eq!(condition.refs().collect::<Vec<_>>(), [&wanted]);
    }

    #[test]
    fn any_text_is_a_condition() {
        const SCRAPS: [&str; 26] = [
            "$",
            "$a",
            ".output",
            ".",
            "n",
            "==",
            "!=",
            "<",
            ">=",
            "=",
            "&&",
            "||",
            "&",
            "|",
            "'",
            "'x'",
            " ",
            "5",
            "-",
            "true",
            "\n",
            "é",
            "(",
            "\"",
            "$a.n",
            "$a.n == 5",
        ];
        let mut random = Random::new(3);
        let (mut held, mut broken) = (0, 0);
        for _ in 0..20_000 {
            let length = 1 + random.below(8);
            let pick = |_| SCRAPS[random.below(SCRAPS.len())];
            let text: String = (0..length).map(pick).collect();
            let condition = Condition::parse(&text);
            let faults = condition.faults();
            assert!(faults.iter().all(|fault| text.is_char_boundary(fault.at)), "{text}");
            let comparisons = condition.clauses.iter().flatten().count();
            assert_eq!(condition.refs().count() + faults.len(), comparisons);
            let mut look = |_: &NodeRef| Ok(json!(5));
            match condition.holds(&mut look) {
                Ok(_) => held += 1,
                Err(Unheld::Unparseable(_)) => broken += 1,
                Err(Unheld::Unreadable(_)) => panic!("{text}: every reference was read"),
            }
        }
        assert!(held > 50 && broken > 50, "{held} {broken}");
    }
}
