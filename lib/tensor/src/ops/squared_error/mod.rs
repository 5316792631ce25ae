//! Weighted mean squared error: L = Σ_b w_b·mean(v ∘ (p_b - t_b)²). p, t [B, .., C], w [B], v [C], L [1].
//!
//! With w_b = 1/B and v = 1, this is the mean squared error. Other weights w balance samples of different scale; other
//! weights v balance channels. dp_b = 2·w_b·v ∘ (p_b - t_b)/n, dt = -dp (n elements per sample). The weights are
//! constants: requesting their gradient is an error.

mod cpu;
pub(crate) mod cuda;

use crate::dtype::{Dtype, Element};
use crate::kernel::ONLY_F32;
use crate::op::{Case, Draw, Grads, Op, Saved};
use crate::tensor::Tensor;
use crate::with_float;

/// Weighted mean squared error; inputs prediction, target, sample weights and channel weights.
#[derive(Clone, Copy, Debug)]
pub struct SquaredError;

impl Op for SquaredError {
    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        match inputs {
            [p, t, [b], [c]] if p == t && p.first() == Some(b) && p.last() == Some(c) => {
                Ok(vec![1])
            }
            _ => Err("takes p and t [B, .., C], w [B] and v [C]".into()),
        }
    }

    fn constants(&self) -> &'static [usize] {
        &[2, 3]
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let [p, t, w, v] = [0, 1, 2, 3].map(|i| inputs[i]);
        with_float!(out.dtype(), T => {
            let means = cpu::means::<T>(p.read(), t.read(), v.read(), w.len());
            let terms = means.iter().zip(w.read::<T>());
            out.write::<T>()[0] = T::of(terms.map(|(m, w)| m.f64() * w.f64()).sum());
        });
        inputs.iter().map(|x| (*x).clone()).collect()
    }

    fn backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let [p, t, w, v] = [0, 1, 2, 3].map(|i| &saved[i]);
        for (i, sign) in [(0, 1.0), (1, -1.0)] {
            if let Some(grad) = grads.buffer(i) {
                with_float!(dy.dtype(), T => {
                    let factor = T::of(2.0 * sign * dy.item());
                    let weights = (w.read::<T>(), v.read::<T>());
                    cpu::backward::<T>(factor, p.read(), t.read(), weights, grad);
                });
            }
        }
    }

    fn dtypes(&self) -> &'static [Dtype] {
        ONLY_F32
    }
}

/// Returns test cases: one element, odd sizes, samples split over several blocks, a large batch.
pub fn cases() -> Vec<Case> {
    [&[1, 1][..], &[3, 7], &[5, 3, 11], &[2, 1500, 3], &[2, 4099, 1], &[64, 64, 129]]
        .iter()
        .map(|shape| {
            Case::new(SquaredError, &[shape, shape, &shape[..1], &shape[shape.len() - 1..]])
                .draw(2, Draw::Constant)
                .draw(3, Draw::Constant)
        })
        .collect()
}
