//! Merges files and overrides, and remembers the source of each value.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::check::join;
use super::describe::found;
use super::schema::Schema;

/// The layers merged so far.
pub(super) struct Layers<'a> {
    /// The merged value, a mapping.
    pub value: Value,
    schema: &'a Schema,
    sources: BTreeMap<String, String>,
}

impl<'a> Layers<'a> {
    /// Creates an empty configuration with the given schema.
    pub fn new(schema: &'a Schema) -> Self {
        Self { value: Value::Object(Map::new()), schema, sources: BTreeMap::new() }
    }

    /// Merges a file on top: mappings are merged key by key, and all other values are replaced.
    ///
    /// A mapping whose tag (`kind`) changes is also replaced as a whole, because the keys of the old kind do not apply.
    pub fn add(&mut self, later: Value, source: &str) {
        self.sources.entry(String::new()).or_insert_with(|| source.into());
        let mut value = std::mem::take(&mut self.value);
        self.merge(&mut value, later, Some(self.schema), "", source);
        self.value = value;
    }

    /// Sets `value` at `path` (`model.backbone.hidden`, `schedule.0.kind`). Errors: a message that explains why the
    /// path does not exist.
    pub fn set(&mut self, path: &str, value: Value, source: &str) -> Result<(), String> {
        let keys: Vec<&str> = path.split('.').collect();
        if keys.iter().any(|key| key.is_empty()) {
            return Err("write it as KEY=VALUE, with dots between keys: model.hidden=64".into());
        }
        let mut root = std::mem::take(&mut self.value);
        let done = self.set_in(&mut root, &keys, value, Some(self.schema), "", source);
        self.value = root;
        done
    }

    /// Returns the source of the value at `path`, or of the nearest enclosing mapping.
    pub fn source(&self, path: &str) -> String {
        let mut path = path;
        loop {
            if let Some(source) = self.sources.get(path) {
                return source.clone();
            }
            if path.is_empty() {
                return String::new();
            }
            path = path.rfind('.').map_or("", |dot| &path[..dot]);
        }
    }

    fn merge(
        &mut self,
        below: &mut Value,
        above: Value,
        schema: Option<&Schema>,
        path: &str,
        source: &str,
    ) {
        match (below, above) {
            (Value::Object(below), Value::Object(above)) => {
                if let Some(tag) = schema.and_then(Schema::tag)
                    && above.contains_key(tag)
                    && below.get(tag) != above.get(tag)
                {
                    below.clear();
                    self.note(path, source);
                }
                let kind = schema.and_then(Schema::tag);
                let word = kind.and_then(|tag| Some((tag, above.get(tag).or(below.get(tag))?)));
                let word = word.map(|(tag, word)| (tag.to_string(), word.clone()));
                let whole = Value::Object(word.into_iter().collect());
                for (key, value) in above {
                    let path = join(path, &key);
                    let schema = schema.and_then(|schema| schema.child(&whole, &key));
                    match below.get_mut(&key) {
                        Some(old) => self.merge(old, value, schema, &path, source),
                        None => {
                            self.note(&path, source);
                            below.insert(key, value);
                        }
                    }
                }
            }
            (below, above) => {
                self.note(path, source);
                *below = above;
            }
        }
    }

    fn set_in(
        &mut self,
        at: &mut Value,
        keys: &[&str],
        value: Value,
        schema: Option<&Schema>,
        path: &str,
        source: &str,
    ) -> Result<(), String> {
        let [key, rest @ ..] = keys else {
            self.merge(at, value, schema, path, source);
            return Ok(());
        };
        let deeper = join(path, key);
        if let Value::Array(list) = at {
            let length = list.len();
            let Some(item) = key.parse().ok().and_then(|index: usize| list.get_mut(index)) else {
                return Err(format!(
                    "{path} is a list of {length}, numbered from 0: no {key} in it"
                ));
            };
            let schema = schema.and_then(|schema| schema.child(&Value::Null, key));
            return self.set_in(item, rest, value, schema, &deeper, source);
        }
        if at.is_null() {
            *at = Value::Object(Map::new());
        }
        if !at.is_object() {
            return Err(format!("{path} is {}, it has no keys", found(at)));
        }
        if rest.is_empty() {
            // Treat it as a file with one key, so that the merge rules apply.
            let one = Value::Object(Map::from_iter([(key.to_string(), value)]));
            self.merge(at, one, schema, path, source);
            return Ok(());
        }
        let schema = schema.and_then(|schema| schema.child(at, key));
        match at.as_object_mut() {
            Some(map) => {
                let next = map.entry(key.to_string()).or_insert(Value::Null);
                self.set_in(next, rest, value, schema, &deeper, source)
            }
            None => Ok(()),
        }
    }

    /// Records that everything at and below `path` now comes from `source`.
    fn note(&mut self, path: &str, source: &str) {
        let below = format!("{path}.");
        self.sources.retain(|known, _| path.is_empty() || !known.starts_with(&below));
        self.sources.insert(path.into(), source.into());
    }
}
