//! Checks a value against its schema and collects every violation.
//!
//! Scalars are converted to the expected type ([`super::scalar`]). Unknown keys are reported and removed, so that the
//! remaining keys can still be checked.

use serde_json::{Map, Value};

use super::Violations;
use super::describe::{found, is_of_type};
use super::scalar;
use super::schema::{Bounds, Record, Schema, Shape};
use super::suggest::nearest;

/// Checks `value`, the whole configuration; `known` lists all keys of the schema ([`super::keys`]), for hints.
pub(super) fn check(value: &mut Value, schema: &Schema, known: &[String]) -> Violations {
    let mut walk = Walk { known, violations: Violations::new() };
    walk.value(value, schema, "");
    walk.violations
}

struct Walk<'a> {
    known: &'a [String],
    violations: Violations,
}

/// Returns the path of `key` inside `path`.
pub(super) fn join(path: &str, key: impl std::fmt::Display) -> String {
    if path.is_empty() { key.to_string() } else { format!("{path}.{key}") }
}

/// Calls `each` with a value and every value nested in it, each with its path. If `each` replaces a value, the new
/// value is descended into as well.
pub(super) fn visit(value: &mut Value, path: &str, each: &mut impl FnMut(&mut Value, &str)) {
    each(value, path);
    match value {
        Value::Array(list) => {
            for (at, item) in list.iter_mut().enumerate() {
                visit(item, &join(path, at), each);
            }
        }
        Value::Object(map) => {
            for (key, item) in map {
                visit(item, &join(path, key), each);
            }
        }
        _ => {}
    }
}

