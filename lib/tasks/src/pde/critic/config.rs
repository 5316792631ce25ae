//! The configuration of task `critic`.

use crate::pde::distill::SampledData;
use crate::pde::models::NetworkModel;
use learn::config::Config;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use unix::config::{Violations, within};

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
pub type CriticConfig = Config<SampledData, NetworkModel, CriticLoss>;

/// Returns the violations that the schema does not express.
pub(super) fn violations(config: &CriticConfig) -> Violations {
    let CriticConfig { data, model, .. } = config;
    data.violations().into_iter().chain(within("model", model.violations())).collect()
}
