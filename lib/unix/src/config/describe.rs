//! Describes schemas and values in words, for messages and for the list of keys.

use std::fmt;

use crate::text::quote;
use serde_json::Value;

use super::schema::{Bounds, Schema, Shape};

/// Formats the accepted values: `integer ≥ 1`, `one of gelu, relu`, `list of number, or null`.
impl fmt::Display for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shape.fmt(f)?;
        let is_any = matches!(self.shape, Shape::Any);
        if self.nullable && !is_any { f.write_str(", or null") } else { Ok(()) }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shape::Any => f.write_str("anything"),
            Shape::Text => f.write_str("text"),
            Shape::Flag => f.write_str("true or false"),
            Shape::Integer(low, high) => integer(*low, *high, f),
            Shape::Number(bounds) => write!(f, "number{bounds}"),
            Shape::Choice(words) => write!(f, "one of {}", words.join(", ")),
            Shape::List(items, low, high) if low == high => write!(f, "list of {low}: {items}"),
            Shape::List(items, ..) => write!(f, "list of {items}"),
            Shape::Map(items) => write!(f, "mapping of names to {items}"),
            Shape::Record(record) => {
                let names: Vec<&str> = record.fields.iter().map(|(n, ..)| n.as_str()).collect();
                write!(f, "mapping of {}", names.join(", "))
            }
            Shape::Tagged { tag, variants } => {
                let words: Vec<&str> = variants.iter().map(|(word, _)| word.as_str()).collect();
                write!(f, "mapping with {tag}: {}", words.join(", "))
            }
            Shape::Either(several) => {
                let several: Vec<String> = several.iter().map(Schema::to_string).collect();
                f.write_str(&several.join(", or "))
            }
        }
    }
}

/// Whether a bound is the limit of an integer type. Such bounds are not printed, except the 0 of unsigned types.
pub(super) fn is_of_type(bound: i128) -> bool {
    [24, 31, 32, 63, 64].iter().any(|bits| bound == (1 << bits) - 1 || bound == -(1 << bits))
}

fn integer(low: i128, high: i128, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match (is_of_type(low) && low < 0, is_of_type(high) && high > 1) {
        (true, true) => f.write_str("integer"),
        (false, true) => write!(f, "integer ≥ {low}"),
        (true, false) => write!(f, "integer ≤ {high}"),
        (false, false) => write!(f, "integer from {low} to {high}"),
    }
}

impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bounds =
            [("≥", self.minimum), (">", self.above), ("≤", self.maximum), ("<", self.below)];
        let parts: Vec<String> = bounds
            .iter()
            .filter_map(|(sign, bound)| bound.map(|bound| format!("{sign} {bound}")))
            .collect();
        if parts.is_empty() { Ok(()) } else { write!(f, " {}", parts.join(" and ")) }
    }
}

/// Describes a value briefly: `the text "abc"`, `the number 3`, `a list`, `nothing`.
pub(super) fn found(value: &Value) -> String {
    match value {
        Value::Null => "nothing".into(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => format!("the number {number}"),
        Value::String(text) => format!("the text \"{}\"", quote(text)),
        Value::Array(_) => "a list".into(),
        Value::Object(_) => "a mapping".into(),
    }
}
