//! Ranks connected by MPI: messages, and between ranks of one host a window of shared memory.

mod beats;
mod host;
mod nccl;
mod peer;
mod place;
mod reducer;
mod start;
mod wait;
mod watch;
mod window;
mod wire;
mod world;

use crate::{Busy, Collective, Combine, Reducer, flat, launch};
use place::Place;
use start::Start;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tensor::{Device, Tensor};
use unix::{Context, Error, Exit, Result};
use wait::Lane;
use watch::{Lost, Watch};
use window::Window;
use wire::{Kind, Wire, packed};
use world::Communicator;

/// This rank among those that MPI connects.
pub struct Ranks {
    place: Place,
    lane: Arc<Lane>,
    /// All ranks.
    wire: Wire,
    world: Communicator,
    /// Memory shared with ranks of this host, where sums are taken in it.
    window: Option<Shared>,
    watch: Watch,
}

/// A window, and the ranks that have the same place in other windows (none when it is the only one).
struct Shared {
    window: Arc<Window>,
    column: Option<Wire>,
}

impl Ranks {
    /// Starts MPI; by all ranks. Errors: see [`crate::open`].
    pub fn open(tasks: Option<usize>, lost: Lost) -> Result<Self> {
        let start = Start::begin(&lost)?;
        let world = world::start()?;
        // The library has replaced handlers with its own.
        if let Some(signals) = unix::signal::Signals::installed() {
            signals.reinstall()?;
        }
        let (rank, size) = (world.rank()?, world.size()?);
        if size == 1 && tasks.is_some_and(|tasks| tasks > 1) {
            return Err(launch::not_connected(tasks.unwrap_or(size)));
        }
        unix::diagnostics::set_rank(rank, size);
        let lane = Arc::new(Lane::new(true));
        let wire = Wire::new(world.copy()?, (0..size).collect(), rank, lane.clone());
        let (place, window) = Place::find(world, &wire, &lane)?;
        let watch = Watch::begin(&place, window.clone(), world.copy()?, lane.clone(), lost)?;
        let shared = match window.filter(|_| place.sums_in_window()) {
            Some(window) => Some(Shared { window, column: place.column(world.copy()?, &lane) }),
            None => None,
        };
        let ranks = Self { place, lane, wire, world, window: shared, watch };
        ranks.barrier()?;
        drop(start);
        Ok(ranks)
    }

    /// All values, made one; `what` is for the message of an error.
    fn together(
        &self,
        kind: Kind,
        mine: Vec<u8>,
        combine: impl Fn(Vec<u8>, Vec<u8>) -> Result<Vec<u8>>,
    ) -> Result<Vec<u8>> {
        self.lane.enter();
        self.wire.combine(kind, mine, combine)
    }

    fn all_reduce_on_host(&self, tensors: &mut [Tensor]) -> Result<()> {
        self.lane.enter();
        match &self.window {
            Some(shared) => shared.window.all_reduce(tensors, shared.column.as_ref(), &self.lane),
            None => {
                let mut values = vec![0.0; flat::len(tensors)?];
                flat::read(tensors, 0, &mut values);
                self.wire.all_reduce(&mut values)?;
                flat::write(tensors, 0, &values);
                Ok(())
            }
        }
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
        let bytes = if self.rank() == 0 { bytes } else { Vec::new() };
        self.together(Kind::Broadcast, bytes, |low, _| Ok(low)).context(|| "broadcast")
    }

