//! Convolution over a grid, channels last:
//! y[b, i, j, k, o] = bias[o] + Σ_{p,q,r,c} w[o, p, q, r, c]·x[b, i·s + p·d - m, j·t + q·e - n, k·u + r·f - l, c].
//!
//! x [B, depth, rows, columns, C], w [O, P, Q, R, C], bias [O] if `bias`; depth and P default to 1, and a
//! one-dimensional grid has one row. Stride (s, t, u), dilation (d, e, f); the grid is padded by `margin` (m, n, l)
//! cells on each side, periodically or with zeros.
//! y [B, ⌊(depth + 2m - d(P - 1) - 1)/s⌋ + 1, .., O], with a depth if x has one. Periodic padding wraps around at most
//! once, so that no tap reads a cell twice.
//! dx gathers, over taps, the outputs that read a cell; dw[o, p, q, r, c] = Σ of dy·x over outputs; db = Σ dy. Costs
//! 2·O·P·Q·R·C FLOPs per output cell forward and twice as many backward.

pub(crate) mod cpu;
pub(crate) mod cuda;
mod geometry;

pub use super::depthwise_conv::Padding;
pub(crate) use geometry::Geometry;

pub use cuda::{SOURCE, SOURCE_TF32, VOLUME, VOLUME_TF32};

use crate::op::{Case, Grads, Op, Saved};
use crate::ops::grid;
use crate::tensor::Tensor;
use crate::with_float;

/// Convolution; inputs x, w and, with a bias, bias.
#[derive(Clone, Copy, Debug)]
pub struct Conv {
    /// Whether there is a third input, the bias.
    pub bias: bool,
    /// Stride along depth, rows and columns.
    pub stride: [usize; 3],
    /// Dilation along depth, rows and columns.
    pub dilation: [usize; 3],
    /// Padding on each side, in cells.
    pub margin: [usize; 3],
    /// Padding mode.
    pub padding: Padding,
}

impl Conv {
    /// Creates a convolution with a bias, stride 1 and equal input and output sizes, for a filter with odd sides.
    pub fn same(filter: [usize; 3], padding: Padding) -> Self {
        let margin = filter.map(|taps| taps / 2);
        Self { bias: true, stride: [1; 3], dilation: [1; 3], margin, padding }
    }
}

impl Op for Conv {
    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        let (x, w) = match (inputs, self.bias) {
            ([x, w], false) => (x, w),
            ([x, w, bias], true) if bias.len() == 1 && bias.first() == w.first() => (x, w),
            _ => return Err("takes x, w and, with a bias, bias [O]".into()),
        };
        grid::like(x, Geometry::new(self, x, w)?.output())
    }

    fn flops(&self, inputs: &[&[usize]]) -> usize {
        let sizes = Geometry::new(self, inputs[0], inputs[1]);
        sizes.map_or(0, |g| 2 * g.cells()[1] * g.filters * g.taps() * g.channels)
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let (x, w) = (inputs[0], inputs[1]);
        let geometry = self.geometry(x, w);
        with_float!(out.dtype(), T => {
            let start = cpu::Start::Bias(inputs.get(2).map(|bias| bias.read::<T>()));
            cpu::output::<T>(&geometry, x.read(), w.read(), start, out.write());
        });
        vec![x.clone(), w.clone()]
    }

    fn backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let (x, w) = (&saved[0], &saved[1]);
        let geometry = self.geometry(x, w);
        let [dx, dw, db] = grads.buffers([0, 1, 2]);
        with_float!(dy.dtype(), T => {
            if let Some(grad) = dx {
                let start = if grad.accumulate { cpu::Start::Add } else { cpu::Start::Bias(None) };
                cpu::input::<T>(&geometry, w.read(), dy.read(), start, grad.tensor.write());
            }
            if let Some(grad) = dw {
                cpu::backward_filter::<T>(&geometry, x.read(), dy.read(), grad);
            }
            if let Some(grad) = db {
                cpu::sum_rows::<T>(dy.read(), grad);
            }
        });
    }
}

impl Conv {
    /// Returns the sizes of a call whose shapes have been checked.
    fn geometry(&self, x: &Tensor, w: &Tensor) -> Geometry {
        Geometry::new(self, x.shape(), w.shape())
            .unwrap_or_else(|why| unreachable!("shapes are checked before an op runs: {why}"))
    }
}

