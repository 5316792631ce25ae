//! The order in which the backward pass completes gradients.

use tensor::check::draw;
use tensor::op::Draw;
use tensor::ops::activation::Activation;
use tensor::ops::binary::Binary;
use tensor::ops::cast::Cast;
use tensor::ops::linear::Linear;
use tensor::ops::residual::Residual;
use tensor::ops::squared_error::SquaredError;
use tensor::ops::weighted_sum::WeightedSum;
use tensor::{Dtype, Tape, Tensor, Var, constant};

/// A loss that uses the leaves a and b twice each, and a leaf that it does not use.
fn computation(tape: &Tape) -> (Var, [Var; 3]) {
    let value = |seed| draw(&[3, 5], &Draw::Normal, seed, 0).to_dtype(Dtype::F32);
    let [a, b, unused] = [1, 2, 3].map(|seed| tape.leaf(value(seed)));
    let ones = |n: usize| constant(Tensor::full(&[n], 1.0, Dtype::F32));
    let h = tape.apply(Activation::Gelu, &[&a]).unwrap();
    let one = tape.apply(SquaredError, &[&h, &b, &ones(3), &ones(5)]).unwrap();
    let two = tape.apply(SquaredError, &[&a, &b, &ones(3), &ones(5)]).unwrap();
    (tape.apply(WeightedSum(vec![0.5, 2.0]), &[&one, &two]).unwrap(), [a, b, unused])
}

#[test]
fn a_gradient_is_handed_out_when_complete() {
    let three = Tensor::scalar(3.0_f32);
    let tape = Tape::new();
    let (loss, leaves) = computation(&tape);
    let mut found = tape.backward_scaled(&loss, &three).unwrap();
    let expected = leaves.map(|leaf| found.take(&leaf));
    let tape = Tape::new();
    let (loss, leaves) = computation(&tape);
    let mut order = Vec::new();
    tape.backward_each(&loss, &three, &leaves, Vec::new(), |place, gradient| {
        order.push((place, gradient))
    })
    .unwrap();
    // The gradient of b is complete first; that of a passes through the activation.
    assert_eq!(order.iter().map(|(place, _)| *place).collect::<Vec<_>>(), [1, 0, 2]);
    for (place, gradient) in order {
        let bytes = |t: &Option<Tensor>| t.as_ref().map(|t| t.as_bytes().to_vec());
        assert_eq!(bytes(&gradient), bytes(&expected[place]), "leaf {place}");
        assert_eq!(gradient.is_some(), place < 2);
    }
}

/// Casts of all parameters stand before the first layer, but the gradient of the last layer's is complete first.
#[test]
fn the_cast_of_a_leaf_does_not_delay_its_gradient() {
    let tape = Tape::new();
    let leaves: Vec<Var> = (0..3).map(|i| tape.leaf(Tensor::scalar(2.0 + i as f32))).collect();
    let cast = |leaf: &Var| tape.apply(Cast(Dtype::F32), &[leaf]).unwrap();
    let [a, b] = [cast(&leaves[0]), cast(&leaves[1])];
    let first = tape.apply(Binary::Multiply, &[&leaves[2], &a]).unwrap();
    let loss = tape.apply(Binary::Multiply, &[&first, &b]).unwrap();
    let mut order = Vec::new();
    tape.backward_each(&loss, &Tensor::scalar(1.0_f32), &leaves, Vec::new(), |place, gradient| {
        order.push((place, gradient.unwrap().item()));
    })
    .unwrap();
    assert_eq!(order, [(1, 8.0), (2, 6.0), (0, 12.0)]);
}

