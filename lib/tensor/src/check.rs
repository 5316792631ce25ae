//! Checks that run for every case of every op: the gradient against finite differences in f64, and each dtype on each
//! device against f64 on the CPU.

use crate::device::Device;
use crate::dtype::Dtype;
use crate::op::{self, Case, Draw, GradBuffer, Input, Saved};
use crate::random::{Permutation, Philox, Purpose};
use crate::tensor::Tensor;
use rayon::prelude::*;
use unix::Result;

/// Draws random values for one input of a case.
pub fn draw(shape: &[usize], draw: &Draw, seed: u64, input: u64) -> Tensor {
    let random = Philox::new(seed, Purpose::Test);
    if let Draw::RandInt(n) = draw {
        let count = shape.iter().product::<usize>();
        let values: Vec<i32> =
            (0..count).into_par_iter().map(|i| random.below(input, i as u64, *n) as i32).collect();
        return Tensor::from_slice(&values, shape);
    }
    let n = shape.iter().product::<usize>();
    let each = |value: &(dyn Fn(u64) -> f64 + Sync)| -> Vec<f64> {
        (0..n).into_par_iter().map(|i| value(i as u64)).collect()
    };
    let values = match draw {
        Draw::Normal | Draw::Constant => each(&|i| f64::from(random.normal(input, i))),
        Draw::Distinct(low, high) => {
            let order = Permutation::keyed(random.at_update(input), n as u64);
            let step = (high - low) / n as f64;
            each(&|i| low + step * (order.get(i) as f64 + 0.5))
        }
        Draw::RandInt(_) => unreachable!("drawn above"),
        Draw::Uniform(low, high) => {
            each(&|i| low + (high - low) * f64::from(random.uniform(input, i)))
        }
    };
    Tensor::from_slice(&values, shape)
}

/// Draws the inputs of a case for a computation in f64.
pub fn inputs(case: &Case, seed: u64) -> Vec<Tensor> {
    let drawn = (0..).zip(&case.inputs).map(|(i, (shape, d))| draw(shape, d, seed, i));
    case.inputs_in(&drawn.collect::<Vec<_>>(), Dtype::F64)
}

/// Runs a case's op on the device of `inputs`; returns the output and the tensors saved for the backward pass.
///
/// # Panics
/// If the op rejects the shapes.
pub fn forward(case: &Case, inputs: &[Tensor]) -> (Tensor, Saved) {
    let shapes: Vec<&[usize]> = inputs.iter().map(Tensor::shape).collect();
    let shape = case.op.shape(&shapes).unwrap_or_else(|why| panic!("{}: {why}", case.op.name()));
    op::forward(&*case.op, &inputs.iter().collect::<Vec<_>>(), &shape)
}

/// How a backward pass handles an input gradient.
#[derive(Clone)]
enum Gradient {
    Unwanted,
    Written,
    /// Added to this tensor.
    Added(Tensor),
}

/// Computes the requested input gradients from the output gradient `dy`.
fn gradients(
    case: &Case,
    inputs: &[Tensor],
    saved: &Saved,
    dy: Tensor,
    each: Vec<Gradient>,
) -> Vec<Option<Tensor>> {
    let wanted: Vec<Input> = (case.inputs.iter().zip(inputs).zip(&each).enumerate())
        .map(|(i, (((_, draw), x), gradient))| Input {
            variable: match gradient {
                Gradient::Unwanted => None,
                _ => draw.is_differentiated().then_some(i),
            },
            shape: x.shape().into(),
            dtype: x.dtype(),
        })
        .collect();
    let there = |gradient| match gradient {
        Gradient::Added(tensor) => Some(GradBuffer { tensor, accumulate: true }),
        _ => None,
    };
    let mut all: Vec<Option<GradBuffer>> = each.into_iter().map(there).collect();
    op::backward(
        &*case.op,
        saved,
        dy,
        &wanted,
        &mut all,
        (&mut op::GradientPlan::default(), false),
    );
    all.into_iter().map(|slot| slot?.gradient()).collect()
}

/// Computes the gradients of all inputs (`None` for constants) from the output gradient `dy`, which the op may
/// overwrite if it is not shared.
pub fn backward(case: &Case, inputs: &[Tensor], saved: &Saved, dy: Tensor) -> Vec<Option<Tensor>> {
    gradients(case, inputs, saved, dy, vec![Gradient::Written; inputs.len()])
}

/// Runs a forward and a backward pass; returns the output and the gradients of all inputs (`None` for constants) for
/// the output gradient `dy`. With `existing`, gradients are added to these tensors.
pub fn run(
    case: &Case,
    inputs: &[Tensor],
    dy: &Tensor,
    existing: Option<&[Tensor]>,
) -> (Tensor, Vec<Option<Tensor>>) {
    let (out, saved) = forward(case, inputs);
    let each = match existing {
        Some(existing) => existing.iter().cloned().map(Gradient::Added).collect(),
        None => vec![Gradient::Written; inputs.len()],
    };
    (out, gradients(case, inputs, &saved, dy.clone(), each))
}

