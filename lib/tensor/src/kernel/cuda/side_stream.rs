//! A second stream, on which another library (NCCL, for collectives) works on tensors concurrently with kernels. Events
//! order the two streams on the GPU; the host waits for neither.

use super::copy::{event, record, wait};
use super::driver::check;
use super::{Gpu, stream_of_priority};
use cudarc::driver::sys::{self, CUevent, CUresult, CUstream};
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;
use unix::Result;

/// A stream that exists until the process ends.
#[derive(Debug)]
pub struct SideStream {
    gpu: &'static Gpu,
    stream: CUstream,
}

// SAFETY: a driver handle, which any thread may use once the context is current.
unsafe impl Send for SideStream {}

/// A point in the work of a stream (a CUDA event).
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
            // SAFETY: our event that is no longer used; the driver defers its destruction if needed.
            let _ = unsafe { sys::cuEventDestroy_v2(self.event) };
        }
    }
}

impl Gpu {
    /// Creates a stream that runs concurrently with kernels. It has the highest priority: other ranks wait for its few
    /// blocks, which are therefore scheduled before the blocks of a kernel that fills the GPU.
    pub fn side_stream(&'static self) -> Result<SideStream> {
        self.enter()?;
        let mut highest: c_int = 0;
        // SAFETY: a context is current; writes to the integer and not to the null pointer.
        let result = unsafe { sys::cuCtxGetStreamPriorityRange(ptr::null_mut(), &mut highest) };
        check(result, || self.with_device("querying its stream priorities"))?;
        Ok(SideStream { gpu: self, stream: stream_of_priority(highest)? })
    }

    /// Records an event after the kernels launched so far.
    pub fn mark_kernels(&'static self) -> Result<Event> {
        self.mark(self.stream)
    }

    /// Makes later kernels wait for an event of another stream.
    pub fn kernels_follow(&self, mark: &Event) -> Result<()> {
        self.wait(self.stream, mark)
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
    /// Returns the stream handle for libraries; makes the context current on this thread.
    pub fn handle(&self) -> Result<*mut c_void> {
        self.gpu.enter()?;
        Ok(self.stream.cast())
    }

    /// Makes later work on this stream wait for an event of another stream.
    pub fn follow(&self, mark: &Event) -> Result<()> {
        self.gpu.wait(self.stream, mark)
    }

    /// Records an event after the work submitted to this stream so far.
    pub fn mark(&self) -> Result<Event> {
        self.gpu.mark(self.stream)
    }
}

impl Event {
    /// Whether the recorded work is done. Errors: something failed on the GPU before it.
    pub fn is_past(&self) -> Result<bool> {
        self.0.gpu.enter()?;
        // SAFETY: our event.
        match unsafe { sys::cuEventQuery(self.0.event) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            result => check(result, || "work on a side stream".into()).map(|()| true),
        }
    }
}
