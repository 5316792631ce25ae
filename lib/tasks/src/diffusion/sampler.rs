//! Samplers. A denoiser D(x; σ) is a function of a state and a noise level, so the same code samples from a network
//! and, in tests, from distributions in closed form.

use super::noise::Schedule;
use learn::forward::Forward;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tensor::Var;
use tensor::ops::binary::Binary;
use unix::Result;

/// The solver of the probability flow ODE dx/dσ = (x - D(x; σ))/σ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Solver {
    /// First order: one evaluation of the denoiser per step.
    #[default]
    Euler,
    /// Second order: two evaluations per step, one in the last.
    Heun,
}

/// Noise that is added before each step, which makes sampling stochastic (Karras et al. 2022, Algorithm 2).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Churn {
    /// S_churn, the amount over all steps; 0: sampling is deterministic.
    pub amount: f64,
    /// S_min: no noise is added below this noise level.
    pub sigma_min: f64,
    /// S_max: no noise is added above this noise level.
    pub sigma_max: f64,
    /// S_noise: factor of the added noise.
    pub scale: f64,
}

impl Default for Churn {
    fn default() -> Self {
        Self { amount: 0.0, sigma_min: 0.0, sigma_max: 1e6, scale: 1.0 }
    }
}

/// A sampler for diffusion models.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sampler {
    /// Number of steps.
    pub steps: usize,
    /// The solver.
    pub solver: Solver,
    /// Noise added before each step.
    pub churn: Churn,
    /// The noise levels.
    pub schedule: Schedule,
}

impl Sampler {
    /// Number of denoiser evaluations for one sample.
    pub fn evaluations(&self) -> usize {
        match self.solver {
            Solver::Euler => self.steps,
            Solver::Heun => (2 * self.steps).saturating_sub(1),
        }
    }

    /// Draws samples. `noise(i)` returns standard normal numbers in the shape of the state: the initial noise for i =
    /// 0, and the noise added in step i for i ≥ 1. `denoise` is D(x; σ).
    pub fn sample(
        &self,
        forward: &Forward,
        mut noise: impl FnMut(usize) -> Result<Var>,
        mut denoise: impl FnMut(&Var, f64) -> Result<Var>,
    ) -> Result<Var> {
        let mut sigmas = self.schedule.sigmas(self.steps);
        sigmas.push(0.0);
        let mut x = combine(forward, &[(sigmas[0], &noise(0)?)])?;
        for (step, levels) in sigmas.windows(2).enumerate() {
            let (mut sigma, next) = (levels[0], levels[1]);
            let Churn { amount, sigma_min, sigma_max, scale } = self.churn;
            if amount > 0.0 && (sigma_min..=sigma_max).contains(&sigma) {
                let gamma = (amount / self.steps as f64).min(std::f64::consts::SQRT_2 - 1.0);
                let raised = sigma * (1.0 + gamma);
                let added = (raised * raised - sigma * sigma).sqrt() * scale;
                x = combine(forward, &[(1.0, &x), (added, &noise(step + 1)?)])?;
                sigma = raised;
            }
            let denoised = denoise(&x, sigma)?;
            // An Euler step: x + (next - σ)·(x - D)/σ.
            let ratio = next / sigma;
            let moved = combine(forward, &[(ratio, &x), (1.0 - ratio, &denoised)])?;
            if self.solver == Solver::Euler || next == 0.0 {
                x = moved;
                continue;
            }
            // Heun: the mean of the slopes at both ends.
            let again = denoise(&moved, next)?;
            let half = 0.5 * (next - sigma);
            x = combine(
                forward,
                &[
                    (1.0 + half / sigma, &x),
                    (-half / sigma, &denoised),
                    (half / next, &moved),
                    (-half / next, &again),
                ],
            )?;
        }
        Ok(x)
    }
}

/// Draws samples: starting from the estimate `zero`, adds noise of each level in turn and denoises the result. This is
/// the refinement of PDE-Refiner (Lippe et al. 2023, §3.1) and the sampler of consistency models (Song et al. 2023,
/// Algorithm 1). `noise(i)` returns standard normal numbers for level i.
pub fn refine(
    forward: &Forward,
    sigmas: &[f64],
    zero: Var,
    mut noise: impl FnMut(usize) -> Result<Var>,
    mut denoise: impl FnMut(&Var, f64) -> Result<Var>,
) -> Result<Var> {
    sigmas.iter().enumerate().try_fold(zero, |estimate, (i, sigma)| {
        denoise(&combine(forward, &[(1.0, &estimate), (*sigma, &noise(i)?)])?, *sigma)
    })
}

/// Computes Σ factor·x over one or more terms of equal shape.
pub fn combine(forward: &Forward, terms: &[(f64, &Var)]) -> Result<Var> {
    let mut sum: Option<Var> = None;
    for (factor, x) in terms {
        let term = match *factor {
            1.0 => (*x).clone(),
            factor => forward.apply(Binary::Multiply, &[x, &forward.full(&[1], factor)?])?,
        };
        sum = Some(match sum {
            None => term,
            Some(sum) => forward.apply(Binary::Add, &[&sum, &term])?,
        });
    }
    sum.ok_or_else(|| unix::Error::bug("a sum without terms"))
}
