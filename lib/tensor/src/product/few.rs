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
use crate::dtype::Float;
use crate::simd::Vectors;
use pulp::{Simd, WithSimd};

/// Maximum number of rows. With more, packing pays off.
pub(crate) const FEW: usize = 8;
/// Rows and columns (or vectors of columns) whose sums are in registers at a time.
const TILE: usize = 4;
/// How many columns ahead elements are fetched into the cache: for eight rows this saves a tenth of the time.
const AHEAD: usize = 8;
/// Rows at a time if there is one vector of columns.
const TALL: usize = 8;

/// Computes out (+)= alpha·lhs·rhs if lhs has few rows and the elements of lhs and of rhs are adjacent in memory, along
/// an axis of each. Returns whether it did.
///
/// # Safety
/// As for [`super::product_into`]; the inner sizes agree.
pub(super) unsafe fn product<T: Float>(
    out: *mut T,
    out_stride: usize,
    (alpha, add): (T, bool),
    lhs: View<T>,
    rhs: View<T>,
) -> bool {
    let is_few = lhs.rows <= FEW && lhs.column_stride == 1 && lhs.rows > 0 && rhs.columns > 0;
    if !is_few || lhs.columns == 0 {
        return false;
    }
    let work = Work { out, out_stride, alpha, add, lhs, rhs };
    if rhs.row_stride == 1 {
        pulp::Arch::new().dispatch(Dots(work));
    } else if rhs.column_stride == 1 {
        pulp::Arch::new().dispatch(Sums(work));
    } else {
        return false;
    }
    true
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

/// Elements as vectors and a rest.
type Split<'a, T, S> = (&'a [<T as Vectors>::Vector<S>], &'a [T]);

/// A product. `out` is valid for all its rows and columns, and nobody else accesses them.
struct Work<'a, T> {
    out: *mut T,
    out_stride: usize,
    alpha: T,
    add: bool,
    lhs: View<'a, T>,
    rhs: View<'a, T>,
}

impl<'a, T: Float> Work<'a, T> {
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
struct Dots<'a, T>(Work<'a, T>);

