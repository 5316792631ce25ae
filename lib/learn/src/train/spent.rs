//! On what a start spends its time.

use dist::Times;
use serde_json::{Map, Value, json};
use std::time::Duration;

/// The time of an update.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spent {
    pub took: Duration,
    /// Waiting for data.
    pub stall: Duration,
    /// Summing over ranks.
    pub times: Times,
}

/// The time of all updates of a start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Total {
    updates: u64,
    took: Duration,
    stalled: Duration,
    times: Times,
}

impl Spent {
    /// For the record of an update; of one rank nothing is told about the others.
    pub fn tell(&self, ranks: usize, fields: &mut Map<String, Value>) {
        fields.insert("seconds".into(), json!(self.took.as_secs_f64()));
        fields.insert("stall".into(), json!(self.stall.as_secs_f64()));
        if ranks > 1 {
            fields.insert("communication".into(), json!(self.times.busy.as_secs_f64()));
            fields.insert("waited".into(), json!(self.times.waited.as_secs_f64()));
        }
    }
}

impl Total {
    pub fn add(&mut self, spent: &Spent) {
        self.updates += 1;
        self.took += spent.took;
        self.stalled += spent.stall;
        self.times.busy += spent.times.busy;
        self.times.waited += spent.times.waited;
    }

    /// For the record of the end.
    pub fn tell(&self, ranks: usize, samples_per_update: u64, fields: &mut Map<String, Value>) {
        let took = self.took.as_secs_f64().max(1e-9);
        let samples = (self.updates * samples_per_update) as f64;
        fields.insert("samples_per_second".into(), json!(samples / took));
        fields.insert("stall_share".into(), json!(self.stalled.as_secs_f64() / took));
        if ranks > 1 {
            let Times { busy, waited } = self.times;
            let hidden = 1.0 - waited.as_secs_f64() / busy.as_secs_f64().max(1e-9);
            fields.insert("communication".into(), json!(busy.as_secs_f64()));
            fields.insert("communication_hidden".into(), json!(hidden.max(0.0)));
        }
    }
}
