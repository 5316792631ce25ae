use super::*;
use crate::tape::{Tape, constant};

/// Returns L, dx and dW of four rows with classes 0..3.
fn of(x: &[f64], targets: &[i32], weights: Option<&[f64]>) -> (f64, Vec<f64>, Vec<f64>) {
    let tape = Tape::new();
    let x = tape.leaf(Tensor::from_slice(x, &[targets.len(), 2]));
    let w = tape.leaf(Tensor::from_slice(&[1.0, 0.5, -0.25, 2.0, 0.75, -1.5], &[3, 2]));
    let targets = constant(Tensor::from_slice(targets, &[targets.len()]));
    let weights = weights.map(|own| constant(Tensor::from_slice(own, &[own.len()])));
    let inputs: Vec<_> = [&x, &w, &targets].into_iter().chain(weights.as_ref()).collect();
    let op = LinearCrossEntropy { ignore: -100, smoothing: 0.0 };
    let loss = tape.apply(op, &inputs).unwrap();
    let mut grads = tape.backward(&loss).unwrap();
    let [dx, dw] = [&x, &w].map(|own| grads.take(own).unwrap().to_f64());
    (loss.value().item(), dx, dw)
}

/// Rows without a label may hold anything, and weights of any value.
#[test]
fn rows_without_a_label_change_nothing() {
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    let (loss, dx, dw) = of(&[0.5, -1.0, 2.0, 0.25], &[2, 0], None);
    let x = [nan, 1.0, 0.5, -1.0, inf, -inf, 2.0, 0.25];
    let (same, longer, same_dw) = of(&x, &[-100, 2, -100, 0], Some(&[nan, 1.0, inf, 1.0]));
    assert_eq!((loss, dw), (same, same_dw));
    assert_eq!(longer, [&[0.0; 2], &dx[..2], &[0.0; 2], &dx[2..]].concat());
    assert_eq!(of(&x[..2], &[-100], None), (0.0, vec![0.0; 2], vec![0.0; 6]));
    assert!(of(&x[2..4], &[3], None).0.is_nan());
}

/// In unit tests a chunk has 128 rows. The gradient of x is added to one that `y` shares until then.
#[cfg(feature = "emu")]
#[test]
fn chunks_and_shared_gradients_agree_with_the_cpu() {
    use crate::check::{difference, draw};
    use crate::ops::binary::Binary;
    use crate::ops::reduce::Reduce;
    use crate::{Device, kernel};
    let (rows, classes, k) = (300, 33, 5);
    let x = draw(&[rows, k], &Draw::Normal, 1, 0).to_dtype(Dtype::F32);
    let w = draw(&[classes, k], &Draw::Normal, 1, 1).to_dtype(Dtype::F32);
    let mut targets = draw(&[rows], &Draw::RandInt(classes as u64), 1, 2).to_dtype(Dtype::I32);
    targets.write::<i32>()[120..140].fill(-100);
    let of = |device: Device, dtype: Dtype| {
        let tape = Tape::new();
        let on = |t: &Tensor| t.to_device(device).unwrap();
        let [x, y, w] = [&x, &x, &w].map(|t| tape.leaf(on(&t.to_dtype(dtype))));
        let op = LinearCrossEntropy { ignore: -100, smoothing: 0.1 };
        let loss = tape.apply(op, &[&x, &w, &constant(on(&targets))]).unwrap();
        let sum = tape.apply(Binary::Add, &[&x, &y]).unwrap();
        let sum = tape.apply(Reduce::Sum(0), &[&sum]).unwrap();
        let all = tape.apply(Reduce::Sum(1), &[&sum]).unwrap();
        let total = tape.apply(Binary::Add, &[&loss, &all]).unwrap();
        let mut grads = tape.backward(&total).unwrap();
        let of = |var| grads.take(var).unwrap().to_host().unwrap();
        let gradients = [&x, &y, &w].map(of);
        kernel::finish(device).unwrap();
        (loss.value().to_host().unwrap(), gradients)
    };
    let (exact, gradients) = of(Device::Cpu, Dtype::F64);
    for (dtype, allowed) in [(Dtype::F32, 1e-5)] {
        let (loss, own) = of(Device::Emu, dtype);
        assert!(difference(&loss, &exact) < allowed, "{loss:?} {exact:?}");
        for (i, (own, exact)) in own.iter().zip(&gradients).enumerate() {
            let error = difference(own, exact);
            assert!(error < allowed, "input {i} in {dtype}: {error}");
        }
    }
}
