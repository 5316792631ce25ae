//! Transposed convolution over a grid, channels last: the gradient of a convolution ([`Conv`]) from grid y to grid x
//! with respect to its input, like PyTorch's `ConvTranspose`:
//! y[b, i·s + p·d - m, j·t + q·e - n, k·u + r·f - l, o] += w[c, p, q, r, o]·x[b, i, j, k, c], plus bias[o].
//!
//! x [B, depth, rows, columns, C], w [C, P, Q, R, O], bias [O] if `bias`; depth and P default to 1, and a
//! one-dimensional grid has one row. Stride (s, t, u), dilation (d, e, f), margin (m, n, l), output padding (a, ..).
//! y [B, (depth - 1)·s - 2m + d(P - 1) + a + 1, .., O], with a depth if x has one; values outside the grid are dropped.
//! dx is the convolution of dy with w, dw the filter gradient of that convolution, and db = Σ dy. Costs 2·C·P·Q·R·O
//! FLOPs per cell of x forward and twice as many backward.

mod cuda;

use super::conv::{Conv, Geometry, Padding, cpu};
use crate::op::{Case, Grads, Op, Saved};
use crate::ops::grid;
use crate::tensor::Tensor;
use crate::with_float;

/// Transposed convolution with zero padding; inputs x, w and, with a bias, bias.
#[derive(Clone, Copy, Debug)]
pub struct ConvTranspose {
    /// Whether there is a third input, the bias.
    pub bias: bool,
    /// Stride along depth, rows and columns.
    pub stride: [usize; 3],
    /// Dilation along depth, rows and columns.
    pub dilation: [usize; 3],
    /// Cells removed on each side (PyTorch's `padding`).
    pub margin: [usize; 3],
    /// Cells added at the end of each axis; less than the stride.
    pub output_padding: [usize; 3],
}

impl ConvTranspose {
    /// Creates an upsampling by `stride` whose filter has the size of the stride, so that one tap writes each cell.
    pub fn patches(stride: [usize; 3]) -> Self {
        Self { bias: true, stride, dilation: [1; 3], margin: [0; 3], output_padding: [0; 3] }
    }

    /// Returns depth, rows and columns of y for those of x and the filter.
    fn grid(&self, x: [usize; 3], filter: [usize; 3]) -> Result<[usize; 3], String> {
        let mut grid = [0; 3];
        for (axis, to) in grid.iter_mut().enumerate() {
            let [stride, dilation] = [self.stride[axis], self.dilation[axis]];
            let (from, taps) = (x[axis], filter[axis]);
            if from == 0 || taps == 0 || stride == 0 || dilation == 0 {
                return Err("grid, filter, stride and dilation must be at least 1".into());
            }
            let added = self.output_padding[axis];
            if added >= stride {
                return Err(format!("output padding {added} must be below the stride {stride}"));
            }
            let whole = (from - 1) * stride + dilation * (taps - 1) + 1 + added;
            *to =
                whole.checked_sub(2 * self.margin[axis]).filter(|to| *to > 0).ok_or_else(|| {
                    format!("a margin of {} leaves nothing of {whole} cells", self.margin[axis])
                })?;
        }
        Ok(grid)
    }

    /// Returns the sizes of the convolution from y to x. Errors: x and w violate a shape rule.
    fn geometry(&self, x: &[usize], w: &[usize]) -> Result<Geometry, String> {
        let (Some([batch, from @ .., channels]), Some([wide, filter @ .., filters])) =
            (grid::lengths(x), grid::lengths(w))
        else {
            return Err("takes x [B, (depth,) rows, columns, C] and w [C, (P,) Q, R, O]".into());
        };
        if channels != wide {
            return Err("the last axis of x must be the first of w".into());
        }
        let [depth, rows, columns] = self.grid(from, filter)?;
        let &Self { stride, dilation, margin, .. } = self;
        let conv = Conv { bias: false, stride, dilation, margin, padding: Padding::Zero };
        Geometry::new(&conv, &[batch, depth, rows, columns, filters], w)
    }

    /// Returns the sizes of a call whose shapes have been checked.
    fn sizes(&self, x: &Tensor, w: &Tensor) -> Geometry {
        self.geometry(x.shape(), w.shape())
            .unwrap_or_else(|why| unreachable!("shapes are checked before an op runs: {why}"))
    }
}

