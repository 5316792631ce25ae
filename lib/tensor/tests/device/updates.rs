//! Updates of many tensors at once on a device that runs kernels, compared with the CPU in f64: on the emulator, or
//! with LONGHAUL_TEST_DEVICE=cuda on a GPU (`make gpu-test`).

use super::device;
use tensor::check::{difference, draw};
use tensor::op::Draw;
use tensor::updates::adamw::AdamW;
use tensor::updates::decision::{DeviceStepControl, LossScale, StepControl, StepPolicy};
use tensor::updates::norm::{self, global_norm};
use tensor::updates::sgd::Sgd;
use tensor::updates::{Parameter, append, cases, ema, sum};
use tensor::{Device, Dtype, Tensor};

/// A few f32 roundings of values up to five times the root mean square.
pub const TOLERANCE: f64 = 24.0 * 6e-8;

/// Host tensors of the given sizes in f32; every other one is a matrix, to which weight decay applies.
pub fn tensors(sizes: &[usize], kind: &Draw, seed: u64) -> Vec<Tensor> {
    let shape = |i: usize, n: usize| if i.is_multiple_of(2) { vec![n] } else { vec![1, n] };
    let values = sizes.iter().enumerate().map(|(i, n)| draw(&shape(i, *n), kind, seed, i as u64));
    values.map(|x| x.to_dtype(Dtype::F32)).collect()
}

pub fn moved(tensors: &[Tensor], device: Device) -> Vec<Tensor> {
    tensors.iter().map(|t| t.to_device(device).unwrap()).collect()
}

pub fn in_f64(tensors: &[Tensor]) -> Vec<Tensor> {
    tensors.iter().map(|t| t.to_dtype(Dtype::F64)).collect()
}

/// Compares every tensor of a device with its f64 counterpart.
#[track_caller]
pub fn agree(what: &str, ours: &[Tensor], exact: &[Tensor], tolerance: f64) {
    assert_eq!(ours.len(), exact.len());
    for (i, (ours, exact)) in ours.iter().zip(exact).enumerate() {
        let error = difference(&ours.to_host().unwrap(), exact);
        assert!(error < tolerance, "{what}, tensor {i} of {:?}: {error:e}", exact.shape());
    }
}

#[test]
#[cfg_attr(not(feature = "emu"), ignore = "needs the feature emu, or a GPU: make gpu-test")]
fn averages_follow_the_cpu() {
    for sizes in cases() {
        let (values, averages) =
            (tensors(&sizes, &Draw::Normal, 1), tensors(&sizes, &Draw::Normal, 2));
        let mut ours = moved(&averages, device());
        let decision = StepControl { applied: true, decay: 0.999, ..StepControl::default() };
        let on_host = DeviceStepControl::of(&decision, 1.0);
        let decided = on_host.to_device(device()).unwrap();
        ema::apply_all(&decided, moved(&values, device()).iter().zip(&mut ours));
        let mut exact = in_f64(&averages);
        ema::apply_all(&on_host, in_f64(&values).iter().zip(&mut exact));
        agree(&format!("{sizes:?}"), &ours, &exact, TOLERANCE);
    }
}

/// Rows are copied, so the values are equal.
#[test]
#[cfg_attr(not(feature = "emu"), ignore = "needs the feature emu, or a GPU: make gpu-test")]
fn rows_are_appended_as_on_the_cpu() {
    for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F16] {
        for [batch, tokens, capacity, width] in append::cases() {
            let of = |shape: &[usize], seed| draw(shape, &Draw::Normal, seed, 0).to_dtype(dtype);
            let x = of(&[batch, tokens, width], 1);
            let mut expected = of(&[batch, capacity, width], 2);
            let mut ours = expected.to_device(device()).unwrap();
            // From before the cache to behind it, and no to all rows.
            let index = |f: &dyn Fn(i32) -> i32| {
                let values: Vec<i32> = (0..batch as i32).map(f).collect();
                Tensor::from_slice(&values, &[batch])
            };
            let start = index(&|b| b * capacity as i32 / batch as i32 - i32::from(b == 2));
            let count = index(&|b| if b == 1 { 1 } else { tokens as i32 + b - 3 }.max(1 - b));
            append::append(&x, &start, &count, &mut expected).unwrap();
            let [x, start, count] = [x, start, count].map(|t| t.to_device(device()).unwrap());
            append::append(&x, &start, &count, &mut ours).unwrap();
            let ours = ours.to_host().unwrap();
            assert_eq!(ours.as_bytes(), expected.as_bytes(), "{batch} {tokens} {capacity} {width}");
        }
    }
}

