//! An update that was submitted to the device and whose result is not known yet.

use super::learner::{Pending, Step};
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

/// On what an update spent its time.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// From the later of its submission and the end of the update before it.
    pub took: Duration,
    /// Waiting for batches.
    pub data_wait: Duration,
    /// Sums over ranks.
    pub times: Times,
}

impl InFlight {
    /// Waits until the result is known. `previous`: when the update before it was retired; this one may have been
    /// submitted earlier.
    pub fn wait(self, previous: Instant) -> Result<(Step, Timing)> {
        let step = self.pending.wait()?;
        let took = self.submitted.max(previous).elapsed();
        Ok((step, Timing { took, data_wait: self.data_wait, times: self.times }))
    }
}
