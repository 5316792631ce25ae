//! Squared error relative to the target: q = ‖p - t‖²/(‖t‖² + ε) for each group, or its root; L is
//! the mean over the groups. p, t [G, ..], L [1]. Groups are the samples, or all of them together.
//!
//! dq/dp = 2(p - t)/D and dq/dt = -2(p - t)/D - 2·t·q/D with D = ‖t‖² + ε; d√q = dq/(2√q).

mod cpu;
pub(crate) mod cuda;

use crate::dtype::{Dtype, Element};
use crate::kernel::ONLY_F32;
use crate::op::{Case, Grads, Op, Saved};
use crate::tensor::Tensor;
use crate::with_float;

/// Relative error; inputs prediction and target.
#[derive(Clone, Copy, Debug)]
pub struct RelativeError {
    /// A group for each sample (leading axis) rather than one for all.
    pub per_sample: bool,
    /// Root of the quotient.
    pub root: bool,
    /// ε: keeps a target of zero finite.
    pub epsilon: f64,
}

impl Op for RelativeError {
    fn name(&self) -> &'static str {
        "relative_error"
    }

    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        match inputs {
            [p, t] if p == t && p.first().is_some_and(|b| *b > 0) => Ok(vec![1]),
            _ => Err("takes p and t of one shape".into()),
        }
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let [p, t] = [inputs[0], inputs[1]];
        let groups = if self.per_sample { p.shape()[0] } else { 1 };
        // Of each group: q (or its root) and D.
        let mut terms = Tensor::arbitrary(&[groups, 2], p.dtype());
        with_float!(out.dtype(), T => {
            cpu::terms::<T>(self, p.read(), t.read(), terms.write());
            let total: f64 = terms.read::<T>().chunks_exact(2).map(|x| x[0].f64()).sum();
            out.write::<T>()[0] = T::of(total / groups as f64);
        });
        vec![p.clone(), t.clone(), terms]
    }

    fn backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        for (i, target) in [(0, false), (1, true)] {
            if let Some(grad) = grads.buffer(i) {
                with_float!(dy.dtype(), T => {
                    let [p, t, terms] = [0, 1, 2].map(|i| saved[i].read::<T>());
                    cpu::backward::<T>(self, T::of(dy.item()), p, t, terms, target, grad);
                });
            }
        }
    }

    fn dtypes(&self) -> &'static [Dtype] {
        ONLY_F32
    }
}

/// With and without root, per sample and for all, groups that several blocks share.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (per_sample, root) in [(false, false), (false, true), (true, false), (true, true)] {
        let op = RelativeError { per_sample, root, epsilon: 1e-8 };
        for shape in [&[3, 7][..], &[5, 3, 11], &[3, 2733, 3], &[2, 4100, 1]] {
            cases.push(Case::new(op, &[shape, shape]));
        }
    }
    let op = RelativeError { per_sample: true, root: false, epsilon: 1e-8 };
    cases.push(Case::new(op, &[&[64, 64, 129], &[64, 64, 129]]));
    cases
}
