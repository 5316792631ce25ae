//! How the kernels of layer normalisation are launched with the vectors of each group.

use super::AdaLn;
use crate::kernel::Arg;
use crate::kernel::columns::{Target, zeroed};
use crate::op::{Grads, Launch, Saved};
use crate::ops::layernorm::cuda::{self, Affine};
use crate::tensor::Tensor;

fn affine(op: AdaLn, m: &Tensor, h: usize) -> Affine<'_> {
    Affine {
        w: (m, op.scale * h),
        b: (Some(m), op.shift * h),
        groups: m.rows(),
        stride: m.width(),
        offset: 1.0,
    }
}

impl Launch for AdaLn {
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let (x, m) = (inputs[0], inputs[1]);
        let stats = cuda::forward(x, &affine(*self, m, x.width()), self.epsilon, out);
        vec![x.clone(), m.clone(), stats]
    }

    fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let [x, m, stats] = [0, 1, 2].map(|i| &saved[i]);
        let (h, [dx, dm]) = (x.width(), grads.buffers([0, 1]));
        // Vectors of m that are not used have no gradient.
        let targets = dm.map_or([None; 2], |grad| {
            let out = Arg::from(zeroed(grad));
            [self.scale, self.shift].map(|i| Some(Target { out, start: i * h, add: true }))
        });
        cuda::backward((x, stats, &dy), &affine(*self, m, h), dx, targets);
    }
}
