//! Matrix products on the CPU, through the `gemm` crates.
//!
//! Each call runs on the calling thread. Ops split their work into blocks themselves (`parallel::blocks`), so that the
//! next step (bias, activation, next product) finds the block in cache and the split does not depend on the number of
//! threads. Products of the few rows of a step of generation, which are bound by reading the other matrix, have code of
//! their own (`few`).

pub mod bf16;
mod few;

use crate::dtype::{Float, bf16 as Bf16};
pub(crate) use few::FEW;
use gemm_common::Parallelism;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A kernel of the `gemm` crates: out = alpha·out + beta·lhs·rhs, where `out` is only read if the flag after its
/// strides is set. Sizes are rows, columns and the inner dimension; column strides precede row strides.
pub type Gemm<T> = unsafe fn(
    usize,
    usize,
    usize,
    *mut T,
    isize,
    isize,
    bool,
    *const T,
    isize,
    isize,
    *const T,
    isize,
    isize,
    T,
    T,
    bool,
    bool,
    bool,
    Parallelism,
);

/// Whether products are timed.
static TIMED: AtomicBool = AtomicBool::new(false);
/// Nanoseconds spent in matrix products, summed over threads.
static NANOSECONDS: AtomicU64 = AtomicU64::new(0);

/// Runs `work` and measures the time spent in matrix products, summed over all threads of the process.
pub fn time_within<R>(work: impl FnOnce() -> R) -> (R, Duration) {
    NANOSECONDS.store(0, Ordering::Relaxed);
    TIMED.store(true, Ordering::Relaxed);
    let result = work();
    TIMED.store(false, Ordering::Relaxed);
    (result, Duration::from_nanos(NANOSECONDS.load(Ordering::Relaxed)))
}

/// A strided matrix view of a slice.
#[derive(Clone, Copy)]
pub struct View<'a, T> {
    data: &'a [T],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
    /// Whether the rows are single steps of sequences ([`View::of_steps`]).
    of_steps: bool,
    /// The matrix, packed, whose columns from this one on are those of the view.
    packed: Option<(&'a bf16::Packed, usize)>,
}

impl<'a, T> View<'a, T> {
    /// Creates a `rows` × `columns` view that starts at `data[0]`, with rows `row_stride` elements apart.
    ///
    /// # Panics
    /// If the matrix does not lie inside `data`.
    pub fn new(data: &'a [T], rows: usize, columns: usize, row_stride: usize) -> Self {
        check(data.len(), rows, columns, row_stride);
        Self { data, rows, columns, row_stride, column_stride: 1, of_steps: false, packed: None }
    }

    /// Returns the transposed view; only swaps the strides.
    pub fn transposed(self) -> Self {
        Self {
            data: self.data,
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            of_steps: self.of_steps,
            packed: None,
        }
    }

    /// Number of columns.
    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// Returns the view of some rows.
    ///
    /// # Panics
    /// If they are not inside the view.
    pub(crate) fn rows(self, rows: Range<usize>) -> Self {
        assert!(rows.start <= rows.end && rows.end <= self.rows, "rows of a matrix");
        let start = (rows.start * self.row_stride).min(self.data.len());
        Self { data: &self.data[start..], rows: rows.len(), packed: None, ..self }
    }

    /// Says whether each row is a sequence of its own, of one step. If they are few, a product with them on the left adds in
    /// another order, which is faster; elsewhere the bits of a row must not depend on the number of rows.
    pub(crate) fn of_steps(self, of_steps: bool) -> Self {
        Self { of_steps, ..self }
    }
}

/// The right operand of several products. Where they round their operands, it is packed once for all of them.
pub(crate) struct Operand<'a, T> {
    view: View<'a, T>,
    packed: Option<bf16::Packed>,
}

impl<'a, T: Float> Operand<'a, T> {
    /// The matrix `view`, by which `products` matrices are multiplied. Packs it on all threads.
    pub(crate) fn new(view: View<'a, T>, products: usize) -> Self {
        let packed = if products > 1 { bf16::packed_if_on(view) } else { None };
        Self { view, packed }
    }

