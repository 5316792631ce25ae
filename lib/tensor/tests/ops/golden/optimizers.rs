//! Adam, Lion, LAMB and Adafactor over ten steps: `tests/golden/optimizers.py` of the root computed the values.

use super::{Golden, OPTIMIZERS, agree};
use tensor::updates::Parameter;
use tensor::updates::adafactor::Adafactor;
use tensor::updates::adamw::AdamW;
use tensor::updates::decision::{DeviceStepControl, StepControl, StepPolicy};
use tensor::updates::lamb::Lamb;
use tensor::updates::lion::Lion;
use tensor::{Dtype, Tensor};

/// Ten steps in both dtypes from zero state of these shapes; the rate of the parameter is twice that of the optimizer.
fn steps<const N: usize>(
    name: &str,
    constants: &str,
    state: impl Fn(&[usize]) -> [Vec<usize>; N],
    betas: [f64; 2],
    apply: impl Fn(&Golden, f64, &DeviceStepControl, Parameter<N>),
) {
    let golden = Golden::open(OPTIMIZERS);
    let rule = StepPolicy {
        clip: f64::INFINITY,
        betas,
        decay: 0.0,
        warmup: true,
        scaled: false,
        unit: 1.0,
    };
    let number = |key: &str| golden.number(&format!("{constants}/{key}"));
    for dtype in [Dtype::F64, Dtype::F32] {
        let mut p = golden.tensor(&format!("{name}/p0")).to_dtype(dtype);
        let mut moments = state(p.shape()).map(|shape| Tensor::zeros(&shape, dtype));
        for t in 1..=10 {
            let g = golden.row(&format!("{name}/g"), t - 1, dtype);
            let (rate, weight_decay) = (number("lr") / 2.0, number("weight_decay"));
            let before = StepControl { steps: t as u64 - 1, ..StepControl::default() };
            let decision = rule.decide(&before, [0.0, 0.0], 1.0, rate);
            let parameter = Parameter {
                rate: 2.0,
                weight_decay,
                gradient: &g,
                value: &mut p,
                moments: moments.each_mut(),
            };
            apply(&golden, rate, &DeviceStepControl::of(&decision, 1.0), parameter);
            let expected = golden.row(&format!("{name}/p"), t - 1, Dtype::F64);
            agree(&format!("{name}, step {t}"), &p, &expected);
        }
    }
}

#[test]
fn adam_adds_the_decay_to_the_gradient() {
    let betas = [0.9, 0.97];
    let state = |shape: &[usize]| [shape.to_vec(), shape.to_vec()];
    steps("adam", "adam", state, betas, |golden, learning_rate, decided, parameter| {
        assert_eq!(betas, ["adam/beta1", "adam/beta2"].map(|name| golden.number(name)));
        let epsilon = golden.number("adam/eps");
        AdamW { learning_rate, betas, epsilon, coupled: true }.apply_all(decided, [parameter]);
    });
}

#[test]
fn lion_steps_by_the_sign() {
    let state = |shape: &[usize]| [shape.to_vec()];
    steps("lion", "lion", state, [0.0; 2], |golden, learning_rate, decided, parameter| {
        let betas = ["lion/beta1", "lion/beta2"].map(|name| golden.number(name));
        Lion { learning_rate, betas }.apply_all(decided, [parameter]);
    });
}

#[test]
fn lamb_steps_in_proportion_to_the_parameter() {
    let betas = [0.9, 0.97];
    let state = |shape: &[usize]| [shape.to_vec(), shape.to_vec()];
    steps("lamb", "lamb", state, betas, |golden, learning_rate, decided, parameter| {
        assert_eq!(betas, ["lamb/beta1", "lamb/beta2"].map(|name| golden.number(name)));
        let epsilon = golden.number("lamb/eps");
        Lamb { learning_rate, betas, epsilon }.apply_all(decided, [parameter]);
    });
}

fn adafactor(golden: &Golden, learning_rate: f64) -> Adafactor {
    let number = |key: &str| golden.number(&format!("adafactor/{key}"));
    Adafactor {
        learning_rate,
        beta2_decay: number("beta2_decay"),
        clip_threshold: number("clip_threshold"),
        epsilon: number("epsilon"),
    }
}

#[test]
fn adafactor_of_vectors_and_matrices() {
    fn state<const N: usize>(shape: &[usize]) -> [Vec<usize>; N] {
        Adafactor::state_shapes(shape).try_into().unwrap()
    }
    let name = "adafactor_vector";
    steps(name, "adafactor", state::<1>, [0.0; 2], |golden, rate, decided, parameter| {
        adafactor(golden, rate).apply_all(decided, [parameter]);
    });
    for name in ["adafactor_wide", "adafactor_tall"] {
        steps(name, "adafactor", state::<2>, [0.0; 2], |golden, rate, decided, parameter| {
            adafactor(golden, rate).apply_all(decided, [parameter]);
        });
    }
}
