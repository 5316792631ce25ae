//! Updates of many tensors at once on a device that runs kernels, against the CPU in f64: on the emulator, or
//! with LONGHAUL_TEST_DEVICE=cuda on a GPU (`make gpu-test`).

use tensor::check::{difference, draw};
use tensor::op::Draw;
use tensor::updates::adamw::AdamW;
use tensor::updates::norm::global_norm;
use tensor::updates::sgd::Sgd;
use tensor::updates::{Parameter, cases, ema, sum};
use tensor::{Device, Dtype, Tensor, Wanted};

/// Some roundings to f32 of what is up to five times the root mean square.
const TOLERANCE: f64 = 24.0 * 6e-8;

fn device() -> Device {
    let name = std::env::var("LONGHAUL_TEST_DEVICE").unwrap_or_else(|_| "emu".into());
    let wanted: Wanted = name.parse().unwrap();
    wanted.open().unwrap().0
}

/// Tensors of the given sizes on the host in f32; every other one is a matrix, which decays.
fn tensors(sizes: &[usize], kind: &Draw, seed: u64) -> Vec<Tensor> {
    let shape = |i: usize, n: usize| if i.is_multiple_of(2) { vec![n] } else { vec![1, n] };
    let values = sizes.iter().enumerate().map(|(i, n)| draw(&shape(i, *n), kind, seed, i as u64));
    values.map(|x| x.to_dtype(Dtype::F32)).collect()
}

fn moved(tensors: &[Tensor], device: Device) -> Vec<Tensor> {
    tensors.iter().map(|t| t.to_device(device).unwrap()).collect()
}

fn in_f64(tensors: &[Tensor]) -> Vec<Tensor> {
    tensors.iter().map(|t| t.to_dtype(Dtype::F64)).collect()
}

/// Every tensor of a device against the same one in f64.
#[track_caller]
fn agree(what: &str, ours: &[Tensor], exact: &[Tensor], tolerance: f64) {
    assert_eq!(ours.len(), exact.len());
    for (i, (ours, exact)) in ours.iter().zip(exact).enumerate() {
        let error = difference(&ours.to_host().unwrap(), exact);
        assert!(error < tolerance, "{what}, tensor {i} of {:?}: {error:e}", exact.shape());
    }
}

