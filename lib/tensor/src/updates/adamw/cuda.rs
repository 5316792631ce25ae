//! How the kernel is launched.

use super::AdamW;
use crate::args;
use crate::device::Device;
use crate::dtype::Dtype;
use crate::kernel::table::{Entry, THREADS, table};
use crate::kernel::{Grid, ONLY_F32, Source};
use crate::tensor::Tensor;
use crate::updates::Parameter;

/// The kernel.
pub static SOURCE: Source =
    Source { name: "adamw", text: include_str!("adamw.cu"), elements: ONLY_F32 };

pub(super) fn apply_all<'a>(
    op: &AdamW,
    device: Device,
    decision: &Tensor,
    parameters: impl Iterator<Item = Parameter<'a, 2>>,
) {
    let entries = parameters.map(|p| {
        let [m, v] = p.moments;
        Entry {
            len: p.value.len(),
            addresses: [
                p.gradient.address(),
                p.value.address_mut(),
                m.address_mut(),
                v.address_mut(),
            ],
            numbers: [p.weight_decay, p.rate].map(|x| x as f32),
        }
    });
    let table = table(device, ("adamw pieces", "adamw"), entries);
    // The same numbers as on the host, each rounded once.
    let [b1, b2] = op.betas;
    SOURCE.launch(
        Dtype::F32,
        "adamw_step",
        Grid::new(table.blocks, THREADS),
        args![
            &table.pieces,
            &table.entries,
            decision,
            op.learning_rate as f32,
            b1 as f32,
            (1.0 - b1) as f32,
            b2 as f32,
            (1.0 - b2) as f32,
            op.epsilon as f32,
        ],
    );
}