#[test]
#[cfg_attr(not(feature = "emu"), ignore = "needs the feature emu, or a GPU: make gpu-test")]
fn gradients_are_summed_in_their_dtype() {
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
        // Only the order of the sums differs: some thousands of f64 roundings at most.
        assert!((ours - exact).abs() <= 1e-13 * exact, "{sizes:?}: {ours} {exact}");
    }
    for (wrong, is_nan) in [(f32::INFINITY, false), (f32::NAN, true), (3e38, false)] {
        let mut values = vec![1.0_f32; 5000];
        values[4999] = wrong;
        let x = [Tensor::from_slice(&[2.0_f32], &[1]), Tensor::from_slice(&values, &[5000])];
        let norm = global_norm(&moved(&x, device())).unwrap();
        // The square of 3e38 overflows f32, but not the sum.
        assert_eq!((norm.is_nan(), norm.is_finite()), (is_nan, wrong == 3e38), "{wrong}: {norm}");
    }
}

/// Every value of a step decision, with losses and gradients that are finite or not, clipped or not.
#[test]
#[cfg_attr(not(feature = "emu"), ignore = "needs the feature emu, or a GPU: make gpu-test")]
fn a_device_decides_as_the_host_does() {
    let close = |ours: f64, host: f64| {
        ours == host || ours.is_nan() && host.is_nan() || (ours - host).abs() <= 1e-13 * host.abs()
    };
    let rules = [
        StepPolicy {
            clip: f64::INFINITY,
            betas: [0.0, 0.0],
            decay: 0.0,
            warmup: true,
            scaled: false,
            unit: 1.0,
        },
        StepPolicy {
            clip: 0.3,
            betas: [0.9, 0.999],
            decay: 0.9999,
            warmup: true,
            scaled: false,
            unit: 1.0,
        },
        StepPolicy {
            clip: 1e9,
            betas: [0.8, 0.95],
            decay: 0.5,
            warmup: false,
            scaled: true,
            unit: 0.125,
        },
    ];
    let wrong = [(1.0_f32, 1.0), (f32::NAN, 1.0), (1.0, f32::INFINITY), (-0.25, f32::NAN)];
    for (round, rule) in rules.iter().enumerate() {
        for sizes in cases() {
            let steps = 97 * round as u64;
            let mut here =
                DeviceStepControl::of(&StepControl { steps, ..StepControl::default() }, rule.unit);
            let mut there = here.to_device(device()).unwrap();
            for (update, (loss, factor)) in wrong.iter().chain(&wrong).enumerate() {
                let mut gradients = tensors(&sizes, &Draw::Normal, update as u64);
                gradients.push(Tensor::from_slice(&[*factor], &[1]));
                let losses: Vec<Tensor> =
                    [*loss, 3.5, 0.125 * update as f32].map(Tensor::scalar).to_vec();
                let weights: Vec<Tensor> = [1.5_f32, 0.25, 4.25].map(Tensor::scalar).to_vec();
                let rate = 1e-3 * (1 + update) as f64;
                let squares = norm::squares(Device::Cpu, &gradients);
                rule.decide_on_device(&mut here, &losses, &weights, &squares, rate);
                let [losses, weights, gradients] =
                    [&losses, &weights, &gradients].map(|tensors| moved(tensors, device()));
                let squares = norm::squares(device(), &gradients);
                rule.decide_on_device(&mut there, &losses, &weights, &squares, rate);
                let (ours, host) =
                    (there.read_async().wait().unwrap(), here.read_async().wait().unwrap());
                assert_eq!(host.applied, loss.is_finite() && factor.is_finite());
                let told = |d: &StepControl| (d.applied, d.steps, d.overflow, d.loss_scale);
                assert_eq!(told(&ours), told(&host));
                let numbers = |d: &StepControl| {
                    [d.loss, d.norm, d.scale, d.rate, d.root, d.decay, d.correction]
                };
                for (ours, host) in numbers(&ours).into_iter().zip(numbers(&host)) {
                    assert!(close(ours, host), "{rule:?}, update {update}: {ours:e}, {host:e}");
                }
            }
        }
    }
}

