//! Updates that were submitted to the device and whose results have not been read back yet.

use super::learner::{Pending, UpdateResult};
use dist::Times;
use std::time::{Duration, Instant};
use unix::Result;

/// An update in flight.
pub struct InFlight {
    pub(in crate::train) pending: Pending,
    pub(in crate::train) submitted: Instant,
    pub(in crate::train) data_wait: Duration,
    pub(in crate::train) times: Times,
}

/// Time spent in an update, by activity.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timing {
    /// Time since the submission of the update or the end of the previous one, whichever is later.
    pub took: Duration,
    /// Time spent waiting for batches.
    pub data_wait: Duration,
    /// Communication times of the all-reduce.
    pub times: Times,
}

impl InFlight {
    /// Waits for the result. `previous` is the time at which the previous update was retired; this update may have been
    /// submitted earlier.
    pub fn wait(self, previous: Instant) -> Result<(UpdateResult, Timing)> {
        let step = self.pending.wait()?;
        let took = self.submitted.max(previous).elapsed();
        Ok((step, Timing { took, data_wait: self.data_wait, times: self.times }))
    }
}
