//! Grids of one to three axes, channels last: [B, rows, columns, C] or [B, depth, rows, columns, C]. A line has one row.

use crate::tensor::Tensor;

/// Sample and position of a cell: plane, row and column.
pub(crate) type Cell = (usize, [usize; 3]);

/// [B, depth, rows, columns, C], where a missing depth is 1; `None` for another rank.
pub(crate) fn lengths(shape: &[usize]) -> Option<[usize; 5]> {
    match *shape {
        [b, rows, columns, c] => Some([b, 1, rows, columns, c]),
        [b, depth, rows, columns, c] => Some([b, depth, rows, columns, c]),
        _ => None,
    }
}

/// The lengths of a tensor whose shape an op has accepted.
pub(crate) fn of(x: &Tensor) -> [usize; 5] {
    lengths(x.shape()).unwrap_or_else(|| unreachable!("shapes are checked before an op runs"))
}

/// The shape of a result with as many axes as `x`. Errors: x has no depth, and that of the result is not 1.
pub(crate) fn like(x: &[usize], lengths: [usize; 5]) -> Result<Vec<usize>, String> {
    let [b, depth, rows, columns, c] = lengths;
    match (x.len(), depth) {
        (5, _) => Ok(lengths.to_vec()),
        (_, 1) => Ok(vec![b, rows, columns, c]),
        _ => Err(format!("a grid without a depth cannot become one of depth {depth}")),
    }
}

/// The sample and position of a cell, an index over all samples.
#[inline(always)]
pub(crate) fn split(cell: usize, [_, depth, rows, columns, _]: [usize; 5]) -> Cell {
    let (line, column) = (cell / columns, cell % columns);
    let (plane, row) = (line / rows, line % rows);
    (plane / depth, [plane % depth, row, column])
}
