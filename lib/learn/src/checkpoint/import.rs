//! Imports weights from another program as a checkpoint.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use serde_json::json;
use tensor::Tensor;
use unix::text::matches;
use unix::{Error, Result, note, publish};

use super::find::{manifest_of, one_in};
use super::load::load;
use super::{State, write};
use crate::foreign::{self, ForeignModel, NameMap, Named, Piece, TensorEntry, WeightFile};

/// Writes the checkpoint `out` with the weights in `file` and everything else (names, shapes, buffers, configuration,
/// task, hashes) from the checkpoint or run `like`. The new checkpoint has no optimizer state; its progress field
/// records its origin. Returns the number of tensors imported.
///
/// If `known` returns a program for the task of `like` whose tensors the file has, and `names` has no rules for
/// renaming, the tensors are taken from its layout.
///
/// Errors: 66 when a file is missing; 65 when it is not a weight file or its tensors do not match the model (the
/// message lists all missing, unexpected and wrongly shaped tensors); 2 for an invalid mapping; 73 when `out` exists.
pub fn import(
    file: &Path,
    like: &Path,
    names: &NameMap,
    known: impl Fn(&str) -> Option<&'static ForeignModel>,
    out: &Path,
) -> Result<usize> {
    let like = one_in(like)?;
    manifest_of(&like)?;
    let weights = foreign::open(file)?;
    let template = load(&like)?;
    let wanted = template
        .tensors("model")
        .ok_or_else(|| Error::data(format!("{}: there is no model.safetensors", like.display())))?;
    let program = known(&template.manifest.task).filter(|_| names.map.is_empty());
    let caution = |program: &ForeignModel| {
        (program.caution)(&template.manifest.config).iter().for_each(|text| note!("{text}"));
    };
    let found = match program {
        Some(program) => {
            rearranged(program, &weights, names, &wanted)?.inspect(|_| caution(program))
        }
        None => None,
    };
    let tensors = found.map_or_else(|| renamed(&weights, names, &wanted), Ok)?;
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

/// Returns the parameters `wanted`, read from tensors of the same shapes.
fn renamed(
    weights: &WeightFile,
    names: &NameMap,
    wanted: &[(String, Tensor)],
) -> Result<Vec<(String, Tensor)>> {
    let given: Vec<Named> = weights.tensors().iter().map(|t| (&*t.name, &*t.shape)).collect();
    let pairs = names.pair(weights.path(), &given, &shapes(wanted))?;
    let read = |(at, (name, own)): (&usize, &(String, Tensor))| {
        Ok((name.clone(), weights.read(&weights.tensors()[*at], own.dtype())?))
    };
    pairs.iter().flatten().zip(wanted).map(read).collect()
}

/// Returns the parameters `wanted`, read from a file of `program`; None for a file of another one. Tensors without the
/// prefix of the model's, such as those of an optimizer, are ignored.
fn rearranged(
    program: &ForeignModel,
    weights: &WeightFile,
    names: &NameMap,
    wanted: &[(String, Tensor)],
) -> Result<Option<Vec<(String, Tensor)>>> {
    let is_ignored = |name: &str| names.ignore.iter().any(|pattern| matches(pattern, name));
    let admitted = || weights.tensors().iter().filter(|t| !is_ignored(&t.name));
    let Some(prefix) = program.prefix(admitted().map(|t| &*t.name)) else { return Ok(None) };
    let stored: Vec<&TensorEntry> = admitted().filter(|t| t.name.starts_with(prefix)).collect();
    let given: Vec<Named> = stored.iter().map(|t| (&*t.name, &*t.shape)).collect();
    let context = |error: Error| error.context(format!("a checkpoint of {}", program.name));
    let short: Vec<Named> = given.iter().map(|(t, shape)| (&t[prefix.len()..], *shape)).collect();
    let layout = (program.layout)(&short, &shapes(wanted)).map_err(context)?;
    let mut seen = HashSet::new();
    let needed = layout.iter().flatten().filter(|piece| seen.insert(&*piece.tensor));
    let needed: Vec<(String, &[usize])> =
        needed.map(|piece| (format!("{prefix}{}", piece.tensor), &*piece.shape)).collect();
    let named: Vec<Named> = needed.iter().map(|(name, shape)| (&**name, *shape)).collect();
    let pairs = NameMap::default().pair(weights.path(), &given, &named).map_err(context)?;
    let found = pairs.iter().flatten().map(|at| (&stored[*at].name[prefix.len()..], stored[*at]));
    let found: HashMap<&str, &TensorEntry> = found.collect();
    let read = |(pieces, (name, own)): (&Vec<Piece>, &(String, Tensor))| {
        let dtype = own.dtype();
        let read = |piece: &Piece| match found.get(&*piece.tensor) {
            Some(entry) => weights.read(entry, dtype),
            None => Err(Error::bug(format!("{} was not paired", piece.tensor))),
        };
        Ok((name.clone(), foreign::assemble(pieces, (own.shape(), dtype), read)?))
    };
    layout.iter().zip(wanted).map(read).collect::<Result<_>>().map(Some)
}

/// Names and shapes of tensors.
fn shapes(tensors: &[(String, Tensor)]) -> Vec<Named<'_>> {
    tensors.iter().map(|(name, tensor)| (&**name, tensor.shape())).collect()
}
