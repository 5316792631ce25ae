//! How rows of a matrix are shared out to threads (`include/rows.cuh`): a warp for short ones, a block for
//! longer ones, and a block that reads a row anew in each pass for those beyond its registers.
//!
//! Everything here follows from sizes alone, never from the card: so do the order of sums and their bits.

use super::Grid;

/// Threads of a block whose warps have a row each.
const THREADS: usize = 256;
/// Most threads that share a row.
const MOST_THREADS: usize = 512;
/// Columns that a thread holds at most: of one or two rows, and of two rows with their sums.
const FORWARD_COLUMNS: usize = 16;
const BACKWARD_COLUMNS: usize = 8;
/// Rows over which a warp, or a block, sums the gradients of the weights at least.
const ROWS_PER_TEAM: usize = 4;
/// Threads of a backward pass at most: two thousand for each of 128 multiprocessors.
const BACKWARD_THREADS: usize = 2048 * 128;

/// Which kernel a row of `width` elements takes (0 a warp, 1 a block, 2 a block that reads it anew), and
/// the threads of its blocks. Follows from the width alone, so that the order of sums does.
fn team(width: usize, columns: usize) -> (usize, usize) {
    if width <= 32 * columns {
        (0, THREADS)
    } else if width <= MOST_THREADS * columns {
        (1, width.div_ceil(columns).next_multiple_of(32))
    } else {
        (2, MOST_THREADS)
    }
}

/// Kernel and grid of a pass over rows that sums over none of them.
pub(crate) fn forward_grid(rows: usize, width: usize) -> (usize, Grid) {
    let (kind, threads) = team(width, FORWARD_COLUMNS);
    let blocks = if kind == 0 { rows.div_ceil(threads / 32) } else { rows };
    (kind, Grid::new(blocks, threads))
}

/// Kernel and grid of a pass over each of `groups` groups of rows that sums over rows, and the parts that a group
/// is split into: a part is a block, whose teams have several rows each to sum over.
pub(crate) fn backward_grid(groups: usize, rows: usize, width: usize) -> (usize, Grid, usize) {
    let (kind, threads) = team(width, BACKWARD_COLUMNS);
    let teams = if kind == 0 { threads / 32 } else { 1 };
    let most = BACKWARD_THREADS / threads / groups.max(1);
    let parts = rows.div_ceil(teams * ROWS_PER_TEAM).clamp(1, most.max(1));
    (kind, Grid::new(groups * parts, threads), parts)
}
