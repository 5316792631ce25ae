//! Asynchronous copies of small values to the host. Starting one does not wait; reading its result waits for
//! the copy, not for kernels launched after it.

use super::Gpu;
use super::copy::{Pinned, event, record, until};
use super::driver::check;
use cudarc::driver::sys::{self, CUevent};
use std::ptr;
use std::sync::PoisonError;
use unix::{Error, Result};

/// Maximum number of bytes per copy.
const MOST: usize = 4096;

/// A pinned buffer for a copy; reused after the result has been read.
#[derive(Debug)]
pub(super) struct Slot {
    pinned: Pinned,
    arrived: CUevent,
}

/// An asynchronous copy in flight.
#[derive(Debug)]
pub(crate) struct AsyncCopy {
    gpu: &'static Gpu,
    /// `None` after an error or once the slot has been returned.
    slot: Option<Slot>,
}

impl Gpu {
    /// Starts copying `bytes` bytes to the host, after all earlier launches. The source must not be freed until the
    /// result has been read.
    pub(crate) fn copy_out_async(&'static self, from: u64, bytes: usize) -> Result<AsyncCopy> {
        self.refuse_in_capture("a value read on the host")?;
        if bytes > MOST {
            return Err(Error::bug(
                self.with_device(&format!("{bytes} bytes exceed {MOST} for an async copy")),
            ));
        }
        self.enter()?;
        let free = self.slots.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let slot = match free {
            Some(slot) => slot,
            None => Slot { pinned: Pinned::new(MOST)?, arrived: event()? },
        };
        let mut download = self.download.lock().unwrap_or_else(PoisonError::into_inner);
        let stream = self.after_launches(&mut download)?.stream;
        // SAFETY: `bytes` bytes that belong to the caller, into a slot that no other copy uses.
        let result =
            unsafe { sys::cuMemcpyDtoHAsync_v2(slot.pinned.0.cast(), from, bytes, stream) };
        check(result, || self.with_device(&format!("copying {bytes} bytes out")))?;
        record(slot.arrived, stream)?;
        Ok(AsyncCopy { gpu: self, slot: Some(slot) })
    }
}

impl AsyncCopy {
    /// Waits for the copy and reads its result into `to`, which has the size of the copy.
    pub(crate) fn arrive(mut self, to: &mut [u8]) -> Result<()> {
        self.wait()?;
        if let Some(slot) = &self.slot {
            // SAFETY: the copy has finished; a slot has room for the largest copy.
            unsafe { ptr::copy_nonoverlapping(slot.pinned.0, to.as_mut_ptr(), to.len()) };
        }
        Ok(())
    }

    /// Waits for the copy. Errors: an earlier kernel failed; the slot is then not reused.
    fn wait(&mut self) -> Result<()> {
        let Some(slot) = &self.slot else { return Ok(()) };
        let (gpu, arrived) = (self.gpu, slot.arrived);
        let result = gpu.enter().and_then(|()| until(arrived));
        result.inspect_err(|_| self.slot = None).map_err(|why| {
            why.context(gpu.with_device("waiting for the kernels whose result is read"))
        })
    }
}

impl Drop for AsyncCopy {
    fn drop(&mut self) {
        // If the result was not read, the copy may still be in flight.
        if self.wait().is_ok()
            && let Some(slot) = self.slot.take()
        {
            self.gpu.slots.lock().unwrap_or_else(PoisonError::into_inner).push(slot);
        }
    }
}
