//! One corrected step: z' = operator(z) + s·c ∘ r, with r sampled from a denoiser.

use super::scale::ResidualScale;
use crate::common::normalisation::Normalisation;
use crate::diffusion::{Preconditioning, Sampler, combine, refine};
use crate::pde::models::Denoiser;
use crate::pde::models::denoiser::Conditioning;
use learn::forward::Forward;
use tensor::ops::binary::Binary;
use tensor::ops::concat::Concat;
use tensor::random::{Philox, Purpose};
use tensor::{Dtype, Tensor, Var};
use unix::Result;

/// The scales s of the residuals at a batch of states, on the host.
pub(crate) struct Scales {
    /// ln s, [B, 1].
    pub log: Tensor,
    /// s, [B, 1, 1].
    pub scale: Tensor,
    /// 1/s, [B, 1, 1].
    pub inverse: Tensor,
}

impl Scales {
    /// Computes the scales at normalised states [B, tokens, dim] with conditions [B, features].
    pub fn of(scale: &ResidualScale, states: &Tensor, features: &Tensor) -> Self {
        let batch = states.shape()[0];
        let rows = states.read::<f32>().chunks_exact(states.len() / batch);
        let scales: Vec<f32> = rows
            .zip(features.read::<f32>().chunks_exact(features.width()))
            .map(|(state, features)| scale.of(state, features))
            .collect();
        let tensor = |value: fn(f32) -> f32, shape: &[usize]| {
            Tensor::from_slice(&scales.iter().map(|s| value(*s)).collect::<Vec<_>>(), shape)
        };
        Self {
            log: tensor(f32::ln, &[batch, 1]),
            scale: tensor(|s| s, &[batch, 1, 1]),
            inverse: tensor(f32::recip, &[batch, 1, 1]),
        }
    }
}

/// The inputs of the denoiser in one step: a state, and the operator's prediction from it.
pub(crate) struct StepInput {
    /// The state z, normalised, [B, T, D].
    pub z: Var,
    /// The prediction of the operator, normalised, [B, T, D].
    pub next: Var,
    /// Features on which the denoiser is conditioned, [B, F].
    pub features: Var,
    /// s, [B, 1, 1].
    pub scale: Var,
}

impl StepInput {
    /// `condition` is the operator's condition, [B, F - 1]; `log` and `scale` are the fields of [`Scales`].
    pub fn new(
        forward: &Forward,
        [z, next]: [Var; 2],
        condition: &Var,
        [log, scale]: [&Var; 2],
    ) -> Result<Self> {
        let features = forward.apply(Concat { axis: 1 }, &[condition, log])?;
        Ok(Self { z, next, features, scale: scale.clone() })
    }

    /// Returns the conditioning inputs of the denoiser.
    pub fn conditioning(&self) -> Conditioning<'_> {
        Conditioning { states: [&self.next, &self.z], features: &self.features }
    }

    /// Returns the prediction plus a residual r in units of its scale, [B, T, D].
    pub fn corrected(&self, forward: &Forward, scale: &ResidualScale, r: &Var) -> Result<Var> {
        let channels =
            forward.constant(&Tensor::from_slice(&scale.channels, &[scale.channels.len()]))?;
        let r = forward.apply(Binary::Multiply, &[r, &channels])?;
        let r = forward.apply(Binary::Multiply, &[&r, &self.scale])?;
        forward.apply(Binary::Add, &[&self.next, &r])
    }
}

/// The random numbers of a batch of states. Each row is one ensemble member of one rollout; its noise depends on
/// rollout, member, step and seed, but not on the other rows.
#[derive(Clone, Debug)]
pub(crate) struct Draws {
    pub seed: u64,
    /// Rollout and member of each row.
    pub rows: Vec<(u64, u64)>,
}

impl Draws {
    /// Creates `members` rows for each of `rollouts`.
    pub fn members(seed: u64, rollouts: &[u64], members: usize) -> Self {
        let of = |rollout: &u64| {
            let rollout = *rollout;
            (0..members as u64).map(move |member| (rollout, member))
        };
        Self { seed, rows: rollouts.iter().flat_map(of).collect() }
    }

    /// Returns standard normal numbers for draw `i` of step `step`, in the shape of a batch of states.
    pub fn noise(&self, step: usize, i: usize, shape: &[usize]) -> Tensor {
        let random = Philox::new(self.seed, Purpose::Sampling).at_update(step as u64);
        let mut noise = Tensor::empty(shape, Dtype::F32);
        let rows = noise.write::<f32>().chunks_exact_mut(shape[1..].iter().product());
        for ((rollout, member), out) in self.rows.iter().zip(rows) {
            random.at_source(*member).at_source(i as u64).fill_normal(*rollout, out);
        }
        noise
    }
}

