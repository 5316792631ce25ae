//! Checks that hold for every case of every op: the gradient in f64, f32 against f64, and kernels against
//! the CPU.

use crate::device::Device;
use crate::dtype::Dtype;
use crate::op::{self, Case, Draw, Grads, Input, Saved};
use crate::random::{Philox, Purpose};
use crate::tensor::Tensor;
use unix::Result;

/// Values for an input of a case.
pub fn draw(shape: &[usize], draw: &Draw, seed: u64, input: u64) -> Tensor {
    let random = Philox::new(seed, Purpose::Test);
    if let Draw::Below(n) = draw {
        let count = shape.iter().product::<usize>() as u64;
        let values: Vec<i32> = (0..count).map(|i| random.below(input, i, *n) as i32).collect();
        return Tensor::of(&values, shape);
    }
    let n = shape.iter().product::<usize>() as u64;
    let values: Vec<f64> = match draw {
        Draw::Normal | Draw::Constant => {
            (0..n).map(|i| f64::from(random.normal(input, i))).collect()
        }
        Draw::Below(_) => unreachable!("drawn above"),
        Draw::Uniform(low, high) => {
            (0..n).map(|i| low + (high - low) * f64::from(random.uniform(input, i))).collect()
        }
    };
    Tensor::of(&values, shape)
}

/// The inputs of a case in f64.
pub fn inputs(case: &Case, seed: u64) -> Vec<Tensor> {
    (0..).zip(&case.inputs).map(|(i, (shape, d))| draw(shape, d, seed, i)).collect()
}

fn forward(case: &Case, inputs: &[Tensor]) -> (Tensor, Saved) {
    let shapes: Vec<&[usize]> = inputs.iter().map(Tensor::shape).collect();
    let shape = case.op.shape(&shapes).unwrap_or_else(|why| panic!("{}: {why}", case.op.name()));
    op::forward(&*case.op, &inputs.iter().collect::<Vec<_>>(), &shape)
}

/// What is done with the gradient of an input.
#[derive(Clone)]
enum Gradient {
    Unwanted,
    Written,
    /// Added to this.
    Added(Tensor),
}

/// The gradients of all inputs that want one, for the output gradient `dy`.
fn gradients(
    case: &Case,
    inputs: &[Tensor],
    saved: &Saved,
    dy: &Tensor,
    each: Vec<Gradient>,
) -> Vec<Option<Tensor>> {
    let wanted: Vec<Input> = (case.inputs.iter().zip(inputs).zip(&each).enumerate())
        .map(|(i, (((_, draw), x), gradient))| Input {
            variable: match gradient {
                Gradient::Unwanted => None,
                _ => draw.is_differentiated().then_some(i),
            },
            shape: x.shape().to_vec(),
            dtype: x.dtype(),
        })
        .collect();
    let there = |gradient| match gradient {
        Gradient::Added(before) => Some(before),
        _ => None,
    };
    let mut all: Vec<Option<Tensor>> = each.into_iter().map(there).collect();
    let mut grads = Grads { all: &mut all, inputs: &wanted, device: dy.device() };
    op::backward(&*case.op, saved, dy.clone(), &mut grads);
    all
}

/// Output and the gradients of all inputs (none for constants), for the output gradient `dy`.
/// With `existing`, gradients are added to what is there.
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
    (out, gradients(case, inputs, &saved, dy, each))
}

/// What may be asked of a backward pass: that all gradients are written, that all are added, and, where there
/// are several, mixtures in which each is once unwanted, written and added.
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

/// In another element type, unless it holds indices.
pub fn float_to(x: &Tensor, dtype: Dtype) -> Tensor {
    if x.dtype() == Dtype::I32 { x.clone() } else { x.to_dtype(dtype) }
}

fn dot(a: &Tensor, b: &Tensor) -> f64 {
    a.to_f64().iter().zip(b.to_f64()).map(|(a, b)| a * b).sum()
}

/// Relative difference between ⟨dy, Df·v⟩ by central differences and ⟨dx, v⟩ by `backward`, along
/// one random direction v of all inputs together, in f64.
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
    let along = |step: f64| {
        let moved: Vec<Tensor> = x
            .iter()
            .zip(&v)
            .map(|(x, v)| {
                if x.dtype() == Dtype::I32 {
                    return x.clone();
                }
                let sum: Vec<f64> =
                    x.to_f64().iter().zip(v.to_f64()).map(|(x, v)| x + step * v).collect();
                Tensor::of(&sum, x.shape())
            })
            .collect();
        dot(&forward(case, &moved).0, &dy)
    };
    // Central differences of fourth order: truncation h⁴ against rounding ε/h. Where an op bends
    // sharply a large step sees that; a wrong gradient is wrong at every step.
    let error = |h: f64| {
        let far = along(2.0 * h) - along(-2.0 * h);
        let numeric = (8.0 * (along(h) - along(-h)) - far) / (12.0 * h);
        (analytic - numeric).abs() / numeric.abs().max(analytic.abs()).max(1e-3)
    };
    let first = error(3e-4);
    if first < 1e-7 { first } else { first.min(error(2e-5)) }
}

