//! Typed configuration: reads YAML files, overrides and variables, and returns a checked value of a Rust type.
//! Violations, hints and the list of keys are derived from the type's JSON Schema.

mod check;
mod derive;
mod describe;
mod keys;
mod layers;
mod load;
mod path;
mod scalar;
mod schema;
mod secrets;
mod suggest;
mod variables;
mod violation;
mod yaml;

pub use keys::{Key, keys};
pub use load::{Loaded, hash, load, to_yaml};
pub use path::KeySchema;
pub use suggest::nearest;
pub use variables::register_env_file;

/// Violations of a section, each with its key relative to the section.
pub type Violations = Vec<(String, String)>;

/// Prefixes the key of every violation with `section.`.
pub fn within(section: &str, violations: Violations) -> impl Iterator<Item = (String, String)> {
    violations.into_iter().map(move |(key, text)| (format!("{section}.{key}"), text))
}
