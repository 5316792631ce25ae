//! Grids for elementwise kernels (`include/flat.cuh`).

use super::Grid;
use crate::dtype::Dtype;

/// Threads per block.
pub(crate) const THREADS: usize = 256;

/// Returns a grid with one thread per 16 bytes of `len` elements.
pub(crate) fn grid(len: usize, element: Dtype) -> Grid {
    Grid::new(len.div_ceil(THREADS * 16 / element.bytes()), THREADS)
}

/// Splits a sum over `len` elements into chunks of one block each. Returns the number of elements per chunk (a multiple
/// of 4) and the number of chunks (at most 1024).
pub(crate) fn chunks(len: usize) -> (usize, usize) {
    let chunk = len.div_ceil(1024).max(4096).next_multiple_of(4);
    (chunk, len.div_ceil(chunk).max(1))
}
