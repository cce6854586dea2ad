//! Sealed documents: JSON objects that prove that they are complete.
//!
//! The last member, `seal`, is the SHA-256 of all bytes before it. A truncated file, or one whose
//! name reached the medium but whose content did not, has no valid seal and is rejected.

use serde::Serializer;
use serde_json::{Map, Value};

use crate::base::digest::sha256;

const KEY: &str = ",\"seal\":\"";
const TRAILER_LEN: usize = KEY.len() + 64 + 2;

/// Serializes an object on one line, with its seal.
pub(crate) fn seal(object: &Map<String, Value>) -> Vec<u8> {
    seal_with(object, &[])
}

/// Like [`seal`], but the members in `over` replace the object's own.
pub(crate) fn seal_with(object: &Map<String, Value>, over: &[(&str, Value)]) -> Vec<u8> {
    let own = object.iter().filter(|(key, _)| !over.iter().any(|(other, _)| other == key));
    let own = own.map(|(key, value)| (key.as_str(), value));
    let mut text = Vec::with_capacity(1024);
    serde_json::Serializer::new(&mut text)
        .collect_map(own.chain(over.iter().map(|(key, value)| (*key, value))))
        .expect("a map is always JSON");
    text.pop();
    let seal = sha256(&text);
    text.extend_from_slice(format!("{KEY}{seal}\"}}\n").as_bytes());
    text
}

/// Parses a sealed object. Returns `None` if the bytes are not one or are incomplete.
pub(crate) fn unseal(bytes: &[u8]) -> Option<Map<String, Value>> {
    let line = bytes.strip_suffix(b"\n")?;
    let (head, trailer) = line.split_at_checked(line.len().checked_sub(TRAILER_LEN)?)?;
    if trailer != format!("{KEY}{}\"}}", sha256(head)).as_bytes() {
        return None;
    }
    match serde_json::from_slice(line).ok()? {
        Value::Object(mut map) => {
            map.shift_remove("seal");
            Some(map)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_a_whole_document_is_believed() {
        let Value::Object(map) = json!({ "schema": "task/v1", "n": 1, "text": "é\n" }) else {
            unreachable!()
        };
        let bytes = seal(&map);
        assert_eq!(unseal(&bytes), Some(map.clone()));
        let over = unseal(&seal_with(&map, &[("n", 2.into()), ("m", 3.into())])).unwrap();
        assert_eq!(
            Value::Object(over),
            json!({ "schema": "task/v1", "text": "é\n", "n": 2, "m": 3 })
        );
        for cut in 0..bytes.len() {
            assert_eq!(unseal(&bytes[..cut]), None, "cut at {cut}");
        }
        for place in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[place] ^= 1;
            assert_eq!(unseal(&changed), None, "changed at {place}");
        }
    }
}
