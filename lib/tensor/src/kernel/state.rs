//! The first error of each device since it was last asked.

use crate::device::Device;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use unix::{Error, Result};

static ERRORS: Mutex<Vec<(Device, Error)>> = Mutex::new(Vec::new());

fn errors() -> MutexGuard<'static, Vec<(Device, Error)>> {
    // A push or a removal is whole or did not happen.
    ERRORS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps an error, unless there is one already.
pub fn fail(device: Device, error: Error) {
    let mut errors = errors();
    if !errors.iter().any(|(d, _)| *d == device) {
        errors.push((device, error));
    }
}

/// Whether nothing has gone wrong: work that is given to the device now will be done.
pub(crate) fn is_sound(device: Device) -> bool {
    !errors().iter().any(|(d, _)| *d == device)
}

/// Does `work` on a sound device and keeps its error.
pub(crate) fn run(device: Device, work: impl FnOnce() -> Result<()>) {
    if is_sound(device)
        && let Err(error) = work()
    {
        fail(device, error);
    }
}

/// How often the host has waited for all that a device was given.
static WAITS: AtomicU64 = AtomicU64::new(0);

/// How often this process has waited until a device had done all it was given: whoever reads a value does.
pub fn waits() -> u64 {
    WAITS.load(Ordering::Relaxed)
}

/// The first thing that went wrong on the device since it was last asked.
pub(super) fn error(device: Device) -> Result<()> {
    let mut errors = errors();
    match errors.iter().position(|(d, _)| *d == device) {
        Some(at) => Err(errors.swap_remove(at).1),
        None => Ok(()),
    }
}

/// Waits until the device has done all it was given. Errors: the first thing that went wrong since the
/// last call.
pub fn finish(device: Device) -> Result<()> {
    WAITS.fetch_add(1, Ordering::Relaxed);
    run(device, || super::backend::synchronise(device));
    error(device)
}
