//! Weighted average of checkpoints of the same model.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tensor::{Dtype, Tensor};
use unix::{Error, Exit, Result};

use super::load::{Loaded, load};
use super::{State, Tensors, write};

/// Stems of the files that are averaged; the first is required.
const AVERAGED: [&str; 2] = ["model", "ema"];

/// Writes the weighted average of the checkpoints `paths` to the checkpoint `out`. The `weights` are normalised to sum
/// to 1. The average covers the model, and its exponential moving average if all checkpoints have one; it is computed
/// in f64 and stored in the dtype of the first checkpoint. Buffers, configuration and dependencies are copied from the
/// first checkpoint. There is no optimizer state, so training cannot resume from `out`; its progress field records the
/// averaged checkpoints.
///
/// Errors: 2 when there are fewer than two checkpoints or the weights do not match them; 65 when a checkpoint is
/// damaged or differs in task, model or buffers (the message names the differences); 73 when `out` exists.
pub fn average(paths: &[PathBuf], weights: &[f64], out: &Path) -> Result<()> {
    let weights = normalised(paths.len(), weights)?;
    let Some((first, rest)) = paths.split_first() else {
        return Err(Error::usage("no checkpoints to average"));
    };
    let base = load(first)?;
    let mut sums = Sums::new(&base, weights[0]);
    let mut origins = vec![origin(&base, weights[0])];
    for (path, weight) in rest.iter().zip(&weights[1..]) {
        let other = load(path)?;
        require_same(&base, &other)?;
        sums.add(&other, *weight)?;
        origins.push(origin(&other, *weight));
    }
    let mut tensors = sums.means()?;
    if let Some(buffers) = base.tensors("buffers") {
        tensors.insert("buffers".into(), buffers);
    }
    let progress = json!({ "averaged": origins });
    let state = State { tensors, ..State::like(&base.manifest, base.manifest.update, progress) };
    write::write_as(out, &state, 1)
}

fn normalised(count: usize, weights: &[f64]) -> Result<Vec<f64>> {
    let weights = if weights.is_empty() { vec![1.0; count] } else { weights.to_vec() };
    let sum: f64 = weights.iter().sum();
    let good = weights.iter().all(|w| w.is_finite() && *w >= 0.0) && sum.is_finite() && sum > 0.0;
    if count < 2 || weights.len() != count || !good {
        return Err(Error::usage(format!(
            "{count} checkpoints and weights {weights:?}: give at least two checkpoints and one \
             non-negative weight for each"
        )));
    }
    Ok(weights.iter().map(|w| w / sum).collect())
}

fn origin(loaded: &Loaded, weight: f64) -> Value {
    let hash = loaded.manifest.files.iter().find(|file| file.stem() == AVERAGED[0]);
    json!({
        "checkpoint": loaded.path().display().to_string(),
        "update": loaded.manifest.update,
        "weight": weight,
        "model": hash.map(|file| &file.blake3),
    })
}

/// Running weighted sums in f64 for each file; a file that any of the checkpoints lacks is dropped.
struct Sums(Vec<(&'static str, Vec<Sum>)>);

struct Sum {
    name: String,
    shape: Vec<usize>,
    dtype: Dtype,
    values: Vec<f64>,
}

impl Sums {
    fn new(base: &Loaded, weight: f64) -> Self {
        let of = |(name, tensor): (String, Tensor)| Sum {
            name,
            shape: tensor.shape().to_vec(),
            dtype: tensor.dtype(),
            values: tensor.to_f64().into_iter().map(|x| weight * x).collect(),
        };
        let file = |stem| Some((stem, base.tensors(stem)?.into_iter().map(of).collect()));
        Self(AVERAGED.into_iter().filter_map(file).collect())
    }

    fn add(&mut self, other: &Loaded, weight: f64) -> Result<()> {
        self.0.retain(|(stem, _)| other.tensors(stem).is_some());
        for (stem, sums) in &mut self.0 {
            let tensors = other.tensors(stem).unwrap_or_default();
            for sum in sums {
                let Some((_, tensor)) = tensors.iter().find(|(name, _)| *name == sum.name) else {
                    return Err(Error::bug(format!("{stem}: {} is gone", sum.name)));
                };
                let pairs = sum.values.iter_mut().zip(tensor.to_f64());
                pairs.for_each(|(sum, x)| *sum += weight * x);
            }
        }
        Ok(())
    }

    fn means(self) -> Result<Tensors> {
        if self.0.first().is_none_or(|(stem, _)| *stem != AVERAGED[0]) {
            return Err(Error::data("at least one checkpoint has no model.safetensors"));
        }
        let tensor =
            |sum: Sum| (sum.name, Tensor::from_slice(&sum.values, &sum.shape).to_dtype(sum.dtype));
        let file = |(stem, sums): (&str, Vec<Sum>)| {
            (stem.to_string(), sums.into_iter().map(tensor).collect())
        };
        Ok(self.0.into_iter().map(file).collect())
    }
}

/// Rejects (65) a checkpoint of a different model and lists the differences.
fn require_same(base: &Loaded, other: &Loaded) -> Result<()> {
    let mut problems = Vec::new();
    let tasks = (&base.manifest.task, &other.manifest.task);
    if tasks.0 != tasks.1 {
        problems.push(format!("task {}, expected {}", tasks.1, tasks.0));
    }
    if base.manifest.config.get("model") != other.manifest.config.get("model") {
        problems.push("a different model configuration".into());
    }
    let forms = |loaded: &Loaded, stem: &str| -> Option<BTreeMap<String, String>> {
        let form = |t: Tensor| format!("{:?} {:?}", t.dtype(), t.shape());
        Some(loaded.tensors(stem)?.into_iter().map(|(name, t)| (name, form(t))).collect())
    };
    for stem in AVERAGED {
        let (Some(mine), Some(theirs)) = (forms(base, stem), forms(other, stem)) else { continue };
        let names: BTreeSet<&String> = mine.keys().chain(theirs.keys()).collect();
        for name in names {
            let [expected, found] =
                [&mine, &theirs].map(|all| all.get(name).map_or("absent", String::as_str));
            if found != expected {
                problems.push(format!("{stem}: {name} is {found}, expected {expected}"));
            }
        }
    }
    let buffers = |loaded: &Loaded| {
        let of = |(name, t): (String, Tensor)| {
            (name, t.shape().to_vec(), t.to_f64().iter().map(|x| x.to_bits()).collect::<Vec<_>>())
        };
        loaded.tensors("buffers").map(|all| all.into_iter().map(of).collect::<Vec<_>>())
    };
    if buffers(base) != buffers(other) || base.manifest.dependencies != other.manifest.dependencies
    {
        problems.push("different buffers: it was trained on different data".into());
    }
    if problems.is_empty() {
        return Ok(());
    }
    let (base, other) = (base.path().display(), other.path().display());
    Err(Error::list(Exit::Data, format!("{other} and {base} are different models:"), &problems))
}
