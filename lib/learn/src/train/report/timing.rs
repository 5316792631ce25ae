//! What an attempt spends its time on.

use crate::train::step::Timing;
use dist::Times;
use serde_json::{Map, Value, json};
use std::time::Duration;

impl Timing {
    /// Adds the fields of the record of an update; communication times only with several ranks.
    pub(in crate::train) fn record(&self, ranks: usize, fields: &mut Map<String, Value>) {
        fields.insert("seconds".into(), json!(self.took.as_secs_f64()));
        fields.insert("data_wait_s".into(), json!(self.data_wait.as_secs_f64()));
        if ranks > 1 {
            fields.insert("comm_s".into(), json!(self.times.busy.as_secs_f64()));
            fields.insert("comm_wait_s".into(), json!(self.times.waited.as_secs_f64()));
        }
    }
}

/// Accumulated times of all updates of an attempt.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::train) struct TotalTiming {
    updates: u64,
    took: Duration,
    data_wait: Duration,
    times: Times,
}

impl TotalTiming {
    pub fn add(&mut self, timing: &Timing) {
        self.updates += 1;
        self.took += timing.took;
        self.data_wait += timing.data_wait;
        self.times.busy += timing.times.busy;
        self.times.waited += timing.times.waited;
    }

    /// Adds the fields of the record at the end of the attempt.
    pub fn record(&self, ranks: usize, samples_per_update: u64, fields: &mut Map<String, Value>) {
        let took = self.took.as_secs_f64().max(1e-9);
        let samples = (self.updates * samples_per_update) as f64;
        fields.insert("samples_per_second".into(), json!(samples / took));
        fields.insert("data_wait_fraction".into(), json!(self.data_wait.as_secs_f64() / took));
        if ranks > 1 {
            let Times { busy, waited } = self.times;
            let hidden = 1.0 - waited.as_secs_f64() / busy.as_secs_f64().max(1e-9);
            fields.insert("comm_s".into(), json!(busy.as_secs_f64()));
            fields.insert("comm_hidden_fraction".into(), json!(hidden.max(0.0)));
        }
    }
}
