//! A trained critic: a learned reward for test-time search.

use super::TrainedOperator;
use crate::common::condition::Condition;
use crate::pde::corrector::{ResidualScale, Scales};
use crate::pde::critic::CriticTask;
use crate::pde::models::{Critic, NetworkModel};
use crate::trained::Opener;
use data::fields::parameter::Parameter;
use learn::task::Define;
use learn::trained::{Origin, Parts, TrainedModel};
use std::path::Path;
use tensor::Tensor;
use unix::{Error, Result};

/// A critic with its weights and its condition.
#[derive(Clone, Debug)]
pub struct TrainedCritic {
    trained: TrainedModel<Critic>,
    condition: Condition,
    /// Scale of the operator's residuals.
    scale: ResidualScale,
}

impl TrainedCritic {
    /// Opens the critic at `path`, a checkpoint or a run directory, for candidates in the latents of `operator`.
    ///
    /// Errors: 66 when there is no checkpoint; 65 for a different task, or for a critic of a different operator.
    pub fn open(path: &Path, opener: &Opener, operator: &TrainedOperator) -> Result<Self> {
        let parts = Parts::read(path, opener.weights)?;
        let (origin, wanted) = (&parts.origin, CriticTask::SPEC.name);
        if parts.task != wanted {
            return Err(Error::data(format!("{origin}: task {}, expected {wanted}", parts.task)));
        }
        let recorded = parts.dependencies.get("operator");
        if recorded.is_none_or(|recorded| recorded.hash != operator.hash()) {
            return Err(Error::data(format!(
                "{origin}: a critic of another operator than that of the searched model; train one with \
                 data.corrector set to the searched model"
            )));
        }
        let (model, condition): (NetworkModel, _) =
            (parts.section("model")?, Condition::restore(&parts)?);
        let ((grid, dim), padding) = (operator.tokens(), operator.padding());
        let trained = parts.restore(opener.mode, |b| {
            Ok(Critic::new(b, &model, dim, grid, padding, condition.width()))
        })?;
        let scale = ResidualScale::restore(&parts, grid[1])?;
        Ok(Self { trained, condition, scale })
    }

    /// Returns task, origin and number of parameters.
    pub fn model(&self) -> (&'static str, Origin, usize) {
        (CriticTask::SPEC.name, self.trained.origin.clone(), self.trained.params.count())
    }

    /// Returns the critic's condition for rollouts with these parameters, [n, F]. Errors: those of
    /// [`Condition::features`].
    pub(super) fn features_of(&self, parameters: &[&Parameter], time: f64) -> Result<Tensor> {
        self.condition.features_of(parameters, time)
    }

    /// Predicts the RMS error, in normalised latents, of each candidate, from normalised states and candidates [n,
    /// tokens, dim], and from the conditions of critic and operator [n, F].
    pub(super) fn errors(
        &self,
        states: [&Tensor; 2],
        [own, operator]: [&Tensor; 2],
    ) -> Result<Vec<f64>> {
        let scale = Scales::of(&self.scale, states[0], operator).scale;
        let found = self.trained.run(|forward, critic| {
            let [z, candidate] = states.map(|states| forward.data(states));
            let [features, scale] = [own, &scale].map(|told| forward.data(told));
            let found = critic.forward(forward, [&z?, &candidate?], [&features?, &scale?])?;
            found.value().to_host()
        })?;
        Ok(found.to_f64().into_iter().map(f64::exp).collect())
    }
}
