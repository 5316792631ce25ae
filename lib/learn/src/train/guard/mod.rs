//! Guards against spikes, faulty hardware, changed inputs and failing disks.

mod inputs;
mod rewind;
mod save_failures;
mod spikes;
mod verify;

pub(super) use inputs::not_of_checkpoint;
pub(super) use save_failures::SaveFailures;
pub use spikes::{Spike, SpikeDetector};
pub(super) use verify::Mismatch;
