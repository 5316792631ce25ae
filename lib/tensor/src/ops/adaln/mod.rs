//! Layer normalisation whose scale and shift depend on a condition (Peebles & Xie 2023):
//! y = (1 + γ_g) ∘ n + β_g with n as in `layernorm`, no weights of its own.
//!
//! x [G.., H] where the leading axes split into G groups of equal size (a sample each); m [G, S·H]
//! holds S vectors a group; γ is the `scale`-th, β the `shift`-th of them. Zero m is plain
//! normalisation: the op starts exactly neutral. dγ = Σ over the group of dy ∘ n, dβ = Σ dy.

mod cpu;
pub(crate) mod cuda;

use crate::op::{Case, Grads, Op, Saved};
use crate::tensor::Tensor;
use crate::with_float;

/// Adaptive layer normalisation.
#[derive(Clone, Copy, Debug)]
pub struct AdaLn {
    /// ε, added to the variance.
    pub epsilon: f64,
    /// Which vector of m is β.
    pub shift: usize,
    /// Which vector of m is γ.
    pub scale: usize,
}

impl Op for AdaLn {
    fn name(&self) -> &'static str {
        "adaln"
    }

    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        let [x, [groups, m]] = inputs else {
            return Err("takes x [G.., H] and m [G, S·H]".into());
        };
        match x {
            [g, .., h] if g % groups == 0 && m % h == 0 && self.shift.max(self.scale) < m / h => {
                Ok(x.to_vec())
            }
            _ => Err("m must hold shift and scale for groups that divide x's first axis".into()),
        }
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let [x, m] = [inputs[0], inputs[1]];
        let mut stats = Tensor::arbitrary(&[x.rows(), 2], x.dtype());
        with_float!(x.dtype(), T => cpu::forward::<T>(*self, x, m, stats.write(), out.write()));
        vec![x.clone(), m.clone(), stats]
    }

    fn backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let [dx, dm] = grads.buffers([0, 1]);
        with_float!(dy.dtype(), T => {
            let stats = saved[2].read::<T>();
            cpu::backward::<T>(*self, &saved[0], &saved[1], stats, dy.read(), dx, dm);
        });
    }
}

/// One group, several, a group of one row, unused vectors in m, groups and rows that several blocks share.
pub fn cases() -> Vec<Case> {
    let op = |shift, scale| AdaLn { epsilon: 1e-5, shift, scale };
    vec![
        Case::new(op(0, 1), &[&[1, 5], &[1, 10]]),
        Case::new(op(1, 0), &[&[3, 7, 5], &[3, 10]]),
        Case::new(op(2, 4), &[&[4, 17], &[2, 17 * 6]]),
        Case::new(op(3, 5), &[&[5, 3, 4, 33], &[5, 33 * 6]]),
        Case::new(op(1, 2), &[&[2, 70, 24], &[2, 24 * 3]]),
        Case::new(op(0, 1), &[&[2, 9, 600], &[2, 1200]]),
        Case::new(op(1, 0), &[&[2, 5, 8200], &[2, 16400]]),
        Case::new(op(0, 1), &[&[64, 128, 256], &[64, 512]]),
    ]
}
