//! JSON without loss: numbers keep their digits as written, and duplicate keys are found.
//!
//! `serde_json` stores a number as its text (`arbitrary_precision`); only an exponent is rewritten,
//! from `1E3` to `1e+3`. Two paths do not handle such numbers, and this module replaces both:
//! serde's buffer for flattened fields and tagged enums, and reading a type out of a [`Value`].

use std::collections::HashSet;
use std::fmt;

use serde::de::value::EnumAccessDeserializer;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error as _, IntoDeserializer,
    MapAccess, SeqAccess, VariantAccess, Visitor,
};
use serde::{Deserialize, Serialize};
use serde_json::{Error, Value};

/// Reads a flattened field: `#[serde(flatten, deserialize_with = "super::json::flattened")]`.
///
/// Serde buffers the keys of a flattened field and cannot read a fraction from that buffer. A
/// [`Value`] can.
pub(crate) fn flattened<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    let value = Value::deserialize(deserializer)?;
    serde_json::from_value(value).map_err(D::Error::custom)
}

/// Reads a type out of a value, including every number that the type keeps as a [`Value`].
///
/// `serde_json` hands `-0` on as the integer 0. Such a value is read from its text.
pub(crate) fn from_value<T: DeserializeOwned>(value: &Value) -> Result<T, Error> {
    match has_negative_zero(value) {
        true => serde_json::from_str(&value.to_string()),
        false => T::deserialize(value),
    }
}

fn has_negative_zero(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.as_str() == "-0",
        Value::Array(items) => items.iter().any(has_negative_zero),
        Value::Object(map) => map.values().any(has_negative_zero),
        _ => false,
    }
}

/// Writes an enum of structs as one flat object: `{"event":"ended","step":"A"}` for the variant
/// `ended` under the tag `event`.
pub(crate) fn to_tagged(tag: &str, value: &impl Serialize) -> Result<String, Error> {
    let text = serde_json::to_string(value)?;
    let variant = text.strip_prefix('{').and_then(|text| text.strip_suffix("}}"));
    Ok(match variant.and_then(|text| text.split_once(":{")) {
        Some((name, "")) => format!("{{\"{tag}\":{name}}}"),
        Some((name, fields)) => format!("{{\"{tag}\":{name},{fields}}}"),
        None => format!("{{\"{tag}\":{text}}}"),
    })
}

/// Reads what [`to_tagged`] writes, given the name of the variant. Ignores keys that the variant
/// does not have.
pub(crate) fn from_tagged<T: DeserializeOwned>(name: &str, json: &[u8]) -> Result<T, Error> {
    T::deserialize(EnumAccessDeserializer::new(Tagged { name, json }))
}

struct Tagged<'a> {
    name: &'a str,
    json: &'a [u8],
}

impl<'de> EnumAccess<'de> for Tagged<'_> {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Error> {
        let name = self.name.to_owned().into_deserializer();
        Ok((seed.deserialize::<serde::de::value::StringDeserializer<Error>>(name)?, self))
    }
}

impl<'de> VariantAccess<'de> for Tagged<'_> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, _: T) -> Result<T::Value, Error> {
        Err(Error::custom("only structs can be written flat"))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, _: V) -> Result<V::Value, Error> {
        Err(Error::custom("only structs can be written flat"))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let mut reader = serde_json::Deserializer::from_reader(self.json);
        reader.deserialize_struct("", fields, visitor)
    }
}

/// Returns a key that some object in a JSON text has twice. `None` for text that is not JSON.
pub(crate) fn duplicate_key(json: &str) -> Option<String> {
    let mut found = None;
    let mut reader = serde_json::Deserializer::from_str(json);
    // Stops at the first duplicate.
    let _ = reader.deserialize_any(Keys(&mut found));
    found
}

/// Visits a value and stores the first key that an object has twice.
struct Keys<'f>(&'f mut Option<String>);

impl<'de> DeserializeSeed<'de> for Keys<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Keys<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element_seed(Keys(self.0))?.is_some() {}
        Ok(())
    }

    /// Also receives numbers that are not machine integers, as a map with one key.
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut keys = HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            if !keys.insert(key.clone()) {
                *self.0 = Some(key);
                return Err(A::Error::custom("a key is there twice"));
            }
            map.next_value_seed(Keys(self.0))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const NUMBERS: &str = "[-0,1e+3,1.5e-400,0.1000,1.50,123456789012345678901234567890,7,-1,2.5]";

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Event {
        Ended { count: u64, json: Value },
        Empty { reason: Option<String> },
        Woke,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Outer {
        before: i64,
        #[serde(flatten, deserialize_with = "flattened")]
        inner: Inner,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Inner {
        count: u64,
        share: f64,
    }

    #[test]
    fn numbers_keep_their_digits() {
        let value: Value = serde_json::from_str(NUMBERS).unwrap();
        assert_eq!(value.to_string(), NUMBERS);
        assert_eq!(from_value::<Value>(&value).unwrap().to_string(), NUMBERS);
        assert_eq!(json!({ "a": value })["a"].to_string(), NUMBERS);
    }

    #[test]
    fn enums_are_written_flat_and_read_back() {
        let value: Value = serde_json::from_str(NUMBERS).unwrap();
        for (event, name, wanted) in [
            (
                Event::Ended { count: 3, json: value },
                "ended",
                format!(r#"{{"event":"ended","count":3,"json":{NUMBERS}}}"#),
            ),
            (
                Event::Empty { reason: None },
                "empty",
                r#"{"event":"empty","reason":null}"#.to_owned(),
            ),
            (Event::Woke, "woke", r#"{"event":"woke"}"#.to_owned()),
        ] {
            let text = to_tagged("event", &event).unwrap();
            assert_eq!(text, wanted);
            let back: Event = from_tagged(name, text.as_bytes()).unwrap();
            assert_eq!(back, event);
        }
        assert!(from_tagged::<Event>("ended", br#"{"count":-1,"json":1}"#).is_err());
        assert!(from_tagged::<Event>("other", b"{}").is_err());
    }

    #[test]
    fn flattened_numbers_are_read() {
        let outer = Outer { before: -3, inner: Inner { count: u64::MAX, share: 0.25 } };
        let text = serde_json::to_string(&outer).unwrap();
        assert_eq!(serde_json::from_str::<Outer>(&text).unwrap(), outer);
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(from_value::<Outer>(&value).unwrap(), outer);
    }

    #[test]
    fn a_key_that_is_there_twice_is_found() {
        for (json, wanted) in [
            (r#"{"a": 1, "b": {"a": 2}, "c": [{"a": 3}, {"a": 4}]}"#, None),
            (r#"{"a": "b", "b": "a", "c": ["a", "a", null, true, -1.5e9]}"#, None),
            (r#"{"a": 1, "b": 2, "\u0061": 3}"#, Some("a")),
            (r#"[{"b": {"c": 1, "c": 1}}]"#, Some("c")),
            (r#"{"a": "#, None),
        ] {
            assert_eq!(duplicate_key(json).as_deref(), wanted, "{json}");
        }
    }
}
