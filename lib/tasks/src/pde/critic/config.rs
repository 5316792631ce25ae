//! The configuration of task `critic`.

use crate::pde::models::CriticModel;
use crate::pde::sources::one;
use learn::config::Config;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use unix::config::{Violations, within};

/// The model that draws candidates, and the data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CriticData {
    /// Run directory or checkpoint of the corrector or student whose candidates are judged, which is frozen. Of a run, the
    /// best checkpoint is used. Its operator is found by the path in its checkpoint.
    pub candidates: PathBuf,
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

/// The loss function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CriticLoss {
    /// Rollout length in validation, in steps.
    #[schemars(range(min = 1, max = 65536))]
    pub validation_steps: usize,
    /// Candidates per state in validation, each with its own noise. The rollout continues with the first one.
    #[schemars(range(min = 2, max = 1024))]
    pub validation_members: usize,
}

impl Default for CriticLoss {
    fn default() -> Self {
        Self { validation_steps: 4, validation_members: 8 }
    }
}

/// The configuration of the task.
pub type CriticConfig = Config<CriticData, CriticModel, CriticLoss>;

/// Violations that the schema does not express.
pub(super) fn violations(config: &CriticConfig) -> Violations {
    let CriticConfig { data, model, .. } = config;
    let mut violations: Violations = within("model", model.violations()).collect();
    if data.start_bias.is_nan() || data.start_bias < 1.0 {
        violations.push(("data.start_bias".into(), "must be at least 1".into()));
    }
    violations
}
