//! Sums of gradients on a thread of its own, beside the backward pass.

use super::wait::Lane;
use super::window::{Window, sum_slice};
use super::wire::Wire;
use crate::{InPlace, Times};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use unix::{Error, Exit, Result};

/// Who waits: the training loop, or the sums beside it.
#[derive(Clone)]
pub struct Lanes {
    pub main: Arc<Lane>,
    pub side: Arc<Lane>,
}

/// What is told of its time.
pub trait Timed {
    fn times(&self) -> Times;
}

/// Times that the thread and its user add to.
pub type Clock = Arc<Mutex<Times>>;

fn add(clock: &Clock, to: impl FnOnce(&mut Times) -> &mut Duration, since: Instant) {
    *to(&mut clock.lock().unwrap_or_else(PoisonError::into_inner)) += since.elapsed();
}

pub fn times(clock: &Clock) -> Times {
    std::mem::take(&mut clock.lock().unwrap_or_else(PoisonError::into_inner))
}

fn thread(work: impl FnOnce() + Send + 'static) -> Result<()> {
    let begun = std::thread::Builder::new().name("reducer".into()).spawn(work);
    begun
        .map(|_| ())
        .map_err(|why| Error::new(Exit::Failure, format!("cannot start a thread: {why}")))
}

fn ended<T>(_: T) -> Error {
    Error::bug("the thread of the sums has ended")
}

/// Sums in a window: each rank writes its part, and sums a slice of all parts into the first. What the
/// thread has not begun when the sum is wanted is done by whoever wants it.
pub struct InWindow {
    inside: Arc<Inside>,
    /// How often each bucket was begun, and released.
    begun: Vec<u64>,
    released: Vec<u64>,
    sender: Sender<(usize, u64)>,
}

struct Inside {
    window: Arc<Window>,
    column: Option<Wire>,
    lanes: Lanes,
    clock: Clock,
    buckets: Vec<Bucket>,
}

struct Bucket {
    elements: usize,
    /// The byte of a part where it begins.
    at: usize,
    /// How often its sum was begun, by the thread or who wanted it.
    claimed: AtomicU64,
}

/// What a rank has done with a bucket, counted in its part of the window.
#[derive(Clone, Copy)]
enum Done {
    Given,
    Summed,
    Released,
}

/// Lines of the cache that the counters of a bucket have.
const LINES: usize = 3;

/// Where each bucket is in a part, and the bytes of all.
fn layout(buckets: &[usize]) -> (Vec<Bucket>, usize) {
    let mut end = buckets.len() * LINES * 64;
    let place = |&elements: &usize| {
        let at = end;
        end += (elements * size_of::<f32>()).next_multiple_of(64);
        Bucket { elements, at, claimed: AtomicU64::new(0) }
    };
    (buckets.iter().map(place).collect(), end)
}

impl InWindow {
    /// Bytes of a part.
    pub fn bytes(buckets: &[usize]) -> usize {
        layout(buckets).1
    }

    pub fn begin(
        window: Arc<Window>,
        column: Option<Wire>,
        lanes: Lanes,
        buckets: &[usize],
    ) -> Result<Self> {
        let (buckets, _) = layout(buckets);
        let count = buckets.len();
        let clock = Clock::default();
        let inside = Arc::new(Inside { window, column, lanes, clock, buckets });
        let (sender, receiver) = channel();
        let work = inside.clone();
        thread(move || receiver.iter().for_each(|(bucket, round)| work.sum(bucket, round, false)))?;
        Ok(Self { inside, begun: vec![0; count], released: vec![0; count], sender })
    }
}

impl Inside {
    fn counter(&self, rank: usize, bucket: usize, what: Done) -> &AtomicU64 {
        self.window.counter(rank, bucket * LINES + what as usize)
    }

    /// Waits until all ranks have done that with a bucket `count` times; in a hurry, or beside other work.
    fn all(&self, bucket: usize, what: Done, count: u64, hurry: bool) {
        for rank in 0..self.window.ranks() {
            self.lanes
                .side
                .until(hurry, || self.counter(rank, bucket, what).load(Ordering::Acquire) >= count);
        }
    }

    fn done(&self, bucket: usize, what: Done) {
        self.counter(self.window.me(), bucket, what).fetch_add(1, Ordering::AcqRel);
    }

    /// Sums this rank's slice of a bucket, unless another thread does.
    fn sum(&self, number: usize, round: u64, hurry: bool) {
        let bucket = &self.buckets[number];
        let claim = (Ordering::Relaxed, Ordering::Relaxed);
        if bucket.claimed.compare_exchange(round - 1, round, claim.0, claim.1).is_err() {
            return;
        }
        self.all(number, Done::Given, round, hurry);
        let since = Instant::now();
        let vector = |rank| self.window.floats(rank, bucket.at);
        // SAFETY: all have given and none reads the sum: this slice of all parts is ours.
        let slice =
            unsafe { sum_slice(vector, bucket.elements, self.window.me(), self.window.ranks()) };
        if let Some(Err(error)) = self.column.as_ref().map(|column| column.all_reduce(slice)) {
            unix::diagnostics::say(&error);
            super::end(error.exit);
        }
        self.done(number, Done::Summed);
        add(&self.clock, |times| &mut times.busy, since);
    }
}

