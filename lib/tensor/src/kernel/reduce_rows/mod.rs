//! Sums over the rows of partial results, in a fixed order.
//!
//! In a kernel that sums over many rows (bias or normalization weight gradients), each block writes its own sums to a
//! row of f32. These rows are added here, in an order that depends only on the sizes. Moves 4 bytes per element of the
//! partial results.

use super::{ALL_DTYPES, Arg, Grid, Source, source};
use crate::args;
use crate::dtype::Dtype;
use crate::op::GradBuffer;
use crate::tensor::Tensor;

/// The kernel source.
pub static SOURCE: Source = source!("reduce_rows", ALL_DTYPES);

/// Rows that each warp adds up before the sums of the warps are combined.
const ROWS_PER_WARP: usize = 8;

/// Minimum width at which a thread sums whole columns: 128 blocks of 128 threads with four columns each, about one for
/// every multiprocessor.
const LONG: usize = 1 << 16;

/// Destination of the sum of one vector of partial results.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    /// The output tensor.
    pub(crate) out: Arg<'a>,
    /// Index of the output element where the sum of the first group starts.
    pub(crate) start: usize,
    /// Whether to add to the existing values.
    pub(crate) add: bool,
}

impl<'a> Target<'a> {
    /// Targets a whole buffer.
    pub(crate) fn whole(buffer: &'a mut GradBuffer) -> Self {
        Target { out: Arg::from(&mut buffer.tensor), start: 0, add: buffer.accumulate }
    }
}

/// Sums f32 `partials` [groups, rows, vectors, width] over rows. There are one or two vectors: the sum of the first
/// vector goes to the first target and the sum of the last vector to the second, if given; in both, groups are `stride`
/// elements of dtype `element` apart.
pub(crate) fn sum(
    partials: &Tensor,
    element: Dtype,
    stride: usize,
    targets: [Option<Target<'_>>; 2],
) {
    let [groups, rows, vectors, width] = *partials.shape() else {
        unreachable!("partial results of shape {:?}", partials.shape())
    };
    let tiles = width.div_ceil(32);
    let warps = rows.div_ceil(ROWS_PER_WARP).clamp(1, 32);
    let [first, second] = targets;
    SOURCE.launch(
        element,
        "reduce_rows_sum",
        Grid::new(groups * vectors * tiles, 32 * warps),
        args![
            partials,
            rows,
            vectors,
            width,
            stride as i64,
            first.map(|t| t.out),
            first.map_or(0, |t| t.start as i64),
            first.is_some_and(|t| t.add),
            second.map(|t| t.out),
            second.map_or(0, |t| t.start as i64),
            second.is_some_and(|t| t.add),
        ],
    );
}

/// Returns the tensor of a device buffer to add to, zeroed unless it already holds a gradient: for ops that write only
/// parts of it.
pub(crate) fn zeroed(buffer: &mut GradBuffer) -> &mut Tensor {
    if !std::mem::replace(&mut buffer.accumulate, true) {
        buffer.tensor.zero();
    }
    &mut buffer.tensor
}

/// Computes buffer (+)= Σ over rows of f32 `partials` [rows, width], where width is the number of elements of the
/// buffer.
pub(crate) fn sum_to(partials: &Tensor, buffer: &mut GradBuffer) {
    let (width, element) = (buffer.tensor.len(), buffer.tensor.dtype());
    let rows = partials.len().checked_div(width).unwrap_or(0);
    if width >= LONG && width.is_multiple_of(4) {
        let grid = Grid::new(width.div_ceil(4 * 128), 128);
        let args = args![partials, rows, width, &mut buffer.tensor, buffer.accumulate];
        return SOURCE.launch(element, "reduce_rows_long", grid, args);
    }
    let partials = partials.reshape(&[1, rows, 1, width]);
    sum(&partials, element, width, [Some(Target::whole(buffer)), None]);
}
