//! Products by warpgroups of Hopper, in a process of their own: whether they are allowed is a property of the process, and a
//! fault in one of them would fail every kernel after it. They are chosen unless they are not allowed, and on a GPU their results
//! are compared with the CPU in f64; the emulator does that in the tests of the product, with smaller sizes.

use std::sync::{Mutex, PoisonError};
use tensor::check::{device_error, difference, draw, inputs, run};
use tensor::kernel::cuda::Gpu;
use tensor::kernel::{set_wgmma, trace};
use tensor::op::{Case, Draw};
use tensor::ops::activation::Activation;
use tensor::ops::attention::{Attention, Layout};
use tensor::ops::linear::Linear;
use tensor::ops::matmul::MatMul;
use tensor::{Device, DeviceChoice, Dtype, Tape, Tensor, Var};
use test_support::seed;

/// Held while a test chooses what the process allows: tests run on several threads.
static CHOICE: Mutex<()> = Mutex::new(());

fn device() -> Device {
    let name = std::env::var("LONGHAUL_TEST_DEVICE").unwrap_or_else(|_| "emu".into());
    let wanted: DeviceChoice = name.parse().unwrap();
    wanted.open().unwrap().0
}

/// Kernels whose warpgroups share each part of a product, and whose warpgroups take parts in turns.
const KINDS: [&str; 2] = ["product_wgmma_", "product_pingpong_"];

/// Names of the products by warpgroups that `work` launches.
fn chosen(work: impl FnOnce()) -> Vec<&'static str> {
    let ((), launched) = trace(work);
    let names = launched.iter().map(|launch| launch.kernel);
    names.filter(|name| KINDS.iter().any(|kind| name.starts_with(kind))).collect()
}

