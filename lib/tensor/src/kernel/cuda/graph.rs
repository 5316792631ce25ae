//! CUDA graphs: launches recorded once and submitted again in one call.
//!
//! A short kernel finishes before the host has launched the next one; a graph avoids the launch overhead. The addresses
//! and scalar arguments in a captured graph are fixed: between replays, the caller must keep all tensors that the work
//! used, including intermediate ones, and may change only their values.

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

// SAFETY: driver handles may be used from any thread.
unsafe impl Send for Graph {}

/// A recording in progress; it ends even if the work panics.
pub struct Capture {
    gpu: &'static Gpu,
    /// The segments completed so far.
    graphs: Vec<Graph>,
    is_open: bool,
}

impl Gpu {
    /// Records what `work` launches, copies and clears on this GPU, without executing it, as one graph for each segment
    /// ([`Capture::cut`]). No other thread may use the GPU meanwhile. `work` must have run once before, so that kernels
    /// are loaded and memory is in the allocator's cache. Errors: `work` transferred values between host and device, or
    /// part of it failed.
    pub fn capture<R>(
        &'static self,
        work: impl FnOnce(&mut Capture) -> R,
    ) -> Result<(Vec<Graph>, R)> {
        let mut capture = Capture { gpu: self, graphs: Vec::new(), is_open: false };
        capture.begin()?;
        let made = work(&mut capture);
        if capture.is_open {
            capture.end()?;
        }
        Ok((std::mem::take(&mut capture.graphs), made))
    }
}

impl Capture {
    /// Ends the current segment; subsequent work becomes a separate graph. Errors: part of the segment failed.
    pub fn cut(&mut self) -> Result<()> {
        self.end()?;
        self.begin()
    }

    fn begin(&mut self) -> Result<()> {
        let gpu = self.gpu;
        gpu.enter()?;
        // Relaxed, so that an allocation, which is not part of the graph, does not invalidate it.
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        if gpu.capturing.swap(true, Ordering::Relaxed) {
            return Err(Error::bug(gpu.with_device("a graph is already being captured")));
        }
        // SAFETY: our stream.
        let begun = unsafe { sys::cuStreamBeginCapture_v2(gpu.stream, mode) };
        check(begun, || gpu.with_device("starting to record a graph"))
            .inspect_err(|_| gpu.capturing.store(false, Ordering::Relaxed))?;
        self.is_open = true;
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        let gpu = self.gpu;
        let ended = self.end_capture();
        // A launch that failed is missing from the graph, and may be the reason that ending the capture failed.
        let recorded = crate::kernel::finish(Device::Cuda(gpu.number));
        let graph = match (ended, recorded.is_ok()) {
            (Err(_), false) => return recorded,
            (ended, _) => ended?,
        };
        let mut replayed = ptr::null_mut();
        // SAFETY: the graph just recorded; the call writes to the pointer and does not need the graph afterwards.
        let made = unsafe {
            let made = sys::cuGraphInstantiateWithFlags(&mut replayed, graph, 0);
            let _ = sys::cuGraphDestroy(graph);
            made
        };
        check(made, || gpu.with_device("instantiating a graph"))?;
        self.graphs.push(Graph { gpu, replayed });
        recorded
    }

    fn end_capture(&mut self) -> Result<CUgraph> {
        self.is_open = false;
        self.gpu.capturing.store(false, Ordering::Relaxed);
        let mut graph = ptr::null_mut();
        // SAFETY: our stream, which is capturing; writes to the pointer.
        let result = unsafe { sys::cuStreamEndCapture(self.gpu.stream, &mut graph) };
        check(result, || self.gpu.with_device("recording a graph"))?;
        Ok(graph)
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if self.is_open
            && let Ok(graph) = self.end_capture()
        {
            // SAFETY: our graph, which is not used: its recording was interrupted by a panic.
            let _ = unsafe { sys::cuGraphDestroy(graph) };
        }
    }
}

impl Graph {
    /// Replays the graph once, in stream order. Errors: an earlier kernel failed.
    pub fn replay(&self) -> Result<()> {
        self.gpu.enter()?;
        // SAFETY: an instantiated graph, and our stream.
        let result = unsafe { sys::cuGraphLaunch(self.replayed, self.gpu.stream) };
        check(result, || self.gpu.with_device("replaying a graph"))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.gpu.enter().is_ok() {
            // SAFETY: it is no longer used; the driver waits for a replay in flight.
            let _ = unsafe { sys::cuGraphExecDestroy(self.replayed) };
        }
    }
}