impl InPlace for InWindow {
    fn area(&mut self, bucket: usize) -> Result<&mut [f32]> {
        self.release(bucket);
        let inside = &self.inside;
        let _waiting = inside.lanes.main.wait();
        inside.all(bucket, Done::Released, self.begun[bucket], true);
        let Bucket { elements, at, .. } = inside.buckets[bucket];
        let start = inside.window.floats(inside.window.me(), at);
        // SAFETY: our own part; nobody reads it before `begin`, and `self` is borrowed until then.
        Ok(unsafe { std::slice::from_raw_parts_mut(start, elements) })
    }

    fn begin(&mut self, bucket: usize) -> Result<()> {
        self.inside.lanes.side.enter();
        self.begun[bucket] += 1;
        self.inside.done(bucket, Done::Given);
        self.sender.send((bucket, self.begun[bucket])).map_err(ended)
    }

    fn sum(&mut self, bucket: usize) -> Result<&[f32]> {
        let inside = &self.inside;
        let _waiting = inside.lanes.main.wait();
        let since = Instant::now();
        // Messages of a column keep the order in which buckets were given.
        if inside.column.is_none() && self.begun[bucket] > 0 {
            inside.sum(bucket, self.begun[bucket], true);
        }
        inside.all(bucket, Done::Summed, self.begun[bucket], true);
        add(&inside.clock, |times| &mut times.waited, since);
        let Bucket { elements, at, .. } = inside.buckets[bucket];
        let start = inside.window.floats(0, at).cast_const();
        // SAFETY: summed by all, and not written before we release it, for which `self` must be free.
        Ok(unsafe { std::slice::from_raw_parts(start, elements) })
    }

    fn release(&mut self, bucket: usize) {
        if self.released[bucket] < self.begun[bucket] {
            self.released[bucket] += 1;
            self.inside.done(bucket, Done::Released);
        }
    }
}

impl Timed for InWindow {
    fn times(&self) -> Times {
        times(&self.inside.clock)
    }
}

/// Sums by messages, on hosts without a window.
pub struct ByMessages {
    lanes: Lanes,
    clock: Clock,
    sender: Sender<(usize, Vec<f32>)>,
    summed: Receiver<(usize, Vec<f32>)>,
    /// The vectors that are here, and not with the thread.
    here: Vec<Option<Vec<f32>>>,
}

impl ByMessages {
    pub fn begin(wire: Wire, lanes: Lanes, buckets: &[usize]) -> Result<Self> {
        let (sender, receiver) = channel::<(usize, Vec<f32>)>();
        let (done, summed) = channel();
        let clock = Clock::default();
        let thread_clock = clock.clone();
        thread(move || {
            for (bucket, mut values) in receiver {
                let since = Instant::now();
                if let Err(error) = wire.all_reduce(&mut values) {
                    unix::diagnostics::say(&error);
                    super::end(error.exit);
                }
                add(&thread_clock, |times| &mut times.busy, since);
                if done.send((bucket, values)).is_err() {
                    return;
                }
            }
        })?;
        let here = buckets.iter().map(|elements| Some(vec![0.0; *elements])).collect();
        Ok(Self { lanes, clock, sender, summed, here })
    }

    /// Waits until the vector of a bucket is here.
    fn fetch(&mut self, bucket: usize) -> Result<&mut Vec<f32>> {
        let _waiting = self.lanes.main.wait();
        while self.here[bucket].is_none() {
            let (summed, values) = self.summed.recv().map_err(ended)?;
            self.here[summed] = Some(values);
        }
        self.here[bucket].as_mut().ok_or_else(|| ended(()))
    }
}

impl InPlace for ByMessages {
    fn area(&mut self, bucket: usize) -> Result<&mut [f32]> {
        Ok(self.fetch(bucket)?)
    }

    fn begin(&mut self, bucket: usize) -> Result<()> {
        self.fetch(bucket)?;
        let values = self.here[bucket].take().ok_or_else(|| ended(()))?;
        self.lanes.side.enter();
        self.sender.send((bucket, values)).map_err(ended)
    }

    fn sum(&mut self, bucket: usize) -> Result<&[f32]> {
        let (since, clock) = (Instant::now(), self.clock.clone());
        let values = self.fetch(bucket)?;
        add(&clock, |times| &mut times.waited, since);
        Ok(values)
    }

    fn release(&mut self, _bucket: usize) {}
}

impl Timed for ByMessages {
    fn times(&self) -> Times {
        times(&self.clock)
    }
}
