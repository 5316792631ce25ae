//! A trained corrector as read from a checkpoint, without its operator.

use super::{Correction, CorrectorLoss, CorrectorTask, ResidualScale};
use crate::pde::identity::{hash_of_buffers, hash_of_model};
use crate::pde::models::{Denoiser, NetworkModel};
use learn::dependency::Dependency;
use learn::params::Builder;
use learn::task::Define;
use learn::trained::{Origin, Parts};
use tensor::Tensor;
use tensor::ops::depthwise_conv::Padding;
use unix::{Error, Result};

/// A corrector read from a checkpoint.
#[derive(Clone, Debug)]
pub struct CorrectorParts {
    /// Architecture of the corrector.
    pub model: NetworkModel,
    /// Training objective and sampling options.
    pub loss: CorrectorLoss,
    /// Scale of the residuals.
    pub scale: ResidualScale,
    /// The corrected operator.
    pub operator: Dependency,
    /// Parameters of the corrector by name.
    pub weights: Vec<(String, Tensor)>,
    /// The checkpoint.
    pub origin: Origin,
    /// Hash over all of the above, by which other models refer to the corrector.
    pub hash: String,
}

impl CorrectorParts {
    /// Checks the task of a checkpoint. Errors: 65 if it is not a corrector.
    pub fn require_task(parts: &Parts) -> Result<()> {
        let (task, wanted) = (&parts.task, CorrectorTask::SPEC.name);
        match task == wanted {
            true => Ok(()),
            false => Err(Error::data(format!("{}: task {task}, expected {wanted}", parts.origin))),
        }
    }

    /// Reads a corrector for tokens with `columns` columns. Errors: 65 for a different task or missing parts.
    pub fn of(parts: &Parts, columns: usize) -> Result<Self> {
        Self::require_task(parts)?;
        let (model, loss): (NetworkModel, CorrectorLoss) =
            (parts.section("model")?, parts.section("loss")?);
        let scale = ResidualScale::restore(parts, columns)?;
        let Some(operator) = parts.dependencies.get("operator").cloned() else {
            return Err(Error::data(format!("{}: its manifest records no operator", parts.origin)));
        };
        let mut weights = parts.weights.clone();
        weights.sort_by(|a, b| a.0.cmp(&b.0));
        let model_hash = hash_of_model(&(&model, &loss.objective, &loss.sampling), &weights)?;
        let hash = format!("{model_hash}+{}+{}", hash_of_buffers(&scale.buffers()), operator.hash);
        let origin = parts.origin.clone();
        Ok(Self { model, loss, scale, operator, weights, origin, hash })
    }

    /// Builds the layers, for tokens on `grid` and an operator with a condition of `condition` features.
    pub fn build(
        &self,
        b: &mut Builder,
        grid: [usize; 2],
        padding: Padding,
        condition: usize,
    ) -> Denoiser {
        // One additional feature: the logarithm of the scale.
        Denoiser::new(b, &self.model, self.scale.channels.len(), grid, padding, condition + 1)
    }

    /// Returns the correction with the layers `denoiser`.
    pub(crate) fn correction(&self, denoiser: Denoiser) -> Correction {
        Correction {
            denoiser,
            preconditioning: self.loss.objective.preconditioning(),
            method: self.loss.objective.method(&self.loss.sampling),
            scale: self.scale.clone(),
        }
    }
}
