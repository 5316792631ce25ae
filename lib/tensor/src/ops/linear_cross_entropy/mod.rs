//! Cross entropy of the softmax of x Wᵀ, without the logits in memory: x [R, K], W [V, K], targets t [R] (i32), optional
//! weights w [R] (default 1), L [1].
//!
//! The value is that of [`CrossEntropy`] of the logits x Wᵀ. They are R·V numbers, for a language model more than all its
//! activations, so they are computed in tiles (CPU) or chunks of rows (GPU) that are dropped at once, and again in the
//! backward pass (Wijmans et al. 2024, "Cut your losses in large-vocabulary language models", without its filter of
//! small gradients). Saved are two numbers a row. With P = softmax(x Wᵀ) - [v = t], scaled by dy and w: dx = P W and
//! dW = Pᵀ x. Costs 2·R·V·K operations forward and three times as many backward, or twice as many if W is frozen. On the CPU
//! rows without a label cost nothing; on a GPU, whose host does not know the labels, select the labelled rows first.

mod cpu;
mod cuda;

use super::cross_entropy::CrossEntropy;
use crate::dtype::{Dtype, Element};
use crate::op::{Case, Draw, Grads, Op, Saved};
use crate::tensor::Tensor;
use crate::with_float;

/// Cross entropy of the softmax of a linear layer without bias, summed over rows; inputs x, W, targets and, optionally,
/// row weights.
#[derive(Clone, Copy, Debug)]
pub struct LinearCrossEntropy {
    /// Rows with this target are ignored; usually -100.
    pub ignore: i32,
    /// ε of label smoothing.
    pub smoothing: f64,
}

impl LinearCrossEntropy {
    /// The same loss of logits.
    fn of_logits(self) -> CrossEntropy {
        CrossEntropy { ignore: self.ignore, smoothing: self.smoothing, gamma: 0.0 }
    }
}

impl Op for LinearCrossEntropy {
    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        match inputs {
            [[rows, k], [classes, of_w], each @ ..]
                if *classes > 0
                    && *k > 0
                    && k == of_w
                    && matches!(each.len(), 1 | 2)
                    && each.iter().all(|x| **x == [*rows]) =>
            {
                Ok(vec![1])
            }
            _ => Err("takes x [R, K], W [V, K], targets [R] and, optionally, weights [R]".into()),
        }
    }

    fn constants(&self) -> &'static [usize] {
        &[2, 3]
    }

    fn input_dtype(&self, i: usize, compute: Dtype) -> Dtype {
        match i {
            0 | 1 => compute,
            2 => Dtype::I32,
            _ => self.output_dtype(compute),
        }
    }

    fn output_dtype(&self, compute: Dtype) -> Dtype {
        if compute == Dtype::F64 { Dtype::F64 } else { Dtype::F32 }
    }

    fn flops(&self, inputs: &[&[usize]]) -> usize {
        2 * inputs[0].iter().product::<usize>() * inputs[1][0]
    }

    fn backward_flops(&self, inputs: &[&[usize]], needed: &[bool]) -> usize {
        match needed.iter().filter(|needed| **needed).count() {
            0 => 0,
            products => (products + 1) * self.flops(inputs),
        }
    }

    fn workspace(&self, inputs: &[&[usize]], element: usize) -> usize {
        cuda::chunk_rows(inputs[0][0], inputs[1][0], element) * inputs[1][0] * element
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let x = inputs[0];
        let mut stats = Tensor::empty(&[x.rows(), 2], x.dtype());
        with_float!(x.dtype(), T => {
            out.write::<T>()[0] = cpu::forward::<T>(self, inputs, stats.write());
        });
        saved(inputs, stats)
    }

    fn backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let inputs: Vec<&Tensor> = saved[1..].iter().collect();
        with_float!(dy.dtype(), T => {
            let dy = T::of(dy.item());
            cpu::backward::<T>(self, &inputs, saved[0].read(), dy, grads.buffers([0, 1]));
        });
    }
}

/// Returns the saved tensors: maximum and log-sum of each row, then the inputs.
fn saved(inputs: &[&Tensor], stats: Tensor) -> Saved {
    std::iter::once(stats).chain(inputs.iter().map(|x| (*x).clone())).collect()
}

/// Returns test cases: one class, odd sizes, ignored rows, label smoothing, several tiles in both directions, row weights,
/// a large vocabulary.
pub fn cases() -> Vec<Case> {
    let case = |ignore, smoothing, rows: usize, classes: usize, k: usize| {
        let bound = (3.0 / k as f64).sqrt();
        let op = LinearCrossEntropy { ignore, smoothing };
        Case::new(op, &[&[rows, k], &[classes, k], &[rows]])
            .draw(1, Draw::Uniform(-bound, bound))
            .draw(2, Draw::RandInt(classes as u64))
            .flops(2 * rows * classes * k)
    };
    let weighted = |mut case: Case| {
        case.inputs.push((case.inputs[2].0.clone(), Draw::Constant));
        case
    };
    vec![
        case(-100, 0.0, 1, 1, 1),
        case(-100, 0.0, 3, 7, 5),
        case(2, 0.1, 40, 5, 3),
        case(1, 0.0, 129, 33, 8),
        weighted(case(-100, 0.25, 17, 264, 9)),
        case(-100, 0.0, 5, 1543, 16),
        weighted(case(3, 0.1, 300, 1100, 24)),
        case(-100, 0.0, 2, 50_257, 7),
    ]
}

#[cfg(test)]
mod tests;
