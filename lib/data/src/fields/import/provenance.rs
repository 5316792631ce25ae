//! The attributes of an imported file: its parameters, the attributes of its source, and its origin.

use super::plan::ImportOptions;
use super::target::{Target, runs};
use crate::fields::field::{Field, PARAMETERS, TRAJECTORY_ATTRIBUTES};
use crate::fields::parameter::Parameter;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use unix::publish::hash_file;
use unix::{Error, Result};

/// Attributes that describe this import. The attributes of an earlier import move into `import`, as `previous`.
const OWN: [&str; 4] = ["source", "source_blake3", "import", "importer"];
/// Attributes that describe how this file stores its field.
const STORAGE: [&str; 4] = ["channels", "axes", PARAMETERS, TRAJECTORY_ATTRIBUTES];

/// Builds the root attributes of a target. Errors: 66 and 65 for the source; 2 when a parameter has the name of an
/// attribute in `OWN` or `STORAGE`.
pub(super) fn attributes(
    plan: &ImportOptions,
    target: &Target,
    parameter: &Parameter,
    field: &Field,
) -> Result<Vec<(String, Value)>> {
    let source = &target.source;
    let is_own = |name: &str| OWN.contains(&name) || STORAGE.contains(&name);
    if let Some((name, _)) = parameter.iter().find(|(name, _)| is_own(name)) {
        return Err(Error::usage(format!(
            "--parameter {parameter}: imported files have an attribute `{name}` of their own; choose another \
             name"
        )));
    }
    let stated = field.attributes()?;
    let mut all: Vec<(String, Value)> =
        parameter.iter().map(|(name, value)| (name.into(), value.into())).collect();
    all.push((PARAMETERS.into(), parameter.to_string().into()));
    let kept = |name: &str| !is_own(name) && parameter.get(name).is_none();
    all.extend(stated.clone().into_iter().filter(|(name, _)| kept(name)));
    let of_trajectories = field.trajectory_attributes(&target.samples)?;
    if !of_trajectories.is_empty() {
        let text = serde_json::to_string(&of_trajectories).map_err(Error::bug)?;
        all.push((TRAJECTORY_ATTRIBUTES.into(), text.into()));
    }
    let name = source.file_name().unwrap_or_default().to_string_lossy();
    for (name, text) in [
        ("source", name.into_owned()),
        ("source_blake3", content_hash(source)?),
        ("import", request(plan, target, &stated).to_string()),
        ("importer", concat!("longhaul ", env!("CARGO_PKG_VERSION")).into()),
    ] {
        all.push((name.into(), unix::secrets::redact(&text).into()));
    }
    Ok(all)
}

/// Records the given options, and the import that wrote the source, if any.
fn request(plan: &ImportOptions, target: &Target, stated: &Map<String, Value>) -> Value {
    let reading = &plan.reading;
    let trajectories: Vec<[usize; 2]> =
        runs(&target.samples).into_iter().map(|run| [run.start, run.end]).collect();
    let crop: Vec<String> = plan.crop.iter().map(ToString::to_string).collect();
    let previous = OWN.iter().filter(|name| stated.contains_key(**name)).map(|name| {
        // Attributes that we wrote as JSON text are parsed back into JSON.
        let value = &stated[*name];
        let parsed = value.as_str().and_then(|text| serde_json::from_str(text).ok());
        (name.to_string(), parsed.filter(Value::is_object).unwrap_or_else(|| value.clone()))
    });
    let previous: Map<String, Value> = previous.collect();
    let mut all = json!({
        "trajectories": trajectories,
        "layout": reading.layout.map(|layout| layout.to_string()),
        "axes": reading.axes.as_ref().map(ToString::to_string),
        "dataset": reading.dataset,
        "fill_missing": reading.fill_missing,
        "parameter": plan.parameter.as_ref().map(ToString::to_string),
        "override": plan.override_parameter,
        "channels": plan.channels,
        "samples": plan.samples,
        "stride": plan.stride,
        "crop": crop,
        "grid": plan.grid,
        "dtype": plan.dtype.map(|dtype| dtype.to_string()),
        "previous": previous,
    });
    if let Value::Object(all) = &mut all {
        let unset = [Value::Null, json!(false), json!([]), json!({})];
        all.retain(|name, value| name == "trajectories" || !unset.contains(value));
    }
    all
}

/// Returns the BLAKE3 hash of a file, or of the names and hashes of all files in a folder.
pub(crate) fn content_hash(path: &Path) -> Result<String> {
    if !path.is_dir() {
        return hash_file(path);
    }
    let entries = std::fs::read_dir(path).map_err(|cause| Error::open(path, cause))?;
    let mut entries: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    // A symbolic link to a folder may form a loop.
    entries.retain(|entry| !(entry.is_symlink() && entry.is_dir()));
    entries.sort();
    let mut hasher = blake3::Hasher::new();
    for entry in entries {
        hasher.update(entry.file_name().unwrap_or_default().as_encoded_bytes());
        hasher.update(content_hash(&entry)?.as_bytes());
    }
    Ok(hasher.finalize().to_hex().to_string())
}
