//! Where a run stands, as it is kept in every checkpoint. Nothing that a function of the update
//! gives (order of the data, learning rate, noise) is in it.

use super::origin::Origin;
use super::watch::Watch;
use crate::task::Direction;
use serde::{Deserialize, Serialize};
use tensor::updates::decision::LossScale;
use unix::status::{Best, Cost};

/// Where a run stands after an update.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Updates done, skipped ones included.
    pub update: u64,
    /// Samples learned from. With those passed over: the position in the data.
    pub samples: u64,
    /// Samples that rewinds have passed over.
    pub passed_over: u64,
    /// How often the run went back before a spike.
    pub rewinds: u64,
    /// Steps the optimizer has done.
    pub steps: u64,
    /// Updates skipped because loss or gradient was not finite.
    pub skipped: u64,
    /// Of these, the last ones in a row.
    pub skipped_in_row: u64,
    /// The scale of the next loss, in half precision only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<LossScale>,
    /// What is remembered of the last updates.
    pub watch: Box<Watch>,
    /// Best validation.
    #[serde(deserialize_with = "Option::deserialize")] // null may stand there, nothing may not
    pub best: Option<Best>,
    /// Validations since then.
    pub validations_since_best: u64,
    /// Seconds spent, all starts together.
    pub seconds: f64,
    /// The same times the ranks of each start; none when there was one rank always.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_seconds: Option<f64>,
    /// Whether the run is at its end.
    pub finished: bool,
    /// Changes of configuration or data that were accepted, the oldest first.
    pub accepted: Vec<String>,
    /// The `--resume` that this state descends from; none when every start said `auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
}

impl Progress {
    /// What was spent so far.
    pub fn cost(&self) -> Cost {
        let hours = self.seconds / 3600.0;
        Cost { hours, device_hours: self.device_seconds.map_or(hours, |s| s / 3600.0) }
    }

    /// Writes down changes that the start number `attempt` goes on with; a finished run is then at its
    /// end no more.
    pub fn accept(&mut self, attempt: u64, changes: &[String]) {
        let at = format!("attempt {attempt}, update {}", self.update);
        self.accepted.extend(changes.iter().map(|change| format!("{at}: {change}")));
        self.finished = false;
    }

    /// Takes the value of a validation; whether it is the best so far.
    pub fn judge(&mut self, metric: &str, direction: Direction, value: f64) -> bool {
        let beats = |best: &Best| direction.is_better(value, best.value);
        let better = value.is_finite() && self.best.as_ref().is_none_or(beats);
        if better {
            self.best = Some(Best { metric: metric.into(), value, update: self.update });
            self.validations_since_best = 0;
        } else {
            self.validations_since_best += 1;
        }
        better
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_is_not_finite_is_never_the_best() {
        for (direction, better) in [(Direction::Minimize, 1.0), (Direction::Maximize, 3.0)] {
            let mut progress = Progress::default();
            let mut judge = |value| progress.judge("x", direction, value);
            let judged =
                [f64::NAN, 2.0, 2.0, f64::INFINITY, -f64::INFINITY, better].map(&mut judge);
            assert_eq!(judged, [false, true, false, false, false, true]);
            assert!(!judge(4.0 - better));
            assert_eq!(progress.validations_since_best, 1);
            assert_eq!(progress.best.unwrap().value, better);
        }
    }
}
