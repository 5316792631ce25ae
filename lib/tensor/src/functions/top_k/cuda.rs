use crate::args;
use crate::functions::argmax::cuda::grid;
use crate::kernel::{ALL_DTYPES, Source, source};
use crate::tensor::Tensor;

/// Source of the kernel.
pub(crate) static SOURCE: Source = source!("top_k", ALL_DTYPES);

/// Writes the k largest elements of each row of x, and their indices.
pub(super) fn find(k: usize, x: &Tensor, values: &mut Tensor, index: &mut Tensor) {
    let args = args![x, values, index, x.width(), k];
    SOURCE.launch(x.dtype(), "top_k_rows", grid(x), args);
}
