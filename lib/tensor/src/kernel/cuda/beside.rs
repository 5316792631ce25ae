//! A stream beside that of kernels, on which another library works on tensors: sums over ranks.
//! Order between the two is by marks, on the GPU; the host waits for neither.

use super::copy::{event, record, wait};
use super::driver::check;
use super::{Gpu, stream};
use cudarc::driver::sys::{self, CUevent, CUresult, CUstream};
use std::ffi::c_void;
use std::sync::Arc;
use unix::Result;

/// The stream; kept until the process ends.
#[derive(Debug)]
pub struct Beside {
    gpu: &'static Gpu,
    stream: CUstream,
}

// SAFETY: a handle of the driver, which any thread may use once the context is current.
unsafe impl Send for Beside {}

/// A moment of a stream.
#[derive(Clone, Debug)]
pub struct Mark(Arc<Event>);

#[derive(Debug)]
struct Event {
    gpu: &'static Gpu,
    event: CUevent,
}

// SAFETY: as for `Beside`.
unsafe impl Send for Event {}
// SAFETY: as for `Beside`; the driver does its own locking.
unsafe impl Sync for Event {}

impl Drop for Event {
    fn drop(&mut self) {
        if self.gpu.enter().is_ok() {
            // SAFETY: an event of ours that nobody uses any more; the driver waits for it where needed.
            let _ = unsafe { sys::cuEventDestroy_v2(self.event) };
        }
    }
}

impl Gpu {
    /// Makes a stream beside that of kernels.
    pub fn beside(&'static self) -> Result<Beside> {
        self.enter()?;
        Ok(Beside { gpu: self, stream: stream()? })
    }

    fn mark(&'static self, stream: CUstream) -> Result<Mark> {
        self.enter()?;
        let mark = Mark(Arc::new(Event { gpu: self, event: event()? }));
        record(mark.0.event, stream)?;
        Ok(mark)
    }

    fn wait(&self, stream: CUstream, mark: &Mark) -> Result<()> {
        self.enter()?;
        wait(stream, mark.0.event)
    }
}

impl Beside {
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
    pub fn kernels_follow(&self, mark: &Mark) -> Result<()> {
        self.gpu.wait(self.gpu.stream, mark)
    }

    /// The moment when this stream will have done what it was given.
    pub fn mark(&self) -> Result<Mark> {
        self.gpu.mark(self.stream)
    }

    /// The moment when kernels given so far will be done.
    pub fn kernels(&self) -> Result<Mark> {
        self.gpu.mark(self.gpu.stream)
    }
}

impl Mark {
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