/// The method of sampling residuals.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Method {
    /// From a diffusion model.
    Diffusion(Sampler),
    /// By adding noise of each of these levels in turn and denoising: refinement, consistency models, and regression,
    /// which has a single level of 0.
    Refine(Vec<f64>),
}

impl Method {
    /// Returns whether sampling is stochastic.
    pub fn is_random(&self) -> bool {
        match self {
            Self::Diffusion(sampler) => sampler.steps > 0,
            Self::Refine(sigmas) => sigmas.iter().any(|sigma| *sigma > 0.0),
        }
    }

    /// Number of noise draws per step.
    pub fn noises(&self) -> usize {
        match self {
            Self::Diffusion(sampler) if sampler.churn.amount > 0.0 => sampler.steps + 1,
            Self::Diffusion(_) => 1,
            Self::Refine(sigmas) => sigmas.len(),
        }
    }

    /// Number of denoiser evaluations per step.
    pub fn evaluations(&self) -> usize {
        match self {
            Self::Diffusion(sampler) => sampler.evaluations(),
            Self::Refine(sigmas) => sigmas.len(),
        }
    }
}

/// A denoiser with its preconditioning and its sampling method.
#[derive(Clone, Debug)]
pub(crate) struct Correction {
    pub denoiser: Denoiser,
    pub preconditioning: Preconditioning,
    pub method: Method,
    pub scale: ResidualScale,
}

impl Correction {
    /// Computes D(x; σ) at a step.
    pub fn denoise(&self, forward: &Forward, step: &StepInput, x: &Var, sigma: f64) -> Result<Var> {
        self.denoiser.denoise(forward, x, &step.conditioning(), &self.preconditioning.at(sigma))
    }

    /// Rolls out normalised states z [B, T, D] and returns the unnormalised states of `steps` steps, [B, steps, T, D].
    /// `operate` applies the operator; `features` is its condition on the host, [B, F].
    pub fn rollout(
        &self,
        forward: &Forward,
        latents: &Normalisation,
        (mut z, features): (Var, &Tensor),
        (steps, draws): (usize, &Draws),
        operate: impl Fn(&Var, &Var) -> Result<Var>,
    ) -> Result<Vec<f32>> {
        let width = z.value().len() / draws.rows.len();
        let mut states = vec![0.0; z.value().len() * steps];
        for step in 0..steps {
            z = self.advance(forward, &z, features, (step, draws), &operate)?;
            let host = z.value().to_host()?;
            let rows = states.chunks_exact_mut(steps * width);
            for (state, out) in host.read::<f32>().chunks_exact(width).zip(rows) {
                latents.invert(state, &mut out[step * width..][..width]);
            }
        }
        Ok(states)
    }

    /// Computes the corrected states after step `step` from z [B, T, D].
    pub fn advance(
        &self,
        forward: &Forward,
        z: &Var,
        features: &Tensor,
        (step, draws): (usize, &Draws),
        operate: impl Fn(&Var, &Var) -> Result<Var>,
    ) -> Result<Var> {
        let condition = forward.data(features)?;
        let scales = Scales::of(&self.scale, &z.value().to_host()?, features);
        let [log, scale] = [&scales.log, &scales.scale].map(|t| forward.data(t));
        let next = operate(z, &condition)?;
        let at = StepInput::new(forward, [z.clone(), next], &condition, [&log?, &scale?])?;
        self.apply(forward, &at, |i| forward.data(&draws.noise(step, i, z.shape())))
    }

    /// Computes the corrected state after a step. `noise(i)` returns the i-th draw of standard normal noise, [B, T, D].
    /// With zero denoiser evaluations the result equals the operator's prediction bit for bit.
    pub fn apply(
        &self,
        forward: &Forward,
        step: &StepInput,
        noise: impl FnMut(usize) -> Result<Var>,
    ) -> Result<Var> {
        if self.method.evaluations() == 0 {
            return Ok(step.next.clone());
        }
        let denoise = |x: &Var, sigma: f64| self.denoise(forward, step, x, sigma);
        let r = match &self.method {
            Method::Diffusion(sampler) => sampler.sample(forward, noise, denoise)?,
            Method::Refine(sigmas) => {
                let zero = combine(forward, &[(0.0, &step.z)])?;
                refine(forward, sigmas, zero, noise, denoise)?
            }
        };
        step.corrected(forward, &self.scale, &r)
    }
}