/// A step of an optimiser with N moments on the device and on the CPU in f64, from the same values.
fn step<const N: usize>(
    what: &str,
    draws: [Draw; N],
    apply: impl Fn(&mut dyn Iterator<Item = Parameter<'_, N>>),
) {
    for sizes in cases() {
        let gradients = tensors(&sizes, &Draw::Normal, 1);
        let values = tensors(&sizes, &Draw::Normal, 2);
        let moments: Vec<Vec<Tensor>> =
            draws.iter().zip(3..).map(|(d, seed)| tensors(&sizes, d, seed)).collect();
        let run = |gradients: Vec<Tensor>,
                   mut values: Vec<Tensor>,
                   mut moments: Vec<Vec<Tensor>>| {
            let mut each: Vec<_> = moments.iter_mut().map(|m| m.iter_mut()).collect();
            let parameters = values.iter_mut().zip(&gradients).map(|(value, gradient)| Parameter {
                decayed: value.shape().len() >= 2,
                gradient,
                value,
                moments: std::array::from_fn(|i| each[i].next().unwrap()),
            });
            apply(&mut parameters.into_iter());
            drop(each);
            (values, moments)
        };
        let to = |x: &[Tensor]| moved(x, device());
        // Twice: the second launch finds its table on the device, or other tensors than it names.
        for _ in 0..2 {
            let (ours, our_moments) =
                run(to(&gradients), to(&values), moments.iter().map(|m| to(m)).collect());
            let (exact, exact_moments) = run(
                in_f64(&gradients),
                in_f64(&values),
                moments.iter().map(|m| in_f64(m)).collect(),
            );
            agree(&format!("{what} {sizes:?}: values"), &ours, &exact, TOLERANCE);
            for (i, (ours, exact)) in our_moments.iter().zip(&exact_moments).enumerate() {
                agree(&format!("{what} {sizes:?}: moment {i}"), ours, exact, TOLERANCE);
            }
        }
    }
}

#[test]
#[cfg_attr(not(feature = "emu"), ignore = "needs the feature emu, or a GPU: make gpu-test")]
fn adamw_follows_the_cpu() {
    for t in [1, 1000] {
        let (betas, epsilon, weight_decay) = ([0.9, 0.999], 1e-8, 0.1);
        let op = AdamW { learning_rate: 3e-2, betas, epsilon, weight_decay, step: t };
        // Before the first step the moments are zero.
        let draws = match t {
            1 => [Draw::Uniform(0.0, 0.0), Draw::Uniform(0.0, 0.0)],
            _ => [Draw::Normal, Draw::Uniform(0.1, 2.0)],
        };
        step(&format!("step {t}"), draws, |parameters| op.apply_all(0.7, parameters));
    }
}

#[test]
#[cfg_attr(not(feature = "emu"), ignore = "needs the feature emu, or a GPU: make gpu-test")]
fn sgd_follows_the_cpu() {
    let op = Sgd { learning_rate: 3e-2, momentum: 0.9, weight_decay: 0.1 };
    step("sgd", [Draw::Normal], |parameters| op.apply_all(0.7, parameters));
}

#[test]
#[cfg_attr(not(feature = "emu"), ignore = "needs the feature emu, or a GPU: make gpu-test")]
fn averages_follow_the_cpu() {
    for sizes in cases() {
        let (values, averages) =
            (tensors(&sizes, &Draw::Normal, 1), tensors(&sizes, &Draw::Normal, 2));
        let mut ours = moved(&averages, device());
        ema::apply_all(0.999, moved(&values, device()).iter().zip(&mut ours));
        let mut exact = in_f64(&averages);
        ema::apply_all(0.999, in_f64(&values).iter().zip(&mut exact));
        agree(&format!("{sizes:?}"), &ours, &exact, TOLERANCE);
    }
}

#[test]
#[cfg_attr(not(feature = "emu"), ignore = "needs the feature emu, or a GPU: make gpu-test")]
fn gradients_are_summed_in_their_type() {
    for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F16] {
        for sizes in cases() {
            let of = |seed| -> Vec<Tensor> {
                tensors(&sizes, &Draw::Normal, seed).iter().map(|t| t.to_dtype(dtype)).collect()
            };
            let (a, b) = (of(1), of(2));
            let mut exact = in_f64(&a);
            sum::add_all(exact.iter_mut().zip(&in_f64(&b)));
            let tolerance = 6.0 * dtype.roundoff();
            let (mut ours, on_device) = (moved(&a, device()), moved(&b, device()));
            sum::add_all(ours.iter_mut().zip(&on_device));
            agree(&format!("{sizes:?} {dtype}"), &ours, &exact, tolerance);
            let mut one_by_one = moved(&a, device());
            one_by_one.iter_mut().zip(&on_device).for_each(|(a, b)| sum::add(a, b));
            agree(&format!("{sizes:?} {dtype}, each"), &one_by_one, &exact, tolerance);
        }
    }
}

#[test]
#[cfg_attr(not(feature = "emu"), ignore = "needs the feature emu, or a GPU: make gpu-test")]
fn the_norm_is_exact_to_f64_and_sees_what_is_not_finite() {
    for sizes in cases() {
        let x = tensors(&sizes, &Draw::Normal, 1);
        let exact = global_norm(&in_f64(&x)).unwrap();
        let ours = global_norm(&moved(&x, device())).unwrap();
        // The sums differ in their order only: some thousands of f64 roundings at most.
        assert!((ours - exact).abs() <= 1e-13 * exact, "{sizes:?}: {ours} {exact}");
    }
    for (wrong, is_nan) in [(f32::INFINITY, false), (f32::NAN, true), (3e38, false)] {
        let mut values = vec![1.0_f32; 5000];
        values[4999] = wrong;
        let x = [Tensor::of(&[2.0_f32], &[1]), Tensor::of(&values, &[5000])];
        let norm = global_norm(&moved(&x, device())).unwrap();
        // The square of 3e38 is beyond f32 and not beyond the sum.
        assert_eq!((norm.is_nan(), norm.is_finite()), (is_nan, wrong == 3e38), "{wrong}: {norm}");
    }
}
