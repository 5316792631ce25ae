//! Asynchronous copies of small values to the host. Starting one does not wait; reading its result waits for
//! the copy, not for kernels launched after it.

use super::Gpu;
use super::copy::{Pinned, event, record, until};
use super::driver::check;
use cudarc::driver::sys::{self, CUevent};
use std::ptr;
use std::sync::PoisonError;
use unix::{Error, Result};

/// Bytes that travel together at most.
const MOST: usize = 4096;

/// Where they arrive; used again once they were taken.
#[derive(Debug)]
pub(super) struct Slot {
    pinned: Pinned,
    arrived: CUevent,
}

/// Bytes on their way.
#[derive(Debug)]
pub(crate) struct AsyncCopy {
    gpu: &'static Gpu,
    /// Until they are taken.
    slot: Option<Slot>,
}

impl Gpu {
    /// Begins to copy to the host what launches before leave. The memory stays as it is until they are
    /// taken.
    pub(crate) fn copy_out_later(&'static self, from: u64, bytes: usize) -> Result<AsyncCopy> {
        self.refuse_in_capture("a value read on the host")?;
        if bytes > MOST {
            return Err(Error::bug(self.said(&format!("{bytes} bytes are too many for later"))));
        }
        self.enter()?;
        let free = self.slots.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let slot = match free {
            Some(slot) => slot,
            None => Slot { pinned: Pinned::new(MOST)?, arrived: event()? },
        };
        let mut download = self.download.lock().unwrap_or_else(PoisonError::into_inner);
        let stream = self.after_launches(&mut download)?.stream;
        // SAFETY: as many bytes of the caller's, into a slot that nobody else has.
        let result =
            unsafe { sys::cuMemcpyDtoHAsync_v2(slot.pinned.0.cast(), from, bytes, stream) };
        check(result, || self.said(&format!("copying {bytes} bytes out")))?;
        record(slot.arrived, stream)?;
        Ok(AsyncCopy { gpu: self, slot: Some(slot) })
    }
}

impl AsyncCopy {
    /// Takes them, once they are here. `to` has their size.
    pub(crate) fn arrive(mut self, to: &mut [u8]) -> Result<()> {
        self.wait()?;
        if let Some(slot) = &self.slot {
            // SAFETY: the copy is over; a slot has room for all that travels together.
            unsafe { ptr::copy_nonoverlapping(slot.pinned.0, to.as_mut_ptr(), to.len()) };
        }
        Ok(())
    }

    /// Errors: a kernel before failed; then the slot is not used again.
    fn wait(&mut self) -> Result<()> {
        let Some(slot) = &self.slot else { return Ok(()) };
        let (gpu, arrived) = (self.gpu, slot.arrived);
        let result = gpu.enter().and_then(|()| until(arrived));
        result
            .inspect_err(|_| self.slot = None)
            .map_err(|why| why.context(gpu.said("kernels before a value was read")))
    }
}

impl Drop for AsyncCopy {
    fn drop(&mut self) {
        // Not taken: the copy may still be under way.
        if self.wait().is_ok()
            && let Some(slot) = self.slot.take()
        {
            self.gpu.slots.lock().unwrap_or_else(PoisonError::into_inner).push(slot);
        }
    }
}
