//! Task `operator`: predicts the latent state of the next frame from that of the current one, trained through rollouts
//! of a few steps.
//!
//! With ẑ_k the k-th state of a rollout from z_0, L = mean over k = 1..=h and samples of Σ_c σ_c²·mean_t(ẑ_k -
//! z_k)²/(energy of z_0 + floor), with gradients through the whole rollout. States are normalised by channel; σ_c²
//! gives errors the weight that they have in the unnormalised latents, and dividing by the energy gives decayed fields
//! the same weight as initial ones. Optional terms for the first step: the relative error of the spectral energy over
//! tokens, the squared error of the magnitude spectra over features, and the relative error.
//!
//! An operator of several equations is told which one by its condition ([`Condition`]).

mod by_equation;
mod config;
mod spectra;
mod stores;

pub use config::{LatentData, LatentSource, OperatorConfig, OperatorLoss};

use super::sources::{Sources, joined};
use super::trained::rollout;
use crate::pde::latents::{Condition, channel_weights, codec_of, mean_square};
use crate::pde::models::{Operator, OperatorModel};
use crate::pde::normalisation::Normalisation;
use by_equation::{ErrorsByEquation, add_weights};
use data::fields::latents::LatentStore;
use data::inputs::InputFile;
use learn::forward::Forward;
use learn::params::{Builder, ParamSet};
use learn::score::{Scores, Sums};
use learn::task::{
    Batch, Buffers, ConfigOf, Define, Dependencies, Direction, Loss, Predictions, Spec, Task, Term,
};
use tensor::ops::relative_error::RelativeError;
use tensor::ops::squared_error::SquaredError;
use tensor::ops::weighted_sum::WeightedSum;
use tensor::random::{Philox, Purpose};
use tensor::{Dtype, Tensor, Var};
use unix::config::Violations;
use unix::{Error, Result};

/// The task.
pub struct OperatorTask {
    operator: Operator,
    scale: Normalisation,
    condition: Condition,
    data: LatentData,
    loss: OperatorLoss,
    train: Sources<LatentStore>,
    validation: Sources<LatentStore>,
    seed: u64,
    /// Total number of micro-batches in training.
    micro_batches: u64,
}

/// Name of the batch tensor with the k-th states of the target rollouts, [B, T, D].
fn state_name(k: usize) -> String {
    format!("states.{k}")
}

impl OperatorTask {
    /// Number of start frames from which a rollout fits with this stride.
    fn starts(store: &LatentStore, steps: usize, stride: usize) -> u64 {
        (store.layout().frames - steps * stride) as u64
    }

    fn longest_stride(&self) -> usize {
        self.data.strides.iter().copied().max().unwrap_or(1)
    }

    fn longest_horizon(&self) -> usize {
        self.loss.horizons.iter().copied().max().unwrap_or(1)
    }

    /// Rollout length of a micro-batch.
    fn horizon(&self, micro_batch: u64) -> usize {
        let parts = self.loss.horizons.len();
        let part = (u128::from(micro_batch) * parts as u128 / u128::from(self.micro_batches.max(1)))
            as usize;
        self.loss.horizons[part.min(parts - 1)]
    }

    /// The start frame of a rollout for a uniformly drawn `place` below `starts`; see the key `data.start_bias`.
    fn start(&self, place: u64, starts: u64) -> usize {
        let uniform = (place as f64 + 0.5) / starts as f64;
        ((uniform.powf(self.data.start_bias) * starts as f64) as u64).min(starts - 1) as usize
    }

    /// The condition of a trajectory.
    fn features(&self, store: &LatentStore, trajectory: usize, stride: usize) -> Result<Vec<f32>> {
        let time = stride as f64 * store.frame_interval();
        self.condition.features(store.equation(), store.parameter(trajectory).value, time)
    }

    /// Weight of a rollout, from the energy of its initial latents relative to the mean energy of all.
    fn weight(&self, initial: &[f32]) -> f32 {
        let squares: f64 = initial.iter().map(|x| f64::from(*x).powi(2)).sum();
        let energy = squares / initial.len() as f64 / mean_square(&self.scale);
        (1.0 / (energy + self.loss.floor)) as f32
    }
}

/// Error of rollouts in latent space, over all steps and trajectories of each regime.
const METRIC: &str = "rollout_nrmse";
/// The same over all trajectories of each equation, if there are several.
const METRIC_BY_EQUATION: &str = "rollout_nrmse_by_equation";

impl Define for OperatorTask {
    const SPEC: Spec =
        Spec::new("operator", METRIC, Direction::Minimize, include_str!("operator.yaml"));
    type Data = LatentData;
    type Model = OperatorModel;
    type Loss = OperatorLoss;

    fn violations(config: &OperatorConfig) -> Violations {
        config::violations(config)
    }

