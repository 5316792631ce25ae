//! How the kernel is launched.

use crate::args;
use crate::device::Device;
use crate::dtype::Dtype;
use crate::kernel::table::{Entry, THREADS, table};
use crate::kernel::{Grid, ONLY_F32, Source};
use crate::tensor::Tensor;

/// The kernel.
pub static SOURCE: Source =
    Source { name: "ema", text: include_str!("ema.cu"), elements: ONLY_F32 };

pub(super) fn apply_all<'a>(
    device: Device,
    decision: &Tensor,
    pairs: impl Iterator<Item = (&'a Tensor, &'a mut Tensor)>,
) {
    let entries = pairs.map(|(parameter, average)| Entry {
        len: parameter.len(),
        addresses: [parameter.address(), average.address_mut()],
        numbers: [0.0; 2],
    });
    let table = table(device, ("ema pieces", "ema"), entries);
    SOURCE.launch(
        Dtype::F32,
        "ema_step",
        Grid::new(table.blocks, THREADS),
        args![&table.pieces, &table.entries, decision],
    );
}
