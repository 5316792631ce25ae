use super::Pruner;
use crate::trial::{Trial, best};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use unix::config::{Violations, within};

/// Applies another pruner only once a trial no longer improves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Patient {
    /// Number of values without improvement to tolerate.
    pub patience: usize,
    /// Tolerance: recent values may be worse than the earlier best by this much.
    #[serde(default)]
    pub min_delta: f64,
    /// Pruner to apply once the trial no longer improves; without one, the trial is pruned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pruner: Option<Box<Pruner>>,
}

impl Patient {
    pub(super) fn violations(&self) -> Vec<(String, String)> {
        let inner = self.pruner.iter().flat_map(|pruner| pruner.violations());
        let mut all: Violations = within("pruner", inner.collect()).collect();
        if !(self.min_delta.is_finite() && self.min_delta >= 0.0) {
            all.push(("min_delta".into(), format!("{}: must not be negative", self.min_delta)));
        }
        all
    }

    pub(super) fn prunes(&self, study: &str, trial: &Trial, others: &[Trial]) -> bool {
        let values: Vec<f64> = trial.intermediate.values().copied().collect();
        let Some(before) = values.len().checked_sub(self.patience + 1).filter(|n| *n > 0) else {
            return false;
        };
        let (before, after) = values.split_at(before);
        let [before, after] = [before, after].map(|values| best(values.iter().copied()));
        before + self.min_delta < after
            && self.pruner.as_ref().is_none_or(|pruner| pruner.prunes(study, trial, others))
    }
}
