use super::Geometry;
use crate::Scratch;
use crate::dtype::Float;
use crate::op::GradBuffer;
use crate::parallel::{reduce, row_blocks};
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
    let c = g.channels;
    for (r, row) in matrix.chunks_exact_mut(g.taps() * c).enumerate() {
        for (tap, seen) in row.chunks_exact_mut(c).enumerate() {
            match g.source(first + r, tap) {
                Some(cell) => seen.copy_from_slice(&x[cell * c..][..c]),
                None => seen.fill(T::ZERO),
            }
        }
    }
}

pub(super) fn forward<T: Float>(g: &Geometry, x: &[T], w: &[T], bias: Option<&[T]>, out: &mut [T]) {
    let (k, n) = (g.taps() * g.channels, g.filters);
    row_blocks((out, n), cells_per_block(k), |range, out| {
        let mut matrix = Scratch::<T>::uninit(range.len() * k);
        neighbours(g, x, range.start, &mut matrix);
        if let Some(bias) = bias {
            out.chunks_exact_mut(n).for_each(|row| row.copy_from_slice(bias));
        }
        let seen = View::new(&matrix, range.len(), k, k);
        product(out, n, bias.is_some(), T::ONE, seen, View::new(w, n, k, k).transposed());
    });
}

/// For a block of cells and each tap: the gradients of the outputs that read them, times the weights of the tap.
pub(super) fn backward_x<T: Float>(g: &Geometry, w: &[T], dy: &[T], grad: &mut GradBuffer) {
    let (c, n, taps, add) = (g.channels, g.filters, g.taps(), grad.accumulate);
    row_blocks((grad.tensor.write::<T>(), c), cells_per_block(c + n), |range, dx| {
        if !add {
            dx.fill(T::ZERO);
        }
        let mut readers = Scratch::<T>::uninit(range.len() * n);
        let mut parts = Scratch::<T>::uninit(range.len() * c);
        for tap in 0..taps {
            // Only cells that are read: with a stride of 2 in both directions, a quarter.
            let mut rows = Vec::with_capacity(range.len());
            for (row, cell) in range.clone().enumerate() {
                if let Some(target) = g.target(cell, tap) {
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

pub(super) fn backward_filter<T: Float>(
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
            vectorize!({
                for row in dy.chunks_exact(n) {
                    for (db, dy) in db.iter_mut().zip(row) {
                        *db += *dy;
                    }
                }
            });
        }
    });
    for (grad, sum) in [(dw, &sums[..n * k]), (db, &sums[n * k..])] {
        if let Some(grad) = grad {
            grad.add(sum);
        }
    }
}
