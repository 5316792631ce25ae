//! Scaled dot-product attention (Vaswani et al. 2017, §3.2.1) within each sample:
//! O = softmax(Q Kᵀ/√D) V for each of `heads` heads of size D.
//!
//! Inputs, in this order:
//! - queries, keys and values in the given [`Layout`];
//! - with `qk_norm`, weights [D] of the per-head RMS normalization of queries and keys (Henry et al. 2020): one for
//!   queries and one for keys, or one such pair per sequence for joined sequences;
//! - with `mask.padding`, the number of visible keys of each sequence: I32 [B], for joined sequences [B, 2];
//! - with `dropout`, the counter of [`Dropout`]: I32 [4].
//!
//! Output [B, queries, heads·D]. With fewer `kv_heads` than `heads` (grouped-query attention, Ainslie et al. 2023),
//! query head h uses key/value head h / (heads/kv_heads). The output of a query that sees no key is zero.
//!
//! Only O and the row maxima and sums of the softmax are saved; the backward pass recomputes the scores. With P the
//! softmax and dP = dO Vᵀ: dV = Pᵀ dO, dS = P ∘ (dP - rowsum(P ∘ dP)), dQ = dS K/√D, dK = dSᵀ Q/√D, where
//! rowsum(P ∘ dP) = rowsum(O ∘ dO) (Dao et al. 2022, §B.2). With dropout, Z ∘ P replaces P in O and dV, and Z ∘ dP
//! replaces dP; Z is regenerated from the counter. Costs 4·B·heads·queries·keys·D FLOPs forward (with a causal mask only
//! those of visible keys), 2.5 times that backward.

mod backward;
mod cases;
mod cpu;
pub(crate) mod cuda;
mod layout;
pub(crate) mod rows;
pub(crate) mod warpgroups;

pub use cases::cases;

use crate::dtype::Dtype;
use crate::op::{Grads, Op, Saved};
use crate::ops::dropout::Dropout;
use crate::tensor::Tensor;
use crate::with_float;
use layout::Sizes;

/// Maximum head size that the kernels support; the CPU has no limit.
pub const LARGEST_HEAD: usize = 256;

/// Multi-head attention.
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    /// Number of query heads.
    pub heads: usize,
    /// Number of key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Arrangement of queries, keys and values in the inputs.
    pub layout: Layout,
    /// Attention mask.
    pub mask: Mask,
    /// ε of the query and key normalization; `None` disables it.
    pub qk_norm: Option<f64>,
    /// Dropout of the attention probabilities, with the same mask as [`Dropout`] on [B, heads, queries, keys], where
    /// keys is rounded up to a multiple of 4 and `samples` is B. Keys hidden by padding are not counted.
    pub dropout: Option<Dropout>,
}

/// Arrangement of queries, keys and values in the inputs. Packed features are heads·D of queries, then kv_heads·D of
/// keys, then kv_heads·D of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One packed tensor [B, T, (heads + 2·kv_heads)·D].
    Packed,
    /// Queries [B, queries, heads·D]; keys and values [B, keys, kv_heads·D] each.
    Separate,
    /// Two packed sequences, each with its own length, whose tokens attend to both as if concatenated (Esser et al.
    /// 2024, §4). The output holds the first sequence, then the second.
    Joined,
}

/// Attention mask; by default every query sees all keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mask {
    /// Causal mask: the last query sees all keys, each earlier query one key fewer. Not supported for joined sequences,
    /// which have no common order. A hidden key has weight exactly zero but may still be multiplied: if a hidden key or
    /// value (or a gradient of the output) is infinite or NaN, NaN may reach queries that do not see it.
    pub causal: bool,
    /// Padding mask: only the first keys of each sequence are visible; the lengths input gives their number, clamped to
    /// 0..=keys. Hidden keys and values are never read.
    pub padding: bool,
}

impl Attention {
    /// Creates attention with `heads` query and key/value heads, without mask, normalization and dropout.
    pub fn new(heads: usize, layout: Layout) -> Self {
        Self { heads, kv_heads: heads, layout, mask: Mask::default(), qk_norm: None, dropout: None }
    }

    /// Number of inputs that hold queries, keys and values.
    fn operands(&self) -> usize {
        match self.layout {
            Layout::Packed => 1,
            Layout::Separate => 3,
            Layout::Joined => 2,
        }
    }

    /// Number of normalization weights.
    fn weights(&self) -> usize {
        match (self.qk_norm, self.layout) {
            (None, _) => 0,
            (Some(_), Layout::Joined) => 4,
            (Some(_), _) => 2,
        }
    }

    /// Number of integer inputs, which come last.
    fn integers(&self) -> usize {
        usize::from(self.mask.padding) + usize::from(self.dropout.is_some())
    }

    /// The dropout and its counter, if p > 0.
    fn dropped<'a>(&self, inputs: &[&'a Tensor]) -> Option<(Dropout, &'a Tensor)> {
        let dropout = self.dropout.filter(|dropout| dropout.p > 0.0)?;
        Some((dropout, inputs[self.differentiated() + usize::from(self.mask.padding)]))
    }

    /// Number of inputs that have gradients.
    fn differentiated(&self) -> usize {
        self.operands() + self.weights()
    }
}

impl Op for Attention {
    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        let s = layout::check(self, inputs)?;
        Ok(vec![s.batch, s.queries, s.heads * s.dim])
    }

    fn constants(&self) -> &'static [usize] {
        const ONLY: [usize; 8] = [0, 1, 2, 3, 4, 5, 6, 7];
        let last = self.differentiated();
        &ONLY[last..last + self.integers()]
    }

    fn input_dtype(&self, i: usize, compute: Dtype) -> Dtype {
        if i >= self.differentiated() { Dtype::I32 } else { compute }
    }

    fn flops(&self, inputs: &[&[usize]]) -> usize {
        layout::check(self, inputs).map_or(0, |s| {
            let visible = match self.mask.causal {
                false => s.queries * s.keys,
                true => s.causal_pairs(),
            };
            4 * s.batch * s.heads * visible * s.dim
        })
    }

    fn backward_flops(&self, inputs: &[&[usize]], needed: &[bool]) -> usize {
        match needed.iter().take(self.operands()).any(|needed| *needed) {
            true => self.flops(inputs) / 2 * 5,
            false => 0,
        }
    }

    fn kept(&self, inputs: &[&Tensor], out: &Tensor) -> Saved {
        inputs.iter().copied().chain([out]).cloned().collect()
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let s = Sizes::of(self, inputs);
        let mut stats = Tensor::empty(&[s.batch, s.heads, s.queries, 2], out.dtype());
        with_float!(out.dtype(), T => {
            cpu::forward::<T>(self, s, inputs, stats.write(), out.write());
        });
        let mut saved: Saved = inputs.iter().map(|x| (*x).clone()).collect();
        saved.extend([out.clone(), stats]);
        saved
    }

    fn backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let inputs: Vec<&Tensor> = saved.iter().collect();
        let s = Sizes::of(self, &inputs);
        let mut buffers = grads.buffers([0, 1, 2, 3, 4, 5]);
        with_float!(dy.dtype(), T => {
            backward::backward::<T>(self, s, &inputs, dy.read(), &mut buffers);
        });
    }
}
