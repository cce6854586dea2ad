//! Answers that must be one JSON object: how to ask for one, how to find it in the answer, and how
//! to ask again.
//!
//! An agent that was asked for an object alone often adds text around it. The whole text counts if
//! it is JSON; otherwise the last code block of JSON; otherwise the first object in the text. If
//! the text contains other, different objects, none of them counts.
//!
//! **Invariant:** no part of a list or of an unreadable object is accepted as the answer, and
//! neither is one of several objects: asking again is better than continuing with a fragment or a
//! draft. The running time is linear in the length of the answer, regardless of its content.

use std::borrow::Cow;

use serde_json::{Deserializer, Error, Value};

use super::contract;
use crate::base::json;
use crate::template::kind;

/// Maximum number of bytes of an answer to quote back to the agent.
const HEAD: usize = 4096;
/// Maximum number of problems to report at once, and of bytes of each.
const PROBLEMS: usize = 20;
const PROBLEM: usize = 500;

/// The object of an answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Object<'a> {
    /// Its value, with its keys in the order they were written.
    pub value: Value,
    /// Its source text.
    pub text: Cow<'a, str>,
}

impl Object<'_> {
    fn into_owned(self) -> Object<'static> {
        Object { value: self.value, text: Cow::Owned(self.text.into_owned()) }
    }
}

/// Returns the object of an answer, or the reason why there is none.
pub(crate) fn extract_object(answer: &str) -> Result<Object<'_>, String> {
    let text = answer.trim_start_matches('\u{feff}').trim();
    if text.is_empty() {
        return Err("the answer is empty".into());
    }
    if let Ok(value) = serde_json::from_str(text) {
        return unambiguous(only_object(value, text, "the answer")?);
    }
    match contract::unquoted(text) {
        Cow::Borrowed(text) => among_words(text),
        Cow::Owned(text) => among_words(&text).map(Object::into_owned),
    }
}

fn among_words(text: &str) -> Result<Object<'_>, String> {
    let object = most_likely(text)?;
    match has_another(text, &object.value) {
        true => Err("the answer has more than one JSON object in it".into()),
        false => unambiguous(object),
    }
}

/// Rejects an object with a duplicate key: it is undefined which value counts.
fn unambiguous(object: Object<'_>) -> Result<Object<'_>, String> {
    match json::duplicate_key(&object.text) {
        Some(key) => Err(format!("the JSON object has the key `{key}` twice")),
        None => Ok(object),
    }
}

fn most_likely(text: &str) -> Result<Object<'_>, String> {
    let contract::Blocks { json, end, .. } = contract::last_block(text);
    let Some(block) = json else {
        return first_object(text)?.ok_or_else(|| "the answer has no JSON object in it".into());
    };
    match serde_json::from_str(block.trim()) {
        Ok(value) => only_object(value, block.trim(), "the last code block of JSON"),
        // The text after the block may be a second try; the text before it is not final.
        Err(error) => match first_object(&text[end..])? {
            Some(object) => Ok(object),
            None => Err(format!("the last code block of JSON cannot be read: {error}")),
        },
    }
}

/// Returns the object that is the whole text, or the whole content of one code block around it. Any
/// text around the object is an error: a text that only mentions an object does not give one.
pub(crate) fn whole_object(text: &str) -> Result<Object<'_>, String> {
    let text = text.trim_start_matches('\u{feff}').trim();
    if text.is_empty() {
        return Err("the output is empty".into());
    }
    let text = fenced(text).unwrap_or(text).trim();
    match serde_json::from_str(text) {
        Ok(value) => only_object(value, text, "the output"),
        Err(error) => Err(format!("the output is not one JSON object: {error}")),
    }
}

/// Returns the content of a text that consists of one code block.
fn fenced(text: &str) -> Option<&str> {
    let sign = text.chars().next().filter(|sign| matches!(sign, '`' | '~'))?;
    let fence = &text[..text.find(|c| c != sign).unwrap_or(text.len())];
    let (_, block) = text.split_once('\n').filter(|_| fence.len() >= 3)?;
    let inside = block.trim_end_matches(sign);
    let closes = block.len() - inside.len() >= fence.len() && inside.ends_with('\n');
    closes.then_some(inside)
}

