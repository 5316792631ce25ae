//! Sizes of a convolution, and the mapping from filter taps to input cells.

use super::{Conv, Padding};
use crate::ops::grid::{self, Cell};

/// One axis of the grid.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axis {
    /// Number of cells of the input.
    pub(crate) from: usize,
    /// Number of cells of the output.
    pub(crate) to: usize,
    /// Length of the filter.
    pub(crate) taps: usize,
    pub(crate) stride: usize,
    pub(crate) dilation: usize,
    pub(crate) margin: usize,
    pub(crate) periodic: bool,
}

impl Axis {
    /// Returns the input cell that output cell `at` reads through `tap`; `None` in zero padding.
    pub(crate) fn source(&self, at: usize, tap: usize) -> Option<usize> {
        let moved = at * self.stride + tap * self.dilation;
        if self.periodic {
            // The margin is at most the length, so adding the length once makes the sum non-negative; it is less than
            // three lengths.
            let mut cell = moved + self.from - self.margin;
            while cell >= self.from {
                cell -= self.from;
            }
            return Some(cell);
        }
        moved.checked_sub(self.margin).filter(|cell| *cell < self.from)
    }

    /// Returns the output cell that reads input cell `at` through `tap`, if any.
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
    /// Depth, rows and columns.
    pub(crate) axes: [Axis; 3],
    /// Channels of the input.
    pub(crate) channels: usize,
    /// Channels of the output.
    pub(crate) filters: usize,
}

impl Geometry {
    /// Computes the sizes for x [B, (depth,) rows, columns, C] and w [O, (P,) Q, R, C]. Errors: x and w violate a shape
    /// rule.
    pub(crate) fn new(op: &Conv, x: &[usize], w: &[usize]) -> Result<Self, String> {
        let (Some([batch, from @ .., channels]), Some([filters, taps @ .., wide])) =
            (grid::lengths(x), grid::lengths(w))
        else {
            return Err("takes x [B, (depth,) rows, columns, C] and w [O, (P,) Q, R, C]".into());
        };
        if channels != wide {
            return Err("the last axis of x must be the last of w".into());
        }
        let axis = |axis: usize| Axis::new(op, axis, from[axis], taps[axis]);
        Ok(Self { batch, axes: [axis(0)?, axis(1)?, axis(2)?], channels, filters })
    }

    /// Shape of the input: [B, depth, rows, columns, C].
    pub(crate) fn input(&self) -> [usize; 5] {
        let [depth, rows, columns] = self.axes.map(|axis| axis.from);
        [self.batch, depth, rows, columns, self.channels]
    }

    /// Shape of the output: [B, depth, rows, columns, O].
    pub(crate) fn output(&self) -> [usize; 5] {
        let [depth, rows, columns] = self.axes.map(|axis| axis.to);
        [self.batch, depth, rows, columns, self.filters]
    }

    /// Number of taps of the filter.
    pub(crate) fn taps(&self) -> usize {
        self.axes.iter().map(|axis| axis.taps).product()
    }

    /// Cells of the input and of the output, over all samples.
    pub(crate) fn cells(&self) -> [usize; 2] {
        let from: usize = self.axes.iter().map(|axis| axis.from).product();
        let to: usize = self.axes.iter().map(|axis| axis.to).product();
        [from * self.batch, to * self.batch]
    }

    /// Returns whether the grid has a single plane of rows and columns and the filter never leaves it.
    pub(crate) fn is_planar(&self) -> bool {
        let Axis { from, to, taps, margin, .. } = self.axes[0];
        (from, to, taps, margin) == (1, 1, 1, 0)
    }

    /// Returns whether each output cell reads only the input cell at its own position. The convolution is then the
    /// matrix product of x [cells, channels] and wᵀ.
    pub(crate) fn is_pointwise(&self) -> bool {
        self.axes.iter().all(|axis| (axis.taps, axis.stride, axis.margin) == (1, 1, 0))
    }

    /// Returns the position of each tap in the filter.
    pub(crate) fn places(&self) -> Vec<[usize; 3]> {
        let [_, rows, columns] = self.axes.map(|axis| axis.taps);
        let place = |tap: usize| [tap / columns / rows, tap / columns % rows, tap % columns];
        (0..self.taps()).map(place).collect()
    }

    /// Returns the index over all samples of the input cell that an output cell reads through the tap at `place`.
    pub(crate) fn source(&self, (sample, at): Cell, place: [usize; 3]) -> Option<usize> {
        self.axes.iter().zip(at).zip(place).try_fold(sample, |cell, ((axis, at), tap)| {
            Some(cell * axis.from + axis.source(at, tap)?)
        })
    }

    /// Returns the index over all samples of the output cell that reads an input cell through the tap at `place`.
    pub(crate) fn target(&self, (sample, at): Cell, place: [usize; 3]) -> Option<usize> {
        self.axes.iter().zip(at).zip(place).try_fold(sample, |cell, ((axis, at), tap)| {
            Some(cell * axis.to + axis.target(at, tap)?)
        })
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
                let each = |x| [x; 3];
                let (stride, dilation, margin) = (each(stride), each(dilation), each(margin));
                let op = Conv { bias: false, stride, dilation, margin, padding };
                let (x, w) = ([2, 4, 7, 8, 1], [1, 2, 3, 2, 1]);
                let Ok(g) = Geometry::new(&op, &x, &w) else { continue };
                let [from, to] = g.cells();
                for tap in g.places() {
                    let mut readers = vec![vec![]; from];
                    for output in 0..to {
                        if let Some(cell) = g.source(grid::split(output, g.output()), tap) {
                            readers[cell].push(output);
                        }
                    }
                    for (cell, readers) in readers.iter().enumerate() {
                        assert!(readers.len() <= 1);
                        assert_eq!(
                            g.target(grid::split(cell, g.input()), tap),
                            readers.first().copied()
                        );
                        seen += readers.len();
                    }
                }
            }
        }
        assert!(seen > 1000, "{seen}");
    }
}
