//! Global gradient norm, for clipping and for checking that an update is finite.

use crate::args;
use crate::device::Device;
use crate::dtype::{Dtype, Float};
use crate::kernel::table::{Entry, THREADS, Table};
use crate::kernel::{Grid, ONLY_F32, Source, source};
use crate::parallel::{BLOCK_ELEMENTS, reduce};
use crate::simd::{LANES, fold};
use crate::tensor::Tensor;
use crate::vectorize;
use crate::with_float;
use unix::Result;

/// Source of the norm kernels.
pub(crate) static SOURCE: Source = source!("norm", ONLY_F32);

/// Returns √Σ x² over all elements of all tensors, summed in f64; not finite if any element is not. Synchronizes with
/// the device of the tensors. Errors: device errors.
pub fn global_norm<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> Result<f64> {
    let mut tensors = tensors.into_iter().peekable();
    match tensors.peek().map(|x| x.device()) {
        None | Some(Device::Cpu) => Ok(on_host(tensors)),
        Some(device) => Ok(square(device, tensors).to_host()?.item().sqrt()),
    }
}

/// Returns Σ x² over all elements of all tensors on `device`: f64 [1].
pub fn square<'a>(device: Device, tensors: impl IntoIterator<Item = &'a Tensor>) -> Tensor {
    let mut tensors = tensors.into_iter().peekable();
    if device == Device::Cpu {
        return Tensor::scalar(sum_on_host(tensors));
    }
    if tensors.peek().is_none() {
        return Tensor::zeros_on(device, &[1], Dtype::F64);
    }
    let (sums, pieces) = squares_of_pieces(device, tensors);
    let mut total = Tensor::empty_on(device, &[1], Dtype::F64);
    let args = args![&sums, &mut total, pieces];
    SOURCE.launch(Dtype::F32, "norm_total", Grid::new(1, THREADS), args);
    total
}

/// Like [`square`], but returns partial sums, whose number depends on the tensors, for
/// [`super::decision::StepPolicy::decide_on_device`].
pub fn squares(device: Device, tensors: &[Tensor]) -> Tensor {
    match device {
        Device::Cpu => square(device, tensors),
        _ => squares_of_pieces(device, tensors).0,
    }
}

/// Returns Σ x² over each piece of all tensors on a device, in f64, and the number of pieces.
pub(super) fn squares_of_pieces<'a>(
    device: Device,
    tensors: impl IntoIterator<Item = &'a Tensor>,
) -> (Tensor, usize) {
    let entry = |x: &Tensor| Entry::new(x.len(), [x.address()]);
    let table = Table::new(device, tensors.into_iter().map(entry));
    let mut sums = Tensor::empty_on(device, &[table.blocks], Dtype::F64);
    table.launch(&SOURCE, Dtype::F32, "norm_squares", args![&mut sums]);
    (sums, table.blocks)
}

/// Computes [`global_norm`] for tensors on the host.
pub(super) fn on_host<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> f64 {
    sum_on_host(tensors).sqrt()
}

fn sum_on_host<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> f64 {
    tensors.into_iter().map(|x| with_float!(x.dtype(), T => on_cpu::<T>(x.read()))).sum()
}

/// Returns the factor that limits the gradient norm to `max_norm`, as in PyTorch: min(1, max_norm/(norm + 1e-6)).
pub fn clip_scale(norm: f64, max_norm: f64) -> f64 {
    (max_norm / (norm + 1e-6)).min(1.0)
}

fn on_cpu<T: Float>(x: &[T]) -> f64 {
    let mut total = [0.0_f64];
    reduce(x.len(), BLOCK_ELEMENTS, &mut total, |range, total| {
        let x = &x[range];
        // The sums must be local to the vectorized code: memory outside it is written after every addition.
        let lanes = vectorize!({
            let mut lanes = [0.0; LANES];
            let (chunks, rest) = x.as_chunks::<LANES>();
            for (lane, x) in lanes.iter_mut().zip(rest) {
                *lane += x.f64() * x.f64();
            }
            for chunk in chunks {
                for (lane, x) in lanes.iter_mut().zip(chunk) {
                    *lane += x.f64() * x.f64();
                }
            }
            lanes
        });
        total[0] += fold(&lanes);
    });
    total[0]
}
