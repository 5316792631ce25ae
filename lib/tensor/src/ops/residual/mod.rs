//! Residual connection with LayerScale: out = x + s ∘ y. x and y [.., H], s [H].
//!
//! With s = 0, x is unchanged, so a model can start as the identity (Touvron et al. 2021).
//! dx = dout, dy = s ∘ dout, ds = Σ over rows of dout ∘ y.

mod cpu;
pub(crate) mod cuda;

use crate::op::{Case, Grads, Op, Saved};
use crate::tensor::Tensor;
use crate::with_float;

/// Adds a scaled branch; inputs x, y, s. For an unscaled branch, use [`crate::ops::binary::Binary::Add`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Residual;

impl Op for Residual {
    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        match inputs {
            [x @ [.., h], y, [s]] if x == y && s == h => Ok(x.to_vec()),
            _ => Err("takes x and y [.., H] and s [H]".into()),
        }
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let [x, y, s] = [inputs[0], inputs[1], inputs[2]];
        with_float!(out.dtype(), T => cpu::forward::<T>(x.read(), y.read(), s.read(), out.write()));
        vec![y.clone(), s.clone()]
    }

    fn backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let ([y, s], buffers) = ([&saved[0], &saved[1]], grads.buffers([1, 2]));
        with_float!(dy.dtype(), T => cpu::backward::<T>(y.read(), s.read(), dy.read(), buffers));
        grads.accumulate(0, dy);
    }
}

/// Returns test cases: odd sizes, rows split over several blocks.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new(Residual, &[&[3, 5], &[3, 5], &[5]]),
        Case::new(Residual, &[&[65, 33, 7], &[65, 33, 7], &[7]]),
        Case::new(Residual, &[&[150, 264], &[150, 264], &[264]]),
        Case::new(Residual, &[&[64, 128, 256], &[64, 128, 256], &[256]]),
    ]
}
