//! Reduces the learning rate when the validation metric stops improving, like PyTorch's `ReduceLROnPlateau` with
//! `threshold_mode="rel"`. Its state is part of every checkpoint.

use crate::score::Direction;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use unix::config::Violations;

/// Reduce the learning rate when the validation metric stops improving.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Plateau {
    /// Factor by which the learning rate is multiplied at each reduction.
    pub factor: f64,
    /// Number of validations without improvement that are tolerated; the next one reduces the learning rate.
    pub patience: u64,
    /// Minimum relative change of the monitored metric that counts as an improvement.
    pub threshold: f64,
    /// Number of validations after a reduction in which bad validations are not counted.
    pub cooldown: u64,
    /// Lower bound of the accumulated factor, relative to the scheduled learning rate.
    pub min_factor: f64,
}

impl Default for Plateau {
    fn default() -> Self {
        Self { factor: 0.1, patience: 10, threshold: 1e-4, cooldown: 0, min_factor: 0.0 }
    }
}

/// State of the plateau rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlateauState {
    /// Current factor of the learning rate.
    pub factor: f64,
    best: Option<f64>,
    without_improvement: u64,
    cooldown: u64,
}

impl Default for PlateauState {
    fn default() -> Self {
        Self { factor: 1.0, best: None, without_improvement: 0, cooldown: 0 }
    }
}

impl PlateauState {
    /// Records the monitored metric of one validation.
    pub fn note(&mut self, rule: &Plateau, direction: Direction, value: f64) {
        let limit = |best: f64| match direction {
            Direction::Minimize => best * (1.0 - rule.threshold),
            Direction::Maximize => best * (1.0 + rule.threshold),
        };
        let is_better = |best| direction.is_better(value, limit(best));
        if value.is_finite() && self.best.is_none_or(is_better) {
            self.best = Some(value);
            self.without_improvement = 0;
        } else {
            self.without_improvement += 1;
        }
        if self.cooldown > 0 {
            self.cooldown -= 1;
            self.without_improvement = 0;
        }
        if self.without_improvement > rule.patience {
            self.factor = (self.factor * rule.factor).max(rule.min_factor);
            self.cooldown = rule.cooldown;
            self.without_improvement = 0;
        }
    }
}

impl Plateau {
    pub(crate) fn violations(&self) -> Violations {
        let Self { factor, threshold, min_factor, .. } = *self;
        let values = [("factor", factor), ("threshold", threshold), ("min_factor", min_factor)];
        let wrong = values.into_iter().filter(|(_, value)| !(0.0..1.0).contains(value));
        wrong.map(|(key, _)| (key.into(), "must lie in [0, 1)".into())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Learning rates of torch.optim.lr_scheduler.ReduceLROnPlateau(factor=0.5, patience=1, threshold=0.1, cooldown=1,
    /// min_lr=0.2), starting from 1, after each of these metric values.
    #[test]
    fn factors_are_those_of_pytorch() {
        let rule =
            Plateau { factor: 0.5, patience: 1, threshold: 0.1, cooldown: 1, min_factor: 0.2 };
        let metrics = [1.0, 0.95, 0.95, 0.95, 0.85, 0.8, 0.8, 0.8, 0.8, f64::NAN, 0.8, 0.8, 0.5];
        let expected = [1.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.2, 0.2, 0.2, 0.2];
        for (direction, sign) in [(Direction::Minimize, 1.0), (Direction::Maximize, -1.0)] {
            let mut state = PlateauState::default();
            let factors = metrics.map(|value: f64| {
                // The reciprocal of the metric reverses the direction and approximately preserves relative differences
                // of 10 %.
                let value = if sign > 0.0 { value } else { 1.0 / value };
                state.note(&rule, direction, value);
                // An interrupted run resumes with the same state.
                let text = serde_json::to_string(&state).unwrap();
                assert_eq!(serde_json::from_str::<PlateauState>(&text).unwrap(), state);
                state.factor
            });
            assert_eq!(factors, expected, "{direction:?}");
        }
    }
}
