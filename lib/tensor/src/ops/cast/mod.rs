//! Cast to another dtype with rounding to nearest, for mixed precision: y = x, any shape. The gradient is cast back to
//! the dtype of x.
//!
//! Reads and writes each element once. f64 stays f64, because checks compute in f64 and must be exact.

pub(crate) mod cuda;

use crate::device::Device;
use crate::dtype::Dtype;
use crate::nf4::widen;
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

/// Casts all tensors at once where that is faster than one by one: f32 to 16 bits, on a device. Otherwise `None`.
pub(crate) fn convert_all(from: &[&Tensor], dtype: Dtype) -> Option<Vec<Tensor>> {
    let device = from.first()?.device();
    let is_f32 = |tensor: &&Tensor| tensor.dtype() == Dtype::F32 && tensor.device() == device;
    let is_possible = device != Device::Cpu && dtype.bytes() == 2 && from.iter().all(is_f32);
    if is_possible { cuda::cast_all(device, from, dtype) } else { None }
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

    fn kept(&self, _inputs: &[&Tensor], _out: &Tensor) -> Saved {
        vec![]
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        match (inputs[0].dtype(), out.dtype()) {
            // The table of a large vocabulary, which is frozen in 16 bits: on all threads.
            (Dtype::Bf16 | Dtype::F16, Dtype::F32) => widen::<f32>(inputs[0], out.write()),
            (_, dtype) => *out = inputs[0].to_dtype(dtype),
        }
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

#[cfg(all(test, feature = "emu"))]
mod tests {
    use super::*;
    use crate::check::{self, draw};
    use crate::op::Draw;
    use crate::ops::activation::Activation;
    use crate::ops::linear::Linear;
    use crate::tape::{Tape, Var, constant};

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

    #[test]
    fn many_tensors_are_cast_at_once_as_one_by_one() {
        let shapes: [&[usize]; 6] = [&[1], &[3, 37], &[4096], &[4097], &[0], &[70, 131]];
        let host: Vec<Tensor> =
            (0..).zip(shapes).map(|(i, shape)| draw(shape, &Draw::Normal, 3, i)).collect();
        let on = |t: &Tensor| t.to_dtype(Dtype::F32).to_device(Device::Emu).unwrap();
        let tensors: Vec<Tensor> = host.iter().map(on).collect();
        for dtype in [Dtype::Bf16, Dtype::F16] {
            let cast = convert_all(&tensors.iter().collect::<Vec<_>>(), dtype).unwrap();
            for (from, to) in tensors.iter().zip(&cast) {
                let from = from.to_host().unwrap();
                assert_eq!((to.shape(), to.dtype()), (from.shape(), dtype));
                let (found, expected) = (to.to_host().unwrap(), from.to_dtype(dtype));
                let wrong = found.to_f64().iter().zip(expected.to_f64()).position(|(a, b)| *a != b);
                assert_eq!(wrong, None, "{dtype} {:?}", from.shape());
            }
        }
        assert!(convert_all(&host.iter().collect::<Vec<_>>(), Dtype::Bf16).is_none());
    }

    /// The gradients of the f32 weight and bias of a linear layer that computes in `dtype`, recorded or recomputed, and
    /// the same in f64.
    fn gradients(dtype: Dtype, rows: usize, again: bool) -> Vec<[Tensor; 2]> {
        let (shapes, normal) = ([&[24, 16][..], &[24]], Draw::Normal);
        let to = |t: &Tensor, dtype| t.to_dtype(dtype).to_device(Device::Emu).unwrap();
        let tape = Tape::new();
        let leaf = |(i, shape)| tape.leaf(to(&draw(shape, &normal, 5, i), Dtype::F32));
        let leaves: Vec<Var> = (0..).zip(shapes).map(leaf).collect();
        let [x, dy] =
            [(7, 16), (8, 24)].map(|(i, n)| draw(&[rows, n], &normal, 5, i).to_dtype(dtype));
        let input = constant(to(&x, dtype));
        let weights = tape.cast_all(&leaves.iter().collect::<Vec<_>>(), dtype).unwrap();
        let layer = move |tape: &Tape, w: &[Var]| {
            tape.apply(
                Linear { bias: true, activation: Activation::Identity },
                &[&input, &w[0], &w[1]],
            )
        };
        let y = if again {
            let whole = layer(&Tape::without_gradients(), &weights).unwrap();
            let inputs: Vec<&Var> = weights.iter().collect();
            tape.recomputed(whole.value().clone(), &inputs, Box::new(layer)).unwrap()
        } else {
            layer(&tape, &weights).unwrap()
        };
        let mut found = tape.backward_from(&y, to(&dy, dtype)).unwrap();
        let (x, dy) = (x.to_f64(), dy.to_f64());
        let dw = (0..24 * 16)
            .map(|at| (0..rows).map(|r| dy[r * 24 + at / 16] * x[r * 16 + at % 16]).sum());
        let db = (0..24).map(|n| (0..rows).map(|r| dy[r * 24 + n]).sum());
        let expected: [Vec<f64>; 2] = [dw.collect(), db.collect()];
        let pair = |(leaf, expected): (&Var, Vec<f64>)| {
            let found = found.take(leaf).unwrap().to_host().unwrap();
            [found, Tensor::from_slice(&expected, leaf.shape())]
        };
        leaves.iter().zip(expected).map(pair).collect()
    }

    /// Products of 16-bit numbers are exact in f32, so only the sum over rows is rounded; a gradient in bf16 or f16
    /// would be 2^8 or 2^11 wide.
    #[test]
    fn gradients_of_cast_weights_are_not_rounded_to_16_bits() {
        for (dtype, rows) in [(Dtype::Bf16, 5), (Dtype::F16, 700)] {
            let found = gradients(dtype, rows, false);
            for [found, expected] in &found {
                assert_eq!(found.dtype(), Dtype::F32);
                let size = |t: &Tensor| t.to_f64().iter().map(|x| x.abs()).fold(0.0, f64::max);
                let difference = check::difference(found, expected);
                let bound = rows as f64 * Dtype::F32.roundoff() * size(expected);
                assert!(difference <= bound, "{dtype}, {rows} rows: {difference} above {bound}");
            }
            for ([found, _], [again, _]) in found.iter().zip(gradients(dtype, rows, true)) {
                assert_eq!(found.read::<f32>(), again.read::<f32>(), "{dtype}, recomputed");
            }
        }
    }
}