    /// The whole matrix.
    pub(crate) fn whole(&self) -> View<'_, T> {
        self.columns(0..self.view.columns)
    }

    /// Returns the view of some columns.
    ///
    /// # Panics
    /// If they are not inside the matrix.
    pub(crate) fn columns(&self, columns: Range<usize>) -> View<'_, T> {
        let View { data, column_stride, .. } = self.view;
        assert!(columns.start <= columns.end && columns.end <= self.view.columns, "columns");
        View {
            data: &data[(columns.start * column_stride).min(data.len())..],
            columns: columns.len(),
            packed: self.packed.as_ref().map(|packed| (packed, columns.start)),
            ..self.view
        }
    }
}

fn check(len: usize, rows: usize, columns: usize, row_stride: usize) {
    assert!(
        rows == 0 || columns == 0 || (rows - 1) * row_stride + columns <= len,
        "a {rows}x{columns} matrix with row stride {row_stride} does not fit into {len} elements"
    );
}

/// Computes out = alpha·lhs·rhs, or out += alpha·lhs·rhs if `add` is set; `out` is row-major with the given row stride.
///
/// # Panics
/// If the inner dimensions differ or `out` is too short.
pub fn product<T: Float>(
    out: &mut [T],
    row_stride: usize,
    add: bool,
    alpha: T,
    lhs: View<T>,
    rhs: View<T>,
) {
    check(out.len(), lhs.rows, rhs.columns, row_stride);
    // SAFETY: `out` is borrowed exclusively and large enough (checked).
    unsafe { product_into(out.as_mut_ptr(), row_stride, add, alpha, lhs, rhs) }
}

/// Like [`product`], but other threads may write other columns of the same rows at the same time.
///
/// # Safety
/// `out` must be valid for writes of lhs.rows rows of rhs.columns elements, rows `row_stride` elements apart, and no
/// other thread may access those elements during the call.
///
/// # Panics
/// If the inner dimensions differ.
pub unsafe fn product_into<T: Float>(
    out: *mut T,
    row_stride: usize,
    add: bool,
    alpha: T,
    lhs: View<T>,
    rhs: View<T>,
) {
    assert_eq!(lhs.columns, rhs.rows, "inner sizes of a matrix product");
    let start = TIMED.load(Ordering::Relaxed).then(Instant::now);
    // SAFETY: the caller guarantees `out`; T is f32.
    if unsafe { bf16::product_if_on(out, row_stride, (alpha, add), lhs, rhs) } {
        return count(start);
    }
    // SAFETY: the caller guarantees `out`.
    if lhs.of_steps && unsafe { few::product(out, row_stride, (alpha, add), lhs, rhs) } {
        return count(start);
    }
    // SAFETY: as above.
    unsafe { gemm(out, row_stride, (alpha, add), lhs, rhs) };
    count(start);
}

