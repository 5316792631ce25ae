//! Sums of gradients on a thread of its own, beside the backward pass.

use super::host::InPlace;
use super::wait::Lane;
use super::window::{Window, sum_slice};
use super::wire::Wire;
use crate::Times;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};
use tensor::{Access, Tensor};
use unix::{Error, Exit, Result};

/// Who waits: the training loop, or the sums beside it.
#[derive(Clone)]
pub struct Lanes {
    pub main: Arc<Lane>,
    pub side: Arc<Lane>,
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
/// thread has not begun when the sum is wanted is done by whoever wants it. Tensors may live in both.
pub struct InWindow {
    inside: Arc<Inside>,
    buckets: Vec<Uses>,
    sender: Sender<(usize, u64)>,
}

/// What this rank's training loop does with a bucket.
#[derive(Clone, Default)]
struct Uses {
    /// How often it was begun; and released, or left to `reading` to be released.
    begun: u64,
    released: u64,
    /// Alive while tensors are in our part, and in the sum.
    writing: Weak<Writing>,
    reading: Weak<Reading>,
}

/// Our part of a bucket that tensors are in; keeps the window.
struct Writing(#[expect(dead_code)] Arc<Inside>);

/// A sum that tensors are in; releases it when the last of them goes.
struct Reading {
    inside: Arc<Inside>,
    bucket: usize,
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.inside.done(self.bucket, Done::Released);
    }
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
        Ok(Self { inside, buckets: vec![Uses::default(); count], sender })
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
            unix::diagnostics::say_error(&error);
            super::end(error.exit);
        }
        self.done(number, Done::Summed);
        add(&self.clock, |times| &mut times.busy, since);
    }
}

impl InPlace for InWindow {
    fn area(&mut self, bucket: usize) -> Result<&mut [f32]> {
        let start = self.free(bucket)?;
        // SAFETY: our own part; nobody reads it before `begin`, and `self` is borrowed until then.
        Ok(unsafe { std::slice::from_raw_parts_mut(start, self.inside.buckets[bucket].elements) })
    }

    fn area_as(&mut self, bucket: usize, shapes: &[Vec<usize>]) -> Result<Option<Vec<Tensor>>> {
        let start = self.free(bucket)?;
        let keeper = Arc::new(Writing(self.inside.clone()));
        self.buckets[bucket].writing = Arc::downgrade(&keeper);
        // SAFETY: our own part, which nobody reads or writes before `begin`; that looks at the keeper.
        Ok(Some(unsafe { tensors_over(start, shapes, Access::Write, keeper) }))
    }

    fn is_in_area(&self, bucket: usize, at: usize, tensor: &Tensor) -> bool {
        let inside = &self.inside;
        let start = inside.window.floats(inside.window.me(), inside.buckets[bucket].at);
        tensor.read::<f32>().as_ptr() == start.wrapping_add(at)
    }

    fn begin(&mut self, bucket: usize) -> Result<()> {
        self.nobody_writes(bucket)?;
        self.inside.lanes.side.enter();
        let uses = &mut self.buckets[bucket];
        uses.begun += 1;
        self.inside.done(bucket, Done::Given);
        self.sender.send((bucket, uses.begun)).map_err(ended)
    }

    fn sum(&mut self, bucket: usize) -> Result<&[f32]> {
        let start = self.summed(bucket).cast_const();
        // SAFETY: summed by all, and not written before we release it, for which `self` must be free.
        Ok(unsafe { std::slice::from_raw_parts(start, self.inside.buckets[bucket].elements) })
    }

    fn sum_as(&mut self, bucket: usize, shapes: &[Vec<usize>]) -> Result<Option<Vec<Tensor>>> {
        let start = self.summed(bucket);
        let keeper = Arc::new(Reading { inside: self.inside.clone(), bucket });
        let uses = &mut self.buckets[bucket];
        (uses.released, uses.reading) = (uses.begun, Arc::downgrade(&keeper));
        // SAFETY: summed by all, and not written before the keeper has released it.
        Ok(Some(unsafe { tensors_over(start, shapes, Access::Read, keeper) }))
    }

    fn release(&mut self, bucket: usize) {
        let uses = &mut self.buckets[bucket];
        if uses.released < uses.begun {
            uses.released = uses.begun;
            self.inside.done(bucket, Done::Released);
        }
    }

    fn times(&self) -> Times {
        times(&self.inside.clock)
    }
}

impl InWindow {
    /// Our part of a bucket, as soon as no rank reads the sum of the round before. Errors: tensors are still in
    /// one of the two.
    fn free(&mut self, bucket: usize) -> Result<*mut f32> {
        self.nobody_writes(bucket)?;
        if self.buckets[bucket].reading.strong_count() > 0 {
            return Err(Error::bug(format!("a sum of bucket {bucket} is still held")));
        }
        self.release(bucket);
        let inside = &self.inside;
        let _waiting = inside.lanes.main.wait();
        inside.all(bucket, Done::Released, self.buckets[bucket].begun, true);
        Ok(inside.window.floats(inside.window.me(), inside.buckets[bucket].at))
    }

    /// The sum of a bucket over all ranks, as soon as it is there.
    fn summed(&self, bucket: usize) -> *mut f32 {
        let (inside, begun) = (&self.inside, self.buckets[bucket].begun);
        let _waiting = inside.lanes.main.wait();
        let since = Instant::now();
        // Messages of a column keep the order in which buckets were given.
        if inside.column.is_none() && begun > 0 {
            inside.sum(bucket, begun, true);
        }
        inside.all(bucket, Done::Summed, begun, true);
        add(&inside.clock, |times| &mut times.waited, since);
        inside.window.floats(0, inside.buckets[bucket].at)
    }

    /// Errors: tensors are still in our part of a bucket.
    fn nobody_writes(&self, bucket: usize) -> Result<()> {
        match self.buckets[bucket].writing.strong_count() {
            0 => Ok(()),
            _ => Err(Error::bug(format!("a gradient of bucket {bucket} is still held"))),
        }
    }
}

/// Tensors of these shapes, one after the other.
///
/// # Safety
/// As [`Tensor::over`], for all of them.
unsafe fn tensors_over<K: Send + Sync + 'static>(
    mut start: *mut f32,
    shapes: &[Vec<usize>],
    access: Access,
    keeper: Arc<K>,
) -> Vec<Tensor> {
    let next = |shape: &Vec<usize>| {
        // SAFETY: by the contract; one after the other they do not overlap.
        let tensor = unsafe { Tensor::over(start, shape, access, keeper.clone()) };
        start = start.wrapping_add(tensor.len());
        tensor
    };
    shapes.iter().map(next).collect()
}

/// Sums by messages, on hosts without a window. Tensors cannot live in its vectors: one goes to the thread that
/// sums, and comes back.
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
                    unix::diagnostics::say_error(&error);
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

    fn times(&self) -> Times {
        times(&self.clock)
    }
}
