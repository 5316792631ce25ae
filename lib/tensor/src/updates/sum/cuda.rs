//! How the kernels are launched.

use crate::args;
use crate::device::Device;
use crate::dtype::Dtype;
use crate::kernel::table::{Entry, THREADS, table};
use crate::kernel::{ALL_ELEMENTS, Grid, Source, flat};
use crate::tensor::Tensor;

/// The kernels.
pub static SOURCE: Source =
    Source { name: "sum", text: include_str!("sum.cu"), elements: ALL_ELEMENTS };

pub(super) fn add(a: &mut Tensor, b: &Tensor) {
    let (len, dtype) = (a.len(), a.dtype());
    SOURCE.launch(dtype, "sum_add", flat::grid(len, dtype), args![a, b, len as i64]);
}

pub(super) fn add_all<'a>(
    device: Device,
    dtype: Dtype,
    pairs: impl Iterator<Item = (&'a mut Tensor, &'a Tensor)>,
) {
    let entries = pairs.map(|(a, b)| Entry {
        len: a.len(),
        addresses: [b.address(), a.address_mut()],
        numbers: [0.0; 2],
    });
    let table = table(device, ("sum pieces", "sum"), entries);
    let args = args![&table.pieces, &table.entries];
    SOURCE.launch(dtype, "sum_add_all", Grid::new(table.blocks, THREADS), args);
}
