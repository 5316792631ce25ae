//! Normalization over the last axis: y = w ∘ n + b with n = (x - μ)·r, x [.., H].
//!
//! - Layer normalization (Ba et al. 2016): μ the mean, r = 1/√(variance + ε); inputs x, w [H], b [H].
//! - RMS normalization (Zhang & Sennrich 2019): μ = 0, r = 1/√(mean(x²) + ε), no b; inputs x, w [H].
//! - Adaptive layer normalization (Peebles & Xie 2023): w = 1 + γ_g and b = β_g depend on a condition; inputs
//!   x [G.., H], whose leading axes split into G groups of equal size (one per sample), and m [G, S·H] with S vectors
//!   per group, where γ is vector `scale` and β is vector `shift`. A zero m gives plain normalization.
//!
//! With g = w ∘ dy: dx = r·(g - mean(g) - n·mean(g ∘ n)), without mean(g) if μ = 0; dw = Σ dy ∘ n, db = Σ dy over all
//! rows, or over the rows of a group. Moves 2 elements per element forward, 3 backward.

mod cpu;
mod cuda;

pub(crate) use cpu::{input_gradient, statistics};

pub use cuda::{GRADIENT, SOURCE};

use crate::op::{Case, Draw, GradBuffer, Grads, Op, Saved};
use crate::tensor::Tensor;
use crate::with_float;

/// Normalization over the last axis.
#[derive(Clone, Copy, Debug)]
pub struct Normalization {
    /// Kind of normalization.
    pub kind: NormKind,
    /// ε, added to the variance or the mean square.
    pub epsilon: f64,
}

/// Kinds of normalization.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// Layer normalization with weight and bias.
    Layer,
    /// RMS normalization with weight.
    Rms,
    /// Layer normalization with scale and shift from a condition.
    Adaptive {
        /// Index of β among the vectors of m.
        shift: usize,
        /// Index of γ among the vectors of m.
        scale: usize,
    },
}

impl Normalization {
    /// Whether scale and shift depend on a condition.
    pub(crate) fn is_adaptive(&self) -> bool {
        matches!(self.kind, NormKind::Adaptive { .. })
    }

    /// The gradients of x and m of an adaptive normalization, given x, m and what the forward pass has saved of rows.
    pub(crate) fn backward_on_cpu(
        &self,
        [x, m, stats]: [&Tensor; 3],
        dy: &Tensor,
        [dx, dm]: [Option<&mut GradBuffer>; 2],
    ) {
        let affine = Affine::new(self, &[x, m]);
        with_float!(dy.dtype(), T => {
            cpu::backward::<T>(self, x, &affine, stats.read(), dy.read(), [dx, dm, None]);
        });
    }

    /// Whether the mean is subtracted.
    fn is_centred(&self) -> bool {
        self.kind != NormKind::Rms
    }
}

/// Scale and shift vectors: one pair per group of rows.
struct Affine<'a> {
    /// The weight is `offset` plus the values stored here, starting at element `w_start`.
    w: &'a Tensor,
    w_start: usize,
    offset: f64,
    /// The bias, starting at element `b_start`.
    b: Option<&'a Tensor>,
    b_start: usize,
    /// Number of groups, and the stride in elements between their vectors.
    groups: usize,
    stride: usize,
}

