use super::Geometry;
use crate::Scratch;
use crate::dtype::Float;
use crate::op::GradBuffer;
use crate::ops::grid::split;
use crate::parallel::{reduce, row_blocks, rows_per_block};
use crate::product::{Operand, View, product};
use crate::vectorize;

/// Target number of elements of a block's im2col matrix, which should stay in the L2 cache.
const BLOCK: usize = 128 * 1024;
/// Maximum number of cells per block.
const CELLS: usize = 256;
/// Target number of im2col columns per block, unless a single tap has more channels. More columns mean fewer cells per
/// block, and each product packs all weights regardless of its number of cells.
const COLUMNS: usize = 512;
/// Like [`COLUMNS`], for the weight gradient, whose blocks write different columns.
const GRADIENT_COLUMNS: usize = 256;
/// Target number of blocks of the weight gradient; with fewer groups of taps, the cells are split too.
const GRADIENT_BLOCKS: usize = 32;

/// Returns the number of cells per block for an im2col matrix with `width` columns.
fn cells_per_block(width: usize) -> usize {
    (BLOCK / width.max(1)).clamp(8, CELLS)
}

/// Returns the number of taps per group, so that groups are of equal length and have about `columns` im2col columns.
fn taps_per_group(g: &Geometry, columns: usize) -> usize {
    g.taps().div_ceil((g.taps() * g.channels).div_ceil(columns).max(1))
}

/// im2col: fills row r of `matrix` with the inputs that output cell `first` + r reads through the taps at `places`.
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

/// Initial value to which a result is added.
#[derive(Clone, Copy)]
pub(crate) enum Start<'a, T> {
    /// The current contents of the output.
    Add,
    /// The bias of each channel, or zero.
    Bias(Option<&'a [T]>),
}

impl<T: Float> Start<'_, T> {
    /// Initializes `out`; returns whether a product must accumulate into it instead of overwriting it.
    fn begin(self, out: &mut [T]) -> bool {
        if let Start::Bias(Some(bias)) = self {
            out.chunks_exact_mut(bias.len()).for_each(|row| row.copy_from_slice(bias));
        }
        !matches!(self, Start::Bias(None))
    }
}

/// Computes the output of a convolution.
pub(crate) fn output<T: Float>(g: &Geometry, x: &[T], w: &[T], start: Start<'_, T>, out: &mut [T]) {
    let (c, n, k) = (g.channels, g.filters, g.taps() * g.channels);
    let (places, taps) = (g.places(), taps_per_group(g, COLUMNS));
    let cells = cells_per_block(taps * c);
    let products = (out.len() / n.max(1)).div_ceil(cells);
    let w: Vec<_> = (places.chunks(taps).enumerate())
        .map(|(group, places)| View::new(&w[group * taps * c..], n, places.len() * c, k))
        .map(|w| Operand::new(w.transposed(), products))
        .collect();
    row_blocks((out, n), cells, |range, out| {
        let mut matrix = Scratch::<T>::uninit(range.len() * taps * c);
        let mut add = start.begin(out);
        for (places, w) in places.chunks(taps).zip(&w) {
            let width = places.len() * c;
            let seen = &mut matrix[..range.len() * width];
            neighbours(g, places, x, range.start, seen);
            let seen = View::new(seen, range.len(), width, width);
            product(out, n, add, T::ONE, seen, w.whole());
            add = true;
        }
    });
}

/// Computes the gradient of a convolution with respect to x, or a transposed convolution of dy. For each block of cells
/// and each tap, multiplies the gradients of the outputs that read the cells by the weights of the tap.
pub(crate) fn input<T: Float>(g: &Geometry, w: &[T], dy: &[T], start: Start<'_, T>, dx: &mut [T]) {
    let (c, n, taps) = (g.channels, g.filters, g.taps());
    let cells = cells_per_block(c + n);
    let products = (dx.len() / c.max(1)).div_ceil(cells);
    let w: Vec<_> = (0..taps)
        .map(|tap| Operand::new(View::new(&w[tap * c..], n, c, taps * c), products))
        .collect();
    row_blocks((dx, c), cells, |range, dx| {
        if !start.begin(dx) {
            dx.fill(T::ZERO);
        }
        let mut readers = Scratch::<T>::uninit(range.len() * n);
        let mut parts = Scratch::<T>::uninit(range.len() * c);
        let cells: Vec<_> = range.clone().map(|cell| split(cell, g.input())).collect();
        for (place, w) in g.places().into_iter().zip(&w) {
            // Gathers only the cells that this tap reads: a quarter with stride 2 along two axes.
            let mut rows = Vec::with_capacity(range.len());
            for (row, cell) in cells.iter().enumerate() {
                if let Some(target) = g.target(*cell, place) {
                    readers[rows.len() * n..][..n].copy_from_slice(&dy[target * n..][..n]);
                    rows.push(row);
                }
            }
            let dy = View::new(&readers, rows.len(), n, n);
            product(&mut parts, c, false, T::ONE, dy, w.whole());
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

/// Computes dw. Each block handles a group of taps; with few groups, the cells are split as well (split-k), where each
/// part needs a partial sum as large as the weights.
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

/// Computes db: adds the sum of the rows of dy to `grad`.
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
