//! Channels-last grids: [B, rows, columns, C] or [B, depth, rows, columns, C]. A one-dimensional grid has one row.

use crate::tensor::Tensor;

/// Sample index of a cell and its [plane, row, column].
pub(crate) type Cell = (usize, [usize; 3]);

/// Returns [B, depth, rows, columns, C], with depth 1 for a shape without a depth axis; `None` for any other rank.
pub(crate) fn lengths(shape: &[usize]) -> Option<[usize; 5]> {
    match *shape {
        [b, rows, columns, c] => Some([b, 1, rows, columns, c]),
        [b, depth, rows, columns, c] => Some([b, depth, rows, columns, c]),
        _ => None,
    }
}

/// Returns the [`lengths`] of a tensor whose shape an op has already checked.
pub(crate) fn of(x: &Tensor) -> [usize; 5] {
    lengths(x.shape()).unwrap_or_else(|| unreachable!("shapes are checked before an op runs"))
}

/// Returns a result's shape, with the rank of `x`. Errors: x has no depth axis, but the depth of the result is not 1.
pub(crate) fn like(x: &[usize], lengths: [usize; 5]) -> Result<Vec<usize>, String> {
    let [b, depth, rows, columns, c] = lengths;
    match (x.len(), depth) {
        (5, _) => Ok(lengths.to_vec()),
        (_, 1) => Ok(vec![b, rows, columns, c]),
        _ => Err(format!("a grid without a depth cannot become one of depth {depth}")),
    }
}

/// Splits a cell index over all samples into the sample and the position.
#[inline(always)]
pub(crate) fn split(cell: usize, [_, depth, rows, columns, _]: [usize; 5]) -> Cell {
    let (line, column) = (cell / columns, cell % columns);
    let (plane, row) = (line / rows, line % rows);
    (plane / depth, [plane % depth, row, column])
}
