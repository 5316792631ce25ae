//! Rotary position embedding (Su et al. 2021, §3.4.2) of the heads of queries or keys, after an optional RMS
//! normalization of each head (Henry et al. 2020).
//!
//! Inputs, in this order:
//! - x [.., heads·D], as queries and keys of separate attention (`Layout::Separate`); D is even;
//! - the table [.., D]: in each row D/2 cosines, then the D/2 sines of the same angles. Its leading axes are the last of
//!   the leading axes of x: one row per token, or one per position that all samples share;
//! - with `norm`, the weight w [D].
//!
//! With n = x, or n = w ∘ x·r with r = 1/√(mean(x²) + ε) over each head, and h = D/2:
//! y_i = n_i·cos_i - n_{i+h}·sin_i, y_{i+h} = n_{i+h}·cos_i + n_i·sin_i. These are the pairs of the files of
//! transformers (`rotate_half`), not the adjacent pairs of the paper. The table may hold any numbers: scaled angles, a
//! factor on cosines and sines, positions on several axes.
//!
//! The transposed rotation gives dn; with g = w ∘ dn: dx = r·(g - x·r·mean(g ∘ x·r)), dw = Σ dn ∘ x·r over rows and
//! heads. Moves 2 elements per element forward, 2 backward, 3 with `norm`; heads share the rows of the table.

mod cpu;
mod cuda;

pub use cuda::SOURCE;

use crate::dtype::Dtype;
use crate::op::{Case, Draw, Grads, Op, Saved};
use crate::tensor::Tensor;
use crate::with_float;

/// Rotation of heads by the angles of their positions.
#[derive(Clone, Copy, Debug)]
pub struct Rotary {
    /// Number of heads.
    pub heads: usize,
    /// ε of the RMS normalization before the rotation; `None` disables it.
    pub norm: Option<f64>,
}

impl Rotary {
    /// The head size of a call whose shapes have been checked.
    fn dim(&self, x: &Tensor) -> usize {
        x.width() / self.heads
    }

    /// What the backward pass needs: the table and, with `norm`, x and w.
    fn saved(&self, inputs: &[&Tensor]) -> Saved {
        let order: &[usize] = if self.norm.is_some() { &[1, 0, 2] } else { &[1] };
        order.iter().map(|i| inputs[*i].clone()).collect()
    }
}

impl Op for Rotary {
    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        let w = if self.norm.is_some() { " and w [D]" } else { "" };
        let wrong = || {
            format!(
                "takes x [.., heads·D] with {} heads, a table of cosines and sines [.., D] whose leading axes end those \
                 of x{w}; D is even",
                self.heads
            )
        };
        let weights = usize::from(self.norm.is_some());
        let ([x, table, rest @ ..], true) = (inputs, inputs.len() == 2 + weights) else {
            return Err(wrong());
        };
        let ([rows @ .., width], [positions @ .., dim]) = (*x, *table) else {
            return Err(wrong());
        };
        let fits = *dim > 0
            && dim.is_multiple_of(2)
            && self.heads > 0
            && self.heads.checked_mul(*dim) == Some(*width)
            && rows.ends_with(positions)
            && rest.iter().all(|w| **w == [*dim]);
        if fits { Ok(x.to_vec()) } else { Err(wrong()) }
    }

    fn constants(&self) -> &'static [usize] {
        &[1]
    }

    /// The table stays in f32: 16 bits would round the angles of distant positions.
    fn input_dtype(&self, i: usize, compute: Dtype) -> Dtype {
        match i {
            1 if compute != Dtype::F64 => Dtype::F32,
            _ => compute,
        }
    }

    fn kept(&self, inputs: &[&Tensor], _out: &Tensor) -> Saved {
        self.saved(inputs)
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let (x, table, w) = (inputs[0], inputs[1], inputs.get(2).copied());
        with_float!(out.dtype(), T => cpu::forward::<T>(self, x, table.read(), w, out.write()));
        self.saved(inputs)
    }

    fn backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let normalized = saved.get(1).zip(saved.get(2));
        with_float!(dy.dtype(), T => {
            let buffers = grads.buffers([0, 2]);
            cpu::backward::<T>(self, saved[0].read(), normalized, &dy, buffers);
        });
    }
}

/// Returns test cases: heads of two elements, odd numbers of heads and tokens, halves that are no multiples of 16 bytes,
/// tables for each token and for each position, and with normalization more rows than one block sums.
pub fn cases() -> Vec<Case> {
    let case = |norm: Option<f64>, rows: &[usize], positions: usize, heads: usize, dim: usize| {
        let x = [rows, &[heads * dim]].concat();
        let table = [&rows[rows.len() - positions..], &[dim]].concat();
        let mut shapes = vec![&x[..], &table];
        let w = [dim];
        if norm.is_some() {
            shapes.push(&w);
        }
        Case::new(Rotary { heads, norm }, &shapes).draw(1, Draw::Constant)
    };
    let norm = Some(1e-6);
    vec![
        case(None, &[1], 1, 1, 2),
        case(None, &[3, 5], 1, 3, 6),
        case(None, &[2, 7], 2, 5, 18),
        case(None, &[2, 3, 4], 0, 2, 32),
        case(None, &[2, 33], 1, 4, 64),
        case(None, &[13], 1, 1, 250),
        case(norm, &[1], 1, 1, 2),
        case(norm, &[3, 5], 1, 3, 6),
        case(norm, &[2, 7], 2, 5, 18),
        case(norm, &[3, 37], 2, 2, 32),
        case(norm, &[2, 67], 1, 3, 128),
        case(norm, &[5, 3], 1, 2, 256),
        case(norm, &[4, 512], 1, 8, 128),
    ]
}
