//! The sizes of a convolution, and which cell each tap of the filter reads.

use super::{Conv, Padding};

/// One axis of the grid.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axis {
    /// Cells of the input.
    pub(crate) from: usize,
    /// Cells of the output.
    pub(crate) to: usize,
    /// Length of the filter.
    pub(crate) taps: usize,
    pub(crate) stride: usize,
    pub(crate) dilation: usize,
    pub(crate) margin: usize,
    pub(crate) periodic: bool,
}

impl Axis {
    /// The input cell that output `at` reads with `tap`; `None` in zero padding.
    pub(crate) fn source(&self, at: usize, tap: usize) -> Option<usize> {
        let moved = at * self.stride + tap * self.dilation;
        if self.periodic {
            // The margin is at most the length, so adding the length once makes this non-negative.
            return Some((moved + self.from - self.margin) % self.from);
        }
        moved.checked_sub(self.margin).filter(|cell| *cell < self.from)
    }

    /// The output that reads input cell `at` with `tap`, if there is one.
    pub(crate) fn target(&self, at: usize, tap: usize) -> Option<usize> {
        let moved = (at + self.margin).checked_sub(tap * self.dilation);
        let moved = if self.periodic {
            (at + self.margin + self.taps * self.dilation * self.from - tap * self.dilation)
                % self.from
        } else {
            moved?
        };
        Some(moved / self.stride).filter(|to| moved.is_multiple_of(self.stride) && *to < self.to)
    }

    fn new(op: &Conv, axis: usize, from: usize, taps: usize) -> Result<Self, String> {
        let [stride, dilation, margin] = [op.stride, op.dilation, op.margin].map(|x| x[axis]);
        if from == 0 || taps == 0 || stride == 0 || dilation == 0 {
            return Err("grid, filter, stride and dilation must be at least 1".into());
        }
        let span = dilation * (taps - 1) + 1;
        let Some(room) = (from + 2 * margin).checked_sub(span) else {
            return Err(format!("a filter over {span} cells does not fit into {from} cells"));
        };
        let to = room / stride + 1;
        let periodic = op.padding == Padding::Periodic;
        if periodic && (margin > from || (to - 1) * stride >= from) {
            return Err(format!("a margin of {margin} wraps around {from} cells more than once"));
        }
        Ok(Self { from, to, taps, stride, dilation, margin, periodic })
    }
}

/// All sizes of a convolution.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    pub(crate) batch: usize,
    pub(crate) rows: Axis,
    pub(crate) columns: Axis,
    /// Channels of the input.
    pub(crate) channels: usize,
    /// Channels of the output.
    pub(crate) filters: usize,
}

impl Geometry {
    /// Errors: x [B, rows, columns, C] and w [O, P, Q, C] violate a shape rule.
    pub(crate) fn new(op: &Conv, x: &[usize], w: &[usize]) -> Result<Self, String> {
        let (&[batch, rows, columns, channels], &[filters, p, q, wide]) = (x, w) else {
            return Err("takes x [B, rows, columns, C] and w [O, P, Q, C]".into());
        };
        if channels != wide {
            return Err("the last axis of x must be the last of w".into());
        }
        let (rows, columns) = (Axis::new(op, 0, rows, p)?, Axis::new(op, 1, columns, q)?);
        Ok(Self { batch, rows, columns, channels, filters })
    }

    /// Shape of the output.
    pub(crate) fn output(&self) -> [usize; 4] {
        [self.batch, self.rows.to, self.columns.to, self.filters]
    }

    /// Number of taps of the filter.
    pub(crate) fn taps(&self) -> usize {
        self.rows.taps * self.columns.taps
    }

    /// Cells of the input and of the output, over all samples.
    pub(crate) fn cells(&self) -> [usize; 2] {
        [self.rows.from * self.columns.from, self.rows.to * self.columns.to].map(|n| n * self.batch)
    }

    /// The input cell that an output cell reads with `tap`; both are indices over all samples.
    pub(crate) fn source(&self, cell: usize, tap: usize) -> Option<usize> {
        let (rows, columns) = (&self.rows, &self.columns);
        let row = rows.source(cell / columns.to % rows.to, tap / columns.taps)?;
        let column = columns.source(cell % columns.to, tap % columns.taps)?;
        let sample = cell / (rows.to * columns.to);
        Some((sample * rows.from + row) * columns.from + column)
    }

    /// The output cell that reads an input cell with `tap`, if any.
    pub(crate) fn target(&self, cell: usize, tap: usize) -> Option<usize> {
        let (rows, columns) = (&self.rows, &self.columns);
        let row = rows.target(cell / columns.from % rows.from, tap / columns.taps)?;
        let column = columns.target(cell % columns.from, tap % columns.taps)?;
        let sample = cell / (rows.from * columns.from);
        Some((sample * rows.to + row) * columns.to + column)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_target_of_a_cell_is_the_output_that_reads_it() {
        let mut seen = 0;
        for (stride, dilation, margin) in [(1, 1, 1), (2, 1, 1), (3, 2, 2), (1, 3, 0), (2, 2, 3)] {
            for padding in [Padding::Zero, Padding::Periodic] {
                let each = |x| [x, x];
                let (stride, dilation, margin) = (each(stride), each(dilation), each(margin));
                let op = Conv { bias: false, stride, dilation, margin, padding };
                let Ok(g) = Geometry::new(&op, &[2, 7, 8, 1], &[1, 3, 2, 1]) else { continue };
                let [from, to] = g.cells();
                for tap in 0..g.taps() {
                    for cell in 0..from {
                        let readers: Vec<usize> =
                            (0..to).filter(|o| g.source(*o, tap) == Some(cell)).collect();
                        assert!(readers.len() <= 1);
                        assert_eq!(g.target(cell, tap), readers.first().copied());
                        seen += readers.len();
                    }
                }
            }
        }
        assert!(seen > 1000, "{seen}");
    }
}
