//! The configuration of task `operator`.

use crate::common::models::PaddingMode;
use crate::common::sources::{not_negative, one, positive, weight_violations};
use crate::pde::models::OperatorModel;
use crate::pde::windows::Fold;
use learn::config::Config;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use unix::config::{Violations, within};

/// The training and validation data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LatentData {
    /// Latents of the training split: a directory written by `latent-cache make`.
    pub train: PathBuf,
    /// Latents of the validation split: a directory written by `latent-cache make`.
    pub validation: PathBuf,
    /// Sampling weight of these latents, relative to the weights of the others.
    #[serde(default = "one")]
    pub weight: f64,
    /// Additional latents made by the same codec, sampled in proportion to their weights.
    #[serde(default)]
    pub additional: Vec<LatentSource>,
    /// Frames per time step. With several strides, each sample draws one at random, and the model receives its Δt.
    #[serde(default = "strides")]
    pub strides: Vec<usize>,
    /// Data augmentation: shift the token grid cyclically by a random number of tokens along each axis. Only for
    /// periodic domains and translation-invariant equations, for which this is an exact symmetry.
    #[serde(default)]
    pub random_shift: bool,
    /// Bias of the start frame towards early times, where fields change fastest: it is drawn as the fraction u^start_bias of
    /// the trajectory, with u uniform in [0, 1). 1 draws all start frames equally often.
    #[serde(default = "one")]
    pub start_bias: f64,
    /// Standard deviation of the Gaussian noise added to the initial state, relative to that of each channel.
    #[serde(default)]
    pub noise: f64,
    /// Padding of the convolutions: circular for a periodic domain, else zeros.
    #[serde(default)]
    pub padding_mode: PaddingMode,
    /// Train without one fold of the trajectories, for models that need data which this one has not seen. Null: train on
    /// all of them.
    // Keys that are newer than the first checkpoints are not serialised when unset, so that hashes stay the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_out: Option<Fold>,
    /// Do not tell the model the parameter of the equation, for experiments with an unknown parameter.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schemars(extend("default" = false))]
    pub hide_parameter: bool,
}

/// Additional latents of a mixture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LatentSource {
    /// Latents of the training split.
    pub train: PathBuf,
    /// Latents of the validation split.
    pub validation: PathBuf,
    /// Sampling weight of these latents, relative to the weights of the others.
    #[serde(default = "one")]
    pub weight: f64,
}

fn strides() -> Vec<usize> {
    vec![1]
}

/// The loss function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OperatorLoss {
    /// Rollout lengths in training, in steps; gradients flow through the whole rollout. With several, each is used for
    /// an equal part of the updates, in this order.
    pub horizons: Vec<usize>,
    /// Added to the energy of the initial state, in units of the mean energy; prevents division by very small energies.
    pub floor: f64,
    /// Weight of an additional loss term for the first step: relative error of the spectral energy over tokens.
    pub spectral_energy: f64,
    /// Weight of an additional loss term for the first step: squared error of the magnitude spectra over features.
    pub spectrum: f64,
    /// Weight of an additional loss term for the first step: relative error √(Σ (ẑ - z)²/Σ z²).
    pub relative: f64,
    /// Rollout length in validation, in steps.
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

/// Maximum stride, and maximum rollout length.
const MAX_STEPS: usize = 65536;

/// The configuration of the task.
pub type OperatorConfig = Config<LatentData, OperatorModel, OperatorLoss>;

/// Returns the violations that the schema does not express.
pub(super) fn violations(config: &OperatorConfig) -> Violations {
    let OperatorConfig { data, model, loss, .. } = config;
    let mut violations: Violations = within("model", model.violations()).collect();
    violations.extend(weight_violations(data.weight, data.additional.iter().map(|o| o.weight)));
    let mut violation = |key: &str, text: &str| violations.push((key.into(), text.into()));
    let are_bad = |steps: &[usize]| {
        steps.is_empty() || steps.iter().any(|steps| !(1..=MAX_STEPS).contains(steps))
    };
    if are_bad(&data.strides) {
        violation("data.strides", "needs strides from 1 to 65536");
    }
    if let Some(text) = data.held_out.and_then(|fold| fold.violation()) {
        violation("data.held_out", &text);
    }
    if data.random_shift && data.padding_mode != PaddingMode::Circular {
        let text =
            "requires data.padding_mode: circular; a shift is a symmetry of periodic domains only";
        violation("data.random_shift", text);
    }
    if data.start_bias.is_nan() || data.start_bias < 1.0 {
        violation("data.start_bias", "must be at least 1");
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