impl<T: Float> Dots<'_, T> {
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
        let mut ws: [Split<T, S>; J] = [(&[], &[]); J];
        for i in 0..R {
            xs[i] = T::split(simd, work.row(row + i));
        }
        for i in 0..J {
            ws[i] = T::split(simd, &work.rhs.data[(column + i) * stride..][..k]);
        }
        // Equal lengths need no bounds checks.
        let count = xs[0].0.len();
        for i in 0..R {
            xs[i].0 = &xs[i].0[..count];
        }
        for i in 0..J {
            ws[i].0 = &ws[i].0[..count];
        }
        let zero = T::splat(simd, T::ZERO);
        let mut sums = [[zero; J]; R];
        for c in 0..count {
            let mut w = [zero; J];
            for i in 0..J {
                w[i] = ws[i].0[c];
            }
            if row == 0 {
                let at = (column + AHEAD) * stride + J * c * lanes;
                for i in 0..J {
                    prefetch(work.rhs.data, at + i * lanes);
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
                let x = T::load_part(simd, xs[r].1);
                for i in 0..J {
                    sums[r][i] = T::fma(simd, x, T::load_part(simd, ws[i].1), sums[r][i]);
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

impl<T: Float> WithSimd for Dots<'_, T> {
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
struct Sums<'a, T>(Work<'a, T>);

impl<T: Float> Sums<'_, T> {
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
        let mut sums = [[T::splat(simd, T::ZERO); J]; R];
        for k in 0..work.lhs.columns {
            let row = &work.rhs.data[k * stride + column..][..len];
            let w = match <&[T::Vector<S>; J]>::try_from(T::split(simd, row).0) {
                Ok(whole) => *whole,
                // Part of one.
                Err(_) => [T::load_part(simd, row); J],
            };
            for r in 0..R {
                let x = T::splat(simd, xs[r][k]);
                for i in 0..J {
                    sums[r][i] = T::fma(simd, x, w[i], sums[r][i]);
                }
            }
        }
        let (alpha, zero) = (T::splat(simd, work.alpha), T::splat(simd, T::ZERO));
        let add = work.add;
        for r in 0..R {
            let out = work.out(row + r, column, len);
            for (i, out) in out.chunks_mut(lanes).enumerate() {
                let old = match add {
                    true => T::load_part(simd, out),
                    false => zero,
                };
                T::store(simd, out, T::fma(simd, alpha, sums[r][i], old));
            }
        }
    }
}

impl<T: Float> WithSimd for Sums<'_, T> {
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
mod tests {
    use super::super::{View, narrow, product};

    /// Integers, whose sums are exact, in every layout of rhs.
    #[test]
    fn few_rows_agree_with_the_definition() {
        for (m, n, k) in [(1, 1, 1), (2, 5, 7), (3, 130, 33), (5, 67, 64), (8, 4, 17), (9, 9, 9)] {
            let a: Vec<f32> = (0..m * k).map(|i| ((i * 37 + 11) % 11) as f32 - 5.0).collect();
            // Rows are two elements longer than the matrix.
            let b: Vec<f32> = (0..n * (k + 2)).map(|i| ((i * 53 + 7) % 13) as f32 - 6.0).collect();
            let c: Vec<f32> = (0..k * (n + 2)).map(|i| ((i * 29 + 5) % 7) as f32 - 3.0).collect();
            for add in [false, true] {
                let lhs = View::new(&a, m, k, k).of_steps(true);
                let (mut dots, mut sums) = (vec![2.0; m * n], vec![2.0; m * n]);
                product(&mut dots, n, add, 0.5, lhs, View::new(&b, n, k, k + 2).transposed());
                product(&mut sums, n, add, 0.5, lhs, View::new(&c, k, n, n + 2));
                for i in 0..m * n {
                    let (row, column) = (i / n, i % n);
                    let of = |rhs: &dyn Fn(usize) -> f32| {
                        let sum: f32 = (0..k).map(|l| a[row * k + l] * rhs(l)).sum();
                        0.5 * sum + if add { 2.0 } else { 0.0 }
                    };
                    assert_eq!(dots[i], of(&|l| b[column * (k + 2) + l]), "{m} {n} {k}");
                    assert_eq!(sums[i], of(&|l| c[l * (n + 2) + column]), "{m} {n} {k}");
                }
            }
        }
    }

    /// The same for many rows and few columns.
    #[test]
    fn few_columns_agree_with_the_definition() {
        for (m, n, k) in [(1, 1, 1), (23, 16, 9), (40, 5, 7), (17, 40, 3)] {
            let a: Vec<f32> = (0..m * k).map(|i| ((i * 37 + 11) % 11) as f32 - 5.0).collect();
            let b: Vec<f32> = (0..k * n).map(|i| ((i * 29 + 5) % 7) as f32 - 3.0).collect();
            let mut out = vec![f32::NAN; m * n];
            narrow(&mut out, 0.5, View::new(&a, m, k, k), View::new(&b, k, n, n));
            for (i, out) in out.iter().enumerate() {
                let sum: f32 = (0..k).map(|l| a[i / n * k + l] * b[l * n + i % n]).sum();
                assert_eq!(*out, 0.5 * sum, "{m} {n} {k}");
            }
        }
    }

    #[test]
    fn a_row_does_not_depend_on_the_others() {
        let (m, n, k) = (8, 70, 53);
        let value = |i: usize| ((i * 7919) % 1009) as f32 * 1e-3 - 0.5;
        let a: Vec<f32> = (0..m * k).map(value).collect();
        let b: Vec<f32> = (0..n * k).map(|i| value(i + 17)).collect();
        let rhs = [View::new(&b, n, k, k).transposed(), View::new(&b, k, n, n)];
        for rhs in rhs {
            let mut all = vec![0.0; m * n];
            product(&mut all, n, false, 1.0, View::new(&a, m, k, k).of_steps(true), rhs);
            for (row, expected) in all.chunks(n).enumerate() {
                let mut one = vec![0.0; n];
                let lhs = View::new(&a[row * k..], 1, k, k).of_steps(true);
                product(&mut one, n, false, 1.0, lhs, rhs);
                assert_eq!(one, expected);
            }
        }
    }
}
