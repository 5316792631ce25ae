//! CUDA graphs: launches recorded once, and given to the GPU again in one call.
//!
//! A short kernel is over before the next one is launched from the host; a graph takes the launches off
//! the host. The addresses and numbers of a recording are fixed: whoever replays it keeps all tensors
//! that the work used, inside as well as at its ends, and changes only their values.

use super::Gpu;
use super::driver::check;
use crate::device::Device;
use cudarc::driver::sys::{self, CUgraph, CUgraphExec, CUstreamCaptureMode};
use std::ptr;
use std::sync::atomic::Ordering;
use unix::{Error, Result};

/// Recorded launches.
#[derive(Debug)]
pub struct Graph {
    gpu: &'static Gpu,
    replayed: CUgraphExec,
}

// SAFETY: handles of the driver may be used by any thread.
unsafe impl Send for Graph {}

/// Ends the recording, also when the work panics.
struct Capture<'a> {
    gpu: &'a Gpu,
}

impl Capture<'_> {
    fn end(self) -> Result<CUgraph> {
        let gpu = self.gpu;
        // `drop` would end it once more.
        std::mem::forget(self);
        gpu.end_capture()
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        if let Ok(graph) = self.gpu.end_capture() {
            // SAFETY: a graph of ours that nobody uses. What a panic interrupted has no result.
            let _ = unsafe { sys::cuGraphDestroy(graph) };
        }
    }
}

impl Gpu {
    /// Records what `work` launches, copies and clears on this GPU, without doing it. No other thread may
    /// use the GPU meanwhile. `work` was done once before: kernels are loaded then, and the memory is in
    /// the cache of the allocator. Errors: `work` read or wrote values of the host, something of it was
    /// refused.
    pub fn capture(&'static self, work: impl FnOnce()) -> Result<Graph> {
        self.enter()?;
        // Relaxed: an allocation, which is no part of the graph, must not spoil it.
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        if self.capturing.swap(true, Ordering::Relaxed) {
            return Err(Error::bug(self.said("a graph is recorded inside of another")));
        }
        // SAFETY: our stream.
        let begun = unsafe { sys::cuStreamBeginCapture_v2(self.stream, mode) };
        check(begun, || self.said("beginning a graph"))
            .inspect_err(|_| self.capturing.store(false, Ordering::Relaxed))?;
        let capture = Capture { gpu: self };
        work();
        let ended = capture.end();
        // What was refused is missing from the graph, and may be why it could not be ended.
        let recorded = crate::kernel::finish(Device::Cuda(self.number));
        let graph = match (ended, recorded.is_ok()) {
            (Err(_), false) => return recorded.and(Err(Error::bug("a recording without a graph"))),
            (ended, _) => ended?,
        };
        let mut replayed = ptr::null_mut();
        // SAFETY: the graph just recorded; the second writes to the pointer, and does not need the first
        // any more.
        let made = unsafe {
            let made = sys::cuGraphInstantiateWithFlags(&mut replayed, graph, 0);
            let _ = sys::cuGraphDestroy(graph);
            made
        };
        check(made, || self.said("making a graph ready"))?;
        let graph = Graph { gpu: self, replayed };
        recorded.map(|()| graph)
    }

    fn end_capture(&self) -> Result<CUgraph> {
        self.capturing.store(false, Ordering::Relaxed);
        let mut graph = ptr::null_mut();
        // SAFETY: our stream, whose capture was begun; it writes to the pointer.
        let result = unsafe { sys::cuStreamEndCapture(self.stream, &mut graph) };
        check(result, || self.said("ending a graph"))?;
        Ok(graph)
    }
}

impl Graph {
    /// Does it all once, in the order of launches. Errors: an earlier kernel failed.
    pub fn replay(&self) -> Result<()> {
        self.gpu.enter()?;
        // SAFETY: a graph made ready, and our stream.
        let result = unsafe { sys::cuGraphLaunch(self.replayed, self.gpu.stream) };
        check(result, || self.gpu.said("replaying a graph"))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.gpu.enter().is_ok() {
            // SAFETY: nobody uses it any more; the driver waits for a replay under way.
            let _ = unsafe { sys::cuGraphExecDestroy(self.replayed) };
        }
    }
}
