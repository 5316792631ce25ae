//! Grids for kernels in which a thread computes 16 bytes of a row if the width allows it, otherwise one element.

use super::Grid;
use crate::dtype::Dtype;

/// Threads per block: any number works, because threads are independent.
const THREADS: usize = 256;

/// Returns a grid with one thread per 16 bytes of `rows` rows of `width` elements, or per element if a row is not a
/// multiple of 16 bytes.
pub(crate) fn grid(element: Dtype, rows: usize, width: usize) -> Grid {
    let vector = 16 / element.bytes();
    let elements = if width.is_multiple_of(vector) { vector } else { 1 };
    Grid::new((rows * width / elements).div_ceil(THREADS), THREADS)
}

/// Returns how many of `n` rows of `width` columns form a chunk that is summed at a time (at least 16). Depends only on
/// the sizes; chunks are small enough that there are enough of them to occupy a GPU.
pub(crate) fn chunk(n: usize, width: usize) -> usize {
    /// Approximate number of partial sums, small enough that writing and rereading them is cheap.
    const PARTIALS: usize = 1 << 20;
    let most = (PARTIALS / width.max(1)).clamp(16, 1024);
    n.div_ceil(most).max(16)
}
