//! JSON as written, for outputs that stay text. A [`Value`] also keeps every digit of a number, but
//! prints its exponent as `e+3`.
//!
//! **Invariant:** every input has been parsed as JSON before; for any other text, the functions
//! only guarantee to terminate.

use serde_json::Value;

/// Returns the JSON without whitespace, with its strings and numbers mapped. `text` maps a decoded
/// string; `number` maps a number as written, and its result is inserted verbatim.
pub(crate) fn compact(
    json: &str,
    text: impl Fn(String) -> String,
    number: impl Fn(&str) -> String,
) -> String {
    let mut out = String::with_capacity(json.len());
    let mut left = json.trim_start();
    while let Some(token) = token(left) {
        match token.as_bytes()[0] {
            b'"' => match serde_json::from_str(token) {
                Ok(said) => out.push_str(&Value::String(text(said)).to_string()),
                Err(_) => out.push_str(token),
            },
            b'-' | b'0'..=b'9' => out.push_str(&number(token)),
            _ => out.push_str(token),
        }
        left = left[token.len()..].trim_start();
    }
    out
}

/// Returns the value of a key of an object as written. The last of several equal keys wins.
pub(crate) fn field<'j>(json: &'j str, name: &str) -> Option<&'j str> {
    let mut found = None;
    let mut left = json.trim_start().strip_prefix('{')?.trim_start();
    while left.starts_with('"') {
        let key = token(left)?;
        left = left[key.len()..].trim_start().strip_prefix(':')?.trim_start();
        let length = length(left)?;
        if serde_json::from_str::<String>(key).is_ok_and(|key| key == name) {
            found = Some(&left[..length]);
        }
        left = left[length..].trim_start();
        left = left.strip_prefix(',').unwrap_or_default().trim_start();
    }
    found
}

/// Returns the length of the value at the start of a text.
fn length(json: &str) -> Option<usize> {
    let (mut depth, mut at) = (0, 0);
    loop {
        at += json[at..].len() - json[at..].trim_start().len();
        let token = token(&json[at..])?;
        match token {
            "{" | "[" => depth += 1,
            "}" | "]" => depth -= 1,
            _ => {}
        }
        at += token.len();
        if depth == 0 {
            return Some(at);
        }
    }
}

/// Returns the token at the start of a text.
fn token(json: &str) -> Option<&str> {
    let end = match json.as_bytes().first()? {
        b'{' | b'}' | b'[' | b']' | b',' | b':' => 1,
        b'"' => {
            let mut escaped = false;
            let closes = |byte: u8| match byte {
                _ if escaped => {
                    escaped = false;
                    false
                }
                b'\\' => {
                    escaped = true;
                    false
                }
                byte => byte == b'"',
            };
            json.bytes().skip(1).position(closes).map_or(json.len(), |at| at + 2)
        }
        _ => json
            .find(|c: char| c.is_whitespace() || matches!(c, ',' | ':' | '}' | ']'))
            .unwrap_or(json.len()),
    };
    json.get(..end).filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::random::Random;

    fn same(json: &str) -> String {
        compact(json, |text| text, str::to_owned)
    }

    #[test]
    fn white_space_goes_and_digits_stay() {
        for (json, wanted) in [
            (" { \"a\" : [ 1 , 2.50 ] }\n", "{\"a\":[1,2.50]}"),
            ("123456789012345678901234567890", "123456789012345678901234567890"),
            ("[-0, 1e3, 1E+400, 0.1000]", "[-0,1e3,1E+400,0.1000]"),
            (r#"{"a b": " \" \\", "c": "\u00e9\/"}"#, r#"{"a b":" \" \\","c":"é/"}"#),
            ("[true, null, false, {}]", "[true,null,false,{}]"),
            ("\"\"", "\"\""),
        ] {
            assert_eq!(same(json), wanted, "{json}");
        }
        let hidden = compact(
            r#"{"p": "pass", "n": 12}"#,
            |text| text.replace("pass", "***"),
            |number| if number == "12" { "\"***\"".into() } else { number.into() },
        );
        assert_eq!(hidden, r#"{"p":"***","n":"***"}"#);
    }

    #[test]
    fn a_field_is_found_as_it_was_written() {
        let json =
            r#" {"a": 1.0, "b" : {"a": [2, "}"]}, "\u0063": "\"", "a": 10000000000000000000000}"#;
        for (name, wanted) in [
            ("a", Some("10000000000000000000000")),
            ("b", Some(r#"{"a": [2, "}"]}"#)),
            ("c", Some(r#""\"""#)),
            ("d", None),
        ] {
            assert_eq!(field(json, name), wanted, "{name}");
        }
        assert_eq!(field("{}", "a"), None);
        assert_eq!(field("[1]", "a"), None);
    }

    #[test]
    fn whatever_is_written_comes_to_an_end() {
        const SCRAPS: [&str; 16] =
            ["{", "}", "[", "]", ",", ":", "\"", "\\", "a", "1", "-", ".", " ", "é", "\"a\"", "\n"];
        let mut random = Random::new(7);
        let mut read = 0;
        for _ in 0..20_000 {
            let json: String =
                (0..random.below(12)).map(|_| SCRAPS[random.below(SCRAPS.len())]).collect();
            let (short, _) = (same(&json), field(&json, "a"));
            let Ok(value) = serde_json::from_str::<Value>(&json) else { continue };
            read += 1;
            assert_eq!(serde_json::from_str::<Value>(&short).unwrap(), value, "{json}");
            let inner = field(&json, "a").map(|found| serde_json::from_str(found).unwrap());
            assert_eq!(inner.as_ref(), value.get("a").filter(|_| value.is_object()), "{json}");
        }
        assert!(read > 100, "{read}");
    }
}
