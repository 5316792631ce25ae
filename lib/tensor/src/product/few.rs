//! Products of few rows with a matrix, such as one token of each sequence with a weight, and with a matrix of few columns,
//! such as the first of a low-rank update. They are bound by reading the largest matrix, which is therefore read once and not
//! packed.
//!
//! A result is a sum over the inner dimension in an order that depends neither on the number of rows nor on their
//! position: a row gives the same bits alone and together with others.

#![allow(
    clippy::needless_range_loop,
    reason = "loops of constant length over several arrays, which are unrolled into registers"
)]

use super::View;
use crate::dtype::{Float, bf16};
use crate::simd::{LANES, Vectors};
use pulp::{Simd, WithSimd};

/// Maximum number of rows. With more, packing pays off.
pub(crate) const FEW: usize = 8;
/// Rows and columns (or vectors of columns) whose sums are in registers at a time.
const TILE: usize = 4;
/// How many columns ahead elements are fetched into the cache: for eight rows this saves a tenth of the time.
const AHEAD: usize = 8;
/// Rows at a time if there is one vector of columns.
const TALL: usize = 8;
/// Bytes that are fetched into the cache at a time.
const LINE: usize = 64;

/// Whether [`product`] takes these operands: lhs has few rows, and the elements of both are adjacent in memory, along an
/// axis of each.
pub(super) fn takes<T, W>(lhs: View<T>, rhs: View<W>) -> bool {
    let is_few = lhs.rows <= FEW && lhs.column_stride == 1 && lhs.rows > 0 && rhs.columns > 0;
    is_few && lhs.columns > 0 && (rhs.row_stride == 1 || rhs.column_stride == 1)
}

/// Computes out (+)= alpha·lhs·rhs if it [`takes`] them. Returns whether it did.
///
/// # Safety
/// As for [`super::product_into`]; the inner sizes agree.
pub(super) unsafe fn product<T: Float, W: Stored<T>>(
    out: *mut T,
    out_stride: usize,
    (alpha, add): (T, bool),
    lhs: View<T>,
    rhs: View<W>,
) -> bool {
    if !takes(lhs, rhs) {
        return false;
    }
    let work = Work { out, out_stride, alpha, add, lhs, rhs };
    if rhs.row_stride == 1 {
        pulp::Arch::new().dispatch(Dots(work));
    } else {
        pulp::Arch::new().dispatch(Sums(work));
    }
    true
}

/// Computes out (+)= lhs·rhs for few rows of lhs, with the bits of [`product`] with rhs in T.
///
/// # Safety
/// As for [`super::product_into`].
///
/// # Panics
/// If the inner sizes differ, or the elements of a row of lhs or of a column of rhs are not adjacent in memory.
pub(super) unsafe fn product_stored<T: Float, W: Stored<T>>(
    out: *mut T,
    out_stride: usize,
    add: bool,
    lhs: View<T>,
    rhs: View<W>,
) {
    assert!(lhs.columns == rhs.rows && lhs.column_stride == 1 && rhs.row_stride == 1);
    pulp::Arch::new().dispatch(Dots(Work { out, out_stride, alpha: T::ONE, add, lhs, rhs }));
}

/// Computes out = alpha·lhs·rhs, with rows of rhs.columns elements, for a rhs of few columns.
///
/// # Panics
/// If the sizes do not fit, or the elements of a row of lhs or of rhs are not adjacent in memory.
pub(super) fn narrow<T: Float>(out: &mut [T], alpha: T, lhs: View<T>, rhs: View<T>) {
    let (len, out_stride) = (lhs.rows * rhs.columns, rhs.columns);
    assert!(lhs.columns == rhs.rows && lhs.column_stride == 1 && rhs.column_stride == 1);
    assert_eq!(out.len(), len);
    let work = Work { out: out.as_mut_ptr(), out_stride, alpha, add: false, lhs, rhs };
    pulp::Arch::new().dispatch(Sums(work));
}

/// Fetches element `at` of `x` into the cache, if there is one.
#[inline(always)]
fn prefetch<T>(x: &[T], at: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch has no effect but on time, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(x.as_ptr().wrapping_add(at).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (x, at);
}

/// The form of elements in memory that are multiplied in T, which represents them exactly.
pub(super) trait Stored<T: Float>: Copy + 'static {
    /// Loads a vector.
    ///
    /// # Safety
    /// `from` is valid for reads of as many elements as a vector has.
    unsafe fn load<S: Simd>(simd: S, from: *const Self) -> T::Vector<S>;
    /// Loads a vector from fewer elements; the others are zero.
    fn load_part<S: Simd>(simd: S, x: &[Self]) -> T::Vector<S>;
}

