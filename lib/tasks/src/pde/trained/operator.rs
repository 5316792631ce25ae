//! A trained operator and its codec: rollouts of fields.

use super::TrainedCodec;
use crate::pde::evaluate::{Batch, Cost, Frames, Model, Plan, Request, Space, Start, Views};
use crate::pde::latents::{Condition, channel_weights};
use crate::pde::models::{Operator, OperatorModel};
use crate::pde::normalisation::Normalisation;
use crate::pde::operator::{LatentData, OperatorTask};
use crate::trained::{Opener, TrainedModel};
use data::fields::field::{Field, Shape};
use data::fields::parameter::Parameter;
use data::fields::split_set::TrajectorySet;
use data::fields::write::Header;
use learn::forward::Forward;
use learn::score::Bits;
use learn::task::Define;
use learn::trained::{Origin, Parts, Trained};
use std::ops::Range;
use std::time::Instant;
use tensor::{Tensor, Var};
use unix::{Error, Result, warn};

/// States per forward run: enough for all threads, few enough for the caches.
const BATCH: usize = 64;

/// An operator with its weights, the scale of its latents, its condition and the codec of the latents.
#[derive(Clone, Debug)]
pub struct TrainedOperator {
    trained: Trained<Operator>,
    codec: TrainedCodec,
    scale: Normalisation,
    condition: Condition,
    /// Strides that it was trained with, in frames.
    strides: Vec<usize>,
}

impl TrainedOperator {
    /// The requested stride, or the longest one that it was trained with.
    fn stride(&self, request: &Request) -> usize {
        request.stride.unwrap_or(self.strides.iter().copied().max().unwrap_or(1))
    }

    fn warn_of_stride(&self, request: &Request) {
        if let Some(stride) = request.stride.filter(|stride| !self.strides.contains(stride)) {
            warn!("the operator was trained with strides {:?}, not {stride}", self.strides);
        }
    }

    /// Encodes initial fields [n, grid.., channels] in physical units, rolls them out and decodes the states to
    /// [n, steps + 1, grid.., channels].
    fn rollout_fields(
        &self,
        first: &[f32],
        parameters: &[&Parameter],
        time: f64,
        steps: usize,
    ) -> Result<Vec<f32>> {
        let first = self.codec.encode(first)?;
        self.codec.decode(&self.rollout(first.read(), parameters, time, steps)?)
    }

