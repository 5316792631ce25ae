//! The low-rank update of a linear layer (Hu et al. 2021, "LoRA", section 4.1): out = y + s·(x Aᵀ) Bᵀ, with y [.., N],
//! x [.., K], A [r, K], B [N, r] and a factor s.
//!
//! With l = s·x Aᵀ, which is saved: dy = dout, dB = doutᵀ l, dl = dout B, dx = s·dl A, dA = s·dlᵀ x. Costs 2·R·r·(N + K)
//! FLOPs forward and twice as many backward (R rows); forward also reads y and writes the output, in place.
//!
//! If y holds the update already, because it is a product with W + s·B A
//! ([`FrozenLinear`](super::frozen_linear::FrozenLinear)), then dx is computed there as well, and here only dA and dB: of six
//! products of low rank four are left.

mod cpu;
pub(crate) mod cuda;

use crate::dtype::Element;
use crate::op::{Case, Draw, Grads, Op, Saved};
use crate::tensor::Tensor;
use crate::with_float;

/// Low-rank update; inputs y, x, A, B.
#[derive(Clone, Copy, Debug)]
pub struct LowRank {
    /// The factor s, LoRA's α/r.
    pub scale: f64,
    /// Whether y holds the update already. Then the output is y, and x is a constant.
    pub merged: bool,
}

impl Op for LowRank {
    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        let [y, x, [r, a @ ..], [n, b @ ..]] = inputs else {
            return Err("takes y [.., N], x [.., K], A [r, K] and B [N, r]".into());
        };
        let (rows, of_x) = (y.split_last(), x.split_last());
        let fits = matches!((rows, of_x), (Some((last, of_y)), Some((k, of_x)))
            if last == n && of_y == of_x && *a == [*k] && *b == [*r]);
        match fits {
            true => Ok(y.to_vec()),
            false => Err("takes y [.., N], x [.., K], A [r, K] and B [N, r]".into()),
        }
    }

    fn constants(&self) -> &'static [usize] {
        if self.merged { &[1] } else { &[] }
    }

    fn flops(&self, inputs: &[&[usize]]) -> usize {
        if self.merged {
            return 0;
        }
        let rank = inputs[2][0];
        2 * rank * inputs[..2].iter().map(|x| x.iter().product::<usize>()).sum::<usize>()
    }

    fn backward_flops(&self, inputs: &[&[usize]], needed: &[bool]) -> usize {
        let [y, x] = [inputs[0], inputs[1]].map(|x| x.iter().product::<usize>());
        let of = |i: usize| usize::from(needed[i]);
        // dl, for all but dB.
        let inner = usize::from(needed[1] || needed[2]);
        // x Aᵀ, for dB, which the forward pass has not computed.
        let low = if self.merged { of(3) } else { 0 };
        2 * inputs[2][0] * (y * (of(3) + inner) + x * (of(1) + of(2) + low))
    }

    fn kept(&self, inputs: &[&Tensor], out: &Tensor) -> Saved {
        let mut kept: Saved = inputs[1..].iter().map(|x| (*x).clone()).collect();
        if !self.merged {
            kept.push(Tensor::untouched(&[out.rows(), inputs[2].shape()[0]], out.dtype()));
        }
        kept
    }

    fn adds(&self) -> bool {
        true
    }

    fn forward(&self, others: &[&Tensor], out: &mut Tensor) -> Saved {
        let [x, a, b] = [0, 1, 2].map(|i| others[i]);
        if self.merged {
            return vec![x.clone(), a.clone(), b.clone()];
        }
        let mut low = Tensor::empty(&[x.rows(), a.shape()[0]], x.dtype());
        with_float!(x.dtype(), T => {
            cpu::forward::<T>(T::of(self.scale), [x, a, b], low.write(), out.write());
        });
        vec![x.clone(), a.clone(), b.clone(), low]
    }

    fn backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        with_float!(dy.dtype(), T => {
            cpu::backward::<T>(T::of(self.scale), saved, &dy, grads.buffers([1, 2, 3]));
        });
        grads.accumulate(0, dy);
    }
}

/// Returns test cases: one element, odd sizes, a rank above the widths, more rows than a block, the shapes of a transformer.
pub fn cases() -> Vec<Case> {
    let case = |scale, rows: &[usize], [n, k, r]: [usize; 3]| {
        let [y, x] = [n, k].map(|width| [rows, &[width]].concat());
        let [of_a, of_b] = [k, r].map(|width| (3.0 / width as f64).sqrt());
        Case::new(LowRank { scale, merged: false }, &[&y, &x, &[r, k], &[n, r]])
            .draw(2, Draw::Uniform(-of_a, of_a))
            .draw(3, Draw::Uniform(-of_b, of_b))
            .flops(2 * rows.iter().product::<usize>() * r * (n + k))
    };
    vec![
        case(2.0, &[1], [1, 1, 1]),
        case(1.0, &[3, 5], [7, 11, 2]),
        case(0.5, &[4], [3, 2, 5]),
        case(2.0, &[259], [33, 17, 4]),
        case(0.5, &[530], [40, 33, 36]),
        case(1.0, &[2, 130], [72, 136, 8]),
        case(0.25, &[32, 128], [512, 128, 16]),
    ]
}
