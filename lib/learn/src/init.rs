//! Initial parameter values from a file (config section `init`), for fine-tuning, or for retraining from the weights of
//! another run with a fresh optimizer.

use crate::adapt::{is_adapter, peft};
use crate::foreign::{self, NameMap, Named, WeightFile};
use crate::params::{ParamSet, Params};
use crate::trained::{self, Weights};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use tensor::{Dtype, Tensor};
use unix::Result;

/// Where the initial parameter values come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InitFrom {
    /// Source of the weights: a safetensors or PyTorch file, a checkpoint directory, or a run directory, whose best
    /// checkpoint is used.
    pub from: PathBuf,
    /// Which weights of a checkpoint to use: `ema`, the moving average if the checkpoint has one, or `raw`, the trained
    /// parameters.
    #[serde(default)]
    pub weights: Weights,
    /// How names in the file map to parameter names of the model.
    #[serde(default)]
    pub names: NameMap,
    /// A LoRA adapter of PEFT (adapter_model.safetensors), whose parameters replace those of `from`.
    #[serde(default)]
    pub adapter: Option<PathBuf>,
}

/// Source of the initial tensors.
enum Source {
    File(WeightFile),
    Checkpoint(Vec<(String, Tensor)>),
}

impl InitFrom {
    /// Assigns initial values to `params`, converted to the dtype of each parameter. With `only_frozen`, only the
    /// frozen parameters are assigned, because the trained ones come from the checkpoint being resumed. LoRA parameters
    /// keep their values if the source has none.
    ///
    /// Errors: 66 when the file is missing; 65 when it is damaged or its tensors do not match the model.
    pub fn apply(&self, params: &mut ParamSet, only_frozen: bool) -> Result<()> {
        if only_frozen && params.frozen.entries().is_empty() {
            return Ok(());
        }
        let source = match self.from.is_dir() {
            true => Source::Checkpoint(trained::load_weights(&self.from, self.weights)?),
            false => Source::File(foreign::open(&self.from)?),
        };
        let given: Vec<Named> = match &source {
            Source::File(file) => {
                file.tensors().iter().map(|entry| (&*entry.name, &*entry.shape)).collect()
            }
            Source::Checkpoint(tensors) => {
                tensors.iter().map(|(name, tensor)| (&**name, tensor.shape())).collect()
            }
        };
        let all = [&params.trained, &params.frozen].into_iter().flat_map(Params::entries);
        let wanted: Vec<Named> = all.map(|(name, tensor)| (&**name, tensor.shape())).collect();
        let mut names = self.names.clone();
        if !given.iter().any(|(name, _)| is_adapter(name)) {
            names.keep.extend(wanted.iter().map(|w| w.0.to_string()).filter(|n| is_adapter(n)));
        }
        if only_frozen {
            names.keep.extend(params.trained.entries().iter().map(|(name, _)| name.clone()));
        }
        // An adapter contains only trained parameters, so it is skipped with `only_frozen`.
        let adapter = self.adapter.as_deref().filter(|_| !only_frozen);
        let adapter = adapter.map(|path| MatchedSource::adapter(path, &wanted)).transpose()?;
        if let Some(adapter) = &adapter {
            let own = wanted.iter().zip(&adapter.pairs).filter(|(_, at)| at.is_some());
            names.keep.extend(own.map(|((name, _), _)| name.to_string()));
        }
        let pairs = names.pair(&self.from, &given, &wanted)?;
        let found = MatchedSource { source, pairs };
        let trained = params.trained.entries().len();
        let tensors = params.trained.tensors_mut().chain(params.frozen.tensors_mut());
        for (number, tensor) in tensors.enumerate().filter(|(n, _)| !only_frozen || *n >= trained) {
            for found in [&found].into_iter().chain(&adapter) {
                if let Some(value) = found.value(number, tensor.dtype())? {
                    *tensor = value;
                }
            }
        }
        Ok(())
    }
}

/// A source with, for each model parameter, the index of its tensor.
struct MatchedSource {
    source: Source,
    pairs: Vec<Option<usize>>,
}

impl MatchedSource {
    /// Matches the tensors of a PEFT adapter with the parameters `wanted`, of which it has only some.
    fn adapter(path: &Path, wanted: &[Named]) -> Result<Self> {
        let file = foreign::open(path)?;
        let own = |name: &str| {
            let own =
                |entry: &foreign::TensorEntry| entry.name.strip_prefix(peft::PREFIX) == Some(name);
            file.tensors().iter().any(own)
        };
        let others = wanted.iter().filter(|(name, _)| !own(name));
        let names = NameMap {
            map: vec![format!("{}*=*", peft::PREFIX)],
            keep: others.map(|(name, _)| name.to_string()).collect(),
            ..NameMap::default()
        };
        let given: Vec<Named> =
            file.tensors().iter().map(|entry| (&*entry.name, &*entry.shape)).collect();
        let pairs = names.pair(path, &given, wanted)?;
        Ok(Self { source: Source::File(file), pairs })
    }

    /// Reads the value of the parameter with index `number`; None if the source has none.
    fn value(&self, number: usize, dtype: Dtype) -> Result<Option<Tensor>> {
        let Some(at) = self.pairs[number] else { return Ok(None) };
        match &self.source {
            Source::File(file) => file.read(&file.tensors()[at], dtype).map(Some),
            Source::Checkpoint(tensors) => Ok(Some(tensors[at].1.to_dtype(dtype))),
        }
    }
}
