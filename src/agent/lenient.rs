//! Reads JSON with small errors. An answer that was paid for is not rejected because of half a
//! surrogate pair in a denial or a number that is out of range.

use serde_json::Value;

/// Maximum depth of values. Deeper values become `null`; the parser itself fails at 128.
const DEPTH: usize = 100;

/// Parses a line as JSON: strictly, or else with invalid parts replaced.
pub(super) fn read(line: &str) -> Option<Value> {
    let line = line.trim_start_matches('\u{feff}').trim();
    match serde_json::from_str(line) {
        Ok(value) => Some(value),
        Err(_) if line.starts_with(['{', '[']) => serde_json::from_str(&mended(line)).ok(),
        Err(_) => None,
    }
}

/// Returns the text with invalid parts removed or replaced.
fn mended(text: &str) -> String {
    let (mut out, mut rest, mut depth) = (String::with_capacity(text.len()), text, 0_usize);
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '"' => string(rest, if depth > DEPTH { None } else { Some(&mut out) }),
            '-' | '+' | '.' | '0'..='9' | 'A'..='Z' | 'a'..='z' => {
                let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && !"+-.".contains(c));
                let word = &rest[..end.unwrap_or(rest.len())];
                if depth <= DEPTH {
                    out.push_str(if is_known(word) { word } else { "null" });
                }
                word.len()
            }
            other => {
                let deep = depth > DEPTH;
                match other {
                    '{' | '[' => depth += 1,
                    '}' | ']' => depth = depth.saturating_sub(1),
                    _ => {}
                }
                match (deep, depth > DEPTH) {
                    (false, true) => out.push_str("null"),
                    (false, false) => out.push(other),
                    (true, _) => {}
                }
                other.len_utf8()
            }
        };
        rest = &rest[length..];
    }
    out
}

/// Returns true if a word outside strings is valid JSON, including a number in range.
fn is_known(word: &str) -> bool {
    matches!(word, "true" | "false" | "null")
        || word.starts_with(|c: char| c == '-' || c.is_ascii_digit())
            && word.parse::<f64>().is_ok_and(f64::is_finite)
}

/// Copies the string at the start of a text, replacing lone surrogates and unescaped control
/// characters. Returns its length.
fn string(text: &str, mut out: Option<&mut String>) -> usize {
    let mut put = |part: &str| out.iter_mut().for_each(|out| out.push_str(part));
    put("\"");
    let mut at = 1;
    while let Some(letter) = text[at..].chars().next() {
        let mut length = letter.len_utf8();
        match letter {
            '"' => {
                put("\"");
                return at + 1;
            }
            '\\' => {
                let (part, escaped) = escape(&text[at..]);
                put(part);
                length = escaped;
            }
            letter if letter.is_control() => put("\\ufffd"),
            _ => put(&text[at..at + length]),
        }
        at += length;
    }
    at
}

/// Returns a valid form of an escape sequence, and its length in the text.
fn escape(text: &str) -> (&str, usize) {
    let unit = |at: usize| {
        let digits = text.get(at..at + 6)?.strip_prefix("\\u")?;
        u32::from_str_radix(digits, 16).ok()
    };
    match (unit(0), unit(6)) {
        (Some(0xd800..0xdc00), Some(0xdc00..0xe000)) => (&text[..12], 12),
        (Some(0xd800..0xe000), _) => ("\\ufffd", 6),
        (Some(_), _) => (&text[..6], 6),
        (None, _) => {
            let length = 1 + text[1..].chars().next().map_or(0, char::len_utf8);
            (&text[..length], length)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_nearly_json_is_read() {
        assert_eq!(read("\u{feff}{\"a\":1} "), Some(json!({ "a": 1 })));
        let halves = r#"{"a":"x\ud83d b","c":"\udc00","d":"\ud83d\ude00 \"\\","e":"\ud83d\ud83d"}"#;
        let read_halves = json!({
            "a": "x\u{fffd} b", "c": "\u{fffd}", "d": "😀 \"\\", "e": "\u{fffd}\u{fffd}"
        });
        assert_eq!(read(halves), Some(read_halves));
        let numbers = r#"{"a":1e400,"b":-1e400,"c":NaN,"d":-Infinity,"e":12.5,"f":true}"#;
        let read_numbers = json!({
            "a": null, "b": null, "c": null, "d": null, "e": 12.5, "f": true
        });
        assert_eq!(read(numbers), Some(read_numbers));
        assert_eq!(read("{\"a\":\"x\ty\"}"), Some(json!({ "a": "x\u{fffd}y" })));
        let deep = format!("{{\"a\":{}{},\"b\":\"]\"}}", "[".repeat(500), "]".repeat(500));
        assert_eq!(read(&deep).unwrap()["b"], "]");
        let strings = format!("{{\"a\":{}\"\\\"]\"{}}}", "[".repeat(200), "]".repeat(200));
        assert!(read(&strings).is_some());
    }

    #[test]
    fn what_is_cut_or_no_json_is_not_read() {
        let whole = r#"{"a":["\ud83d",1e400,{"b":"c"}]}"#;
        for at in 0..whole.len() {
            assert_eq!(read(&whole[..at]), None, "{at}");
        }
        let texts = ["", "hello", "[API Error: terminated]", "{a}", "\"\\", "{\"\\", "{\"\\u12"];
        for text in texts {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
