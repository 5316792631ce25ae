//! How the kernels are launched.

use crate::args;
use crate::dtype::Dtype;
use crate::kernel::{Arg, Grid, ONLY_F32, Source};
use crate::op::Slot;
use crate::tensor::Tensor;

/// The kernels.
pub static SOURCE: Source =
    Source { name: "weighted_sum", text: include_str!("weighted_sum.cu"), elements: ONLY_F32 };

/// Terms of one launch.
const TERMS: usize = 8;

pub(super) fn forward(weights: &[f64], inputs: &[&Tensor], out: &mut Tensor) {
    for (i, (inputs, weights)) in inputs.chunks(TERMS).zip(weights.chunks(TERMS)).enumerate() {
        let mut args: Vec<Arg> = Vec::new();
        for term in 0..TERMS {
            args.push(Arg::from(inputs.get(term).copied()));
            args.push(Arg::from(weights.get(term).map_or(0.0, |w| *w as f32)));
        }
        args.extend([Arg::from(&mut *out), Arg::from(i > 0)]);
        SOURCE.launch(Dtype::F32, "weighted_sum_forward", Grid::new(1, 1), &args);
    }
}

pub(super) fn backward(weight: f64, dy: &Tensor, slot: &mut Slot) {
    let args = args![dy, weight as f32, &mut slot.tensor, slot.add];
    SOURCE.launch(Dtype::F32, "weighted_sum_backward", Grid::new(1, 1), args);
}
