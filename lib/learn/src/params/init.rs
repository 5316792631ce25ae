//! Random initialisation of parameters.

use tensor::random::Philox;
use tensor::{Dtype, Tensor};

/// Initialiser of a parameter.
#[derive(Clone, Copy, Debug)]
pub enum Init {
    /// Every element set to this value.
    Constant(f64),
    /// Uniform in [-bound, bound].
    Uniform(f64),
    /// Normal with mean 0 and this standard deviation.
    Normal(f64),
    /// Normal with mean 0 and this standard deviation σ, truncated at ±2σ by redrawing (like BERT, and timm's
    /// `trunc_normal_` with a = -2σ, b = 2σ).
    TruncatedNormal(f64),
    /// An embedding [tokens, width]: normal with mean 0 and this standard deviation, and zeros in the row of one token,
    /// such as that of a mask or of padding (PyTorch's `padding_idx`).
    Embedding(f64, usize),
}

impl Init {
    /// PyTorch's default for linear and convolution layers with `fan_in` inputs, for weights and biases alike: uniform
    /// in ±1/√fan_in (`kaiming_uniform_` with a = √5).
    pub fn linear(fan_in: usize) -> Self {
        Self::Uniform(1.0 / (fan_in as f64).sqrt())
    }

    /// Returns the initial values for the parameter with index `id`.
    pub(super) fn values(self, random: &Philox, id: u64, shape: &[usize]) -> Tensor {
        if let Self::Constant(value) = self {
            return Tensor::full(shape, value, Dtype::F32);
        }
        let mut tensor = Tensor::empty(shape, Dtype::F32);
        let count = tensor.len();
        let values = tensor.write::<f32>();
        match self {
            Self::Constant(_) => {}
            Self::Uniform(bound) => {
                random.fill_uniform(id, values);
                let bound = bound as f32;
                values.iter_mut().for_each(|v| *v = bound * (2.0 * *v - 1.0));
            }
            Self::Normal(deviation)
            | Self::TruncatedNormal(deviation)
            | Self::Embedding(deviation, _) => {
                random.fill_normal(id, values);
                let limit = if let Self::TruncatedNormal(_) = self { 2.0 } else { f32::INFINITY };
                for (i, value) in values.iter_mut().enumerate() {
                    // Redraws use counter positions beyond those of the elements.
                    let mut again = (i + count) as u64;
                    while value.abs() > limit {
                        *value = random.normal(id, again);
                        again += count as u64;
                    }
                    *value *= deviation as f32;
                }
            }
        }
        if let (Self::Embedding(_, token), [_, width]) = (self, shape) {
            let rows = values.chunks_exact_mut((*width).max(1));
            rows.skip(token).take(1).for_each(|row| row.fill(0.0));
        }
        tensor
    }
}
