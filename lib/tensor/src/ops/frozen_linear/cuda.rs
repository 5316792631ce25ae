//! Kernels: one that brings W into the dtype of x, before the product of a linear layer, and one that multiplies a few rows
//! by the codes.

use super::{FrozenLinear, Storage};
use crate::args;
use crate::kernel::product::{Epilogue, Matrix, Product};
use crate::kernel::{ALL_DTYPES, Arg, Grid, Source, flat, source};
use crate::nf4::Nf4;
use crate::op::{Derivative, Grads, Launch, Saved};
use crate::ops::activation::Activation;
use crate::ops::cast::convert;
use crate::ops::low_rank::LowRank;
use crate::tensor::Tensor;

/// Source of the kernels.
pub static SOURCE: Source = source!("frozen_linear", ALL_DTYPES);

/// Maximum number of rows that are multiplied by the codes, as in frozen_linear.cu.
const ROWS: usize = 8;
/// Columns of W that a lane reads at a time, as in frozen_linear.cu.
const COLUMNS: usize = 8;
/// Warps of a block, each of which computes a column of the result.
const WARPS: usize = 8;

/// Writes W to `w`, in its dtype.
pub(super) fn expand(weight: Storage, pieces: &[&Tensor], w: &mut Tensor) {
    match weight {
        Storage::Dense(dtype) if dtype == w.dtype() => w.assign(pieces[0]),
        Storage::Dense(_) => convert(pieces[0], w),
        Storage::Nf4(layout) => {
            let (dtype, len) = (w.dtype(), w.len());
            let arguments = [&weight_args(&layout, pieces)[..], args![w, len as i64]].concat();
            SOURCE.launch(dtype, "frozen_linear_expand", flat::grid(len, dtype), &arguments);
        }
    }
}

/// Adds scale·B A to W, for A [r, K] and B [N, r].
pub(super) fn merge(scale: f64, [a, b]: [&Tensor; 2], w: &mut Tensor) {
    let [[r, k], [n, _]] = [a, b].map(|factor| [0, 1].map(|axis| factor.shape()[axis]));
    let mut scaled = Tensor::empty_on(a.device(), a.shape(), a.dtype());
    scaled.assign(a);
    LowRank { scale, merged: true }.multiply(&mut scaled);
    let product = Product::new(Matrix::new(b, n, r), Matrix::new(&scaled, r, k));
    product.write(w, Epilogue { add: true, ..Epilogue::default() });
}

/// The arguments that describe W.
fn weight_args<'a>(layout: &Nf4, pieces: &[&'a Tensor]) -> Vec<Arg<'a>> {
    let [codes, scales, numbers] = [0, 1, 2].map(|i| Arg::from(pieces[i]));
    let [largest, map] = [3, 4].map(|i| Arg::from(pieces.get(i).copied()));
    vec![codes, scales, numbers, largest, map, Arg::from(layout.offset.unwrap_or(0.0))]
}

impl Launch for FrozenLinear {
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let (x, pieces) = (inputs[0], self.pieces(inputs));
        if let Storage::Nf4(layout) = self.weight
            && x.rows() <= ROWS
            && self.merged.is_none()
            && layout.shape[1].is_multiple_of(COLUMNS)
        {
            let mut z = (self.activation != Activation::Identity)
                .then(|| Tensor::empty_on(out.device(), out.shape(), out.dtype()));
            let bias = self.bias.then(|| inputs[2]);
            let [n, k] = layout.shape;
            let weight = weight_args(&layout, &pieces);
            let rest = args![x, bias, out, z.as_mut(), self.activation as i32, x.rows(), n, k];
            let grid = Grid::new(n.div_ceil(WARPS), 32 * WARPS).flops(2 * x.rows() * n * k);
            SOURCE.launch(x.dtype(), "frozen_linear_rows", grid, &[&weight[..], rest].concat());
            let own = std::iter::once(x.clone()).chain(z);
            return own.chain(pieces.into_iter().cloned()).collect();
        }
        let w = self.expanded(x, &pieces);
        self.saved(self.linear().launch_forward(&self.dense(inputs, &w), out), inputs)
    }

    fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        self.linear().launch_backward(&self.restored(saved), dy, grads);
    }

    fn derivative(&self, saved: &Saved) -> Option<Derivative> {
        let at = saved.get(1).filter(|_| self.activation != Activation::Identity)?.clone();
        Some(Derivative { activation: self.activation, at })
    }
}
