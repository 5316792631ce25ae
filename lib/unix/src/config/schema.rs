//! The schema of a configuration type: a small tree built from the JSON Schema that `schemars` derives.

use serde_json::Value;

use super::derive;

/// The schema of one value.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Schema {
    /// First paragraph of the doc comment.
    pub doc: String,
    /// The value used if the key is absent.
    pub default: Option<Value>,
    /// Whether null is accepted.
    pub nullable: bool,
    /// The accepted values other than null.
    pub shape: Shape,
}

/// The accepted values.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Shape {
    /// Anything.
    Any,
    /// A string.
    Text,
    /// True or false.
    Flag,
    /// An integer between two inclusive bounds.
    Integer(i128, i128),
    /// A finite number.
    Number(Bounds),
    /// One of several words.
    Choice(Vec<String>),
    /// A list, with its minimum and maximum length.
    List(Box<Schema>, usize, usize),
    /// A mapping with arbitrary keys.
    Map(Box<Schema>),
    /// A mapping with fixed keys.
    Record(Record),
    /// A mapping whose keys depend on the value of the key `tag`.
    Tagged { tag: String, variants: Vec<(String, Record)> },
    /// Any of several alternatives.
    Either(Vec<Schema>),
}

/// Bounds of a number; `None` means unbounded.
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
    /// Name, schema, and whether the key is required.
    pub fields: Vec<(String, Schema, bool)>,
}

impl Schema {
    /// Returns the schema of a type.
    pub fn of<T: schemars::JsonSchema>() -> Self {
        derive::schema(&schemars::schema_for!(T).to_value())
    }

    /// Returns the schema that accepts everything.
    pub fn any() -> Self {
        Self { doc: String::new(), default: None, nullable: true, shape: Shape::Any }
    }

    /// Returns the schema of the value under `key` in `value`, if known.
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

    /// Returns the key that selects the variant.
    pub fn tag(&self) -> Option<&str> {
        match &self.shape {
            Shape::Tagged { tag, .. } => Some(tag),
            _ => None,
        }
    }
}

impl Record {
    /// Returns the schema of a key.
    pub fn field(&self, name: &str) -> Option<&Schema> {
        let field = self.fields.iter().find(|(field, ..)| field == name);
        field.map(|(_, schema, _)| schema)
    }
}
