//! Sums gradients on a separate thread, concurrently with the backward pass.

use super::calls::CallCounter;
use super::window::{CACHE_LINE, Window, sum_slice};
use super::wire::Wire;
use crate::{Reducer, Times};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};
use tensor::{Access, Device, Dtype, Tensor};
use unix::{Error, Result};

/// The call counters of the training loop (`main`) and of the reducer (`side`).
#[derive(Clone)]
pub struct CallCounters {
    pub main: Arc<CallCounter>,
    pub side: Arc<CallCounter>,
}

/// Times that both the reducer thread and the training loop add to.
pub type Clock = Arc<Mutex<Times>>;

fn add_elapsed(clock: &Clock, to: impl FnOnce(&mut Times) -> &mut Duration, since: Instant) {
    *to(&mut clock.lock().unwrap_or_else(PoisonError::into_inner)) += since.elapsed();
}

pub fn take_times(clock: &Clock) -> Times {
    std::mem::take(&mut clock.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Sums gradients in a window. Each rank writes its part, then sums one slice of all parts into the first part, and
/// all-reduces this slice with the ranks at the same position in other windows. If the reducer thread has not started a
/// sum by the time it is needed, the waiting thread computes it. On the host the tensors live in the window; tensors on
/// a device are copied to the window and back.
pub struct HostReducer {
    shared: Arc<Shared>,
    device: Device,
    buckets: Vec<BucketState>,
    sender: Sender<(usize, u64)>,
}

/// The state of a bucket, as seen by the training loop of this rank.
#[derive(Clone, Default)]
struct BucketState {
    /// The submitted shapes, until the sum is taken.
    given: Option<Vec<Vec<usize>>>,
    /// Number of times that the bucket was submitted.
    round: u64,
    /// Owners of tensors in our part (`writing`) and in the sum (`reading`), alive until the last tensor is dropped.
    writing: Weak<PartWriter>,
    reading: Weak<SumReader>,
}

/// Owner of tensors in our part of a bucket; keeps the window alive.
struct PartWriter(#[expect(dead_code)] Arc<Shared>);

/// Owner of tensors in a sum; releases the sum when the last tensor is dropped.
struct SumReader {
    shared: Arc<Shared>,
    bucket: usize,
}

impl Drop for SumReader {
    fn drop(&mut self) {
        self.shared.done(self.bucket, Done::Released);
    }
}

/// State shared by the training loop, the reducer thread and the owners of tensors in the window.
struct Shared {
    window: Arc<Window>,
    column: Option<Wire>,
    counters: CallCounters,
    clock: Clock,
    buckets: Vec<Bucket>,
}

struct Bucket {
    elements: usize,
    /// Offset of the bucket in a part, in bytes.
    at: usize,
    /// Number of times that the sum was started, by the reducer thread or by the waiting caller.
    claimed: AtomicU64,
}

/// The stages of a bucket, which each rank counts in its part of the window.
#[derive(Clone, Copy)]
enum Done {
    Given,
    Summed,
    Released,
}

/// Number of cache lines for the counters of a bucket.
const LINES: usize = 3;

/// Computes the position of each bucket in a part, and the length of a part in bytes.
fn layout(buckets: &[crate::Bucket]) -> (Vec<Bucket>, usize) {
    let mut end = buckets.len() * LINES * CACHE_LINE;
    let place = |&crate::Bucket { elements, .. }: &crate::Bucket| {
        let at = end;
        end += (elements * size_of::<f32>()).next_multiple_of(CACHE_LINE);
        Bucket { elements, at, claimed: AtomicU64::new(0) }
    };
    (buckets.iter().map(place).collect(), end)
}

impl HostReducer {
    /// Returns the length of a part in bytes.
    pub fn bytes(buckets: &[crate::Bucket]) -> usize {
        layout(buckets).1
    }

    pub fn begin(
        window: Arc<Window>,
        column: Option<Wire>,
        counters: CallCounters,
        device: Device,
        buckets: &[crate::Bucket],
    ) -> Result<Self> {
        let (buckets, _) = layout(buckets);
        let count = buckets.len();
        let clock = Clock::default();
        let shared = Arc::new(Shared { window, column, counters, clock, buckets });
        let (sender, receiver) = channel();
        let work = shared.clone();
        let work =
            move || receiver.iter().for_each(|(bucket, round)| work.sum(bucket, round, false));
        super::spawn("reducer", work)?;
        Ok(Self { shared, device, buckets: vec![BucketState::default(); count], sender })
    }
}

impl Shared {
    fn counter(&self, rank: usize, bucket: usize, what: Done) -> &AtomicU64 {
        self.window.counter(rank, bucket * LINES + what as usize)
    }

    /// Waits until all ranks have reached stage `what` of a bucket `count` times; `may_spin` allows spinning.
    fn wait_for_all(&self, bucket: usize, what: Done, count: u64, may_spin: bool) {
        for rank in 0..self.window.ranks() {
            self.counters.side.until(may_spin, || {
                self.counter(rank, bucket, what).load(Ordering::Acquire) >= count
            });
        }
    }

    fn done(&self, bucket: usize, what: Done) {
        self.counter(self.window.rank(), bucket, what).fetch_add(1, Ordering::AcqRel);
    }

    /// Sums this rank's slice of a bucket, unless another thread has claimed this round.
    fn sum(&self, number: usize, round: u64, may_spin: bool) {
        let bucket = &self.buckets[number];
        let claim = (Ordering::Relaxed, Ordering::Relaxed);
        if bucket.claimed.compare_exchange(round - 1, round, claim.0, claim.1).is_err() {
            return;
        }
        self.wait_for_all(number, Done::Given, round, may_spin);
        let since = Instant::now();
        let vector = |rank| self.window.floats(rank, bucket.at, bucket.elements);
        // SAFETY: all ranks have submitted and none reads the sum yet: this slice of all parts is ours.
        let slice =
            unsafe { sum_slice(vector, bucket.elements, self.window.rank(), self.window.ranks()) };
        if let Some(column) = &self.column {
            super::or_end(column.all_reduce(slice));
        }
        self.done(number, Done::Summed);
        add_elapsed(&self.clock, |times| &mut times.busy, since);
    }
}

impl Reducer for HostReducer {
    fn buffers(&mut self, bucket: usize, shapes: &[Vec<usize>]) -> Result<Option<Vec<Tensor>>> {
        self.check_submission(bucket, shapes)?;
        if self.device != Device::Cpu {
            return Ok(None);
        }
        let start = self.wait_until_free(bucket)?;
        let owner = Arc::new(PartWriter(self.shared.clone()));
        self.buckets[bucket].writing = Arc::downgrade(&owner);
        // SAFETY: our own part, which no one reads or writes before it is submitted; `submit` checks the owner.
        Ok(Some(unsafe { tensors_from_raw_parts(start, shapes, Access::Write, owner) }))
    }

    fn submit(&mut self, bucket: usize, gradients: Vec<Tensor>) -> Result<()> {
        let shapes: Vec<Vec<usize>> = gradients.iter().map(|t| t.shape().to_vec()).collect();
        self.check_submission(bucket, &shapes)?;
        if let Some(other) = gradients.iter().find(|t| t.dtype() != Dtype::F32) {
            let what = format!("{other:?} cannot be summed over ranks: only f32 is supported");
            return Err(Error::bug(what));
        }
        let Bucket { at, elements, .. } = self.shared.buckets[bucket];
        let start = self.shared.window.floats(self.shared.window.rank(), at, elements);
        // Tensors that are already in place are dropped before anything else is written there.
        let (mut at, mut elsewhere) = (0, Vec::new());
        for tensor in gradients {
            let (tensor, len) = (tensor.to_host()?, tensor.len());
            if tensor.read::<f32>().as_ptr() != start.wrapping_add(at) {
                elsewhere.push((at, tensor));
            }
            at += len;
        }
        self.wait_until_free(bucket)?;
        // SAFETY: our own part; no one reads it before it is submitted.
        let area = unsafe { std::slice::from_raw_parts_mut(start, elements) };
        for (at, tensor) in elsewhere {
            area[at..at + tensor.len()].copy_from_slice(tensor.read());
        }
        self.shared.counters.side.enter();
        let uses = &mut self.buckets[bucket];
        uses.round += 1;
        uses.given = Some(shapes);
        self.shared.done(bucket, Done::Given);
        let ended = |_| Error::bug("the reducer thread has ended");
        self.sender.send((bucket, uses.round)).map_err(ended)
    }

    fn wait(&mut self, bucket: usize) -> Result<Vec<Tensor>> {
        let given = self.buckets.get_mut(bucket).and_then(|bucket| bucket.given.take());
        let Some(shapes) = given else {
            return Err(Error::bug(format!("bucket {bucket} was not submitted")));
        };
        let start = self.summed(bucket);
        let owner = Arc::new(SumReader { shared: self.shared.clone(), bucket });
        self.buckets[bucket].reading = Arc::downgrade(&owner);
        // SAFETY: summed by all ranks, and not written before the owner has released it.
        let sums = unsafe { tensors_from_raw_parts(start, &shapes, Access::Read, owner) };
        // On the host this returns the same tensors.
        sums.iter().map(|sum| sum.to_device(self.device)).collect()
    }

    fn take_times(&mut self) -> Times {
        take_times(&self.shared.clock)
    }
}

impl HostReducer {
    /// Checks that a bucket can be submitted or its buffers requested. Errors: the shapes do not match the bucket, or
    /// its sum has not been taken yet.
    fn check_submission(&self, number: usize, shapes: &[Vec<usize>]) -> Result<()> {
        let elements: usize = shapes.iter().map(|shape| shape.iter().product::<usize>()).sum();
        let own = self.shared.buckets.get(number).map(|bucket| bucket.elements);
        let what = match self.buckets.get(number) {
            Some(BucketState { given: Some(_), .. }) => {
                "again before its sum was taken".to_string()
            }
            Some(_) if own == Some(elements) => return Ok(()),
            _ => own.map_or("but does not exist".into(), |own| {
                format!("with {elements} elements instead of {own}")
            }),
        };
        Err(Error::bug(format!("bucket {number} was submitted or requested {what}")))
    }

    /// Waits until no rank reads the sum of the previous round, and returns a pointer to our part of the bucket.
    /// Errors: tensors still refer to our part or to the sum.
    fn wait_until_free(&mut self, bucket: usize) -> Result<*mut f32> {
        if self.buckets[bucket].writing.strong_count() > 0 {
            return Err(Error::bug(format!("a gradient of bucket {bucket} is still held")));
        }
        if self.buckets[bucket].reading.strong_count() > 0 {
            return Err(Error::bug(format!("a sum of bucket {bucket} is still held")));
        }
        let shared = &self.shared;
        let _waiting = shared.counters.main.mark_waiting();
        shared.wait_for_all(bucket, Done::Released, self.buckets[bucket].round, true);
        let Bucket { at, elements, .. } = shared.buckets[bucket];
        Ok(shared.window.floats(shared.window.rank(), at, elements))
    }

    /// Waits until all ranks have summed a bucket, and returns a pointer to the sum.
    fn summed(&self, bucket: usize) -> *mut f32 {
        let (shared, round) = (&self.shared, self.buckets[bucket].round);
        let _waiting = shared.counters.main.mark_waiting();
        let since = Instant::now();
        // Messages between windows must be sent in the order in which buckets were submitted, so only the reducer
        // thread sums.
        if shared.column.is_none() && round > 0 {
            shared.sum(bucket, round, true);
        }
        shared.wait_for_all(bucket, Done::Summed, round, true);
        add_elapsed(&shared.clock, |times| &mut times.waited, since);
        shared.window.floats(0, shared.buckets[bucket].at, shared.buckets[bucket].elements)
    }
}

/// Wraps contiguous memory that begins at `start` as tensors with `shapes`.
///
/// # Safety
/// The contract of [`Tensor::from_raw_parts`] must hold for each tensor.
unsafe fn tensors_from_raw_parts<K: Send + Sync + 'static>(
    mut start: *mut f32,
    shapes: &[Vec<usize>],
    access: Access,
    owner: Arc<K>,
) -> Vec<Tensor> {
    let next = |shape: &Vec<usize>| {
        // SAFETY: by the contract; consecutive tensors do not overlap.
        let tensor = unsafe { Tensor::from_raw_parts(start, shape, access, owner.clone()) };
        start = start.wrapping_add(tensor.len());
        tensor
    };
    shapes.iter().map(next).collect()
}
