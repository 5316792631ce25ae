//! Magnitude of the real Fourier transform over the last axis: y_k = √(Re_k² + Im_k² + ε²),
//! k = 0..=⌊N/2⌋. x [.., N], y [.., ⌊N/2⌋ + 1].
//!
//! The transform of these short axes is a product with the matrix of cosines and sines. ε keeps the
//! derivative finite where the magnitude is zero. dRe = dy·Re/y, dIm = dy·Im/y, dx = (dRe, dIm)·F.

mod cpu;
pub(crate) mod cuda;

use crate::op::{Case, Grads, Op, Saved};
use crate::tensor::Tensor;
use crate::with_float;

/// Magnitude of the real Fourier transform over the last axis.
#[derive(Clone, Copy, Debug)]
pub struct Spectrum {
    /// ε.
    pub epsilon: f64,
}

impl Op for Spectrum {
    fn name(&self) -> &'static str {
        "spectrum"
    }

    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        match inputs {
            [[rows @ .., n]] if *n > 0 => Ok([rows, &[n / 2 + 1]].concat()),
            _ => Err("takes x [.., N] with N > 0".into()),
        }
    }

    fn operations(&self, inputs: &[&[usize]]) -> usize {
        let n = inputs[0].last().copied().unwrap_or(0);
        4 * inputs[0].iter().product::<usize>() * (n / 2 + 1)
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let x = inputs[0];
        let mut parts = Tensor::arbitrary(&[x.rows(), 2 * out.width()], x.dtype());
        with_float!(x.dtype(), T => cpu::forward::<T>(self.epsilon, x, parts.write(), out.write()));
        vec![parts, out.clone()]
    }

    fn backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        if let Some(grad) = grads.buffer(0) {
            with_float!(dy.dtype(), T => cpu::backward::<T>(&saved[0], &saved[1], dy.read(), grad));
        }
    }
}

/// Even and odd lengths, length one; ε large enough for finite differences to see a smooth function.
pub fn cases() -> Vec<Case> {
    let op = Spectrum { epsilon: 0.5 };
    [&[1][..], &[3, 7], &[2, 5, 8], &[129, 33], &[70, 100], &[4096, 16]]
        .iter()
        .map(|shape| Case::new(op, &[shape]))
        .collect()
}
