//! The search space of a study.

use crate::trial::Point;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Parameters by name. The name is a configuration key of the task or, for other programs, a placeholder.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Space(pub BTreeMap<String, Parameter>);

/// One parameter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Parameter {
    /// One of a list of values.
    Categorical {
        /// The values: numbers, strings, booleans or lists.
        choices: Vec<Value>,
        /// Active only if other parameters have these values.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        when: When,
    },
    /// An integer.
    Int {
        /// The smallest value.
        low: i64,
        /// The largest value.
        high: i64,
        /// Distance between values, starting at `low`.
        #[serde(default = "one")]
        step: u64,
        /// Search on a logarithmic scale.
        #[serde(default)]
        log: bool,
        /// Active only if other parameters have these values.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        when: When,
    },
    /// A real number.
    Float {
        /// The smallest value.
        low: f64,
        /// The largest value.
        high: f64,
        /// Distance between values, starting at `low`; without it, the parameter is continuous.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        step: Option<f64>,
        /// Search on a logarithmic scale.
        #[serde(default)]
        log: bool,
        /// Active only if other parameters have these values.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        when: When,
    },
    /// The same value in every trial.
    Fixed {
        /// The value.
        value: Value,
        /// Active only if other parameters have these values.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        when: When,
    },
}

/// Maximum number of steps of a float; with more, neighbouring values would round to the same number.
const MAX_STEPS: f64 = 1e12;

/// A condition: names of other parameters, each with the values for which the parameter is active.
pub type When = BTreeMap<String, Vec<Value>>;

pub(crate) fn one() -> u64 {
    1
}

/// The numeric encoding of a parameter for samplers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Domain {
    /// The index of a choice; the field is the number of choices.
    Categorical(usize),
    /// The value itself.
    Numeric {
        /// Smallest value.
        low: f64,
        /// Largest value.
        high: f64,
        /// Distance between values.
        step: Option<f64>,
        /// Whether the logarithm is searched.
        log: bool,
    },
}

impl Domain {
    /// Whether there is only one value.
    pub fn is_single(&self) -> bool {
        match *self {
            Self::Categorical(choices) => choices == 1,
            Self::Numeric { low, high, .. } => low == high,
        }
    }

    /// Returns the number of values, if it is finite.
    pub fn count(&self) -> Option<u64> {
        match *self {
            Self::Categorical(choices) => Some(choices as u64),
            Self::Numeric { low, high, step: None, .. } => (low == high).then_some(1),
            Self::Numeric { low, high, step: Some(step), .. } => {
                Some((((high - low) / step + 1e-9) as u64).saturating_add(1))
            }
        }
    }

    /// Returns all values, if there are finitely many.
    pub fn values(&self) -> Option<impl Iterator<Item = f64> + use<>> {
        let (low, step) = match *self {
            Self::Categorical(_) => (0.0, 1.0),
            Self::Numeric { low, step, .. } => (low, step.unwrap_or(0.0)),
        };
        Some((0..self.count()?).map(move |i| low + i as f64 * step))
    }

    /// Returns the range of the continuous search coordinate: the value, or its logarithm if `log` is set. With a step,
    /// the range extends half a step beyond the outermost values.
    pub fn range(&self) -> (f64, f64) {
        match *self {
            Self::Categorical(choices) => (0.0, choices as f64),
            Self::Numeric { low, high, step, .. } => {
                let margin = step.unwrap_or(0.0) / 2.0;
                (self.coordinate(low - margin), self.coordinate(high + margin))
            }
        }
    }

    /// Returns the search coordinate of a value, within [`Domain::range`].
    pub fn coordinate(&self, value: f64) -> f64 {
        if matches!(self, Self::Numeric { log: true, .. }) { value.ln() } else { value }
    }

    /// Returns the value nearest to a search coordinate.
    pub fn at(&self, coordinate: f64) -> f64 {
        match *self {
            Self::Categorical(choices) => coordinate.floor().clamp(0.0, choices as f64 - 1.0),
            Self::Numeric { low, high, step, log } => {
                let value = if log { coordinate.exp() } else { coordinate };
                let value = match step {
                    None => value,
                    Some(step) => low + ((value - low) / step).round_ties_even() * step,
                };
                value.clamp(low, high)
            }
        }
    }
}

