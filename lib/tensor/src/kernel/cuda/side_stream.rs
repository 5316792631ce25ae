//! A second stream, on which another library works on tensors concurrently with kernels: NCCL sums over
//! ranks. Events order the two streams on the GPU; the host waits for neither.

use super::copy::{event, record, wait};
use super::driver::check;
use super::{Gpu, stream};
use cudarc::driver::sys::{self, CUevent, CUresult, CUstream};
use std::ffi::c_void;
use std::sync::Arc;
use unix::Result;

/// The stream; kept until the process ends.
#[derive(Debug)]
pub struct SideStream {
    gpu: &'static Gpu,
    stream: CUstream,
}

// SAFETY: a handle of the driver, which any thread may use once the context is current.
unsafe impl Send for SideStream {}

/// A point in the work of a stream.
#[derive(Clone, Debug)]
pub struct Event(Arc<RawEvent>);

#[derive(Debug)]
struct RawEvent {
    gpu: &'static Gpu,
    event: CUevent,
}

// SAFETY: as for `SideStream`.
unsafe impl Send for RawEvent {}
// SAFETY: as for `SideStream`; the driver does its own locking.
unsafe impl Sync for RawEvent {}

impl Drop for RawEvent {
    fn drop(&mut self) {
        if self.gpu.enter().is_ok() {
            // SAFETY: an event of ours that nobody uses any more; the driver waits for it where needed.
            let _ = unsafe { sys::cuEventDestroy_v2(self.event) };
        }
    }
}

impl Gpu {
    /// Makes a stream beside that of kernels.
    pub fn beside(&'static self) -> Result<SideStream> {
        self.enter()?;
        Ok(SideStream { gpu: self, stream: stream()? })
    }

    fn mark(&'static self, stream: CUstream) -> Result<Event> {
        self.enter()?;
        let mark = Event(Arc::new(RawEvent { gpu: self, event: event()? }));
        record(mark.0.event, stream)?;
        Ok(mark)
    }

    fn wait(&self, stream: CUstream, mark: &Event) -> Result<()> {
        self.enter()?;
        wait(stream, mark.0.event)
    }
}

impl SideStream {
    /// The stream, as libraries take it, with its context current on this thread.
    pub fn stream(&self) -> Result<*mut c_void> {
        self.gpu.enter()?;
        Ok(self.stream.cast())
    }

    /// What this stream is given from now on waits for all that kernels were given before.
    pub fn follow_kernels(&self) -> Result<()> {
        self.gpu.wait(self.stream, &self.kernels()?)
    }

    /// Kernels given from now on wait for a moment of this stream.
    pub fn kernels_follow(&self, mark: &Event) -> Result<()> {
        self.gpu.wait(self.gpu.stream, mark)
    }

    /// The moment when this stream will have done what it was given.
    pub fn mark(&self) -> Result<Event> {
        self.gpu.mark(self.stream)
    }

    /// The moment when kernels given so far will be done.
    pub fn kernels(&self) -> Result<Event> {
        self.gpu.mark(self.gpu.stream)
    }
}

impl Event {
    /// Whether it is past. Errors: something failed on the GPU before it.
    pub fn is_past(&self) -> Result<bool> {
        self.0.gpu.enter()?;
        // SAFETY: an event of ours.
        match unsafe { sys::cuEventQuery(self.0.event) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            result => check(result, || "work beside kernels".into()).map(|()| true),
        }
    }
}