    /// Rolls out unnormalised latents [n, tokens, dim] to [n, steps + 1, tokens, dim], starting with the given states.
    /// `parameters` has one entry per latent state, and `time` is the time per step.
    pub fn rollout(
        &self,
        first: &[f32],
        parameters: &[&Parameter],
        time: f64,
        steps: usize,
    ) -> Result<Vec<f32>> {
        let (tokens, dim) = (self.codec.tokens(), self.codec.dim());
        let mut states = Vec::with_capacity(first.len() * (steps + 1));
        for (first, parameters) in first.chunks(BATCH * tokens * dim).zip(parameters.chunks(BATCH))
        {
            let features: Vec<f32> =
                parameters.iter().flat_map(|p| self.condition.features(p, time)).collect();
            let features = Tensor::from_slice(&features, &[parameters.len(), Condition::FEATURES]);
            let mut z = vec![0.0; first.len()];
            self.scale.apply(first, &mut z);
            let z = Tensor::from_slice(&z, &[parameters.len(), tokens, dim]);
            let predicted = self.trained.run(|forward, operator| {
                let (z, features) = (forward.data(&z)?, forward.data(&features)?);
                rollout(operator, &self.scale, forward, z, &features, steps)
            })?;
            let width = tokens * dim;
            let rows = first.chunks_exact(width).zip(predicted.chunks_exact(steps * width));
            rows.for_each(|(first, rest)| states.extend(first.iter().chain(rest)));
        }
        Ok(states)
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

impl TrainedModel for TrainedOperator {
    /// Restores the operator from its checkpoint and that of its codec.
    ///
    /// Errors: 65 when their parts do not match or the codec is a different one; 66 when the codec cannot be found.
    fn restore(parts: &Parts, opener: &Opener) -> Result<Self> {
        let (model, data): (OperatorModel, LatentData) =
            (parts.section("model")?, parts.section("data")?);
        let codec = opener.dependency(parts, "codec", |parts, opener| {
            let codec = TrainedCodec::restore(parts, opener)?;
            let hash = codec.hash();
            Ok((codec, hash))
        })?;
        let scale = Normalisation::restore("latent", parts)?;
        if scale.channels() != codec.dim() {
            let (own, other) = (scale.channels(), codec.dim());
            let text =
                format!("latents with {own} features per token, but its codec produces {other}");
            return Err(Error::data(text));
        }
        let (dim, grid, padding_mode) = (codec.dim(), codec.token_grid(), data.padding_mode.into());
        let trained = parts.restore(opener.device, |b| {
            Ok(Operator::new(b, &model, dim, grid, padding_mode, Condition::FEATURES))
        })?;
        let (condition, strides) = (Condition::restore(parts)?, data.strides);
        Ok(Self { trained, codec, scale, condition, strides })
    }

    fn models(&self) -> Vec<(&'static str, Origin, usize)> {
        let Trained { origin, params, .. } = &self.trained;
        let own = (OperatorTask::SPEC.name, origin.clone(), params.count());
        std::iter::once(own).chain(self.codec.models()).collect()
    }

    fn shape(&self) -> (&[usize], usize) {
        self.codec.shape()
    }

    fn latent(&self) -> Option<[usize; 2]> {
        self.codec.latent()
    }

    fn plan(&self, set: &TrajectorySet, request: &Request) -> Result<Plan> {
        self.codec.require_fields_of(set.shape(), set.inputs())?;
        self.warn_of_stride(request);
        let views = Views::of(set.fields(), request, self.codec.patch())?;
        Ok(Plan { views, ..Plan::of_rollouts(set, request, self.stride(request))? })
    }

    fn rollouts(
        &self,
        set: &TrajectorySet,
        _: Option<&TrajectorySet>,
        plan: &Plan,
        starts: &[Start],
    ) -> Result<Batch> {
        use Model::{Codec, Mean, Operator, Persistence};
        let count = starts.len();
        let ([truth, latents, codec], mean) = self.codec.truth(set, plan, starts)?;
        let states = plan.steps + 1;
        let width = self.codec.tokens() * self.codec.dim();
        let first: Vec<f32> =
            (0..count).flat_map(|rollout| latents.at(rollout, 0)).copied().collect();
        let parameters: Vec<_> = starts.iter().map(|s| set.entry(s.trajectory).parameter).collect();
        let time = plan.stride as f64 * set.frame_interval();
        let began = Instant::now();
        let predicted = self.rollout(&first, &parameters, time, plan.steps)?;
        let decoded = self.codec.decode(&predicted)?;
        let steps = (count * plan.steps) as u64;
        let cost = |model, views: usize| {
            let seconds = Bits(began.elapsed().as_secs_f64());
            Cost { model, evaluations: steps * views as u64, seconds }
        };
        let (mut costs, mut variances) = (vec![cost(Operator, 1)], Vec::new());
        let fields = |values| Frames::new(values, states, truth.at(0, 0).len());
        let mut averaged = None;
        if let Some(views) = &plan.views {
            let first: Vec<f32> = (0..count).flat_map(|i| truth.at(i, 0)).copied().collect();
            let all = views.average(&first, count, &decoded, |first| {
                self.rollout_fields(first, &parameters, time, plan.steps)
            })?;
            averaged = Some((Model::Views, fields(all.fields)));
            variances = all.variances;
            costs.push(cost(Model::Views, views.count()));
        }
        let mut at_zero = vec![0.0; width];
        self.scale.invert(&vec![0.0; width], &mut at_zero);
        let latent = Space {
            name: "latent",
            models: vec![
                (Operator, Frames::new(predicted, states, width)),
                (Persistence, latents.persistence()),
                (Mean, Frames::constant(at_zero)),
            ],
            truth: latents,
        };
        let weights = channel_weights(&self.scale);
        let roots: Vec<f32> = weights.read::<f32>().iter().map(|w| w.sqrt()).collect();
        let weigh = |frames: &Frames| {
            frames.map(|z, out| {
                self.scale.apply(z, out);
                out.iter_mut().zip(roots.iter().cycle()).for_each(|(z, weight)| *z *= weight);
            })
        };
        let weighted = Space {
            name: "latent_weighted",
            truth: weigh(&latent.truth),
            models: latent.models.iter().map(|(model, frames)| (*model, weigh(frames))).collect(),
        };
        let baselines = [(Persistence, truth.persistence()), (Mean, mean), (Codec, codec)];
        let models = [(Operator, fields(decoded))].into_iter().chain(averaged).chain(baselines);
        let field = Space { name: "field", models: models.collect(), truth };
        Ok(Batch { spaces: vec![field, latent, weighted], costs, variances })
    }

    /// Predicts the rollout from the first frame of every trajectory; the first predicted frame is that frame
    /// reconstructed by the codec.
    fn output(&self, inputs: &Field, request: &Request) -> Result<Header> {
        self.codec.require_fields_of(inputs.shape(), inputs.inputs())?;
        Views::of([inputs], request, self.codec.patch())?;
        self.warn_of_stride(request);
        let shape = Shape { frames: request.steps + 1, ..inputs.shape().clone() };
        let time = self.stride(request) as f64 * self.condition.frame_interval();
        let start = inputs.t().first().copied().unwrap_or(0.0);
        let t = (0..=request.steps).map(|step| start + step as f64 * time).collect();
        Ok(Header::tensor(shape, inputs.coordinates().to_vec(), t))
    }

    fn predict(&self, inputs: &Field, which: Range<usize>, request: &Request) -> Result<Vec<f32>> {
        let length = inputs.shape().frame_len();
        let parameter = inputs.only_regime()?;
        let parameters = vec![&parameter; which.len()];
        let mut fields = vec![0.0; which.len() * length];
        for (trajectory, out) in which.clone().zip(fields.chunks_exact_mut(length)) {
            inputs.read_frames(trajectory, 0..1, out)?;
        }
        let time = self.stride(request) as f64 * self.condition.frame_interval();
        let rollout = |first: &[f32]| self.rollout_fields(first, &parameters, time, request.steps);
        let single = rollout(&fields)?;
        match Views::of([inputs], request, self.codec.patch())? {
            None => Ok(single),
            Some(views) => Ok(views.average(&fields, which.len(), &single, rollout)?.fields),
        }
    }
}
