//! Copies between host and GPU that run concurrently with kernels.
//!
//! The bus reaches full speed only with pinned memory, so a few pinned pieces are kept. Uploads are staged twice: in
//! pinned memory, then in a buffer on the GPU, both ahead of the kernels; only the last, very short step is in stream
//! order. The next batch is therefore uploaded while the current one is computed, even into memory that kernels still
//! use. Downloads wait for earlier kernels but not for later ones.

use super::driver::check;
use super::{Gpu, stream};
use cudarc::driver::sys::{self, CUevent, CUstream};
use std::ptr;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use unix::{Error, Result};

/// Bytes per piece: large enough to make the cost of starting a copy negligible.
const PIECE: usize = 4 << 20;
/// Pieces in flight.
const PIECES: usize = 4;

/// Pinned memory, allocated until the process ends.
#[derive(Debug)]
pub(super) struct Pinned(pub(super) *mut u8);

impl Pinned {
    pub(super) fn new(bytes: usize) -> Result<Self> {
        let mut memory = ptr::null_mut();
        // SAFETY: a context is current; writes to the pointer.
        let result = unsafe { sys::cuMemHostAlloc(&mut memory, bytes, 0) };
        check(result, || format!("pinning {bytes} bytes of host memory"))?;
        Ok(Self(memory.cast()))
    }
}

pub(super) fn event() -> Result<CUevent> {
    let mut event = ptr::null_mut();
    let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
    // SAFETY: a context is current; writes to the handle.
    check(unsafe { sys::cuEventCreate(&mut event, flags) }, || "creating an event".into())?;
    Ok(event)
}

/// Records the work submitted to a stream so far in `event`.
pub(super) fn record(event: CUevent, stream: CUstream) -> Result<()> {
    // SAFETY: our event and our stream.
    check(unsafe { sys::cuEventRecord(event, stream) }, || "recording an event".into())
}

/// Makes later work of a stream wait for `event`; an event that was never recorded counts as complete.
pub(super) fn wait(stream: CUstream, event: CUevent) -> Result<()> {
    // SAFETY: our event and our stream.
    check(unsafe { sys::cuStreamWaitEvent(stream, event, 0) }, || "ordering streams".into())
}

/// Waits for `event` on the host; an event that was never recorded counts as complete.
pub(super) fn until(event: CUevent) -> Result<()> {
    // SAFETY: our event.
    check(unsafe { sys::cuEventSynchronize(event) }, || "waiting for a copy".into())
}

/// State of uploads.
#[derive(Debug)]
pub(super) struct HostToDevice {
    stream: CUstream,
    stages: Vec<Stage>,
    next: usize,
}

#[derive(Debug)]
struct Stage {
    pinned: Pinned,
    /// The staging buffer on the GPU.
    landing: u64,
    /// Recorded when the pinned memory has been read.
    uploaded: CUevent,
    /// Recorded when the staging buffer on the GPU has been read.
    landed: CUevent,
}

/// State of downloads.
#[derive(Debug)]
pub(super) struct DeviceToHost {
    pub(super) stream: CUstream,
    /// Recorded after the preceding kernels.
    ready: CUevent,
    pieces: [(Pinned, CUevent); 2],
}

impl Gpu {
    /// Copies from the host, in stream order; `from` has been read when this returns.
    pub(crate) fn copy_in(&self, to: u64, from: &[u8]) -> Result<()> {
        self.refuse_in_capture("a copy from the host")?;
        self.enter()?;
        let mut upload = self.upload.lock().unwrap_or_else(PoisonError::into_inner);
        let upload = match &mut *upload {
            Some(upload) => upload,
            none => none.insert(self.upload()?),
        };
        for (index, chunk) in from.chunks(PIECE).enumerate() {
            let (offset, n) = ((index * PIECE) as u64, chunk.len());
            let stage = &upload.stages[upload.next];
            upload.next = (upload.next + 1) % upload.stages.len();
            until(stage.uploaded)?;
            // SAFETY: `PIECE` bytes of our own that no copy still reads.
            unsafe { ptr::copy_nonoverlapping(chunk.as_ptr(), stage.pinned.0, n) };
            wait(upload.stream, stage.landed)?;
            // SAFETY: separate buffers, which are not used elsewhere until the events below.
            let result = unsafe {
                sys::cuMemcpyHtoDAsync_v2(stage.landing, stage.pinned.0.cast(), n, upload.stream)
            };
            check(result, || self.with_device(&format!("copying {n} bytes in")))?;
            record(stage.uploaded, upload.stream)?;
            wait(self.stream, stage.uploaded)?;
            self.copy(to + offset, stage.landing, n)?;
            record(stage.landed, self.stream)?;
        }
        Ok(())
    }