impl Parameter {
    /// Returns the encoding for samplers.
    pub fn domain(&self) -> Domain {
        match self {
            Self::Categorical { choices, .. } => Domain::Categorical(choices.len()),
            Self::Fixed { .. } => Domain::Categorical(1),
            Self::Int { low, high, step, log, .. } => {
                // The largest value reachable in whole steps.
                let step = i128::from((*step).max(1));
                let span = (i128::from(*high) - i128::from(*low)).max(0) / step * step;
                let (low, step) = (*low as f64, Some(step as f64));
                Domain::Numeric { low, high: low + span as f64, step, log: *log }
            }
            Self::Float { low, high, step, log, .. } => {
                let last = |step: f64| low + ((high - low) / step + 1e-9).floor() * step;
                let high = step.map_or(*high, last);
                Domain::Numeric { low: *low, high, step: *step, log: *log }
            }
        }
    }

    /// The condition under which the parameter is active.
    pub fn when(&self) -> &When {
        match self {
            Self::Categorical { when, .. }
            | Self::Int { when, .. }
            | Self::Float { when, .. }
            | Self::Fixed { when, .. } => when,
        }
    }

    fn when_mut(&mut self) -> &mut When {
        match self {
            Self::Categorical { when, .. }
            | Self::Int { when, .. }
            | Self::Float { when, .. }
            | Self::Fixed { when, .. } => when,
        }
    }

    /// Decodes a value.
    pub fn value(&self, number: f64) -> Value {
        match self {
            Self::Categorical { choices, .. } => {
                choices.get(number as usize).cloned().unwrap_or_default()
            }
            Self::Fixed { value, .. } => value.clone(),
            Self::Int { .. } => Value::from(number as i64),
            Self::Float { .. } => Value::from(number),
        }
    }

    /// Encodes a value; `None` if it is not a value of this parameter.
    pub fn number(&self, value: &Value) -> Option<f64> {
        match self {
            Self::Categorical { choices, .. } => {
                choices.iter().position(|choice| same(choice, value)).map(|i| i as f64)
            }
            Self::Fixed { value: own, .. } => same(own, value).then_some(0.0),
            Self::Int { .. } | Self::Float { .. } => {
                let Domain::Numeric { low, high, .. } = self.domain() else { return None };
                value.as_f64().filter(|x| (low..=high).contains(x))
            }
        }
    }

    /// Finds the first violation, apart from conditions.
    fn violation(&self) -> Option<String> {
        let undefined = |low: &dyn std::fmt::Display, least: &str| {
            format!("log: the logarithm of {low} is undefined; low must be {least}")
        };
        Some(match self {
            Self::Fixed { .. } => return None,
            Self::Categorical { choices, .. } if choices.is_empty() => "has no choices".into(),
            Self::Categorical { choices, .. } => {
                let twice = |i: &usize| choices[..*i].iter().any(|other| same(other, &choices[*i]));
                let twice = (0..choices.len()).find(twice)?;
                format!("lists the choice {} twice", choices[twice])
            }
            Self::Int { low, high, .. } if low > high => format!("low {low} is above high {high}"),
            Self::Int { step: 0, .. } => "step 0: must be at least 1".into(),
            Self::Int { low, log: true, .. } if *low < 1 => undefined(low, "at least 1"),
            Self::Int { .. } => return None,
            Self::Float { low, high, .. }
                if !low.is_finite() || !high.is_finite() || low > high =>
            {
                format!("low {low} and high {high} must be finite, and low must not be above high")
            }
            Self::Float { low, high, .. } if !(high - low).is_finite() => {
                "the range is too wide: high - low is not finite".into()
            }
            Self::Float { low, log: true, .. } if *low <= 0.0 => undefined(low, "positive"),
            Self::Float { step: None, .. } => return None,
            Self::Float { log: true, .. } => {
                "log and step cannot be combined; list the values as choices".into()
            }
            Self::Float { step: Some(step), .. } if !(step.is_finite() && *step > 0.0) => {
                "step must be positive".into()
            }
            Self::Float { low, high, step: Some(step), .. } if (high - low) / step > MAX_STEPS => {
                "step is too small for the range; omit it".into()
            }
            Self::Float { .. } => return None,
        })
    }
}

