//! Relative error: L = mean over samples of ‖p - t‖/√(‖t‖² + ε). p, t [B, ..], L [1]; t is a constant.
//!
//! With e = ‖p - t‖/√D and D = ‖t‖² + ε: de/dp = (p - t)/(D·e), taken as zero at a perfect prediction.

mod cpu;
pub(crate) mod cuda;

use crate::dtype::{Dtype, Element};
use crate::kernel::ONLY_F32;
use crate::op::{Case, Draw, Grads, Op, Saved};
use crate::tensor::Tensor;
use crate::with_float;

/// Relative error; inputs prediction and target.
#[derive(Clone, Copy, Debug)]
pub struct RelativeError {
    /// ε, which keeps the error finite for a zero target.
    pub epsilon: f64,
}

impl Op for RelativeError {
    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        match inputs {
            [p, t] if p == t && p.first().is_some_and(|b| *b > 0) => Ok(vec![1]),
            _ => Err("takes p and t of equal shape".into()),
        }
    }

    fn constants(&self) -> &'static [usize] {
        &[1]
    }

    fn dtypes(&self) -> &'static [Dtype] {
        ONLY_F32
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let [p, t] = [inputs[0], inputs[1]];
        let samples = p.shape()[0];
        // e and D of each sample.
        let mut terms = Tensor::empty(&[samples, 2], p.dtype());
        with_float!(out.dtype(), T => {
            cpu::terms::<T>(self.epsilon, p.read(), t.read(), terms.write());
            let total: f64 = terms.read::<T>().chunks_exact(2).map(|x| x[0].f64()).sum();
            out.write::<T>()[0] = T::of(total / samples as f64);
        });
        vec![p.clone(), t.clone(), terms]
    }

    fn backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        if let Some(grad) = grads.buffer(0) {
            with_float!(dy.dtype(), T => {
                let [p, t, terms] = [0, 1, 2].map(|i| saved[i].read::<T>());
                cpu::backward::<T>(T::of(dy.item()), p, t, terms, grad);
            });
        }
    }
}

/// Returns test cases: one element per sample, odd sizes, samples split over several blocks.
pub fn cases() -> Vec<Case> {
    let op = RelativeError { epsilon: 1e-8 };
    [&[4, 1][..], &[3, 7], &[5, 3, 11], &[3, 2733, 3], &[2, 4100, 1], &[64, 64, 129]]
        .iter()
        .map(|shape| Case::new(op, &[shape, shape]).draw(1, Draw::Constant))
        .collect()
}
