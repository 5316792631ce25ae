//! Ranks connected by MPI: messages, and a window of shared memory between ranks of one host.

mod calls;
mod heartbeat;
mod nccl;
mod peer;
mod place;
mod reducer;
mod start;
mod watchdog;
mod window;
mod wire;
mod world;

use crate::{Bucket, Busy, Collective, Reducer, launch};
use calls::CallCounter;
use nccl::{Nccl, NcclReducer};
use place::Placement;
use reducer::{CallCounters, HostReducer};
use start::StartupTimer;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tensor::{Device, Dtype, Tensor};
use unix::{Error, Exit, Result};
use watchdog::{Lost, Watchdog};
use window::Window;
use wire::Wire;
use world::Communicator;

/// This rank, connected to all others by MPI.
pub struct Ranks {
    place: Placement,
    counter: Arc<CallCounter>,
    /// Connects all ranks.
    wire: Wire,
    world: Communicator,
    watch: Watchdog,
    /// Connects the GPUs of all ranks; opened by the first collective that needs it.
    nccl: OnceLock<Arc<Nccl>>,
}

impl Ranks {
    /// Initialises MPI; called by all ranks. Errors: see [`crate::open`].
    pub fn open(tasks: Option<usize>, lost: Lost) -> Result<Self> {
        let start = StartupTimer::begin(&lost)?;
        let world = world::start()?;
        // MPI_Init has replaced our signal handlers.
        if let Some(signals) = unix::signal::Signals::installed() {
            signals.reinstall()?;
        }
        let (rank, size) = (world.rank()?, world.size()?);
        if size == 1 && tasks.is_some_and(|tasks| tasks > 1) {
            return Err(launch::not_connected(tasks.unwrap_or(size)));
        }
        unix::diagnostics::set_rank(rank, size);
        let counter = Arc::new(CallCounter::new(true));
        let wire = Wire::new(world.duplicate()?, (0..size).collect(), rank, counter.clone());
        let (place, window) = Placement::find(world, &wire, &counter)?;
        let watch = Watchdog::begin(&place, window, world.duplicate()?, counter.clone(), lost)?;
        let ranks = Self { place, counter, wire, world, watch, nccl: OnceLock::new() };
        ranks.barrier()?;
        drop(start);
        Ok(ranks)
    }

    /// Waits until all ranks have arrived.
    fn barrier(&self) -> Result<()> {
        self.counter.enter();
        self.wire.barrier()
    }

    fn counters(&self) -> CallCounters {
        CallCounters { main: self.counter.clone(), side: self.watch.side() }
    }

    /// Returns NCCL if it sums tensors on `device`. The first call is collective.
    fn nccl(&self, device: Device) -> Result<Option<Arc<Nccl>>> {
        if !nccl::is_enabled(device) {
            return Ok(None);
        }
        if let Some(nccl) = self.nccl.get() {
            return Ok(Some(nccl.clone()));
        }
        // Connecting blocks, and meanwhile the watchdog cannot see which rank is late.
        self.barrier()?;
        let nccl = Arc::new(Nccl::open(device, self, self.counters())?);
        Ok(Some(self.nccl.get_or_init(|| nccl).clone()))
    }
}

impl Collective for Ranks {
    fn rank(&self) -> usize {
        self.place.rank
    }

    fn size(&self) -> usize {
        self.place.ranks.len()
    }

    fn local_rank(&self) -> usize {
        self.place.local
    }

    fn host(&self, rank: usize) -> String {
        self.place.ranks.get(rank).map_or_else(|| "?".into(), |rank| rank.host.clone())
    }

    fn broadcast(&self, bytes: Vec<u8>) -> Result<Vec<u8>> {
        self.counter.enter();
        self.wire.broadcast(bytes)
    }

    fn all_gather_bytes(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.counter.enter();
        self.wire.all_gather(bytes)
    }

    fn all_gather(&self, owned: &mut [(usize, &mut Tensor)]) -> Result<()> {
        if let Some((owner, _)) = owned.iter().find(|(owner, _)| *owner >= self.size()) {
            let ranks = self.size();
            let message = format!("a tensor belongs to rank {owner}, but there are {ranks} ranks");
            return Err(Error::bug(message));
        }
        let device = owned.first().map_or(Device::Cpu, |(_, tensor)| tensor.device());
        if let Some(nccl) = self.nccl(device)? {
            return nccl.all_gather(owned);
        }
        let mut mine = Vec::new();
        for (_, tensor) in owned.iter().filter(|(owner, _)| *owner == self.rank()) {
            mine.extend_from_slice(tensor.to_host()?.as_bytes());
        }
        let all = self.all_gather_bytes(&mine)?;
        let mut left: Vec<&[u8]> = all.iter().map(Vec::as_slice).collect();
        for (owner, tensor) in owned.iter_mut() {
            let wanted = tensor.bytes();
            let Some((bytes, rest)) = left[*owner].split_at_checked(wanted) else {
                let message = format!("rank {owner} has no {tensor:?} to share: lists differ");
                return Err(Error::bug(message));
            };
            left[*owner] = rest;
            if *owner != self.place.rank {
                let mut copy = Tensor::empty(tensor.shape(), tensor.dtype());
                copy.as_bytes_mut().copy_from_slice(bytes);
                tensor.assign(&copy.to_device(tensor.device())?);
            }
        }
        Ok(())
    }

