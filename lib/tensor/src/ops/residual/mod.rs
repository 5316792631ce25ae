//! Residual connection: out = x + y or, with LayerScale, out = x + s ∘ y. x and y [.., H], s [H].
//!
//! Zero s leaves x unchanged, so a model can start as the identity (Touvron et al. 2021).
//! dx = dout, dy = s ∘ dout, ds = Σ over rows of dout ∘ y.

mod cpu;
pub(crate) mod cuda;

use crate::op::{Case, Grads, Op, Saved};
use crate::tensor::Tensor;
use crate::with_float;

/// How the branch is scaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residual {
    /// Not scaled; inputs x, y.
    Plain,
    /// By a vector; inputs x, y, s.
    Scaled,
}

impl Op for Residual {
    fn name(&self) -> &'static str {
        "residual"
    }

    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        match (self, inputs) {
            (Residual::Plain, [x, y]) if x == y => Ok(x.to_vec()),
            (Residual::Scaled, [x @ [.., h], y, [s]]) if x == y && s == h => Ok(x.to_vec()),
            _ => Err("takes x and y [.., H] and, if scaled, s [H]".into()),
        }
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let (x, y) = (inputs[0], inputs[1]);
        let Some(s) = inputs.get(2) else {
            with_float!(out.dtype(), T => cpu::plain::<T>(x.read(), y.read(), out.write()));
            return vec![];
        };
        with_float!(out.dtype(), T => cpu::scaled::<T>(x.read(), y.read(), s.read(), out.write()));
        vec![y.clone(), (*s).clone()]
    }

    fn backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        if let [y, s] = &saved[..] {
            let buffers = grads.buffers([1, 2]);
            with_float!(dy.dtype(), T => {
                cpu::backward::<T>(y.read(), s.read(), dy.read(), buffers);
            });
        } else {
            grads.accumulate(1, dy.clone());
        }
        grads.accumulate(0, dy);
    }
}

/// With and without a scale, odd sizes, rows split over several blocks.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new(Residual::Plain, &[&[3, 5], &[3, 5]]),
        Case::new(Residual::Scaled, &[&[3, 5], &[3, 5], &[5]]),
        Case::new(Residual::Scaled, &[&[65, 33, 7], &[65, 33, 7], &[7]]),
        Case::new(Residual::Plain, &[&[33, 67], &[33, 67]]),
        Case::new(Residual::Scaled, &[&[150, 264], &[150, 264], &[264]]),
        Case::new(Residual::Scaled, &[&[64, 128, 256], &[64, 128, 256], &[256]]),
    ]
}
