//! Weighted mean squared error: L = Σ_b w_b·mean((p_b - t_b)²). p, t [B, ..], w [B], L [1].
//!
//! With w_b = 1/B this is the mean squared error; other weights make samples of different scale
//! count alike. dp_b = 2·w_b·(p_b - t_b)/n, dt = -dp, dw_b = mean((p_b - t_b)²); n elements a sample.

mod cpu;

use crate::dtype::Float;
use crate::op::{Case, Grads, Op, Saved};
use crate::tensor::Tensor;
use crate::with_float;

/// Weighted mean squared error; inputs prediction, target, weights.
#[derive(Clone, Copy, Debug)]
pub struct SquaredError;

impl Op for SquaredError {
    fn name(&self) -> &'static str {
        "squared_error"
    }

    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        match inputs {
            [p, t, [b]] if p == t && p.first() == Some(b) => Ok(vec![1]),
            _ => Err("takes p and t [B, ..] and w [B]".into()),
        }
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let [p, t, w] = [inputs[0], inputs[1], inputs[2]];
        let mut means = Tensor::arbitrary(w.shape(), w.dtype());
        with_float!(out.dtype(), T => {
            cpu::means::<T>(p.read(), t.read(), means.write());
            let terms = means.read::<T>().iter().zip(w.read::<T>());
            out.write::<T>()[0] = T::of(terms.map(|(m, w)| m.f64() * w.f64()).sum());
        });
        vec![p.clone(), t.clone(), w.clone(), means]
    }

    fn backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let (p, t, w) = (&saved[0], &saved[1], &saved[2]);
        for (i, sign) in [(0, 1.0), (1, -1.0)] {
            if let Some(mut slot) = grads.take(i) {
                with_float!(dy.dtype(), T => {
                    let factor = T::of(2.0 * sign * dy.item());
                    cpu::backward::<T>(factor, p.read(), t.read(), w.read(), &mut slot);
                });
                grads.put(i, slot);
            }
        }
        if let Some(mut slot) = grads.take(2) {
            with_float!(dy.dtype(), T => {
                let (dw, means, dy) = (slot.zeroed::<T>(), saved[3].read::<T>(), T::of(dy.item()));
                dw.iter_mut().zip(means).for_each(|(d, m)| *d += dy * *m);
            });
            grads.put(2, slot);
        }
    }
}

/// One element, odd sizes, a large batch.
pub fn cases() -> Vec<Case> {
    [&[1, 1][..], &[3, 7], &[5, 3, 11], &[64, 64, 129]]
        .iter()
        .map(|shape| Case::new(SquaredError, &[shape, shape, &shape[..1]]))
        .collect()
}
