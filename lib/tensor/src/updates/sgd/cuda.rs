//! How the kernel is launched.

use super::Sgd;
use crate::args;
use crate::device::Device;
use crate::dtype::Dtype;
use crate::kernel::table::{Entry, THREADS, table};
use crate::kernel::{Grid, ONLY_F32, Source};
use crate::tensor::Tensor;
use crate::updates::Parameter;

/// The kernel.
pub static SOURCE: Source =
    Source { name: "sgd", text: include_str!("sgd.cu"), elements: ONLY_F32 };

pub(super) fn apply_all<'a>(
    op: &Sgd,
    device: Device,
    decision: &Tensor,
    parameters: impl Iterator<Item = Parameter<'a, 1>>,
) {
    let entries = parameters.map(|p| {
        let [b] = p.moments;
        Entry {
            len: p.value.len(),
            addresses: [p.gradient.address(), p.value.address_mut(), b.address_mut()],
            numbers: [p.weight_decay, p.rate].map(|x| x as f32),
        }
    });
    let table = table(device, ("sgd pieces", "sgd"), entries);
    let [step, momentum] = [-op.learning_rate, op.momentum].map(|x| x as f32);
    SOURCE.launch(
        Dtype::F32,
        "sgd_step",
        Grid::new(table.blocks, THREADS),
        args![&table.pieces, &table.entries, decision, step, momentum],
    );
}
