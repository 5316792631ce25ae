//! Forecasts: rollouts in latent space, by the operator alone or with corrections, decoded and compared with the ground
//! truth and the baselines.

use super::TrainedOperator;
use crate::pde::evaluate::{
    Batch, Cost, Frames, Method, RolloutPlan, RolloutRequest, Space, Start, Views,
};
use crate::pde::latents::channel_weights;
use data::fields::field::Field;
use data::fields::split_set::TrajectorySet;
use learn::score::Bits;
use std::ops::Range;
use std::time::Instant;
use unix::Result;

/// Predicted rollouts and their cost.
pub(super) struct Predicted {
    /// Unnormalised latents [n, steps + 1, tokens, dim].
    pub states: Vec<f32>,
    /// Number of evaluations of the operator and of a denoiser.
    pub evaluations: [u64; 2],
    /// For each searched rollout, the rank correlation between the rewards and the errors of its candidates.
    pub rank_correlations: Vec<f64>,
    /// Number of computed rewards, and the seconds that they took.
    pub rewards: (u64, f64),
}

impl Predicted {
    /// Wraps rollouts of `steps` steps in total, with `denoisings` evaluations of a denoiser per step.
    pub fn plain(states: Vec<f32>, steps: usize, denoisings: usize) -> Self {
        let evaluations = [steps as u64, (steps * denoisings) as u64];
        Self { states, evaluations, rank_correlations: Vec::new(), rewards: (0, 0.0) }
    }
}

/// Maps unnormalised initial latents [n, tokens, dim] to rollouts, for a member of the ensemble.
pub(super) type Rollout<'a> = dyn Fn(&[f32], u64) -> Result<Predicted> + 'a;

/// A model and its rollout function.
pub(super) struct Forecast<'a> {
    pub model: Method,
    /// Predicts rollouts from initial latents.
    pub rollout: Box<Rollout<'a>>,
}

impl<'a> Forecast<'a> {
    /// Creates the forecast of `model`.
    pub fn new(model: Method, rollout: impl Fn(&[f32], u64) -> Result<Predicted> + 'a) -> Self {
        Self { model, rollout: Box::new(rollout) }
    }
}

