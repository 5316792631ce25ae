//! Task `distill`: a consistency model, which needs one or a few evaluations where its teacher, a corrector, needs many
//! (Song et al. 2023; Song & Dhariwal 2023).
//!
//! The student f(x, σ) = c_skip·x + c_out·F is the identity at the smallest noise level. It is trained to yield the
//! same result at two neighbouring levels σ > σ' of one path: L = mean of w·(√(|f(x, σ) - f⁻(x', σ')|² + c²) - c),
//! where x' is one Euler step of the teacher from x, f⁻ the moving average of the student, and w = 1/(σ - σ'),
//! normalised to mean 1.

mod config;
mod frozen;

pub use config::{DistillConfig, DistillLoss, SampledData, Student};
pub(in crate::pde) use frozen::FrozenCorrector;

use super::corrector::{Correction, CorrectorParts, Draws, Method, Objective, Residuals, normal};
use crate::common::sources::joined;
use crate::diffusion::{Coefficients, Preconditioning, Schedule, combine};
use crate::pde::models::Denoiser;
use data::inputs::InputFile;
use learn::dependency::{Dependencies, Dependency};
use learn::forward::Forward;
use learn::params::{Builder, ParamSet};
use learn::score::Direction;
use learn::score::Scores;
use learn::task::{Batch, Buffers, ConfigOf, Define, Loss, Predictions, Spec, Task};
use learn::trained::{Parts, Weights};
use tensor::ops::binary::Binary;
use tensor::ops::reduce::Reduce;
use tensor::ops::vector_norm::VectorNorm;
use tensor::random::{Philox, Purpose};
use tensor::{Tensor, Var};
use unix::config::Violations;
use unix::{Context, Error, Result};

/// The task.
pub struct DistillTask {
    residuals: Residuals,
    teacher: Denoiser,
    student: Correction,
    schedule: Schedule,
    loss: DistillLoss,
    dependency: Dependency,
    seed: u64,
    /// Total number of micro-batches in training.
    micro_batches: u64,
}

/// Energy score of rollouts relative to the norm of the states, over all steps.
const METRIC: &str = "energy_score";

/// Returns the correction by a student: the scale of its teacher, with consistency preconditioning.
pub(crate) fn student_of(
    teacher: &CorrectorParts,
    student: &Student,
    denoiser: Denoiser,
) -> Correction {
    let schedule = teacher.loss.sampling.schedule;
    Correction {
        preconditioning: consistency(&schedule),
        method: Method::Refine(schedule.sigmas(student.steps)),
        ..teacher.correction(denoiser)
    }
}

fn consistency(schedule: &Schedule) -> Preconditioning {
    Preconditioning::Consistency { sigma_data: 1.0, sigma_min: schedule.sigma_min }
}

impl Define for DistillTask {
    const SPEC: Spec =
        Spec::new("distill", METRIC, Direction::Minimize, include_str!("distill.yaml"));
    type Data = SampledData;
    type Model = Student;
    type Loss = DistillLoss;

    fn violations(config: &DistillConfig) -> Violations {
        config::violations(config)
    }

    fn open(config: &ConfigOf<Self>) -> Result<(Self, ParamSet)> {
        let DistillConfig { data, model, loss, seed, .. } = config;
        let parts = Parts::read(&data.corrector, Weights::Ema).context(|| "data.corrector")?;
        CorrectorParts::require_task(&parts).context(|| "data.corrector")?;
        let mut builder = Builder::of(config);
        let how = ("teacher", [1, loss.validation_steps], *seed);
        let frozen = FrozenCorrector::open(data, &parts, how, &mut builder)?;
        let teacher = &frozen.corrector;
        if !matches!(teacher.loss.objective, Objective::Diffusion { .. }) {
            return Err(Error::config(format!(
                "data.corrector: {} is not a diffusion model; train it with loss.objective.kind: diffusion",
                teacher.origin.checkpoint.display()
            )));
        }
        let (grid, padding) = frozen.residuals.grid();
        let width = frozen.residuals.condition_width();
        let denoiser = teacher.build(&mut builder, grid, padding, width);
        builder.check()?;
        let mut params = builder.finish();
        frozen.assign(&mut params)?;
        params.trained.assign(&teacher.weights)?;
        let task = Self {
            student: student_of(teacher, model, denoiser),
            schedule: teacher.loss.sampling.schedule,
            residuals: frozen.residuals,
            teacher: frozen.correction.denoiser,
            loss: loss.clone(),
            dependency: frozen.dependency,
            seed: *seed,
            micro_batches: config.training.updates * config.training.accumulation,
        };
        Ok((task, params))
    }
}