/// Sizes that leave parts of tiles in every direction, and how the operands of the products are stored.
fn cases() -> [(Case, [&'static str; 3]); 3] {
    let layer = |rows: usize, n: usize, k: usize| {
        let op = Linear { bias: true, activation: Activation::Gelu };
        Case::new(op, &[&[rows, k], &[n, k], &[n]])
    };
    [
        (layer(1032, 2056, 1032), ["nt", "nn", "tn"]),
        // The sum of the gradient of W is split.
        (layer(8200, 1032, 520), ["nt", "nn", "tn"]),
        // A batch; the gradient of A is a sum of products.
        (Case::new(MatMul, &[&[1032, 520], &[5, 520, 1032]]), ["nn", "nt", "tn"]),
    ]
}

/// Attention, by head size: what it launches, forward and backward.
#[test]
#[cfg_attr(not(feature = "emu"), ignore = "needs the feature emu, or a GPU: make gpu-first")]
fn attention_uses_warpgroups_on_hopper() {
    let _choice = CHOICE.lock().unwrap_or_else(PoisonError::into_inner);
    let device = device();
    if let Device::Cuda(n) = device
        && Gpu::open(n).unwrap().architecture() != "sm_90a"
    {
        println!("{device} is no Hopper");
        return;
    }
    let launched = |width: usize, dtype| {
        let case = Case::new(Attention::new(1, Layout::Separate), &[&[1, 130, width][..]; 3]);
        let x = case.inputs_in(&inputs(&case, seed()), dtype);
        let x: Vec<Tensor> = x.iter().map(|x| x.to_device(device).unwrap()).collect();
        let dy = Tensor::zeros_on(device, &[1, 130, width], dtype);
        let ((), launched) = trace(|| drop(run(&case, &x, &dy, None)));
        let names = launched.iter().map(|launch| launch.kernel);
        names.filter(|name| name.contains("wgmma")).collect::<Vec<_>>()
    };
    set_wgmma(true);
    for dtype in [Dtype::Bf16, Dtype::F16] {
        let names = |size: usize| {
            ["forward", "query_gradient", "key_gradient"]
                .map(|pass| format!("attention_wgmma_{pass}_{size}"))
        };
        assert_eq!(launched(64, dtype), names(64));
        assert_eq!(launched(128, dtype), names(128));
        assert_eq!(launched(32, dtype), [""; 0]);
    }
    assert_eq!(launched(64, Dtype::F32), [""; 0]);
}

/// Gradients of x and of the weights of two layers, of which the product of the second multiplies by the derivative of the first.
fn gradients(values: &[Tensor]) -> Vec<Tensor> {
    let tape = Tape::new();
    let leaves: Vec<Var> = values[..3].iter().map(|value| tape.leaf(value.clone())).collect();
    let layer = |activation, inputs: &[&Var]| {
        tape.apply(Linear { bias: false, activation }, inputs).unwrap()
    };
    let h = layer(Activation::Silu, &[&leaves[0], &leaves[1]]);
    let y = layer(Activation::Identity, &[&h, &leaves[2]]);
    let mut found = tape.backward_from(&y, values[3].clone()).unwrap();
    leaves.iter().map(|leaf| found.take(leaf).unwrap()).collect()
}

#[test]
#[cfg_attr(not(feature = "emu"), ignore = "needs the feature emu, or a GPU: make gpu-first")]
fn large_products_use_warpgroups_on_hopper() {
    let _choice = CHOICE.lock().unwrap_or_else(PoisonError::into_inner);
    let (device, seed) = (device(), seed());
    if let Device::Cuda(n) = device
        && Gpu::open(n).unwrap().architecture() != "sm_90a"
    {
        println!("{device} is no Hopper");
        return;
    }
    for dtype in [Dtype::Bf16, Dtype::F16] {
        let mut all = Vec::new();
        for (case, expected) in cases() {
            let x = case.inputs_in(&inputs(&case, seed), dtype);
            let x: Vec<Tensor> = x.iter().map(|x| x.to_device(device).unwrap()).collect();
            let shapes: Vec<&[usize]> = x.iter().map(Tensor::shape).collect();
            let dy = Tensor::zeros_on(device, &case.op.shape(&shapes).unwrap(), dtype);
            let launches = || chosen(|| drop(run(&case, &x, &dy, None)));
            let what = format!("{} {shapes:?} {dtype}", case.op.name());
            set_wgmma(false);
            assert_eq!(launches(), [""; 0], "{what}");
            set_wgmma(true);
            let names = launches();
            let stored: Vec<&str> =
                names.iter().filter_map(|name| name.rsplit_once('_')).map(|name| name.1).collect();
            assert_eq!(stored, expected, "{what}: {names:?}");
            all.extend(names);
            if device != Device::Emu {
                let error = device_error(&case, dtype, device, seed).unwrap();
                assert!(error < 1.0, "{what}: {error:.2} tolerances (seed {seed})");
            }
        }
        for kind in KINDS {
            assert!(all.iter().any(|name| name.starts_with(kind)), "{kind}: {all:?}");
        }
        let shapes: [&[usize]; 4] = [&[1032, 520], &[2056, 520], &[1032, 2056], &[1032, 1032]];
        let kind = |i: usize| Draw::Uniform(-1.0, 1.0 / [1.0, 20.0, 40.0, 1.0][i]);
        let values = (0..4).map(|i| draw(shapes[i], &kind(i), seed, i as u64).to_dtype(dtype));
        let values: Vec<Tensor> = values.collect();
        let moved: Vec<Tensor> = values.iter().map(|x| x.to_device(device).unwrap()).collect();
        let names = chosen(|| drop(gradients(&moved)));
        assert!(names.iter().any(|name| name.ends_with("_nn")), "{dtype}: {names:?}");
        if device != Device::Emu {
            let exact =
                gradients(&values.iter().map(|x| x.to_dtype(Dtype::F64)).collect::<Vec<_>>());
            for (i, (found, exact)) in gradients(&moved).iter().zip(&exact).enumerate() {
                let error = difference(&found.to_host().unwrap(), exact);
                // A few roundings of the result, and of what it is computed from.
                let tolerance = 16.0 * dtype.roundoff();
                assert!(error < tolerance, "{dtype}, gradient {i}: {error:e} (seed {seed})");
            }
        }
    }
}
