//! How elementwise kernels are launched (`include/flat.cuh`).

use super::Grid;
use crate::dtype::Dtype;

/// Threads of a block.
pub(crate) const THREADS: usize = 256;

/// Threads that have 16 bytes each of `len` elements.
pub(crate) fn grid(len: usize, element: Dtype) -> Grid {
    Grid::new(len.div_ceil(THREADS * 16 / element.bytes()), THREADS)
}

/// The pieces that a sum over `len` elements is split into, a block each: elements of a piece (a multiple
/// of 4) and their number, at most 1024.
pub(crate) fn chunks(len: usize) -> (usize, usize) {
    let chunk = len.div_ceil(1024).max(4096).next_multiple_of(4);
    (chunk, len.div_ceil(chunk).max(1))
}