/// The loss scale after overflows, with non-finite losses, at its minimum, and when it is due to be doubled: as the
/// rule requires, in the decision, and in the seed of the next backward pass.
#[test]
#[cfg_attr(not(feature = "emu"), ignore = "needs the feature emu, or a GPU: make gpu-test")]
fn the_scale_of_the_loss_follows_the_gradients_where_they_are() {
    let rule = StepPolicy {
        clip: 1.0,
        betas: [0.9, 0.999],
        decay: 0.9,
        warmup: true,
        scaled: true,
        unit: 1.0,
    };
    let first = LossScale { scale: 4.0, growth_tracker: 1997 };
    let fine = (0.5_f32, 3.0_f32);
    let overflow = (0.5, f32::INFINITY);
    let updates = [fine, fine, fine, fine, overflow, (f32::NAN, f32::NAN), overflow, overflow]
        .into_iter()
        .chain([overflow, (0.5, f32::NAN), fine]);
    let expected = [
        (4.0, 1998, false),
        (4.0, 1999, false),
        (8.0, 0, false),
        (8.0, 1, false),
        (4.0, 0, true),
        // The loss itself is not finite, which is not due to the scale.
        (4.0, 1, false),
        (2.0, 0, true),
        (1.0, 0, true),
        // With a scale of 1 there is no overflow.
        (1.0, 1, false),
        (1.0, 2, false),
        (1.0, 3, false),
    ];
    for place in [device(), Device::Cpu] {
        let start = StepControl { loss_scale: first, ..StepControl::default() };
        let mut decided = DeviceStepControl::of(&start, 1.0).to_device(place).unwrap();
        let (seed, mut scale) = (decided.loss_scale().storage_id(), first.scale);
        for (update, ((loss, gradient), told)) in updates.clone().zip(expected).enumerate() {
            let [loss, weight, gradient] =
                [loss, 2.0, gradient].map(|x| Tensor::scalar(x).to_device(place).unwrap());
            let squares = norm::squares(place, &[gradient]);
            rule.decide_on_device(&mut decided, &[loss], &[weight], &squares, 0.1);
            let made = decided.read_async().wait().unwrap();
            let LossScale { scale: next, growth_tracker } = made.loss_scale;
            assert_eq!((next, growth_tracker, made.overflow), told, "update {update} on {place}");
            if made.applied {
                assert_eq!(made.norm, 1.5 / scale, "update {update} on {place}");
                assert_eq!(made.scale, 1.0 / (2.0 * scale) / (made.norm + 1e-6).max(1.0));
            }
            scale = next;
            assert_eq!(decided.loss_scale().to_host().unwrap().item(), scale);
            assert_eq!(decided.loss_scale().storage_id(), seed, "recorded passes read it there");
        }
    }
}

/// Parameters, their average and the optimizer state keep their bits if an update is not applied.
#[test]
#[cfg_attr(not(feature = "emu"), ignore = "needs the feature emu, or a GPU: make gpu-test")]
fn skipped_updates_change_nothing() {
    for place in [device(), Device::Cpu] {
        let decided = DeviceStepControl::of(
            &StepControl { scale: 1.0, rate: 1.0, root: 1.0, ..StepControl::default() },
            1.0,
        );
        let decided = decided.to_device(place).unwrap();
        let before = tensors(&[4097, 3], &Draw::Normal, 1);
        let [mut values, mut first, mut second, mut average] =
            [0; 4].map(|_| moved(&before, place));
        let adamw =
            AdamW { learning_rate: 1.0, betas: [0.9, 0.999], epsilon: 1e-8, coupled: false };
        let sgd = Sgd { learning_rate: 1.0, momentum: 0.9 };
        let gradients = moved(&before, place);
        let moments = first.iter_mut().zip(&mut second);
        let parameters = values.iter_mut().zip(&gradients).zip(moments);
        adamw.apply_all(
            &decided,
            parameters.map(|((value, gradient), (m, v))| Parameter {
                rate: 1.0,
                weight_decay: 0.1,
                gradient,
                value,
                moments: [m, v],
            }),
        );
        let parameters = values.iter_mut().zip(&gradients).zip(&mut first);
        sgd.apply_all(
            &decided,
            parameters.map(|((value, gradient), b)| Parameter {
                rate: 1.0,
                weight_decay: 0.1,
                gradient,
                value,
                moments: [b],
            }),
        );
        ema::apply_all(&decided, gradients.iter().zip(&mut average));
        for tensors in [values, first, second, average] {
            for (after, before) in tensors.iter().zip(&before) {
                assert!(after.to_host().unwrap().as_bytes() == before.as_bytes(), "{place}");
            }
        }
    }
}
