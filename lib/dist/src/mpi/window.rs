//! Memory that the ranks of one host share, and sums in it: each rank sums a slice for all.
//!
//! Every part of the memory has one writer at a time. Counters in the window say whose turn it is; they
//! are stored with release and read with acquire order.

use super::wait::Lane;
use super::wire::Wire;
use super::world::{Communicator, Memory};
use crate::{flat, sum};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use tensor::Tensor;
use unix::Result;

/// A counter for itself in a line of the cache.
const LINE: usize = 64;
/// Elements that a rank puts into the window at a time: all stay in the caches.
const STAGE: usize = 64 << 10;
/// Where the numbers of the stages begin in a rank's part.
const STAGES: usize = 4096;

/// A window, seen from one of its ranks. A part holds: the count of barriers passed; the beat that the
/// watch publishes ([`Window::beat`]); two stages, so that one is filled while the other is read.
#[derive(Debug)]
pub struct Window {
    memory: Memory,
    /// Ranks that share it.
    ranks: usize,
    /// Which of them this is.
    me: usize,
    /// Stages filled so far: the same on all ranks.
    turns: AtomicUsize,
}

/// Numbers of a beat.
pub const BEAT: usize = 5;

impl Window {
    /// Bytes of a part.
    pub const BYTES: usize = STAGES + 2 * STAGE * size_of::<f32>();

    pub fn take(host: Communicator, bytes: usize) -> Result<Self> {
        Ok(Self {
            memory: Memory::take(host, bytes)?,
            ranks: host.size()?,
            me: host.rank()?,
            turns: AtomicUsize::new(0),
        })
    }

    /// A counter in a rank's part.
    pub fn counter(&self, rank: usize, line: usize) -> &AtomicU64 {
        // SAFETY: inside the part, aligned; this memory is only ever used as an atomic.
        unsafe { &*self.memory.part(rank).add(line * LINE).cast() }
    }

    /// Number `i` of the beat of a rank.
    pub fn beat(&self, rank: usize, i: usize) -> &AtomicU64 {
        assert!(i < BEAT);
        // SAFETY: as in `counter`.
        unsafe { &*self.memory.part(rank).add(LINE + 8 * i).cast() }
    }

    /// Start of the floats of a rank's part, from byte `at` on.
    pub fn floats(&self, rank: usize, at: usize) -> *mut f32 {
        // SAFETY: inside the part, aligned to 64 bytes.
        unsafe { self.memory.part(rank).add(at).cast() }
    }

    pub fn ranks(&self) -> usize {
        self.ranks
    }

    pub fn me(&self) -> usize {
        self.me
    }

    /// Waits until all ranks of the window are here; what they wrote before can be read after.
    pub fn barrier(&self, lane: &Lane) {
        let here = self.counter(self.me, 0).fetch_add(1, Ordering::AcqRel) + 1;
        for rank in 0..self.ranks {
            lane.until(true, || self.counter(rank, 0).load(Ordering::Acquire) >= here);
        }
    }

    /// Sums tensors over all ranks: here over those of the window, then over `column`, the ranks that
    /// have the same place in other windows.
    pub fn all_reduce(
        &self,
        tensors: &mut [Tensor],
        column: Option<&Wire>,
        lane: &Lane,
    ) -> Result<()> {
        let len = flat::len(tensors)?;
        for start in (0..len).step_by(STAGE) {
            let turn = self.turns.fetch_add(1, Ordering::Relaxed);
            let count = STAGE.min(len - start);
            let stage = |rank| self.floats(rank, STAGES + turn % 2 * STAGE * size_of::<f32>());
            // SAFETY: our own stage. Others read it last before the barrier of the turn before, which
            // they reach after they have copied the sums of the turn before that.
            flat::read(tensors, start, unsafe {
                std::slice::from_raw_parts_mut(stage(self.me), count)
            });
            self.barrier(lane);
            // SAFETY: between the barriers a slice of all stages is used by one rank alone.
            let slice = unsafe { sum_slice(stage, count, self.me, self.ranks) };
            if let Some(column) = column {
                column.all_reduce(slice)?;
            }
            self.barrier(lane);
            // SAFETY: written before the barrier; written again after the next one only.
            let sums = unsafe { std::slice::from_raw_parts(stage(0).cast_const(), count) };
            flat::write(tensors, start, sums);
        }
        Ok(())
    }
}

/// The slice of `len` elements that a rank sums: whole lines of the cache.
fn part(len: usize, rank: usize, ranks: usize) -> Range<usize> {
    let each = len.div_ceil(ranks).next_multiple_of(LINE / size_of::<f32>());
    (rank * each).min(len)..((rank + 1) * each).min(len)
}

/// Sums the slice of rank `me` over vectors of `len` elements, into that of rank 0: so all slices
/// together are the sum, in one piece.
///
/// # Safety
/// The vectors have that length, and nobody else uses the slice of any of them.
pub unsafe fn sum_slice<'a>(
    vector: impl Fn(usize) -> *mut f32,
    len: usize,
    me: usize,
    ranks: usize,
) -> &'a mut [f32] {
    let slice = part(len, me, ranks);
    // SAFETY: by the contract; vectors of different ranks do not overlap.
    unsafe {
        let to = std::slice::from_raw_parts_mut(vector(0).add(slice.start), slice.len());
        let other = |rank| {
            std::slice::from_raw_parts(vector(rank).add(slice.start).cast_const(), slice.len())
        };
        sum::tree(to, 0, ranks, other);
        to
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_cover_all_elements_once() {
        for len in [0, 1, 15, 16, 17, 63, 64, 65, 1000, STAGE] {
            for ranks in 1..9 {
                let mut next = 0;
                for rank in 0..ranks {
                    let slice = part(len, rank, ranks);
                    assert_eq!(slice.start, next);
                    next = slice.end;
                }
                assert_eq!(next, len);
            }
        }
    }
}
