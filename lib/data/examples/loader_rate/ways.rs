//! The samples to read, and our ways of reading them.

use crate::clock::Clock;
use crate::set::Set;
use data::fields::split_set::TrajectorySet;
use data::loader::{Ahead, Order, Prefetch};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tensor::{Dtype, Tensor};
use unix::{Error, Result};

/// Approximate number of bytes read per round.
const ROUND: u64 = 1 << 30;
/// Maximum number of samples per round.
const MAX: u64 = 100_000;

/// Windows of frames, shuffled.
pub struct Samples<'a> {
    set: &'a Set,
    pub order: Order,
    pub window: usize,
    pub batch: u64,
    pub clock: Clock,
    /// Batches of a round.
    updates: u64,
}

impl<'a> Samples<'a> {
    /// Windows of `window` frames at any position. Errors (2) when trajectories are shorter.
    pub fn new(set: &'a Set, window: usize, batch: u64, clock: Clock) -> Result<Self> {
        let shape = set.trajectories.shape();
        if window == 0 || window > shape.frames {
            return Err(Error::usage(format!("windows of {window} of {} frames", shape.frames)));
        }
        let starts = (shape.frames - window + 1) as u64;
        let order = Order::new(1, shape.trajectories as u64 * starts, batch)?;
        let bytes = (4 * window * shape.frame_len()) as u64;
        let updates = (ROUND / bytes).clamp(1, MAX).div_ceil(batch);
        Ok(Self { set, order, window, batch, clock, updates })
    }

    /// Size of a sample in bytes.
    pub fn bytes(&self) -> usize {
        4 * self.window * self.set.trajectories.shape().frame_len()
    }

    pub fn path(&self) -> &Path {
        &self.set.path
    }

    /// Trajectory and first frame of all samples of a round, in order.
    pub fn of_round(&self) -> Vec<[u64; 2]> {
        let starts = starts(&self.set.trajectories, self.window);
        let samples = (0..self.updates).flat_map(|update| self.order.batch(update));
        samples.map(|sample| [sample / starts, sample % starts]).collect()
    }

    /// Reads the whole file: the system may have evicted parts from the page cache.
    pub fn warm(&self) -> Result<()> {
        let path = self.path();
        let read = |mut file: File| io::copy(&mut file, &mut io::sink());
        File::open(path).and_then(read).map_err(|cause| Error::io(path, cause))?;
        Ok(())
    }

    /// Throughput of whole batches from the prefetch thread in GB/s.
    pub fn by_loader(&self, ahead: Ahead) -> Result<f64> {
        // By the clock of that thread: the time at which it had finished the last batch, as the bits of an f64.
        let worked = Arc::new(AtomicU64::new(0));
        let (clock, last, end) = (self.clock, self.updates - 1, Arc::clone(&worked));
        let start = clock.now();
        let mut batches = self.loader(ahead, move |update| {
            if update == last {
                end.store(clock.now().to_bits(), Ordering::SeqCst);
            }
        })?;
        for _ in 0..self.updates {
            batches.next()?;
        }
        let samples = self.updates * self.batch;
        Ok(match clock {
            Clock::Wall => self.rate(samples, clock.now() - start),
            Clock::Cpu => self.rate(samples, f64::from_bits(worked.load(Ordering::SeqCst))),
        })
    }

    /// A loader of batches [samples, values per sample], each with its number.
    pub fn loader(
        &self,
        ahead: Ahead,
        made: impl Fn(u64) + Send + Sync + 'static,
    ) -> Result<Prefetch<Tensor>> {
        let (set, order) = (Arc::clone(&self.set.trajectories), self.order);
        let (window, batch, length) = (self.window, self.batch as usize, self.bytes() / 4);
        let starts = starts(&set, window);
        Prefetch::start(0, ahead, move |update| {
            let mut values = Tensor::empty(&[batch, length], Dtype::F32);
            let rows = values.write::<f32>().chunks_exact_mut(length);
            for (sample, row) in order.batch(update).into_iter().zip(rows) {
                let start = (sample % starts) as usize;
                set.read_frames((sample / starts) as usize, start..start + window, row)?;
            }
            made(update);
            Ok(values)
        })
    }

    /// Throughput in GB/s of one thread that reads batches of `batch` samples into the same buffer.
    pub fn by_pread(&self, batch: u64) -> Result<f64> {
        let shape = self.set.trajectories.shape();
        let frame = 4 * shape.frame_len() as u64;
        let place = |[trajectory, first]: [u64; 2]| {
            self.set.offset + (trajectory * shape.frames as u64 + first) * frame
        };
        let places: Vec<u64> = self.of_round().into_iter().map(place).collect();
        let path = self.path();
        let file = File::open(path).map_err(|cause| Error::open(path, cause))?;
        let mut values = vec![1u8; self.bytes() * batch as usize];
        let start = self.clock.now();
        for batch in places.chunks(batch as usize) {
            for (sample, &place) in values.chunks_exact_mut(self.bytes()).zip(batch) {
                file.read_exact_at(sample, place).map_err(|cause| Error::io(path, cause))?;
            }
        }
        Ok(self.rate(places.len() as u64, self.clock.now() - start))
    }

    /// Throughput for this many samples in GB/s.
    fn rate(&self, samples: u64, seconds: f64) -> f64 {
        samples as f64 * self.bytes() as f64 / 1e9 / seconds
    }
}

/// Number of positions that a window can have in a trajectory.
fn starts(set: &TrajectorySet, window: usize) -> u64 {
    (set.shape().frames - window + 1) as u64
}
