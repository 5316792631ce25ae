//! Task `corrector`: a conditional generative model of the error of a trained operator.
//!
//! The operator is frozen. The denoiser receives the noisy residual r + σ·ε, the prediction of the operator, the state
//! and the condition, and is trained with EDM preconditioning and weighting (Karras et al. 2022): L = mean over samples
//! and channels of v_c·(F - F*)², where F* is the network target at the sample's noise level and v_c the fraction of
//! the mean squared residual in channel c. Regression and the refinement of PDE-Refiner use the same network.

mod config;
mod correction;
mod energy;
mod parts;
mod residuals;
mod scale;

pub use config::{CorrectorConfig, CorrectorData, CorrectorLoss, Objective, Sampling};
pub(crate) use correction::{Correction, Draws, Method, Scales, StepInput};
pub use energy::energy_score;
pub use parts::CorrectorParts;
pub(in crate::pde) use residuals::Residuals;
pub use scale::ResidualScale;

use crate::common::sources::joined;
use crate::pde::models::NetworkModel;
use data::inputs::InputFile;
use learn::dependency::Dependencies;
use learn::forward::Forward;
use learn::params::{Builder, ParamSet};
use learn::score::Direction;
use learn::score::Scores;
use learn::task::{Batch, Buffers, ConfigOf, Define, Loss, Predictions, Spec, Task};
use tensor::ops::binary::Binary;
use tensor::ops::squared_error::SquaredError;
use tensor::random::{Philox, Purpose};
use tensor::{Dtype, Tensor, Var};
use unix::Result;
use unix::config::Violations;

/// The task.
pub struct CorrectorTask {
    residuals: Residuals,
    correction: Correction,
    loss: CorrectorLoss,
    /// RMS of the operator's residuals on trajectories that it was trained on, and on unseen ones.
    residual_rms: [f64; 2],
    seed: u64,
}

/// Energy score of rollouts relative to the norm of the states, over all steps.
const METRIC: &str = "energy_score";

impl Define for CorrectorTask {
    const SPEC: Spec =
        Spec::new("corrector", METRIC, Direction::Minimize, include_str!("corrector.yaml"));
    type Data = CorrectorData;
    type Model = NetworkModel;
    type Loss = CorrectorLoss;

    fn violations(config: &CorrectorConfig) -> Violations {
        config::violations(config)
    }

    fn open(config: &ConfigOf<Self>) -> Result<(Self, ParamSet)> {
        let CorrectorConfig { data, model, loss, seed, .. } = config;
        let mut builder = Builder::of(config);
        let steps = [loss.closed_loop + 1, loss.validation_steps];
        let residuals = Residuals::open(data, steps, *seed, &mut builder)?;
        let denoiser = residuals.denoiser(&mut builder, model);
        builder.check()?;
        let mut params = builder.finish();
        residuals.assign(&mut params)?;
        let correction = Correction {
            denoiser,
            preconditioning: loss.objective.preconditioning(),
            method: loss.objective.method(&loss.sampling),
            scale: residuals.fit(&params)?,
        };
        let residual_rms = residuals.seen_and_unseen(&params, data)?;
        let (seed, loss) = (*seed, loss.clone());
        Ok((Self { residuals, correction, loss, residual_rms, seed }, params))
    }
}

/// Returns the batch key of noise draw `i` in closed-loop step `k`.
fn loop_noise(k: usize, i: usize) -> String {
    format!("loop.{k}.{i}")
}

/// Draws standard normal numbers for samples `first`.. of a micro-batch, in the shape of a batch of states.
pub(super) fn normal(random: &Philox, first: u64, shape: &[usize]) -> Tensor {
    let mut noise = Tensor::empty(shape, Dtype::F32);
    let width = shape[1..].iter().product();
    let rows = noise.write::<f32>().chunks_exact_mut(width);
    (first..).zip(rows).for_each(|(place, out)| random.fill_normal(place, out));
    noise
}

impl CorrectorTask {
    /// Draws the number of closed-loop steps of a micro-batch.
    fn closed_loop(&self, micro_batch: u64) -> usize {
        let random = Philox::new(self.seed, Purpose::Loss).at_update(micro_batch).at_source(1);
        random.below(0, 0, self.loss.closed_loop as u64 + 1) as usize
    }
}

impl Task for CorrectorTask {
    fn sources(&self) -> Vec<(u64, f64)> {
        self.residuals.train.parts.shares()
    }

    fn data_hash(&self) -> String {
        joined(self.residuals.hashes().iter().map(String::as_str))
    }

    fn input_files(&self) -> Vec<InputFile> {
        self.residuals.input_files()
    }

