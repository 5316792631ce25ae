//! Kernels. Forward is a matrix product whose epilogue applies bias and activation and saves the activation's input.
//! Backward is one elementwise pass, which multiplies by the derivative (unless the product that computed dy already
//! did) and sums the bias gradient, followed by two matrix products.

use super::Linear;
use crate::args;
use crate::dtype::Dtype;
use crate::kernel::product::{Epilogue, Matrix, Product};
use crate::kernel::{ALL_DTYPES, Grid, Source, reduce_rows, source};
use crate::op::{Derivative, GradBuffer, Grads, Launch, Saved};
use crate::ops::activation::Activation;
use crate::tensor::Tensor;
use std::ops::RangeInclusive;

/// Source of the kernel that multiplies by the activation's derivative.
pub static SOURCE: Source = source!("linear", ALL_DTYPES);

/// Threads per block.
const THREADS: usize = 256;
/// Minimum number of rows that a block sums.
const ROWS: usize = 64;
/// Maximum number of row blocks.
const BLOCKS: usize = 256;
/// Sizes, in elements, at which a gradient with unaligned rows is copied once for both products; kernels count elements
/// in 31 bits.
const COPIED: RangeInclusive<usize> = 1 << 20..=i32::MAX as usize;

impl Launch for Linear {
    /// Saves x, W and, unless the activation is the identity, z.
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let (x, w) = (inputs[0], inputs[1]);
        let (rows, k, n) = (x.rows(), x.width(), w.shape()[0]);
        let mut z = (self.activation != Activation::Identity)
            .then(|| Tensor::empty_on(out.device(), out.shape(), out.dtype()));
        let epilogue = Epilogue {
            bias: inputs.get(2).copied(),
            activation: z.as_mut().map(|z| (self.activation, z)),
            ..Epilogue::default()
        };
        let w_t = Matrix::new(w, n, k).transposed();
        Product::new(Matrix::new(x, rows, k), w_t).write(out, epilogue);
        [Some(x.clone()), Some(w.clone()), z].into_iter().flatten().collect()
    }

    fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let (x, w) = (&saved[0], &saved[1]);
        let (rows, k, n) = (x.rows(), x.width(), w.shape()[0]);
        let z = saved.get(2).filter(|_| !grads.is_multiplied());
        let z = z.map(|z| Factor::Derivative(self.activation, z));
        grads.widen(&[1]);
        grads.widen(&[2]);
        let mut dz = z.map(|_| Tensor::empty_on(dy.device(), dy.shape(), dy.dtype()));
        multiply_and_sum(&dy, z, dz.as_mut(), grads.buffer(2));
        let dz = Matrix::new(dz.as_ref().unwrap_or(&dy), rows, n);
        // Logits with an odd vocabulary size: otherwise, each product would copy them.
        let copy = COPIED.contains(&(rows * n)).then(|| dz.with_aligned_lines()).flatten();
        let dz = copy.as_ref().map_or(dz, |copy| dz.within(copy));
        Product::new(dz, Matrix::new(w, n, k)).put_input(grads, 0);
        if let Some(grad) = grads.buffer(1) {
            Product::new(dz.transposed(), Matrix::new(x, rows, k)).put(grad);
        }
    }

    fn derivative(&self, saved: &Saved) -> Option<Derivative> {
        let at = saved.get(2)?.clone();
        Some(Derivative { activation: self.activation, at })
    }
}

/// Factor of a gradient.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Factor<'a> {
    /// The elements of a tensor.
    Elements(&'a Tensor),
    /// The derivative of an activation at the elements of a tensor.
    Derivative(Activation, &'a Tensor),
}

/// Writes dy, multiplied by `factor` if given, to `dz` and its sum over rows to `sum`; either may be omitted.
pub(crate) fn multiply_and_sum(
    dy: &Tensor,
    factor: Option<Factor<'_>>,
    dz: Option<&mut Tensor>,
    sum: Option<&mut GradBuffer>,
) {
    if dz.is_none() && sum.is_none() {
        return;
    }
    let (dtype, rows, n) = (dy.dtype(), dy.rows(), dy.width());
    let height = rows.div_ceil(BLOCKS).max(ROWS);
    let blocks = rows.div_ceil(height);
    let partials = |_: &_| Tensor::empty_on(dy.device(), &[blocks, n], Dtype::F32);
    let mut partials = sum.as_ref().map(partials);
    let width = 16 / dtype.bytes();
    let whole = n.is_multiple_of(width);
    let (activation, factor) = match factor {
        None => (Activation::Identity, None),
        Some(Factor::Elements(tensor)) => (Activation::Identity, Some(tensor)),
        Some(Factor::Derivative(activation, tensor)) => (activation, Some(tensor)),
    };
    let across = 32 * if whole { width } else { 1 };
    SOURCE.launch(
        dtype,
        "linear_multiply",
        Grid::new(blocks * n.div_ceil(across), THREADS),
        args![dy, factor, dz, partials.as_mut(), activation as i32, rows, n, height, whole],
    );
    if let (Some(grad), Some(partials)) = (sum, &partials) {
        reduce_rows::sum_to(partials, grad);
    }
}