fn only_object<'a>(value: Value, text: &'a str, what: &str) -> Result<Object<'a>, String> {
    match value {
        Value::Object(_) => Ok(Object { value, text: text.into() }),
        other => Err(format!("{what} is {}, but a JSON object is wanted", kind(&other))),
    }
}

/// A brace or a bracket in a text.
struct Opening {
    at: usize,
    is_list: bool,
    /// True if it seems to start an object or a list of objects.
    is_meant: bool,
}

/// Returns the next brace or bracket at or after `from`.
fn opening(text: &str, from: usize) -> Option<Opening> {
    let at = from + text[from..].find(['{', '['])?;
    let inside = text[at + 1..].trim_start();
    let is_list = text[at..].starts_with('[');
    // Footnotes and links use brackets too. A list of objects is not split into its objects.
    let names = if is_list { inside.strip_prefix('{') } else { Some(inside) };
    // A quote in this position always starts an object.
    let is_meant = names.is_some_and(|names| names.trim_start().starts_with('"'));
    Some(Opening { at, is_list, is_meant })
}

/// Returns the first object in a text that contains other text too. An empty object counts only if
/// there is no other: `{}` is common in code.
fn first_object(text: &str) -> Result<Option<Object<'_>>, String> {
    let mut empty = None;
    let mut broken = None;
    let mut at = 0;
    while let Some(Opening { at: open, is_list, is_meant }) = opening(text, at) {
        at = open + 1;
        if is_list && !is_meant {
            continue;
        }
        match value(&text[open..]) {
            (Some(Ok(Value::Object(map))), length) if map.is_empty() => {
                let text = text[open..open + length].into();
                empty = empty.or(Some(Object { value: Value::Object(map), text }));
                at = open + length;
            }
            (Some(Ok(value)), length) => {
                let text = &text[open..open + length];
                return only_object(value, text, "what stands in the answer").map(Some);
            }
            (Some(Err(error)), _) if error.is_eof() => {
                return Err("the JSON in the answer is cut off".into());
            }
            (Some(Err(error)), _) if is_meant => {
                let why = || {
                    let line = 1 + text[..open].matches('\n').count();
                    format!("the JSON that begins in line {line} cannot be read: {error}")
                };
                at = open + balanced(&text[open..]).ok_or_else(why)?;
                broken = broken.or_else(|| Some(why()));
            }
            _ => {}
        }
    }
    match (empty, broken) {
        (_, Some(why)) => Err(why),
        (empty, None) => Ok(empty),
    }
}

/// Returns true if a text contains an object other than `this`, or an attempt at one after it.
fn has_another(text: &str, this: &Value) -> bool {
    let (mut at, mut behind) = (0, false);
    while let Some(Opening { at: open, is_meant, .. }) = opening(text, at) {
        at = open + 1;
        if !is_meant {
            continue;
        }
        match value(&text[open..]) {
            (Some(Ok(value)), length) => {
                if value != *this {
                    return true;
                }
                (at, behind) = (open + length, true);
            }
            _ if behind => return true,
            _ => match balanced(&text[open..]) {
                Some(length) => at = open + length,
                None => return false,
            },
        }
    }
    false
}

/// Parses the JSON value at the start of a text. Also returns its length.
fn value(text: &str) -> (Option<Result<Value, Error>>, usize) {
    let mut values = Deserializer::from_str(text).into_iter();
    (values.next(), values.byte_offset())
}

/// Returns the length of the bracketed part at the start of a text, if the brackets are closed.
fn balanced(text: &str) -> Option<usize> {
    let (mut depth, mut quoted, mut escaped) = (0, false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'{' | b'[' if !quoted => depth += 1,
            b'}' | b']' if !quoted => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(at + 1);
        }
    }
    None
}

