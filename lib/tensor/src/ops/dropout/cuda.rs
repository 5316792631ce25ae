//! Kernel launches.

use super::Dropout;
use crate::args;
use crate::kernel::{ALL_DTYPES, Grid, Source, source};
use crate::op::{Grads, Launch, Saved};
use crate::tensor::Tensor;

/// Source of the dropout kernel.
pub static SOURCE: Source = source!("dropout", ALL_DTYPES);

/// Threads per block.
const THREADS: usize = 256;

fn apply(op: &Dropout, counter: &Tensor, x: &Tensor, out: &mut Tensor, add: bool) {
    let (element, size) = (x.dtype(), x.len() / op.samples);
    let vectors = op.samples * size.div_ceil(16 / element.bytes());
    let (site, threshold, scale) = (op.site, op.threshold(), op.scale() as f32);
    let args = args![x, counter, out, op.samples, size, site, threshold, scale, add];
    let grid = Grid::new(vectors.div_ceil(THREADS), THREADS);
    SOURCE.launch(element, "dropout_apply", grid, args);
}

impl Launch for Dropout {
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let [x, counter] = [inputs[0], inputs[1]];
        if self.p == 0.0 {
            *out = x.clone();
            return vec![];
        }
        apply(self, counter, x, out, false);
        vec![counter.clone()]
    }

    fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        if self.p == 0.0 {
            grads.accumulate(0, dy);
        } else if let Some(grad) = grads.buffer(0) {
            apply(self, &saved[0], &dy, &mut grad.tensor, grad.accumulate);
        }
    }
}
