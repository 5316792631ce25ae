//! Kernels: a product with bias and activation in its epilogue; backward, one pass for the slope and
//! the sums of the bias, then two products.

use super::Linear;
use crate::args;
use crate::dtype::Dtype;
use crate::kernel::product::{Epilogue, Matrix, Product};
use crate::kernel::{ALL_ELEMENTS, Grid, Source, columns};
use crate::op::{GradBuffer, Grads, Launch, Saved};
use crate::ops::activation::Activation;
use crate::tensor::Tensor;

/// The kernel of the slope.
pub static SOURCE: Source =
    Source { name: "linear", text: include_str!("linear.cu"), elements: ALL_ELEMENTS };

/// Threads of a block.
const THREADS: usize = 256;
/// Rows that a block sums, at least.
const ROWS: usize = 64;
/// Blocks of rows, at most.
const BLOCKS: usize = 256;

impl Launch for Linear {
    /// Saves x, W and, where the activation is not the identity, f'(z).
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let (x, w) = (inputs[0], inputs[1]);
        let (rows, k, n) = (x.rows(), x.width(), w.shape()[0]);
        let mut slope = (self.activation != Activation::Identity)
            .then(|| Tensor::arbitrary_on(out.device(), out.shape(), out.dtype()));
        let epilogue = Epilogue {
            bias: inputs.get(2).copied(),
            activation: slope.as_mut().map(|slope| (self.activation, slope)),
            add: false,
        };
        let w_t = Matrix::new(w, n, k).transposed();
        Product::new(Matrix::new(x, rows, k), w_t).write(out, epilogue);
        [Some(x.clone()), Some(w.clone()), slope].into_iter().flatten().collect()
    }

    fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let (x, w) = (&saved[0], &saved[1]);
        let (rows, k, n) = (x.rows(), x.width(), w.shape()[0]);
        let dz = slope_and_bias(dy, saved.get(2), grads.buffer(2), rows, n);
        let dz = Matrix::new(&dz, rows, n);
        if let Some(grad) = grads.buffer(0) {
            Product::new(dz, Matrix::new(w, n, k)).put(grad);
        }
        if let Some(grad) = grads.buffer(1) {
            Product::new(dz.transposed(), Matrix::new(x, rows, k)).put(grad);
        }
    }
}

/// dz = dy ∘ slope, and its sum over rows.
fn slope_and_bias(
    dy: Tensor,
    slope: Option<&Tensor>,
    db: Option<&mut GradBuffer>,
    rows: usize,
    n: usize,
) -> Tensor {
    if slope.is_none() && db.is_none() {
        return dy;
    }
    let (device, element) = (dy.device(), dy.dtype());
    let mut dz = slope.map(|_| Tensor::arbitrary_on(device, dy.shape(), element));
    let height = rows.div_ceil(BLOCKS).max(ROWS);
    let blocks = rows.div_ceil(height);
    let mut partials = db.as_ref().map(|_| Tensor::arbitrary_on(device, &[blocks, n], Dtype::F32));
    let width = 16 / element.bytes();
    let whole = n.is_multiple_of(width);
    let across = 32 * if whole { width } else { 1 };
    SOURCE.launch(
        element,
        "linear_slope",
        Grid::new(blocks * n.div_ceil(across), THREADS),
        args![&dy, slope, dz.as_mut(), partials.as_mut(), rows, n, height, whole],
    );
    if let (Some(grad), Some(partials)) = (db, &partials) {
        columns::sum_rows(partials, grad);
    }
    dz.unwrap_or(dy)
}
