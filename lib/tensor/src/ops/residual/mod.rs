//! A branch joins its trunk: out = x + gate ∘ y. x and y [.., H].
//!
//! The gate is one (two inputs); 1 + g_g with g the `index`-th vector of m [G, S·H], one for each of G
//! groups along the leading axes (three inputs; zero m is a plain sum); or a vector s [H] (three
//! inputs; zero s leaves x unchanged, which is how a model can start from "no change").
//! dx = dy', dy = gate ∘ dy', dgate = Σ dy' ∘ y, with dy' the gradient of out.

mod cpu;
pub(crate) mod cuda;

use crate::op::{Case, Grads, Op, Saved};
use crate::tensor::Tensor;
use crate::with_float;

/// What the branch is multiplied with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residual {
    /// One.
    Plain,
    /// 1 + the vector of m with this number.
    Gated(usize),
    /// A vector of its own.
    Scaled,
}

impl Op for Residual {
    fn name(&self) -> &'static str {
        "residual"
    }

    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        match (self, inputs) {
            (Residual::Plain, [x, y]) if x == y => Ok(x.to_vec()),
            (Residual::Scaled, [x, y, s])
                if x == y && x.last().is_some() && **s == x[x.len() - 1..] =>
            {
                Ok(x.to_vec())
            }
            (Residual::Gated(index), [x @ [first, .., h], y, [groups, m]])
                if x == y && first % groups == 0 && m % h == 0 && *index < m / h =>
            {
                Ok(x.to_vec())
            }
            _ => Err("takes x and y of one shape and the gate's vectors".into()),
        }
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let gate = inputs.get(2).copied();
        with_float!(out.dtype(), T => {
            cpu::forward::<T>(*self, inputs[0], inputs[1].read(), gate, out.write());
        });
        match gate {
            None => vec![],
            Some(gate) => vec![inputs[1].clone(), gate.clone()],
        }
    }

    fn backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        if *self == Residual::Plain {
            grads.accumulate(1, dy.clone());
        } else {
            let [dbranch, dgate] = grads.buffers([1, 2]);
            with_float!(dy.dtype(), T => {
                cpu::backward::<T>(*self, &saved[0], &saved[1], dy.read(), dbranch, dgate);
            });
        }
        grads.accumulate(0, dy);
    }
}

/// Every gate, odd sizes, unused vectors, groups and rows that several blocks share.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new(Residual::Plain, &[&[3, 5], &[3, 5]]),
        Case::new(Residual::Scaled, &[&[3, 5], &[3, 5], &[5]]),
        Case::new(Residual::Scaled, &[&[65, 33, 7], &[65, 33, 7], &[7]]),
        Case::new(Residual::Plain, &[&[33, 67], &[33, 67]]),
        Case::new(Residual::Scaled, &[&[150, 264], &[150, 264], &[264]]),
        Case::new(Residual::Gated(1), &[&[2, 70, 264], &[2, 70, 264], &[2, 264 * 2]]),
        Case::new(Residual::Gated(0), &[&[1, 3], &[1, 3], &[1, 3]]),
        Case::new(Residual::Gated(2), &[&[5, 9, 17], &[5, 9, 17], &[5, 17 * 6]]),
        Case::new(Residual::Gated(5), &[&[64, 128, 256], &[64, 128, 256], &[64, 256 * 6]]),
    ]
}
