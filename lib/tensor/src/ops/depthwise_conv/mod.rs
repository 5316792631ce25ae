//! Depthwise convolution over a grid of tokens: each channel has its own filter.
//! y[b, i, j, c] = bias[c] + Σ_{p,q} w[p, q, c]·x[b, i + p - ⌊P/2⌋, j + q - ⌊Q/2⌋, c].
//!
//! x [B, rows·columns, C] with the given grid (one row if one-dimensional), w [P·Q, C], bias [C]; P and Q are odd.
//! Padding is periodic or zero.
//! dx is the same operation with the flipped filter; dw[p, q, c] = Σ over samples and tokens of dy·x.

mod cpu;
mod cuda;

pub use cuda::SOURCE;

use crate::op::{Case, Grads, Op, Saved};
use crate::tensor::Tensor;
use crate::with_float;

/// Padding mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Padding {
    /// The grid wraps around.
    Periodic,
    /// Zeros.
    Zero,
}

/// Depthwise convolution with stride 1; the output has the size of the input.
#[derive(Clone, Copy, Debug)]
pub struct DepthwiseConv {
    /// Rows and columns of tokens.
    pub grid: [usize; 2],
    /// Rows and columns of the filter, odd.
    pub filter: [usize; 2],
    /// Padding mode.
    pub padding: Padding,
}

impl Op for DepthwiseConv {
    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        let [x @ [_, tokens, c], [taps, wc], [bc]] = inputs else {
            return Err("takes x [B, T, C], w [P·Q, C], bias [C]".into());
        };
        if *tokens != self.grid[0] * self.grid[1] || *taps != self.filter[0] * self.filter[1] {
            return Err(format!(
                "x has {tokens} tokens and w has {taps} taps, but the grid is {:?} and the filter {:?}",
                self.grid, self.filter
            ));
        }
        if c != wc || c != bc || self.filter.iter().any(|p| p % 2 == 0) {
            return Err(
                "the channels of x, w and b must agree, and the filter sides must be odd".into()
            );
        }
        Ok(x.to_vec())
    }

    fn flops(&self, inputs: &[&[usize]]) -> usize {
        2 * inputs[0].iter().product::<usize>() * inputs[1][0]
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let [x, w, bias] = [inputs[0], inputs[1], inputs[2]];
        with_float!(out.dtype(), T => cpu::forward::<T>(self, x, w.read(), bias.read(), out.write()));
        vec![x.clone(), w.clone()]
    }

    fn backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let [dx, dw, db] = grads.buffers([0, 1, 2]);
        with_float!(dy.dtype(), T => {
            let w = saved[1].read::<T>();
            if let Some(grad) = dx {
                cpu::backward_x::<T>(self, w, &dy, grad);
            }
            if dw.is_some() || db.is_some() {
                cpu::backward_filter::<T>(self, &saved[0], dy.read(), dw, db);
            }
        });
    }
}

/// Returns test cases: one and two dimensions, both padding modes, filters larger than the grid, odd channels.
pub fn cases() -> Vec<Case> {
    let case = |b: usize, grid: [usize; 2], filter: [usize; 2], padding, c: usize| {
        let op = DepthwiseConv { grid, filter, padding };
        let taps = filter[0] * filter[1];
        let tokens = grid[0] * grid[1];
        Case::new(op, &[&[b, tokens, c], &[taps, c], &[c]]).flops(2 * b * tokens * taps * c)
    };
    use Padding::{Periodic, Zero};
    vec![
        case(1, [1, 1], [1, 1], Periodic, 1),
        case(2, [1, 9], [1, 5], Periodic, 3),
        case(2, [1, 9], [1, 5], Zero, 19),
        case(3, [1, 4], [1, 7], Periodic, 5),
        case(2, [5, 7], [3, 5], Periodic, 17),
        case(2, [3, 5], [5, 3], Zero, 4),
        case(64, [1, 64], [1, 7], Periodic, 96),
        case(64, [1, 128], [1, 7], Periodic, 256),
        case(2, [5, 9], [3, 3], Zero, 24),
        case(1, [3, 6], [5, 5], Periodic, 16),
        case(1, [2, 3], [3, 7], Periodic, 8),
    ]
}
