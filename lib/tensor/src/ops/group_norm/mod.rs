//! Group normalization (Wu & He 2018), channels last, and an activation f: y = f(w ∘ n + b) with n = (x - μ)·r.
//!
//! x [B, .., C]; μ and r = 1/√(variance + ε) are computed for each sample and group, over all positions and the
//! C/groups adjacent channels of the group, with the biased variance. w [C] and b [C] if `affine`, otherwise 1 and 0.
//! With one channel per group, this is instance normalization (Ulyanov et al. 2016).
//!
//! With dz = dy ∘ f'(z), z = w ∘ n + b and g = w ∘ dz: dx = r·(g - mean(g) - n·mean(g ∘ n)) with means over the group
//! of the sample; dw = Σ dz ∘ n and db = Σ dz over samples and positions. z is recomputed. Moves 3 elements per element
//! forward, 5 backward.

mod cpu;
mod cuda;

pub use cuda::SOURCE;

use super::activation::Activation;
use crate::op::{Case, Draw, Grads, Op, Saved};
use crate::tensor::Tensor;
use crate::with_float;

/// Group normalization followed by an activation; inputs x and, if `affine`, w and b.
#[derive(Clone, Copy, Debug)]
pub struct GroupNorm {
    /// Number of groups of adjacent channels; must divide the number of channels.
    pub groups: usize,
    /// Whether there are a weight and a bias.
    pub affine: bool,
    /// ε, added to the variance.
    pub epsilon: f64,
    /// Activation f.
    pub activation: Activation,
}

/// Sizes of a call.
#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    /// Positions per sample.
    cells: usize,
    channels: usize,
    groups: usize,
}

impl Sizes {
    /// Channels per group.
    fn width(&self) -> usize {
        self.channels / self.groups
    }
}

impl GroupNorm {
    fn sizes(&self, x: &Tensor) -> Sizes {
        let (batch, channels) = (x.shape()[0], x.width());
        let cells = x.rows().checked_div(batch).unwrap_or(0);
        Sizes { batch, cells, channels, groups: self.groups }
    }
}

impl Op for GroupNorm {
    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        let (x, channels) = match (inputs, self.affine) {
            ([x @ [_, .., c]], false) => (x, *c),
            ([x @ [_, .., c], [w], [b]], true) if w == c && b == c => (x, *c),
            _ => return Err("takes x [B, .., C] and, if affine, w [C] and b [C]".into()),
        };
        if self.groups == 0 || channels == 0 || !channels.is_multiple_of(self.groups) {
            return Err(format!("{} groups do not divide {channels} channels", self.groups));
        }
        Ok(x.to_vec())
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let (x, sizes) = (inputs[0], self.sizes(inputs[0]));
        let mut stats = Tensor::empty(&[sizes.batch, self.groups, 2], x.dtype());
        with_float!(x.dtype(), T => {
            let affine = [1, 2].map(|i| inputs.get(i).map(|vector| vector.read::<T>()));
            cpu::forward::<T>(self, &sizes, x.read(), affine, stats.write(), out.write());
        });
        saved(inputs, stats)
    }

    fn backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let (x, stats) = (&saved[0], &saved[1]);
        with_float!(dy.dtype(), T => {
            let affine = [2, 3].map(|i| saved.get(i).map(|vector| vector.read::<T>()));
            let given = [x.read(), stats.read(), dy.read()];
            cpu::backward::<T>(self, &self.sizes(x), given, affine, grads.buffers([0, 1, 2]));
        });
    }
}

/// Returns the saved tensors: x, μ and r of each sample and group [B, groups, 2], and w and b if present.
fn saved(inputs: &[&Tensor], stats: Tensor) -> Saved {
    let affine = inputs[1..].iter().map(|vector| (*vector).clone());
    [inputs[0].clone(), stats].into_iter().chain(affine).collect()
}

/// Returns test cases: one group, one channel per group and in between; odd sizes, few and many rows and channels, a
/// mean far from zero.
pub fn cases() -> Vec<Case> {
    use Activation::{Gelu, Identity, LeakyRelu, Relu, Silu, Tanh};
    let case = |groups, affine, activation, x: &[usize]| {
        let c = &x[x.len() - 1..];
        let shapes: &[&[usize]] = if affine { &[x, c, c] } else { &[x] };
        Case::new(GroupNorm { groups, affine, epsilon: 1e-5, activation }, shapes)
    };
    vec![
        case(1, true, Identity, &[2, 3]),
        case(1, false, Tanh, &[3, 5, 7]),
        case(3, false, Identity, &[2, 4, 5, 3]),
        case(5, true, Silu, &[3, 3, 3, 5]),
        case(4, true, Gelu, &[3, 7, 6, 12]),
        // Small cases, where z is never so close to zero that rounding flips its sign and changes the derivative.
        case(8, false, Relu, &[2, 3, 5, 8]),
        case(11, true, LeakyRelu, &[2, 4, 3, 66]),
        case(2, true, Silu, &[1, 71, 69, 8]),
        case(1, false, Identity, &[2, 5003, 1]),
        case(40, false, Gelu, &[2, 1, 300, 40]),
        case(8, true, Tanh, &[2, 6, 5, 264]),
        case(33, true, Identity, &[1, 17, 9, 99]),
        case(2, true, Silu, &[2, 9, 11, 6]).draw(0, Draw::Uniform(100.0, 102.0)),
        case(8, false, Identity, &[1, 61, 59, 8]).draw(0, Draw::Uniform(100.0, 102.0)),
        case(64, false, Silu, &[8, 64, 64, 64]),
    ]
}
