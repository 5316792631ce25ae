//! Cross entropy of a softmax: L = Σ over rows r of w_r·((1 - ε)·(l - x_t) + ε/V·Σ_v (l - x_v)), with
//! l = log Σ_v exp(x_v). Logits x [R, V], targets t [R] (i32), optional weights w [R] (default 1), L [1].
//!
//! ε smooths the labels (Szegedy et al. 2016). Rows whose target is `ignore` contribute nothing, regardless of their
//! weight and logits. A row with only -∞ logits or with a +∞ logit gives NaN, as in PyTorch (attention, where a mask
//! may hide every key, gives zeros instead). L is a sum: the engine divides it by the total weight over all
//! micro-batches and ranks of an update. dx = dy·w_r·(softmax(x) - (1 - ε)·[v = t] - ε/V). Forward saves two numbers
//! per row, and backward recomputes the softmax on the fly. A target outside 0..V that is not `ignore` makes L NaN.
//! With bf16 or f16 logits, w and L are f32.
//!
//! With γ > 0, each row has a focal loss (Lin et al. 2017, equation 4): with p = exp(x_t - l), the first term of the
//! loss is multiplied by (1 - p)^γ, and dx by (1 - p)^γ - γ·p·(1 - p)^(γ-1)·log p. This requires ε = 0.

mod cpu;
pub(crate) mod cuda;

pub use cuda::SOURCE;

use crate::dtype::{Dtype, Element, Float};
use crate::op::{Case, Draw, Grads, Op, Saved};
use crate::tensor::Tensor;
use crate::with_float;

/// Cross entropy, summed over rows; inputs logits, targets and, optionally, row weights.
#[derive(Clone, Copy, Debug)]
pub struct CrossEntropy {
    /// Rows with this target are ignored; usually -100.
    pub ignore: i32,
    /// ε of label smoothing: the fraction of the target probability that is spread over all classes.
    pub smoothing: f64,
    /// γ of the focal loss; 0 for plain cross entropy.
    pub gamma: f64,
}

impl Default for CrossEntropy {
    fn default() -> Self {
        Self { ignore: -100, smoothing: 0.0, gamma: 0.0 }
    }
}

impl Op for CrossEntropy {
    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        match inputs {
            _ if self.gamma != 0.0 && self.smoothing != 0.0 => {
                Err("a focal loss has no smoothed labels".into())
            }
            [[rows, classes], each @ ..]
                if *classes > 0
                    && matches!(each.len(), 1 | 2)
                    && each.iter().all(|x| **x == [*rows]) =>
            {
                Ok(vec![1])
            }
            _ => Err("takes logits [R, V], targets [R] and, optionally, weights [R]".into()),
        }
    }

    fn constants(&self) -> &'static [usize] {
        &[1, 2]
    }

    fn input_dtype(&self, i: usize, compute: Dtype) -> Dtype {
        match i {
            0 => compute,
            1 => Dtype::I32,
            _ => self.output_dtype(compute),
        }
    }

    fn output_dtype(&self, compute: Dtype) -> Dtype {
        if compute == Dtype::F64 { Dtype::F64 } else { Dtype::F32 }
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let x = inputs[0];
        let mut stats = Tensor::empty(&[x.rows(), 2], x.dtype());
        with_float!(x.dtype(), T => {
            let loss = cpu::forward::<T>(self, inputs, stats.write());
            out.write::<T>()[0] = loss;
        });
        saved(inputs, stats)
    }

    fn backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        if let Some(grad) = grads.buffer(0) {
            let inputs: Vec<&Tensor> = saved[1..].iter().collect();
            with_float!(dy.dtype(), T => {
                cpu::backward::<T>(self, &inputs, saved[0].read(), T::of(dy.item()), grad);
            });
        }
    }
}

/// Returns the optional row weights.
fn weights<'a, T: Float>(inputs: &[&'a Tensor]) -> Option<&'a [T]> {
    inputs.get(2).map(|w| w.read())
}

/// Returns the saved tensors: maximum and log-sum of each row, then the inputs.
fn saved(inputs: &[&Tensor], stats: Tensor) -> Saved {
    std::iter::once(stats).chain(inputs.iter().map(|x| (*x).clone())).collect()
}

