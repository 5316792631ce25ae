//! Sum of rows by index: y[v] = Σ of x[n] over the positions n with index[n] = v, in order. x [N, H], index [N] (I32),
//! y [V, H]. dx[n] = dy[index[n]].
//!
//! The order of each sum depends only on the indices, so results are bit-identical on every run. Rows with an index
//! outside 0..V are dropped; their gradient is 0. This op is the gradient of `embedding` and shares its implementation.

use super::embedding::{cpu, cuda};
use crate::dtype::{Dtype, Float};
use crate::op::{Case, Draw, Grads, Launch, Op, Saved};
use crate::tensor::Tensor;
use crate::with_float;

/// Sums rows of x by index into the given number of rows; inputs x, index.
#[derive(Clone, Copy, Debug)]
pub struct ScatterAdd(pub usize);

impl Op for ScatterAdd {
    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        match inputs {
            [[n, h], [m]] if n == m => Ok(vec![self.0, *h]),
            _ => Err("takes x [N, H] and index [N]".into()),
        }
    }

    fn constants(&self) -> &'static [usize] {
        &[1]
    }

    fn input_dtype(&self, i: usize, compute: Dtype) -> Dtype {
        if i == 1 { Dtype::I32 } else { compute }
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let [x, index] = [inputs[0], inputs[1]];
        with_float!(out.dtype(), T => cpu::scatter_add::<T>(index.read(), x.read(), out, false));
        vec![index.clone()]
    }

    fn backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        if let Some(grad) = grads.buffer(0) {
            with_float!(dy.dtype(), T => {
                let (dx, add) = (grad.tensor.write::<T>(), grad.accumulate);
                cpu::gather::<T>(&dy, saved[0].read(), dx, T::ZERO, add);
            });
        }
    }
}

impl Launch for ScatterAdd {
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let [x, index] = [inputs[0], inputs[1]];
        cuda::scatter_add(index, x, out, false);
        vec![index.clone()]
    }

    fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        if let Some(grad) = grads.buffer(0) {
            cuda::gather(&dy, &saved[0], &mut grad.tensor, 0.0, grad.accumulate);
        }
    }
}

/// Returns test cases: one sum, empty sums, dropped indices, odd widths, several radix digits.
pub fn cases() -> Vec<Case> {
    let case = |rows: usize, n: usize, h: usize, below: u64| {
        Case::new(ScatterAdd(rows), &[&[n, h], &[n]]).draw(1, Draw::RandInt(below))
    };
    vec![
        case(1, 1, 1, 1),
        case(1, 37, 5, 1),
        case(40, 15, 7, 50),
        case(300, 655, 24, 300),
        case(9, 300, 520, 12),
        case(8192, 8192, 512, 8192),
    ]
}
