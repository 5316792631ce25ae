//! Kernels: a product with the matrix of cosines and sines, which each device keeps, and magnitudes.

use super::{Spectrum, cpu};
use crate::args;
use crate::device::Device;
use crate::dtype::Dtype;
use crate::kernel::product::{Matrix, Product};
use crate::kernel::{self, ALL_ELEMENTS, Grid, Source};
use crate::op::{Grads, Launch, Saved};
use crate::tensor::Tensor;
use std::sync::{Mutex, PoisonError};

/// The kernels of the magnitudes.
pub static SOURCE: Source =
    Source { name: "spectrum", text: include_str!("spectrum.cu"), elements: ALL_ELEMENTS };

/// Threads of a block.
const THREADS: usize = 256;

/// The transforms in use: they are made on the host and taken to a device once.
static TRANSFORMS: Mutex<Vec<(usize, Dtype, Tensor)>> = Mutex::new(Vec::new());

/// F [2·frequencies, n]: see [`cpu::transform`].
fn transform(n: usize, dtype: Dtype, device: Device) -> Tensor {
    // A push is whole or did not happen.
    let mut kept = TRANSFORMS.lock().unwrap_or_else(PoisonError::into_inner);
    let is_it = |(m, d, f): &&(usize, Dtype, Tensor)| (*m, *d, f.device()) == (n, dtype, device);
    if let Some((_, _, f)) = kept.iter().find(is_it) {
        return f.clone();
    }
    let shape = [2 * (n / 2 + 1), n];
    let f = Tensor::of(&cpu::transform::<f64>(n), &shape).to_dtype(dtype);
    match f.to_device(device) {
        Ok(f) => {
            // On a device with an error nothing was copied.
            if kernel::is_sound(device) {
                kept.push((n, dtype, f.clone()));
            }
            f
        }
        Err(error) => {
            kernel::fail(device, error);
            Tensor::arbitrary_on(device, &shape, dtype)
        }
    }
}

impl Launch for Spectrum {
    /// Saves the parts, in f32.
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let (x, epsilon) = (inputs[0], self.epsilon);
        let (rows, n, k) = (x.rows(), x.width(), out.width());
        let f = transform(n, x.dtype(), x.device());
        let mut parts = Tensor::arbitrary_on(x.device(), &[rows, 2 * k], Dtype::F32);
        Product::new(Matrix::new(x, rows, n), Matrix::new(&f, 2 * k, n).transposed())
            .write_f32(&mut parts);
        SOURCE.launch(
            x.dtype(),
            "spectrum_magnitude",
            Grid::new((rows * k).div_ceil(THREADS), THREADS),
            args![&parts, out, rows, k, (epsilon * epsilon) as f32],
        );
        vec![parts]
    }

    fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let Some(grad) = grads.buffer(0) else { return };
        let (parts, epsilon) = (&saved[0], self.epsilon);
        let (rows, k, n) = (parts.rows(), dy.width(), grad.tensor.width());
        let f = transform(n, dy.dtype(), dy.device());
        let mut d = Tensor::arbitrary_on(dy.device(), parts.shape(), dy.dtype());
        SOURCE.launch(
            dy.dtype(),
            "spectrum_backward",
            Grid::new((rows * k).div_ceil(THREADS), THREADS),
            args![parts, &dy, &mut d, rows, k, (epsilon * epsilon) as f32],
        );
        Product::new(Matrix::new(&d, rows, 2 * k), Matrix::new(&f, 2 * k, n)).put(grad);
    }
}