impl Walk<'_> {
    fn violation(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.violations.push((path.into(), message.into()));
    }

    fn value(&mut self, value: &mut Value, schema: &Schema, path: &str) {
        if value.is_null() && schema.nullable {
            return;
        }
        let converted = match &schema.shape {
            Shape::Flag => scalar::flag(value).map(Value::Bool),
            Shape::Integer(low, high) => scalar::integer(value)
                .filter(|number| (*low..=*high).contains(&to_i128(number)))
                .map(Value::Number),
            Shape::Number(bounds) => scalar::number(value)
                .filter(|number| bounds.hold(number.as_f64().unwrap_or(f64::NAN)))
                .map(Value::Number),
            _ => None,
        };
        if let Some(converted) = converted {
            *value = converted;
            return;
        }
        match (&schema.shape, &mut *value) {
            (Shape::Any, _) | (Shape::Text, Value::String(_)) => {}
            (Shape::Choice(words), Value::String(word)) if words.contains(word) => {}
            (Shape::List(items, low, high), Value::Array(list)) => {
                let length = list.len();
                if !(*low..=*high).contains(&length) {
                    self.violation(path, format!("expected {schema}; found {length} elements"));
                    return;
                }
                for (at, item) in list.iter_mut().enumerate() {
                    self.value(item, items, &join(path, at));
                }
            }
            (Shape::Map(items), Value::Object(map)) => {
                for (key, item) in map {
                    self.value(item, items, &join(path, key));
                }
            }
            (Shape::Record(record), Value::Object(map)) => self.record(map, record, None, path),
            (Shape::Tagged { tag, variants }, Value::Object(map)) => {
                self.tagged(map, tag, variants, path);
            }
            (Shape::Either(several), _) => self.either(value, schema, several, path),
            _ => self.wrong(value, schema, path),
        }
    }

    fn wrong(&mut self, value: &Value, schema: &Schema, path: &str) {
        let hint = match (&schema.shape, value) {
            (Shape::Text, Value::Number(_) | Value::Bool(_)) => {
                format!("; put it in quotes: \"{value}\"")
            }
            (Shape::Choice(words), Value::String(word)) => {
                let near = nearest(word, words.iter().map(String::as_str));
                near.map_or(String::new(), |near| format!("; did you mean {near}?"))
            }
            (Shape::Integer(_, high), _)
                if is_of_type(*high)
                    && scalar::integer(value).is_some_and(|n| to_i128(&n) > *high) =>
            {
                format!(", above the largest, {high}")
            }
            _ => String::new(),
        };
        self.violation(path, format!("expected {schema}; found {}{hint}", found(value)));
    }

    fn record(
        &mut self,
        map: &mut Map<String, Value>,
        record: &Record,
        tag: Option<&str>,
        path: &str,
    ) {
        let strangers: Vec<String> = map
            .keys()
            .filter(|key| record.field(key).is_none() && Some(key.as_str()) != tag)
            .cloned()
            .collect();
        for key in strangers {
            map.shift_remove(&key);
            let hint = self.hint(&key, record, map);
            self.violation(join(path, &key), format!("unknown key{hint}"));
        }
        for (name, schema, required) in &record.fields {
            if *required && !map.contains_key(name) {
                self.violation(join(path, name), format!("missing; it takes {schema}"));
            }
        }
        for (key, value) in map {
            if let Some(schema) = record.field(key) {
                self.value(value, schema, &join(path, key));
            }
        }
    }

    /// Suggests the nearest key of this mapping that is not set yet, else a key with the same name elsewhere.
    fn hint(&self, key: &str, record: &Record, map: &Map<String, Value>) -> String {
        let names = || record.fields.iter().map(|(name, ..)| name.as_str());
        if let Some(near) = nearest(key, names().filter(|name| !map.contains_key(*name))) {
            return format!("; did you mean {near}?");
        }
        let elsewhere = self.known.iter().find(|path| path.rsplit('.').next() == Some(key));
        match elsewhere {
            Some(path) => format!("; there is {path}"),
            None => format!("; known here: {}", names().collect::<Vec<_>>().join(", ")),
        }
    }

    fn tagged(
        &mut self,
        map: &mut Map<String, Value>,
        tag: &str,
        variants: &[(String, Record)],
        path: &str,
    ) {
        let words = variants.iter().map(|(word, _)| word.clone()).collect();
        let schema = Schema { nullable: false, shape: Shape::Choice(words), ..Schema::any() };
        let Some(value) = map.get(tag) else {
            return self.violation(join(path, tag), format!("missing; it takes {schema}"));
        };
        match variants.iter().find(|(word, _)| value == word.as_str()) {
            Some((_, record)) => self.record(map, record, Some(tag), path),
            None => self.wrong(value, &schema, &join(path, tag)),
        }
    }

    /// Applies the first alternative without a violation. If there is none, but only one alternative has the right type
    /// (mapping, list), reports its violations, because they are more helpful than "none of them".
    fn either(&mut self, value: &mut Value, schema: &Schema, several: &[Schema], path: &str) {
        let mut tried: Vec<Violations> = Vec::new();
        for one in several {
            let mut copy = value.clone();
            let mut walk = Walk { known: self.known, violations: Violations::new() };
            walk.value(&mut copy, one, path);
            if walk.violations.is_empty() {
                *value = copy;
                return;
            }
            tried.push(walk.violations);
        }
        let deeper =
            |violations: &Violations| violations.iter().all(|(key, _)| key.len() > path.len());
        let mut close: Vec<Violations> = tried.into_iter().filter(deeper).collect();
        match close.len() {
            1 => self.violations.extend(close.remove(0)),
            _ => self.wrong(value, schema, path),
        }
    }
}

impl Bounds {
    fn hold(&self, x: f64) -> bool {
        self.minimum.is_none_or(|bound| x >= bound)
            && self.above.is_none_or(|bound| x > bound)
            && self.maximum.is_none_or(|bound| x <= bound)
            && self.below.is_none_or(|bound| x < bound)
    }
}

fn to_i128(number: &serde_json::Number) -> i128 {
    number.as_i64().map_or_else(|| number.as_u64().map_or(i128::MAX, i128::from), i128::from)
}
