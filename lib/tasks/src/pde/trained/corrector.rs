//! A trained corrector with its operator and codec: rollouts with a correction after every step.

use super::TrainedOperator;
use crate::pde::corrector::{Correction, CorrectorLoss, CorrectorTask, FEATURES, ResidualScale};
use crate::pde::evaluate::{Batch, Model, Plan, Request, Start};
use crate::pde::models::{Denoiser, DenoiserModel};
use crate::pde::operator::OperatorParts;
use crate::trained::{Opener, TrainedModel};
use data::fields::field::Field;
use data::fields::parameter::Parameter;
use data::fields::split_set::TrajectorySet;
use data::fields::write::Header;
use learn::task::Define;
use learn::trained::{Origin, Parts, Trained};
use std::ops::Range;
use tensor::Var;
use unix::{Error, Result};

/// Seed of the noise of evaluations.
const SEED: u64 = 0;

/// A corrector with its weights, its operator and the codec of the latents.
#[derive(Clone, Debug)]
pub struct TrainedCorrector {
    trained: Trained<Correction>,
    operator: TrainedOperator,
}

impl TrainedCorrector {
    /// Rolls out unnormalised latents [n, tokens, dim] to [n, steps + 1, tokens, dim]. Each rollout has an id of its
    /// own, on which its noise depends, but not on the others.
    fn rollout(
        &self,
        first: &[f32],
        parameters: &[&Parameter],
        (time, steps): (f64, usize),
        ids: &[u64],
    ) -> Result<Vec<f32>> {
        let operator = self.operator.layers();
        self.operator.rollout_with(
            first,
            parameters,
            (time, steps),
            |frozen, z, features, start| {
                let operate = |z: &Var, features: &Var| operator.forward(frozen, z, features);
                let ids = &ids[start..start + z.shape()[0]];
                self.trained.run(|forward, correction| {
                    let (from, how) = ((z.clone(), features), (steps, SEED, ids));
                    correction.rollout(forward, self.operator.scale(), from, how, operate)
                })
            },
        )
    }
}

impl TrainedModel for TrainedCorrector {
    /// Restores the corrector from its checkpoint, and its operator and codec from theirs.
    ///
    /// Errors: 65 when their parts do not match or the operator is a different one; 66 when a checkpoint cannot be found.
    fn restore(parts: &Parts, opener: &Opener) -> Result<Self> {
        let (model, loss): (DenoiserModel, CorrectorLoss) =
            (parts.section("model")?, parts.section("loss")?);
        let (operator, padding) = opener.dependency(parts, "operator", |parts, opener| {
            let operator = TrainedOperator::restore(parts, opener)?;
            let (padding, hash) =
                (OperatorParts::of(parts)?.padding(), operator.hash().to_string());
            Ok(((operator, padding), hash))
        })?;
        let (grid, dim) = operator.tokens();
        let scale = ResidualScale::restore(parts, grid[1])?;
        if scale.channels.len() != dim {
            let channels = scale.channels.len();
            return Err(Error::data(format!(
                "corrects latents with {channels} features per token, but its operator has {dim}"
            )));
        }
        let trained = parts.restore(opener.device, |b| {
            Ok(Correction {
                denoiser: Denoiser::new(b, &model, dim, grid, padding, FEATURES),
                preconditioning: loss.objective.preconditioning(),
                method: loss.objective.method(&loss.sampling),
                scale,
            })
        })?;
        Ok(Self { trained, operator })
    }

    fn models(&self) -> Vec<(&'static str, Origin, usize)> {
        let Trained { origin, params, .. } = &self.trained;
        let own = (CorrectorTask::SPEC.name, origin.clone(), params.count());
        std::iter::once(own).chain(self.operator.models()).collect()
    }

    fn shape(&self) -> (&[usize], usize) {
        self.operator.shape()
    }

    fn latent(&self) -> Option<[usize; 2]> {
        self.operator.latent()
    }

    fn plan(&self, set: &TrajectorySet, request: &Request) -> Result<Plan> {
        self.operator.plan(set, request)
    }

    fn rollouts(
        &self,
        set: &TrajectorySet,
        _: Option<&TrajectorySet>,
        plan: &Plan,
        starts: &[Start],
    ) -> Result<Batch> {
        let frames = set.shape().frames as u64;
        let id = |start: &Start| start.trajectory as u64 * frames + start.frame as u64;
        let ids: Vec<u64> = starts.iter().map(id).collect();
        self.operator.compare(set, plan, starts, |first, parameters, time| {
            let corrected = self.rollout(first, parameters, (time, plan.steps), &ids)?;
            let bare = self.operator.rollout(first, parameters, time, plan.steps)?;
            Ok(vec![(Model::Corrector, corrected), (Model::Operator, bare)])
        })
    }

    fn output(&self, inputs: &Field, request: &Request) -> Result<Header> {
        self.operator.output(inputs, request)
    }

    /// One sample of the rollout from the first frame of every trajectory.
    fn predict(&self, inputs: &Field, which: Range<usize>, request: &Request) -> Result<Vec<f32>> {
        let ids: Vec<u64> = which.clone().map(|trajectory| trajectory as u64).collect();
        self.operator.predict_with(inputs, which, request, |first, parameters, time| {
            self.rollout(first, parameters, (time, request.steps), &ids)
        })
    }
}