/// Computes out = alpha·lhs·rhs, or out += alpha·lhs·rhs if `add` is set, by the `gemm` crates.
///
/// # Safety
/// As for [`product_into`]; the inner sizes agree.
unsafe fn gemm<T: Float>(
    out: *mut T,
    row_stride: usize,
    (alpha, add): (T, bool),
    lhs: View<T>,
    rhs: View<T>,
) {
    let (mut lhs, mut rhs) = (lhs, rhs);
    let beta = if add { T::ONE } else { T::ZERO };
    let mut strides = [1, row_stride as isize];
    if row_stride > 1 {
        // The kernels prefer column-major results: compute the transposed product rhsᵀ·lhsᵀ.
        (lhs, rhs) = (rhs.transposed(), lhs.transposed());
        strides.reverse();
    }
    // SAFETY: the views lie inside their slices (checked on construction); the caller guarantees `out`. Strides are
    // below isize::MAX because the slices exist.
    unsafe {
        T::gemm()(
            lhs.rows,
            rhs.columns,
            lhs.columns,
            out,
            strides[0],
            strides[1],
            add,
            lhs.data.as_ptr(),
            lhs.column_stride as isize,
            lhs.row_stride as isize,
            rhs.data.as_ptr(),
            rhs.column_stride as isize,
            rhs.row_stride as isize,
            beta,
            alpha,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

/// Computes out (+)= lhs·rowsᵀ for few single steps of sequences, at most [`FEW`], and the rows of a matrix in bf16: with the
/// bits of [`product_into`] with that matrix in T and [`View::of_steps`].
///
/// # Safety
/// As for [`product_into`].
///
/// # Panics
/// If the sizes do not fit, or the elements of a row are not adjacent in memory.
pub(crate) unsafe fn steps_into<T: Float>(
    out: *mut T,
    row_stride: usize,
    add: bool,
    lhs: View<T>,
    rows: View<Bf16>,
) {
    assert!(lhs.rows <= FEW, "{} steps", lhs.rows);
    let start = TIMED.load(Ordering::Relaxed).then(Instant::now);
    let rhs = rows.transposed();
    // SAFETY: the caller guarantees `out`.
    unsafe {
        if !bf16::steps_if_on(out, row_stride, add, lhs, rhs) {
            few::product_stored(out, row_stride, add, lhs, rhs);
        }
    }
    count(start);
}

/// Computes out = alpha·lhs·rhs, with rows of rhs.columns elements, for a rhs of few columns.
///
/// # Panics
/// If the sizes do not fit, or the elements of a row of lhs or of rhs are not adjacent in memory.
pub(crate) fn narrow<T: Float>(out: &mut [T], alpha: T, lhs: View<T>, rhs: View<T>) {
    let start = TIMED.load(Ordering::Relaxed).then(Instant::now);
    assert!(lhs.columns == rhs.rows && lhs.rows * rhs.columns <= out.len(), "sizes of a product");
    // SAFETY: `out` is borrowed exclusively and large enough.
    if !unsafe { bf16::product_if_on(out.as_mut_ptr(), rhs.columns, (alpha, false), lhs, rhs) } {
        few::narrow(out, alpha, lhs, rhs);
    }
    count(start);
}

/// Counts the time since `start`, if products are timed.
fn count(start: Option<Instant>) {
    if let Some(start) = start {
        let nanoseconds = start.elapsed().as_nanos() as u64;
        NANOSECONDS.fetch_add(nanoseconds, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_transposition_and_odd_size_agrees_with_the_definition() {
        for (m, n, k) in [(1, 1, 1), (3, 5, 7), (17, 1, 33), (64, 65, 63), (1, 129, 2)] {
            let a: Vec<f64> = (0..m * k).map(|i| ((i * 37 + 11) % 101) as f64 - 50.0).collect();
            let b: Vec<f64> = (0..k * n).map(|i| ((i * 53 + 7) % 97) as f64 - 48.0).collect();
            let transpose = |x: &[f64], rows: usize, columns: usize| -> Vec<f64> {
                (0..columns * rows).map(|i| x[(i % rows) * columns + i / rows]).collect()
            };
            let (at, bt) = (transpose(&a, m, k), transpose(&b, k, n));
            for ta in [false, true] {
                for tb in [false, true] {
                    let lhs = if ta {
                        View::new(&at, k, m, m).transposed()
                    } else {
                        View::new(&a, m, k, k)
                    };
                    let rhs = if tb {
                        View::new(&bt, n, k, k).transposed()
                    } else {
                        View::new(&b, k, n, n)
                    };
                    let mut out = vec![1.0; m * n];
                    product(&mut out, n, true, 2.0, lhs, rhs);
                    for i in 0..m {
                        for j in 0..n {
                            let sum: f64 = (0..k).map(|l| a[i * k + l] * b[l * n + j]).sum();
                            assert_eq!(out[i * n + j], 1.0 + 2.0 * sum); // integers: exact
                        }
                    }
                }
            }
        }
    }
}
