use super::Geometry;
use crate::Scratch;
use crate::dtype::Float;
use crate::op::GradBuffer;
use crate::ops::grid::split;
use crate::parallel::{reduce, row_blocks, rows_per_block};
use crate::product::{View, product};
use crate::vectorize;

/// Elements of the im2col matrix of a block, so that it stays in the L2 cache.
const BLOCK: usize = 128 * 1024;
/// Maximum number of cells per block.
const CELLS: usize = 256;

/// Cells per block when the im2col matrix has `width` columns.
fn cells_per_block(width: usize) -> usize {
    (BLOCK / width.max(1)).clamp(8, CELLS)
}

/// im2col: row r of `matrix` becomes the part of x that output cell `first` + r reads, tap by tap.
fn neighbours<T: Float>(g: &Geometry, x: &[T], first: usize, matrix: &mut [T]) {
    let (c, places, cells) = (g.channels, g.places(), g.output());
    for (r, row) in matrix.chunks_exact_mut(places.len() * c).enumerate() {
        let at = split(first + r, cells);
        for (place, seen) in places.iter().zip(row.chunks_exact_mut(c)) {
            match g.source(at, *place) {
                Some(cell) => seen.copy_from_slice(&x[cell * c..][..c]),
                None => seen.fill(T::ZERO),
            }
        }
    }
}

/// What a result is added to.
#[derive(Clone, Copy)]
pub(crate) enum Start<'a, T> {
    /// The values that are there.
    Add,
    /// The bias of each channel, or nothing.
    Bias(Option<&'a [T]>),
}

impl<T: Float> Start<'_, T> {
    /// Prepares `out`; whether a product must be added to it instead of overwriting it.
    fn begin(self, out: &mut [T]) -> bool {
        if let Start::Bias(Some(bias)) = self {
            out.chunks_exact_mut(bias.len()).for_each(|row| row.copy_from_slice(bias));
        }
        !matches!(self, Start::Bias(None))
    }
}

/// y of a convolution of x.
pub(crate) fn output<T: Float>(g: &Geometry, x: &[T], w: &[T], start: Start<'_, T>, out: &mut [T]) {
    let (k, n) = (g.taps() * g.channels, g.filters);
    row_blocks((out, n), cells_per_block(k), |range, out| {
        let mut matrix = Scratch::<T>::uninit(range.len() * k);
        neighbours(g, x, range.start, &mut matrix);
        let add = start.begin(out);
        let seen = View::new(&matrix, range.len(), k, k);
        product(out, n, add, T::ONE, seen, View::new(w, n, k, k).transposed());
    });
}

/// The gradient of a convolution with respect to x, or a transposed convolution of dy. For a block of cells and each
/// tap: the gradients of the outputs that read them, times the weights of the tap.
pub(crate) fn input<T: Float>(g: &Geometry, w: &[T], dy: &[T], start: Start<'_, T>, dx: &mut [T]) {
    let (c, n, taps) = (g.channels, g.filters, g.taps());
    row_blocks((dx, c), cells_per_block(c + n), |range, dx| {
        if !start.begin(dx) {
            dx.fill(T::ZERO);
        }
        let mut readers = Scratch::<T>::uninit(range.len() * n);
        let mut parts = Scratch::<T>::uninit(range.len() * c);
        let cells: Vec<_> = range.clone().map(|cell| split(cell, g.input())).collect();
        for (tap, place) in g.places().into_iter().enumerate() {
            // Only cells that are read: with a stride of 2 in two directions, a quarter.
            let mut rows = Vec::with_capacity(range.len());
            for (row, cell) in cells.iter().enumerate() {
                if let Some(target) = g.target(*cell, place) {
                    readers[rows.len() * n..][..n].copy_from_slice(&dy[target * n..][..n]);
                    rows.push(row);
                }
            }
            let dy = View::new(&readers, rows.len(), n, n);
            let w = View::new(&w[tap * c..], n, c, taps * c);
            product(&mut parts, c, false, T::ONE, dy, w);
            vectorize!({
                for (row, part) in rows.iter().zip(parts.chunks_exact(c)) {
                    for (d, part) in dx[row * c..][..c].iter_mut().zip(part) {
                        *d += *part;
                    }
                }
            });
        }
    });
}

/// dw and db.
pub(crate) fn backward_filter<T: Float>(
    g: &Geometry,
    x: &[T],
    dy: &[T],
    dw: Option<&mut GradBuffer>,
    db: Option<&mut GradBuffer>,
) {
    let ([_, cells], k, n) = (g.cells(), g.taps() * g.channels, g.filters);
    let mut sums = Scratch::<T>::zeroed(n * (k + 1));
    let grain = cells_per_block(k);
    reduce(cells, grain, &mut sums, |range, sums| {
        let (dw, db) = sums.split_at_mut(n * k);
        let mut matrix = Scratch::<T>::uninit(grain * k);
        for first in range.clone().step_by(grain) {
            let rows = grain.min(range.end - first);
            let (dy, matrix) = (&dy[first * n..][..rows * n], &mut matrix[..rows * k]);
            neighbours(g, x, first, matrix);
            let seen = View::new(matrix, rows, k, k);
            product(dw, k, true, T::ONE, View::new(dy, rows, n, n).transposed(), seen);
            add_rows(dy, db);
        }
    });
    for (grad, sum) in [(dw, &sums[..n * k]), (db, &sums[n * k..])] {
        if let Some(grad) = grad {
            grad.add(sum);
        }
    }
}

/// Adds the sum of the rows of dy to a gradient.
pub(crate) fn sum_rows<T: Float>(dy: &[T], grad: &mut GradBuffer) {
    let n = grad.tensor.len();
    let mut sums = Scratch::<T>::zeroed(n);
    reduce(dy.len() / n.max(1), rows_per_block(n), &mut sums, |range, sums| {
        add_rows(&dy[range.start * n..range.end * n], sums);
    });
    grad.add(&sums);
}

/// sums += Σ over rows.
fn add_rows<T: Float>(rows: &[T], sums: &mut [T]) {
    vectorize!({
        for row in rows.chunks_exact(sums.len()) {
            for (sum, x) in sums.iter_mut().zip(row) {
                *sum += *x;
            }
        }
    });
}