/// Returns the gradient requests to test: all written, all accumulated and, if several inputs are differentiated, three
/// mixtures in which each gradient is skipped once, written once and accumulated once.
fn requests(case: &Case, before: &[Tensor]) -> Vec<Vec<Gradient>> {
    let added = || before.iter().cloned().map(Gradient::Added).collect::<Vec<_>>();
    let mut all = vec![vec![Gradient::Written; before.len()], added()];
    let several = case.inputs.iter().filter(|(_, draw)| draw.is_differentiated()).count() > 1;
    for turn in 0..if several { 3 } else { 0 } {
        let mut mixed = added();
        let differentiated =
            case.inputs.iter().zip(&mut mixed).filter(|((_, d), _)| d.is_differentiated());
        for (i, (_, gradient)) in differentiated.enumerate() {
            match (i + turn) % 3 {
                0 => *gradient = Gradient::Unwanted,
                1 => *gradient = Gradient::Written,
                _ => {}
            }
        }
        all.push(mixed);
    }
    all
}

fn dot(a: &Tensor, b: &Tensor) -> f64 {
    a.to_f64().iter().zip(b.to_f64()).map(|(a, b)| a * b).sum()
}

/// Returns the difference in f64 between ⟨dy, Df·v⟩ by central differences and ⟨dx, v⟩ by `backward`, along one random
/// direction v of all inputs together. It is relative to ‖dx‖, the standard deviation of ⟨dx, v⟩ over directions: the
/// product itself is occasionally near zero by chance, and rounding would then dominate.
pub fn gradient_error(case: &Case, seed: u64) -> f64 {
    let x = inputs(case, seed);
    let v: Vec<Tensor> = (0..)
        .zip(&case.inputs)
        .map(|(i, (shape, d))| match d {
            d if !d.is_differentiated() => Tensor::zeros(shape, Dtype::F64),
            _ => draw(shape, &Draw::Normal, seed ^ 0x5eed, i),
        })
        .collect();
    let shape = forward(case, &x).0.shape().to_vec();
    let dy = draw(&shape, &Draw::Normal, seed ^ 0xd1f, 0);
    let (_, gradients) = run(case, &x, &dy, None);
    let analytic: f64 =
        gradients.iter().zip(&v).filter_map(|(g, v)| g.as_ref().map(|g| dot(g, v))).sum();
    let norm = gradients.iter().flatten().map(|g| dot(g, g)).sum::<f64>().sqrt();
    let along = |step: f64| {
        let moved: Vec<Tensor> = x
            .iter()
            .zip(&v)
            .map(|(x, v)| {
                if x.dtype() != Dtype::F64 {
                    return x.clone();
                }
                let sum: Vec<f64> =
                    x.to_f64().iter().zip(v.to_f64()).map(|(x, v)| x + step * v).collect();
                Tensor::from_slice(&sum, x.shape())
            })
            .collect();
        forward(case, &moved).0.to_f64()
    };
    // Fourth-order central differences: truncation error h⁴ against rounding error ε/h. Near a kink (such as the
    // maximum of two almost equal numbers) only a large step fails, while a wrong gradient fails at every step. Outputs
    // are subtracted before summing, because rounding of their sum would be far larger.
    let error = |h: f64| {
        let [near, before, far, far_before] = [h, -h, 2.0 * h, -2.0 * h].map(along);
        let change = |i: usize| 8.0 * (near[i] - before[i]) - (far[i] - far_before[i]);
        let changes = dy.to_f64().into_iter().enumerate().map(|(i, dy)| dy * change(i));
        let numeric = changes.sum::<f64>() / (12.0 * h);
        (analytic - numeric).abs() / numeric.abs().max(norm).max(1e-3)
    };
    let mut least = f64::INFINITY;
    for h in [3e-4, 2e-5, 1e-6] {
        least = least.min(error(h));
        if least < 1e-7 {
            break;
        }
    }
    least
}

/// Returns the scale of a tensor's elements: their root mean square or a fifth of the largest, whichever is larger (the
/// latter when most elements are zero).
fn size(x: &Tensor) -> f64 {
    let x = x.to_f64();
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len().max(1) as f64;
    let largest = x.iter().fold(0.0, |largest, x| f64::max(largest, x.abs()));
    mean.sqrt().max(largest / 5.0).max(1e-30)
}

/// Returns max |a - b| relative to the root mean square of b or a fifth of its largest element, whichever is larger
/// (the latter when most of b is zero).
pub fn difference(a: &Tensor, b: &Tensor) -> f64 {
    let (x, y) = (a.to_f64(), b.to_f64());
    let worst = x.iter().zip(&y).map(|(x, y)| (x - y).abs());
    // f64::max ignores NaN, which must count as the worst result.
    worst.fold(0.0, |worst, x| if x.is_nan() { x } else { f64::max(worst, x) }) / size(b)
}

/// Returns the allowed difference between kernel results and the f64 CPU reference, relative to their root mean square.
///
/// The largest of many elements is about five times the root mean square. It is rounded once when stored, after a few
/// roundings of its inputs; a sum of n terms in f32 adds at most about √n roundings.
pub fn tolerance(dtype: Dtype, terms: usize) -> f64 {
    24.0 * dtype.roundoff() + 4.0 * Dtype::F32.roundoff() * (terms as f64).sqrt()
}

