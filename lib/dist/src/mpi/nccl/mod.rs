//! Collectives on GPU tensors with NCCL, on a stream separate from the compute stream.
//!
//! The library is loaded at run time. Its sums have the same bits on all ranks, but are computed in NCCL's own order,
//! not along the tree of [`crate::sum`].
//!
//! One thread makes all calls of the communicator: enqueuing a collective takes tens of microseconds, which the thread
//! that launches kernels cannot spare. Collectives are in place, so they need no additional buffers.

mod calls;
mod reducer;

use super::Ranks;
use super::calls::{CallCounter, Waiting};
use super::reducer::{CallCounters, Clock};
use crate::Times;
use calls::{Call, Communicator};
pub use reducer::NcclReducer;
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tensor::kernel::cuda::{Event, Gpu, SideStream};
use tensor::{Device, Tensor};
use unix::{Context, Error, Result};

/// Environment variable: `0` sums GPU tensors on the host, in the order of the tree. For ranks that share a GPU.
const NCCL: &str = "LONGHAUL_NCCL";
/// Interval at which collectives in flight are polled.
const POLL: Duration = Duration::from_micros(20);

/// Whether to use NCCL for tensors on this device.
pub fn is_enabled(device: Device) -> bool {
    matches!(device, Device::Cuda(_)) && std::env::var_os(NCCL).is_none_or(|value| value != "0")
}

/// Ranks connected by NCCL.
pub struct Nccl {
    device: Device,
    gpu: &'static Gpu,
    counters: CallCounters,
    clock: Clock,
    queue: Sender<QueuedCall>,
}

/// A collective to be enqueued after an event of the compute stream.
struct QueuedCall {
    call: Call,
    after: Event,
    progress: Arc<Progress>,
}

/// The progress of a collective.
#[derive(Default)]
struct Progress {
    /// The end of the collective in its stream; set once it is enqueued.
    end: OnceLock<Event>,
    /// The point in the compute stream at which the result is needed; set when the result is requested.
    requested: OnceLock<Event>,
}

impl Nccl {
    /// Connects the GPUs of all ranks. Errors: NCCL is missing, or cannot connect them.
    pub fn open(device: Device, ranks: &Ranks, counters: CallCounters) -> Result<Self> {
        let Device::Cuda(number) = device else {
            return Err(Error::bug(format!("NCCL on {device}")));
        };
        // All ranks learn whether one of them lacks the library, so that none waits for it.
        let here = calls::is_present();
        if !ranks.wire.all(here)? {
            let host = unix::host::name();
            let which = if here { "another host of this job" } else { &*host };
            return Err(Error::failure(format!(
                "{which} has no NCCL (libnccl.so.2), which sums GPU tensors over ranks: install it or \
                 add its directory to LD_LIBRARY_PATH; {NCCL}=0 sums over the host, slowly"
            )));
        }
        let gpu = Gpu::open(number)?;
        let stream = gpu.side_stream()?;
        stream.handle()?; // makes the GPU current for this thread
        let communicator = Communicator::connect(ranks).context(|| device.to_string())?;
        let (queue, receiver) = channel();
        let clock = Clock::default();
        let mut thread = NcclThread {
            communicator,
            stream,
            counter: counters.side.clone(),
            clock: clock.clone(),
            in_flight: VecDeque::new(),
        };
        super::spawn("nccl", move || super::or_end(thread.run(&receiver)))?;
        Ok(Self { device, gpu, counters, clock, queue })
    }

    /// Starts a collective after the kernels launched so far. Errors: earlier errors of the GPU.
    ///
    /// # Safety
    /// Until [`Nccl::wait`] is called, the memory of the call must stay valid, and no kernel may use it.
    unsafe fn start(&self, call: Call) -> Result<Arc<Progress>> {
        self.counters.side.enter();
        // A tensor whose allocation failed has no memory to sum.
        tensor::kernel::take_error(self.device)?;
        let progress = Arc::new(Progress::default());
        let queued =
            QueuedCall { call, after: self.gpu.mark_kernels()?, progress: progress.clone() };
        self.queue.send(queued).map_err(|_| Error::bug("the thread of NCCL has ended"))?;
        Ok(progress)
    }

    /// Makes later kernels wait for a collective. The calling thread waits only until the collective is enqueued.
    fn wait(&self, progress: &Progress) -> Result<()> {
        let _ = progress.requested.set(self.gpu.mark_kernels()?); // requested once
        self.counters.main.until(true, || progress.end.get().is_some());
        progress.end.get().map_or(Ok(()), |end| self.gpu.kernels_follow(end))
    }

