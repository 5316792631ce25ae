//! Checks that hold for every case of every op: the gradient in f64, f32 against f64, and kernels against
//! the CPU.

use crate::device::Device;
use crate::dtype::Dtype;
use crate::op::{self, Case, Draw, Grads, Input};
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

fn forward(case: &Case, inputs: &[Tensor]) -> (Tensor, Vec<Tensor>) {
    let shapes: Vec<&[usize]> = inputs.iter().map(Tensor::shape).collect();
    let shape = case.op.shape(&shapes).unwrap_or_else(|why| panic!("{}: {why}", case.op.name()));
    op::forward(&*case.op, &inputs.iter().collect::<Vec<_>>(), &shape)
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
    let wanted: Vec<Input> = case
        .inputs
        .iter()
        .zip(inputs)
        .enumerate()
        .map(|(i, ((_, draw), x))| Input {
            variable: draw.is_differentiated().then_some(i),
            shape: x.shape().to_vec(),
            dtype: x.dtype(),
        })
        .collect();
    let mut all: Vec<Option<Tensor>> = match existing {
        Some(existing) => existing.iter().map(|x| Some(x.clone())).collect(),
        None => vec![None; inputs.len()],
    };
    let mut grads = Grads { all: &mut all, inputs: &wanted, device: dy.device() };
    op::backward(&*case.op, &saved, dy.clone(), &mut grads);
    (out, all)
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

/// max |a - b| relative to the root mean square of b, or to a fifth of its largest element where that is
/// more: as where most of b is zero.
pub fn difference(a: &Tensor, b: &Tensor) -> f64 {
    let (a, b) = (a.to_f64(), b.to_f64());
    let mean = b.iter().map(|x| x * x).sum::<f64>() / b.len().max(1) as f64;
    let largest = b.iter().fold(0.0, |largest, x| f64::max(largest, x.abs()));
    let scale = mean.sqrt().max(largest / 5.0).max(1e-30);
    let worst = a.iter().zip(&b).map(|(a, b)| (a - b).abs());
    // f64::max passes over what is not a number, which is as wrong as can be.
    worst.fold(0.0, |worst, x| if x.is_nan() { x } else { f64::max(worst, x) }) / scale
}

/// How far results of kernels may be from those of the CPU in f64, relative to their root mean square.
///
/// The largest of many elements is some five times the root mean square and rounded once when it is
/// stored, after at most a few roundings of what it was made of; and a sum of n terms in f32 gathers
/// at most some √n roundings.
pub fn tolerance(dtype: Dtype, terms: usize) -> f64 {
    24.0 * dtype.roundoff() + 4.0 * Dtype::F32.roundoff() * (terms as f64).sqrt()
}

/// Output and gradients.
type Results = (Tensor, Vec<Option<Tensor>>);

/// The same tensors with every element off by at most one rounding of `dtype`.
fn nearby(tensors: &[Tensor], dtype: Dtype, seed: u64) -> Vec<Tensor> {
    let random = Philox::new(seed, Purpose::Test);
    let off = |sample: u64, tensor: &Tensor| {
        if tensor.dtype() == Dtype::I32 {
            return tensor.clone();
        }
        let values = tensor.to_f64().into_iter().zip(0..).map(|(x, i)| {
            let share = 2.0 * f64::from(random.uniform(sample, i)) - 1.0;
            x * (1.0 + share * dtype.roundoff())
        });
        Tensor::of(&values.collect::<Vec<f64>>(), tensor.shape())
    };
    (0..).zip(tensors).map(|(sample, tensor)| off(sample, tensor)).collect()
}

/// Largest difference between a result of the kernels in `dtype` on `device` and that of the CPU in
/// f64, as a multiple of what is allowed: over the output and every gradient, each added to what was
/// there. Errors: what the device says.
///
/// Allowed is the [`tolerance`], or, where results hang more on their inputs than that (a normalisation
/// of three numbers), a dozen times what one rounding of every input changes.
pub fn device_error(case: &Case, dtype: Dtype, device: Device, seed: u64) -> Result<f64> {
    let given: Vec<Tensor> = inputs(case, seed).iter().map(|x| float_to(x, dtype)).collect();
    let exact: Vec<Tensor> = given.iter().map(|x| float_to(x, Dtype::F64)).collect();
    let shape = forward(case, &exact).0.shape().to_vec();
    let moved = |x: &[Tensor]| x.iter().map(|x| x.to_device(device)).collect::<Result<Vec<_>>>();
    let before: Vec<Tensor> = (100..)
        .zip(&given)
        .map(|(i, x)| draw(x.shape(), &Draw::Normal, seed, i).to_dtype(dtype))
        .collect();
    let before64: Vec<Tensor> = before.iter().map(|x| x.to_dtype(Dtype::F64)).collect();
    let on_device = moved(&given)?;
    let dtypes: Vec<Dtype> = given.iter().map(Tensor::dtype).collect();
    let dy = draw(&shape, &Draw::Normal, seed ^ 0xd1f, 0).to_dtype(case.op.dtype(&dtypes));
    let dy64 = dy.to_dtype(Dtype::F64);
    let terms = given.iter().map(Tensor::len).max().unwrap_or(1);
    let mut worst: f64 = 0.0;
    for existing in [false, true] {
        let kept = existing.then(|| moved(&before)).transpose()?;
        let found = run(case, &on_device, &dy.to_device(device)?, kept.as_deref());
        let expected = run(case, &exact, &dy64, existing.then_some(&*before64));
        let near: Vec<_> = (1..4)
            .map(|k| {
                let [x, before] = [&exact, &before64].map(|t| nearby(t, dtype, seed + k));
                let dy = &nearby(std::slice::from_ref(&dy64), dtype, seed - k)[0];
                run(case, &x, dy, existing.then_some(&*before))
            })
            .collect();
        let mut compare = |of: &dyn Fn(&Results) -> Option<Tensor>| {
            let (Some(what), Some(exact)) = (of(&found), of(&expected)) else { return Ok(()) };
            let spread = near.iter().filter_map(of).map(|near| difference(&near, &exact));
            let allowed = tolerance(what.dtype(), terms).max(12.0 * spread.fold(0.0, f64::max));
            let error = difference(&what.to_host()?, &exact);
            // A result that is not a number is as wrong as can be.
            worst = worst.max(if error.is_nan() { f64::INFINITY } else { error / allowed });
            Ok::<(), unix::Error>(())
        };
        compare(&|results| Some(results.0.clone()))?;
        for (i, (_, draw)) in case.inputs.iter().enumerate() {
            if draw.is_differentiated() {
                compare(&|results| results.1[i].clone())?;
            }
        }
    }
    Ok(worst)
}
