//! A trained operator and its codec: rollouts of fields.

use super::TrainedCodec;
use super::candidates::{Candidates, Source};
use super::forecast::{Forecast, Predicted};
use crate::common::condition::Condition;
use crate::common::normalisation::Normalisation;
use crate::pde::evaluate::{Batch, Method, RolloutPlan, RolloutRequest, Rollouts, Start, Views};
use crate::pde::models::Operator;
use crate::pde::operator::{OperatorParts, OperatorTask};
use crate::pde::search::Search;
use crate::trained::Opener;
use data::fields::field::{Field, Shape};
use data::fields::parameter::Parameter;
use data::fields::split_set::TrajectorySet;
use data::fields::write::Header;
use learn::forward::Forward;
use learn::task::Define;
use learn::trained::{Origin, Parts, TrainedModel};
use std::ops::Range;
use tensor::ops::depthwise_conv::Padding;
use tensor::{Tensor, Var};
use unix::{Error, Result, warn};

/// Maximum relative difference of two time steps that are considered equal.
const SAME_TIME: f64 = 0.01;

/// Number of states per forward pass: enough for all threads, few enough for the caches.
const BATCH: usize = 64;

/// An operator with its weights, the scale of its latents, its condition and the codec of the latents.
#[derive(Clone, Debug)]
pub struct TrainedOperator {
    trained: TrainedModel<Operator>,
    codec: TrainedCodec,
    scale: Normalisation,
    condition: Condition,
    /// Padding at the border of the domain.
    padding: Padding,
    /// Strides used in training, in frames.
    strides: Vec<usize>,
    hash: String,
}

impl TrainedOperator {
    /// Returns the hash over the operator and the hash of its codec, by which other models refer to the operator.
    pub(super) fn hash(&self) -> &str {
        &self.hash
    }

    /// Returns the codec of the latents.
    pub(super) fn codec(&self) -> &TrainedCodec {
        &self.codec
    }

    /// Returns the normalisation of the latents.
    pub(super) fn scale(&self) -> &Normalisation {
        &self.scale
    }

    /// Padding at the border of the domain.
    pub(super) fn padding(&self) -> Padding {
        self.padding
    }

    /// Returns the layers of the operator.
    pub(super) fn layers(&self) -> &Operator {
        &self.trained.model
    }

    /// Runs `body` in one forward pass of the operator.
    pub(super) fn run<R>(&self, body: impl FnOnce(&Forward, &Operator) -> Result<R>) -> Result<R> {
        self.trained.run(body)
    }

    /// Returns rows and columns of the token grid, and the number of features per token.
    pub(super) fn tokens(&self) -> ([usize; 2], usize) {
        (self.codec.token_grid(), self.codec.dim())
    }