/// A loss that uses a weight and a bias twice, the second time in a recomputed segment.
fn layers(tape: &Tape) -> (Var, [Var; 2]) {
    let value = |shape: &[usize], seed| draw(shape, &Draw::Normal, seed, 0).to_dtype(Dtype::F32);
    let [weight, bias] =
        [(vec![7, 7], 1), (vec![7], 2)].map(|(s, seed)| tape.leaf(value(&s, seed)));
    let linear = || Linear { bias: true, activation: Activation::Silu };
    let x = constant(value(&[5, 7], 3));
    let h = tape.apply(linear(), &[&x, &weight, &bias]).unwrap();
    let inputs = [&h, &weight, &bias];
    let again = tape.apply(linear(), &inputs.map(Var::detached).each_ref()).unwrap();
    let body = move |tape: &Tape, v: &[Var]| tape.apply(linear(), &[&v[0], &v[1], &v[2]]);
    let y = tape.recomputed(again.value().clone(), &inputs, Box::new(body)).unwrap();
    let ones = |n: usize| constant(Tensor::full(&[n], 1.0, Dtype::F32));
    let loss = tape.apply(SquaredError, &[&y, &x, &ones(5), &ones(7)]).unwrap();
    (loss, [weight, bias])
}

#[test]
fn gradients_are_computed_into_given_buffers() {
    let one = Tensor::scalar(1.0_f32);
    let found = |buffers: Vec<Tensor>| {
        let tape = Tape::new();
        let (loss, leaves) = layers(&tape);
        let mut found = [None, None];
        tape.backward_each(&loss, &one, &leaves, buffers, |place, gradient| {
            found[place] = gradient
        })
        .unwrap();
        found.map(Option::unwrap)
    };
    let expected = found(Vec::new());
    let start = |tensor: &Tensor| tensor.as_bytes().as_ptr();
    for count in [1, 2] {
        let buffers: Vec<Tensor> = [&[7, 7][..], &[7]][..count]
            .iter()
            .map(|shape| Tensor::full(shape, f64::NAN, Dtype::F32))
            .collect();
        let starts: Vec<_> = buffers.iter().map(start).collect();
        let gradients = found(buffers);
        for (gradient, expected) in gradients.iter().zip(&expected) {
            assert_eq!(gradient.as_bytes(), expected.as_bytes());
        }
        assert_eq!(gradients[..count].iter().map(start).collect::<Vec<_>>(), starts);
    }
    // A leaf that the loss does not depend on has no gradient, with or without a buffer.
    let tape = Tape::new();
    let (loss, leaves) = computation(&tape);
    let mut seen = [false; 3];
    let buffers = leaves.each_ref().map(|leaf| Tensor::zeros(leaf.shape(), Dtype::F32)).to_vec();
    tape.backward_each(&loss, &one, &leaves, buffers, |place, g| seen[place] = g.is_some())
        .unwrap();
    assert_eq!(seen, [true, true, false]);
}

#[test]
fn a_loss_that_is_a_leaf_has_the_initial_gradient() {
    let tape = Tape::new();
    let loss = tape.leaf(Tensor::scalar(7.0_f32));
    let mut seen = Vec::new();
    let two = Tensor::scalar(2.0_f32);
    tape.backward_each(&loss, &two, std::slice::from_ref(&loss), Vec::new(), |_, gradient| {
        seen.extend(gradient.map(|g| g.to_f64()))
    })
    .unwrap();
    assert_eq!(seen, [[2.0]]);
}

#[test]
fn a_scale_of_another_type_or_shape_is_refused() {
    for scale in [Tensor::scalar(1.0_f64), Tensor::zeros(&[2], Dtype::F32)] {
        let tape = Tape::new();
        let (loss, _) = computation(&tape);
        let error = tape.backward_scaled(&loss, &scale).err().unwrap();
        assert!(error.to_string().contains("backward from"), "{error}");
    }
}

/// Variables are indices that are only valid on their own tape.
#[test]
fn a_variable_of_another_tape_is_refused() {
    let [ours, theirs] = [Tape::new(), Tape::new()];
    let value = || Tensor::scalar(2.0_f32);
    let (a, b) = (ours.leaf(value()), theirs.leaf(value()));
    let sum = || WeightedSum(vec![1.0, 1.0]);
    let message = |error: unix::Error| error.to_string();
    let error = message(ours.apply(sum(), &[&a, &b]).unwrap_err());
    assert!(error.contains("variable 1 belongs to another tape"), "{error}");
    let body = Box::new(move |tape: &Tape, vars: &[Var]| tape.apply(sum(), &[&vars[0], &vars[1]]));
    let recomputed = ours.recomputed(value(), &[&a, &b], body);
    assert!(message(recomputed.unwrap_err()).contains("another tape"));
    // Its value may be used, because no gradient is expected for it.
    let loss = ours.apply(sum(), &[&a, &b.detached()]).unwrap();
    let foreign = [a.clone(), b.clone()];
    let one = Tensor::scalar(1.0_f32);
    let given = theirs.backward_each(&loss, &one, &[], Vec::new(), |_, _| ());
    assert!(message(given.unwrap_err()).contains("another tape"));
    let given = ours.backward_each(&loss, &one, &foreign, Vec::new(), |_, _| ());
    assert!(message(given.unwrap_err()).contains("another tape"));
}

