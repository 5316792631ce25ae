//! Single keys of a configuration for which only the JSON Schema is known, such as the keys that a search varies.

use serde_json::Value;

use super::check::check;
use super::schema::{Schema, Shape};
use super::suggest::nearest;
use super::{derive, keys};

/// The configuration keys in a JSON Schema, as printed by `train-stage TASK --schema`.
pub struct KeySchema {
    schema: Schema,
    known: Vec<String>,
}

impl KeySchema {
    /// Reads the keys of a schema.
    pub fn new(json: &Value) -> Self {
        let schema = derive::schema(json);
        let known = keys::of_schema(&schema).into_iter().map(|key| plain(&key.path)).collect();
        Self { schema, known }
    }

    /// Checks that the configuration has the key `path` and that it accepts all `values`; otherwise returns a message.
    /// If only some variants of a section have the key, each value must be accepted by one of them.
    pub fn check(&self, path: &str, values: &[Value]) -> Result<(), String> {
        let names: Vec<&str> = path.split('.').collect();
        let mut found = Vec::new();
        descend(&self.schema, &names, &mut found);
        if found.is_empty() {
            let near = nearest(path, self.known.iter().map(String::as_str));
            let last = names.last().copied().unwrap_or_default();
            let elsewhere = self.known.iter().find(|key| key.rsplit('.').next() == Some(last));
            let hint = near.or(elsewhere.map(String::as_str));
            let hint = hint.map_or(String::new(), |key| format!("; did you mean {key}?"));
            return Err(format!("the configuration has no such key{hint}"));
        }
        for value in values {
            let refusals = found.iter().map(|schema| check(&mut value.clone(), schema, &[]));
            let first = refusals.map(|violations| violations.into_iter().next());
            let each: Option<Vec<_>> = first.collect();
            if let Some((_, text)) = each.into_iter().flatten().next() {
                return Err(format!("{value}: {text}"));
            }
        }
        Ok(())
    }
}

/// Converts a path of [`keys`] to a plain path: without the names of variants, and with the index 0 in lists.
fn plain(path: &str) -> String {
    let mut parts = path.split('[');
    let mut text = parts.next().unwrap_or_default().to_string();
    for part in parts {
        let (inside, rest) = part.split_once(']').unwrap_or((part, ""));
        if inside.is_empty() {
            text += ".0";
        }
        text += rest;
    }
    text
}

/// Adds the schemas of the value at the path `names`, one for each alternative that has it.
fn descend(schema: &Schema, names: &[&str], found: &mut Vec<Schema>) {
    let Some((name, rest)) = names.split_first() else {
        return found.push(schema.clone());
    };
    match &schema.shape {
        Shape::Any => found.push(schema.clone()),
        Shape::Record(record) => {
            record.field(name).into_iter().for_each(|field| descend(field, rest, found));
        }
        Shape::Tagged { tag, variants } if name == tag && rest.is_empty() => {
            let words = variants.iter().map(|(word, _)| word.clone()).collect();
            found.push(Schema { nullable: false, shape: Shape::Choice(words), ..Schema::any() });
        }
        Shape::Tagged { variants, .. } => {
            let fields = variants.iter().filter_map(|(_, record)| record.field(name));
            fields.for_each(|field| descend(field, rest, found));
        }
        Shape::List(items, ..) if name.parse::<usize>().is_ok() => descend(items, rest, found),
        Shape::Map(items) => descend(items, rest, found),
        Shape::Either(several) => several.iter().for_each(|one| descend(one, names, found)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[derive(Default, serde::Serialize, schemars::JsonSchema)]
    struct Config {
        /// Speed.
        rate: f64,
        model: Model,
        schedule: Vec<Model>,
        limit: Option<u32>,
    }

    #[derive(serde::Serialize, schemars::JsonSchema)]
    #[serde(tag = "kind", rename_all = "snake_case")]
    #[expect(dead_code, reason = "only its schema is used")]
    enum Model {
        Small { width: u32 },
        Large { width: f64, depth: u8 },
    }

    impl Default for Model {
        fn default() -> Self {
            Self::Small { width: 1 }
        }
    }

    #[test]
    fn keys_and_values_are_checked_and_near_ones_named() {
        let keys = KeySchema::new(&schemars::schema_for!(Config).to_value());
        let refused = |path: &str, value: Value| keys.check(path, &[value]).unwrap_err();
        assert_eq!(keys.check("rate", &[json!(1e-4), json!(3)]), Ok(()));
        assert_eq!(keys.check("model.depth", &[json!(3)]), Ok(()));
        // The other variant has this key.
        assert_eq!(keys.check("model.width", &[json!(1.5)]), Ok(()));
        assert_eq!(keys.check("schedule.1.width", &[json!(2)]), Ok(()));
        assert_eq!(keys.check("limit", &[json!(null), json!(4)]), Ok(()));
        assert!(refused("rat", json!(1)).contains("did you mean rate?"));
        assert!(refused("depth", json!(1)).contains("did you mean model.depth?"));
        assert!(refused("model.kind.depth", json!(1)).contains("no such key"));
        assert!(refused("rate", json!("fast")).contains("\"fast\": expected"));
        assert!(refused("model.depth", json!(300)).contains("300: expected"));
        assert_eq!(keys.check("model.kind", &[json!("small")]), Ok(()));
        assert!(refused("model.kind", json!("huge")).contains("expected"));
    }
}
