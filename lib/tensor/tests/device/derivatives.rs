//! Products that multiply a gradient by the derivative of the activation before them, compared with the CPU in f64.

use super::device;
use tensor::check::{difference, draw};
use tensor::kernel::{Launched, trace};
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

fn layer(tape: &Tape, activation: Activation, inputs: &[&Var]) -> Var {
    tape.apply(Linear { bias: inputs.len() == 3, activation }, inputs).unwrap()
}

/// Gradients of x, of the weights of both layers, and of the bias of the first.
fn gradients(between: Between, values: &[Tensor], dy: &Tensor) -> Vec<Tensor> {
    let tape = Tape::new();
    let leaves: Vec<Var> = values.iter().map(|value| tape.leaf(value.clone())).collect();
    let [x, first, second, bias] = [&leaves[0], &leaves[1], &leaves[2], &leaves[3]];
    let h = match between {
        Between::Outside => {
            let z = layer(&tape, Activation::Identity, &[x, first, bias]);
            tape.apply(Activation::Silu, &[&z]).unwrap()
        }
        _ => layer(&tape, Activation::Gelu, &[x, first, bias]),
    };
    // As if it had another batch axis.
    let h = h.reshape(&[&[1], h.shape()].concat());
    let mut y = layer(&tape, Activation::Identity, &[&h, second]);
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
    // Tolerances: sums of up to 4096 products in f32, and a few roundings of every value in 16 bits. The last one's sum
    // over outputs is split, after which nothing multiplies.
    for (between, n, multiplies) in [
        (Between::Inside, 48, true),
        (Between::Outside, 41, true),
        (Between::Twice, 48, false),
        (Between::Inside, 4096, false),
    ] {
        for (dtype, tolerance) in [(Dtype::F32, 1e-5), (Dtype::Bf16, 0.02), (Dtype::F16, 0.003)] {
            let shapes: [&[usize]; 5] = [&[70, 37], &[48, 37], &[n, 48], &[48], &[70, n]];
            let scale = [1.0, 0.3, 0.3, 1.0, 1.0];
            let drawn = |i: usize| {
                let kind = Draw::Uniform(-scale[i], scale[i]);
                draw(shapes[i], &kind, seed, i as u64).to_dtype(dtype)
            };
            let values: Vec<Tensor> = (0..5).map(drawn).collect();
            let run = |values: &[Tensor]| gradients(between, &values[..4], &values[4]);
            let moved: Vec<_> = values.iter().map(|x| x.to_device(device).unwrap()).collect();
            let exact = run(&values.iter().map(|x| x.to_dtype(Dtype::F64)).collect::<Vec<_>>());
            for (i, (found, exact)) in run(&moved).iter().zip(&exact).enumerate() {
                let error = difference(&found.to_host().unwrap(), exact);
                assert!(error < tolerance, "{between:?} {n} {dtype}: gradient {i}: {error:e}");
            }
            let (_, launched) = trace(|| run(&moved));
            // A pass for the bias remains, which only reads dz and writes the sums of two blocks of rows.
            let read = 70 * 48 * dtype.bytes() + 2 * 48 * 4;
            let is_pass = |launch: &&Launched| match launch.kernel {
                "linear_multiply" => launch.bytes > read,
                name => name == "activation_backward",
            };
            let passes = launched.iter().filter(is_pass).count();
            assert_eq!(passes == 0, multiplies, "{between:?} {n} {dtype}");
        }
    }
    assert_ne!(device, Device::Cpu);
}

/// A block between two layers, whose bounds are marked as `learn` does: in 16 bits, who multiplies is seen in the last bit.
#[test]
#[cfg_attr(not(feature = "emu"), ignore = "needs the feature emu, or a GPU: make gpu-test")]
fn a_block_has_the_same_bits_recomputed_or_not() {
    let (device, seed) = (device(), seed());
    let shapes: [&[usize]; 4] = [&[70, 48], &[48, 48], &[48, 48], &[48, 48]];
    let drawn = |i: usize| draw(shapes[i], &Draw::Uniform(-1.0, 1.0), seed, i as u64);
    let values: Vec<Tensor> =
        (0..4).map(|i| drawn(i).to_dtype(Dtype::Bf16).to_device(device).unwrap()).collect();
    // Both the input and the output of the block are results of activations that are used once.
    let body = |tape: &Tape, vars: &[Var]| layer(tape, Activation::Silu, &[&vars[0], &vars[1]]);
    let run = |recomputes: bool| {
        let tape = Tape::new();
        let leaves: Vec<Var> = values.iter().map(|value| tape.leaf(value.clone())).collect();
        let [x, first, inner, last] = [0, 1, 2, 3].map(|i| &leaves[i]);
        let h = layer(&tape, Activation::Gelu, &[x, first]);
        let h = if recomputes {
            let alone = Tape::without_gradients();
            let value = body(&alone, &[h.detached(), inner.detached()]).value().clone();
            let again = move |tape: &Tape, vars: &[Var]| Ok(body(tape, vars));
            tape.recomputed(value, &[&h, inner], Box::new(again)).unwrap()
        } else {
            tape.mark_boundary(&h);
            let output = body(&tape, &[h, inner.clone()]);
            tape.mark_boundary(&output);
            output
        };
        let y = layer(&tape, Activation::Identity, &[&h, last]);
        let dy = values[0].clone();
        let mut found = tape.backward_from(&y, dy).unwrap();
        let bits = |leaf: &Var| found.take(leaf).unwrap().to_host().unwrap().as_bytes().to_vec();
        leaves.iter().map(bits).collect::<Vec<_>>()
    };
    assert!(run(false) == run(true));
}