/// Perturbs every element of the tensors in f64 by at most one rounding error of `dtype`.
fn nearby(tensors: &[Tensor], dtype: Dtype, seed: u64) -> Vec<Tensor> {
    let random = Philox::new(seed, Purpose::Test);
    let off = |sample: u64, tensor: &Tensor| {
        if tensor.dtype() != Dtype::F64 {
            return tensor.clone();
        }
        let values = tensor.to_f64().into_iter().zip(0..).map(|(x, i)| {
            let share = 2.0 * f64::from(random.uniform(sample, i)) - 1.0;
            x * (1.0 + share * dtype.roundoff())
        });
        Tensor::from_slice(&values.collect::<Vec<f64>>(), tensor.shape())
    };
    (0..).zip(tensors).map(|(sample, tensor)| off(sample, tensor)).collect()
}

/// Inputs, output gradient and existing gradients of a check.
struct Given {
    inputs: Vec<Tensor>,
    dy: Tensor,
    before: Vec<Tensor>,
}

impl Given {
    fn map(&self, each: impl Fn(&[Tensor]) -> Result<Vec<Tensor>>) -> Result<Self> {
        let dy = each(std::slice::from_ref(&self.dy))?.swap_remove(0);
        Ok(Self { inputs: each(&self.inputs)?, dy, before: each(&self.before)? })
    }

    /// Returns the output, and the gradients for each of the [`requests`].
    fn results(&self, case: &Case) -> Vec<Option<Tensor>> {
        let (out, saved) = forward(case, &self.inputs);
        let mut results = vec![Some(out)];
        for request in requests(case, &self.before) {
            let found = gradients(case, &self.inputs, &saved, self.dy.clone(), request);
            let differentiated = case.inputs.iter().map(|(_, draw)| draw.is_differentiated());
            results.extend(found.into_iter().zip(differentiated).map(|(g, is)| g.filter(|_| is)));
        }
        results
    }
}

/// Returns the largest difference between a result in `dtype` on `device` and the f64 CPU reference, as a multiple of
/// the allowed difference: over the output and every gradient, in several mixtures of skipped, written and accumulated
/// gradients. Errors: device errors.
///
/// The allowed difference is the [`tolerance`] or, if results are more sensitive to their inputs (a normalization of
/// three numbers, a sum that cancels), twelve times the change caused by one rounding of every input: the largest
/// change over 3 random perturbations, or over 12 if inputs have fewer than 1000 elements.
pub fn device_error(case: &Case, dtype: Dtype, device: Device, seed: u64) -> Result<f64> {
    let inputs = case.inputs_in(&inputs(case, seed), dtype);
    let shapes: Vec<&[usize]> = inputs.iter().map(Tensor::shape).collect();
    let shape = case.op.shape(&shapes).unwrap_or_else(|why| panic!("{}: {why}", case.op.name()));
    let dtype_of_out = case.op.output_dtype(inputs[0].dtype());
    let dy = draw(&shape, &Draw::Normal, seed ^ 0xd1f, 0).to_dtype(dtype_of_out);
    // Existing gradients far from zero: a sum that cancels would be small, but its intermediate rounding errors not.
    let before = (100..)
        .zip(&inputs)
        .map(|(i, x)| {
            let of_gradient = if x.dtype().is_float() { x.dtype() } else { dtype };
            draw(x.shape(), &Draw::Uniform(1.0, 2.0), seed, i).to_dtype(of_gradient)
        })
        .collect();
    let terms = inputs.iter().map(Tensor::len).max().unwrap_or(1);
    let given = Given { inputs, dy, before };
    let found = given.map(|x| x.iter().map(|x| x.to_device(device)).collect())?.results(case);
    let exact = given.map(|x| Ok(x.iter().map(|x| x.to_dtype(Dtype::F64)).collect()))?;
    let exact = Given { inputs: case.inputs_in(&given.inputs, Dtype::F64), ..exact };
    let expected = exact.results(case);
    // Few results show the spread of their errors less often than many.
    let least = expected.iter().flatten().map(Tensor::len).min().unwrap_or(1);
    let draws = if terms < 1000 || least < 8 { 12 } else { 3 };
    let near: Vec<_> = (1..=draws)
        .map(|k| Ok(exact.map(|x| Ok(nearby(x, dtype, seed ^ k)))?.results(case)))
        .collect::<Result<_>>()?;
    let mut worst: f64 = 0.0;
    for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
        let (Some(found), Some(expected)) = (found, expected) else { continue };
        let spread = near.iter().filter_map(|near| Some(difference(near[i].as_ref()?, expected)));
        let allowed = tolerance(found.dtype(), terms).max(12.0 * spread.fold(0.0, f64::max));
        let error = difference(&found.to_host()?, expected);
        // NaN counts as the worst result.
        worst = worst.max(if error.is_nan() { f64::INFINITY } else { error / allowed });
    }
    Ok(worst)
}
