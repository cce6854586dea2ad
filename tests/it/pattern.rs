//! What a case expects: text and JSON with holes, compared with what is there.
//!
//! In text `[..]` stands for anything within a line. In JSON keys left out are free, and these
//! strings are patterns: `"[..]"` any value, `"[some]"` any value but null, `"[absent]"` a key that
//! must not be there, `"[...]"` at the end of an array any further elements.

use libtest_mimic::{Failed, Trial};
use serde_json::Value;

/// Stands for any text within a line.
pub(crate) const HOLE: &str = "[..]";

/// Stands for any number of lines of a whole text, or of elements at the end of an array.
pub(crate) const ANY_LINES: &str = "[...]";

/// The last line of an expectation whose text has no newline at the end.
pub(crate) const NO_NEWLINE: &str = "\\ no newline at the end\n";

/// Says whether `line` is `pattern` with its holes filled.
pub(crate) fn line(pattern: &str, line: &str) -> bool {
    let mut pieces = pattern.split(HOLE);
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = line.strip_prefix(first) else { return false };
    let pieces: Vec<&str> = pieces.collect();
    let Some((last, middle)) = pieces.split_last() else { return rest.is_empty() };
    for piece in middle {
        match rest.find(piece) {
            Some(at) => rest = &rest[at + piece.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// Looks for every line of `expected` in `text`, in that order; other lines may stand between.
pub(crate) fn in_order(expected: &str, text: &str) -> Result<(), String> {
    if expected.trim() == "(empty)" {
        return if text.is_empty() { Ok(()) } else { Err("it should be empty".into()) };
    }
    let mut lines = text.lines();
    for wanted in expected.lines().filter(|wanted| !wanted.is_empty()) {
        if !lines.any(|found| line(wanted, found)) {
            let place = if text.lines().any(|found| line(wanted, found)) {
                "only before the line expected ahead of it"
            } else {
                "nowhere"
            };
            return Err(format!("this line occurs {place}:\n  {wanted}"));
        }
    }
    Ok(())
}

/// Compares all lines; a line `[...]` stands for any number of lines, and a last line
/// `\ no newline at the end` for what it says.
pub(crate) fn whole(expected: &str, text: &str) -> Result<(), String> {
    let (expected, newline) = match expected.strip_suffix(NO_NEWLINE) {
        Some(rest) => (rest, false),
        None => (expected, true),
    };
    let wanted: Vec<&str> = expected.lines().collect();
    let found: Vec<&str> = text.lines().collect();
    if !text.is_empty() && text.ends_with('\n') != newline {
        let is = if newline { "lacks" } else { "has" };
        return Err(format!("the text {is} a newline at the end\n{}", both(&wanted, &found)));
    }
    if lines(&wanted, &found) { Ok(()) } else { Err(both(&wanted, &found)) }
}

fn lines(wanted: &[&str], found: &[&str]) -> bool {
    match wanted.split_first() {
        None => found.is_empty(),
        Some((&ANY_LINES, rest)) => (0..=found.len()).any(|skip| lines(rest, &found[skip..])),
        Some((first, rest)) => {
            found.split_first().is_some_and(|(next, left)| line(first, next) && lines(rest, left))
        }
    }
}

fn both(wanted: &[&str], found: &[&str]) -> String {
    let mut text = String::new();
    for (sign, lines) in [('-', wanted), ('+', found)] {
        for line in lines {
            text.push_str(&format!("  {sign} {line}\n"));
        }
    }
    text
}

/// Compares JSON with a pattern and returns every mismatch with its path and both sides.
pub(crate) fn json(pattern: &Value, value: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    compare("", pattern, value, &mut wrong);
    wrong
}

fn compare(path: &str, pattern: &Value, value: &Value, wrong: &mut Vec<String>) {
    match (pattern, value) {
        (Value::String(wanted), _) if wanted == HOLE => {}
        (Value::String(wanted), _) if wanted == "[some]" => {
            if value.is_null() {
                wrong.push(mismatch(path, pattern, value));
            }
        }
        (Value::String(wanted), Value::String(found)) if wanted.contains(HOLE) => {
            if !line(wanted, found) {
                wrong.push(mismatch(path, pattern, value));
            }
        }
        (Value::Object(wanted), Value::Object(found)) => {
            for (key, wanted) in wanted {
                let path = format!("{path}.{key}");
                match found.get(key) {
                    None if wanted == "[absent]" => {}
                    None => wrong.push(format!("{path}: missing, expected {wanted}")),
                    Some(found) if wanted == "[absent]" => {
                        wrong.push(format!("{path}: should not be there, but is {found}"));
                    }
                    Some(found) => compare(&path, wanted, found, wrong),
                }
            }
        }
        (Value::Array(wanted), Value::Array(found)) => {
            let (wanted, open) = match wanted.split_last() {
                Some((last, rest)) if last == ANY_LINES => (rest, true),
                _ => (wanted.as_slice(), false),
            };
            if found.len() < wanted.len() || (!open && found.len() > wanted.len()) {
                wrong.push(mismatch(path, pattern, value));
                return;
            }
            for (index, (wanted, found)) in wanted.iter().zip(found).enumerate() {
                compare(&format!("{path}[{index}]"), wanted, found, wrong);
            }
        }
        _ if pattern == value => {}
        _ => wrong.push(mismatch(path, pattern, value)),
    }
}

fn mismatch(path: &str, pattern: &Value, value: &Value) -> String {
    let path = if path.is_empty() { "." } else { path };
    format!("{path}: expected {pattern}, found {value}")
}

/// The checks of this module.
pub(crate) fn checks() -> Vec<Trial> {
    fn trial(name: &str, ok: impl FnOnce() -> bool + Send + 'static) -> Trial {
        let run = move || if ok() { Ok(()) } else { Err(Failed::from("the pattern is wrong")) };
        Trial::test(format!("pattern/{name}"), run)
    }
    fn fits(pattern: &str, value: &str) -> bool {
        let parse = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
        json(&parse(pattern), &parse(value)).is_empty()
    }
    vec![
        trial("a hole matches within a line", || {
            line("a[..]c", "abc") && line("[..]c", "c") && line("a", "a") && !line("a", "ab")
        }),
        trial("the last hole reaches the end", || {
            line("a[..]b", "abxb") && !line("a[..]b", "abx") && line("[..]x[..]x[..]", "xx")
        }),
        trial("text before and after a hole does not overlap", || !line("ab[..]ba", "aba")),
        trial("lines occur in order", || {
            in_order("a\nc\n", "a\nb\nc\n").is_ok()
                && in_order("c\na\n", "a\nb\nc\n").is_err()
                && in_order("a\na\n", "a\n").is_err()
        }),
        trial("(empty) is empty", || {
            in_order("(empty)\n", "").is_ok() && in_order("(empty)\n", "x\n").is_err()
        }),
        trial("whole text is exact", || {
            whole("a\nb\n", "a\nb\n").is_ok()
                && whole("a\n", "a\nb\n").is_err()
                && whole("a\n", "a").is_err()
                && whole("a\n\\ no newline at the end\n", "a").is_ok()
                && whole("a\n[...]\nb\n", "a\nx\ny\nb\n").is_ok()
                && whole("a\n[...]\nb\n", "a\nb\n").is_ok()
                && whole("", "").is_ok()
        }),
        trial("keys left out are free", || {
            fits(r#"{"a": 1}"#, r#"{"a": 1, "b": 2}"#) && !fits(r#"{"b": 1}"#, r#"{"a": 1}"#)
        }),
        trial("an array matches exactly unless it is open", || {
            fits("[1, 2]", "[1, 2]")
                && !fits("[1]", "[1, 2]")
                && fits(r#"[1, "[...]"]"#, "[1, 2]")
                && fits(r#"[1, "[...]"]"#, "[1]")
                && !fits(r#"[1, "[...]"]"#, "[]")
        }),
        trial("holes in JSON", || {
            fits(r#"{"a": "[..]"}"#, r#"{"a": null}"#)
                && !fits(r#"{"a": "[some]"}"#, r#"{"a": null}"#)
                && fits(r#"{"a": "x[..]z"}"#, r#"{"a": "xyz"}"#)
                && !fits(r#"{"a": "x[..]"}"#, r#"{"a": 1}"#)
        }),
        trial("an absent key", || {
            fits(r#"{"a": "[absent]"}"#, "{}") && !fits(r#"{"a": "[absent]"}"#, r#"{"a": 1}"#)
        }),
        trial("a mismatch names its path and both sides", || {
            let found =
                json(&serde_json::json!({"a": [{"b": 1}]}), &serde_json::json!({"a": [{"b": 2}]}));
            found == [".a[0].b: expected 1, found 2"]
        }),
    ]
}
