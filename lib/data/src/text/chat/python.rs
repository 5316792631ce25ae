//! JSON as Python's `json.dumps` writes it, which transformers' templates expect of `tojson`.

use minijinja::value::Kwargs;
use minijinja::{Error, ErrorKind, Value};
use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::{Formatter, PrettyFormatter};
use std::io::{Result, Write};

/// Separates items by `, ` and keys from values by `: `.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + Write>(&mut self, to: &mut W, first: bool) -> Result<()> {
        to.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, to: &mut W, first: bool) -> Result<()> {
        to.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, to: &mut W) -> Result<()> {
        to.write_all(b": ")
    }
}

/// The filter `tojson`, with the option `indent`; keys stay in order, and no character is escaped without need.
pub(super) fn tojson(value: &Value, options: Kwargs) -> std::result::Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    // These do not change what `json.dumps` writes here.
    let _: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let mut bytes = Vec::new();
    let written = match indent {
        None => value.serialize(&mut Serializer::with_formatter(&mut bytes, Spaced)),
        Some(width) => {
            let indent = vec![b' '; width.min(64)];
            let formatter = PrettyFormatter::with_indent(&indent);
            value.serialize(&mut Serializer::with_formatter(&mut bytes, formatter))
        }
    };
    let bad = |cause: String| Error::new(ErrorKind::BadSerialization, cause);
    written.map_err(|cause| bad(cause.to_string()))?;
    let text = String::from_utf8(bytes).map_err(|cause| bad(cause.to_string()))?;
    Ok(Value::from_safe_string(text))
}
