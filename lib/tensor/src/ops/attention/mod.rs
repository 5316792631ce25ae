//! Scaled dot-product attention (Vaswani et al. 2017, §3.2.1) over the tokens of each sample:
//! O = softmax(Q Kᵀ/√D) V for each of `heads` heads of size D.
//!
//! Inputs: one tensor qkv [B, T, 3·heads·D] holding queries, keys and values side by side, or three
//! tensors [B, T, heads·D]; with `qk_norm` also a weight [D] for queries and one for keys, which are
//! then normalised by root mean square in each head (Henry et al. 2020). Output [B, T, heads·D].
//!
//! Only O and the row maxima and sums of the softmax are kept; the backward pass computes the scores
//! again. With P the softmax and dP = dO Vᵀ: dV = Pᵀ dO, dS = P ∘ (dP - rowsum(P ∘ dP)),
//! dQ = dS K/√D, dK = dSᵀ Q/√D, where rowsum(P ∘ dP) = rowsum(O ∘ dO) (Dao et al. 2022, §B.2). Costs
//! 4·B·heads·T²·D operations forward, 10 backward.

mod backward;
mod cpu;

use crate::op::{Case, Grads, Op, Saved};
use crate::tensor::Tensor;
use crate::with_float;

/// Multi-head attention of a sequence to itself, without a mask.
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    /// Number of heads.
    pub heads: usize,
    /// Whether queries, keys and values come in one tensor.
    pub packed: bool,
    /// ε of the normalisation of queries and keys, where there is one.
    pub qk_norm: Option<f64>,
}

/// Sizes of one call.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    batch: usize,
    tokens: usize,
    heads: usize,
    /// Size of a head.
    dim: usize,
    /// Distance from token to token in queries, keys and values.
    stride: usize,
}

impl Attention {
    fn sizes(&self, x: &[usize]) -> Sizes {
        let width = if self.packed { x[2] / 3 } else { x[2] };
        let dim = width / self.heads;
        Sizes { batch: x[0], tokens: x[1], heads: self.heads, dim, stride: x[2] }
    }

    /// Number of tensors that hold queries, keys and values.
    fn operands(&self) -> usize {
        if self.packed { 1 } else { 3 }
    }
}

impl Op for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        let operands = self.operands();
        let weights = if self.qk_norm.is_some() { 2 } else { 0 };
        let wrong =
            || "takes qkv [B, T, 3H], or q, k, v [B, T, H], and two weights [D]".to_string();
        if inputs.len() != operands + weights || inputs[0].len() != 3 || inputs[0][1] == 0 {
            return Err(wrong());
        }
        let x = inputs[0];
        let parts = self.heads * if self.packed { 3 } else { 1 };
        if self.heads == 0 || x[2] == 0 || !x[2].is_multiple_of(parts) {
            return Err(format!("{} features do not split into {} heads", x[2], self.heads));
        }
        let s = self.sizes(x);
        let same = inputs[..operands].iter().all(|i| *i == x);
        if !same || inputs[operands..].iter().any(|w| **w != [s.dim]) {
            return Err(wrong());
        }
        Ok(vec![s.batch, s.tokens, s.heads * s.dim])
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let s = self.sizes(inputs[0].shape());
        let mut stats = Tensor::arbitrary(&[s.batch, s.heads, s.tokens, 2], out.dtype());
        with_float!(out.dtype(), T => {
            cpu::forward::<T>(self, s, inputs, stats.write(), out.write());
        });
        let mut saved: Saved = inputs.iter().map(|x| (*x).clone()).collect();
        saved.extend([out.clone(), stats]);
        saved
    }

    fn backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let s = self.sizes(saved[0].shape());
        let mut slots: Vec<_> = (0..saved.len() - 2).map(|i| grads.take(i)).collect();
        with_float!(dy.dtype(), T => backward::backward::<T>(self, s, saved, dy.read(), &mut slots));
        for (i, slot) in slots.into_iter().enumerate() {
            if let Some(slot) = slot {
                grads.put(i, slot);
            }
        }
    }
}

/// One token, odd sizes, head sizes from 1 up, packed and separate, with and without normalisation.
pub fn cases() -> Vec<Case> {
    let case = |packed: bool, norm: bool, b: usize, t: usize, heads: usize, d: usize| {
        let op = Attention { heads, packed, qk_norm: norm.then_some(1e-6) };
        let width = heads * d;
        let mut shapes: Vec<Vec<usize>> = match packed {
            true => vec![vec![b, t, 3 * width]],
            false => vec![vec![b, t, width]; 3],
        };
        if norm {
            shapes.extend([vec![d], vec![d]]);
        }
        let shapes: Vec<&[usize]> = shapes.iter().map(Vec::as_slice).collect();
        Case::new(op, &shapes).operations(4 * b * heads * t * t * d)
    };
    vec![
        case(true, false, 1, 1, 1, 1),
        case(true, false, 2, 5, 3, 7),
        case(false, false, 3, 9, 2, 4),
        case(true, true, 2, 17, 2, 8),
        case(false, true, 1, 33, 4, 2),
        case(true, false, 64, 64, 4, 32),
        case(true, true, 16, 128, 8, 32),
    ]
}
