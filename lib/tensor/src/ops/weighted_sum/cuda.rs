//! Kernel launches.

use super::WeightedSum;
use crate::args;
use crate::dtype::Dtype;
use crate::kernel::{Arg, Grid, ONLY_F32, Source, source};
use crate::op::{Grads, Launch, Saved};
use crate::tensor::Tensor;

/// Source of the weighted sum kernels.
pub static SOURCE: Source = source!("weighted_sum", ONLY_F32);

/// Maximum number of terms per launch.
const TERMS: usize = 8;

impl Launch for WeightedSum {
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let chunks = inputs.chunks(TERMS).zip(self.0.chunks(TERMS));
        for (i, (inputs, weights)) in chunks.enumerate() {
            let mut args: Vec<Arg> = Vec::new();
            for term in 0..TERMS {
                args.push(Arg::from(inputs.get(term).copied()));
                args.push(Arg::from(weights.get(term).map_or(0.0, |w| *w as f32)));
            }
            args.extend([Arg::from(&mut *out), Arg::from(i > 0)]);
            SOURCE.launch(Dtype::F32, "weighted_sum_forward", Grid::new(1, 1), &args);
        }
        vec![]
    }

    fn launch_backward(&self, _saved: &Saved, dy: Tensor, grads: &mut Grads) {
        for (i, weight) in self.0.iter().enumerate() {
            let Some(grad) = grads.buffer(i) else { continue };
            let args = args![&dy, *weight as f32, &mut grad.tensor, grad.accumulate];
            SOURCE.launch(Dtype::F32, "weighted_sum_backward", Grid::new(1, 1), args);
        }
    }
}
