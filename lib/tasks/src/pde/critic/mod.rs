//! Task `critic`: predicts the error of candidates for the next state, as a reward for test-time search that requires
//! neither the equation nor the ground truth.
//!
//! The model whose candidates are searched is frozen, and so is its operator. Every sample is a window of one step with
//! one newly drawn candidate z' for its second state z_next. The critic receives the first state z, z' and the
//! condition, which contains the parameter of the equation even if that of the operator does not: L = mean of (f(z, z')
//! - ln RMS(z' - z_next))², with states in units of the operator's normalised latents.
//!
//! z is a true state: in a sampled rollout, most of the distance to the ground truth is the accumulated error, which
//! all candidates share. Validation follows sampled rollouts, like a search.

mod config;

pub use config::{CriticConfig, CriticLoss};

use super::corrector::{Draws, Residuals, normal};
use super::distill::{FrozenCorrector, SampledData};
use super::windows::{Window, Windows};
use crate::common::condition::Condition;
use crate::common::sources::joined;
use crate::diffusion::combine;
use crate::evaluation::{Predict, Score, Verb};
use crate::pde::corrector::Correction;
use crate::pde::evaluate::options::{PredictOptions, ScoreOptions};
use crate::pde::models::Critic;
use crate::pde::models::critic::log_rms;
use crate::statistics::rank_correlation;
use clap::Args;
use data::inputs::InputFile;
use learn::dependency::{Dependencies, Dependency};
use learn::forward::Forward;
use learn::params::{Builder, ParamSet};
use learn::score::Direction;
use learn::score::Scores;
use learn::task::{Batch, Buffers, ConfigOf, Define, Loss, Predictions, Spec, Task};
use learn::trained::{Parts, Weights};
use tensor::ops::squared_error::SquaredError;
use tensor::random::{Philox, Purpose};
use tensor::{Tensor, Var};
use unix::config::Violations;
use unix::{Context, Error, Result};

/// The task.
pub struct CriticTask {
    residuals: Residuals,
    candidates: Correction,
    critic: Critic,
    condition: Condition,
    loss: CriticLoss,
    dependency: Dependency,
    seed: u64,
}

/// Spearman's rank correlation of predicted and true errors of candidates from one state, averaged over the states of
/// rollouts.
const METRIC: &str = "rank_correlation";

/// Key of the critic's condition in a batch; `features` is the operator's condition.
const CONDITION: &str = "condition";

/// Returns the error (2) for programs that try to evaluate a critic by itself.
fn refused() -> Error {
    Error::usage(
        "a critic predicts no fields; score the corrector or student that it was trained for with --search PRESET \
         --reward critic --critic RUN",
    )
}

/// `evaluate score`, which refuses a critic.
pub(crate) const SCORE: Score =
    Verb { options: ScoreOptions::augment_args, open: |_| Err(refused()) };

/// `evaluate predict`, which refuses a critic.
pub(crate) const PREDICT: Predict =
    Verb { options: PredictOptions::augment_args, open: |_| Err(refused()) };

impl Define for CriticTask {
    const SPEC: Spec =
        Spec::new("critic", METRIC, Direction::Maximize, include_str!("critic.yaml"));
    type Data = SampledData;
    type Model = super::models::NetworkModel;
    type Loss = CriticLoss;

    fn violations(config: &CriticConfig) -> Violations {
        config::violations(config)
    }

    fn open(config: &ConfigOf<Self>) -> Result<(Self, ParamSet)> {
        let CriticConfig { data, model, loss, seed, .. } = config;
        let parts = Parts::read(&data.corrector, Weights::Ema).context(|| "data.corrector")?;
        let mut builder = Builder::of(config);
        let how = ("candidates", [1, loss.validation_steps], *seed);
        let frozen = FrozenCorrector::open(data, &parts, how, &mut builder)?;
        if !frozen.correction.method.is_random() {
            return Err(Error::config(format!(
                "data.corrector: {} draws no samples, so its candidates are all equal; use a diffusion model or its \
                 student",
                parts.origin.checkpoint.display()
            )));
        }
        let condition = Condition::of(&frozen.residuals.train.stores().collect::<Vec<_>>());
        let (grid, padding) = frozen.residuals.grid();
        let dim = frozen.residuals.normalisation().channels();
        let critic = Critic::new(&mut builder, model, dim, grid, padding, condition.width());
        builder.check()?;
        let mut params = builder.finish();
        frozen.assign(&mut params)?;
        let FrozenCorrector { residuals, correction: candidates, dependency, .. } = frozen;
        let (loss, seed) = (loss.clone(), *seed);
        Ok((Self { residuals, candidates, critic, condition, loss, dependency, seed }, params))
    }
}

impl CriticTask {
    /// Builds a batch from the windows `drawn`, each of `steps` steps, with the conditions of the operator, the
    /// candidates and the critic.
    fn windows(&self, windows: &Windows, drawn: &[Window], steps: usize) -> Result<Batch> {
        let batch = self.residuals.batch(windows, drawn, steps, Some(&self.candidates.scale))?;
        Ok(batch.with(CONDITION, windows.features(drawn, &self.condition)?))
    }

