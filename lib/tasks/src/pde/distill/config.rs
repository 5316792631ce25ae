//! The configuration of task `distill`.

use crate::common::sources::one;
use crate::pde::corrector::CorrectorData;
use learn::config::Config;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use unix::config::Violations;

/// A trained corrector and the data, for models that learn from its samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SampledData {
    /// Run directory or checkpoint of the corrector, a diffusion model, which is frozen; of task `critic` it may be a student
    /// of one. Of a run, the best checkpoint is used. Its operator is found by the path in its checkpoint.
    pub corrector: PathBuf,
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

impl SampledData {
    /// Returns the same data as the configuration of a corrector of `operator`.
    pub(super) fn of_operator(&self, operator: PathBuf) -> CorrectorData {
        let Self { train, validation, random_shift, start_bias, .. } = self.clone();
        let cross_fit = Vec::new();
        CorrectorData { operator, cross_fit, train, validation, random_shift, start_bias }
    }

    /// Returns the violations that the schema does not express.
    pub fn violations(&self) -> Violations {
        let wrong = self.start_bias.is_nan() || self.start_bias < 1.0;
        wrong.then(|| ("data.start_bias".into(), "must be at least 1".into())).into_iter().collect()
    }
}

/// The student. Its architecture and initial values are those of the teacher.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Student {
    /// Evaluations of the student per correction.
    #[serde(default = "once")]
    #[schemars(range(min = 1, max = 64))]
    pub steps: usize,
}

fn once() -> usize {
    1
}

/// The loss function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DistillLoss {
    /// Follow the path of the teacher from one noise level to the next (consistency distillation). False: the path of the
    /// data, which needs no teacher (consistency training).
    pub teacher: bool,
    /// The target is computed with the moving average of the student (training.ema). False: with its current
    /// parameters.
    pub averaged_target: bool,
    /// Number of intervals between noise levels in the first and the last updates; in between it doubles after equal
    /// numbers of updates.
    pub intervals: [usize; 2],
    /// c of the pseudo-Huber loss √(|x|² + c²) - c. Null: 0.00054·√(numbers per state).
    pub huber: Option<f64>,
    /// Rollout length in validation, in steps.
    #[schemars(range(min = 1, max = 65536))]
    pub validation_steps: usize,
    /// Rollouts per start frame in validation, each with its own noise.
    #[schemars(range(min = 2, max = 1024))]
    pub validation_members: usize,
}

impl Default for DistillLoss {
    fn default() -> Self {
        Self {
            teacher: true,
            averaged_target: true,
            intervals: [8, 32],
            huber: None,
            validation_steps: 16,
            validation_members: 4,
        }
    }
}

impl DistillLoss {
    /// Returns the number of intervals between noise levels after the fraction `done` of the training: first·2^k, where
    /// k = 0, 1, .. increases after equal fractions, limited to the last value (Song & Dhariwal 2023, §3.4).
    pub(super) fn intervals(&self, done: f64) -> usize {
        let [first, last] = self.intervals;
        let doublings = (last as f64 / first as f64).log2().floor();
        let k = (done.clamp(0.0, 1.0) * (doublings + 1.0)).floor().min(doublings);
        ((first as f64 * k.exp2()) as usize).min(last)
    }
}

/// The configuration of the task.
pub type DistillConfig = Config<SampledData, Student, DistillLoss>;

/// Returns the violations that the schema does not express.
pub(super) fn violations(config: &DistillConfig) -> Violations {
    let DistillConfig { data, loss, training, .. } = config;
    let mut violations = data.violations();
    let mut violation = |key: &str, text: &str| violations.push((key.into(), text.into()));
    let [first, last] = loss.intervals;
    if first == 0 || last < first || last > 65536 {
        violation("loss.intervals", "needs two numbers from 1 to 65536, the second not smaller");
    }
    if loss.huber.is_some_and(|c| !(c > 0.0 && c.is_finite())) {
        violation("loss.huber", "must be a positive number");
    }
    if loss.averaged_target && training.ema.is_none() {
        violation(
            "training.ema",
            "is needed for loss.averaged_target: set the decay of the average",
        );
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_double_over_equal_parts_of_the_training() {
        let loss = DistillLoss { intervals: [4, 17], ..DistillLoss::default() };
        let at = [0.0, 0.32, 0.34, 0.66, 0.67, 1.0].map(|done| loss.intervals(done));
        assert_eq!(at, [4, 4, 8, 8, 16, 16]);
        let constant = DistillLoss { intervals: [12, 12], ..loss };
        assert_eq!(constant.intervals(0.9), 12);
    }
}
