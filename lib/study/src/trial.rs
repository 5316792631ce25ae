//! What a study knows of its trials.

use std::collections::BTreeMap;

/// A point of the space: a number for each active parameter, as [`crate::space::Domain`] encodes it.
pub type Point = BTreeMap<String, f64>;

/// How far a trial is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Has been claimed and may go on: it runs, or it was interrupted and will be resumed.
    Open,
    /// Has a final value.
    Complete,
    /// Ended by the pruner.
    Pruned,
    /// Its parameters have no value: it diverged, or did not fit into memory.
    Infeasible,
    /// Ended with an error, which says nothing about its parameters.
    Failed,
}

/// The records of one trial. Values are to be minimised; those of a study that maximises have the opposite sign.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    /// From 0, unique within the study.
    pub number: u64,
    /// How far it is.
    pub state: State,
    /// Its parameters.
    pub point: Point,
    /// The final value, of a complete trial.
    pub value: Option<f64>,
    /// Values by step.
    pub intermediate: BTreeMap<u64, f64>,
}

impl Trial {
    /// The last step with a value, and that value.
    pub fn last(&self) -> Option<(u64, f64)> {
        self.intermediate.last_key_value().map(|(step, value)| (*step, *value))
    }

    /// Whether its end says something about its parameters.
    pub fn informs(&self) -> bool {
        matches!(self.state, State::Complete | State::Pruned | State::Infeasible)
    }
}

/// The smallest of the values that are numbers; NaN if none is.
pub(crate) fn best(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().fold(f64::NAN, f64::min)
}