/// Returns test cases: one class, odd widths, ignored rows, label smoothing, a large vocabulary; row weights; focal.
pub fn cases() -> Vec<Case> {
    let case = |ignore, smoothing, rows: usize, classes: usize| {
        Case::new(CrossEntropy { ignore, smoothing, gamma: 0.0 }, &[&[rows, classes], &[rows]])
            .draw(1, Draw::RandInt(classes as u64))
    };
    let focal = |gamma, ignore, rows: usize, classes: usize| {
        Case::new(CrossEntropy { ignore, smoothing: 0.0, gamma }, &[&[rows, classes], &[rows]])
            .draw(1, Draw::RandInt(classes as u64))
    };
    let weighted = |mut case: Case| {
        case.inputs.push((case.inputs[1].0.clone(), Draw::Constant));
        case
    };
    vec![
        case(-100, 0.0, 1, 1),
        case(-100, 0.0, 3, 7),
        case(2, 0.1, 40, 5),
        case(-100, 0.25, 17, 264),
        case(1, 0.0, 129, 33),
        case(-100, 0.1, 5, 1543),
        case(-100, 0.0, 3, 50_257),
        weighted(case(-100, 0.0, 1, 1)),
        weighted(case(2, 0.1, 40, 5)),
        weighted(case(-100, 0.25, 17, 1543)),
        focal(2.0, 1, 40, 5),
        weighted(focal(0.5, -100, 17, 2)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tape::{Tape, constant};

    /// Returns L and dx for logits 0, 1, 2 in every row.
    fn of(op: CrossEntropy, targets: &[i32]) -> (f64, Vec<f64>) {
        let rows = targets.len();
        let tape = Tape::new();
        let x = tape.leaf(Tensor::from_slice(&[0.0, 1.0, 2.0].repeat(rows), &[rows, 3]));
        let loss = tape.apply(op, &[&x, &constant(Tensor::from_slice(targets, &[rows]))]).unwrap();
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

    /// Padded rows may contain arbitrary values.
    #[test]
    fn ignored_rows_may_have_logits_that_are_not_finite() {
        let devices = [crate::Device::Cpu, crate::Device::Emu];
        let devices = &devices[..if cfg!(feature = "emu") { 2 } else { 1 }];
        for (device, op) in devices.iter().flat_map(|device| {
            let focal = CrossEntropy { gamma: 2.0, ..CrossEntropy::default() };
            [CrossEntropy { smoothing: 0.1, ..CrossEntropy::default() }, focal]
                .map(|op| (*device, op))
        }) {
            let (inf, nan) = (f32::INFINITY, f32::NAN);
            let logits = [[inf, 0.0, 1.0], [0.0, 1.0, 2.0], [nan, -inf, 0.0], [-inf; 3]];
            let tape = Tape::new();
            let on_device = |x: Tensor| x.to_device(device).unwrap();
            let x = tape.leaf(on_device(Tensor::from_slice(logits.as_flattened(), &[4, 3])));
            let targets = constant(on_device(Tensor::from_slice(&[-100, 2, -100, -100], &[4])));
            let loss = tape.apply(op, &[&x, &targets]).unwrap();
            assert!(loss.value().to_host().unwrap().item().is_finite());
            let dx = tape.backward(&loss).unwrap().take(&x).unwrap().to_host().unwrap();
            let dx = dx.read::<f32>();
            assert!(dx.iter().all(|dx| dx.is_finite()), "{device}: {dx:?}");
            assert!((0..12).all(|i| (dx[i] != 0.0) == (3..6).contains(&i)), "{device}: {dx:?}");
        }
    }

    #[test]
    fn rows_count_as_often_as_their_weights_say() {
        let op = CrossEntropy { smoothing: 0.1, ..CrossEntropy::default() };
        let (loss, dx) = of(op, &[2, 0, 0, 0, 1, -100]);
        let logits = Tensor::from_slice(&[0.0, 1.0, 2.0].repeat(4), &[4, 3]);
        let targets = constant(Tensor::from_slice(&[2, 0, 1, -100], &[4]));
        // An ignored row does not count, regardless of its weight.
        let weights = constant(Tensor::from_slice(&[1.0, 3.0, 1.0, f64::NAN], &[4]));
        let tape = Tape::new();
        let x = tape.leaf(logits);
        let weighted = tape.apply(op, &[&x, &targets, &weights]).unwrap();
        assert!((weighted.value().item() - loss).abs() < 1e-14);
        let found = tape.backward(&weighted).unwrap().take(&x).unwrap().to_f64();
        for (i, found) in found.iter().enumerate() {
            // Row 1 has weight 3 and stands for rows 1, 2 and 3 of the unweighted run; rows 4 and 5 follow.
            let (row, count) = [(0, 1.0), (1, 3.0), (4, 1.0), (5, 0.0)][i / 3];
            assert!((found - count * dx[row * 3 + i % 3]).abs() < 1e-15);
        }
    }

    /// bf16 logits and f32 weights, as in mixed precision.
    #[test]
    fn weights_are_f32_beside_logits_of_16_bits() {
        let tape = Tape::new();
        let x = tape.leaf(Tensor::zeros(&[2, 3], Dtype::Bf16));
        let targets = constant(Tensor::from_slice(&[0, 1], &[2]));
        let half = constant(Tensor::zeros(&[2], Dtype::Bf16));
        let error = tape.apply(CrossEntropy::default(), &[&x, &targets, &half]).unwrap_err();
        assert!(
            error.to_string().contains("cross_entropy: input 2 is bf16, must be f32"),
            "{error}"
        );
        #[cfg(feature = "emu")]
        {
            let on_device = |x: Tensor| constant(x.to_device(crate::Device::Emu).unwrap());
            let x = on_device(
                Tensor::from_slice(&[0.0_f32, 1.0, 2.0].repeat(2), &[2, 3]).to_dtype(Dtype::Bf16),
            );
            let targets = on_device(Tensor::from_slice(&[2, 0], &[2]));
            let weights = on_device(Tensor::from_slice(&[0.25_f32, 1.003_906_3], &[2]));
            let loss = tape.apply(CrossEntropy::default(), &[&x, &targets, &weights]).unwrap();
            let log = (0..3).map(|i| f64::from(i).exp()).sum::<f64>().ln();
            // The second weight lies between two bf16 numbers.
            let expected = 0.25 * (log - 2.0) + 1.003_906_3 * log;
            let found = loss.value().to_host().unwrap();
            assert_eq!(found.dtype(), Dtype::F32);
            assert!((found.item() - expected).abs() < 1e-6, "{} {expected}", found.item());
        }
    }

    #[test]
    fn a_target_that_is_no_class_is_not_a_number() {
        for target in [-1, 3, i32::MAX, i32::MIN] {
            assert!(of(CrossEntropy::default(), &[1, target]).0.is_nan(), "{target}");
        }
    }
}
