//! Lists every key that a configuration may contain, for the man page and for hints.

use serde_json::Value;

use super::check::join;
use super::schema::{Record, Schema, Shape};

/// One key of a configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    /// Path of the key: `model.backbone[pdet_stack].hidden` is a key of `model.backbone` if its tag is `pdet_stack`,
    /// and `schedule[].kind` is a key of every element of `schedule`.
    pub path: String,
    /// The accepted values, in words: `integer ≥ 1`.
    pub takes: String,
    /// The value used if the key is absent; `None` if the key is required, or is null if absent.
    pub default: Option<Value>,
    /// Whether the key is required.
    pub required: bool,
    /// First paragraph of the key's doc comment.
    pub doc: String,
}

/// Returns all keys of `T`, in struct order. A mapping itself is listed only if it may be null, otherwise only its
/// keys.
pub fn keys<T: schemars::JsonSchema>() -> Vec<Key> {
    of_schema(&Schema::of::<T>())
}

pub(super) fn of_schema(schema: &Schema) -> Vec<Key> {
    let mut keys = Vec::new();
    inside(schema, "", &mut keys);
    keys
}

fn inside(schema: &Schema, path: &str, keys: &mut Vec<Key>) {
    match &schema.shape {
        Shape::Record(record) => fields(record, path, keys),
        Shape::Tagged { tag, variants } => {
            let words = variants.iter().map(|(word, _)| word.clone()).collect();
            let default = schema.default.as_ref().and_then(|whole| whole.get(tag)).cloned();
            keys.push(Key {
                path: join(path, tag),
                takes: Shape::Choice(words).to_string(),
                required: default.is_none(),
                default,
                doc: schema.doc.clone(),
            });
            for (word, record) in variants {
                fields(record, &format!("{path}[{word}]"), keys);
            }
        }
        Shape::List(items, ..) => inside(items, &format!("{path}[]"), keys),
        Shape::Map(items) => inside(items, &join(path, "NAME"), keys),
        Shape::Either(several) => several.iter().for_each(|one| inside(one, path, keys)),
        _ => {}
    }
}

fn fields(record: &Record, path: &str, keys: &mut Vec<Key>) {
    for (name, schema, required) in &record.fields {
        let path = join(path, name);
        let container = matches!(schema.shape, Shape::Record(_) | Shape::Tagged { .. });
        if !container || schema.nullable {
            keys.push(Key {
                path: path.clone(),
                takes: schema.to_string(),
                default: schema.default.clone().filter(|value| !required && !value.is_null()),
                required: *required,
                doc: schema.doc.clone(),
            });
        }
        inside(schema, &path, keys);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default, serde::Serialize, schemars::JsonSchema)]
    #[serde(tag = "kind", rename_all = "snake_case")]
    #[allow(dead_code)] // only its schema is used
    enum Attention {
        #[default]
        None,
        Full {
            heads: u32,
        },
    }

    #[derive(schemars::JsonSchema)]
    #[allow(dead_code)]
    struct Model {
        #[serde(default)]
        attention: Attention,
        other: Attention,
    }

    /// The tag of an optional section is itself optional.
    #[test]
    fn the_tag_of_an_optional_section_has_a_default() {
        let keys = keys::<Model>();
        let found: Vec<_> =
            keys.iter().map(|k| (k.path.as_str(), k.required, k.default.is_some())).collect();
        assert_eq!(
            found,
            [
                ("attention.kind", false, true),
                ("attention[full].heads", true, false),
                ("other.kind", true, false),
                ("other[full].heads", true, false),
            ]
        );
    }
}
