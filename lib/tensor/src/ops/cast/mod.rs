//! Cast to another dtype with rounding to nearest, for mixed precision: y = x, any shape. The gradient is cast back to
//! the dtype of x.
//!
//! Reads and writes each element once. f64 stays f64, because checks compute in f64 and must be exact.

pub(crate) mod cuda;

use crate::dtype::Dtype;
use crate::op::{Case, Grads, Op, Saved};
use crate::tensor::Tensor;

/// Cast to the given dtype.
#[derive(Clone, Copy, Debug)]
pub struct Cast(pub Dtype);

/// Casts `from` to the dtype of `to`, a tensor of the same length on the same device.
///
/// # Panics
/// If the lengths differ or the tensors are on the host; there, use [`Tensor::to_dtype`].
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

/// Returns test cases: one element, odd sizes. They cast to f32, which is exact here; the tests below cover 16 bits.
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
