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
/// Columns of the im2col matrix of a block, if a tap has fewer channels. More columns would leave room for fewer cells,
/// and a product packs all weights however few cells it has.
const COLUMNS: usize = 512;
/// The same for the gradient of the weights, whose blocks write different columns.
const GRADIENT_COLUMNS: usize = 256;
/// Blocks into which the gradient of the weights is divided, if it has fewer columns.
const GRADIENT_BLOCKS: usize = 32;

/// Cells per block when the im2col matrix has `width` columns.
fn cells_per_block(width: usize) -> usize {
    (BLOCK / width.max(1)).clamp(8, CELLS)
}

/// Number of taps per group: groups have equal length and about `columns` columns of the im2col matrix.
fn taps_per_group(g: &Geometry, columns: usize) -> usize {
    g.taps().div_ceil((g.taps() * g.channels).div_ceil(columns).max(1))
}

/// im2col: row r of `matrix` becomes what output cell `first` + r reads with the taps at `places`, tap by tap.
fn neighbours<T: Float>(
    g: &Geometry,
    places: &[[usize; 3]],
    x: &[T],
    first: usize,
    matrix: &mut [T],
) {
    let (c, cells) = (g.channels, g.output());
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
    let (c, n, k) = (g.channels, g.filters, g.taps() * g.channels);
    let (places, taps) = (g.places(), taps_per_group(g, COLUMNS));
    row_blocks((out, n), cells_per_block(taps * c), |range, out| {
        let mut matrix = Scratch::<T>::uninit(range.len() * taps * c);
        let mut add = start.begin(out);
        for (group, places) in places.chunks(taps).enumerate() {
            let width = places.len() * c;
            let seen = &mut matrix[..range.len() * width];
            neighbours(g, places, x, range.start, seen);
            let seen = View::new(seen, range.len(), width, width);
            let w = View::new(&w[group * taps * c..], n, width, k).transposed();
            product(out, n, add, T::ONE, seen, w);
            add = true;
        }
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

/// dw. Blocks are groups of taps, and parts of the cells if the groups are few: a partial sum for each part of the
/// cells is as large as the weights.
pub(crate) fn backward_filter<T: Float>(g: &Geometry, x: &[T], dy: &[T], grad: &mut GradBuffer) {
    let ([_, cells], c, n, k) = (g.cells(), g.channels, g.filters, g.taps() * g.channels);
    let (places, taps) = (g.places(), taps_per_group(g, GRADIENT_COLUMNS));
    let (groups, rows) = (places.len().div_ceil(taps), cells_per_block(taps * c));
    let part = cells.div_ceil((GRADIENT_BLOCKS / groups).max(1)).next_multiple_of(rows);
    let parts = cells.div_ceil(part);
    let size = n * taps * c;
    let mut partial = Scratch::<T>::uninit(parts * groups * size);
    row_blocks((&mut *partial, size), 1, |blocks, sums| {
        let mut matrix = Scratch::<T>::uninit(rows * taps * c);
        for (block, sums) in blocks.zip(sums.chunks_exact_mut(size)) {
            let places = &places[block % groups * taps..];
            let places = &places[..taps.min(places.len())];
            let width = places.len() * c;
            let first = block / groups * part;
            for at in (first..cells.min(first + part)).step_by(rows) {
                let rows = rows.min(cells - at);
                let seen = &mut matrix[..rows * width];
                neighbours(g, places, x, at, seen);
                let dy = View::new(&dy[at * n..], rows, n, n).transposed();
                let seen = View::new(seen, rows, width, width);
                product(sums, width, at > first, T::ONE, dy, seen);
            }
        }
    });
    let partial = &*partial;
    row_blocks((grad.zeroed::<T>(), k), rows_per_block(parts * k), |range, dw| {
        for (row, dw) in range.zip(dw.chunks_exact_mut(k)) {
            for (block, sums) in partial.chunks_exact(size).enumerate() {
                let dw = dw.chunks_mut(taps * c).nth(block % groups).into_iter().flatten();
                let width = c * taps.min(places.len() - block % groups * taps);
                dw.zip(&sums[row * width..]).for_each(|(sum, part)| *sum += *part);
            }
        }
    });
}

/// db: adds the sum of the rows of dy to a gradient.
pub(crate) fn sum_rows<T: Float>(dy: &[T], grad: &mut GradBuffer) {
    let n = grad.tensor.len();
    let mut sums = Scratch::<T>::zeroed(n);
    reduce(dy.len() / n.max(1), rows_per_block(n), &mut sums, |range, sums| {
        vectorize!({
            for row in dy[range.start * n..range.end * n].chunks_exact(n) {
                for (sum, x) in sums.iter_mut().zip(row) {
                    *sum += *x;
                }
            }
        });
    });
    grad.add(&sums);
}
