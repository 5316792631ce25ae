//! What a configuration type takes: a small tree made from the JSON schema that `schemars` derives.

use serde_json::Value;

use super::derive;

/// One value.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Schema {
    /// First paragraph of the doc comment.
    pub doc: String,
    /// What an absent key stands for.
    pub default: Option<Value>,
    /// Whether null is taken.
    pub nullable: bool,
    /// What is taken otherwise.
    pub shape: Shape,
}

/// What a value may look like.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Shape {
    /// Anything.
    Any,
    /// A string.
    Text,
    /// True or false.
    Flag,
    /// An integer between two bounds, both included.
    Integer(i128, i128),
    /// A finite number.
    Number(Bounds),
    /// One of some words.
    Choice(Vec<String>),
    /// A list, with the smallest and largest length.
    List(Box<Schema>, usize, usize),
    /// Free keys.
    Map(Box<Schema>),
    /// Known keys.
    Record(Record),
    /// Known keys that depend on the word under the key `tag`.
    Tagged { tag: String, variants: Vec<(String, Record)> },
    /// Any of several.
    Either(Vec<Schema>),
}

/// Bounds of a number; none: unbounded.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Bounds {
    pub minimum: Option<f64>,
    pub above: Option<f64>,
    pub maximum: Option<f64>,
    pub below: Option<f64>,
}

/// The keys of a mapping.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Record {
    /// Name, schema, and whether it must be given.
    pub fields: Vec<(String, Schema, bool)>,
}

impl Schema {
    /// The tree of a type.
    pub fn of<T: schemars::JsonSchema>() -> Self {
        derive::schema(&schemars::schema_for!(T).to_value())
    }

    /// Takes everything.
    pub fn any() -> Self {
        Self { doc: String::new(), default: None, nullable: true, shape: Shape::Any }
    }

    /// The schema of what `value` has under `key`, as far as it is known.
    pub fn child(&self, value: &Value, key: &str) -> Option<&Schema> {
        match &self.shape {
            Shape::Record(record) => record.field(key),
            Shape::Tagged { tag, variants } => {
                let word = value.get(tag)?.as_str()?;
                variants.iter().find(|(name, _)| name == word)?.1.field(key)
            }
            Shape::Map(items) | Shape::List(items, ..) => Some(items),
            _ => None,
        }
    }

    /// The key whose word decides about the other keys.
    pub fn tag(&self) -> Option<&str> {
        match &self.shape {
            Shape::Tagged { tag, .. } => Some(tag),
            _ => None,
        }
    }
}

impl Record {
    /// The schema of a key.
    pub fn field(&self, name: &str) -> Option<&Schema> {
        let field = self.fields.iter().find(|(field, ..)| field == name);
        field.map(|(_, schema, _)| schema)
    }
}
