//! Residual connections with a gain: out = x + w ∘ y. x and y [.., H].
//!
//! - LayerScale: w = s, [H]. With s = 0, x is unchanged, so a model can start as the identity (Touvron et al. 2021).
//! - Gated: w = 1 + g_i, where the gain g depends on a condition; inputs x, y [G.., H], whose leading axes split into G
//!   groups of equal size (one per sample), and m [G, S·H] with S vectors per group, where g is vector `gain`.
//!
//! dx = dout, dy = w ∘ dout, dw = Σ dout ∘ y over all rows, or over the rows of a group.

pub(crate) mod cpu;
pub(crate) mod cuda;

use crate::op::{Case, Grads, Op, Saved};
use crate::tensor::Tensor;
use crate::with_float;

/// Adds a scaled branch; inputs x, y and s or m. For an unscaled branch, use [`crate::ops::binary::Binary::Add`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residual {
    /// Scales by s [H].
    Scaled,
    /// Scales by 1 + g, a vector of each group.
    Gated {
        /// Index of g among the vectors of m.
        gain: usize,
    },
}

/// The weights w: `offset` plus a vector for each of `groups` groups of rows, `stride` elements apart, the first of which
/// begins at element `start`.
#[derive(Clone, Copy)]
pub(crate) struct Gain {
    pub(crate) start: usize,
    pub(crate) stride: usize,
    pub(crate) groups: usize,
    offset: f64,
}

impl Gain {
    /// 1 + g, where g is vector `gain` of `width` elements of m [G, S·H].
    pub(crate) fn of_vector(gain: usize, width: usize, m: &Tensor) -> Self {
        Self { start: gain * width, stride: m.width(), groups: m.rows(), offset: 1.0 }
    }

    /// The number of rows of a group.
    pub(crate) fn group(&self, rows: usize) -> usize {
        (rows / self.groups.max(1)).max(1)
    }
}

impl Residual {
    /// The weights, given the width of a row and the tensor that holds them.
    fn gain(self, width: usize, w: &Tensor) -> Gain {
        match self {
            Self::Scaled => Gain { start: 0, stride: 0, groups: 1, offset: 0.0 },
            Self::Gated { gain } => Gain::of_vector(gain, width, w),
        }
    }
}

impl Op for Residual {
    fn name(&self) -> &'static str {
        match self {
            Self::Scaled => "residual",
            Self::Gated { .. } => "gated_residual",
        }
    }

    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        match (self, inputs) {
            (Self::Scaled, [x @ [.., h], y, [s]]) if x == y && s == h => Ok(x.to_vec()),
            (Self::Gated { gain }, [x @ [g, .., h], y, [groups, m]])
                if x == y && g % groups == 0 && m % h == 0 && *gain < m / h =>
            {
                Ok(x.to_vec())
            }
            (Self::Scaled, _) => Err("takes x and y [.., H] and s [H]".into()),
            (Self::Gated { .. }, _) => Err(
                "takes x and y [G.., H] and m [G, S·H], which holds the gain for groups that divide x's first axis"
                    .into(),
            ),
        }
    }

    fn kept(&self, inputs: &[&Tensor], _out: &Tensor) -> Saved {
        inputs[1..].iter().map(|x| (*x).clone()).collect()
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let [x, y, w] = [inputs[0], inputs[1], inputs[2]];
        let gain = self.gain(x.width(), w);
        with_float!(out.dtype(), T => {
            cpu::forward::<T>(gain, [x.read(), y.read(), w.read()], x.width(), out.write());
        });
        vec![y.clone(), w.clone()]
    }

    fn backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let ([y, w], buffers) = ([&saved[0], &saved[1]], grads.buffers([1, 2]));
        let gain = self.gain(y.width(), w);
        with_float!(dy.dtype(), T => {
            cpu::backward::<T>(gain, [y.read(), w.read(), dy.read()], y.width(), buffers);
        });
        grads.accumulate(0, dy);
    }
}

/// Returns test cases: odd sizes, rows split over several blocks.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new(Residual::Scaled, &[&[3, 5], &[3, 5], &[5]]),
        Case::new(Residual::Scaled, &[&[65, 33, 7], &[65, 33, 7], &[7]]),
        Case::new(Residual::Scaled, &[&[150, 264], &[150, 264], &[264]]),
        Case::new(Residual::Scaled, &[&[64, 128, 256], &[64, 128, 256], &[256]]),
    ]
}

/// Returns test cases: one and several groups, groups of one row, unused vectors in m, odd widths, many rows.
pub fn gated_cases() -> Vec<Case> {
    let case = |gain, x: &[usize], m: &[usize]| Case::new(Residual::Gated { gain }, &[x, x, m]);
    vec![
        case(0, &[1, 5], &[1, 5]),
        case(1, &[3, 7, 5], &[3, 10]),
        case(5, &[4, 17], &[2, 17 * 6]),
        case(2, &[5, 3, 4, 33], &[5, 33 * 6]),
        case(2, &[2, 70, 264], &[2, 264 * 3]),
        case(1, &[64, 128, 256], &[64, 512]),
    ]
}
