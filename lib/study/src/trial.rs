//! Trials in the form that samplers and pruners use.

use std::collections::BTreeMap;

/// A point of the search space: a number for each active parameter, encoded as described by [`crate::space::Domain`].
pub type Point = BTreeMap<String, f64>;

/// State of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Started and not ended: it is running, or was interrupted and will be resumed.
    Open,
    /// Ended with a final value.
    Complete,
    /// Ended by the pruner.
    Pruned,
    /// Ended without a value because of its parameters: it diverged or ran out of memory.
    Infeasible,
    /// Ended with an error that is unrelated to its parameters.
    Failed,
}

/// A trial. Values are minimised; they are negated for studies that maximise.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    /// Number within the round, from 0; imported trials have other, larger numbers.
    pub number: u64,
    /// State of the trial.
    pub state: State,
    /// Active parameters, encoded.
    pub point: Point,
    /// The final value of a complete trial.
    pub value: Option<f64>,
    /// Intermediate values by step.
    pub intermediate: BTreeMap<u64, f64>,
}

impl Trial {
    /// Returns the last step and its value.
    pub fn last(&self) -> Option<(u64, f64)> {
        self.intermediate.last_key_value().map(|(step, value)| (*step, *value))
    }

    /// Whether samplers can learn from the trial: it has ended, and its outcome depends on its parameters.
    pub fn is_informative(&self) -> bool {
        matches!(self.state, State::Complete | State::Pruned | State::Infeasible)
    }
}

/// Returns the minimum, ignoring NaN; NaN if there are no other values.
pub(crate) fn best(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().fold(f64::NAN, f64::min)
}