    fn batch(&self, micro_batch: u64, first: u64, samples: &[u64]) -> Result<Batch> {
        let windows = &self.residuals.train;
        let drawn = windows.draw_all(micro_batch, first, samples);
        let steps = self.closed_loop(micro_batch);
        let mut batch =
            self.residuals.batch(windows, &drawn, steps + 1, Some(&self.correction.scale))?;
        let [levels, noise] = [Purpose::Loss, Purpose::Noise]
            .map(|purpose| Philox::new(self.seed, purpose).at_update(micro_batch));
        let layout = windows.first().layout();
        let shape = [samples.len(), layout.tokens, layout.dim];
        let mut noisy = normal(&noise, first, &shape);
        let rows = noisy.write::<f32>().chunks_exact_mut(layout.frame_len());
        let mut columns: [Vec<f32>; 4] = Default::default();
        for (place, row) in (first..).zip(rows) {
            let objective = &self.loss.objective;
            let sigma = match objective {
                Objective::Refiner { .. } => objective.sigma(0.0, levels.uniform(place, 0)),
                _ => objective.sigma(levels.normal(place, 0), 0.0),
            };
            row.iter_mut().for_each(|x| *x *= sigma as f32);
            let c = self.correction.preconditioning.at(sigma);
            // F* = (r - c_skip·(r + n))/c_out.
            let factors = [c.input, c.noise, (1.0 - c.skip) / c.output, -c.skip / c.output];
            columns.iter_mut().zip(factors).for_each(|(column, x)| column.push(x as f32));
        }
        batch = batch.with("noise", noisy);
        let names =
            [("c_in", false), ("c_noise", false), ("of_residual", true), ("of_noise", true)];
        for ((name, per_token), column) in names.into_iter().zip(columns) {
            let shape: &[usize] =
                if per_token { &[samples.len(), 1, 1] } else { &[samples.len(), 1] };
            batch = batch.with(name, Tensor::from_slice(&column, shape));
        }
        for k in 0..steps {
            for i in 0..self.correction.method.noises() {
                let random = noise.at_source(1 + k as u64).at_source(i as u64);
                batch = batch.with(loop_noise(k, i), normal(&random, first, &shape));
            }
        }
        Ok(batch)
    }

    fn loss(&self, forward: &Forward, batch: &Batch) -> Result<Loss> {
        let input = |name: &str| batch.input(forward, name);
        let steps = batch.names().filter(|name| name.starts_with("states.")).count() - 1;
        let Correction { denoiser, scale, .. } = &self.correction;
        let mut z: Option<Var> = None;
        for k in 0..steps - 1 {
            let step = self.residuals.step(forward, batch, k, z)?;
            let noise = |i: usize| input(&loop_noise(k, i));
            z = Some(self.correction.apply(forward, &step, noise)?.detached());
        }
        let step = self.residuals.step(forward, batch, steps - 1, z)?;
        let r = self.residuals.residual(forward, batch, steps - 1, &step, scale)?;
        let noise = input("noise")?;
        let x = forward.apply(Binary::Add, &[&r, &noise])?;
        let levels = [&input("c_in")?, &input("c_noise")?];
        let found = denoiser.network(forward, &x, &step.conditioning(), levels)?;
        let [r, noise] = [(&r, "of_residual"), (&noise, "of_noise")]
            .map(|(x, name)| forward.apply(Binary::Multiply, &[x, &input(name)?]));
        let target = forward.apply(Binary::Add, &[&r?, &noise?])?;
        let weights = forward.full(&[target.shape()[0]], 1.0)?;
        let channels = forward.constant(&self.residuals.channel_weights(scale))?;
        Ok(forward.apply(SquaredError, &[&found, &target.detached(), &weights, &channels])?.into())
    }

    fn validation_samples(&self) -> u64 {
        self.residuals.validation.parts.samples()
    }

    fn evaluate(&self, forward: &Forward, samples: &[u64], scores: &mut Scores) -> Result<()> {
        let [seen, unseen] = self.residual_rms;
        scores.mean("residual_rms_seen", seen, 1.0);
        scores.mean("residual_rms_unseen", unseen, 1.0);
        let members = self.loss.validation_members;
        self.residuals.evaluate(forward, &self.correction, samples, (members, self.seed), scores)
    }

    /// Predicts `states`, the unnormalised latents of the validation steps, [steps, tokens, dim].
    fn predict(&self, forward: &Forward, batch: &Batch) -> Result<Predictions> {
        let rows = batch.input(forward, "features")?.shape()[0] as u64;
        let draws = Draws { seed: self.seed, rows: (0..rows).map(|row| (row, 0)).collect() };
        self.residuals.predict_states(forward, &self.correction, batch, &draws)
    }

    fn buffers(&self) -> Buffers {
        self.correction.scale.buffers()
    }

    fn dependencies(&self) -> Dependencies {
        self.residuals.dependencies()
    }
}
