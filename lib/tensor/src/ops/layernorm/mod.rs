//! Layer normalisation (Ba et al. 2016) over the last axis: y = w ∘ n + b with n = (x - μ)·r and
//! r = 1/√(σ² + ε). x [.., H], w [H], b [H].
//!
//! With g = w ∘ dy: dx = r·(g - mean(g) - n·mean(g ∘ n)), dw = Σ dy ∘ n, db = Σ dy.
//! Moves 2 elements an element forward, 3 backward.

mod cpu;
pub(crate) mod cuda;

pub(crate) use cpu::{input_gradient, normalized, statistics};

use crate::op::{Case, Draw, Grads, Op, Saved};
use crate::tensor::Tensor;
use crate::with_float;

/// Layer normalisation with weight and bias.
#[derive(Clone, Copy, Debug)]
pub struct LayerNorm {
    /// ε, added to the variance.
    pub epsilon: f64,
}

impl Op for LayerNorm {
    fn name(&self) -> &'static str {
        "layernorm"
    }

    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        match inputs {
            [x, w, b] if x.last().is_some() && w == b && **w == x[x.len() - 1..] => Ok(x.to_vec()),
            _ => Err("takes x [.., H], w [H], b [H]".into()),
        }
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let [x, w, b] = [inputs[0], inputs[1], inputs[2]];
        let mut stats = Tensor::arbitrary(&[x.rows(), 2], x.dtype());
        with_float!(x.dtype(), T => {
            cpu::forward::<T>(self.epsilon, x, w.read(), b.read(), stats.write(), out.write());
        });
        vec![x.clone(), w.clone(), stats]
    }

    fn backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let [dx, dw, db] = grads.buffers([0, 1, 2]);
        with_float!(dy.dtype(), T => {
            let [x, w, stats] = [&saved[0], &saved[1], &saved[2]];
            if let Some(grad) = dx {
                cpu::backward_x::<T>(x, w.read(), stats.read(), dy.read(), grad);
            }
            if dw.is_some() || db.is_some() {
                cpu::backward_affine::<T>(x, stats.read(), dy.read(), dw, db);
            }
        });
    }
}

/// Odd widths, one column block, a mean far from zero, many rows, and rows for each of the kernels: shared by
/// a warp, by a block, beyond its registers.
pub fn cases() -> Vec<Case> {
    let op = LayerNorm { epsilon: 1e-5 };
    let shapes: [&[usize]; 11] = [
        &[3],
        &[5, 7],
        &[2, 3, 17],
        &[129, 96],
        &[35, 256],
        &[3, 385],
        &[19, 1024],
        &[5, 1001],
        &[9, 8200],
        &[2, 8193],
        &[64, 128, 256],
    ];
    let mut cases: Vec<Case> = shapes
        .iter()
        .map(|shape| {
            let h = &shape[shape.len() - 1..];
            Case::new(op, &[shape, h, h])
        })
        .collect();
    cases.push(Case::new(op, &[&[33, 64], &[64], &[64]]).draw(0, Draw::Uniform(20.0, 22.0)));
    cases
}