/// Returns the names of the batch tensors with the coefficients c_in, c_noise, c_skip and c_out of D(x; σ) = c_skip·x +
/// c_out·F, which differ by sample.
fn names(which: &str) -> [String; 4] {
    ["in", "noise", "skip", "out"].map(|factor| format!("{which}.{factor}"))
}

fn with_coefficients(batch: Batch, which: &str, coefficients: &[Coefficients]) -> Batch {
    let of: [fn(&Coefficients) -> f64; 4] = [|c| c.input, |c| c.noise, |c| c.skip, |c| c.output];
    let columns = names(which).into_iter().zip(of).enumerate();
    columns.fold(batch, |batch, (i, (name, of))| {
        let values: Vec<f32> = coefficients.iter().map(|c| of(c) as f32).collect();
        // The coefficients of the network are columns, those of states have a third axis.
        let shape = [values.len(), 1, 1];
        batch.with(name, Tensor::from_slice(&values, if i < 2 { &shape[..2] } else { &shape }))
    })
}

impl DistillTask {
    fn denoise(
        &self,
        forward: &Forward,
        denoiser: &Denoiser,
        x: &Var,
        step: &super::corrector::StepInput,
        (batch, which): (&Batch, &str),
    ) -> Result<Var> {
        let [input, noise, skip, output] = names(which).map(|name| batch.input(forward, &name));
        let found = denoiser.network(forward, x, &step.conditioning(), [&input?, &noise?])?;
        let x = forward.apply(Binary::Multiply, &[x, &skip?])?;
        let found = forward.apply(Binary::Multiply, &[&found, &output?])?;
        forward.apply(Binary::Add, &[&x, &found])
    }
}