/// Formats a value as text: a string without quotes.
pub(crate) fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), String::from)
}

/// Compares JSON values, with 1 equal to 1.0.
fn same(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}

impl Space {
    /// Finds violations, each with the name of the parameter.
    pub fn violations(&self) -> Vec<(String, String)> {
        let mut all = Vec::new();
        for (name, parameter) in &self.0 {
            let mut report = |text: String| all.push((name.clone(), text));
            if let Some(text) = parameter.violation() {
                report(text);
            }
            for (other, values) in parameter.when() {
                match self.0.get(other) {
                    None => report(format!("when: there is no parameter {other}")),
                    Some(_) if values.is_empty() => {
                        report(format!("when: lists no value of {other}"))
                    }
                    Some(other_parameter) => {
                        let missing = values.iter().find(|v| other_parameter.number(v).is_none());
                        if let Some(missing) = missing {
                            report(format!("when: {other} is never {missing}"));
                        }
                    }
                }
            }
        }
        for name in self.0.keys().filter(|name| self.depends_on_itself(name)) {
            all.push((name.clone(), "when: the condition depends on the parameter itself".into()));
        }
        all
    }

    fn depends_on_itself(&self, name: &str) -> bool {
        let (mut seen, mut waiting) = (BTreeSet::new(), vec![name]);
        while let Some(next) = waiting.pop() {
            for other in self.0.get(next).into_iter().flat_map(|p| p.when().keys()) {
                if other == name {
                    return true;
                }
                if seen.insert(other) {
                    waiting.push(other);
                }
            }
        }
        false
    }

    /// Returns the names in topological order: a parameter follows the parameters in its condition, and ties are sorted
    /// by name. Conditions must not be circular ([`Space::violations`]).
    pub fn order(&self) -> Vec<&str> {
        let mut order: Vec<&str> = Vec::new();
        while order.len() < self.0.len() {
            let ready = |(name, parameter): &(&String, &Parameter)| {
                let known =
                    |other: &String| order.contains(&other.as_str()) || !self.0.contains_key(other);
                !order.contains(&name.as_str()) && parameter.when().keys().all(known)
            };
            let Some((name, _)) = self.0.iter().find(ready) else { break };
            order.push(name);
        }
        order
    }

    /// Whether a parameter is active at a point, which must hold the active parameters of its condition.
    pub fn is_active(&self, name: &str, point: &Point) -> bool {
        let Some(parameter) = self.0.get(name) else { return false };
        parameter.when().iter().all(|(other, values)| {
            let (Some(other), Some(number)) = (self.0.get(other), point.get(other)) else {
                return false;
            };
            values.iter().any(|value| other.number(value) == Some(*number))
        })
    }

    /// Removes condition values that narrowing has made impossible, and parameters that can no longer be active.
    pub(crate) fn drop_impossible(&mut self) {
        loop {
            let known = self.0.clone();
            let possible = |other: &String, value: &Value| {
                known.get(other).is_some_and(|parameter| parameter.number(value).is_some())
            };
            for parameter in self.0.values_mut() {
                let when = parameter.when_mut();
                when.iter_mut().for_each(|(other, values)| values.retain(|v| possible(other, v)));
            }
            self.0
                .retain(|_, parameter| parameter.when().values().all(|values| !values.is_empty()));
            if self.0.len() == known.len() {
                return;
            }
        }
    }

    /// Encodes values as a point; skips parameters that are not in the space and values outside it.
    pub fn point(&self, values: &BTreeMap<String, Value>) -> Point {
        let number = |(name, value): (&String, &Value)| {
            Some((name.clone(), self.0.get(name)?.number(value)?))
        };
        values.iter().filter_map(number).collect()
    }

    /// Decodes a point.
    pub fn values(&self, point: &Point) -> BTreeMap<String, Value> {
        let value = |(name, number): (&String, &f64)| {
            Some((name.clone(), self.0.get(name)?.value(*number)))
        };
        point.iter().filter_map(value).collect()
    }
}
