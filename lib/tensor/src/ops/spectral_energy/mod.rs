//! Relative difference of spectral energy: L = mean over samples b of |E(p_b) - E(t_b)|/(E(t_b) + 1e-8), where E
//! is the mean of |rFFT over tokens|² over frequencies 0..=⌊T/2⌋ and channels. p, t [B, T, C], L [1].
//!
//! No transform is needed: by Parseval's theorem the sum over those frequencies is
//! (T·Σ_t x_t² + X_0² + [T even]·X_{T/2}²)/2 with X_0 = Σ x_t, X_{T/2} = Σ (-1)^t x_t, so
//! dE/dx_t is proportional to T·x_t + X_0 + [T even]·(-1)^t·X_{T/2}.

mod cpu;
pub(crate) mod cuda;

use crate::dtype::{Dtype, Element};
use crate::kernel::ONLY_F32;
use crate::op::{Case, Grads, Op, Saved};
use crate::tensor::Tensor;
use crate::with_float;

/// Keeps a target without energy finite.
const EPSILON: f64 = 1e-8;

/// Relative difference of spectral energy; inputs prediction and target.
#[derive(Clone, Copy, Debug)]
pub struct SpectralEnergy;

/// Number of terms in the mean of a sample.
fn terms(shape: &[usize]) -> f64 {
    ((shape[1] / 2 + 1) * shape[2]) as f64
}

impl Op for SpectralEnergy {
    fn name(&self) -> &'static str {
        "spectral_energy"
    }

    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        match inputs {
            [p @ [b, _, _], t] if p == t && *b > 0 => Ok(vec![1]),
            _ => Err("takes p and t [B, T, C]".into()),
        }
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let [p, t] = [inputs[0], inputs[1]];
        let samples = p.shape()[0];
        let mut energy = Tensor::arbitrary(&[samples, 2], out.dtype());
        with_float!(out.dtype(), T => {
            let [p, t] = [p, t].map(|x| cpu::energies::<T>(x.shape(), x.read()));
            let mut sum = 0.0;
            for ((ep, et), energy) in p.zip(t).zip(energy.write::<T>().chunks_exact_mut(2)) {
                let [ep, et] = [ep, et].map(|e| e / terms(inputs[0].shape()));
                energy.copy_from_slice(&[T::of(ep), T::of(et)]);
                sum += (ep - et).abs() / (et + EPSILON);
            }
            out.write::<T>()[0] = T::of(sum / samples as f64);
        });
        vec![p.clone(), t.clone(), energy]
    }

    fn backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let energy = saved[2].to_f64();
        let shape = saved[0].shape();
        let share = dy.item() / (shape[0] as f64 * terms(shape));
        for i in 0..2 {
            if let Some(grad) = grads.buffer(i) {
                let factors: Vec<f64> = energy
                    .chunks_exact(2)
                    .map(|energy| {
                        let (ep, et) = (energy[0], energy[1]);
                        let sign = if ep > et { 1.0 } else { -1.0 };
                        let d = et + EPSILON;
                        // The second is -sign/d - |ep - et|/d², without the cancellation.
                        share * [sign / d, -sign * (ep + EPSILON) / (d * d)][i]
                    })
                    .collect();
                with_float!(dy.dtype(), T => {
                    cpu::backward::<T>(&factors, shape, saved[i].read(), grad);
                });
            }
        }
    }

    fn dtypes(&self) -> &'static [Dtype] {
        ONLY_F32
    }
}

/// Even and odd numbers of tokens, one token, samples that several blocks share.
pub fn cases() -> Vec<Case> {
    [[1, 1, 1], [2, 7, 3], [3, 8, 5], [2, 71, 70], [2, 90, 50], [64, 64, 16]]
        .iter()
        .map(|shape| Case::new(SpectralEnergy, &[shape, shape]))
        .collect()
}
