//! Sealed documents: JSON objects that prove they are whole.
//!
//! The last member, `seal`, is the SHA-256 of all before it. A file that was cut off, or whose
//! content never reached the medium though its name did, has no right seal and is never believed.

use serde_json::{Map, Value};

use crate::digest::sha256;

const KEY: &str = ",\"seal\":\"";
const TRAILER_LEN: usize = KEY.len() + 64 + 2;

/// Writes an object on one line with its seal.
pub fn seal(object: &Map<String, Value>) -> Vec<u8> {
    let mut text = serde_json::to_vec(object).expect("a map is always JSON");
    text.pop();
    let seal = sha256(&text);
    text.extend_from_slice(format!("{KEY}{seal}\"}}\n").as_bytes());
    text
}

/// Reads a sealed object; nothing, if it is not one or not whole.
pub fn unseal(bytes: &[u8]) -> Option<Map<String, Value>> {
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
        assert_eq!(unseal(&bytes), Some(map));
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
