use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use unix::config::Violations;

/// What happens at a spike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnSpike {
    /// It is written to the log, and the update is done.
    #[default]
    Record,
    /// The run goes back to a checkpoint and on with other samples.
    Rewind,
}

/// What a spike is, and how a run goes round it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Spikes {
    /// A loss or gradient norm is a spike when it lies above the median of the window by more than
    /// this many times the median absolute deviation from it.
    pub factor: f64,
    /// Updates of the window; nothing is a spike before half of them are done.
    #[schemars(range(min = 8, max = 1_048_576))]
    pub window: u64,
    /// With rewind: the samples of this many updates after the spike are passed over, beside those
    /// since the checkpoint.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub skip: u64,
    /// Rewinds after which the next spike ends the run as failed.
    #[schemars(range(min = 0, max = 1_000_000_000))]
    pub rewinds: u64,
}

impl Default for Spikes {
    fn default() -> Self {
        Self { factor: 10.0, window: 200, skip: 100, rewinds: 3 }
    }
}

impl Spikes {
    pub(super) fn violations(&self) -> Violations {
        let mut violations = Violations::new();
        if self.factor.is_nan() || self.factor <= 0.0 {
            violations.push(("factor".into(), "must be a positive number".into()));
        }
        violations
    }
}
