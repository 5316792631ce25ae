//! Assigns matrix rows to threads (`include/rows.cuh`): a warp per short row, a block per longer row, and a block that
//! rereads the row in each pass for rows that exceed its registers.
//!
//! Everything here depends only on sizes, never on the GPU; so do the summation order and the bits of the results.

use super::Grid;
use crate::dtype::Dtype;

/// Threads per block with one row per warp.
const THREADS: usize = 256;
/// Maximum number of threads per row.
const MOST_THREADS: usize = 512;
/// Bytes of a row per thread in a forward pass, and of each of x and dy per thread in a backward pass.
const FORWARD_BYTES: usize = 64;
const BACKWARD_BYTES: usize = 32;
/// Columns per thread for rows that are not read 16 bytes at a time.
const ODD_FORWARD_COLUMNS: usize = 16;
const ODD_BACKWARD_COLUMNS: usize = 8;
/// Bytes of shared memory per thread in a backward pass, for two rows of x and dy in flight.
const SHARED_BYTES: usize = 128;
/// Warps per block in a backward pass, unless a row needs more; the teams of warps in a block add up their sums.
const BACKWARD_WARPS: usize = 8;
/// Minimum number of rows over which a team sums weight gradients.
const ROWS_PER_TEAM: usize = 2;
/// Minimum number of rows for a block that rereads the row, which keeps its sums in memory.
const ROWS_PER_BLOCK: usize = 16;
/// Maximum number of blocks in a backward pass: blocks are persistent, two (or one with more than 256 threads) on each
/// of 132 multiprocessors. More blocks would write and reread more partial sums.
const BACKWARD_BLOCKS: usize = 264;

/// Returns the number of columns per thread: `bytes` bytes for rows that are read 16 bytes at a time, otherwise `odd`.
fn columns(width: usize, dtype: Dtype, bytes: usize, odd: usize) -> usize {
    if (width * dtype.bytes()).is_multiple_of(16) { bytes / dtype.bytes() } else { odd }
}

/// Returns the kernel for rows of `width` elements in a pass that does not sum over rows (0: a warp per row, 1: a block
/// per row, 2: a block per row that rereads it) and its grid. The kernel, and thus the summation order, does not depend
/// on the number of rows.
pub(crate) fn forward_grid(rows: usize, width: usize, dtype: Dtype) -> (usize, Grid) {
    let columns = columns(width, dtype, FORWARD_BYTES, ODD_FORWARD_COLUMNS);
    if width <= 32 * columns {
        (0, Grid::new(rows.div_ceil(THREADS / 32), THREADS))
    } else if width <= MOST_THREADS * columns {
        (1, Grid::new(rows, width.div_ceil(columns).next_multiple_of(32)))
    } else {
        (2, Grid::new(rows, MOST_THREADS))
    }
}

/// Returns, for rows of `bytes` bytes with 16 bytes per lane, log2 of the number of lanes per row (a power of two) and
/// the grid of a pass that does not sum over rows. `None` if a row is not a multiple of 16 bytes or exceeds a warp.
pub(crate) fn narrow_grid(rows: usize, bytes: usize) -> Option<(usize, Grid)> {
    let lanes = (bytes / 16).next_power_of_two();
    let grid = || Grid::new((rows * lanes).div_ceil(THREADS), THREADS);
    (bytes.is_multiple_of(16) && lanes <= 32).then(|| (lanes.trailing_zeros() as usize, grid()))
}

/// Returns, for a pass that sums over the rows of each of `groups` groups, the number of warps per row (0: a block that
/// rereads the row), the grid, and the number of parts per group. Each part is a block, and each of its teams sums over
/// several rows.
pub(crate) fn backward_grid(
    groups: usize,
    rows: usize,
    width: usize,
    dtype: Dtype,
) -> (usize, Grid, usize) {
    let columns = columns(width, dtype, BACKWARD_BYTES, ODD_BACKWARD_COLUMNS);
    let warps = width.div_ceil(32 * columns).max(1);
    let is_wide = 32 * warps > MOST_THREADS;
    let teams = if is_wide { 1 } else { (BACKWARD_WARPS / warps).max(1) };
    let threads = if is_wide { MOST_THREADS } else { 32 * warps * teams };
    let each = if is_wide { ROWS_PER_BLOCK } else { ROWS_PER_TEAM * teams };
    let most = if threads > 32 * BACKWARD_WARPS { BACKWARD_BLOCKS / 2 } else { BACKWARD_BLOCKS };
    let parts = rows.div_ceil(each).clamp(1, (most / groups.max(1)).max(1));
    let shared = if is_wide { 0 } else { SHARED_BYTES * threads };
    (if is_wide { 0 } else { warps }, Grid::new(groups * parts, threads).shared(shared), parts)
}
