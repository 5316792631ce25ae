//! How elementwise kernels are launched (`include/flat.cuh`).

use super::Grid;
use crate::dtype::Dtype;

/// Threads that have 16 bytes each of `len` elements.
pub(crate) fn grid(len: usize, element: Dtype) -> Grid {
    const THREADS: usize = 256;
    Grid::new(len.div_ceil(THREADS * 16 / element.bytes()), THREADS)
}
