//! Splits work over threads in blocks whose boundaries depend only on the sizes, never on the number of threads. This
//! makes results bit-identical on any number of threads.

use crate::Scratch;
use crate::dtype::Float;
use crate::vectorize;
use rayon::iter::{IndexedParallelIterator, IntoParallelIterator, ParallelIterator};
use std::marker::PhantomData;
use std::ops::Range;
use unix::{Error, Exit, Result};

/// Number of elements that one block of simple work should touch; for smaller blocks, waking a thread costs more than
/// it gains.
pub const BLOCK_ELEMENTS: usize = 32 * 1024;

/// Maximum number of partial results in a reduction over blocks.
const REDUCTION_BLOCKS: usize = 32;

/// Starts the thread pool of the process, by default with one thread per processor; must be called once, before any
/// work. Errors: 1 when the threads cannot be started.
pub fn start_threads(threads: Option<usize>) -> Result<()> {
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads.unwrap_or(0))
        .build_global()
        .map_err(|error| Error::new(Exit::Failure, format!("cannot start threads: {error}")))
}

/// Number of threads of the current pool.
pub fn threads() -> usize {
    rayon::current_num_threads()
}

/// Runs `work` on a thread of the pool. Parallel work started there needs no thread switch, because the calling thread
/// takes part in it; from outside the pool, every split would put the caller to sleep and wake it again.
pub fn inside<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    rayon::scope(|_| work())
}

/// Number of rows of `width` elements per block.
pub fn rows_per_block(width: usize) -> usize {
    (BLOCK_ELEMENTS / width.max(1)).max(1)
}

/// Calls `work` for consecutive blocks of 0..n with at most `grain` items each, on all threads; a single block runs on
/// the calling thread.
pub fn blocks(n: usize, grain: usize, work: impl Fn(Range<usize>) + Send + Sync) {
    distribute(n, grain, &work);
}

/// Implements [`blocks`] without type parameters: the code that distributes work is slow to compile and would otherwise
/// be generated for every closure.
fn distribute(n: usize, grain: usize, work: &(dyn Fn(Range<usize>) + Sync)) {
    let grain = grain.max(1);
    let block = |i: usize| i * grain..((i + 1) * grain).min(n);
    let count = n.div_ceil(grain);
    if count <= 1 || threads() == 1 {
        (0..count).for_each(|i| work(block(i)));
    } else {
        (0..count).into_par_iter().with_max_len(1).for_each(|i| work(block(i)));
    }
}

/// Reduces over blocks: `work` adds to an accumulator of `total.len()` elements (initially zero) for each block, and
/// the accumulators are added to `total` in block order.
pub fn reduce<T: Float>(
    n: usize,
    min_grain: usize,
    total: &mut [T],
    work: impl Fn(Range<usize>, &mut [T]) + Send + Sync,
) {
    let width = total.len();
    let grain = min_grain.max(n.div_ceil(REDUCTION_BLOCKS)).max(1);
    let count = n.div_ceil(grain);
    if count <= 1 {
        work(0..n, total);
        return;
    }
    let mut partial = Scratch::<T>::zeroed(count * width);
    row_blocks((&mut *partial, width), 1, |block, sums| {
        work(block.start * grain..(block.end * grain).min(n), sums);
    });
    for part in partial.chunks_exact(width) {
        for (t, p) in total.iter_mut().zip(part) {
            *t += *p;
        }
    }
}

/// Row-major matrices whose rows are divided among threads: a slice with its row width, or a pair of matrices with the
/// same number of rows.
pub trait Rows {
    /// Elements of a range of rows: one slice per matrix.
    type Slice;
    /// The matrices in a form that threads can share.
    type Shared: Sync;

    /// Number of rows.
    fn count(&self) -> usize;

    /// Shares the matrices with all threads.
    fn share(self) -> Self::Shared;

    /// Returns the elements of `rows`, one slice per matrix.
    ///
    /// # Safety
    /// No row may be in two slices that live at the same time.
    unsafe fn slice(shared: &Self::Shared, rows: Range<usize>) -> Self::Slice;

    /// Iterates over `rows`, with one slice per row and matrix.
    ///
    /// # Safety
    /// Same as for [`Rows::slice`].
    unsafe fn each(shared: &Self::Shared, rows: Range<usize>) -> impl Iterator<Item = Self::Slice>;
}

impl<'a, T: Send> Rows for (&'a mut [T], usize) {
    type Slice = &'a mut [T];
    type Shared = (Shared<'a, T>, usize);

    fn count(&self) -> usize {
        self.0.len() / self.1.max(1)
    }

    fn share(self) -> Self::Shared {
        (Shared::new(self.0), self.1)
    }

    #[inline(always)]
    unsafe fn slice((shared, width): &Self::Shared, rows: Range<usize>) -> &'a mut [T] {
        // SAFETY: the caller keeps slices disjoint.
        unsafe { shared.slice(rows.start * width..rows.end * width) }
    }

    #[inline(always)]
    unsafe fn each(shared: &Self::Shared, rows: Range<usize>) -> impl Iterator<Item = Self::Slice> {
        // SAFETY: as above.
        unsafe { Self::slice(shared, rows) }.chunks_exact_mut(shared.1.max(1))
    }
}

impl<A: Rows, B: Rows> Rows for (A, B) {
    type Slice = (A::Slice, B::Slice);
    type Shared = (A::Shared, B::Shared);

