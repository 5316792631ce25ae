use super::{AdamW, Decision};
use crate::dtype::Float;
use crate::parallel::{BLOCK_ELEMENTS, Shared, blocks};
use crate::vectorize;

/// The numbers of a step of one parameter.
pub(super) struct Numbers<'a> {
    pub op: &'a AdamW,
    pub decision: &'a Decision,
    pub rate: f64,
    pub weight_decay: f64,
}

impl Numbers<'_> {
    pub fn apply<T: Float>(&self, g: &[T], p: &mut [T], m: &mut [T], v: &mut [T]) {
        let Self { op, decision, rate, weight_decay } = *self;
        let [b1, b2] = op.betas;
        let (step, root) = (T::of(-(decision.rate * rate)), T::of(decision.root));
        let keep = T::of(1.0 - op.learning_rate * rate * weight_decay);
        let (scale, epsilon) = (T::of(decision.scale), T::of(op.epsilon));
        let ([b1, b2], [c1, c2]) = ([T::of(b1), T::of(b2)], [T::of(1.0 - b1), T::of(1.0 - b2)]);
        let (p, m, v) = (Shared::new(p), Shared::new(m), Shared::new(v));
        blocks(g.len(), BLOCK_ELEMENTS, |range| {
            let g = &g[range.clone()];
            // SAFETY: blocks are disjoint.
            let (p, m, v) =
                unsafe { (p.slice(range.clone()), m.slice(range.clone()), v.slice(range)) };
            vectorize!({
                for i in 0..g.len() {
                    let g = scale * g[i];
                    m[i] = b1.mul_add(m[i], c1 * g);
                    v[i] = b2.mul_add(v[i], c2 * g * g);
                    let denominator = v[i].sqrt().mul_add(root, epsilon);
                    p[i] = step.mul_add(m[i] / denominator, keep * p[i]);
                }
            });
        });
    }
}
