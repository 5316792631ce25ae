//! A trained latent operator: from state to state, and along a rollout.

use super::TrainedCodec;
use crate::pde::latents::{Condition, LatentScale};
use crate::pde::models::{Operator, OperatorModel};
use crate::pde::operator::{LatentData, OperatorTask};
use data::fields::parameter::Parameter;
use learn::params::{Builder, Params};
use learn::pass::Pass;
use learn::task::Hashes;
use learn::trained::{Origin, Parts, Weights};
use std::path::Path;
use tensor::{Device, Dtype, Tape, Tensor};
use unix::{Context, Error, Result};

/// States that go through the model at once: enough for all threads, few enough for the caches.
const BATCH: usize = 64;

/// An operator with its weights, the scale of its latents and its condition.
#[derive(Clone, Debug)]
pub struct TrainedOperator {
    origin: Origin,
    operator: Operator,
    params: Params,
    scale: LatentScale,
    condition: Condition,
    strides: Vec<usize>,
}

impl TrainedOperator {
    /// Opens an operator on the latents of `codec`: a checkpoint, or a run directory, of which the best
    /// checkpoint is taken.
    ///
    /// Errors: 66 when there is none; 65 when it is damaged, no operator's, or was trained on latents of
    /// another codec.
    pub fn open(path: &Path, weights: Weights, codec: &TrainedCodec) -> Result<Self> {
        let parts = Parts::read::<OperatorTask>(path, weights)?;
        Self::new(&parts, codec).context(|| parts.origin.checkpoint.display().to_string())
    }

    /// From its parts. Errors: 65 when they do not fit each other or the codec.
    pub fn new(parts: &Parts, codec: &TrainedCodec) -> Result<Self> {
        let (model, data): (OperatorModel, LatentData) =
            (parts.section("model")?, parts.section("data")?);
        let buffers = &parts.buffers;
        require_codec(&parts.hashes, codec)?;
        let scale = LatentScale::from_buffers(buffers)?;
        if scale.dim() != codec.dim() {
            return Err(Error::data(format!(
                "the operator's latents have {} features, the codec's {}",
                scale.dim(),
                codec.dim()
            )));
        }
        let mut builder = Builder::new(0);
        let operator = Operator::new(
            &mut builder,
            &model,
            codec.dim(),
            codec.token_grid(),
            data.border.into(),
            Condition::FEATURES,
        );
        let mut params = builder.finish();
        params.assign(&parts.weights)?;
        let condition = Condition::from_buffers(buffers)?;
        let (origin, strides) = (parts.origin.clone(), data.strides);
        Ok(Self { origin, operator, params, scale, condition, strides })
    }

    /// The same, computing on `device`.
    pub fn on(mut self, device: Device) -> Result<Self> {
        self.params = self.params.to_device(device)?;
        Ok(self)
    }

    /// Where it came from.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Numbers in the model.
    pub fn parameters(&self) -> usize {
        self.params.count()
    }

    /// Scale of its latents.
    pub fn scale(&self) -> &LatentScale {
        &self.scale
    }

    /// Frames from state to state that it was trained with.
    pub fn strides(&self) -> &[usize] {
        &self.strides
    }

    /// The condition [n, features] of states with these parameters and this time from state to state.
    pub fn features<'a>(
        &self,
        parameters: impl IntoIterator<Item = &'a Parameter>,
        time: f64,
    ) -> Tensor {
        let parameters = parameters.into_iter();
        let features: Vec<f32> =
            parameters.flat_map(|p| self.condition.features(p, time)).collect();
        Tensor::of(&features, &[features.len() / Condition::FEATURES, Condition::FEATURES])
    }

    /// Normalised states [n, tokens, dim] -> the next ones.
    pub fn step(&self, z: &Tensor, features: &Tensor) -> Result<Tensor> {
        let tape = Tape::without_gradients();
        let pass = Pass::frozen(&tape, &self.params);
        let (z, features) = (pass.data(z)?, pass.data(features)?);
        self.operator.forward(&pass, &z, &features)?.value().to_host()
    }

    /// Latents [n, tokens, dim] in the codec's own scale -> those after each of `steps` steps.
    pub fn rollout(&self, first: &Tensor, features: &Tensor, steps: usize) -> Result<Vec<Tensor>> {
        let [count, tokens, dim] = [0, 1, 2].map(|axis| first.shape()[axis]);
        let width = tokens * dim;
        let empty = || Tensor::arbitrary(first.shape(), Dtype::F32);
        let mut states: Vec<Tensor> = (0..steps).map(|_| empty()).collect();
        for start in (0..count).step_by(BATCH) {
            let end = count.min(start + BATCH);
            let rows = start * width..end * width;
            let shape = [end - start, tokens, dim];
            let mut z = Tensor::arbitrary(&shape, Dtype::F32);
            self.scale.normalise(&first.read::<f32>()[rows.clone()], z.write());
            let f = Condition::FEATURES;
            let own = Tensor::of(&features.read::<f32>()[start * f..end * f], &[end - start, f]);
            for state in &mut states {
                z = self.step(&z, &own)?;
                self.scale.restore(z.read(), &mut state.write::<f32>()[rows.clone()]);
            }
        }
        Ok(states)
    }
}

/// Refuses a codec other than the one whose latents the operator was trained on.
fn require_codec(hashes: &Hashes, codec: &TrainedCodec) -> Result<()> {
    let given =
        [("codec", codec.hash().to_string()), ("normalisation", codec.normalisation_hash())];
    for (what, given) in given {
        let name = format!("latent.{what}");
        let Some(own) = hashes.get(&name) else {
            return Err(Error::data(format!("the manifest of the checkpoint has no hash {name}")));
        };
        if *own != given {
            return Err(Error::data(format!(
                "the operator was trained on latents of another {what} ({own}) than that of {} \
                 ({given}); give the codec that latent-cache used, or train the operator on latents of \
                 this one",
                codec.origin()
            )));
        }
    }
    Ok(())
}