    /// Returns the forecast of the operator alone.
    pub(super) fn forecast<'a>(
        &'a self,
        parameters: &'a [&'a Parameter],
        time: f64,
        steps: usize,
    ) -> Forecast<'a> {
        Forecast::new(Method::Operator, move |first, _| {
            let states = self.rollout(first, parameters, time, steps)?;
            Ok(Predicted::plain(states, parameters.len() * steps, 0))
        })
    }

    /// Returns the requested stride, or the longest stride used in training.
    fn stride(&self, request: &RolloutRequest) -> usize {
        request.stride.unwrap_or(self.strides.iter().copied().max().unwrap_or(1))
    }

    /// Returns the time per step of a rollout from a file of trajectories with this parameter. Errors: 65 for the
    /// parameter of an equation that the operator was not trained on.
    pub(super) fn time_step(&self, parameter: &Parameter, request: &RolloutRequest) -> Result<f64> {
        Ok(self.stride(request) as f64 * self.condition.frame_interval(parameter)?)
    }

    /// Returns the condition of the operator.
    pub(super) fn condition(&self) -> &Condition {
        &self.condition
    }

    fn warn_of_stride(&self, request: &RolloutRequest) {
        if let Some(stride) = request.stride.filter(|stride| !self.strides.contains(stride)) {
            warn!("the operator was trained with strides {:?}, not {stride}", self.strides);
        }
    }

    /// Rolls out unnormalised latents with `step`, which receives the normalised initial states [b, tokens, dim], their
    /// conditions on the host and the index of the first state, and returns the unnormalised states of `steps` steps,
    /// [b, steps, tokens, dim]. The result is [n, steps + 1, tokens, dim], starting with the initial states.
    pub(super) fn rollout_with(
        &self,
        first: &[f32],
        parameters: &[&Parameter],
        (time, steps): (f64, usize),
        step: impl Fn(&Forward, Var, &Tensor, usize) -> Result<Vec<f32>>,
    ) -> Result<Vec<f32>> {
        let (tokens, dim) = (self.codec.tokens(), self.codec.dim());
        let width = tokens * dim;
        let mut states = Vec::with_capacity(first.len() * (steps + 1));
        let batches = first.chunks(BATCH * width).zip(parameters.chunks(BATCH));
        for (number, (first, parameters)) in batches.enumerate() {
            let features = self.condition.features_of(parameters, time)?;
            let mut z = vec![0.0; first.len()];
            self.scale.apply(first, &mut z);
            let z = Tensor::from_slice(&z, &[parameters.len(), tokens, dim]);
            let predicted = self
                .trained
                .run(|forward, _| step(forward, forward.data(&z)?, &features, number * BATCH))?;
            let rows = first.chunks_exact(width).zip(predicted.chunks_exact(steps * width));
            rows.for_each(|(first, rest)| states.extend(first.iter().chain(rest)));
        }
        Ok(states)
    }

    /// Rolls out unnormalised latents [n, tokens, dim] to [n, steps + 1, tokens, dim], starting with the initial
    /// states. `parameters` has one entry per initial state, and `time` is the time per step.
    pub fn rollout(
        &self,
        first: &[f32],
        parameters: &[&Parameter],
        time: f64,
        steps: usize,
    ) -> Result<Vec<f32>> {
        let operator = &self.trained.model;
        self.rollout_with(first, parameters, (time, steps), |forward, z, features, _| {
            rollout(operator, &self.scale, forward, z, &forward.data(features)?, steps)
        })
    }
}

/// Rolls out normalised latents [n, tokens, dim]; returns the unnormalised states of `steps` steps, [n, steps, tokens,
/// dim].
pub(crate) fn rollout(
    operator: &Operator,
    scale: &Normalisation,
    forward: &Forward,
    mut z: Var,
    features: &Var,
    steps: usize,
) -> Result<Vec<f32>> {
    let width: usize = z.shape()[1..].iter().product();
    let mut states = vec![0.0; z.value().len() * steps];
    for step in 0..steps {
        z = operator.forward(forward, &z, features)?;
        let host = z.value().to_host()?;
        let rows = states.chunks_exact_mut(steps * width);
        for (z, out) in host.read::<f32>().chunks_exact(width).zip(rows) {
            scale.invert(z, &mut out[step * width..][..width]);
        }
    }
    Ok(states)
}

impl Rollouts for TrainedOperator {
    /// Restores the operator from its checkpoint, and the codec from the codec's checkpoint.
    ///
    /// Errors: 65 when checkpoints are inconsistent or the codec is a different one; 66 when the codec cannot be found.
    fn restore(parts: &Parts, opener: &Opener) -> Result<Self> {
        let own = OperatorParts::of(parts)?;
        let codec = opener.dependency(parts, "codec", |parts, opener| {
            let codec = TrainedCodec::restore(parts, opener)?;
            let hash = codec.hash();
            Ok((codec, hash))
        })?;
        if own.scale.channels() != codec.dim() {
            let (own, other) = (own.scale.channels(), codec.dim());
            let text =
                format!("latents with {own} features per token, but its codec produces {other}");
            return Err(Error::data(text));
        }
        let grid = codec.token_grid();
        let trained = parts.restore(opener.mode, |b| Ok(own.build(b, grid)))?;
        let (padding, strides) = (own.padding(), own.data.strides);
        let OperatorParts { scale, condition, hash, .. } = own;
        Ok(Self { trained, codec, scale, condition, padding, hash, strides })
    }

