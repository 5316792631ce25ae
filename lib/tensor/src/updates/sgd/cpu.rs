use crate::dtype::Float;
use crate::parallel::{BLOCK_ELEMENTS, Shared, blocks};
use crate::vectorize;

pub(super) fn apply<T: Float>(
    [step, momentum, decay, scale]: [T; 4],
    g: &[T],
    p: &mut [T],
    b: &mut [T],
) {
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
