//! Cross entropy of a softmax: L = Σ over rows of (1 - ε)·(l - x_t) + ε/V·Σ_v (l - x_v), with
//! l = log Σ_v exp(x_v). logits x [R, V], targets t [R] (I32), L [1].
//!
//! ε smooths the labels (Szegedy et al. 2016). Rows whose target is `ignore` do not count. L is a sum: the mean
//! divides it by the number of rows that count over all micro-batches and ranks of an update, which no op knows.
//! dx = dy·(softmax(x) - (1 - ε)·[v = t] - ε/V): forward keeps two numbers a row, and backward computes the
//! softmax again as it writes. A target is data: one outside 0..V that is not `ignore` makes L NaN. L is f32 for
//! logits of 16 bits.

mod cpu;
mod cuda;

pub use cuda::SOURCE;

use crate::dtype::{Dtype, Element};
use crate::op::{Case, Draw, Grads, Op, Saved};
use crate::tensor::Tensor;
use crate::with_float;

/// Cross entropy, a sum over rows; inputs logits, targets.
#[derive(Clone, Copy, Debug)]
pub struct CrossEntropy {
    /// Rows with this target do not count; -100 is the custom.
    pub ignore: i32,
    /// ε, the part of the target that is spread over all classes.
    pub smoothing: f64,
}

impl Default for CrossEntropy {
    fn default() -> Self {
        Self { ignore: -100, smoothing: 0.0 }
    }
}

impl Op for CrossEntropy {
    fn name(&self) -> &'static str {
        "cross_entropy"
    }

    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        match inputs {
            [[rows, classes], [targets]] if rows == targets && *classes > 0 => Ok(vec![1]),
            _ => Err("takes logits [R, V] and targets [R]".into()),
        }
    }

    fn constants(&self) -> &'static [usize] {
        &[1]
    }

    fn input_dtype(&self, i: usize, compute: Dtype) -> Dtype {
        if i == 1 { Dtype::I32 } else { compute }
    }

    fn output_dtype(&self, compute: Dtype) -> Dtype {
        if compute == Dtype::F64 { Dtype::F64 } else { Dtype::F32 }
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let [x, targets] = [inputs[0], inputs[1]];
        let mut stats = Tensor::arbitrary(&[x.rows(), 2], x.dtype());
        with_float!(x.dtype(), T => {
            let loss = cpu::forward::<T>(self, x, targets.read(), stats.write());
            out.write::<T>()[0] = loss;
        });
        vec![x.clone(), targets.clone(), stats]
    }

    fn backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let [x, targets, stats] = [&saved[0], &saved[1], &saved[2]];
        if let Some(grad) = grads.buffer(0) {
            with_float!(x.dtype(), T => {
                let dy = T::of(dy.item());
                cpu::backward::<T>(self, x, targets.read(), stats.read(), dy, grad);
            });
        }
    }
}

/// One class, odd widths, ignored rows, smoothed labels, a long vocabulary.
pub fn cases() -> Vec<Case> {
    let case = |ignore, smoothing, rows: usize, classes: usize| {
        Case::new(CrossEntropy { ignore, smoothing }, &[&[rows, classes], &[rows]])
            .draw(1, Draw::Below(classes as u64))
    };
    vec![
        case(-100, 0.0, 1, 1),
        case(-100, 0.0, 3, 7),
        case(2, 0.1, 40, 5),
        case(-100, 0.25, 17, 264),
        case(1, 0.0, 129, 33),
        case(-100, 0.1, 5, 1543),
        case(-100, 0.0, 3, 50_257),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tape::{Tape, constant};

    /// L and dx for logits 0, 1, 2 in every row.
    fn of(op: CrossEntropy, targets: &[i32]) -> (f64, Vec<f64>) {
        let rows = targets.len();
        let tape = Tape::new();
        let x = tape.leaf(Tensor::of(&[0.0, 1.0, 2.0].repeat(rows), &[rows, 3]));
        let loss = tape.apply(op, &[&x, &constant(Tensor::of(targets, &[rows]))]).unwrap();
        let dx = tape.backward(&loss).unwrap().take(&x).unwrap();
        (loss.value().item(), dx.to_f64())
    }

    #[test]
    fn rows_that_are_ignored_change_nothing() {
        for smoothing in [0.0, 0.3] {
            let op = CrossEntropy { smoothing, ..CrossEntropy::default() };
            let (loss, dx) = of(op, &[2]);
            let (same, longer) = of(op, &[-100, 2, -100]);
            assert!((loss - same).abs() < 1e-15);
            assert_eq!(longer[..3], [0.0; 3]);
            assert_eq!(longer[3..6], dx[..]);
            assert_eq!(longer[6..], [0.0; 3]);
            assert_eq!(of(op, &[-100, -100]), (0.0, vec![0.0; 6]));
        }
    }

    #[test]
    fn a_target_that_is_no_class_is_not_a_number() {
        for target in [-1, 3, i32::MAX, i32::MIN] {
            assert!(of(CrossEntropy::default(), &[1, target]).0.is_nan(), "{target}");
        }
    }
}
