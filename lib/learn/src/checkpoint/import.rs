//! Weights that another program wrote, as a checkpoint of ours.

use std::path::Path;

use serde_json::json;
use tensor::Tensor;
use unix::{Error, Exit, Result, publish};

use super::find::{manifest_of, one_in};
use super::load::load;
use super::pattern::matches;
use super::{State, write};
use crate::foreign::{self, TensorEntry, WeightFile};

/// How the names of a file become those of the model.
#[derive(Clone, Debug, Default)]
pub struct Import {
    /// `FROM=TO`, the first that fits; one `*` in FROM stands for any characters, and for the same in
    /// TO. Names that none fits stay.
    pub map: Vec<String>,
    /// Patterns of names in the file, as they stand there, that are left out.
    pub ignore: Vec<String>,
}

/// Writes the checkpoint `out` with the weights in `file` and everything else (names, shapes, constants,
/// configuration, stage, hashes) of the checkpoint or run `like`. It has no state of the optimizer; its
/// progress tells what it was made from. Returns how many tensors were taken.
///
/// Errors: 66 when a file is missing; 65 when it is no file of weights, or its tensors are not those of
/// the model, with all that are missing, unexpected or of another shape; 2 for a mapping that is none; 73
/// when `out` exists.
pub fn import(file: &Path, like: &Path, names: &Import, out: &Path) -> Result<usize> {
    let like = one_in(like)?;
    manifest_of(&like)?;
    let weights = foreign::open(file)?;
    let template = load(&like)?;
    let wanted = template
        .tensors("model")
        .ok_or_else(|| Error::data(format!("{}: there is no model.safetensors", like.display())))?;
    let mut tensors = Vec::with_capacity(wanted.len());
    for (stored, (name, own)) in pair(&weights, &wanted, names)?.iter().zip(&wanted) {
        tensors.push((name.clone(), weights.read(stored, own.dtype())?));
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

/// For each tensor of the model the one of the file.
fn pair<'a>(
    weights: &'a WeightFile,
    wanted: &[(String, Tensor)],
    names: &Import,
) -> Result<Vec<&'a TensorEntry>> {
    let rules: Vec<(&str, &str)> =
        names.map.iter().map(|rule| parse(rule)).collect::<Result<_>>()?;
    let mut given: Vec<(String, &TensorEntry)> = Vec::new();
    let mut faults = Vec::new();
    for stored in weights.tensors() {
        if names.ignore.iter().any(|pattern| matches(pattern, &stored.name)) {
            continue;
        }
        let name = rules.iter().find_map(|rule| mapped(*rule, &stored.name));
        let name = name.unwrap_or_else(|| stored.name.clone());
        if given.iter().any(|(known, _)| *known == name) {
            faults.push(format!("twice: {name}, the second from {}", stored.name));
        }
        given.push((name, stored));
    }
    let mut pairs = Vec::with_capacity(wanted.len());
    for (name, tensor) in wanted {
        match given.iter().find(|(known, _)| known == name) {
            None => faults.push(format!("missing: {name} {:?}", tensor.shape())),
            Some((_, stored)) if stored.shape != tensor.shape() => faults.push(format!(
                "shape: {name} is {:?} in the file, {:?} in the model",
                stored.shape,
                tensor.shape()
            )),
            Some((_, stored)) => pairs.push(*stored),
        }
    }
    let more = given.iter().filter(|(name, _)| wanted.iter().all(|(known, _)| known != name));
    faults.extend(
        more.map(|(name, stored)| {
            format!("unexpected: {name} {} {:?}", stored.dtype, stored.shape)
        }),
    );
    if faults.is_empty() {
        return Ok(pairs);
    }
    let first = format!(
        "{}: its tensors are not those of the model; rename with --map FROM=TO, leave out with \
         --ignore PATTERN:",
        weights.path().display()
    );
    Err(Error::list(Exit::Data, first, &faults))
}

fn parse(rule: &str) -> Result<(&str, &str)> {
    let stars = |text: &str| text.matches('*').count();
    let halves = rule.split_once('=');
    halves
        .filter(|(from, to)| stars(from) < 2 && stars(to) <= stars(from) && !from.is_empty())
        .ok_or_else(|| {
            Error::usage(format!(
                "--map {rule}: wanted is FROM=TO, with at most one * on each side"
            ))
        })
}

/// The new name, where the rule fits.
fn mapped((from, to): (&str, &str), name: &str) -> Option<String> {
    match from.split_once('*') {
        None => (from == name).then(|| to.to_string()),
        Some((head, tail)) => {
            let middle = name.strip_prefix(head)?.strip_suffix(tail)?;
            Some(to.replace('*', middle))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_for_names() {
        assert_eq!(mapped(("module.*", "*"), "module.a.w").as_deref(), Some("a.w"));
        assert_eq!(mapped(("a.*.w", "b.*"), "a.x.y.w").as_deref(), Some("b.x.y"));
        assert_eq!(mapped(("a", "b"), "a").as_deref(), Some("b"));
        assert_eq!(mapped(("a", "b"), "ab"), None);
        // Head and tail may not share characters.
        assert_eq!(mapped(("aa*aa", "*"), "aaa"), None);
        for bad in ["a", "=b", "*.*=*", "a=*"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