impl Op for ConvTranspose {
    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        let (x, w) = match (inputs, self.bias) {
            ([x, w], false) => (x, w),
            ([x, w, [o]], true) if w.last() == Some(o) => (x, w),
            _ => return Err("takes x, w and, with a bias, bias [O]".into()),
        };
        grid::like(x, self.geometry(x, w)?.input())
    }

    fn flops(&self, inputs: &[&[usize]]) -> usize {
        let sizes = self.geometry(inputs[0], inputs[1]);
        sizes.map_or(0, |g| 2 * g.cells()[1] * g.filters * g.taps() * g.channels)
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let (x, w) = (inputs[0], inputs[1]);
        with_float!(out.dtype(), T => {
            let start = cpu::Start::Bias(inputs.get(2).map(|bias| bias.read::<T>()));
            cpu::input::<T>(&self.sizes(x, w), w.read(), x.read(), start, out.write());
        });
        vec![x.clone(), w.clone()]
    }

    fn backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let (x, w) = (&saved[0], &saved[1]);
        let g = &self.sizes(x, w);
        let [dx, dw, db] = grads.buffers([0, 1, 2]);
        with_float!(dy.dtype(), T => {
            if let Some(grad) = dx {
                let start = if grad.accumulate { cpu::Start::Add } else { cpu::Start::Bias(None) };
                cpu::output::<T>(g, dy.read(), w.read(), start, grad.tensor.write());
            }
            if let Some(grad) = dw {
                // The bias gradient of that convolution would be the sum of x, so db is computed separately.
                cpu::backward_filter::<T>(g, dy.read(), x.read(), grad);
            }
            if let Some(grad) = db {
                cpu::sum_rows::<T>(dy.read(), grad);
            }
        });
    }
}

/// Returns test cases: one to three dimensions, strides, dilations, margins and output padding, overlapping and
/// disjoint windows, few and many channels.
pub fn cases() -> Vec<Case> {
    let any = |op: ConvTranspose, x: &[usize], w: &[usize]| {
        let shapes: &[&[usize]] = if op.bias { &[x, w, &w[w.len() - 1..]] } else { &[x, w] };
        Case::new(op, shapes).flops(op.flops(shapes))
    };
    let case = |op: ConvTranspose, x: [usize; 4], w: [usize; 4]| any(op, &x, &w);
    let volume = |op: ConvTranspose, x: [usize; 5], w: [usize; 5]| any(op, &x, &w);
    let patches = ConvTranspose::patches;
    let plain = patches([1, 1, 1]);
    vec![
        case(plain, [1, 1, 1, 1], [1, 1, 1, 1]),
        case(patches([1, 1, 2]), [2, 1, 9, 5], [5, 1, 2, 3]),
        case(patches([1, 2, 2]), [2, 5, 7, 6], [6, 2, 2, 3]),
        case(ConvTranspose { bias: false, ..patches([1, 2, 2]) }, [3, 4, 5, 16], [16, 2, 2, 8]),
        case(ConvTranspose { margin: [0, 1, 2], ..plain }, [2, 6, 5, 4], [4, 3, 5, 7]),
        case(
            ConvTranspose { margin: [0, 1, 1], output_padding: [0, 1, 0], ..patches([1, 2, 3]) },
            [2, 4, 6, 8],
            [8, 3, 4, 16],
        ),
        case(
            ConvTranspose { dilation: [1, 2, 3], output_padding: [0, 1, 1], ..patches([1, 2, 2]) },
            [1, 4, 5, 3],
            [3, 3, 2, 9],
        ),
        volume(patches([2, 2, 2]), [2, 3, 4, 5, 6], [6, 2, 2, 2, 5]),
        volume(
            ConvTranspose {
                margin: [1, 0, 2],
                output_padding: [1, 0, 1],
                dilation: [1, 2, 1],
                ..patches([2, 1, 3])
            },
            [2, 3, 4, 3, 8],
            [8, 3, 2, 4, 8],
        ),
        case(patches([1, 1, 2]), [2, 1, 70, 72], [72, 1, 2, 24]),
        case(patches([1, 3, 1]), [2, 9, 10, 8], [8, 3, 1, 136]),
        case(patches([1, 2, 2]), [8, 16, 16, 128], [128, 2, 2, 64]),
        volume(patches([2, 2, 2]), [2, 8, 8, 8, 128], [128, 2, 2, 2, 64]),
    ]
}
