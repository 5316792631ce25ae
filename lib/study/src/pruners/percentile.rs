use crate::trial::{State, Trial, best};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Prunes a trial whose best value so far is worse than a percentile of the complete trials' values at the same step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Percentile {
    /// Percentage of trials to keep; 50 for the median.
    pub percentile: f64,
    /// Number of complete trials before the first decision.
    pub startup: usize,
    /// Number of steps of a trial before the first decision.
    pub warmup: u64,
    /// Number of steps between decisions.
    #[schemars(range(min = 1))]
    pub interval: u64,
    /// Number of complete trials that must have a value at the step.
    pub min_trials: usize,
}

impl Default for Percentile {
    fn default() -> Self {
        Self { percentile: 50.0, startup: 5, warmup: 0, interval: 1, min_trials: 1 }
    }
}

impl Percentile {
    /// Finds violations for `kind: median`.
    pub(super) fn median_violations(&self) -> Vec<(String, String)> {
        let text =
            format!("{}: the median is percentile 50; use kind: percentile", self.percentile);
        if self.percentile == 50.0 { Vec::new() } else { vec![("percentile".into(), text)] }
    }

    pub(super) fn violations(&self) -> Vec<(String, String)> {
        let valid = (0.0..=100.0).contains(&self.percentile);
        let text = format!("{}: must lie in [0, 100]", self.percentile);
        if valid { Vec::new() } else { vec![("percentile".into(), text)] }
    }

    pub(super) fn prunes(&self, trial: &Trial, step: u64, others: &[Trial]) -> bool {
        let complete = || others.iter().filter(|other| other.state == State::Complete);
        if complete().count() < self.startup.max(1) || step < self.warmup {
            return false;
        }
        // Only the first value in each interval triggers a decision.
        let interval = self.interval.max(1);
        let first = (step - self.warmup) / interval * interval + self.warmup;
        if trial.intermediate.range(first..step).next().is_some() {
            return false;
        }
        let own = best(trial.intermediate.values().copied());
        if own.is_nan() {
            return true;
        }
        let at_step = |other: &Trial| other.intermediate.get(&step).copied();
        let all: Vec<f64> = complete().filter_map(at_step).collect();
        all.len() >= self.min_trials && own > percentile(all, self.percentile)
    }
}

/// Computes the percentile by linear interpolation, ignoring NaN; NaN if there are no other values.
fn percentile(mut values: Vec<f64>, percent: f64) -> f64 {
    values.retain(|value| !value.is_nan());
    values.sort_by(f64::total_cmp);
    let Some(last) = values.len().checked_sub(1) else { return f64::NAN };
    let place = last as f64 * percent / 100.0;
    let (below, share) = (place.floor() as usize, place.fract());
    let (a, b) = (values[below], values[(below + 1).min(last)]);
    if share < 0.5 { a + (b - a) * share } else { b - (b - a) * (1.0 - share) }
}
