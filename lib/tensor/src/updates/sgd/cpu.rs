use super::Sgd;
use crate::dtype::Float;
use crate::parallel::{BLOCK_ELEMENTS, Shared, blocks};
use crate::vectorize;

pub(super) fn apply<T: Float>(op: &Sgd, scale: f64, g: &[T], p: &mut [T], b: &mut [T]) {
    let [step, momentum, decay, scale] =
        [-op.learning_rate, op.momentum, op.weight_decay, scale].map(T::of);
    let (p, b) = (Shared::new(p), Shared::new(b));
    blocks(g.len(), BLOCK_ELEMENTS, |range| {
        let g = &g[range.clone()];
        // SAFETY: blocks are disjoint.
        let (p, b) = unsafe { (p.slice(range.clone()), b.slice(range)) };
        vectorize!({
            for i in 0..g.len() {
                let g = decay.mul_add(p[i], scale * g[i]);
                b[i] = momentum.mul_add(b[i], g);
                p[i] = step.mul_add(b[i], p[i]);
            }
        });
    });
}
