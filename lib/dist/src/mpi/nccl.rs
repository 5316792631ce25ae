//! Sums of GPU tensors with NCCL, on a separate stream from that of the kernels.
//!
//! The library is loaded at run time. Its sums have the same bits on all ranks, but are computed in NCCL's own order,
//! not along the tree of [`crate::sum`].

use super::Ranks;
use super::calls::CallCounter;
use super::reducer::{CallCounters, Clock, times};
use crate::{Collective, Reducer, Times};
use cudarc::nccl::sys::{self, ncclComm_t, ncclResult_t};
use std::cell::Cell;
use std::ffi::{CStr, c_int, c_uint};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tensor::kernel::cuda::{Event, Gpu, SideStream};
use tensor::{Device, Tensor};
use unix::{Context, Error, Result};

/// `0` sums GPU tensors on the host, in the order of the tree; for ranks that share a GPU.
const NCCL: &str = "LONGHAUL_NCCL";

/// Whether to use NCCL.
pub fn wanted() -> bool {
    std::env::var_os(NCCL).is_none_or(|value| value != "0")
}

/// The configuration struct of NCCL 2.17: newer versions recognise it by its size.
#[repr(C)]
struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const std::ffi::c_char,
    split_share: c_int,
}

/// Ranks connected by NCCL.
pub struct Nccl {
    gpu: u32,
    communicator: Communicator,
    side_stream: SideStream,
    counters: CallCounters,
    buckets: Vec<Bucket>,
    /// Sums in flight, sent to a thread that waits for them: it measures times and tells the watchdog about waiting for
    /// the GPU.
    in_flight: Sender<Sum>,
    clock: Clock,
}

/// A sum submitted to the GPU.
#[derive(Clone)]
struct Sum {
    begin: Event,
    end: Event,
    /// Set when the sum is requested: the point at which kernels could continue if it were ready.
    requested: Arc<OnceLock<Event>>,
}

/// A bucket: its gradients are kept as long as NCCL reads them, together with their sums.
#[derive(Default)]
struct Bucket {
    elements: usize,
    given: Vec<Tensor>,
    sums: Vec<Tensor>,
    /// Not yet taken.
    sum: Option<Sum>,
}

#[derive(Clone, Copy)]
struct Communicator(ncclComm_t);

// SAFETY: a handle; the thread that owns the reducer makes the calls, and the waiting thread only queries errors, which
// the library allows at any time.
unsafe impl Send for Communicator {}

impl Nccl {
    /// Connects the GPUs of all ranks. Errors: NCCL is missing, or cannot connect them.
    pub fn open(
        gpu: u32,
        ranks: &Ranks,
        counters: CallCounters,
        buckets: &[usize],
    ) -> Result<Self> {
        // All ranks learn if one of them lacks the library, so that none waits for it.
        // SAFETY: loading runs only initialisers of the library. Without the library every function of `sys` panics.
        let here = unsafe { sys::is_culib_present() };
        if !ranks.wire.all(here)? {
            let host = unix::host::name();
            let which = if here { "another host of this job" } else { &*host };
            return Err(Error::failure(format!(
                "{which} has no NCCL (libnccl.so.2), which sums GPU tensors over ranks: install it or \
                 add its directory to LD_LIBRARY_PATH; {NCCL}=0 sums over the host, slowly"
            )));
        }
        let side_stream = Gpu::open(gpu)?.beside()?;
        side_stream.stream()?; // makes the GPU current for this thread
        let communicator = connect(ranks).context(|| format!("cuda:{gpu}"))?;
        let (in_flight, receiver) = channel::<Sum>();
        let (side, clock) = (counters.side.clone(), Clock::default());
        let kept = clock.clone();
        let wait = move || receiver.iter().for_each(|sum| sum.wait(communicator, &side, &kept));
        super::spawn("nccl", wait)?;
        let bucket = |&elements: &usize| Bucket { elements, ..Bucket::default() };
        let buckets = buckets.iter().map(bucket).collect();
        Ok(Self { gpu, communicator, side_stream, counters, buckets, in_flight, clock })
    }
}

impl Sum {
    /// Waits until the sum is complete and adds its times to the clock. An error ends the job: a sum that failed on one
    /// rank never completes on the others.
    fn wait(&self, communicator: Communicator, counter: &CallCounter, clock: &Clock) {
        let past =
            |event: &Event| super::or_end(communicator.progress().and_then(|_| event.is_past()));
        counter.until(false, || past(&self.begin));
        let began = Instant::now();
        let wanted = Cell::new(None);
        counter.until(false, || {
            if wanted.get().is_none() && self.requested.get().is_some_and(past) {
                wanted.set(Some(Instant::now()));
            }
            past(&self.end)
        });
        let mut times = clock.lock().unwrap_or_else(PoisonError::into_inner);
        times.busy += began.elapsed();
        times.waited += wanted.get().map_or(Duration::ZERO, |since: Instant| since.elapsed());
    }
}