    fn all_reduce(&self, tensor: &mut Tensor) -> Result<()> {
        if let Some(nccl) = self.nccl(tensor.device())? {
            return nccl.all_reduce(tensor);
        }
        let own = tensor.to_host()?;
        let mut sum = Tensor::zeros(own.shape(), Dtype::F64);
        for bytes in self.all_gather_bytes(own.as_bytes())? {
            let numbers = bytes.chunks_exact(size_of::<f64>());
            let numbers =
                numbers.filter_map(|bytes| Some(f64::from_ne_bytes(*bytes.first_chunk()?)));
            sum.write::<f64>().iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
        }
        tensor.assign(&sum.to_device(tensor.device())?);
        Ok(())
    }

    fn uses_nccl(&self, device: Device) -> bool {
        nccl::is_enabled(device)
    }

    fn reducer(&self, device: Device, buckets: &[Bucket]) -> Result<Box<dyn Reducer>> {
        if let Some(nccl) = self.nccl(device)? {
            return Ok(Box::new(NcclReducer::new(nccl, buckets)));
        }
        if let Some(Bucket { dtype, .. }) = buckets.iter().find(|b| b.dtype != Dtype::F32) {
            let message = format!("gradients on {device} are summed as f32, not {dtype}");
            return Err(Error::bug(message));
        }
        // Wait for all ranks first: the calls below block inside MPI, where the watchdog cannot see which rank is late.
        self.barrier()?;
        let counters = self.counters();
        let (side, bytes) = (self.world.duplicate()?, HostReducer::bytes(buckets));
        let shared = match self.place.sums_in_window() {
            true => self.place.window(&self.wire, bytes)?,
            false => None,
        };
        let (window, column) = match shared {
            Some(window) => (window, self.place.column(side, &counters.side)),
            // A rank that does not share a window exchanges messages with all others.
            None => {
                let all = (0..self.size()).collect();
                let column = Wire::new(side, all, self.rank(), counters.side.clone());
                (Arc::new(Window::private(bytes)?), Some(column))
            }
        };
        Ok(Box::new(HostReducer::begin(window, column, counters, device, buckets)?))
    }

    fn watch(&self) {
        self.watch.be_strict();
    }

    fn busy(&self, at_most: Duration) -> Busy<'_> {
        let patience = self.watch.patience();
        patience.store(watchdog::ticks(at_most), Ordering::Relaxed);
        Busy(Some(patience))
    }

    fn close(&self) -> Result<()> {
        self.barrier()?;
        self.watch.close();
        self.barrier()?;
        world::finish()?;
        self.watch.leave();
        Ok(())
    }

    fn abort(&self, error: Error) -> Error {
        self.watch.leave();
        or_end(Err(error))
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        // Without a preceding `close` this is an error: the process is about to report it and exit, which the other
        // ranks notice. From here on this rank no longer reports that other ranks have exited.
        self.watch.leave();
    }
}

/// Starts a thread that runs until the process ends or its work is done.
fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    let thread = std::thread::Builder::new().name(name.into()).spawn(work);
    let failed = |why| Error::failure(format!("cannot start a thread: {why}"));
    thread.map(drop).map_err(failed)
}

/// Unwraps the value. An error ends the job, because after a failed call MPI may still write to the buffer of a message
/// in flight.
fn or_end<T>(outcome: Result<T>) -> T {
    outcome.unwrap_or_else(|error| {
        unix::diagnostics::say_error(&error);
        end(error.exit)
    })
}

/// Ends this process, and thereby the job; the message has already been printed.
fn end(exit: Exit) -> ! {
    let status = i32::from(exit as u8);
    // MPI may be stuck: it gets two seconds, then this process exits and the launcher notices.
    let _ = std::thread::Builder::new().spawn(move || world::abort(status));
    std::thread::sleep(Duration::from_secs(2));
    // SAFETY: ends the process without running the exit handlers of libraries, which may wait for other ranks.
    unsafe { libc::_exit(status) }
}