    /// Draws candidates for state k + 1 of a batch, [B, T, D], from state k or from `z` instead, and returns them with
    /// the predicted and the true ln of their errors, [B]. `noise(i)` returns the i-th noise draw.
    fn judge(
        &self,
        forward: &Forward,
        batch: &Batch,
        (k, z): (usize, Option<Var>),
        noise: impl FnMut(usize) -> Result<Var>,
    ) -> Result<[Var; 3]> {
        let step = self.residuals.step(forward, batch, k, z)?;
        let candidate = self.candidates.apply(forward, &step, noise)?.detached();
        let condition = batch.input(forward, CONDITION)?;
        let found =
            self.critic.forward(forward, [&step.z, &candidate], [&condition, &step.scale])?;
        let next = batch.input(forward, &format!("states.{}", k + 1))?;
        let error = combine(forward, &[(1.0, &candidate), (-1.0, &next)])?;
        let truth = log_rms(forward, &error)?.detached();
        Ok([candidate, found, truth])
    }
}

/// Returns the batch key of the i-th noise draw of the candidates.
fn noise_name(i: usize) -> String {
    format!("noise.{i}")
}

/// Copies the state of each rollout's first member to all its members: `states` [rollouts · members, T, D].
fn first_members(states: &Tensor, members: usize) -> Tensor {
    let mut all = states.read::<f32>().to_vec();
    let width = all.len() / states.shape()[0];
    for rows in all.chunks_exact_mut(members * width) {
        (1..members).for_each(|member| rows.copy_within(..width, member * width));
    }
    Tensor::from_slice(&all, states.shape())
}

impl Task for CriticTask {
    fn sources(&self) -> Vec<(u64, f64)> {
        self.residuals.train.parts.shares()
    }

    fn data_hash(&self) -> String {
        let hashes = self.residuals.hashes();
        joined(hashes.iter().chain([&self.dependency.hash]).map(String::as_str))
    }

    fn input_files(&self) -> Vec<InputFile> {
        self.residuals.input_files()
    }

    fn batch(&self, micro_batch: u64, first: u64, samples: &[u64]) -> Result<Batch> {
        let windows = &self.residuals.train;
        let drawn = windows.draw_all(micro_batch, first, samples);
        let noise = Philox::new(self.seed, Purpose::Noise).at_update(micro_batch);
        let layout = windows.first().layout();
        let shape = [samples.len(), layout.tokens, layout.dim];
        let batch = self.windows(windows, &drawn, 1)?;
        Ok((0..self.candidates.method.noises()).fold(batch, |batch, i| {
            batch.with(noise_name(i), normal(&noise.at_source(i as u64), first, &shape))
        }))
    }

    fn loss(&self, forward: &Forward, batch: &Batch) -> Result<Loss> {
        let noise = |i: usize| batch.input(forward, &noise_name(i));
        let [_, found, truth] = self.judge(forward, batch, (0, None), noise)?;
        let [found, truth] = [found, truth].map(|x| x.reshape(&[x.shape()[0], 1]));
        let [weights, channels] = [found.shape()[0], 1].map(|n| forward.full(&[n], 1.0));
        Ok(forward.apply(SquaredError, &[&found, &truth, &weights?, &channels?])?.into())
    }

    fn validation_samples(&self) -> u64 {
        self.residuals.validation.parts.samples()
    }

    fn evaluate(&self, forward: &Forward, samples: &[u64], scores: &mut Scores) -> Result<()> {
        let (windows, members) = (&self.residuals.validation, self.loss.validation_members);
        let draws = Draws::members(self.seed, samples, members);
        let drawn: Vec<Window> = draws.rows.iter().map(|(s, _)| windows.fixed(*s)).collect();
        let batch = self.windows(windows, &drawn, windows.steps)?.to_device(forward.device())?;
        let mut z: Option<Var> = None;
        for k in 0..windows.steps {
            let shape = batch.input(forward, "states.0")?.shape().to_vec();
            let noise = |i: usize| forward.data(&draws.noise(k, i, &shape));
            let [candidate, found, truth] = self.judge(forward, &batch, (k, z), noise)?;
            let [found, truth] = [found, truth].map(|x| Ok(x.value().to_host()?.to_f64()));
            let (found, truth): (Vec<f64>, Vec<f64>) = (found?, truth?);
            scores.check_finite(&found);
            for (found, truth) in found.chunks_exact(members).zip(truth.chunks_exact(members)) {
                let rank = rank_correlation(found, truth);
                if rank.is_finite() {
                    scores.mean(METRIC, rank, 1.0);
                }
                let squares = found.iter().zip(truth).map(|(f, t)| (f - t).powi(2));
                scores.mean("log_error_mse", squares.sum::<f64>() / members as f64, 1.0);
            }
            z = Some(forward.data(&first_members(&candidate.value().to_host()?, members))?);
        }
        Ok(())
    }

    /// Predicts `log_error`, the ln of the RMS error of one candidate for the next state.
    fn predict(&self, forward: &Forward, batch: &Batch) -> Result<Predictions> {
        let step = self.residuals.step(forward, batch, 0, None)?;
        let rows: Vec<u64> = (0..step.z.shape()[0] as u64).collect();
        let draws = Draws::members(self.seed, &rows, 1);
        let noise = |i: usize| forward.data(&draws.noise(0, i, step.z.shape()));
        let candidate = self.candidates.apply(forward, &step, noise)?;
        let condition = batch.input(forward, CONDITION)?;
        let found =
            self.critic.forward(forward, [&step.z, &candidate], [&condition, &step.scale])?;
        let found = found.value().to_host()?.read::<f32>().to_vec();
        Ok(Predictions::default().with("log_error", 1, found))
    }

    fn buffers(&self) -> Buffers {
        [self.condition.buffers(), self.candidates.scale.buffers()].concat()
    }

    fn dependencies(&self) -> Dependencies {
        let mut dependencies = self.residuals.dependencies();
        dependencies.insert("candidates".into(), self.dependency.clone());
        dependencies
    }
}