    /// Sums a small tensor on this GPU over all ranks; it has the same length on all of them.
    pub fn all_reduce(&self, tensor: &mut Tensor) -> Result<()> {
        let (count, dtype) = (tensor.len(), tensor.dtype());
        let call = Call::Sum { address: tensor.address_mut(), count, dtype, owner: None };
        // SAFETY: the tensor stays borrowed until `wait` has made later kernels wait for the collective.
        unsafe { self.start(call) }.and_then(|progress| self.wait(&progress))
    }

    /// Replaces each tensor, which is on this GPU, with the one on the rank listed with it.
    pub fn all_gather(&self, owned: &mut [(usize, &mut Tensor)]) -> Result<()> {
        let range = |(owner, tensor): &mut (usize, &mut Tensor)| {
            let bytes = tensor.bytes();
            (tensor.address_mut(), bytes, *owner)
        };
        let call = Call::AllGather(owned.iter_mut().map(range).collect());
        // SAFETY: as above.
        unsafe { self.start(call) }.and_then(|progress| self.wait(&progress))
    }

    /// Returns the times since the last call, and resets them.
    fn times(&self) -> Times {
        super::reducer::take_times(&self.clock)
    }
}

/// The thread that uses the communicator. It enqueues collectives, measures their times and tells the watchdog when
/// this rank waits for other ranks on the GPU.
struct NcclThread {
    communicator: Communicator,
    stream: SideStream,
    counter: Arc<CallCounter>,
    clock: Clock,
    in_flight: VecDeque<InFlight>,
}

/// A collective on the GPU. Collectives on one stream run one after another.
struct InFlight {
    begin: Event,
    end: Event,
    progress: Arc<Progress>,
    began: Option<Instant>,
    wanted: Option<Instant>,
}

impl NcclThread {
    /// Runs until the process ends. Errors: a collective failed; it then never completes on the other ranks.
    fn run(&mut self, queue: &Receiver<QueuedCall>) -> Result<()> {
        let counter = self.counter.clone();
        let (mut _waiting, mut changed): (Option<Waiting>, bool) = (None, false);
        loop {
            // A collective that has not begun waits for kernels of this rank, not for other ranks.
            let runs = self.in_flight.front().is_some_and(|first| first.began.is_some());
            if runs != counter.runs_on_device() || changed {
                counter.set_on_device(runs);
                _waiting = runs.then(|| counter.mark_waiting());
            }
            let next = match self.in_flight.is_empty() {
                true => queue.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => queue.recv_timeout(POLL),
            };
            match next {
                Ok(queued) => self.enqueue(queued)?,
                Err(RecvTimeoutError::Timeout) => (),
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            changed = self.retire()?;
        }
    }

    fn enqueue(&mut self, queued: QueuedCall) -> Result<()> {
        self.stream.follow(&queued.after)?;
        let begin = self.stream.mark()?;
        let stream = self.stream.handle()?;
        // SAFETY: by the contract of `Nccl::start`.
        unsafe { self.communicator.enqueue(&queued.call, stream, &self.counter)? };
        let end = self.stream.mark()?;
        let _ = queued.progress.end.set(end.clone()); // set once
        let (began, wanted) = (None, None);
        self.in_flight.push_back(InFlight { begin, end, progress: queued.progress, began, wanted });
        Ok(())
    }

    /// Removes completed collectives and adds their times to the clock; returns whether there were any.
    fn retire(&mut self) -> Result<bool> {
        let mut any = false;
        while let Some(first) = self.in_flight.front_mut() {
            self.communicator.is_enqueued()?;
            if first.began.is_none() && first.begin.is_past()? {
                first.began = Some(Instant::now());
            }
            if let (None, Some(requested)) = (first.wanted, first.progress.requested.get())
                && requested.is_past()?
            {
                first.wanted = Some(Instant::now());
            }
            if first.began.is_none() || !first.end.is_past()? {
                break;
            }
            let elapsed = |since: Option<Instant>| since.map_or(Duration::ZERO, |s| s.elapsed());
            let mut times = self.clock.lock().unwrap_or_else(PoisonError::into_inner);
            times.busy += elapsed(first.began);
            times.waited += elapsed(first.wanted);
            drop(times);
            self.in_flight.pop_front();
            any = true;
        }
        Ok(any)
    }
}
