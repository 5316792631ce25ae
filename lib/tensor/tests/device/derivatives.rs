//! Products that multiply a gradient by the derivative of the activation before them, compared with the CPU in f64.

use super::device;
use tensor::check::{difference, draw};
use tensor::kernel::trace;
use tensor::op::Draw;
use tensor::ops::activation::Activation;
use tensor::ops::binary::Binary;
use tensor::ops::linear::Linear;
use tensor::{Device, Dtype, Tape, Tensor, Var};
use test_support::seed;

/// What is between the first layer and the second.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Between {
    /// The activation of the first layer.
    Inside,
    /// An activation of its own.
    Outside,
    /// As `Inside`, but the result of the first layer is used twice.
    Twice,
}

/// Gradients of x, and of the weights of both layers.
fn gradients(between: Between, values: &[Tensor], dy: &Tensor) -> Vec<Tensor> {
    let tape = Tape::new();
    let leaves: Vec<Var> = values.iter().map(|value| tape.leaf(value.clone())).collect();
    let [x, first, second] = [&leaves[0], &leaves[1], &leaves[2]];
    let layer = |activation, x: &Var, w: &Var| {
        tape.apply(Linear { bias: false, activation }, &[x, w]).unwrap()
    };
    let h = match between {
        Between::Outside => {
            let z = layer(Activation::Identity, x, first);
            tape.apply(Activation::Silu, &[&z]).unwrap()
        }
        _ => layer(Activation::Gelu, x, first),
    };
    // As if it had another batch axis.
    let h = h.reshape(&[&[1], h.shape()].concat());
    let mut y = layer(Activation::Identity, &h, second);
    if between == Between::Twice {
        y = tape.apply(Binary::Add, &[&y, &h]).unwrap();
    }
    let mut found = tape.backward_from(&y, dy.reshape(y.shape())).unwrap();
    leaves.iter().map(|leaf| found.take(leaf).unwrap()).collect()
}

#[test]
#[cfg_attr(not(feature = "emu"), ignore = "needs the feature emu, or a GPU: make gpu-test")]
fn gradients_through_activations_agree_with_the_cpu() {
    let (device, seed) = (device(), seed());
    // The last one's sum over outputs is split, after which nothing multiplies.
    for (between, n, multiplies) in [
        (Between::Inside, 48, true),
        (Between::Outside, 41, true),
        (Between::Twice, 48, false),
        (Between::Inside, 4096, false),
    ] {
        for (dtype, tolerance) in [(Dtype::F32, 2e-6), (Dtype::Bf16, 0.02), (Dtype::F16, 0.003)] {
            let shapes: [&[usize]; 4] = [&[70, 37], &[48, 37], &[n, 48], &[70, n]];
            let scale = [1.0, 0.3, 0.3, 1.0];
            let drawn = |i: usize| {
                let kind = Draw::Uniform(-scale[i], scale[i]);
                draw(shapes[i], &kind, seed, i as u64).to_dtype(dtype)
            };
            let values: Vec<Tensor> = (0..4).map(drawn).collect();
            let run = |values: &[Tensor]| gradients(between, &values[..3], &values[3]);
            let moved: Vec<_> = values.iter().map(|x| x.to_device(device).unwrap()).collect();
            let exact = run(&values.iter().map(|x| x.to_dtype(Dtype::F64)).collect::<Vec<_>>());
            for (i, (found, exact)) in run(&moved).iter().zip(&exact).enumerate() {
                let error = difference(&found.to_host().unwrap(), exact);
                assert!(error < tolerance, "{between:?} {n} {dtype}: gradient {i}: {error:e}");
            }
            let (_, launched) = trace(|| run(&moved));
            let is_pass = |name: &str| ["linear_multiply", "activation_backward"].contains(&name);
            let passes = launched.iter().filter(|launch| is_pass(launch.kernel)).count();
            assert_eq!(passes == 0, multiplies, "{between:?} {n} {dtype}");
        }
    }
    assert_ne!(device, Device::Cpu);
}
