//! Kernels in which a thread makes 16 bytes of a row where its width allows, else one element: how many
//! threads that takes.

use super::Grid;
use crate::dtype::Dtype;

/// Threads of a block: any number does, where none depends on another.
const THREADS: usize = 256;

/// A thread for every 16 bytes of `rows` rows of `width` elements, or for every element when 16 bytes
/// do not divide a row.
pub(crate) fn grid(element: Dtype, rows: usize, width: usize) -> Grid {
    let vector = 16 / element.bytes();
    let elements = if width.is_multiple_of(vector) { vector } else { 1 };
    Grid::new((rows * width / elements).div_ceil(THREADS), THREADS)
}

/// In how many chunks to sum over `n` rows when `width` elements are summed side by side, and how many
/// rows a chunk has: as follows from the sizes alone, enough to occupy a card, and each of at least 16.
pub(crate) fn chunks(n: usize, width: usize) -> (usize, usize) {
    /// Partial sums in all, about: what is written and read again stays small.
    const PARTIALS: usize = 1 << 20;
    let most = (PARTIALS / width.max(1)).clamp(16, 1024);
    let rows = n.div_ceil(most).max(16);
    (n.div_ceil(rows), rows)
}
