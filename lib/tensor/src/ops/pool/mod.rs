//! Pooling over windows of a grid, channels last: y[b, i, j, k, c] is the mean or the maximum of
//! x[b, i·s + p, j·t + q, k·u + r, c] over the P × Q × R cells (p, q, r) of the window. x [B, depth, rows, columns, C],
//! y [B, ⌊(depth - P)/s⌋ + 1, ⌊(rows - Q)/t⌋ + 1, ⌊(columns - R)/u⌋ + 1, C]; depth defaults to 1, and a one-dimensional
//! grid has one row.
//!
//! There is no padding. Ties are resolved to the first maximum in row-major order; NaN counts as a maximum. The
//! gradient of a cell of x is summed over the windows that contain it, in order.

mod cpu;
mod cuda;

pub use cuda::SOURCE;

use crate::dtype::Dtype;
use crate::op::{Case, Draw, Grads, Op, Saved};
use crate::ops::grid;
use crate::tensor::Tensor;
use crate::with_float;

/// Pooling function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// The mean.
    Mean,
    /// The maximum.
    Max,
}

/// Pooling over windows.
#[derive(Clone, Copy, Debug)]
pub struct Pool {
    /// Mean or maximum.
    pub pooling: Pooling,
    /// Depth, rows and columns of the window.
    pub window: [usize; 3],
    /// Stride along depth, rows and columns.
    pub stride: [usize; 3],
}

impl Op for Pool {
    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        let ([x], Some([b, depth, rows, columns, c])) =
            (inputs, inputs.first().and_then(|x| grid::lengths(x)))
        else {
            return Err("takes x [B, (depth,) rows, columns, C]".into());
        };
        let along = |axis: usize, len: usize| match (self.window[axis], self.stride[axis]) {
            (window, stride) if window > 0 && stride > 0 && window <= len => {
                Ok((len - window) / stride + 1)
            }
            (window, stride) => Err(format!("window {window}, stride {stride} over {len} cells")),
        };
        grid::like(x, [b, along(0, depth)?, along(1, rows)?, along(2, columns)?, c])
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let x = inputs[0];
        if self.pooling == Pooling::Mean {
            with_float!(out.dtype(), T => cpu::mean::<T>(self, x, out));
            return vec![];
        }
        // Index, within its window, of the cell with the maximum.
        let mut chosen = Tensor::empty(out.shape(), Dtype::I32);
        with_float!(out.dtype(), T => cpu::max::<T>(self, x, out, chosen.write()));
        vec![chosen]
    }

    fn backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        if let Some(grad) = grads.buffer(0) {
            let chosen = saved.first().map(|chosen| chosen.read::<i32>());
            with_float!(dy.dtype(), T => cpu::backward::<T>(self, chosen, &dy, grad));
        }
    }
}

/// Returns test cases: one to three dimensions; adjacent, spaced and overlapping windows; odd channels.
pub fn cases() -> Vec<Case> {
    let mut cases = vec![];
    for pooling in [Pooling::Mean, Pooling::Max] {
        let cells: [(&[usize], _, _); _] = [
            (&[1, 1, 1, 1], [1, 1, 1], [1, 1, 1]),
            (&[2, 1, 11, 3], [1, 1, 2], [1, 1, 2]),
            (&[3, 5, 7, 5], [1, 3, 3], [1, 2, 2]),
            (&[2, 9, 8, 17], [1, 2, 3], [1, 3, 1]),
            (&[2, 8, 6, 24], [1, 2, 2], [1, 2, 2]),
            (&[2, 5, 4, 7, 3], [2, 3, 2], [1, 1, 3]),
            (&[2, 4, 6, 5, 8], [2, 2, 2], [2, 2, 2]),
            (&[16, 32, 32, 64], [1, 2, 2], [1, 2, 2]),
            (&[2, 16, 16, 32, 64], [2, 2, 2], [2, 2, 2]),
        ];
        for (shape, window, stride) in cells {
            // Distinct, well-separated values, so that finite differences do not change the maximum.
            let draw = Draw::Distinct(-300.0, 300.0);
            let op = Pool { pooling, window, stride };
            cases.push(Case::new(op, &[shape]).draw(0, draw));
        }
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::tape::Tape;

    #[test]
    fn of_equal_maxima_the_first_counts_and_what_is_no_number_is_one() {
        let devices: &[Device] =
            if cfg!(feature = "emu") { &[Device::Cpu, Device::Emu] } else { &[Device::Cpu] };
        for device in devices {
            let tape = Tape::new();
            let x = [1.0, 1.0, 0.0, 2.0, 2.0, 2.0, 3.0, f32::NAN];
            let x = Tensor::from_slice(&x, &[1, 2, 4, 1]).to_device(*device).unwrap();
            let x = tape.leaf(x);
            let op = Pool { pooling: Pooling::Max, window: [1, 2, 2], stride: [1, 2, 2] };
            let y = tape.apply(op, &[&x]).unwrap();
            let values = y.value().to_host().unwrap().to_f64();
            assert!(values[0] == 2.0 && values[1].is_nan(), "{device}: {values:?}");
            let dy = Tensor::from_slice(&[5.0_f32, 7.0], &[1, 1, 2, 1]).to_device(*device).unwrap();
            let dx = tape.backward_from(&y, dy).unwrap().take(&x).unwrap();
            let expected = [0.0, 0.0, 0.0, 0.0, 5.0, 0.0, 0.0, 7.0];
            assert_eq!(dx.to_host().unwrap().to_f64(), expected, "{device}");
        }
    }
}
