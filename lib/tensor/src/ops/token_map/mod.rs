//! A linear map along the token axis: y[b] = M x[b]. M [S, T], x [B, T, C], y [B, S, C].
//!
//! With a constant M: pooling, interpolation and transforms over tokens.
//! dx[b] = Mᵀ dy[b], dM = Σ_b dy[b] x[b]ᵀ.

mod cpu;
mod cuda;

use crate::op::{Case, Draw, Grads, Op, Saved};
use crate::tensor::Tensor;
use crate::with_float;

/// y[b] = M x[b]; inputs M, x.
#[derive(Clone, Copy, Debug)]
pub struct TokenMap;

impl Op for TokenMap {
    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        match inputs {
            [[s, mt], [b, t, c]] if mt == t => Ok(vec![*b, *s, *c]),
            _ => Err("takes M [S, T] and x [B, T, C]".into()),
        }
    }

    fn operations(&self, inputs: &[&[usize]]) -> usize {
        2 * inputs[0][0] * inputs[1].iter().product::<usize>()
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        with_float!(out.dtype(), T => cpu::forward::<T>(inputs[0], inputs[1], out.write()));
        vec![inputs[0].clone(), inputs[1].clone()]
    }

    fn backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let [dm, dx] = grads.buffers([0, 1]);
        with_float!(dy.dtype(), T => {
            cpu::backward::<T>(&saved[0], &saved[1], dy.read(), dm, dx);
        });
    }
}

/// Fewer and more tokens out than in, one token, several kernel tiles in each direction; a constant and a learned map.
pub fn cases() -> Vec<Case> {
    let case = |b: usize, s: usize, t: usize, c: usize| {
        Case::new(TokenMap, &[&[s, t], &[b, t, c]]).operations(2 * b * s * t * c)
    };
    vec![
        case(1, 1, 1, 1),
        case(2, 3, 7, 5),
        case(3, 9, 5, 17).draw(0, Draw::Constant),
        case(2, 65, 1, 9),
        case(3, 67, 33, 65),
        case(4, 72, 136, 16),
        case(64, 32, 64, 96).draw(0, Draw::Constant),
    ]
}
