//! How the kernel is launched.

use super::{Decided, LossScale, Rule};
use crate::args;
use crate::dtype::Dtype;
use crate::kernel::table::{Entry, THREADS, table};
use crate::kernel::{Grid, ONLY_F32, Source};
use crate::tensor::Tensor;
use crate::updates::norm;

/// The kernel.
pub static SOURCE: Source =
    Source { name: "decision", text: include_str!("decision.cu"), elements: ONLY_F32 };

pub(super) fn decide(
    rule: &Rule,
    decided: &mut Decided,
    [losses, weights]: [&[Tensor]; 2],
    gradients: &[Tensor],
    learning_rate: f64,
) {
    let before = &decided.numbers;
    let device = before.device();
    let (sums, pieces) = norm::cuda::squares_of_pieces(device, gradients.iter());
    let entries = losses.iter().chain(weights).map(|x| Entry {
        len: 1,
        addresses: [x.address()],
        numbers: [0.0; 2],
    });
    let table = table(device, ("decision pieces", "decision"), entries);
    let mut made = Tensor::arbitrary_on(device, before.shape(), Dtype::F64);
    let [beta1, beta2] = rule.betas;
    let patience = if rule.scaled { LossScale::PATIENCE } else { 0 };
    SOURCE.launch(
        Dtype::F32,
        "decision_make",
        Grid::new(1, THREADS),
        args![
            &table.entries,
            losses.len(),
            &sums,
            pieces,
            before,
            &mut made,
            &mut decided.loss_scale,
            learning_rate,
            rule.clip,
            beta1,
            beta2,
            rule.decay,
            i32::from(rule.warmup),
            rule.unit,
            patience,
        ],
    );
    decided.numbers = made;
}