/// Largest difference between a result in f32 and the same in f64, relative to the root mean square
/// of the latter: over the output and every gradient.
pub fn precision_error(case: &Case, seed: u64) -> f64 {
    let x: Vec<Tensor> = inputs(case, seed).iter().map(|x| float_to(x, Dtype::F32)).collect();
    let x64: Vec<Tensor> = x.iter().map(|x| float_to(x, Dtype::F64)).collect();
    let shape = forward(case, &x).0.shape().to_vec();
    let dy = draw(&shape, &Draw::Normal, seed ^ 0xd1f, 0).to_dtype(Dtype::F32);
    let (out, grads) = run(case, &x, &dy, None);
    let (out64, grads64) = run(case, &x64, &dy.to_dtype(Dtype::F64), None);
    let mut worst = difference(&out, &out64);
    for (g, g64) in grads.iter().zip(&grads64) {
        if let (Some(g), Some(g64)) = (g, g64) {
            worst = worst.max(difference(g, g64));
        }
    }
    worst
}

/// The size of a tensor's elements: their root mean square, or a fifth of the largest where that is more, as
/// where most are zero.
fn size(x: &Tensor) -> f64 {
    let x = x.to_f64();
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len().max(1) as f64;
    let largest = x.iter().fold(0.0, |largest, x| f64::max(largest, x.abs()));
    mean.sqrt().max(largest / 5.0).max(1e-30)
}

/// max |a - b| relative to the root mean square of b, or to a fifth of its largest element where that is
/// more: as where most of b is zero.
pub fn difference(a: &Tensor, b: &Tensor) -> f64 {
    let (x, y) = (a.to_f64(), b.to_f64());
    let worst = x.iter().zip(&y).map(|(x, y)| (x - y).abs());
    // f64::max passes over what is not a number, which is as wrong as can be.
    worst.fold(0.0, |worst, x| if x.is_nan() { x } else { f64::max(worst, x) }) / size(b)
}

/// How far results of kernels may be from those of the CPU in f64, relative to their root mean square.
///
/// The largest of many elements is some five times the root mean square and rounded once when it is
/// stored, after at most a few roundings of what it was made of; and a sum of n terms in f32 gathers
/// at most some √n roundings, of terms that may cancel to a quarter of what they are: few elements
/// often do, all of them.
pub fn tolerance(dtype: Dtype, terms: usize) -> f64 {
    24.0 * dtype.roundoff() + 16.0 * Dtype::F32.roundoff() * (terms as f64).sqrt()
}

/// Largest difference between a result of the kernels in `dtype` on `device` and that of the CPU in
/// f64, as a multiple of its [`tolerance`]: over the output and every gradient, each of them unwanted,
/// written, and added to what was there, in several mixtures. Errors: what the device says.
pub fn device_error(case: &Case, dtype: Dtype, device: Device, seed: u64) -> Result<f64> {
    let given: Vec<Tensor> = inputs(case, seed).iter().map(|x| float_to(x, dtype)).collect();
    let exact: Vec<Tensor> = given.iter().map(|x| float_to(x, Dtype::F64)).collect();
    let moved = |x: &[Tensor]| x.iter().map(|x| x.to_device(device)).collect::<Result<Vec<_>>>();
    let before: Vec<Tensor> = (100..)
        .zip(&given)
        .map(|(i, x)| draw(x.shape(), &Draw::Normal, seed, i).to_dtype(dtype))
        .collect();
    let on_device = moved(&given)?;
    let dtypes: Vec<Dtype> = given.iter().map(Tensor::dtype).collect();
    let terms = given.iter().map(Tensor::len).max().unwrap_or(1);
    let mut worst: f64 = 0.0;
    let mut compare = |what: &Tensor, exact: &Tensor, before: Option<&Tensor>| -> Result<()> {
        // What was there and what is added may cancel, and the sum is as exact as they are.
        let cancelled = before.map_or(1.0, |before| (size(exact) / size(before)).min(1.0));
        let error = difference(&what.to_host()?, exact) * cancelled;
        // A result that is not a number is as wrong as can be.
        let error = if error.is_nan() { f64::INFINITY } else { error };
        worst = worst.max(error / tolerance(what.dtype(), terms));
        Ok(())
    };
    let ((out, saved), (out64, saved64)) = (forward(case, &on_device), forward(case, &exact));
    compare(&out, &out64, None)?;
    let dy = draw(out.shape(), &Draw::Normal, seed ^ 0xd1f, 0).to_dtype(case.op.dtype(&dtypes));
    let (dy, dy64) = (dy.to_device(device)?, dy.to_dtype(Dtype::F64));
    for request in 0..requests(case, &before).len() {
        // What is added to is new each time: a backward pass changes it.
        let ours = requests(case, &moved(&before)?).swap_remove(request);
        let before64: Vec<Tensor> = before.iter().map(|x| x.to_dtype(Dtype::F64)).collect();
        let theirs = requests(case, &before64).swap_remove(request);
        let added: Vec<bool> = ours.iter().map(|g| matches!(g, Gradient::Added(_))).collect();
        let grads = gradients(case, &on_device, &saved, &dy, ours);
        let grads64 = gradients(case, &exact, &saved64, &dy64, theirs);
        for (i, (_, draw)) in case.inputs.iter().enumerate() {
            if let (true, Some(grad), Some(grad64)) =
                (draw.is_differentiated(), &grads[i], &grads64[i])
            {
                compare(grad, grad64, added[i].then_some(&before[i]))?;
            }
        }
    }
    Ok(worst)
}