impl<T: Float> Stored<T> for T {
    #[inline(always)]
    unsafe fn load<S: Simd>(_: S, from: *const T) -> T::Vector<S> {
        // SAFETY: a vector consists of its elements; the caller guarantees `from`.
        unsafe { from.cast::<T::Vector<S>>().read_unaligned() }
    }

    #[inline(always)]
    fn load_part<S: Simd>(simd: S, x: &[T]) -> T::Vector<S> {
        <T as Vectors>::load_part(simd, x)
    }
}

impl<T: Float> Stored<T> for bf16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(simd: S, from: *const bf16) -> T::Vector<S> {
        // SAFETY: the caller guarantees `from`.
        unsafe { T::load_bf16(simd, from) }
    }

    #[inline(always)]
    fn load_part<S: Simd>(simd: S, x: &[bf16]) -> T::Vector<S> {
        let mut wide = [bf16::ZERO; LANES];
        wide[..x.len()].copy_from_slice(x);
        // SAFETY: no vector has more than LANES elements.
        unsafe { T::load_bf16(simd, wide.as_ptr()) }
    }
}

/// Elements as vectors and a rest.
type Split<'a, T, S> = (&'a [<T as Vectors>::Vector<S>], &'a [T]);

/// A product. `out` is valid for all its rows and columns, and nobody else accesses them.
struct Work<'a, T, W = T> {
    out: *mut T,
    out_stride: usize,
    alpha: T,
    add: bool,
    lhs: View<'a, T>,
    rhs: View<'a, W>,
}

impl<'a, T: Float, W> Work<'a, T, W> {
    /// Row of lhs.
    #[inline(always)]
    fn row(&self, row: usize) -> &'a [T] {
        &self.lhs.data[row * self.lhs.row_stride..][..self.lhs.columns]
    }

    /// Elements of out in a row.
    #[inline(always)]
    fn out(&mut self, row: usize, column: usize, len: usize) -> &mut [T] {
        debug_assert!(row < self.lhs.rows && column + len <= self.rhs.columns);
        // SAFETY: the elements lie in a row of `out`, which nobody else accesses.
        unsafe { std::slice::from_raw_parts_mut(self.out.add(row * self.out_stride + column), len) }
    }
}

/// Calls a method with a const number of rows for all rows from `$first`, [`TILE`] at a time.
macro_rules! for_tiles_of_rows {
    ($self:ident . $method:ident::<$J:ident>($simd:expr, $column:expr), $first:expr) => {
        let rows = $self.0.lhs.rows;
        for row in ($first..rows).step_by(TILE) {
            match rows - row {
                1 => $self.$method::<S, 1, $J>($simd, row, $column),
                2 => $self.$method::<S, 2, $J>($simd, row, $column),
                3 => $self.$method::<S, 3, $J>($simd, row, $column),
                _ => $self.$method::<S, TILE, $J>($simd, row, $column),
            }
        }
    };
}

/// The columns of rhs are adjacent in memory: each result is a scalar product.
struct Dots<'a, T, W>(Work<'a, T, W>);

impl<T: Float, W: Stored<T>> Dots<'_, T, W> {
    #[inline(always)]
    fn columns<S: Simd, const J: usize>(&mut self, simd: S, column: usize) {
        for_tiles_of_rows!(self.tile::<J>(simd, column), 0);
    }

    #[inline(always)]
    fn tile<S: Simd, const R: usize, const J: usize>(
        &mut self,
        simd: S,
        row: usize,
        column: usize,
    ) {
        let work = &mut self.0;
        let lanes = size_of::<T::Vector<S>>() / size_of::<T>();
        let (k, stride) = (work.lhs.columns, work.rhs.column_stride);
        let mut xs: [Split<T, S>; R] = [(&[], &[]); R];
        let mut ws: [&[W]; J] = [&[]; J];
        for i in 0..R {
            xs[i] = T::split(simd, work.row(row + i));
        }
        for i in 0..J {
            ws[i] = &work.rhs.data[(column + i) * stride..][..k];
        }
        // Equal lengths need no bounds checks.
        let count = xs[0].0.len();
        for i in 0..R {
            xs[i].0 = &xs[i].0[..count];
        }
        let zero = T::splat(simd, T::ZERO);
        let mut sums = [[zero; J]; R];
        for c in 0..count {
            let mut w = [zero; J];
            for i in 0..J {
                // SAFETY: rows of lhs and of rhs have k elements, which are at least `count` vectors.
                w[i] = unsafe { W::load(simd, ws[i].as_ptr().add(c * lanes)) };
            }
            if row == 0 {
                let at = (column + AHEAD) * stride + J * c * lanes;
                for i in 0..J {
                    if (i * lanes * size_of::<W>()).is_multiple_of(LINE) {
                        prefetch(work.rhs.data, at + i * lanes);
                    }
                }
            }
            for r in 0..R {
                let x = xs[r].0[c];
                for i in 0..J {
                    sums[r][i] = T::fma(simd, x, w[i], sums[r][i]);
                }
            }
        }
        if !xs[0].1.is_empty() {
            for r in 0..R {
                let x = <T as Vectors>::load_part(simd, xs[r].1);
                for i in 0..J {
                    let w = W::load_part(simd, &ws[i][count * lanes..]);
                    sums[r][i] = T::fma(simd, x, w, sums[r][i]);
                }
            }
        }
        let (alpha, add) = (work.alpha, work.add);
        for r in 0..R {
            let out = work.out(row + r, column, J);
            for i in 0..J {
                let sum = alpha * T::total(simd, sums[r][i]);
                out[i] = if add { out[i] + sum } else { sum };
            }
        }
    }
}