impl TrainedOperator {
    /// Computes ground truth, baselines and forecasts of some rollouts. Views and members apply to the first forecast.
    pub(super) fn compare(
        &self,
        set: &TrajectorySet,
        plan: &RolloutPlan,
        starts: &[Start],
        forecasts: &[Forecast],
    ) -> Result<Batch> {
        let (codec, count, states) = (self.codec(), starts.len(), plan.steps + 1);
        let ([truth, latents, reconstruction], mean) = codec.truth(set, plan, starts)?;
        let (width, points) = (codec.tokens() * codec.dim(), truth.at(0, 0).len());
        let first: Vec<f32> = (0..count).flat_map(|i| latents.at(i, 0)).copied().collect();
        let (mut in_fields, mut in_latents) = (Vec::new(), Vec::new());
        let (mut costs, mut variances, mut members) = (Vec::new(), Vec::new(), Vec::new());
        let mut rank_correlations = Vec::new();
        for (number, forecast) in forecasts.iter().enumerate() {
            let began = Instant::now();
            let found = (forecast.rollout)(&first, 0)?;
            let Predicted { states: predicted, evaluations, rank_correlations: own, rewards } =
                found;
            let cost = |model, times: usize| Cost {
                model,
                evaluations: evaluations[0] * times as u64,
                denoisings: evaluations[1] * times as u64,
                seconds: Bits(began.elapsed().as_secs_f64()),
                rewards: rewards.0 * times as u64,
                reward_seconds: Bits(rewards.1 * times as f64),
            };
            if !own.is_empty() {
                rank_correlations = own;
            }
            let decoded = codec.decode(&predicted)?;
            costs.push(cost(forecast.model, 1));
            let averaged = match forecast.model {
                Method::Search => Some(Method::SearchViews),
                _ => (number == 0).then_some(Method::Views),
            };
            if let Some((views, model)) = plan.views.as_ref().zip(averaged) {
                let first: Vec<f32> = (0..count).flat_map(|i| truth.at(i, 0)).copied().collect();
                let rollout = |first: &[f32]| Ok((forecast.rollout)(first, 0)?.states);
                let predict = |first: &[f32]| self.rollout_fields(first, rollout);
                let all = views.average(&first, count, &decoded, predict)?;
                in_fields.push((model, Frames::new(all.fields, states, points)));
                if model == Method::Views {
                    variances = all.variances;
                }
                costs.push(cost(model, views.count()));
            }
            let decoded = Frames::new(decoded, states, points);
            if plan.members > 1 && number == 0 {
                members.push(decoded.clone());
                for member in 1..plan.members as u64 {
                    let states_of = codec.decode(&(forecast.rollout)(&first, member)?.states)?;
                    members.push(Frames::new(states_of, states, points));
                }
                in_fields.push((Method::Ensemble, Frames::mean(&members)));
                costs.push(cost(Method::Ensemble, plan.members));
            }
            in_fields.insert(number, (forecast.model, decoded));
            in_latents.push((forecast.model, Frames::new(predicted, states, width)));
        }
        let mut at_zero = vec![0.0; width];
        self.scale().invert(&vec![0.0; width], &mut at_zero);
        in_latents.push((Method::Persistence, latents.persistence()));
        in_latents.push((Method::Mean, Frames::constant(at_zero)));
        let latent = Space { name: "latent", models: in_latents, truth: latents };
        let weights = channel_weights(self.scale());
        let roots: Vec<f32> = weights.read::<f32>().iter().map(|w| w.sqrt()).collect();
        let weigh = |frames: &Frames| {
            frames.map(|z, out| {
                self.scale().apply(z, out);
                out.iter_mut().zip(roots.iter().cycle()).for_each(|(z, weight)| *z *= weight);
            })
        };
        let weighted = Space {
            name: "latent_weighted",
            truth: weigh(&latent.truth),
            models: latent.models.iter().map(|(model, frames)| (*model, weigh(frames))).collect(),
        };
        in_fields.push((Method::Persistence, truth.persistence()));
        in_fields.push((Method::Mean, mean));
        in_fields.push((Method::Codec, reconstruction));
        let field = Space { name: "field", truth, models: in_fields };
        Ok(Batch {
            spaces: vec![field, latent, weighted],
            members,
            costs,
            variances,
            rank_correlations,
        })
    }

    /// Encodes initial fields [n, grid.., channels] in physical units, rolls them out and decodes the states to [n,
    /// steps + 1, grid.., channels].
    fn rollout_fields(
        &self,
        first: &[f32],
        rollout: impl Fn(&[f32]) -> Result<Vec<f32>>,
    ) -> Result<Vec<f32>> {
        self.codec().decode(&rollout(self.codec().encode(first)?.read())?)
    }

    /// Predicts decoded rollouts from the first frames of trajectories `which`, averaged over the requested views.
    pub(super) fn predict_with(
        &self,
        inputs: &Field,
        which: Range<usize>,
        request: &RolloutRequest,
        rollout: impl Fn(&[f32]) -> Result<Vec<f32>>,
    ) -> Result<Vec<f32>> {
        let length = inputs.shape().frame_len();
        let mut fields = vec![0.0; which.len() * length];
        for (trajectory, out) in which.clone().zip(fields.chunks_exact_mut(length)) {
            inputs.read_frames(trajectory, 0..1, out)?;
        }
        let predict = |first: &[f32]| self.rollout_fields(first, &rollout);
        let single = predict(&fields)?;
        match Views::of([inputs], request, self.codec().patch())? {
            None => Ok(single),
            Some(views) => Ok(views.average(&fields, which.len(), &single, predict)?.fields),
        }
    }
}