impl<'a> Affine<'a> {
    /// Creates the vectors from the op's `inputs`, x first; the bias may be absent.
    fn new(op: &Normalization, inputs: &[&'a Tensor]) -> Self {
        let (w, b, h) = (inputs[1], inputs.get(2).copied(), inputs[0].width());
        match op.kind {
            NormKind::Layer | NormKind::Rms => {
                Affine { w, w_start: 0, offset: 0.0, b, b_start: 0, groups: 1, stride: 0 }
            }
            NormKind::Adaptive { shift, scale } => {
                let (w_start, b_start) = (scale * h, shift * h);
                let (groups, stride) = (w.rows(), w.width());
                Affine { w, w_start, offset: 1.0, b: Some(w), b_start, groups, stride }
            }
        }
    }
}

impl Op for Normalization {
    fn name(&self) -> &'static str {
        match self.kind {
            NormKind::Layer => "layernorm",
            NormKind::Rms => "rmsnorm",
            NormKind::Adaptive { .. } => "adaln",
        }
    }

    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        let fits = match (self.kind, inputs) {
            (NormKind::Layer, [[.., h], w, b]) => **w == [*h] && **b == [*h],
            (NormKind::Rms, [[.., h], w]) => **w == [*h],
            (NormKind::Adaptive { shift, scale }, [[g, .., h], [groups, m]]) => {
                g % groups == 0 && m % h == 0 && shift.max(scale) < m / h
            }
            _ => false,
        };
        let takes = match self.kind {
            NormKind::Layer => "x [.., H], w [H], b [H]",
            NormKind::Rms => "x [.., H] and w [H]",
            NormKind::Adaptive { .. } => {
                "x [G.., H] and m [G, S·H], which holds shift and scale for groups that divide x's first axis"
            }
        };
        if fits { Ok(inputs[0].to_vec()) } else { Err(format!("takes {takes}")) }
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let (x, affine) = (inputs[0], Affine::new(self, inputs));
        let mut stats = Tensor::empty(&[x.rows(), 2], x.dtype());
        with_float!(x.dtype(), T => cpu::forward::<T>(self, x, &affine, stats.write(), out.write()));
        vec![x.clone(), inputs[1].clone(), stats]
    }

    fn backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let (x, affine) = (&saved[0], Affine::new(self, &[&saved[0], &saved[1]]));
        with_float!(dy.dtype(), T => {
            let buffers = grads.buffers([0, 1, 2]);
            cpu::backward::<T>(self, x, &affine, saved[2].read(), dy.read(), buffers);
        });
    }
}

/// Returns test cases: odd widths, one column block, a mean far from zero, many rows, and rows for each kernel: handled
/// by a warp, handled by a block, and too long for the registers of a block.
pub fn layernorm_cases() -> Vec<Case> {
    let op = Normalization { kind: NormKind::Layer, epsilon: 1e-5 };
    let shapes: [&[usize]; 11] = [
        &[3],
        &[5, 7],
        &[2, 3, 17],
        &[129, 96],
        &[35, 256],
        &[3, 385],
        &[19, 1024],
        &[5, 1001],
        &[9, 8200],
        &[2, 8193],
        &[64, 128, 256],
    ];
    let mut cases: Vec<Case> = shapes
        .iter()
        .map(|shape| {
            let h = &shape[shape.len() - 1..];
            Case::new(op, &[shape, h, h])
        })
        .collect();
    cases.push(Case::new(op, &[&[33, 64], &[64], &[64]]).draw(0, Draw::Uniform(20.0, 22.0)));
    cases
}

/// Returns test cases: odd widths, many rows, and rows for each kernel.
pub fn rmsnorm_cases() -> Vec<Case> {
    let op = Normalization { kind: NormKind::Rms, epsilon: 1e-6 };
    let long: [&[usize]; 4] = [&[19, 1024], &[5, 1001], &[9, 8200], &[2, 8193]];
    [&[3][..], &[5, 7], &[2, 9, 8], &[129, 33], &[64, 128, 256]]
        .iter()
        .chain(&long)
        .map(|shape| Case::new(op, &[shape, &shape[shape.len() - 1..]]))
        .collect()
}

/// Returns test cases: one and several groups, groups of one row, unused vectors in m, groups and rows over many
/// blocks.
pub fn adaln_cases() -> Vec<Case> {
    let op =
        |shift, scale| Normalization { kind: NormKind::Adaptive { shift, scale }, epsilon: 1e-5 };
    vec![
        Case::new(op(0, 1), &[&[1, 5], &[1, 10]]),
        Case::new(op(1, 0), &[&[3, 7, 5], &[3, 10]]),
        Case::new(op(2, 4), &[&[4, 17], &[2, 17 * 6]]),
        Case::new(op(3, 5), &[&[5, 3, 4, 33], &[5, 33 * 6]]),
        Case::new(op(1, 2), &[&[2, 70, 24], &[2, 24 * 3]]),
        Case::new(op(0, 1), &[&[2, 9, 600], &[2, 1200]]),
        Case::new(op(1, 0), &[&[2, 5, 8200], &[2, 16400]]),
        Case::new(op(0, 1), &[&[64, 128, 256], &[64, 512]]),
    ]
}
