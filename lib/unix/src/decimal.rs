//! 64-bit integers as decimal strings in JSON, for `#[serde(with = "unix::decimal")]`: readers that store numbers as
//! f64, such as jq and JavaScript, round integers above 2^53.

use serde::{Deserialize, Deserializer, Serializer, de::Error};

/// Writes the number as a string.
pub fn serialize<S: Serializer>(number: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(number)
}

/// Reads a number written by [`serialize`].
pub fn deserialize<'a, D: Deserializer<'a>>(deserializer: D) -> Result<u64, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(|cause| D::Error::custom(format!("`{text}` as a 64-bit integer: {cause}")))
}
