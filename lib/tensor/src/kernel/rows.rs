//! How rows of a matrix are assigned to threads (`include/rows.cuh`): a warp for short rows, a block for longer ones,
//! and a block that rereads the row in each pass for those that exceed its registers.
//!
//! Everything here depends on sizes only, never on the GPU, and so do the order of sums and their bits.

use super::Grid;
use crate::dtype::Dtype;

/// Threads of a block with one row per warp.
const THREADS: usize = 256;
/// Maximum number of threads per row.
const MOST_THREADS: usize = 512;
/// Bytes of a row per thread in a forward pass; of x, and of dy, per thread in a backward pass.
const FORWARD_BYTES: usize = 64;
const BACKWARD_BYTES: usize = 32;
/// Columns per thread of rows that are not read 16 bytes at a time.
const ODD_FORWARD_COLUMNS: usize = 16;
const ODD_BACKWARD_COLUMNS: usize = 8;
/// Shared memory per thread in a backward pass: two rows of both in flight.
const SHARED_BYTES: usize = 128;
/// Warps of a block in a backward pass unless a row takes more: the teams of a block add up their sums.
const BACKWARD_WARPS: usize = 8;
/// Minimum number of rows over which a team sums the gradients of the weights.
const ROWS_PER_TEAM: usize = 2;
/// The same for a block that rereads the row, whose sums are in memory.
const ROWS_PER_BLOCK: usize = 16;
/// Maximum number of blocks of a backward pass: they stay until it ends, two, or one of more than 256 threads, on each
/// of 132 multiprocessors. More would write, and read again, more partial sums.
const BACKWARD_BLOCKS: usize = 264;

/// Columns per thread: `bytes` of rows that are read 16 bytes at a time, otherwise `odd`.
fn columns(width: usize, dtype: Dtype, bytes: usize, odd: usize) -> usize {
    if (width * dtype.bytes()).is_multiple_of(16) { bytes / dtype.bytes() } else { odd }
}

/// Which kernel handles rows of `width` elements in a pass that does not sum over rows (0: a warp a row, 1: a block,
/// 2: a block that rereads the row) and its grid. The kernel depends only on the width, and so does the order of sums.
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

/// For rows of `bytes` bytes of which each lane of a warp has 16: the binary logarithm of the number of lanes per row, a
/// power of two, and the grid of a pass that does not sum over rows. `None` for other rows.
pub(crate) fn narrow_grid(rows: usize, bytes: usize) -> Option<(usize, Grid)> {
    let lanes = (bytes / 16).next_power_of_two();
    let grid = || Grid::new((rows * lanes).div_ceil(THREADS), THREADS);
    (bytes.is_multiple_of(16) && lanes <= 32).then(|| (lanes.trailing_zeros() as usize, grid()))
}

/// Number of warps per row in a pass that sums over the rows of each of `groups` groups (0: a block that rereads the row),
/// its grid, and the number of parts that a group is split into: each part is a block, whose teams have several rows each
/// to sum over.
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
