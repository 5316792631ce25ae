//! The configuration of task `corrector`.

use super::correction::Method;
use crate::common::sources::one;
use crate::diffusion::{Churn, LogNormal, Preconditioning, Sampler, Schedule, Solver};
use crate::pde::models::NetworkModel;
use learn::config::Config;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use unix::config::{Violations, within};

/// The operator and the data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CorrectorData {
    /// Run directory or checkpoint of the operator to correct, which is frozen. Of a run, the best checkpoint is used.
    pub operator: PathBuf,
    /// Operators trained without one fold of the data each (data.held_out). Each supplies the residuals on the fold
    /// that it has not seen, because residuals on training trajectories are smaller than those that an operator
    /// encounters at inference. Empty: `operator` supplies them, on its own held-out fold if it has one, else on all
    /// trajectories.
    #[serde(default)]
    pub cross_fit: Vec<PathBuf>,
    /// Latents of the training split: a directory written by `latent-cache make`.
    pub train: PathBuf,
    /// Latents of the validation split: a directory written by `latent-cache make`.
    pub validation: PathBuf,
    /// Data augmentation: shift the token grid cyclically by a random number of tokens along each axis. Only for
    /// periodic domains and translation-invariant equations, for which this is an exact symmetry.
    #[serde(default)]
    pub random_shift: bool,
    /// Bias of the start frame towards early times: it is drawn as the fraction u^start_bias of the trajectory, with u
    /// uniform in [0, 1). 1 draws all start frames equally often.
    #[serde(default = "one")]
    pub start_bias: f64,
}

/// What the corrector learns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Objective {
    /// A diffusion model of the residual (Karras et al. 2022).
    Diffusion {
        /// Noise levels of training.
        #[serde(default)]
        noise: LogNormal,
    },
    /// Refinement of the prediction (PDE-Refiner, Lippe et al. 2023): noise of each level in turn is added to the
    /// estimate and removed again.
    Refiner {
        /// Noise levels, in units of the residual, in the order of their use.
        sigmas: Vec<f64>,
    },
    /// Least squares: the mean of the residual.
    Regression,
}

/// The loss function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CorrectorLoss {
    /// What the corrector learns.
    #[serde(default = "diffusion")]
    pub objective: Objective,
    /// Largest number of corrected steps between the start frame and the state at which the residual is taken; each
    /// micro-batch draws one from 0 to this number. These states come from the corrector as it is at this update.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1024))]
    pub closed_loop: usize,
    /// How corrections are sampled.
    #[serde(default)]
    pub sampling: Sampling,
    /// Rollout length in validation, in steps.
    #[serde(default = "sixteen")]
    #[schemars(range(min = 1, max = 65536))]
    pub validation_steps: usize,
    /// Rollouts per start frame in validation, each with its own noise.
    #[serde(default = "four")]
    #[schemars(range(min = 2, max = 1024))]
    pub validation_members: usize,
}

fn diffusion() -> Objective {
    Objective::Diffusion { noise: LogNormal::default() }
}

fn sixteen() -> usize {
    16
}

fn four() -> usize {
    4
}

/// How corrections are sampled from a diffusion model; refinement and regression use none of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Sampling {
    /// Number of steps. 0: no correction.
    #[schemars(range(min = 0, max = 1024))]
    pub steps: usize,
    /// The solver.
    pub solver: Solver,
    /// Noise levels, in units of the residual.
    pub schedule: Schedule,
    /// Noise that is added before each step.
    pub churn: Churn,
}

impl Default for Sampling {
    fn default() -> Self {
        let (schedule, churn) = (Schedule::default(), Churn::default());
        Self { steps: 2, solver: Solver::Euler, schedule, churn }
    }
}

impl Sampling {
    /// Returns the sampler of a diffusion model.
    pub fn sampler(&self) -> Sampler {
        let Self { steps, solver, schedule, churn } = *self;
        Sampler { steps, solver, churn, schedule }
    }
}

impl Objective {
    /// Returns the preconditioning of the network. Residuals are scaled to unit variance.
    pub fn preconditioning(&self) -> Preconditioning {
        match self {
            Self::Diffusion { .. } | Self::Refiner { .. } => {
                Preconditioning::Edm { sigma_data: 1.0 }
            }
            Self::Regression => Preconditioning::Regression,
        }
    }

    /// Returns the method of sampling residuals.
    pub(crate) fn method(&self, sampling: &Sampling) -> Method {
        match self {
            Self::Diffusion { .. } => Method::Diffusion(sampling.sampler()),
            Self::Refiner { sigmas } => Method::Refine(sigmas.clone()),
            Self::Regression => Method::Refine(vec![0.0]),
        }
    }

    /// Returns the noise level of a training sample, given a standard normal number and a number uniform in [0, 1).
    pub fn sigma(&self, normal: f32, uniform: f32) -> f64 {
        match self {
            Self::Diffusion { noise } => noise.sigma(normal),
            Self::Refiner { sigmas } => {
                let at = (f64::from(uniform) * sigmas.len() as f64) as usize;
                sigmas.get(at).copied().unwrap_or(0.0)
            }
            Self::Regression => 0.0,
        }
    }
}

/// The configuration of the task.
pub type CorrectorConfig = Config<CorrectorData, NetworkModel, CorrectorLoss>;

/// Returns the violations that the schema does not express.
pub(super) fn violations(config: &CorrectorConfig) -> Violations {
    let CorrectorConfig { data, model, loss, .. } = config;
    let mut violations: Violations = within("model", model.violations()).collect();
    let mut violation = |key: &str, text: String| violations.push((key.into(), text));
    if data.start_bias.is_nan() || data.start_bias < 1.0 {
        violation("data.start_bias", "must be at least 1".into());
    }
    if let Some(text) = loss.sampling.schedule.violation() {
        violation("loss.sampling.schedule", text);
    }
    match &loss.objective {
        Objective::Diffusion { noise } if !(noise.std >= 0.0 && noise.mean.is_finite()) => {
            violation("loss.objective.noise", "needs a mean and a std that is not negative".into());
        }
        Objective::Refiner { sigmas }
            if sigmas.is_empty() || !sigmas.iter().all(|s| *s > 0.0 && s.is_finite()) =>
        {
            violation("loss.objective.sigmas", "needs one or more positive noise levels".into());
        }
        _ => {}
    }
    violations
}