    fn open(config: &ConfigOf<Self>) -> Result<(Self, ParamSet)> {
        let [train, validation] = stores::open_all(&config.data)?;
        let longest = config.data.strides.iter().copied().max().unwrap_or(1);
        let horizon = config.loss.horizons.iter().copied().max().unwrap_or(1);
        for (stores, steps) in [(&train, horizon), (&validation, config.loss.validation_steps)] {
            for (store, _) in stores {
                let frames = store.layout().frames;
                if steps * longest >= frames {
                    return Err(Error::config(format!(
                        "{steps} steps of {longest} frames do not fit into the {frames} frames of {}",
                        store.folder().display()
                    )));
                }
            }
        }
        let moments =
            |store: &LatentStore| store.channels().iter().map(|c| (c.mean, c.std)).collect();
        let channels: Vec<_> = train.iter().map(|(s, weight)| (moments(s), *weight)).collect();
        let scale = Normalisation::mixed(&channels);
        let condition = Condition::of(&train.iter().map(|(store, _)| store).collect::<Vec<_>>());
        let samples = |steps: usize| {
            move |store: &LatentStore| store.len() as u64 * Self::starts(store, steps, longest)
        };
        let train = Sources::new(train, samples(horizon));
        let validation = Sources::new(validation, samples(config.loss.validation_steps));
        let layout = train.first().layout();
        let mut builder = Builder::new(config.seed);
        let operator = Operator::new(
            &mut builder,
            &config.model,
            layout.dim,
            layout.token_grid(),
            config.data.padding_mode.into(),
            condition.width(),
        );
        let task = Self {
            operator,
            scale,
            condition,
            data: config.data.clone(),
            loss: config.loss.clone(),
            train,
            validation,
            seed: config.seed,
            micro_batches: config.training.updates * config.training.accumulation,
        };
        builder.check()?;
        Ok((task, builder.finish()))
    }
}

impl Task for OperatorTask {
    fn sources(&self) -> Vec<(u64, f64)> {
        self.train.shares()
    }

    fn data_hash(&self) -> String {
        // The hash of an index covers the hashes of its shards.
        joined(self.train.iter().chain(self.validation.iter()).map(LatentStore::hash))
    }

    fn input_files(&self) -> Vec<InputFile> {
        let stores = self.train.iter().chain(self.validation.iter());
        stores.flat_map(LatentStore::input_files).collect()
    }

    fn batch(&self, micro_batch: u64, first: u64, samples: &[u64]) -> Result<Batch> {
        let layout = self.train.first().layout();
        let shape = [samples.len(), layout.tokens, layout.dim];
        let (horizon, longest) = (self.longest_horizon(), self.longest_stride());
        let draw = Philox::new(self.seed, Purpose::Augmentation).at_update(micro_batch);
        let noise = Philox::new(self.seed, Purpose::Noise).at_update(micro_batch);
        let mut states: Vec<Tensor> =
            (0..=self.horizon(micro_batch)).map(|_| Tensor::empty(&shape, Dtype::F32)).collect();
        let mut features = Vec::new();
        let mut weights = Vec::new();
        let mut equations = Vec::new();
        let size = layout.frame_len();
        for (at, sample) in samples.iter().enumerate() {
            let place = first + at as u64;
            let (store, sample) = self.train.find(*sample);
            let starts = Self::starts(store, horizon, longest);
            let trajectory = (sample / starts) as usize;
            let start = self.start(sample % starts, starts);
            let strides = &self.data.strides;
            let stride = strides[draw.below(place, 0, strides.len() as u64) as usize];
            let [rows, columns] = layout.token_grid();
            let shift = |element: u64, tokens: usize| match self.data.random_shift {
                true => draw.below(place, element, tokens as u64) as usize,
                false => 0,
            };
            let (down, along) = (shift(2, rows), shift(1, columns));
            let initial = store.frames(trajectory, start..start + 1);
            weights.push(self.weight(initial));
            equations.push(store.equation());
            features.extend(self.features(store, trajectory, stride)?);
            for (k, state) in states.iter_mut().enumerate() {
                let frame = start + k * stride;
                let out = &mut state.write::<f32>()[at * size..][..size];
                self.scale.apply(store.frames(trajectory, frame..frame + 1), out);
                let row = columns * layout.dim;
                out.rotate_left(down * row);
                out.chunks_exact_mut(row).for_each(|row| row.rotate_left(along * layout.dim));
            }
            if self.data.noise > 0.0 {
                let out = &mut states[0].write::<f32>()[at * size..][..size];
                for (element, x) in (0..).zip(out) {
                    *x += self.data.noise as f32 * noise.normal(place, element);
                }
            }
        }
        let features = Tensor::from_slice(&features, &[samples.len(), self.condition.width()]);
        let batch = Batch::new(samples.len() as f64)
            .with("features", features)
            .with("weights", Tensor::from_slice(&weights, &[samples.len()]));
        let batch = add_weights(batch, &self.condition.equations(), &equations, &weights);
        let steps = states.into_iter().enumerate();
        Ok(steps.fold(batch, |batch, (k, state)| batch.with(state_name(k), state)))
    }