impl<T: Float, W: Stored<T>> WithSimd for Dots<'_, T, W> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let columns = self.0.rhs.columns;
        let whole = columns - columns % TILE;
        for column in (0..whole).step_by(TILE) {
            self.columns::<S, TILE>(simd, column);
        }
        for column in whole..columns {
            self.columns::<S, 1>(simd, column);
        }
    }
}

/// The rows of rhs are adjacent in memory: each row of the result is a sum of rows.
struct Sums<'a, T, W>(Work<'a, T, W>);

impl<T: Float, W: Stored<T>> Sums<'_, T, W> {
    #[inline(always)]
    fn columns<S: Simd, const J: usize>(&mut self, simd: S, column: usize) {
        let tall = if J == 1 { self.0.lhs.rows / TALL * TALL } else { 0 };
        for row in (0..tall).step_by(TALL) {
            self.tile::<S, TALL, J>(simd, row, column);
        }
        for_tiles_of_rows!(self.tile::<J>(simd, column), tall);
    }

    /// J whole vectors of columns, or part of one.
    #[inline(always)]
    fn tile<S: Simd, const R: usize, const J: usize>(
        &mut self,
        simd: S,
        row: usize,
        column: usize,
    ) {
        let work = &mut self.0;
        let (lanes, stride) = (size_of::<T::Vector<S>>() / size_of::<T>(), work.rhs.row_stride);
        let len = (J * lanes).min(work.rhs.columns - column);
        let mut xs: [&[T]; R] = [&[]; R];
        for i in 0..R {
            xs[i] = work.row(row + i);
        }
        let zero = T::splat(simd, T::ZERO);
        let mut sums = [[zero; J]; R];
        for k in 0..work.lhs.columns {
            let row = &work.rhs.data[k * stride + column..][..len];
            let mut w = [zero; J];
            if len == J * lanes {
                for i in 0..J {
                    // SAFETY: the part of the row has J vectors.
                    w[i] = unsafe { W::load(simd, row.as_ptr().add(i * lanes)) };
                }
            } else {
                w[0] = W::load_part(simd, row);
            }
            for r in 0..R {
                let x = T::splat(simd, xs[r][k]);
                for i in 0..J {
                    sums[r][i] = T::fma(simd, x, w[i], sums[r][i]);
                }
            }
        }
        let (alpha, add) = (T::splat(simd, work.alpha), work.add);
        for r in 0..R {
            let out = work.out(row + r, column, len);
            for (i, out) in out.chunks_mut(lanes).enumerate() {
                let old = match add {
                    true => <T as Vectors>::load_part(simd, out),
                    false => zero,
                };
                T::store(simd, out, T::fma(simd, alpha, sums[r][i], old));
            }
        }
    }
}

impl<T: Float, W: Stored<T>> WithSimd for Sums<'_, T, W> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let (columns, lanes) = (self.0.rhs.columns, size_of::<T::Vector<S>>() / size_of::<T>());
        let whole = columns - columns % (TILE * lanes);
        for column in (0..whole).step_by(TILE * lanes) {
            self.columns::<S, TILE>(simd, column);
        }
        for column in (whole..columns).step_by(lanes) {
            self.columns::<S, 1>(simd, column);
        }
    }
}

#[cfg(test)]
mod tests;
