//! Time spent in an attempt, by activity.

use super::merged;
use crate::train::step::Timing;
use dist::Times;
use serde_json::{Value, json};
use std::time::Duration;

impl Timing {
    /// Returns the timing fields of an update record; communication times only with several ranks.
    pub(in crate::train) fn record(&self, ranks: usize) -> Value {
        let [took, data_wait] = [self.took, self.data_wait].map(|time| time.as_secs_f64());
        if ranks == 1 {
            return json!({"seconds": took, "data_wait_s": data_wait});
        }
        let [busy, waited] = [self.times.busy, self.times.waited].map(|time| time.as_secs_f64());
        json!({"seconds": took, "data_wait_s": data_wait, "comm_s": busy, "comm_wait_s": waited})
    }
}

/// Accumulated times of all updates of an attempt.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::train) struct TotalTiming {
    updates: u64,
    sum: Timing,
}

impl TotalTiming {
    pub fn add(&mut self, timing: &Timing) {
        self.updates += 1;
        self.sum.took += timing.took;
        self.sum.data_wait += timing.data_wait;
        self.sum.times.busy += timing.times.busy;
        self.sum.times.waited += timing.times.waited;
    }

    /// Total time that updates waited for batches.
    pub fn data_wait(&self) -> Duration {
        self.sum.data_wait
    }

    /// Returns the timing fields of the record at the end of the attempt.
    pub fn record(&self, ranks: usize, samples_per_update: u64) -> Value {
        let Timing { took, data_wait, times: Times { busy, waited } } = self.sum;
        let [took, data_wait, busy, waited] =
            [took, data_wait, busy, waited].map(|time| time.as_secs_f64());
        let rate = (self.updates * samples_per_update) as f64 / took.max(1e-9);
        let data_wait = data_wait / took.max(1e-9);
        let fields = json!({"samples_per_second": rate, "data_wait_fraction": data_wait});
        if ranks == 1 {
            return fields;
        }
        let hidden = (1.0 - waited / busy.max(1e-9)).max(0.0);
        merged(fields, json!({"comm_s": busy, "comm_hidden_fraction": hidden}))
    }
}

/// Detects updates that mostly wait for batches, using exponential moving averages over ten updates.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::train) struct DataWait {
    updates: u64,
    data_wait: f64,
    took: f64,
    warned: bool,
}

impl DataWait {
    const WINDOW: u64 = 10;
    /// Maximum fraction of the update time spent waiting without a warning.
    const LIMIT: f64 = 0.40;
    /// Minimum total wait for a warning.
    const LEAST: Duration = Duration::from_secs(1);

    /// Records an update; `total` is the total wait so far. Returns the fraction of time waited when it first exceeds
    /// the limit.
    pub fn note(&mut self, timing: &Timing, total: Duration) -> Option<f64> {
        let weight = match self.updates {
            0 => 1.0,
            _ => 2.0 / (Self::WINDOW + 1) as f64,
        };
        self.updates += 1;
        self.data_wait += weight * (timing.data_wait.as_secs_f64() - self.data_wait);
        self.took += weight * (timing.took.as_secs_f64() - self.took);
        let fraction = self.data_wait / self.took.max(1e-9);
        let much = self.updates >= Self::WINDOW && fraction > Self::LIMIT && total >= Self::LEAST;
        let first = much && !self.warned;
        self.warned |= much;
        first.then_some(fraction)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timing(wait: u64, took: u64) -> Timing {
        let [data_wait, took] = [wait, took].map(Duration::from_millis);
        Timing { took, data_wait, ..Timing::default() }
    }

    #[test]
    fn a_slow_loader_is_noticed_once() {
        let long = Duration::from_secs(1);
        let notes = |waits: &[u64], total| -> Vec<Option<f64>> {
            let mut wait = DataWait::default();
            waits.iter().map(|ms| wait.note(&timing(*ms, 100), total)).collect()
        };
        // The warning comes at the tenth update, and only once.
        let found = notes(&[50; 30], long);
        assert_eq!(found.iter().position(Option::is_some), Some(9));
        assert!((found[9].unwrap() - 0.5).abs() < 1e-12);
        assert_eq!(found.iter().flatten().count(), 1);
        // No warning at the limit itself, nor if the total wait is short.
        assert_eq!(notes(&[40; 30], long).iter().flatten().count(), 0);
        assert_eq!(notes(&[50; 30], long / 2).iter().flatten().count(), 0);
        // After n updates that wait 100 of 100 ms, the average fraction rises from 0 to 1 - (9/11)ⁿ: above 0.4 after
        // three.
        let late: Vec<u64> = [0; 20].into_iter().chain([100; 5]).collect();
        let found = notes(&late, long);
        assert_eq!(found.iter().position(Option::is_some), Some(22));
        assert!((found[22].unwrap() - (1.0 - (9.0_f64 / 11.0).powi(3))).abs() < 1e-12);
    }
}
