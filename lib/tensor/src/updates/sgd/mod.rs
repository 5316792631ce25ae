//! Stochastic gradient descent with momentum, in PyTorch's form: g ← g + λθ; b ← μb + g (b = g at
//! the first step); θ ← θ - η·b.

mod cpu;

use crate::tensor::Tensor;
use crate::with_float;

/// The constants of one step.
#[derive(Clone, Copy, Debug)]
pub struct Sgd {
    /// η.
    pub learning_rate: f64,
    /// μ.
    pub momentum: f64,
    /// λ, added to the gradient.
    pub weight_decay: f64,
}

impl Sgd {
    /// One step of one parameter; the gradient is multiplied with `scale` first (clipping). A zero
    /// momentum buffer makes the first step the same as the later ones.
    pub fn apply(&self, scale: f64, g: &Tensor, p: &mut Tensor, b: &mut Tensor) {
        with_float!(p.dtype(), T => cpu::apply::<T>(self, scale, g.read(), p.write(), b.write()));
    }
}
