//! The section `cost` of a configuration.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use unix::config::Violations;

/// Cost accounting and budget, over all attempts of the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Cost {
    /// Price per hour of the whole job (all ranks together), in any currency. 0: that of its GPUs, if it is known
    /// ([`PRICES`]).
    pub rate_per_hour: f64,
    /// Budget for the run, in the same currency; a warning is logged when 90 % of it is spent. Null: no limit.
    pub budget: Option<f64>,
    /// Save a checkpoint and stop when the budget is spent.
    pub stop_at_budget: bool,
}

/// Prices of an hour of a GPU in US dollars, by a part of its name: spot prices of clouds at the beginning of 2026.
pub const PRICES: [(&str, f64); 4] =
    [("RTX 3090", 0.25), ("RTX 4090", 0.40), ("A100", 1.50), ("H100", 2.50)];

impl Cost {
    /// Price per hour of a job with `gpus` GPUs called `device`: `rate_per_hour`, else that of [`PRICES`], else 0.
    pub fn rate(&self, device: &str, gpus: usize) -> f64 {
        let known = PRICES.iter().find(|(name, _)| device.contains(name));
        match self.rate_per_hour > 0.0 {
            true => self.rate_per_hour,
            false => known.map_or(0.0, |(_, price)| price * gpus as f64),
        }
    }

    /// Cost of `seconds` of such a job; None if no price is known.
    pub fn of(&self, seconds: f64, device: &str, gpus: usize) -> Option<f64> {
        let rate = self.rate(device, gpus);
        (rate > 0.0).then_some(seconds / 3600.0 * rate)
    }

    pub(super) fn violations(&self) -> Violations {
        let mut violations = Violations::new();
        if !(self.rate_per_hour >= 0.0 && self.rate_per_hour.is_finite()) {
            violations.push(("rate_per_hour".into(), "must not be negative".into()));
        }
        if self.budget.is_some_and(|b| !(b > 0.0 && b.is_finite())) {
            violations.push(("budget".into(), "must be a positive number, or null".into()));
        }
        violations
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_gpus_have_a_price() {
        let mut cost = Cost::default();
        assert_eq!(cost.rate("as asked: NVIDIA H100 80GB HBM3", 4), 10.0);
        assert_eq!(cost.rate("no GPU", 1), 0.0);
        assert_eq!(cost.of(1800.0, "NVIDIA A100-SXM4-40GB", 2), Some(1.5));
        assert_eq!(cost.of(1800.0, "no GPU", 1), None);
        cost.rate_per_hour = 3.0;
        assert_eq!(cost.rate("NVIDIA H100 80GB HBM3", 4), 3.0);
    }
}