    fn count(&self) -> usize {
        self.0.count()
    }

    fn share(self) -> Self::Shared {
        (self.0.share(), self.1.share())
    }

    #[inline(always)]
    unsafe fn slice((a, b): &Self::Shared, rows: Range<usize>) -> Self::Slice {
        // SAFETY: the caller keeps slices disjoint.
        unsafe { (A::slice(a, rows.clone()), B::slice(b, rows)) }
    }

    #[inline(always)]
    unsafe fn each((a, b): &Self::Shared, rows: Range<usize>) -> impl Iterator<Item = Self::Slice> {
        // SAFETY: as above.
        unsafe { A::each(a, rows.clone()).zip(B::each(b, rows)) }
    }
}

/// Splits `out` into [`blocks`] of at most `grain` rows and calls `work` with the row indices and elements of each.
pub fn row_blocks<R: Rows>(out: R, grain: usize, work: impl Fn(Range<usize>, R::Slice) + Sync) {
    let (count, shared) = (out.count(), out.share());
    distribute(count, grain, &|range| {
        // SAFETY: blocks are disjoint, and each is passed once.
        work(range.clone(), unsafe { R::slice(&shared, range) });
    });
}

/// Implements [`for_rows!`](crate::for_rows!): `work` must be `#[inline(always)]`.
pub fn for_rows<R: Rows>(out: R, cost: usize, work: impl Fn(usize, R::Slice) + Sync) {
    let (count, shared) = (out.count(), out.share());
    distribute(count, rows_per_block(cost), &|range| {
        vectorize!({
            // SAFETY: as above.
            for (row, slice) in range.clone().zip(unsafe { R::each(&shared, range) }) {
                work(row, slice);
            }
        });
    });
}

/// Calls a closure with the index and the elements of each row of `out` ([`Rows`](crate::parallel::Rows)), on all
/// threads and compiled like [`vectorize!`](crate::vectorize!). The closure touches about `cost` elements per row.
#[macro_export]
macro_rules! for_rows {
    ($out:expr, $cost:expr, |$row:pat_param, $slice:pat_param| $body:expr $(,)?) => {
        $crate::parallel::for_rows(
            $out,
            $cost,
            #[inline(always)]
            |$row, $slice| $body,
        )
    };
}

/// A mutable slice whose disjoint parts are written by several threads at once.
pub struct Shared<'a, T> {
    start: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: parts are accessed only through `slice` and `pointer`, whose callers keep them disjoint.
unsafe impl<T: Send> Sync for Shared<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    /// Shares `slice` for the lifetime of the result.
    pub fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    /// Returns the elements in `range`.
    ///
    /// # Safety
    /// No two parts that live at the same time may overlap.
    ///
    /// # Panics
    /// If `range` is not inside the slice.
    pub unsafe fn slice(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: inside the slice (checked); the caller guarantees disjointness.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }

    /// Returns a pointer to element `at`, for strided parts of a matrix.
    ///
    /// # Panics
    /// If `at` is not inside the slice.
    pub fn pointer(&self, at: usize) -> *mut T {
        assert!(at < self.len);
        // SAFETY: inside the slice (checked).
        unsafe { self.start.add(at) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn blocks_cover_everything_once() {
        for (n, grain) in [(0, 3), (1, 3), (3, 3), (10, 3), (1000, 7), (5, 0)] {
            let seen: Vec<AtomicUsize> = (0..n).map(|_| AtomicUsize::new(0)).collect();
            blocks(n, grain, |range| {
                for i in range {
                    seen[i].fetch_add(1, Ordering::Relaxed);
                }
            });
            assert!(seen.iter().all(|s| s.load(Ordering::Relaxed) == 1), "{n} {grain}");
        }
    }

    #[test]
    fn every_row_is_visited_once() {
        for (rows, width, grain) in [(0, 3, 2), (1, 1, 1), (7, 3, 2), (64, 5, 7), (5, 2, 0)] {
            let (mut x, mut y) = (vec![0; rows * width], vec![0; rows]);
            row_blocks(((&mut *x, width), (&mut *y, 1)), grain, |range, (x, y)| {
                assert!(range.len() <= grain.max(1) && x.len() == range.len() * width);
                x.iter_mut().for_each(|x| *x += 1);
                y.iter_mut().zip(range).for_each(|(y, row)| *y += row);
            });
            let cost = BLOCK_ELEMENTS / 3;
            for_rows!(((&mut *x, width), (&mut *y, 1)), cost, |row, (x, y)| {
                x.iter_mut().for_each(|x| *x += row);
                y[0] += 1;
            });
            assert!(x.iter().enumerate().all(|(i, x)| *x == 1 + i / width), "{rows} {width}");
            assert!(y.iter().enumerate().all(|(row, y)| *y == row + 1), "{rows} {width}");
        }
    }

    #[test]
    fn a_reduction_does_not_depend_on_threads() {
        let x: Vec<f32> = (0..10_007).map(|i| ((i * 7919) % 1000) as f32 * 1e-3).collect();
        let run = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let mut total = [0.0_f32; 1];
                reduce(x.len(), 100, &mut total, |range, sum| {
                    range.for_each(|i| sum[0] += x[i]);
                });
                total[0].to_bits()
            })
        };
        assert_eq!(run(1), run(2));
        assert_eq!(run(1), run(7));
    }
}
