//! Initial parameter values from a file (config section `init`): for fine-tuning, or for retraining from the weights of
//! another run with a fresh optimizer.

use crate::foreign::{self, NameMap, Named, WeightFile};
use crate::params::{ParamSet, Params};
use crate::trained::{self, Weights};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use tensor::Tensor;
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
}

/// The tensors that the initial values are read from.
enum Source {
    File(WeightFile),
    Checkpoint(Vec<(String, Tensor)>),
}

impl InitFrom {
    /// Assigns initial values to `params`, converted to the dtype of each parameter. With `only_frozen` only the frozen
    /// parameters are assigned, because the trained ones come from the checkpoint being resumed.
    ///
    /// Errors: 66 when the file is missing; 65 when it is damaged or its tensors do not match the model.
    pub fn apply(&self, params: &mut ParamSet, only_frozen: bool) -> Result<()> {
        if only_frozen && params.frozen.entries().is_empty() {
            return Ok(());
        }
        let source = match self.from.is_dir() {
            true => Source::Checkpoint(trained::weights(&self.from, self.weights)?),
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
        let pairs = self.names.pair(&self.from, &given, &wanted)?;
        let trained = params.trained.entries().len();
        let tensors = params.trained.tensors_mut().chain(params.frozen.tensors_mut());
        for (number, (tensor, at)) in tensors.zip(pairs).enumerate() {
            let Some(at) = at.filter(|_| !only_frozen || number >= trained) else { continue };
            *tensor = match &source {
                Source::File(file) => file.read(&file.tensors()[at], tensor.dtype())?,
                Source::Checkpoint(tensors) => tensors[at].1.to_dtype(tensor.dtype()),
            };
        }
        Ok(())
    }
}