/// Returns test cases: one to three dimensions, both padding modes, strides and dilations, few and many channels.
pub fn cases() -> Vec<Case> {
    use Padding::{Periodic, Zero};
    let any = |op: Conv, x: &[usize], w: &[usize]| {
        let shapes: &[&[usize]] = if op.bias { &[x, w, &w[..1]] } else { &[x, w] };
        Case::new(op, shapes).flops(op.flops(shapes))
    };
    let case = |op: Conv, x: [usize; 4], w: [usize; 4]| any(op, &x, &w);
    let volume = |op: Conv, x: [usize; 5], w: [usize; 5]| any(op, &x, &w);
    let plain = Conv::same([1, 1, 1], Zero);
    vec![
        case(plain, [1, 1, 1, 1], [1, 1, 1, 1]),
        case(Conv::same([1, 1, 5], Periodic), [2, 1, 9, 3], [4, 1, 5, 3]),
        case(Conv::same([1, 3, 3], Zero), [2, 5, 7, 3], [6, 3, 3, 3]),
        case(Conv { bias: false, ..Conv::same([1, 3, 5], Periodic) }, [2, 6, 5, 8], [16, 3, 5, 8]),
        case(
            Conv { stride: [1, 2, 2], ..Conv::same([1, 3, 3], Zero) },
            [2, 8, 9, 8],
            [16, 3, 3, 8],
        ),
        case(
            Conv { stride: [1, 2, 3], ..Conv::same([1, 3, 3], Periodic) },
            [1, 8, 9, 5],
            [7, 3, 3, 5],
        ),
        case(Conv { dilation: [1, 2, 3], margin: [0, 2, 1], ..plain }, [3, 7, 10, 5], [9, 3, 2, 5]),
        case(Conv { bias: false, stride: [1, 4, 4], ..plain }, [2, 8, 12, 3], [24, 4, 4, 3]),
        case(Conv::same([1, 1, 7], Zero), [3, 1, 130, 16], [40, 1, 7, 16]),
        volume(Conv::same([3, 3, 3], Zero), [2, 3, 5, 4, 3], [5, 3, 3, 3, 3]),
        volume(Conv::same([3, 1, 5], Periodic), [1, 4, 3, 7, 8], [16, 3, 1, 5, 8]),
        volume(
            Conv { stride: [2, 1, 3], ..Conv::same([3, 3, 3], Periodic) },
            [2, 6, 3, 9, 3],
            [4, 3, 3, 3, 3],
        ),
        volume(
            Conv { dilation: [3, 1, 2], margin: [2, 0, 1], bias: false, ..plain },
            [2, 5, 4, 6, 5],
            [7, 2, 3, 3, 5],
        ),
        volume(Conv { stride: [2, 2, 2], ..plain }, [3, 4, 6, 2, 8], [8, 2, 2, 2, 8]),
        // A filter without a depth on a grid that has one, and vice versa.
        any(Conv::same([1, 3, 3], Zero), &[2, 3, 4, 5, 8], &[8, 3, 3, 8]),
        any(Conv::same([3, 3, 3], Zero), &[2, 4, 5, 8], &[8, 3, 3, 3, 8]),
        // Several kernel tiles in each direction, and split-k sums.
        case(Conv::same([1, 1, 3], Zero), [2, 1, 70, 24], [72, 1, 3, 24]),
        case(Conv::same([1, 1, 1], Zero), [1, 10, 14, 72], [16, 1, 1, 72]),
        case(Conv::same([1, 1, 1], Periodic), [1, 14, 10, 8], [136, 1, 1, 8]),
        case(Conv::same([1, 1, 3], Periodic), [3, 1, 200, 8], [16, 1, 3, 8]),
        case(
            Conv { stride: [1, 1, 2], ..Conv::same([1, 1, 3], Periodic) },
            [2, 1, 30, 16],
            [24, 1, 3, 16],
        ),
        case(Conv::same([1, 3, 3], Zero), [2, 12, 12, 72], [136, 3, 3, 72]),
        case(Conv::same([1, 3, 3], Periodic), [8, 32, 32, 64], [64, 3, 3, 64]),
        volume(Conv::same([3, 3, 3], Zero), [1, 5, 6, 7, 72], [72, 3, 3, 3, 72]),
        volume(Conv::same([3, 3, 3], Periodic), [2, 16, 16, 16, 64], [64, 3, 3, 3, 64]),
    ]
}