impl Task for DistillTask {
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
        let batch = self.residuals.batch(windows, &drawn, 1, Some(&self.student.scale))?;
        let [levels, noise] = [Purpose::Loss, Purpose::Noise]
            .map(|purpose| Philox::new(self.seed, purpose).at_update(micro_batch));
        let done = micro_batch as f64 / self.micro_batches.max(1) as f64;
        let count = self.loss.intervals(done);
        let sigmas = self.schedule.sigmas(count + 1);
        let mean = sigmas.windows(2).map(|s| (s[0] - s[1]).recip()).sum::<f64>() / count as f64;
        let pairs: Vec<[f64; 2]> = (first..)
            .take(samples.len())
            .map(|place| levels.below(place, 0, count as u64) as usize)
            .map(|at| [sigmas[at], sigmas[at + 1]])
            .collect();
        let column = |of: &dyn Fn(&[f64; 2]) -> f64| {
            let values: Vec<f32> = pairs.iter().map(|pair| of(pair) as f32).collect();
            Tensor::from_slice(&values, &[values.len(), 1, 1])
        };
        let coefficients = |preconditioning: Preconditioning, which: usize| -> Vec<Coefficients> {
            pairs.iter().map(|pair| preconditioning.at(pair[which])).collect()
        };
        let (student, teacher) =
            (self.student.preconditioning, Preconditioning::Edm { sigma_data: 1.0 });
        let batch = with_coefficients(batch, "upper", &coefficients(student, 0));
        let batch = with_coefficients(batch, "lower", &coefficients(student, 1));
        let batch = with_coefficients(batch, "teacher", &coefficients(teacher, 0));
        let layout = windows.first().layout();
        let shape = [samples.len(), layout.tokens, layout.dim];
        let weights = column(&|[upper, lower]| (upper - lower).recip() / mean);
        Ok(batch
            .with("noise", normal(&noise, first, &shape))
            .with("sigma.upper", column(&|pair| pair[0]))
            .with("sigma.lower", column(&|pair| pair[1]))
            .with("ratio", column(&|[upper, lower]| lower / upper))
            .with("rest", column(&|[upper, lower]| 1.0 - lower / upper))
            .with("weights", weights.reshape(&[samples.len()])))
    }

    fn loss(&self, forward: &Forward, batch: &Batch) -> Result<Loss> {
        let input = |name: &str| batch.input(forward, name);
        let times = |x: &Var, name: &str| forward.apply(Binary::Multiply, &[x, &input(name)?]);
        let step = self.residuals.step(forward, batch, 0, None)?;
        let r = self.residuals.residual(forward, batch, 0, &step, &self.student.scale)?;
        let noise = input("noise")?;
        let upper = combine(forward, &[(1.0, &r), (1.0, &times(&noise, "sigma.upper")?)])?;
        let lower = if self.loss.teacher {
            let clean = self.denoise(forward, &self.teacher, &upper, &step, (batch, "teacher"))?;
            combine(forward, &[(1.0, &times(&upper, "ratio")?), (1.0, &times(&clean, "rest")?)])?
        } else {
            combine(forward, &[(1.0, &r), (1.0, &times(&noise, "sigma.lower")?)])?
        };
        let student = &self.student.denoiser;
        let found = self.denoise(forward, student, &upper, &step, (batch, "upper"))?;
        let (lower, at) = (lower.detached(), (batch, "lower"));
        let target = match self.loss.averaged_target {
            true => self.denoise(&forward.averaged()?, student, &lower, &step, at)?,
            false => self.denoise(forward, student, &lower, &step, at)?.detached(),
        };
        let difference = combine(forward, &[(1.0, &found), (-1.0, &target.detached())])?;
        let channels = self.residuals.channel_weights(&self.student.scale);
        let roots: Vec<f64> = channels.to_f64().into_iter().map(f64::sqrt).collect();
        let roots = forward.constant(&Tensor::from_slice(&roots, &[roots.len()]))?;
        let difference = forward.apply(Binary::Multiply, &[&difference, &roots])?;
        let samples = difference.shape()[0];
        let width = difference.value().len() / samples;
        let c = self.loss.huber.unwrap_or(0.00054 * (width as f64).sqrt());
        let rows = difference.reshape(&[samples, width]);
        let norms = forward.apply(VectorNorm::Root { epsilon: c }, &[&rows])?;
        let losses = forward.apply(Binary::Add, &[&norms, &forward.full(&[1], -c)?])?;
        Ok(forward.apply(Reduce::Sum(0), &[&times(&losses, "weights")?])?.into())
    }

    fn validation_samples(&self) -> u64 {
        self.residuals.validation.parts.samples()
    }

    fn evaluate(&self, forward: &Forward, samples: &[u64], scores: &mut Scores) -> Result<()> {
        let members = self.loss.validation_members;
        self.residuals.evaluate(forward, &self.student, samples, (members, self.seed), scores)
    }

    /// Predicts `states`, the unnormalised latents of the validation steps, [steps, tokens, dim].
    fn predict(&self, forward: &Forward, batch: &Batch) -> Result<Predictions> {
        let rows = batch.input(forward, "features")?.shape()[0] as u64;
        let draws = Draws { seed: self.seed, rows: (0..rows).map(|row| (row, 0)).collect() };
        self.residuals.predict_states(forward, &self.student, batch, &draws)
    }

    fn buffers(&self) -> Buffers {
        self.student.scale.buffers()
    }

    fn dependencies(&self) -> Dependencies {
        let mut dependencies = self.residuals.dependencies();
        dependencies.insert("corrector".into(), self.dependency.clone());
        dependencies
    }
}