    fn loss(&self, forward: &Forward, batch: &Batch) -> Result<Loss> {
        let input = |name: &str| batch.input(forward, name);
        let (features, weights) = (input("features")?, input("weights")?);
        let channels = forward.constant(&channel_weights(&self.scale))?;
        let mut z = input(&state_name(0))?;
        let samples = z.shape()[0];
        let steps = batch.names().filter(|name| name.starts_with("states.")).count() - 1;
        let (mut vars, mut factors) = (Vec::new(), Vec::new());
        let mut terms: Vec<Term> = Vec::new();
        let mut errors = ErrorsByEquation::new(forward, batch, &self.condition.equations())?;
        for k in 1..=steps {
            let target = input(&state_name(k))?;
            z = self.operator.forward(forward, &z, &features)?;
            vars.push(forward.apply(SquaredError, &[&z, &target, &weights, &channels])?);
            factors.push(1.0 / steps as f64);
            errors.add(forward, &z, &target, &channels)?;
            if k > 1 {
                continue;
            }
            let mut add = |name, term: Var, weight: f64| {
                terms.push((name, term.value().clone()).into());
                vars.push(term);
                factors.push(weight);
            };
            let sum = |mean: &Var| forward.apply(WeightedSum(vec![samples as f64]), &[mean]);
            if self.loss.spectral_energy > 0.0 {
                let term = sum(&spectra::energy_error(forward, &z, &target)?)?;
                add("spectral_energy", term, self.loss.spectral_energy);
            }
            if self.loss.spectrum > 0.0 {
                let (a, b) =
                    (spectra::magnitudes(forward, &z)?, spectra::magnitudes(forward, &target)?);
                let width = a.value().width();
                let ones = forward.full(&[width], 1.0)?;
                let equal = forward.full(&[samples], 1.0)?;
                let term = forward.apply(SquaredError, &[&a, &b, &equal, &ones])?;
                add("spectrum", term, self.loss.spectrum);
            }
            if self.loss.relative > 0.0 {
                let op = RelativeError { epsilon: 1e-12 };
                let term = sum(&forward.apply(op, &[&z, &target])?)?;
                add("relative", term, self.loss.relative);
            }
        }
        terms.extend(errors.terms(forward)?);
        let sum = forward.apply(WeightedSum(factors), &vars.iter().collect::<Vec<_>>())?;
        Ok(Loss { sum, terms })
    }

    fn validation_samples(&self) -> u64 {
        self.validation.samples()
    }

    fn evaluate(&self, forward: &Forward, samples: &[u64], scores: &mut Scores) -> Result<()> {
        let (layout, steps) = (self.validation.first().layout(), self.loss.validation_steps);
        let stride = self.longest_stride();
        let size = layout.frame_len();
        // Store, trajectory and start frame of a sample.
        let at = |sample: &u64| {
            let (store, sample) = self.validation.find(*sample);
            let starts = Self::starts(store, steps, stride);
            (store, (sample / starts) as usize, (sample % starts) as usize)
        };
        let shape = [samples.len(), layout.tokens, layout.dim];
        let mut first = Tensor::empty(&shape, Dtype::F32);
        let mut features = Vec::new();
        for (sample, out) in samples.iter().zip(first.write::<f32>().chunks_exact_mut(size)) {
            let (store, trajectory, start) = at(sample);
            self.scale.apply(store.frames(trajectory, start..start + 1), out);
            features.extend(self.features(store, trajectory, stride)?);
        }
        let shape = [samples.len(), self.condition.width()];
        let batch = Batch::new(samples.len() as f64)
            .with("features", Tensor::from_slice(&features, &shape))
            .with(state_name(0), first);
        let predictions = self.predict(forward, &batch.to_device(forward.device())?)?;
        let several = !self.condition.equations().is_empty();
        for (sample, states) in samples.iter().zip(predictions.rows("states")?) {
            let (store, trajectory, start) = at(sample);
            let regime = store.parameter(trajectory).to_string();
            let mut sums = Sums::default();
            for (k, state) in (1..).zip(states.chunks_exact(size)) {
                let frame = start + k * stride;
                let target = store.frames(trajectory, frame..frame + 1);
                scores.nrmse(METRIC, &regime, state, target);
                if several {
                    scores.nrmse(METRIC_BY_EQUATION, store.equation(), state, target);
                }
                sums.add(state, target);
            }
            scores.record(METRIC, *sample, sums.nrmse());
        }
        Ok(())
    }

    /// Predicts `states`, the unnormalised latents of the validation steps, [steps, tokens, dim].
    fn predict(&self, forward: &Forward, batch: &Batch) -> Result<Predictions> {
        let (z, features) =
            (batch.input(forward, &state_name(0))?, batch.input(forward, "features")?);
        let steps = self.loss.validation_steps;
        let states = rollout(&self.operator, &self.scale, forward, z, &features, steps)?;
        let width = steps * self.validation.first().layout().frame_len();
        Ok(Predictions::default().with("states", width, states))
    }

    fn buffers(&self) -> Buffers {
        let mut buffers = self.scale.buffers("latent");
        buffers.extend(self.condition.buffers());
        buffers
    }

    fn dependencies(&self) -> Dependencies {
        [("codec".to_string(), codec_of(self.train.first()))].into()
    }
}
