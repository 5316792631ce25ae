//! How rows of a matrix are assigned to threads (`include/rows.cuh`): a warp for short rows, a block for longer ones,
//! and a block that rereads the row in each pass for those that exceed its registers.
//!
//! Everything here depends on sizes only, never on the GPU, and so do the order of sums and their bits.

use super::Grid;

/// Threads of a block with one row per warp.
const THREADS: usize = 256;
/// Maximum number of threads per row.
const MOST_THREADS: usize = 512;
/// Maximum columns per thread: of one or two rows, or of two rows with their sums.
const FORWARD_COLUMNS: usize = 16;
const BACKWARD_COLUMNS: usize = 8;
/// Minimum number of rows over which a warp, or a block, sums the gradients of the weights: its partial sums take as
/// much memory as two rows, in f32.
const ROWS_PER_WARP: usize = 4;
const ROWS_PER_BLOCK: usize = 16;
/// Maximum number of threads of a backward pass: 2048 for each of 128 multiprocessors.
const BACKWARD_THREADS: usize = 2048 * 128;

/// Which kernel handles a row of `width` elements (0: a warp, 1: a block, 2: a block that rereads the row) and its
/// threads per block. Depends only on the width, and so does the order of sums.
fn team(width: usize, columns: usize) -> (usize, usize) {
    if width <= 32 * columns {
        (0, THREADS)
    } else if width <= MOST_THREADS * columns {
        (1, width.div_ceil(columns).next_multiple_of(32))
    } else {
        (2, MOST_THREADS)
    }
}

/// Kernel and grid of a pass over rows that does not sum over rows.
pub(crate) fn forward_grid(rows: usize, width: usize) -> (usize, Grid) {
    let (kind, threads) = team(width, FORWARD_COLUMNS);
    let blocks = if kind == 0 { rows.div_ceil(threads / 32) } else { rows };
    (kind, Grid::new(blocks, threads))
}

/// For rows of `bytes` bytes of which each lane of a warp has 16: the binary logarithm of the number of lanes per row, a
/// power of two, and the grid of a pass that does not sum over rows. `None` for other rows.
pub(crate) fn narrow_grid(rows: usize, bytes: usize) -> Option<(usize, Grid)> {
    let lanes = (bytes / 16).next_power_of_two();
    let grid = || Grid::new((rows * lanes).div_ceil(THREADS), THREADS);
    (bytes.is_multiple_of(16) && lanes <= 32).then(|| (lanes.trailing_zeros() as usize, grid()))
}

/// Kernel and grid of a pass that sums over the rows of each of `groups` groups, and the number of parts that a group
/// is split into: each part is a block, whose teams have several rows each to sum over.
pub(crate) fn backward_grid(groups: usize, rows: usize, width: usize) -> (usize, Grid, usize) {
    let (kind, threads) = team(width, BACKWARD_COLUMNS);
    let each = if kind == 0 { threads / 32 * ROWS_PER_WARP } else { ROWS_PER_BLOCK };
    let most = BACKWARD_THREADS / threads / groups.max(1);
    let parts = rows.div_ceil(each).clamp(1, most.max(1));
    (kind, Grid::new(groups * parts, threads), parts)
}
