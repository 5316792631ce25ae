//! Memory shared by the ranks of one host, and sums in it: each rank sums one slice on behalf of all ranks.
//!
//! Each part of the memory has one writer at a time. Counters in the window determine whose turn it is; they are stored
//! with release ordering and loaded with acquire ordering.

use super::world::{Communicator, WindowMemory};
use crate::sum;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use unix::Result;

/// Cache line size in bytes; each counter has its own line.
pub const CACHE_LINE: usize = 64;

/// A window, as seen from one of its ranks.
#[derive(Debug)]
pub struct Window {
    memory: WindowMemory,
    /// Number of ranks that share the window.
    ranks: usize,
    /// Index of this rank in the window.
    rank: usize,
}

impl Window {
    /// Allocates a window with `bytes` for each rank of a communicator of one host; called by all of its ranks.
    pub fn allocate(host: Communicator, bytes: usize) -> Result<Self> {
        let memory = WindowMemory::allocate(host, bytes)?;
        Ok(Self { memory, ranks: host.size()?, rank: host.rank()? })
    }

    /// Allocates a window with a single rank, in private memory.
    pub fn private(bytes: usize) -> Result<Self> {
        Ok(Self { memory: WindowMemory::private(bytes)?, ranks: 1, rank: 0 })
    }

    /// Returns the counter at a cache line of a rank's part.
    ///
    /// # Panics
    /// If the line is outside the part.
    pub fn counter(&self, rank: usize, line: usize) -> &AtomicU64 {
        let start = self.memory.at(rank, line * CACHE_LINE, CACHE_LINE);
        // SAFETY: inside the part (checked), aligned and initialised; counters are only accessed as atomics.
        unsafe { &*start.cast() }
    }

    /// Returns a pointer to `len` floats of a rank's part, starting at byte `at`.
    ///
    /// # Panics
    /// If the floats are not inside the part, or not aligned.
    pub fn floats(&self, rank: usize, at: usize, len: usize) -> *mut f32 {
        assert!(at.is_multiple_of(size_of::<f32>()), "floats at byte {at} of a window");
        self.memory.at(rank, at, len.saturating_mul(size_of::<f32>())).cast()
    }

    pub fn ranks(&self) -> usize {
        self.ranks
    }

    pub fn rank(&self) -> usize {
        self.rank
    }
}

/// Returns the range of the `len` elements that a rank sums; its bounds are multiples of a cache line, or `len`.
fn slice_of(len: usize, rank: usize, ranks: usize) -> Range<usize> {
    let each = len.div_ceil(ranks).next_multiple_of(CACHE_LINE / size_of::<f32>());
    (rank * each).min(len)..((rank + 1) * each).min(len)
}

/// Sums slice `me` of all vectors of `len` elements into the vector of rank 0, and returns the sum. The slices of all
/// ranks together form the complete sum.
///
/// # Safety
/// The vectors have `len` elements, and no one else accesses this slice of any of them.
pub unsafe fn sum_slice<'a>(
    vector: impl Fn(usize) -> *mut f32,
    len: usize,
    me: usize,
    ranks: usize,
) -> &'a mut [f32] {
    let slice = slice_of(len, me, ranks);
    // SAFETY: by the contract; vectors of different ranks do not overlap.
    unsafe {
        let to = std::slice::from_raw_parts_mut(vector(0).add(slice.start), slice.len());
        let other = |rank| {
            std::slice::from_raw_parts(vector(rank).add(slice.start).cast_const(), slice.len())
        };
        sum::tree(to, ranks, other);
        to
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::AssertUnwindSafe;
    use std::sync::atomic::Ordering;

    #[test]
    fn slices_cover_all_elements_once() {
        for len in [0, 1, 15, 16, 17, 63, 64, 65, 1000, 65_536] {
            for ranks in 1..9 {
                let mut next = 0;
                for rank in 0..ranks {
                    let slice = slice_of(len, rank, ranks);
                    assert_eq!(slice.start, next);
                    next = slice.end;
                }
                assert_eq!(next, len);
            }
        }
    }
    /// Offsets into shared memory are checked where they are computed, including in release builds.
    #[test]
    fn nothing_outside_of_a_part_is_handed_out() {
        let window = Window::private(4 * CACHE_LINE).unwrap();
        window.counter(0, 3).store(7, Ordering::Relaxed);
        window.floats(0, 2 * CACHE_LINE, 2 * CACHE_LINE / 4);
        window.floats(0, 4 * CACHE_LINE, 0);
        let refused = |what: &dyn Fn(&Window)| {
            std::panic::catch_unwind(AssertUnwindSafe(|| what(&window))).is_err()
        };
        assert!(refused(&|w| _ = w.counter(0, 4)));
        assert!(refused(&|w| _ = w.counter(1, 0)));
        assert!(refused(&|w| _ = w.counter(0, usize::MAX / CACHE_LINE)));
        assert!(refused(&|w| _ = w.floats(0, 2 * CACHE_LINE, 2 * CACHE_LINE / 4 + 1)));
        assert!(refused(&|w| _ = w.floats(0, 5, 1)));
        assert!(refused(&|w| _ = w.floats(0, 4, usize::MAX)));
    }
}
