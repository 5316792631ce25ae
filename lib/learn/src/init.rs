//! Initial values of parameters from a file (section `init`): fine-tuning, and training again from the weights of
//! another run with a fresh optimizer.

use crate::foreign::{self, NameMap, Named, WeightFile};
use crate::params::{ParamSet, Params};
use crate::trained::{self, Weights};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use tensor::Tensor;
use unix::Result;

/// Where initial values come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InitFrom {
    /// A file of weights (safetensors or PyTorch), a checkpoint, or a run, of which the best checkpoint is used.
    pub from: PathBuf,
    /// Of a checkpoint: its moving average (ema), if it has one, or the trained parameters themselves (raw).
    #[serde(default)]
    pub weights: Weights,
    /// Names in the file and in the model.
    #[serde(default)]
    pub names: NameMap,
}

/// The tensors that initial values are taken from.
enum Source {
    File(WeightFile),
    Checkpoint(Vec<(String, Tensor)>),
}

impl InitFrom {
    /// Assigns initial values to `params`; with `only_frozen` to the frozen ones alone, because the trained ones are in
    /// the checkpoint that is resumed. Values are converted to the dtype of the parameter.
    ///
    /// Errors: 66 when the file is missing; 65 when it is damaged or its tensors are not those of the model.
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
