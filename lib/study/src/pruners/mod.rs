//! Pruners, which decide whether a trial ends early, one per file.

mod halving;
mod hyperband;
mod patient;
mod percentile;

use crate::trial::Trial;
pub use halving::Halving;
pub use hyperband::Hyperband;
pub use patient::Patient;
pub use percentile::Percentile;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The pruner of a study or round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Pruner {
    /// No pruning.
    #[default]
    None,
    /// Prunes trials worse than the median of the complete trials.
    Median(Percentile),
    /// Prunes trials worse than a percentile of the complete trials.
    Percentile(Percentile),
    /// Asynchronous successive halving, ASHA (Li et al. 2020).
    Halving(Halving),
    /// Hyperband (Li et al. 2018): several brackets of successive halving.
    Hyperband(Hyperband),
    /// Another pruner, applied once a trial no longer improves.
    Patient(Patient),
}

impl Pruner {
    /// Finds violations, with keys relative to the pruner.
    pub fn violations(&self) -> Vec<(String, String)> {
        match self {
            Self::None | Self::Halving(_) => Vec::new(),
            Self::Median(rule) => rule.median_violations(),
            Self::Percentile(rule) => rule.violations(),
            Self::Hyperband(rule) => rule.violations(),
            Self::Patient(rule) => rule.violations(),
        }
    }

    /// Decides whether to prune `trial` after its last value, given the other trials of the study named `study`.
    pub fn prunes(&self, study: &str, trial: &Trial, others: &[Trial]) -> bool {
        let Some((step, _)) = trial.last() else { return false };
        match self {
            Self::None => false,
            Self::Median(rule) | Self::Percentile(rule) => rule.prunes(trial, step, others),
            Self::Halving(rule) => rule.prunes(trial, &others.iter().collect::<Vec<_>>()),
            Self::Hyperband(rule) => rule.prunes(study, trial, others),
            Self::Patient(rule) => rule.prunes(study, trial, others),
        }
    }
}
