//! Imports weights from another program as a checkpoint.

use std::path::Path;

use serde_json::json;
use unix::{Error, Result, publish};

use super::find::{manifest_of, one_in};
use super::load::load;
use super::{State, write};
use crate::foreign::{self, NameMap, Named};

/// Writes the checkpoint `out` with the weights in `file` and everything else (names, shapes, buffers, configuration,
/// task, hashes) from the checkpoint or run `like`. The new checkpoint has no optimizer state; its progress field
/// records its origin. Returns the number of tensors imported.
///
/// Errors: 66 when a file is missing; 65 when it is not a weight file or its tensors do not match the model (the
/// message lists all missing, unexpected and wrongly shaped tensors); 2 for an invalid mapping; 73 when `out` exists.
pub fn import(file: &Path, like: &Path, names: &NameMap, out: &Path) -> Result<usize> {
    let like = one_in(like)?;
    manifest_of(&like)?;
    let weights = foreign::open(file)?;
    let template = load(&like)?;
    let wanted = template
        .tensors("model")
        .ok_or_else(|| Error::data(format!("{}: there is no model.safetensors", like.display())))?;
    let mut tensors = Vec::with_capacity(wanted.len());
    let given: Vec<Named> = weights.tensors().iter().map(|t| (&*t.name, &*t.shape)).collect();
    let own: Vec<Named> = wanted.iter().map(|(name, tensor)| (&**name, tensor.shape())).collect();
    let pairs = names.pair(file, &given, &own)?;
    for (at, (name, own)) in pairs.iter().flatten().zip(&wanted) {
        tensors.push((name.clone(), weights.read(&weights.tensors()[*at], own.dtype())?));
    }
    let count = tensors.len();
    let mut all = super::Tensors::from([("model".to_string(), tensors)]);
    if let Some(buffers) = template.tensors("buffers") {
        all.insert("buffers".into(), buffers);
    }
    let origin = json!({
        "file": file.display().to_string(),
        "blake3": publish::hash_file(file)?,
        "like": like.display().to_string(),
    });
    let progress = json!({ "imported": origin });
    let state = State { tensors: all, ..State::like(&template.manifest, 0, progress) };
    write::write_as(out, &state, 1)?;
    Ok(count)
}