#[test]
fn an_input_of_another_dtype_is_refused_by_op_input_and_dtype() {
    let tape = Tape::new();
    let scalar = |dtype| tape.leaf(Tensor::full(&[1], 1.0, dtype));
    let (a, b) = (scalar(Dtype::F32), scalar(Dtype::Bf16));
    let error = tape.apply(WeightedSum(vec![1.0, 1.0]), &[&a, &b]).unwrap_err().to_string();
    assert!(error.contains("weighted_sum: input 1 is bf16, must be f32"), "{error}");
}

/// x - x and x + x: one variable as both inputs of an op.
#[test]
fn a_variable_that_is_two_inputs_of_an_op_gets_both_gradients() {
    let value = draw(&[5], &Draw::Normal, 1, 0).to_dtype(Dtype::F32);
    let ones = |n: usize| constant(Tensor::full(&[n], 1.0, Dtype::F32));
    let gradient = |before: bool| {
        let tape = Tape::new();
        let (x, unused) = (tape.leaf(value.clone()), tape.leaf(Tensor::zeros(&[5], Dtype::F32)));
        let sum = tape.apply(Residual::Scaled, &[&x, &x, &x]).unwrap();
        // It is visited first, so that a gradient already exists.
        let sum = if before { tape.apply(Binary::Add, &[&sum, &x]).unwrap() } else { sum };
        let loss = [&sum, &unused].map(|v| v.reshape(&[1, 5]));
        let loss = tape.apply(SquaredError, &[&loss[0], &loss[1], &ones(1), &ones(5)]).unwrap();
        tape.backward(&loss).unwrap().take(&x).unwrap().to_f64()
    };
    for before in [false, true] {
        let n = f64::from(u8::from(before)) + 1.0;
        for (dx, x) in gradient(before).into_iter().zip(value.to_f64()) {
            let expected = 2.0 / 5.0 * (n * x + x * x) * (n + 2.0 * x);
            assert!((dx - expected).abs() < 1e-5 * (1.0 + expected.abs()), "{dx} {expected}");
        }
    }
}

/// Ops may see one variable in several shapes, of which each gets the gradient in its own.
#[test]
fn a_variable_in_two_shapes_has_one_gradient() {
    let tape = Tape::new();
    let values = [0.5, -1.0, 2.0, 3.0, 0.25, -0.75];
    let x = tape.leaf(Tensor::from_slice(&values, &[2, 3]));
    // y[i, j, k] = x[i, k] + x[j, k]
    let y = tape.apply(Binary::Add, &[&x.reshape(&[2, 1, 3]), &x]).unwrap();
    let constant = |shape: &[usize], value| constant(Tensor::full(shape, value, Dtype::F64));
    let (zeros, ones) = (constant(&[2, 2, 3], 0.0), [2, 3].map(|n| constant(&[n], 1.0)));
    let loss = tape.apply(SquaredError, &[&y, &zeros, &ones[0], &ones[1]]).unwrap();
    let mut found = tape.backward_scaled(&loss, &Tensor::scalar(1.0_f64)).unwrap();
    let gradient = found.take(&x).unwrap();
    assert_eq!(gradient.shape(), [2, 3]);
    for (i, found) in gradient.to_f64().iter().enumerate() {
        let (row, k) = (i / 3, i % 3);
        let expected: f64 = (0..2).map(|j| values[3 * row + k] + values[3 * j + k]).sum();
        assert!((found - 2.0 / 3.0 * expected).abs() < 1e-12, "{i}: {found}");
    }
}
