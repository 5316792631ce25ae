//! How the kernels are launched.

use crate::args;
use crate::device::Device;
use crate::dtype::Dtype;
use crate::kernel::table::{Entry, THREADS, table};
use crate::kernel::{Grid, ONLY_F32, Source};
use crate::tensor::Tensor;

/// The kernels.
pub static SOURCE: Source =
    Source { name: "norm", text: include_str!("norm.cu"), elements: ONLY_F32 };

/// Σ x² over each of the pieces of all tensors, f64, and the number of pieces.
pub(in crate::updates) fn squares_of_pieces<'a>(
    device: Device,
    tensors: impl Iterator<Item = &'a Tensor>,
) -> (Tensor, usize) {
    let entries =
        tensors.map(|x| Entry { len: x.len(), addresses: [x.address()], numbers: [0.0; 2] });
    let table = table(device, ("norm pieces", "norm"), entries);
    let mut sums = Tensor::arbitrary_on(device, &[table.blocks], Dtype::F64);
    let args = args![&table.pieces, &table.entries, &mut sums];
    SOURCE.launch(Dtype::F32, "norm_squares", Grid::new(table.blocks, THREADS), args);
    (sums, table.blocks)
}

/// Σ x² over all elements of all tensors, f64 [1].
pub(super) fn squares<'a>(device: Device, tensors: impl Iterator<Item = &'a Tensor>) -> Tensor {
    let (sums, pieces) = squares_of_pieces(device, tensors);
    let mut total = Tensor::arbitrary_on(device, &[1], Dtype::F64);
    let args = args![&sums, &mut total, pieces];
    SOURCE.launch(Dtype::F32, "norm_total", Grid::new(1, THREADS), args);
    total
}
