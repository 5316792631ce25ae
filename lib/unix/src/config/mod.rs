//! Typed configuration: YAML files, overrides and variables in, a checked value of a Rust type out. Violations, hints and the
//! list of keys follow from the type's JSON Schema; nothing here knows what is configured.

mod check;
mod derive;
mod describe;
mod keys;
mod layers;
mod load;
mod scalar;
mod schema;
mod secrets;
mod suggest;
mod variables;
mod violation;
mod yaml;

pub use keys::{Key, keys};
pub use load::{Loaded, hash, load, to_yaml};

/// Violations of a section, each with the key it is about, relative to the section.
pub type Violations = Vec<(String, String)>;

/// Puts `section.` before the key of every violation.
pub fn within(section: &str, violations: Violations) -> impl Iterator<Item = (String, String)> {
    violations.into_iter().map(move |(key, text)| (format!("{section}.{key}"), text))
}
