//! Root-mean-square normalisation (Zhang & Sennrich 2019) over the last axis: y = w ∘ x·r with
//! r = 1/√(mean(x²) + ε). x [.., H], w [H].
//!
//! With g = w ∘ dy: dx = r·(g - n·mean(g ∘ n)), n = x·r; dw = Σ dy ∘ n.

mod cpu;
pub(crate) mod cuda;

pub(crate) use cpu::{input_gradient, rstd};

use crate::op::{Case, Grads, Op, Saved};
use crate::tensor::Tensor;
use crate::with_float;

/// Root-mean-square normalisation with a weight.
#[derive(Clone, Copy, Debug)]
pub struct RmsNorm {
    /// ε, added to the mean square.
    pub epsilon: f64,
}

impl Op for RmsNorm {
    fn name(&self) -> &'static str {
        "rmsnorm"
    }

    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        match inputs {
            [x, w] if x.last().is_some() && **w == x[x.len() - 1..] => Ok(x.to_vec()),
            _ => Err("takes x [.., H] and w [H]".into()),
        }
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let [x, w] = [inputs[0], inputs[1]];
        with_float!(x.dtype(), T => cpu::forward::<T>(self.epsilon, x, w.read(), out.write()));
        vec![x.clone(), w.clone()]
    }

    fn backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let [dx, dw] = grads.buffers([0, 1]);
        with_float!(dy.dtype(), T => {
            let w = saved[1].read::<T>();
            cpu::backward::<T>(self.epsilon, &saved[0], w, dy.read(), dx, dw);
        });
    }
}

/// Odd widths, many rows, and rows for each of the kernels.
pub fn cases() -> Vec<Case> {
    let long: [&[usize]; 4] = [&[19, 1024], &[5, 1001], &[9, 8200], &[2, 8193]];
    [&[3][..], &[5, 7], &[2, 9, 8], &[129, 33], &[64, 128, 256]]
        .iter()
        .chain(&long)
        .map(|shape| Case::new(RmsNorm { epsilon: 1e-6 }, &[shape, &shape[shape.len() - 1..]]))
        .collect()
}
