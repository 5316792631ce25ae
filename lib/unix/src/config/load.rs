//! Loads a configuration: reads files, overrides and variables, and returns a checked value of a Rust type.

use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use crate::{Error, Result, small, text};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Violations;
use super::check::check;
use super::keys;
use super::layers::Layers;
use super::schema::Schema;
use super::secrets;
use super::variables::{read_env_file, substitute};
use super::violation::{Violation, report};
use super::yaml;

/// A valid configuration.
#[derive(Clone, Debug)]
pub struct Loaded<T> {
    /// The values.
    pub config: T,
    /// The values as JSON, with defaults filled in, in struct order. Secrets are replaced by the `${VAR}` that they
    /// came from, so that this value can be written to files and logs, and loaded again.
    pub resolved: Value,
}

/// Loads a configuration.
///
/// `files` are YAML files, merged in order, so that later files win. Then `overrides` of the form `a.b=c` are applied,
/// and `${VAR}` and `${VAR:-default}` are substituted from `environment` or, if unset there, from the file `.env` next
/// to the first file. `validate` finds violations that the types do not express, each with the path of its key.
///
/// Errors: 66 when a file cannot be read; 78 with all violations, one per line, as `FILE: KEY: what is wrong`.
pub fn load<T>(
    files: &[PathBuf],
    overrides: &[String],
    environment: &dyn Fn(&str) -> Option<String>,
    validate: &dyn Fn(&T) -> Violations,
) -> Result<Loaded<T>>
where
    T: DeserializeOwned + Serialize + JsonSchema,
{
    let schema = Schema::of::<T>();
    let mut layers = Layers::new(&schema);
    // Read it first, so that its secrets are hidden in every message about the files.
    let beside = files.first().map(|file| file.with_file_name(".env"));
    let env_file = beside.map(|path| read_env_file(&path)).transpose()?.unwrap_or_default();
    merge_all(&mut layers, files, overrides)?;
    let lookup = |name: &str| environment(name).or_else(|| env_file.get(name).cloned());
    let mut value = std::mem::take(&mut layers.value);
    let substituted = substitute(&mut value, &lookup);
    let mut violations = substituted.violations;

    let known: Vec<String> = keys::of_schema(&schema).into_iter().map(|key| key.path).collect();
    let unset: Vec<String> = violations.iter().map(|(key, _)| key.clone()).collect();
    let found = check(&mut value, &schema, &known);
    // For a key whose variable is unset, report only that violation.
    violations.extend(found.into_iter().filter(|(key, _)| !unset.contains(key)));
    // The schema covers nearly everything that serde checks; report what serde still finds.
    let config = match serde_json::from_value::<T>(value) {
        Ok(config) => {
            violations.extend(validate(&config));
            Some(config)
        }
        Err(cause) => {
            if violations.is_empty() {
                violations.push((String::new(), cause.to_string()));
            }
            None
        }
    };
    match config {
        Some(config) if violations.is_empty() => {
            let mut resolved = serde_json::to_value(&config).map_err(Error::bug)?;
            secrets::hide(&mut resolved, &substituted.secrets);
            Ok(Loaded { config, resolved })
        }
        _ => {
            let violation = |(key, message): (String, String)| Violation {
                source: layers.source(&key),
                message: secrets::hidden(&message, &key, &substituted.secrets),
                key,
            };
            Err(report(&violations.into_iter().map(violation).collect::<Vec<_>>()))
        }
    }
}

/// Returns the hash of a resolved configuration: BLAKE3 of its JSON with sorted keys, in hexadecimal.
pub fn hash(resolved: &Value) -> String {
    let mut sorted = resolved.clone();
    sorted.sort_all_objects();
    blake3::hash(sorted.to_string().as_bytes()).to_hex().to_string()
}

/// Formats a resolved configuration as a YAML file that [`load`] can read.
pub fn to_yaml(resolved: &Value) -> Result<String> {
    serde_yaml::to_string(resolved).map_err(|cause| Error::bug(format!("configuration: {cause}")))
}

fn merge_all(layers: &mut Layers, files: &[PathBuf], overrides: &[String]) -> Result<()> {
    let mut violations = Vec::new();
    for file in files {
        let source = file.display().to_string();
        let message = match yaml::parse(&read(file)?) {
            Ok(value @ Value::Object(_)) => {
                layers.add(value, &source);
                continue;
            }
            // A failed `command > file` leaves an empty file.
            Ok(Value::Null) => "the file is empty; expected keys with values, KEY: VALUE".into(),
            Ok(_) => "expected keys with values, KEY: VALUE".into(),
            Err(message) => message,
        };
        violations.push(Violation { source, key: String::new(), message });
    }
    for given in overrides {
        let (key, value) = given.split_once('=').unwrap_or(("", ""));
        let set = override_value(value).and_then(|value| layers.set(key.trim(), value, "-s"));
        if let Err(message) = set {
            let source = format!("-s {}", text::quote(given));
            violations.push(Violation { source, key: String::new(), message });
        }
    }
    if violations.is_empty() { Ok(()) } else { Err(report(&violations)) }
}

/// Parses the value of an override: a list or mapping in brackets, a quoted string, or a plain scalar, which may
/// contain any characters: `-s note=a: b`.
fn override_value(text: &str) -> Result<Value, String> {
    let text = text.trim();
    if text.starts_with(['[', '{', '"', '\'']) {
        return yaml::parse(text);
    }
    match yaml::parse(text) {
        Ok(value @ (Value::Null | Value::Bool(_) | Value::Number(_))) => Ok(value),
        _ => Ok(Value::String(text.into())),
    }
}

fn read(file: &Path) -> Result<String> {
    let found = std::fs::metadata(file).map_err(|cause| Error::open(file, cause))?;
    if found.is_dir() {
        return Err(Error::open(file, "it is a folder"));
    }
    if found.len() > yaml::MAX_BYTES {
        let why =
            format!("larger than {} bytes: this is not a configuration file", yaml::MAX_BYTES);
        return Err(Error::config(format!("{}: {why}", file.display())));
    }
    // The size of a pipe (`-c <(...)`) is not known in advance; the parser reports input that is too long.
    let mut bytes = Vec::new();
    let read = small::open_pipe(file)?.take(yaml::MAX_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|cause| Error::open(file, cause))?;
    if bytes.is_empty() && found.file_type().is_fifo() {
        return Err(Error::open(file, "it is a pipe that nothing writes to"));
    }
    String::from_utf8(bytes)
        .map_err(|_| Error::config(format!("{}: not UTF-8 text", file.display())))
}