/// Returns the text to append to a prompt whose answer must match a schema.
pub(crate) fn instruct(schema: &Value) -> String {
    format!(
        "\n\n---\n\nAnswer with one JSON object that fits the JSON Schema below, and with nothing \
         else: no text before it or after it, and no code fence around it.\n\n```json\n{schema:#}\
         \n```\n"
    )
}

/// Returns the text to append to a prompt whose last answer was rejected: the problems, and the
/// start of that answer.
pub(crate) fn ask_again(problems: &[String], last: &str) -> String {
    let mut out = String::from("\n\n---\n\nYour last answer was not accepted:\n\n");
    for problem in problems.iter().take(PROBLEMS) {
        let problem = problem.split_whitespace().collect::<Vec<_>>().join(" ");
        out.push_str(&format!("- {}\n", head(&problem, PROBLEM)));
    }
    if problems.len() > PROBLEMS {
        out.push_str(&format!("- and {} more\n", problems.len() - PROBLEMS));
    }
    let last = head(last.trim(), HEAD);
    if last.is_empty() {
        out.push_str("\nIt was empty.\n");
    } else {
        let fence = fence(&last);
        out.push_str(&format!("\nIt was this, or began so:\n\n{fence}\n{last}\n{fence}\n"));
    }
    out.push_str("\nAnswer again, with one JSON object that fits the schema and nothing else.\n");
    out
}

/// Cuts a text to at most `most` bytes at a character boundary, and marks the cut.
fn head(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let end = (0..=most).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
    format!("{}…", &text[..end])
}

