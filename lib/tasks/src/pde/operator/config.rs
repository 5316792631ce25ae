//! The configuration of the task.

use crate::pde::models::OperatorModel;
use crate::pde::models::codec::Border;
use crate::pde::sources::{not_negative, one, positive, weight_violations};
use learn::config::Config;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use unix::config::{Violations, within};

/// What the operator is trained on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LatentData {
    /// Latents of the training split, a folder that `latent-cache` wrote.
    pub train: PathBuf,
    /// Latents of the validation split.
    pub validation: PathBuf,
    /// Share of the samples that are drawn from these latents, relative to the weights of the others.
    #[serde(default = "one")]
    pub weight: f64,
    /// More latents of the same codec, read in proportion to their weights.
    #[serde(default)]
    pub others: Vec<LatentSource>,
    /// Frames from one state to the next; with several, each sample draws one, and Δt
    /// tells the model which.
    #[serde(default = "strides")]
    pub strides: Vec<usize>,
    /// Move the tokens round by a random number along each axis, for periodic domains: an exact symmetry
    /// of the codec and of equations without a place of their own.
    #[serde(default)]
    pub roll: bool,
    /// How much more often rollouts start early than late, where fields change fastest: the start is
    /// drawn as u^early of the way with u uniform. 1 for equally often.
    #[serde(default = "even")]
    pub early: f64,
    /// Deviation of noise added to the first state, in units of each channel's.
    #[serde(default)]
    pub noise: f64,
    /// What lies beyond the border of the domain.
    #[serde(default)]
    pub border: Border,
}

/// Further latents of a mixture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LatentSource {
    /// Of the training split.
    pub train: PathBuf,
    /// Of the validation split.
    pub validation: PathBuf,
    /// Their weight.
    #[serde(default = "one")]
    pub weight: f64,
}

fn strides() -> Vec<usize> {
    vec![1]
}

fn even() -> f64 {
    1.0
}

/// What is minimised.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OperatorLoss {
    /// Steps of the rollouts trained through; with several, each for an equal part of the updates, in
    /// this order.
    pub horizons: Vec<usize>,
    /// Added to the energy of a state, in units of the mean energy.
    pub floor: f64,
    /// Weight of the relative difference of spectral energy over tokens.
    pub spectral_energy: f64,
    /// Weight of the squared difference of the magnitudes of the spectra over features.
    pub spectrum: f64,
    /// Weight of the relative error of the first step, √(Σ (ẑ - z)²/Σ z²).
    pub relative: f64,
    /// Steps of the rollouts of a validation.
    #[schemars(range(min = 1, max = 65536))]
    pub validation_steps: usize,
}

impl Default for OperatorLoss {
    fn default() -> Self {
        Self {
            horizons: vec![1],
            floor: 0.1,
            spectral_energy: 0.0,
            spectrum: 0.0,
            relative: 0.0,
            validation_steps: 16,
        }
    }
}

/// Largest stride, and longest rollout.
const MOST_STEPS: usize = 65536;

/// The configuration of the task.
pub type OperatorConfig = Config<LatentData, OperatorModel, OperatorLoss>;

/// What is wrong beyond what the types say.
pub(super) fn violations(config: &OperatorConfig) -> Violations {
    let OperatorConfig { data, model, loss, .. } = config;
    let mut violations: Violations = within("model", model.violations()).collect();
    violations.extend(weight_violations(data.weight, data.others.iter().map(|o| o.weight)));
    let mut violation = |key: &str, text: &str| violations.push((key.into(), text.into()));
    let are_bad = |steps: &[usize]| {
        steps.is_empty() || steps.iter().any(|steps| !(1..=MOST_STEPS).contains(steps))
    };
    if are_bad(&data.strides) {
        violation("data.strides", "needs strides from 1 to 65536");
    }
    if data.roll && data.border != Border::Periodic {
        violation("data.roll", "is a symmetry of periodic domains only");
    }
    if data.early.is_nan() || data.early < 1.0 {
        violation("data.early", "must be at least 1");
    }
    if are_bad(&loss.horizons) {
        violation("loss.horizons", "needs horizons from 1 to 65536");
    }
    violations.extend(not_negative("data.noise", data.noise));
    violations.extend(not_negative("loss.spectral_energy", loss.spectral_energy));
    violations.extend(not_negative("loss.spectrum", loss.spectrum));
    violations.extend(not_negative("loss.relative", loss.relative));
    violations.extend(positive("loss.floor", loss.floor));
    violations
}
