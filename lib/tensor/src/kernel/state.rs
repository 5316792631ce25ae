//! The first error of each device since its errors were last read.

use crate::device::Device;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use unix::{Error, Result};

static ERRORS: Mutex<Vec<(Device, Error)>> = Mutex::new(Vec::new());

fn errors() -> MutexGuard<'static, Vec<(Device, Error)>> {
    // A push or removal is atomic, so the list is consistent even after a panic.
    ERRORS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records an error unless the device already has one.
pub fn fail(device: Device, error: Error) {
    let mut errors = errors();
    if !errors.iter().any(|(d, _)| *d == device) {
        errors.push((device, error));
    }
}

/// Whether no error is recorded, so that submitted work will run.
pub(crate) fn is_sound(device: Device) -> bool {
    !errors().iter().any(|(d, _)| *d == device)
}

/// Runs `work` unless the device has failed, and records its error.
pub(crate) fn run(device: Device, work: impl FnOnce() -> Result<()>) {
    if is_sound(device)
        && let Err(error) = work()
    {
        fail(device, error);
    }
}

/// Number of times that the host has waited for a device to finish all its work.
static WAITS: AtomicU64 = AtomicU64::new(0);

/// Number of times that this process has synchronized with a device to read values.
pub fn waits() -> u64 {
    WAITS.load(Ordering::Relaxed)
}

/// Returns and clears the first error recorded on `device` since the last call; does not wait for the device.
pub fn take_error(device: Device) -> Result<()> {
    let mut errors = errors();
    match errors.iter().position(|(d, _)| *d == device) {
        Some(at) => Err(errors.swap_remove(at).1),
        None => Ok(()),
    }
}

/// Whether the device has finished all work submitted so far; does not wait for it.
pub fn is_idle(device: Device) -> bool {
    match device {
        Device::Cuda(n) => {
            let mark = super::cuda::Gpu::open(n).and_then(|gpu| gpu.mark_kernels());
            // After an error nothing runs; whoever reads a value gets the error.
            mark.and_then(|mark| mark.is_past()).unwrap_or(true)
        }
        // Kernels of the emulator run when they are launched.
        Device::Cpu | Device::Emu => true,
    }
}

/// Waits until the device has finished all work. Errors: the first failure since the last call.
pub fn finish(device: Device) -> Result<()> {
    WAITS.fetch_add(1, Ordering::Relaxed);
    run(device, || super::backend::synchronise(device));
    take_error(device)
}
