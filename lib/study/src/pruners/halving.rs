use crate::trial::Trial;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Asynchronous successive halving, ASHA (Li et al. 2020): at each rung, the best 1/`reduction` of the trials that have
/// reached it are promoted. Rung r ends at step `min_resource`·`reduction`^(`early`+r).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Halving {
    /// The step at which the first rung ends.
    #[schemars(range(min = 1))]
    pub min_resource: u64,
    /// Reduction factor: one in this many trials is promoted.
    #[schemars(range(min = 2))]
    pub reduction: u64,
    /// Number of initial rungs to skip.
    pub early: u32,
    /// Number of trials that each rung prunes unconditionally, as a basis for comparison.
    pub bootstrap: usize,
}

impl Default for Halving {
    fn default() -> Self {
        Self { min_resource: 1, reduction: 4, early: 0, bootstrap: 0 }
    }
}

impl Halving {
    pub(super) fn prunes(&self, trial: &Trial, others: &[&Trial]) -> bool {
        let Some((last, value)) = trial.last() else { return false };
        for rung in 0.. {
            let end = self.end(rung);
            if last < end {
                return false;
            }
            // The trial reached this rung at an earlier step, where the decision was made.
            if trial.intermediate.range(end..last).next().is_some() {
                continue;
            }
            if value.is_nan() {
                return true;
            }
            let reached = |other: &&Trial| other.intermediate.range(end..).next().map(|(_, v)| *v);
            let mut all: Vec<f64> = others.iter().filter_map(reached).collect();
            all.retain(|value| !value.is_nan());
            all.push(value);
            let promoted = (all.len() / self.reduction.max(2) as usize).max(1);
            all.sort_by(f64::total_cmp);
            if all.len() <= self.bootstrap || value > all[promoted - 1] {
                return true;
            }
        }
        false
    }

    /// Returns the step at which a rung ends.
    fn end(&self, rung: u32) -> u64 {
        let power = self.reduction.max(2).checked_pow(self.early.saturating_add(rung));
        power.map_or(u64::MAX, |power| self.min_resource.max(1).saturating_mul(power))
    }
}
