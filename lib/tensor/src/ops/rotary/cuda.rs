use super::Rotary;
use crate::args;
use crate::kernel::divisor::divisor;
use crate::kernel::{ALL_DTYPES, Arg, Grid, Source, reduce_rows, source};
use crate::op::{GradBuffer, Grads, Launch, Saved};
use crate::tensor::Tensor;
use crate::{Dtype, kernel};
use unix::Error;

/// Source of the kernels.
pub static SOURCE: Source = source!("rotary", ALL_DTYPES);

/// Threads per block.
const THREADS: usize = 256;
/// Lanes per warp.
const WARP: usize = 32;
/// Heads over which each group of lanes sums the gradient of w.
const HEADS_PER_GROUP: usize = 4;
/// Maximum number of partial sums of the gradient of w.
const MOST_PARTIALS: usize = 256;

/// Numbers of one call.
struct Sizes {
    /// Heads of all rows.
    count: usize,
    /// log2 of the number of lanes per head.
    shift: u32,
    numbers: Vec<Arg<'static>>,
}

impl Sizes {
    /// `None` if the kernels do not support the head size, which is recorded as the device's error.
    fn of(op: &Rotary, x: &Tensor, table: &Tensor) -> Option<Self> {
        let (dim, vector) = (op.dim(x), 16 / x.dtype().bytes());
        // A lane holds 16 bytes of each half of a head.
        let lanes = (dim / 2).div_ceil(vector).next_power_of_two();
        if lanes > WARP {
            let most = 2 * WARP * vector;
            kernel::fail(
                x.device(),
                Error::config(format!(
                    "rotary kernels support head sizes of at most {most} in {}, not {dim}",
                    x.dtype()
                )),
            );
            return None;
        }
        let (shift, count) = (lanes.trailing_zeros(), x.rows() * op.heads);
        let whole = usize::from((dim / 2).is_multiple_of(vector));
        let numbers = [
            args![count, dim],
            &divisor(op.heads),
            &divisor(table.rows()),
            args![shift as i32, whole],
        ]
        .concat();
        Some(Self { count, shift, numbers })
    }

    /// Number of blocks in which each group of lanes handles one head.
    fn blocks(&self) -> usize {
        self.count.div_ceil(THREADS >> self.shift)
    }

    /// y (+)= the rotation of x, first normalized with `w` and ε if given.
    fn rotate(
        &self,
        [x, table]: [&Tensor; 2],
        norm: Option<(&Tensor, f64)>,
        y: &mut Tensor,
        (is_inverse, add): (bool, bool),
    ) {
        let epsilon = norm.map_or(0.0, |(_, epsilon)| epsilon as f32);
        let tensors = args![x, table, norm.map(|(w, _)| w), &mut *y];
        let args = [tensors, &self.numbers, args![epsilon, is_inverse, add]].concat();
        SOURCE.launch(x.dtype(), "rotary_rotate", Grid::new(self.blocks(), THREADS), &args);
    }
}

impl Launch for Rotary {
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        if let Some(sizes) = Sizes::of(self, inputs[0], inputs[1]) {
            let norm = inputs.get(2).copied().zip(self.norm);
            sizes.rotate([inputs[0], inputs[1]], norm, out, (false, false));
        }
        self.saved(inputs)
    }

    fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let table = &saved[0];
        let Some(sizes) = Sizes::of(self, &dy, table) else { return };
        let (Some(epsilon), [_, x, w]) = (self.norm, &saved[..]) else {
            if let Some(GradBuffer { tensor: dx, accumulate }) = grads.buffer(0) {
                sizes.rotate([&dy, table], None, dx, (true, *accumulate));
            }
            return;
        };
        grads.widen(&[2]);
        let [dx, dw] = grads.buffers([0, 2]);
        let add = dx.as_ref().is_some_and(|grad| grad.accumulate);
        let dx = dx.map(|grad| &mut grad.tensor);
        let blocks = sizes.blocks().div_ceil(HEADS_PER_GROUP).clamp(1, MOST_PARTIALS);
        let mut partials = Tensor::empty_on(x.device(), &[blocks, self.dim(x)], Dtype::F32);
        let tensors = args![x, table, w, &dy, dx, &mut partials];
        let args = [tensors, &sizes.numbers, args![epsilon as f32, add]].concat();
        SOURCE.launch(x.dtype(), "rotary_backward", Grid::new(blocks, THREADS), &args);
        if let Some(dw) = dw {
            reduce_rows::sum_to(&partials, dw);
        }
    }
}
