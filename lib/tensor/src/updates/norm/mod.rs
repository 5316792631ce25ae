//! Global norm of gradients, for clipping and for the check that an update is finite.

pub(crate) mod cuda;

use crate::device::Device;
use crate::dtype::Float;
use crate::parallel::{BLOCK_ELEMENTS, reduce};
use crate::simd::{LANES, fold};
use crate::tensor::Tensor;
use crate::vectorize;
use crate::with_float;
use unix::Result;

/// √Σ x² over all elements of all tensors, summed in f64; not finite when any element is not. Errors:
/// what has gone wrong on the device where the tensors are, which is waited for.
pub fn global_norm<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> Result<f64> {
    let mut tensors = tensors.into_iter().peekable();
    match tensors.peek().map(|x| x.device()) {
        None | Some(Device::Cpu) => Ok(on_host(tensors)),
        Some(device) => Ok(cuda::squares(device, tensors).to_host()?.item().sqrt()),
    }
}

/// [`global_norm`] of tensors on the host.
pub(super) fn on_host<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> f64 {
    let squares = |x: &Tensor| with_float!(x.dtype(), T => on_cpu::<T>(x.read()));
    tensors.into_iter().map(squares).sum::<f64>().sqrt()
}

/// What gradients are multiplied with so that their norm is at most `max_norm`, as PyTorch computes
/// it: min(1, max_norm/(norm + 1e-6)).
pub fn clip_scale(norm: f64, max_norm: f64) -> f64 {
    (max_norm / (norm + 1e-6)).min(1.0)
}

fn on_cpu<T: Float>(x: &[T]) -> f64 {
    let mut total = [0.0_f64];
    reduce(x.len(), BLOCK_ELEMENTS, &mut total, |range, total| {
        let x = &x[range];
        let mut lanes = [0.0; LANES];
        vectorize!({
            let chunks = x.chunks_exact(LANES);
            for (lane, x) in lanes.iter_mut().zip(chunks.remainder()) {
                *lane += x.f64() * x.f64();
            }
            for chunk in chunks {
                for (lane, x) in lanes.iter_mut().zip(chunk) {
                    *lane += x.f64() * x.f64();
                }
            }
        });
        total[0] += fold(&lanes);
    });
    total[0]
}
