use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use unix::config::Violations;

/// What to do when the loss or gradient norm spikes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnSpike {
    /// Log the spike and apply the update.
    #[default]
    Record,
    /// Go back to an earlier checkpoint and continue with other samples.
    Rewind,
}

/// Spike detection, and how to rewind past a spike.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Spikes {
    /// A loss or gradient norm is a spike when it exceeds the median of the window by more than this many times the
    /// window's median absolute deviation.
    pub factor: f64,
    /// Length of the window in updates. No spike is detected until it is half full.
    #[schemars(range(min = 8, max = 1_048_576))]
    pub window: u64,
    /// With on_spike: rewind, also skip the samples of this many updates after the spike, in addition to those between
    /// the checkpoint and the spike.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub skip: u64,
    /// Maximum number of rewinds; the next spike after them ends the run as failed.
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
        let wrong = self.factor.is_nan() || self.factor <= 0.0;
        let violation = || ("factor".into(), "must be a positive number".into());
        wrong.then(violation).into_iter().collect()
    }
}