    fn gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.lane.enter();
        gather(&self.wire, bytes)
    }

    fn combine(&self, values: &mut [f64], how: Combine) -> Result<()> {
        let mine = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let all = self.together(Kind::Combine, mine, |low, high| {
            Ok(floats(&low)
                .zip(floats(&high))
                .flat_map(|(a, b)| how.of(a, b).to_le_bytes())
                .collect())
        })?;
        values.iter_mut().zip(floats(&all)).for_each(|(to, from)| *to = from);
        Ok(())
    }

    fn all_reduce(&self, tensors: &mut [Tensor]) -> Result<()> {
        host::through(tensors, |tensors| self.all_reduce_on_host(tensors))
    }

    fn share(&self, owned: &mut [(usize, &mut Tensor)]) -> Result<()> {
        if let Some((owner, _)) = owned.iter().find(|(owner, _)| *owner >= self.size()) {
            return Err(Error::bug(format!("a tensor of rank {owner}, of {}", self.size())));
        }
        let mut mine = Vec::new();
        for (_, tensor) in owned.iter().filter(|(owner, _)| *owner == self.rank()) {
            mine.extend_from_slice(tensor.to_host()?.as_bytes());
        }
        let all = self.gather(&mine)?;
        let mut left: Vec<&[u8]> = all.iter().map(Vec::as_slice).collect();
        for (owner, tensor) in owned.iter_mut() {
            let wanted = tensor.bytes();
            let Some((bytes, rest)) = left[*owner].split_at_checked(wanted) else {
                let message = format!("rank {owner} has no {tensor:?} to share: lists differ");
                return Err(Error::bug(message));
            };
            left[*owner] = rest;
            if *owner != self.place.rank {
                host::fill(tensor, bytes)?;
            }
        }
        Ok(())
    }

    fn barrier(&self) -> Result<()> {
        self.together(Kind::Barrier, Vec::new(), |low, _| Ok(low)).map(|_| ())
    }

    fn sums_in_tree(&self, device: Device) -> bool {
        !(matches!(device, Device::Cuda(_)) && nccl::wanted())
    }

    fn reducer(&self, device: Device, buckets: &[usize]) -> Result<Box<dyn Reducer>> {
        // What follows waits inside of MPI, where nobody sees who is late.
        self.barrier()?;
        let lanes = reducer::Lanes { main: self.lane.clone(), side: self.watch.side() };
        if let (Device::Cuda(gpu), true) = (device, nccl::wanted()) {
            let nccl = nccl::Nccl::open(gpu, self, lanes, buckets)?;
            return Ok(Box::new(nccl));
        }
        let side = self.world.copy()?;
        let bytes = reducer::InWindow::bytes(buckets);
        let window = match &self.window {
            Some(_) => self.place.window(&self.wire, bytes)?,
            None => None,
        };
        let Some(window) = window else {
            let wire = Wire::new(side, (0..self.size()).collect(), self.rank(), lanes.side.clone());
            let sums = reducer::ByMessages::begin(wire, lanes, buckets)?;
            return Ok(Box::new(host::Sums::over(sums, device, buckets)));
        };
        let column = self.place.column(side, &lanes.side);
        let sums = reducer::InWindow::begin(window, column, lanes, buckets)?;
        Ok(Box::new(host::Sums::over(sums, device, buckets)))
    }

    fn watch(&self) {
        self.watch.closely();
    }

    fn busy(&self, at_most: Duration) -> Busy<'_> {
        let patience = self.watch.patience();
        patience.store(watch::ticks(at_most), Ordering::Relaxed);
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
        unix::diagnostics::say_error(&error);
        end(error.exit)
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        // With an error, unless `close` came before: the process is about to say it and to end, which
        // the other ranks notice. From here on it is no business of ours when they end too.
        self.watch.leave();
    }
}

impl Combine {
    fn of(self, a: f64, b: f64) -> f64 {
        match self {
            Combine::Sum => a + b,
            _ if a.is_nan() || b.is_nan() => f64::NAN,
            Combine::Min => a.min(b),
            Combine::Max => a.max(b),
        }
    }
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f64> {
    bytes.chunks_exact(8).map(|b| f64::from_le_bytes(std::array::from_fn(|i| b[i])))
}

/// The bytes of all members, by rank.
fn gather(wire: &Wire, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
    let all = wire.combine(Kind::Gather, packed::one(bytes), |mut low, high| {
        low.extend_from_slice(&high);
        Ok(low)
    })?;
    packed::all(&all)
}

/// Ends this process, and with it the job: the message is out.
fn end(exit: Exit) -> ! {
    let status = i32::from(exit as u8);
    // The library may be stuck: it is given a moment, then the launcher sees this process end.
    let _ = std::thread::Builder::new().spawn(move || world::abort(status));
    std::thread::sleep(Duration::from_secs(2));
    // SAFETY: ends the process without handlers of libraries, which may wait for other ranks.
    unsafe { libc::_exit(status) }
}