/// Creates the communicator: rank 0 creates its id, which MPI broadcasts.
fn connect(ranks: &Ranks) -> Result<Communicator> {
    let mut name = sys::ncclUniqueId { internal: [0; 128] };
    if ranks.rank() == 0 {
        // SAFETY: the library is loaded; it writes to the id.
        check(unsafe { sys::ncclGetUniqueId(&mut name) }, "ncclGetUniqueId")?;
    }
    let bytes = ranks.broadcast(name.internal.iter().map(|c| c.cast_unsigned()).collect())?;
    for (to, byte) in name.internal.iter_mut().zip(bytes) {
        *to = byte.cast_signed();
    }
    let mut config = Config {
        size: size_of::<Config>(),
        magic: 0xcafe_beef,
        version: 21_700,
        blocking: 0,
        cga_cluster_size: c_int::MIN,
        min_ctas: c_int::MIN,
        max_ctas: c_int::MIN,
        net_name: std::ptr::null(),
        split_share: c_int::MIN,
    };
    let number = |n: usize| c_int::try_from(n).map_err(Error::bug);
    let (rank, size) = (number(ranks.rank())?, number(ranks.size())?);
    let mut handle: ncclComm_t = std::ptr::null_mut();
    // SAFETY: the library is loaded; the configuration starts with its size; the library writes the handle.
    let result = unsafe {
        let config = std::ptr::from_mut(&mut config).cast();
        sys::ncclCommInitRankConfig(&mut handle, size, name, rank, config)
    };
    check(result, "ncclCommInitRankConfig")?;
    let communicator = Communicator(handle);
    communicator.settle(&ranks.counter)?;
    Ok(communicator)
}

impl Communicator {
    /// Whether the operations started by the host have been enqueued on the GPU. Errors: the communicator failed.
    fn progress(self) -> Result<bool> {
        let mut state = ncclResult_t::ncclSuccess;
        // SAFETY: a handle of the library, which writes the state.
        check(unsafe { sys::ncclCommGetAsyncError(self.0, &mut state) }, "NCCL")?;
        check(state, "NCCL")?;
        Ok(state != ncclResult_t::ncclInProgress)
    }

    /// Waits until the ranks are connected.
    fn settle(self, counter: &CallCounter) -> Result<()> {
        let _waiting = counter.wait();
        let mut pauses = counter.pauses();
        while !self.progress()? {
            pauses.pause();
        }
        Ok(())
    }
}

/// Turns the result of a call into an error with the library's message; work in progress is not an error.
fn check(result: ncclResult_t, what: &str) -> Result<()> {
    if matches!(result, ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress) {
        return Ok(());
    }
    // SAFETY: the library is loaded; the texts are constants of it, or null.
    let text = |pointer: *const std::ffi::c_char| match pointer.is_null() {
        true => String::new(),
        // SAFETY: the text is null-terminated.
        false => unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned(),
    };
    // SAFETY: as above; the last error may be queried without a communicator.
    let (error, last) = unsafe {
        (text(sys::ncclGetErrorString(result)), text(sys::ncclGetLastError(std::ptr::null_mut())))
    };
    Err(Error::failure(format!(
        "{what}: {error} {last} (NCCL_DEBUG=WARN prints more; {NCCL}=0 sums over the host)"
    )))
}

impl Reducer for Nccl {
    fn submit(&mut self, bucket: usize, gradients: Vec<Tensor>) -> Result<()> {
        let elements: usize = gradients.iter().map(Tensor::len).sum();
        let (gpu, wanted) = (Device::Cuda(self.gpu), self.buckets[bucket].elements);
        let fits = |t: &Tensor| t.device() == gpu && t.dtype() == tensor::Dtype::F32;
        if elements != wanted || !gradients.iter().all(fits) {
            let message = format!("bucket {bucket}, of {wanted} f32 on {gpu}, got {gradients:?}");
            return Err(Error::bug(message));
        }
        let sums: Vec<Tensor> =
            gradients.iter().map(|t| Tensor::empty_on(gpu, t.shape(), t.dtype())).collect();
        self.counters.side.enter();
        // Also protects the memory of the sums: kernels submitted earlier may still use it.
        self.side_stream.follow_kernels()?;
        let begin = self.side_stream.mark()?;
        let stream = self.side_stream.stream()?.cast();
        // SAFETY: the library is loaded, the handles are ours, the tensors have these lengths and are kept until
        // kernels have waited for the sum.
        unsafe {
            check(sys::ncclGroupStart(), "ncclGroupStart")?;
            for (from, to) in gradients.iter().zip(&sums) {
                let (kind, op) = (sys::ncclDataType_t::ncclFloat32, sys::ncclRedOp_t::ncclSum);
                let (read, write) = (from.address() as *const _, to.address() as *mut _);
                let (count, group) = (from.len(), self.communicator.0);
                let result = sys::ncclAllReduce(read, write, count, kind, op, group, stream);
                check(result, "ncclAllReduce")?;
            }
            check(sys::ncclGroupEnd(), "ncclGroupEnd")?;
        }
        // Record the end only when the sums are in the stream.
        self.communicator.settle(&self.counters.main)?;
        let end = self.side_stream.mark()?;
        let sum = Sum { begin, end, requested: Arc::default() };
        let gone = |_| Error::bug("the thread that waits for NCCL has ended");
        self.in_flight.send(sum.clone()).map_err(gone)?;
        self.buckets[bucket] = Bucket { elements, given: gradients, sums, sum: Some(sum) };
        Ok(())
    }

    fn wait(&mut self, bucket: usize) -> Result<Vec<Tensor>> {
        let bucket = &mut self.buckets[bucket];
        let Some(sum) = bucket.sum.take() else {
            return Err(Error::bug("wait for a bucket that was not submitted"));
        };
        let _ = sum.requested.set(self.side_stream.kernels()?); // set once, because the sum was just taken
        self.side_stream.kernels_follow(&sum.end)?;
        // From here on the memory is reused in kernel order, after the sum.
        bucket.given.clear();
        Ok(std::mem::take(&mut bucket.sums))
    }

    fn times(&mut self) -> Times {
        times(&self.clock)
    }
}
