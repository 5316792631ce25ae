//! Forward: moments of the parts of each sample, statistics of its groups, then an elementwise pass. Backward: sums
//! over parts, means over groups, then an elementwise pass; dw and db use the same partial sums.

use super::{GroupNorm, Sizes, saved};
use crate::args;
use crate::dtype::Dtype;
use crate::kernel::reduce_rows::{self, Target};
use crate::kernel::{ALL_DTYPES, Arg, Grid, Source, source, units};
use crate::op::{Grads, Launch, Saved};
use crate::tensor::Tensor;

/// Source of the group normalization kernels.
pub static SOURCE: Source = source!("group_norm", ALL_DTYPES);

/// Threads per block.
const THREADS: usize = 256;
/// Number of elements that a block sums; small enough to be in cache when the block rereads them.
const PART: usize = 16 * 1024;
/// Maximum number of parts of a sample.
const PARTS: usize = 1024;

/// Division of the sums over a sample. Depends only on sizes and dtype.
struct Parts {
    /// Number of adjacent threads along the channels.
    lanes: usize,
    /// Positions per part.
    rows: usize,
    parts: usize,
    grid: Grid,
}

impl Parts {
    fn new(element: Dtype, sizes: &Sizes) -> Self {
        let vector = 16 / element.bytes();
        let unit = if sizes.channels.is_multiple_of(vector) { vector } else { 1 };
        let units = sizes.channels / unit;
        let lanes = units.next_power_of_two().min(32);
        let rows = (PART / (lanes * unit)).max(sizes.cells.div_ceil(PARTS));
        let parts = sizes.cells.div_ceil(rows);
        let grid = Grid::new(sizes.batch * parts * units.div_ceil(lanes), THREADS);
        Self { lanes, rows, parts, grid }
    }
}

impl Launch for GroupNorm {
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let (x, element, sizes) = (inputs[0], out.dtype(), self.sizes(inputs[0]));
        let [w, b] = [1, 2].map(|i| inputs.get(i).copied());
        let Sizes { batch, cells, channels, groups } = sizes;
        let Parts { lanes, rows, parts, grid } = Parts::new(element, &sizes);
        let floats = |shape: &[usize]| Tensor::empty_on(x.device(), shape, Dtype::F32);
        let (mut partials, mut stats) =
            (floats(&[batch, parts, 2, channels]), floats(&[batch, groups, 2]));
        let args = args![x, &mut partials, cells, channels, lanes, rows, parts];
        SOURCE.launch(element, "group_norm_moments", grid, args);
        let epsilon = self.epsilon as f32;
        let args = args![&partials, &mut stats, cells, channels, groups, rows, parts, epsilon];
        SOURCE.launch(element, "group_norm_statistics", Grid::new(batch * groups, THREADS), args);
        let grid = units::grid(element, batch * cells, channels);
        let activation = self.activation as i32;
        let args = args![x, w, b, &stats, out, batch, cells, channels, groups, activation];
        SOURCE.launch(element, "group_norm_forward", grid, args);
        saved(inputs, stats)
    }

    fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let (x, stats, element, sizes) = (&saved[0], &saved[1], dy.dtype(), self.sizes(&saved[0]));
        let [w, b] = [2, 3].map(|i| saved.get(i));
        let Sizes { batch, cells, channels, groups } = sizes;
        let Parts { lanes, rows, parts, grid } = Parts::new(element, &sizes);
        let floats = |shape: &[usize]| Tensor::empty_on(x.device(), shape, Dtype::F32);
        let mut partials = floats(&[batch, parts, 2, channels]);
        let given = args![x, w, b, stats, &dy];
        let own: &[Arg] = args![cells, channels, groups, self.activation as i32];
        let last = args![lanes, rows, parts];
        let args = [given, args![&mut partials], own, last].concat();
        SOURCE.launch(element, "group_norm_sums", grid, &args);
        let [dx, dw, db] = grads.buffers([0, 1, 2]);
        if let Some(grad) = dx {
            let mut means = floats(&[batch, groups, 2]);
            let args = args![&partials, w, &mut means, cells, channels, groups, parts];
            SOURCE.launch(element, "group_norm_means", Grid::new(batch * groups, THREADS), args);
            let grid = units::grid(element, batch * cells, channels);
            let to = args![&means, &mut grad.tensor, grad.accumulate, batch];
            SOURCE.launch(element, "group_norm_backward", grid, &[given, to, own].concat());
        }
        if dw.is_some() || db.is_some() {
            let partials = partials.reshape(&[1, batch * parts, 2, channels]);
            let targets = [dw, db].map(|grad| grad.map(Target::whole));
            reduce_rows::sum(&partials, element, channels, targets);
        }
    }
}
