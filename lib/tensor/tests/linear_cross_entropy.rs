//! A large vocabulary: the loss without logits in memory beside a linear layer and its cross entropy. Memory is counted for
//! the whole process, so this test is alone in it.

use tensor::check::draw;
use tensor::memory::{reset_peak, usage};
use tensor::op::Draw;
use tensor::ops::activation::Activation;
use tensor::ops::cross_entropy::CrossEntropy;
use tensor::ops::linear::Linear;
use tensor::ops::linear_cross_entropy::LinearCrossEntropy;
use tensor::{Dtype, Tape, Tensor, constant};

const ROWS: usize = 2048;
const CLASSES: usize = 151_936;
const WIDTH: usize = 24;

/// Returns L, dx, dW and the largest memory in use beyond the inputs.
fn of(is_joint: bool, inputs: [&Tensor; 3]) -> (f64, [Tensor; 2], usize) {
    let before = usage().live;
    reset_peak();
    let tape = Tape::new();
    let [x, w] = [0, 1].map(|i| tape.leaf(inputs[i].clone()));
    let targets = constant(inputs[2].clone());
    let loss = if is_joint {
        let op = LinearCrossEntropy { ignore: -100, smoothing: 0.1 };
        tape.apply(op, &[&x, &w, &targets]).unwrap()
    } else {
        let op = Linear { bias: false, activation: Activation::Identity };
        let logits = tape.apply(op, &[&x, &w]).unwrap();
        let op = CrossEntropy { smoothing: 0.1, ..CrossEntropy::default() };
        tape.apply(op, &[&logits, &targets]).unwrap()
    };
    let mut grads = tape.backward(&loss).unwrap();
    let gradients = [&x, &w].map(|input| grads.take(input).unwrap());
    (loss.value().item(), gradients, usage().peak - before)
}

/// ‖a - b‖/‖b‖.
fn relative_error(a: &Tensor, b: &Tensor) -> f64 {
    let (a, b) = (a.to_f64(), b.to_f64());
    let squares = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    squares(&mut a.iter().zip(&b).map(|(a, b)| a - b)) / squares(&mut b.iter().copied())
}

#[test]
fn a_large_vocabulary_needs_no_memory_for_its_logits() {
    let x = draw(&[ROWS, WIDTH], &Draw::Normal, 5, 0).to_dtype(Dtype::F32);
    let w = draw(&[CLASSES, WIDTH], &Draw::Uniform(-0.4, 0.4), 5, 1).to_dtype(Dtype::F32);
    let mut targets = draw(&[ROWS], &Draw::RandInt(CLASSES as u64), 5, 2).to_dtype(Dtype::I32);
    targets.write::<i32>()[100..900].fill(-100);
    let inputs = [&x, &w, &targets];
    let (expected, gradients, theirs) = of(false, inputs);
    let (loss, own, peak) = of(true, inputs);
    assert!((loss / expected - 1.0).abs() < 1e-6, "{loss} {expected}");
    for (own, gradient) in own.iter().zip(&gradients) {
        // Both round in f32, the two ops at the larger numbers z - log Σ exp.
        let error = relative_error(own, gradient);
        assert!(error < 1e-6, "{error}");
    }
    assert!(peak * 20 < theirs, "{peak} of {theirs} bytes");
}