/// Returns a code fence that no line of the text can close.
pub(super) fn fence(text: &str) -> String {
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or_default();
    "`".repeat(3.max(longest + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::random::Random;
    use serde_json::json;

    fn gives(cases: &[(&str, &str)]) {
        for (answer, wanted) in cases {
            let found = match extract_object(answer) {
                Ok(object) => object.value.to_string(),
                Err(why) => why,
            };
            let same = wanted.strip_suffix('…').map_or(found == *wanted, |w| found.starts_with(w));
            assert!(same, "{answer}\n  gave {found}\n  not  {wanted}");
        }
    }

    #[test]
    fn the_whole_text_counts_first() {
        gives(&[
            (r#" {"b": 1, "a": [2, {"z": null}]} "#, r#"{"b":1,"a":[2,{"z":null}]}"#),
            ("\u{feff}{}", "{}"),
            (r#"{"a": "```json\n{\"b\": 1}\n```"}"#, r#"{"a":"```json\n{\"b\": 1}\n```"}"#),
            ("[{\"a\": 1}]", "the answer is a list, but a JSON object is wanted"),
            ("42", "the answer is a number, but a JSON object is wanted"),
            ("null", "the answer is null, but a JSON object is wanted"),
            ("\"{}\"", "the answer is text, but a JSON object is wanted"),
            ("", "the answer is empty"),
            (" \n", "the answer is empty"),
        ]);
    }

    #[test]
    fn a_code_block_counts_next() {
        gives(&[
            ("```json\n{\"a\": 1}\n```", r#"{"a":1}"#),
            ("```\n{\"a\": 1}\n```", r#"{"a":1}"#),
            ("Here {x} it is:\n\n```JSON\n{\"a\": 1}\n```\nAll {well}.", r#"{"a":1}"#),
            ("so {\"a\": 1}:\n```json\n{\"a\":1}\n```", r#"{"a":1}"#),
            ("~~~json\n{\"a\": \"```\"}\n~~~", r#"{"a":"```"}"#),
            ("```sh\nls\n```\n{\"a\": 1}", r#"{"a":1}"#),
            (
                "```json\n[1]\n```",
                "the last code block of JSON is a list, but a JSON object is wanted",
            ),
            (
                "```json\n{\"a\": 1}\n```\n```json\n{a: 2}\n```",
                "the last code block of JSON cannot be read: key must be a string…",
            ),
            ("```json\n{a: 2}\n```\nI mean {\"a\": 2}", r#"{"a":2}"#),
        ]);
    }

    #[test]
    fn an_object_is_found_between_words() {
        gives(&[
            ("Sure! {\"a\": {\"b\": [1]}} Anything else?", r#"{"a":{"b":[1]}}"#),
            ("the set {x} and f() {}: {\"a\": \"}\"}", r#"{"a":"}"}"#),
            ("see [1] and [x](y): {\"a\": 1}", r#"{"a":1}"#),
            ("{{\"a\": 1}}", r#"{"a":1}"#),
            ("let x = {};", "{}"),
            ("끝: {\"가\": \"나\"}", r#"{"가":"나"}"#),
            ("no object at all", "the answer has no JSON object in it"),
            ("{ not json }", "the answer has no JSON object in it"),
        ]);
    }

    #[test]
    fn of_several_objects_none_is_the_answer() {
        let several = "the answer has more than one JSON object in it";
        gives(&[
            ("{\"a\": 1} and {\"b\": 2}", several),
            ("draft {\"a\": 1}:\n```json\n{\"a\": 2}\n```", several),
            ("```json\n{\"a\": 1}\n```\nbetter:\n```json\n{\"a\": 2}\n```", several),
            ("{\"a\": 1} or [{\"a\": 2}]", several),
            ("{\"a\": 1}, no: {\"a\": 2,}", several),
            ("{\"a\": 1}, no: {\"a\":", several),
            ("{\"a\": 1}, again: {\"a\":1}, and {}", r#"{"a":1}"#),
            ("{\"a\": {\"b\": 1}} :-{", r#"{"a":{"b":1}}"#),
            ("{\"a\": 1, \"a\": 2}", "the JSON object has the key `a` twice"),
            ("so: {\"a\": [{\"b\": 1, \"b\": 1}]}", "the JSON object has the key `b` twice"),
        ]);
    }

    #[test]
    fn a_piece_is_not_the_answer() {
        gives(&[
            ("Here: {\"a\": {\"b\": 1}, \"c\":", "the JSON in the answer is cut off"),
            ("{\"a\": \"cut", "the JSON in the answer is cut off"),
            (
                "x [ {\"a\": 1}, {\"b\": 2}]",
                "what stands in the answer is a list, but a JSON object is wanted",
            ),
            (
                "so:\n{\"a\": {\"b\": 1}, c: {\"d\": 1}}",
                "the JSON that begins in line 2 cannot be read: key must be a string…",
            ),
            ("{\"a\": {\"b\": 1} \"c\"} then {\"d\": 1}", r#"{"d":1}"#),
            ("{\"a\" b {\"c\": 1}", "the JSON that begins in line 1 cannot be read: expected `:`…"),
            ("x [{\"a\": 1}, {\"b\":", "the JSON in the answer is cut off"),
            (
                "x [{\"a\": 1}, {\"b\": 2},] y",
                "the JSON that begins in line 1 cannot be read: trailing comma…",
            ),
            ("{\"a\": 1,} {}", "the JSON that begins in line 1 cannot be read: trailing…"),
        ]);
    }

    #[test]
    fn a_text_that_mentions_an_object_is_none() {
        let give = |text: &str| match whole_object(text) {
            Ok(object) => object.value.to_string(),
            Err(why) => why,
        };
        for (text, wanted) in [
            (" {\"b\": 1, \"a\": []} \n", r#"{"b":1,"a":[]}"#),
            ("\u{feff}{}", "{}"),
            ("```json\n{\"a\": 1}\n```\n", r#"{"a":1}"#),
            ("~~~~\r\n{\"a\": \"```\"}\r\n~~~~", r#"{"a":"```"}"#),
            ("", "the output is empty"),
            ("[1]", "the output is a list, but a JSON object is wanted"),
            ("```\n4\n```", "the output is a number, but a JSON object is wanted"),
        ] {
            assert_eq!(give(text), wanted, "{text}");
        }
        for other in [
            "so: {\"a\": 1}",
            "{\"a\": 1} so",
            "{\"a\": 1}\n{\"a\": 2}",
            "Here:\n```json\n{\"a\": 1}\n```",
            "```json\n{\"a\": 1}\n```\nDone.",
            "```json\n{\"a\": 1}\n``",
            "```json\n{\"a\": 1}```",
            "```{\"a\": 1}```",
            "```json\n{\"a\": 1}\n```\n```json\n{\"a\": 1}\n```",
            "```",
            "{\"a\": ",
        ] {
            assert!(give(other).starts_with("the output is not one JSON object: "), "{other}");
        }
    }

    #[test]
    fn what_is_asked_for_can_be_found_again() {
        let schema = json!({"type": "object", "properties": {"z": {}, "a": {}}});
        let text = instruct(&schema);
        assert!(text.starts_with("\n\n---\n\n") && text.contains("nothing else"));
        assert_eq!(extract_object(&text).map(|object| object.value), Ok(schema));
        assert!(text.find("\"z\"") < text.find("\"a\""));
    }

    #[test]
    fn asking_again_tells_what_was_wrong() {
        let text = ask_again(&["`a` is\n missing".into(), "`b` must be text".into()], " {} \n");
        let wanted = "\n\n---\n\nYour last answer was not accepted:\n\n- `a` is missing\n\
                      - `b` must be text\n\nIt was this, or began so:\n\n```\n{}\n```\n\n\
                      Answer again, with one JSON object that fits the schema and nothing else.\n";
        assert_eq!(text, wanted);
        assert!(ask_again(&["x".into()], " ").contains("\nIt was empty.\n"));
        let text = ask_again(&["x".into()], "```json\n````\n```");
        assert_eq!(text.matches("\n`````\n").count(), 2);
    }

    #[test]
    fn asking_again_is_not_longer_than_it_must_be() {
        let text = ask_again(&vec!["가".repeat(1000); 1000], &"é".repeat(100_000));
        assert!(text.len() < HEAD + PROBLEMS * (PROBLEM + 10) + 500, "{}", text.len());
        assert!(text.contains("- and 980 more\n"));
        assert_eq!(text.matches('é').count(), HEAD / 2);
        assert_eq!(head("aé", 2), "a…");
        assert_eq!(head("aé", 3), "aé");
    }

    #[test]
    fn long_answers_take_no_long_time() {
        const LONG: usize = 1 << 18;
        for row in [
            "{",
            "[",
            "}",
            "{{\"",
            "{\"",
            "{\"a\":",
            "{\"a\":[",
            "[{\"a\":",
            "[{",
            "{} ",
            "[{}",
            "```json\n",
            "```\n{",
            "{\"a\":1 x} ",
            "\"",
            "[{\"a\":1}x",
            "{\"\\",
            "{\n",
        ] {
            for (before, after) in [("", ""), ("x ", ""), ("x {\"a\":[", ""), ("x ", "}]}```\n{}")]
            {
                let answer = [before, &row.repeat(LONG / row.len()), after].concat();
                let _ = extract_object(&answer);
            }
        }
    }

    #[test]
    fn whatever_is_answered_can_be_read() {
        const SCRAPS: [&str; 18] = [
            "{",
            "}",
            "[",
            "]",
            "\"",
            "\"a\"",
            ":",
            "1",
            ",",
            " ",
            "\n",
            "```",
            "json\n",
            "\\",
            "é",
            "{\"a\":1}",
            "x",
            "{\"b\":{}}",
        ];
        let mut random = Random::new(5);
        let mut found = 0;
        for _ in 0..20_000 {
            let answer: String =
                (0..random.below(14)).map(|_| SCRAPS[random.below(SCRAPS.len())]).collect();
            if let Ok(object) = extract_object(&answer) {
                assert!(object.value.is_object());
                found += 1;
            }
            let again = ask_again(std::slice::from_ref(&answer), &answer);
            assert!(again.ends_with("nothing else.\n"));
        }
        assert!(found > 1000, "{found}");
    }
}
