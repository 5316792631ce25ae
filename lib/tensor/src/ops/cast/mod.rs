//! Conversion to another dtype, rounded to nearest: mixed precision casts from f32 to 16 bits and back. y = x, any
//! shape; the gradient is cast back to the dtype of x.
//!
//! Moves an element of each type. f64 stays f64, because checks run in it and must be exact.

pub(crate) mod cuda;

use crate::dtype::Dtype;
use crate::op::{Case, Grads, Op, Saved};
use crate::tensor::Tensor;

/// Casts to this dtype.
#[derive(Clone, Copy, Debug)]
pub struct Cast(pub Dtype);

/// Writes `from` into a tensor of another dtype and the same length, on the same device.
///
/// # Panics
/// On the host; there, use [`Tensor::to_dtype`].
pub fn convert(from: &Tensor, to: &mut Tensor) {
    assert_eq!(from.len(), to.len(), "converting {from:?} to {to:?}");
    cuda::cast(from, to, false);
}

impl Op for Cast {
    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        match inputs {
            [x] => Ok(x.to_vec()),
            _ => Err("takes one input".into()),
        }
    }

    fn output_dtype(&self, compute: Dtype) -> Dtype {
        if compute == Dtype::F64 { Dtype::F64 } else { self.0 }
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        *out = inputs[0].to_dtype(out.dtype());
        vec![]
    }

    fn backward(&self, _saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let dtype = grads.dtype(0);
        grads.accumulate(0, dy.to_dtype(dtype));
    }
}

/// One element, odd sizes. To f32, which f32 and f64 survive unchanged; the tests below cover the others.
pub fn cases() -> Vec<Case> {
    [&[1][..], &[3, 37], &[64, 129]]
        .iter()
        .map(|shape| Case::new(Cast(Dtype::F32), &[shape]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tape::Tape;

    #[test]
    fn values_are_rounded_and_gradients_come_back_in_the_type_of_the_input() {
        let x = Tensor::from_slice(&[1.0_f32, 1.003_906_3, -2.718_75, 65504.0, 1e-8], &[5]);
        for dtype in [Dtype::Bf16, Dtype::F16] {
            let tape = Tape::new();
            let leaf = tape.leaf(x.clone());
            let half = tape.apply(Cast(dtype), &[&leaf]).unwrap();
            let back = tape.apply(Cast(Dtype::F32), &[&half]).unwrap();
            assert_eq!(half.value().dtype(), dtype);
            assert_eq!(half.value().to_f64(), x.to_dtype(dtype).to_f64());
            assert_eq!(back.value().to_f64(), half.value().to_f64());
            let dy = Tensor::from_slice(&[1.0_f32, 2.0, -0.5, 0.25, 3.0], &[5]);
            let gradient = tape.backward_from(&back, dy.clone()).unwrap().take(&leaf).unwrap();
            assert_eq!(gradient.read::<f32>(), dy.read::<f32>(), "{dtype}");
        }
    }
}
