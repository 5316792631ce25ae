//! What an attempt spends its time on.

use super::merged;
use crate::train::step::Timing;
use dist::Times;
use serde_json::{Value, json};

impl Timing {
    /// The fields of the record of an update; communication times only with several ranks.
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

    /// The fields of the record at the end of the attempt.
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
