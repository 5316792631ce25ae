//! Progress of a run, stored in every checkpoint. It excludes anything that follows from the update number: data order,
//! scheduled learning rate, noise.

use super::guard::SpikeDetector;
use super::memory::MemoryAdaptation;
use super::start::Origin;
use crate::config::{Monitor, Training};
use crate::optim::PlateauState;
use serde::{Deserialize, Serialize};
use tensor::updates::decision::LossScale;
use unix::status::{Best, Cost};

/// Progress of a run after an update.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Updates completed, including skipped ones.
    pub update: u64,
    /// Samples trained on. Together with `skipped_samples`, this is the position in the data.
    pub samples: u64,
    /// Samples skipped by rewinds.
    pub skipped_samples: u64,
    /// Number of rewinds.
    pub rewinds: u64,
    /// Number of optimizer steps.
    pub steps: u64,
    /// Updates skipped because the loss or gradient was not finite.
    pub skipped: u64,
    /// Current number of consecutive skipped updates.
    pub skipped_in_row: u64,
    /// Loss scale of the next update; only with f16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<LossScale>,
    /// Losses and gradient norms of recent updates, for spike detection.
    pub spikes: Box<SpikeDetector>,
    /// State of `plateau`.
    pub plateau: PlateauState,
    /// Best value of the monitored metric so far.
    #[serde(deserialize_with = "Option::deserialize")] // null is allowed, a missing key is not
    pub best: Option<Best>,
    /// Number of validations since the best one.
    pub validations_since_best: u64,
    /// Wall-clock seconds over all attempts.
    pub seconds: f64,
    /// Seconds times ranks over all attempts; None if the run always had a single rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_seconds: Option<f64>,
    /// Whether the run is finished.
    pub finished: bool,
    /// Accepted changes to configuration or data, oldest first.
    pub accepted: Vec<String>,
    /// The `--resume` that this state descends from; None if every attempt used `auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// Whether `training.amp` has an effect on the CPU: not in a run that was begun by a version that computed in f32 there.
    #[serde(default, skip_serializing_if = "is_off")]
    pub amp_on_cpu: bool,
    /// How the run was adapted to the memory of its device.
    #[serde(default, skip_serializing_if = "MemoryAdaptation::is_none")]
    pub memory: MemoryAdaptation,
}

fn is_off(key: &bool) -> bool {
    !*key
}

impl Progress {
    /// The progress of a new run.
    pub fn new(training: &Training) -> Self {
        Self { amp_on_cpu: training.amp, ..Self::default() }
    }

    /// Cost of the run so far.
    pub fn cost(&self) -> Cost {
        let hours = self.seconds / 3600.0;
        Cost { hours, device_hours: self.device_seconds.map_or(hours, |s| s / 3600.0) }
    }

    /// Records the changes accepted by attempt number `attempt`. A finished run then counts as unfinished.
    pub fn accept(&mut self, attempt: u64, changes: &[String]) {
        let at = format!("attempt {attempt}, update {}", self.update);
        self.accepted.extend(changes.iter().map(|change| format!("{at}: {change}")));
        self.finished = false;
    }

    /// Records the monitored metric of a validation; returns whether it is the best value so far.
    pub fn record_metric(&mut self, monitor: &Monitor, value: f64) -> bool {
        let beats = |best: &Best| monitor.is_better(value, best.value);
        let better = value.is_finite() && self.best.as_ref().is_none_or(beats);
        if better {
            self.best = Some(Best { metric: monitor.metric.clone(), value, update: self.update });
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
    use crate::score::Direction;

    #[test]
    fn a_value_that_is_not_finite_is_never_the_best() {
        for (direction, better) in [(Direction::Minimize, 1.0), (Direction::Maximize, 3.0)] {
            let mut progress = Progress::default();
            let monitor = Monitor { metric: "x".into(), direction, min_delta: 0.0 };
            let mut record = |value| progress.record_metric(&monitor, value);
            let best = [f64::NAN, 2.0, 2.0, f64::INFINITY, -f64::INFINITY, better].map(&mut record);
            assert_eq!(best, [false, true, false, false, false, true]);
            assert!(!record(4.0 - better));
            assert_eq!(progress.validations_since_best, 1);
            // An improvement of at most 0.5 does not count.
            let monitor = Monitor { min_delta: 0.5, ..monitor };
            let sign = if direction == Direction::Minimize { -1.0 } else { 1.0 };
            let mut record = |value| progress.record_metric(&monitor, value);
            assert_eq!([0.5, 0.75].map(|by| record(better + sign * by)), [false, true]);
            assert_eq!(progress.best.unwrap().value, better + sign * 0.75);
        }
    }
}
