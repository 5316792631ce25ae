//! Parses YAML into a plain value within limits: no tags, bounded size, depth and number of values.

use std::cell::Cell;
use std::fmt;

use super::describe::found;
use crate::text::quote;
use serde::de::{self, DeserializeSeed, EnumAccess, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Maximum file size in bytes.
pub(super) const MAX_BYTES: u64 = 1 << 20;
/// Maximum number of values and keys in one file, after aliases are expanded.
const MAX_VALUES: usize = 100_000;
/// Maximum number of brackets that are open at the same time, including brackets in strings and comments. The parser
/// takes time proportional to the square of the nesting depth.
const MAX_OPEN_BRACKETS: usize = 256;

/// Parses one document; an empty document is null. Errors: a message with the problem and its position.
///
/// Keys are strings (`1: x` has the key "1"); a duplicate key is an error. Numbers that JSON cannot represent (`.nan`,
/// `.inf`) remain strings and are rejected where a number is expected.
pub(super) fn parse(text: &str) -> Result<Value, String> {
    if text.len() as u64 > MAX_BYTES {
        return Err(format!("larger than {MAX_BYTES} bytes: this is not a configuration file"));
    }
    let mut open = 0_usize;
    for (number, line) in text.lines().enumerate() {
        for byte in line.bytes() {
            match byte {
                b'[' | b'{' => open += 1,
                b']' | b'}' => open = open.saturating_sub(1),
                _ => {}
            }
        }
        if open > MAX_OPEN_BRACKETS {
            return Err(format!(
                "more than {MAX_OPEN_BRACKETS} open brackets at line {}",
                number + 1
            ));
        }
    }
    let left = Cell::new(MAX_VALUES);
    let reader = serde_yaml::Deserializer::from_str(text);
    CountedValueSeed { left: &left }.deserialize(reader).map_err(|error| {
        let line = error.location().and_then(|at| text.lines().nth(at.line().saturating_sub(1)));
        // YAML parses the brace of a variable as the start of a mapping.
        let hint = match line {
            Some(line) if line.contains("${") => {
                "; inside {…} and […], put a value with ${…} in quotes"
            }
            _ => "",
        };
        format!("{error}{hint}")
    })
}

/// Reads any value and counts it towards [`MAX_VALUES`].
#[derive(Clone, Copy)]
struct CountedValueSeed<'a> {
    left: &'a Cell<usize>,
}

impl<'de> DeserializeSeed<'de> for CountedValueSeed<'_> {
    type Value = Value;
    fn deserialize<D: de::Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        let Some(left) = self.left.get().checked_sub(1) else {
            return Err(de::Error::custom(format!("more than {MAX_VALUES} values")));
        };
        self.left.set(left);
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for CountedValueSeed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a value")
    }
    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_i128<E>(self, value: i128) -> Result<Value, E> {
        Ok(Value::String(value.to_string()))
    }
    fn visit_u128<E>(self, value: u128) -> Result<Value, E> {
        Ok(Value::String(value.to_string()))
    }
    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        let text = match value {
            f64::INFINITY => ".inf",
            f64::NEG_INFINITY => "-.inf",
            _ => ".nan",
        };
        Ok(Number::from_f64(value).map_or_else(|| text.into(), Value::Number))
    }
    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_enum<A: EnumAccess<'de>>(self, _: A) -> Result<Value, A::Error> {
        Err(de::Error::custom("YAML tags (!name) are not supported"))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key_seed(self)? {
            let key = key_of(key)?;
            let value = entries.next_value_seed(self)?;
            if map.contains_key(&key) {
                let key = quote(&key);
                return Err(de::Error::custom(format!("the key \"{key}\" is given twice")));
            }
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

/// Returns the text of a key: a string as it is, a number or boolean as printed.
fn key_of<E: de::Error>(key: Value) -> Result<String, E> {
    match key {
        Value::String(text) => Ok(text),
        Value::Number(_) | Value::Bool(_) => Ok(key.to_string()),
        other => Err(E::custom(format!("a key must be text, not {}", found(&other)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_as_people_write_them() {
        let text = "{a: 1e-4, b: 600e3, c: 0x10, d: -7, e: .5, f: 'x', g: ~, h: true, 1: .inf}";
        let value = parse(text).unwrap();
        let expected = json!({
            "a": 1e-4, "b": 600_000.0, "c": 16, "d": -7, "e": 0.5, "f": "x", "g": null, "h": true,
            "1": ".inf",
        });
        assert_eq!(value, expected);
        assert_eq!(parse("# nothing\n").unwrap(), Value::Null);
    }

    #[test]
    fn what_is_refused() {
        let cases = [
            ("a: !foo 1", "tags"),
            ("a: 1\na: 2", "twice"),
            ("a: [1,", "line 2"),
            ("? [1, 2]\n: 3", "a key"),
            ("a: 1\n---\nb: 2", "document"),
        ];
        for (text, word) in cases {
            let error = parse(text).unwrap_err();
            assert!(error.contains(word), "{text:?}: {error}");
        }
    }

    #[test]
    fn bombs_are_bounded() {
        let mut laughs = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for i in 1..12 {
            let before = format!("*a{}", i - 1);
            let items = vec![before; 10].join(", ");
            laughs += &format!("a{i}: &a{i} [{items}]\n");
        }
        assert!(parse(&laughs).is_err());
        for open in ["[", "{", "{\"a\":", "[{a: "] {
            assert!(parse(&open.repeat(100_000)).unwrap_err().contains("brackets"), "{open}");
        }
        assert!(parse(&format!("[{}]", "1,".repeat(200_000))).unwrap_err().contains("values"));
        assert!(parse(&" ".repeat(2 << 20)).unwrap_err().contains("bytes"));
    }
}
