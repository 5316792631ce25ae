//! A step of each optimizer on a device that runs kernels, compared with the CPU in f64.

use super::device;
use super::updates::{TOLERANCE, agree, in_f64, moved, tensors};
use tensor::check::draw;
use tensor::op::Draw;
use tensor::updates::adafactor::Adafactor;
use tensor::updates::adamw::AdamW;
use tensor::updates::decision::{DeviceStepControl, StepControl, StepPolicy};
use tensor::updates::lamb::Lamb;
use tensor::updates::lion::Lion;
use tensor::updates::muon::Muon;
use tensor::updates::sgd::Sgd;
use tensor::updates::{Parameter, cases};
use tensor::{Device, Dtype, Tensor};

/// A step of an optimizer with N moments on the device and on the CPU in f64, from the same values.
fn step<const N: usize>(
    what: &str,
    decision: &StepControl,
    draws: [Draw; N],
    apply: impl Fn(&DeviceStepControl, &mut dyn Iterator<Item = Parameter<'_, N>>),
) {
    for sizes in cases() {
        let gradients = tensors(&sizes, &Draw::Normal, 1);
        let values = tensors(&sizes, &Draw::Normal, 2);
        let moments: Vec<Vec<Tensor>> =
            draws.iter().zip(3..).map(|(d, seed)| tensors(&sizes, d, seed)).collect();
        let run = |place: Device,
                   gradients: Vec<Tensor>,
                   mut values: Vec<Tensor>,
                   mut moments: Vec<Vec<Tensor>>| {
            let mut each: Vec<_> = moments.iter_mut().map(|m| m.iter_mut()).collect();
            let parameters = values.iter_mut().zip(&gradients).map(|(value, gradient)| Parameter {
                rate: if gradient.len() % 2 == 0 { 1.0 } else { 0.3 },
                weight_decay: if gradient.len() % 3 == 0 { 0.0 } else { 0.1 },
                gradient,
                value,
                moments: std::array::from_fn(|i| each[i].next().unwrap()),
            });
            let decided = DeviceStepControl::of(decision, 1.0).to_device(place).unwrap();
            apply(&decided, &mut parameters.into_iter());
            drop(each);
            (values, moments)
        };
        let to = |x: &[Tensor]| moved(x, device());
        // Twice: the second launch finds its table on the device, possibly for other tensors.
        for _ in 0..2 {
            let (ours, our_moments) =
                run(device(), to(&gradients), to(&values), moments.iter().map(|m| to(m)).collect());
            let (exact, exact_moments) = run(
                Device::Cpu,
                in_f64(&gradients),
                in_f64(&values),
                moments.iter().map(|m| in_f64(m)).collect(),
            );
            agree(&format!("{what} {sizes:?}: values"), &ours, &exact, TOLERANCE);
            for (i, (ours, exact)) in our_moments.iter().zip(&exact_moments).enumerate() {
                // Some are averages of squares, with twice the relative error.
                agree(&format!("{what} {sizes:?}: moment {i}"), ours, exact, 2.0 * TOLERANCE);
            }
        }
    }
}

#[test]
#[cfg_attr(not(feature = "emu"), ignore = "needs the feature emu, or a GPU: make gpu-test")]
fn adamw_follows_the_cpu() {
    for t in [1, 1000] {
        let op = AdamW { learning_rate: 3e-2, betas: [0.9, 0.999], epsilon: 1e-8, coupled: false };
        let rule = StepPolicy {
            clip: f64::INFINITY,
            betas: op.betas,
            decay: 0.0,
            warmup: true,
            scaled: false,
            unit: 1.0,
        };
        let before = StepControl { steps: t - 1, ..StepControl::default() };
        let decision = rule.decide(&before, [0.5, 2.0], 0.7, op.learning_rate);
        // Before the first step the moments are zero.
        let draws = match t {
            1 => [Draw::Uniform(0.0, 0.0), Draw::Uniform(0.0, 0.0)],
            _ => [Draw::Normal, Draw::Uniform(0.1, 2.0)],
        };
        for coupled in [false, true] {
            let op = AdamW { coupled, ..op };
            step(&format!("step {t}"), &decision, draws.clone(), |decided, parameters| {
                op.apply_all(decided, parameters);
            });
        }
        let AdamW { learning_rate, betas, epsilon, .. } = op;
        let op = Lamb { learning_rate, betas, epsilon };
        step(&format!("lamb, step {t}"), &decision, draws, |decided, parameters| {
            op.apply_all(decided, parameters);
        });
    }
}

/// Where the sign of u is that of a sum of two terms that cancel, rounding decides; the values drawn here have no such.
#[test]
#[cfg_attr(not(feature = "emu"), ignore = "needs the feature emu, or a GPU: make gpu-test")]
fn lion_follows_the_cpu() {
    let op = Lion { learning_rate: 3e-2, betas: [0.9, 0.99] };
    let decision = StepControl { applied: true, scale: 0.7, ..StepControl::default() };
    step("lion", &decision, [Draw::Normal], |decided, parameters| {
        op.apply_all(decided, parameters);
    });
}

#[test]
#[cfg_attr(not(feature = "emu"), ignore = "needs the feature emu, or a GPU: make gpu-test")]
fn adafactor_follows_the_cpu() {
    let op =
        Adafactor { learning_rate: 3e-2, beta2_decay: -0.8, clip_threshold: 0.8, epsilon: 1e-30 };
    fn run<const N: usize>(
        op: &Adafactor,
        decision: &StepControl,
        shape: &[usize],
        place: Device,
    ) -> Vec<Tensor> {
        let dtype = if place == Device::Cpu { Dtype::F64 } else { Dtype::F32 };
        let of = |shape: &[usize], kind: &Draw, seed| {
            let drawn = draw(shape, kind, seed, 0).to_dtype(Dtype::F32);
            drawn.to_dtype(dtype).to_device(place).unwrap()
        };
        let [gradient, mut value] = [1, 2].map(|seed| of(shape, &Draw::Normal, seed));
        let state = Adafactor::state_shapes(shape);
        let state: Vec<_> =
            state.iter().map(|shape| of(shape, &Draw::Uniform(0.1, 2.0), 3)).collect();
        let Ok(mut state) = <[Tensor; N]>::try_from(state) else { panic!("{shape:?}") };
        let decided = DeviceStepControl::of(decision, 1.0).to_device(place).unwrap();
        let moments = state.each_mut();
        let (gradient, value_ref) = (&gradient, &mut value);
        let parameter =
            Parameter { rate: 0.5, weight_decay: 0.1, gradient, value: value_ref, moments };
        op.apply_all(&decided, [parameter]);
        [value].into_iter().chain(state).collect()
    }
    for (applied, steps) in [(true, 1), (true, 9), (false, 9)] {
        let decision = StepControl { applied, steps, scale: 0.7, ..StepControl::default() };
        for shape in [&[1, 1][..], &[3, 5], &[70, 300], &[130, 2, 7], &[5000, 3], &[0, 4]] {
            let what = format!("{shape:?}, applied: {applied}, step {steps}");
            let [ours, exact] =
                [device(), Device::Cpu].map(|place| run::<2>(&op, &decision, shape, place));
            agree(&what, &ours, &exact, TOLERANCE);
        }
        for n in [0, 1, 4097] {
            let [ours, exact] =
                [device(), Device::Cpu].map(|place| run::<1>(&op, &decision, &[n], place));
            agree(&format!("{n}"), &ours, &exact, TOLERANCE);
        }
    }
}

#[test]
#[cfg_attr(not(feature = "emu"), ignore = "needs the feature emu, or a GPU: make gpu-test")]
fn sgd_follows_the_cpu() {
    let op = Sgd { learning_rate: 3e-2, momentum: 0.9 };
    let decision = StepControl { applied: true, scale: 0.7, ..StepControl::default() };
    step("sgd", &decision, [Draw::Normal], |decided, parameters| op.apply_all(decided, parameters));
}

/// The iteration multiplies small singular values, and with them the rounding errors, by up to 3.4⁵ = 480, and the
/// learning rate by 0.03: errors of about 480·0.03·6e-8 = 9e-7 for values of order 1, a few of them.
#[test]
#[cfg_attr(not(feature = "emu"), ignore = "needs the feature emu, or a GPU: make gpu-test")]
fn muon_follows_the_cpu() {
    let op = Muon { learning_rate: 3e-2, momentum: 0.9 };
    for applied in [true, false] {
        let decision = StepControl { applied, scale: 0.7, ..StepControl::default() };
        for shape in [[1, 1], [3, 5], [5, 3], [33, 17], [64, 70], [1, 9], [0, 4]] {
            let of = |seed| draw(&shape, &Draw::Normal, seed, 0).to_dtype(Dtype::F32);
            let run = |place: Device, dtype| {
                let [gradient, mut value, mut moment] =
                    [1, 2, 3].map(|seed| of(seed).to_dtype(dtype).to_device(place).unwrap());
                let decided = DeviceStepControl::of(&decision, 1.0).to_device(place).unwrap();
                let (gradient, moments) = (&gradient, [&mut moment]);
                let (rate, weight_decay, value_ref) = (0.5, 0.1, &mut value);
                let parameter =
                    Parameter { rate, weight_decay, gradient, value: value_ref, moments };
                op.apply_all(&decided, [parameter]);
                [value, moment]
            };
            let what = format!("{shape:?}, applied: {applied}");
            agree(&what, &run(device(), Dtype::F32), &run(Device::Cpu, Dtype::F64), 4e-6);
        }
    }
}