    fn models(&self) -> Vec<(&'static str, Origin, usize)> {
        let TrainedModel { origin, params, .. } = &self.trained;
        let own = (OperatorTask::SPEC.name, origin.clone(), params.count());
        std::iter::once(own).chain(self.codec.models()).collect()
    }

    fn shape(&self) -> (&[usize], usize) {
        self.codec.shape()
    }

    fn latent(&self) -> Option<[usize; 2]> {
        self.codec.latent()
    }

    fn operator(&self) -> Option<&TrainedOperator> {
        Some(self)
    }

    fn plan(&self, set: &TrajectorySet, request: &RolloutRequest) -> Result<RolloutPlan> {
        self.codec.require_fields_of(set.shape(), set.inputs())?;
        let time = self.stride(request) as f64 * set.frame_interval();
        let mut is_known = true;
        for trajectory in 0..set.len() {
            let interval = self.condition.frame_interval(set.entry(trajectory).parameter)?;
            let is_near = |stride: &usize| {
                let trained = *stride as f64 * interval;
                (time - trained).abs() <= SAME_TIME * trained
            };
            is_known &= self.strides.iter().any(is_near);
        }
        if !is_known {
            let (interval, strides) = (set.frame_interval(), &self.strides);
            warn!(
                "frames {interval} apart and this stride make time steps of {time}, with which the operator was not \
                 trained; its strides are {strides:?}, see --stride"
            );
        }
        let views = Views::of(set.fields(), request, self.codec.patch())?;
        let plan = RolloutPlan::of_rollouts(set, request, self.stride(request))?;
        // The candidates are the predictions for each parameter value.
        let search = request.search.map(|own| Search { candidates: plan.regimes.len(), ..own });
        if search.is_some() && plan.regimes.len() == 1 {
            return Err(Error::usage(
                "--search: all candidates would be equal, because the operator is deterministic and the data has only one parameter value",
            ));
        }
        Ok(RolloutPlan { views, search, equation: request.equation, ..plan })
    }

    fn rollouts(
        &self,
        set: &TrajectorySet,
        _: Option<&TrajectorySet>,
        plan: &RolloutPlan,
        starts: &[Start],
    ) -> Result<Batch> {
        let (parameters, time) = (plan.parameters(set, starts), plan.time_step(set));
        let searched = match &plan.search {
            None => None,
            Some(own) => Some(Candidates::new(self, Source::Guesses, *own, plan, set, starts)?),
        };
        let mut forecasts = vec![self.forecast(&parameters, time, plan.steps)];
        forecasts.extend(searched.iter().flat_map(Candidates::forecasts));
        self.compare(set, plan, starts, &forecasts)
    }

    /// Predicts the rollout from the first frame of every trajectory; the first predicted frame is that frame
    /// reconstructed by the codec.
    fn output(&self, inputs: &Field, request: &RolloutRequest) -> Result<Header> {
        self.codec.require_fields_of(inputs.shape(), inputs.inputs())?;
        Views::of([inputs], request, self.codec.patch())?;
        self.warn_of_stride(request);
        let shape = Shape { frames: request.steps + 1, ..inputs.shape().clone() };
        let time = self.time_step(&inputs.only_regime()?, request)?;
        let start = inputs.t().first().copied().unwrap_or(0.0);
        let t = (0..=request.steps).map(|step| start + step as f64 * time).collect();
        Ok(Header::tensor(shape, inputs.coordinates().to_vec(), t))
    }

    fn predict(
        &self,
        inputs: &Field,
        which: Range<usize>,
        request: &RolloutRequest,
    ) -> Result<Vec<f32>> {
        let parameter = inputs.only_regime()?;
        let time = self.time_step(&parameter, request)?;
        let parameters = vec![&parameter; which.len()];
        self.predict_with(inputs, which, request, |first: &[f32]| {
            self.rollout(first, &parameters, time, request.steps)
        })
    }
}
