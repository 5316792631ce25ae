//! Reads JSON files of other programs key by key: a key that could change a result is either applied or rejected, never
//! silently ignored. longhaul-files(5) lists the keys.

use std::path::Path;

use serde_json::{Map, Value};

use crate::text::{quote, summary};
use crate::{Error, Result};

/// The treatment of a key. Null is always equivalent to a missing key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// Applied or checked by the reader of the file.
    Read,
    /// Ignored, because results do not depend on it.
    NoEffect,
    /// Only this value, written as JSON, is supported.
    Only(&'static str),
    /// Must be switched off: false, empty or "none".
    Off,
}

/// The known keys of a file.
pub type Keys = [(&'static str, Key)];

/// Checks the keys of `file`, which was read from `path`, against `known`.
///
/// Errors: 65 for an unsupported value, or for an unknown key that is not null.
pub fn check(path: &Path, file: &Map<String, Value>, known: &Keys) -> Result<()> {
    for (key, value) in file.iter().filter(|(_, value)| !value.is_null()) {
        let bad = |what: String| {
            let (path, key) = (path.display(), quote(key));
            Err(Error::data(format!("{path}: {key} {}: {what}", summary(value))))
        };
        match known.iter().find(|(name, _)| name == key).map(|(_, what)| *what) {
            Some(Key::Read | Key::NoEffect) => {}
            Some(Key::Only(only)) => {
                if serde_json::from_str::<Value>(only).is_ok_and(|only| only != *value) {
                    return bad(format!("only {only} is supported"));
                }
            }
            Some(Key::Off) if is_off(value) => {}
            Some(Key::Off) => return bad("it is not supported".into()),
            None => {
                let what =
                    "the key is not known and might change results; remove it if it does not";
                return bad(what.into());
            }
        }
    }
    Ok(())
}

fn is_off(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::String(text) => text.is_empty() || text == "none",
        Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn unknown_keys_and_other_values_are_refused() {
        let known: &Keys =
            &[("a", Key::Read), ("b", Key::NoEffect), ("c", Key::Only("false")), ("d", Key::Off)];
        let found = |file: Value| {
            let file = file.as_object().unwrap();
            check(Path::new("x.json"), file, known).map_err(|error| error.to_string())
        };
        for good in [json!({"a": 1, "b": [2], "c": false, "d": []}), json!({"c": null, "e": null})]
        {
            assert_eq!(found(good), Ok(()));
        }
        for (bad, text) in [
            (json!({"c": true}), "x.json: c true: only false is supported"),
            (json!({"d": ["z"]}), "x.json: d"),
            (json!({"e": 0}), "x.json: e 0: the key is not known"),
        ] {
            assert!(found(bad).unwrap_err().starts_with(text));
        }
    }
}
