//! A trained operator as read from a checkpoint, without its codec, for tasks that build on it.

use super::{LatentData, OperatorTask};
use crate::common::condition::Condition;
use crate::common::normalisation::Normalisation;
use crate::pde::identity::{hash_of_buffers, hash_of_model};
use crate::pde::models::{Operator, OperatorModel};
use learn::dependency::Dependency;
use learn::params::Builder;
use learn::task::Define;
use learn::trained::{Origin, Parts};
use tensor::Tensor;
use tensor::ops::depthwise_conv::Padding;
use unix::{Error, Result};

/// An operator read from a checkpoint.
#[derive(Clone, Debug)]
pub struct OperatorParts {
    /// Architecture of the operator.
    pub model: OperatorModel,
    /// The training data of the operator.
    pub data: LatentData,
    /// Normalisation of the latents.
    pub scale: Normalisation,
    /// Condition of the operator.
    pub condition: Condition,
    /// The codec of the latents.
    pub codec: Dependency,
    /// Parameters of the operator by name.
    pub weights: Vec<(String, Tensor)>,
    /// The checkpoint.
    pub origin: Origin,
    /// Hash over all of the above, by which other models refer to the operator.
    pub hash: String,
}

impl OperatorParts {
    /// Reads an operator. Errors: 65 for a checkpoint of a different task or missing parts.
    pub fn of(parts: &Parts) -> Result<Self> {
        let (task, wanted) = (&parts.task, OperatorTask::SPEC.name);
        if task != wanted {
            return Err(Error::data(format!("{}: task {task}, expected {wanted}", parts.origin)));
        }
        let (model, data): (OperatorModel, LatentData) =
            (parts.section("model")?, parts.section("data")?);
        let scale = Normalisation::restore("latent", parts)?;
        let condition = Condition::restore(parts)?;
        let Some(codec) = parts.dependencies.get("codec").cloned() else {
            return Err(Error::data(format!("{}: its manifest records no codec", parts.origin)));
        };
        let mut weights = parts.weights.clone();
        weights.sort_by(|a, b| a.0.cmp(&b.0));
        let mut buffers = scale.buffers("latent");
        buffers.extend(condition.buffers());
        let model_hash = hash_of_model(&(&model, data.padding_mode), &weights)?;
        let hash = format!("{model_hash}+{}+{}", hash_of_buffers(&buffers), codec.hash);
        let origin = parts.origin.clone();
        Ok(Self { model, data, scale, condition, codec, weights, origin, hash })
    }

    /// Padding at the border of the domain.
    pub fn padding(&self) -> Padding {
        self.data.padding_mode.into()
    }

    /// Builds the layers, for tokens on `grid`.
    pub fn build(&self, b: &mut Builder, grid: [usize; 2]) -> Operator {
        let dim = self.scale.channels();
        Operator::new(b, &self.model, dim, grid, self.padding(), self.condition.width())
    }
}
