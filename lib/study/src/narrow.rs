//! Narrows the space of a round to the region of the previous round's best trials.

use crate::samplers::by_merit;
use crate::space::{Parameter, Space};
use crate::trial::{Point, State, Trial};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a space is narrowed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Narrow {
    /// Number of best trials to use.
    #[schemars(range(min = 1))]
    pub top: usize,
    /// Margin added to both ends of the range of a real parameter, as a fraction of the span of the best trials'
    /// values; computed on logarithms for parameters with `log: true`.
    #[schemars(range(min = 0))]
    pub widen: f64,
    /// Number of choices to keep, the most frequent ones.
    #[schemars(range(min = 1))]
    pub choices: usize,
}

impl Default for Narrow {
    fn default() -> Self {
        Self { top: 12, widen: 0.1, choices: 3 }
    }
}

impl Narrow {
    /// Returns the space around the best of these trials, never larger than `space`; complete trials rank before pruned
    /// ones. A parameter that no trial has, or a range with a value from only one trial, is not narrowed.
    pub fn apply(&self, space: &Space, trials: &[Trial]) -> Space {
        let mut best: Vec<&Trial> = trials.iter().filter(|trial| trial.is_informative()).collect();
        best.retain(|trial| trial.state != State::Infeasible);
        best.sort_by(|a, b| by_merit(a, b).then(a.number.cmp(&b.number)));
        let best: Vec<&Point> = best.iter().take(self.top).map(|trial| &trial.point).collect();
        let narrowed = |(name, parameter): (&String, &Parameter)| {
            let values: Vec<f64> =
                best.iter().filter_map(|point| point.get(name)).copied().collect();
            (name.clone(), self.parameter(parameter, &values))
        };
        let mut narrowed = Space(space.0.iter().map(narrowed).collect());
        narrowed.drop_impossible();
        narrowed
    }

    fn parameter(&self, parameter: &Parameter, values: &[f64]) -> Parameter {
        let Some(least) = values.iter().copied().reduce(f64::min) else { return parameter.clone() };
        let most = values.iter().copied().fold(least, f64::max);
        // A single value does not define a range.
        let is_choice = matches!(parameter, Parameter::Categorical { .. });
        if least == most && values.len() < 2 && !is_choice {
            return parameter.clone();
        }
        let mut narrowed = parameter.clone();
        match &mut narrowed {
            Parameter::Categorical { choices, .. } => {
                let count = |choice: usize| values.iter().filter(|x| **x == choice as f64).count();
                let mut order: Vec<usize> = (0..choices.len()).collect();
                order.sort_by_key(|choice| std::cmp::Reverse(count(*choice)));
                let mut kept: Vec<usize> =
                    order.into_iter().filter(|c| count(*c) > 0).take(self.choices).collect();
                kept.sort_unstable();
                *choices = kept.into_iter().map(|choice| choices[choice].clone()).collect();
            }
            Parameter::Int { low, high, .. } => (*low, *high) = (least as i64, most as i64),
            Parameter::Float { low, high, step, log, .. } => {
                let is_log = *log;
                let to = |x: f64| if is_log { x.ln() } else { x };
                let back = |x: f64| if is_log { x.exp() } else { x };
                let margin = if step.is_some() { 0.0 } else { self.widen * (to(most) - to(least)) };
                // Without a margin, keep the value exact: exp(ln(x)) may differ from x.
                let end =
                    |x: f64, margin: f64| if margin == 0.0 { x } else { back(to(x) + margin) };
                *low = end(least, -margin).max(*low);
                *high = end(most, margin).min(*high);
            }
            Parameter::Fixed { .. } => {}
        }
        narrowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn space(value: serde_json::Value) -> Space {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn narrows_ranges_to_the_best_trials_and_choices_to_the_most_frequent() {
        let whole = space(json!({
            "rate": {"kind": "float", "low": 1e-4, "high": 1.0, "log": true},
            "decay": {"kind": "float", "low": 0.0, "high": 1.0},
            "depth": {"kind": "int", "low": 1, "high": 9, "step": 2},
            "kind": {"kind": "categorical", "choices": ["a", "b", "c", "d"]},
            "extra": {"kind": "float", "low": 0.0, "high": 1.0, "when": {"kind": ["d"]}},
        }));
        let trial = |number: u64, value: f64, rate: f64, decay: f64, depth: f64, kind: f64| Trial {
            number,
            state: State::Complete,
            point: [("rate", rate), ("decay", decay), ("depth", depth), ("kind", kind)]
                .map(|(name, x)| (name.to_string(), x))
                .into(),
            value: Some(value),
            intermediate: Default::default(),
        };
        let trials = [
            trial(0, 0.5, 0.01, 0.0, 3.0, 1.0),
            trial(1, 9.0, 0.0001, 1.0, 9.0, 3.0),
            trial(2, 0.1, 0.1, 0.5, 5.0, 2.0),
            trial(3, 0.2, 0.01, 0.4, 3.0, 1.0),
            trial(4, f64::NAN, 1.0, 1.0, 9.0, 3.0),
        ];
        let narrow = Narrow { top: 3, widen: 0.2, choices: 3 };
        let found = narrow.apply(&whole, &trials);
        let number = |name: &str, key: &str| {
            serde_json::to_value(&found).unwrap()[name][key].as_f64().unwrap()
        };
        // One decade, widened by a fifth of a decade on both sides.
        assert!((number("rate", "low") - 10f64.powf(-2.2)).abs() < 1e-12);
        assert!((number("rate", "high") - 10f64.powf(-0.8)).abs() < 1e-12);
        assert_eq!((number("decay", "low"), number("decay", "high")), (0.0, 0.6));
        assert_eq!((number("depth", "low"), number("depth", "high")), (3.0, 5.0));
        let choices =
            |space: &Space| serde_json::to_value(space).unwrap()["kind"]["choices"].clone();
        assert_eq!(choices(&found), json!(["b", "c"]));
        // The condition of `extra` can no longer be met.
        assert!(!found.0.contains_key("extra"));
        assert_eq!(found.violations(), []);
        assert_eq!(choices(&Narrow { choices: 1, ..narrow }.apply(&whole, &trials)), json!(["b"]));
        assert_eq!(Narrow::default().apply(&whole, &[]), whole);
    }
}