    fn upload(&self) -> Result<HostToDevice> {
        let stage = |_| {
            Ok(Stage {
                pinned: Pinned::new(PIECE)?,
                landing: self.allocate(PIECE)?,
                uploaded: event()?,
                landed: event()?,
            })
        };
        let stages = (0..PIECES).map(stage).collect::<Result<_>>()?;
        Ok(HostToDevice { stream: stream()?, stages, next: 0 })
    }

    /// Makes the download stream wait for all earlier launches.
    pub(super) fn after_launches<'a>(
        &self,
        download: &'a mut Option<DeviceToHost>,
    ) -> Result<&'a mut DeviceToHost> {
        let download = match download {
            Some(download) => download,
            none => none.insert(DeviceToHost::new()?),
        };
        record(download.ready, self.stream)?;
        wait(download.stream, download.ready)?;
        Ok(download)
    }

    /// Copies to the host, after all earlier launches. Does not wait for kernels that other threads launch meanwhile.
    pub(crate) fn copy_out(&self, to: &mut [u8], from: u64) -> Result<()> {
        self.refuse_in_capture("a value read on the host")?;
        self.enter()?;
        let mut download = self.download.lock().unwrap_or_else(PoisonError::into_inner);
        let download = self.after_launches(&mut download)?;
        let start = |index: usize, n: usize| {
            let (pinned, done) = &download.pieces[index % 2];
            let at = from + (index * PIECE) as u64;
            // SAFETY: `n` bytes that belong to the caller, into a buffer that has been read.
            let result =
                unsafe { sys::cuMemcpyDtoHAsync_v2(pinned.0.cast(), at, n, download.stream) };
            check(result, || self.with_device(&format!("copying {n} bytes out")))?;
            record(*done, download.stream)
        };
        let sizes: Vec<usize> = to.chunks(PIECE).map(<[u8]>::len).collect();
        if let Some(first) = sizes.first() {
            start(0, *first)?;
        }
        for (index, chunk) in to.chunks_mut(PIECE).enumerate() {
            // The next piece is copied while this one is read.
            if let Some(next) = sizes.get(index + 1) {
                start(index + 1, *next)?;
            }
            let (pinned, done) = &download.pieces[index % 2];
            until(*done).map_err(|why| {
                why.context(self.with_device("waiting for the kernels whose result is read"))
            })?;
            // SAFETY: the copy into the buffer has finished.
            unsafe { ptr::copy_nonoverlapping(pinned.0, chunk.as_mut_ptr(), chunk.len()) };
        }
        Ok(())
    }

    /// Copies on the GPU, in stream order.
    pub(crate) fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<()> {
        self.enter()?;
        // SAFETY: memory that belongs to the caller and is reused only in stream order.
        let result = unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, self.stream) };
        check(result, || self.with_device(&format!("copying {bytes} bytes")))
    }

    /// Fills with zero bytes, in stream order.
    pub(crate) fn zero(&self, address: u64, bytes: usize) -> Result<()> {
        self.enter()?;
        // SAFETY: memory that belongs to the caller.
        let result = unsafe { sys::cuMemsetD8Async(address, 0, bytes, self.stream) };
        check(result, || self.with_device(&format!("clearing {bytes} bytes")))
    }

    pub(super) fn refuse_in_capture(&self, what: &str) -> Result<()> {
        match self.capturing.load(Ordering::Relaxed) {
            true => Err(Error::bug(self.with_device(&format!("{what} cannot be part of a graph")))),
            false => Ok(()),
        }
    }
}

impl DeviceToHost {
    fn new() -> Result<Self> {
        let piece = || Ok((Pinned::new(PIECE)?, event()?));
        Ok(Self { stream: stream()?, ready: event()?, pieces: [piece()?, piece()?] })
    }
}
