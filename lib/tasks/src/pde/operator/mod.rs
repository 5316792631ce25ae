//! Task `operator`: predicts the latent state of the next frame from the current one, trained on short rollouts.
//!
//! With ẑ_k the k-th state of a rollout from z_0, L = mean over k = 1..=h and samples of Σ_c σ_c²·mean_t(ẑ_k -
//! z_k)²/(energy of z_0 + floor), with gradients through the whole rollout. States are normalised by channel; σ_c²
//! restores the weights of errors in the unnormalised latents, and dividing by the energy gives decayed fields the same
//! weight as initial ones. Optional terms for the first step: the relative error of the spectral energy over tokens,
//! the squared error of the magnitude spectra over features, and the relative error.
//!
//! An operator for several equations receives a one-hot encoding of the equation in its condition ([`Condition`]).

mod by_equation;
mod config;
mod parts;
mod spectra;
mod stores;

pub use config::{LatentData, LatentSource, OperatorConfig, OperatorLoss};
pub use parts::OperatorParts;
pub(super) use stores::open_split;

use super::trained::rollout;
use super::windows::{FoldSelection, LatentsPart, Window, Windows, longest};
use crate::common::condition::Condition;
use crate::common::normalisation::Normalisation;
use crate::common::sources::joined;
use crate::pde::latents::{channel_weights, codec_of, mean_square};
use crate::pde::models::{Operator, OperatorModel};
use by_equation::{ErrorsByEquation, add_weights};
use data::fields::latents::LatentStore;
use data::inputs::InputFile;
use learn::dependency::Dependencies;
use learn::forward::Forward;
use learn::params::{Builder, ParamSet};
use learn::score::Direction;
use learn::score::{Scores, Sums};
use learn::task::{Batch, Buffers, ConfigOf, Define, Loss, Predictions, Spec, Task, Term};
use tensor::ops::relative_error::RelativeError;
use tensor::ops::squared_error::SquaredError;
use tensor::ops::weighted_sum::WeightedSum;
use tensor::random::{Philox, Purpose};
use tensor::{Tensor, Var};
use unix::Result;
use unix::config::Violations;

/// The task.
pub struct OperatorTask {
    operator: Operator,
    scale: Normalisation,
    condition: Condition,
    data: LatentData,
    loss: OperatorLoss,
    train: Windows,
    validation: Windows,
    seed: u64,
    /// Total number of micro-batches in training.
    micro_batches: u64,
}

/// Returns the key of the batch tensor with the k-th states of the target rollouts, [B, T, D].
fn state_name(k: usize) -> String {
    format!("states.{k}")
}

impl OperatorTask {
    /// Iterates over all stores, for training and for validation.
    fn stores(&self) -> impl Iterator<Item = &LatentStore> {
        self.train.stores().chain(self.validation.stores())
    }

    /// Returns the rollout length of a micro-batch.
    fn horizon(&self, micro_batch: u64) -> usize {
        let parts = self.loss.horizons.len();
        let part = (u128::from(micro_batch) * parts as u128 / u128::from(self.micro_batches.max(1)))
            as usize;
        self.loss.horizons[part.min(parts - 1)]
    }

    /// Returns the weight of a rollout, from the energy of its initial latents relative to the mean energy.
    fn weight(&self, initial: &[f32]) -> f32 {
        let squares: f64 = initial.iter().map(|x| f64::from(*x).powi(2)).sum();
        let energy = squares / initial.len() as f64 / mean_square(&self.scale);
        (1.0 / (energy + self.loss.floor)) as f32
    }
}

/// NRMSE of rollouts in latent space, over all steps and trajectories of each regime.
const METRIC: &str = "rollout_nrmse";
/// NRMSE of rollouts over all trajectories of each equation, if there are several.
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
        let horizon = longest(&config.loss.horizons);
        let moments =
            |store: &LatentStore| store.channels().iter().map(|c| (c.mean, c.std)).collect();
        let channels: Vec<_> = train.iter().map(|(s, weight)| (moments(s), *weight)).collect();
        let scale = Normalisation::mixed(&channels);
        let mut condition =
            Condition::of(&train.iter().map(|(store, _)| store).collect::<Vec<_>>());
        if config.data.hide_parameter {
            condition = condition.without_parameter();
        }
        let windows = |stores: Vec<(LatentStore, f64)>, folds: FoldSelection, steps: usize| {
            let part = |(store, weight)| (LatentsPart { store, folds, number: 0 }, weight);
            let parts = stores.into_iter().map(part).collect();
            Windows::new(parts, steps, &config.data.strides, config.seed)
        };
        let folds = config.data.held_out.map_or(FoldSelection::All, FoldSelection::Without);
        let mut train = windows(train, folds, horizon);
        (train.start_bias, train.random_shift) = (config.data.start_bias, config.data.random_shift);
        let validation = windows(validation, FoldSelection::All, config.loss.validation_steps);
        train.require_steps("data.train")?;
        validation.require_steps("data.validation")?;
        let layout = train.first().layout();
        let mut builder = Builder::of(config);
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
        self.train.parts.shares()
    }

    fn data_hash(&self) -> String {
        // The hash of an index includes the hashes of its shards.
        joined(self.stores().map(LatentStore::hash))
    }

    fn input_files(&self) -> Vec<InputFile> {
        self.stores().flat_map(LatentStore::input_files).collect()
    }

    fn batch(&self, micro_batch: u64, first: u64, samples: &[u64]) -> Result<Batch> {
        let windows = self.train.draw_all(micro_batch, first, samples);
        let weights: Vec<f32> = windows.iter().map(|window| self.weight(window.frame(0))).collect();
        let mut states = self.train.states(&windows, 0..=self.horizon(micro_batch), &self.scale);
        if self.data.noise > 0.0 {
            let noise = Philox::new(self.seed, Purpose::Noise).at_update(micro_batch);
            let size = self.train.first().layout().frame_len();
            let rows = states[0].write::<f32>().chunks_exact_mut(size);
            for (place, out) in (first..).zip(rows) {
                for (element, x) in (0..).zip(out) {
                    *x += self.data.noise as f32 * noise.normal(place, element);
                }
            }
        }
        let batch = Batch::new(samples.len() as f64)
            .with("features", self.train.features(&windows, &self.condition)?)
            .with("weights", Tensor::from_slice(&weights, &[samples.len()]));
        let equations: Vec<&str> = windows.iter().map(|window| window.store.equation()).collect();
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
        self.validation.parts.samples()
    }

    fn evaluate(&self, forward: &Forward, samples: &[u64], scores: &mut Scores) -> Result<()> {
        let windows: Vec<Window> = samples.iter().map(|s| self.validation.fixed(*s)).collect();
        let initial = self.validation.states(&windows, 0..=0, &self.scale);
        let batch = Batch::new(samples.len() as f64)
            .with("features", self.validation.features(&windows, &self.condition)?)
            .with(state_name(0), initial[0].clone());
        let predictions = self.predict(forward, &batch.to_device(forward.device())?)?;
        let size = self.validation.first().layout().frame_len();
        let several = !self.condition.equations().is_empty();
        let rows = predictions.rows("states")?;
        for ((sample, window), states) in samples.iter().zip(&windows).zip(rows) {
            let mut sums = Sums::default();
            for (k, state) in (1..).zip(states.chunks_exact(size)) {
                let target = window.frame(k);
                scores.nrmse(METRIC, &window.regime(), state, target);
                if several {
                    scores.nrmse(METRIC_BY_EQUATION, window.store.equation(), state, target);
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
