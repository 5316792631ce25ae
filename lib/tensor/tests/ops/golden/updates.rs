//! Optimizers, averages and clipping over several steps.

use super::{Golden, agree};
use tensor::updates::Parameter;
use tensor::updates::adamw::AdamW;
use tensor::updates::decision::{DeviceStepControl, StepControl, StepPolicy};
use tensor::updates::muon::Muon;
use tensor::updates::norm::{clip_scale, global_norm};
use tensor::updates::{ema, sgd::Sgd};
use tensor::{Dtype, Tensor};

/// Ten steps of an optimizer in both dtypes; `step(t, g, p)` makes the t-th.
fn steps(name: &str, mut step: impl FnMut(&Golden, usize, &Tensor, &mut Tensor)) {
    let golden = Golden::read();
    for dtype in [Dtype::F64, Dtype::F32] {
        let mut p = golden.tensor(&format!("{name}/p0")).to_dtype(dtype);
        for t in 1..=10 {
            let g = golden.row(&format!("{name}/g"), t - 1, dtype);
            step(&golden, t, &g, &mut p);
            let expected = golden.row(&format!("{name}/p"), t - 1, Dtype::F64);
            agree(&format!("{name}, step {t}"), &p, &expected);
        }
    }
}

/// Sets the buffers of an optimizer to zero before the first step of each run.
fn zero_before_first(step: usize, buffers: &mut [Tensor], like: &Tensor) {
    if step == 1 {
        buffers.fill(Tensor::zeros(like.shape(), like.dtype()));
    }
}

fn adamw(name: &str, clipped: bool) {
    let mut moments = [Tensor::zeros(&[1], Dtype::F32), Tensor::zeros(&[1], Dtype::F32)];
    let (mut scaled, mut whole) = (0, 0);
    steps(name, |golden, t, g, p| {
        zero_before_first(t, &mut moments, p);
        let number = |key: &str| golden.number(&format!("{name}/{key}"));
        let scale =
            if clipped { clip_scale(global_norm([g]).unwrap(), number("max_norm")) } else { 1.0 };
        if scale < 1.0 {
            scaled += 1
        } else {
            whole += 1
        }
        let op = AdamW {
            // Half the rate, with a factor of 2 for the parameter.
            learning_rate: number("lr") / 2.0,
            betas: [number("beta1"), number("beta2")],
            epsilon: number("eps"),
            coupled: false,
        };
        let weight_decay = number("weight_decay");
        let rule = StepPolicy {
            clip: f64::INFINITY,
            betas: op.betas,
            decay: 0.0,
            warmup: true,
            scaled: false,
            unit: 1.0,
        };
        let before = StepControl { steps: t as u64 - 1, ..StepControl::default() };
        let decision = rule.decide(&before, [0.0, 0.0], 1.0, op.learning_rate);
        let [m, v] = &mut moments;
        let parameter =
            Parameter { rate: 2.0, weight_decay, gradient: g, value: p, moments: [m, v] };
        op.apply(&StepControl { scale, ..decision }, parameter);
    });
    assert!(whole > 0 && clipped == (scaled > 0), "{scaled} steps clipped, {whole} not");
}

#[test]
fn adamw_of_ten_steps() {
    adamw("adamw", false);
}

#[test]
fn adamw_with_decay_other_betas_and_clipping() {
    adamw("adamw_clipped", true);
}

#[test]
fn sgd_with_momentum_and_decay() {
    let mut buffer = [Tensor::zeros(&[1], Dtype::F32)];
    steps("sgd", |golden, t, g, p| {
        zero_before_first(t, &mut buffer, p);
        let op = Sgd {
            learning_rate: golden.number("sgd/lr") / 2.0,
            momentum: golden.number("sgd/momentum"),
        };
        let weight_decay = golden.number("sgd/weight_decay");
        let moments = [&mut buffer[0]];
        op.apply(1.0, Parameter { rate: 2.0, weight_decay, gradient: g, value: p, moments });
    });
}

#[test]
fn muon_of_wide_tall_and_square_matrices() {
    for name in ["muon_wide", "muon_tall", "muon_square"] {
        let mut momentum = [Tensor::zeros(&[1], Dtype::F32)];
        steps(name, |golden, t, g, p| {
            zero_before_first(t, &mut momentum, p);
            let learning_rate = golden.number("muon/lr") / 2.0;
            let op = Muon { learning_rate, momentum: golden.number("muon/momentum") };
            let weight_decay = golden.number("muon/weight_decay");
            let moments = [&mut momentum[0]];
            let control = StepControl { applied: true, scale: 1.0, ..StepControl::default() };
            let parameter = Parameter { rate: 2.0, weight_decay, gradient: g, value: p, moments };
            op.apply_all(&DeviceStepControl::of(&control, 1.0), [parameter]);
        });
    }
}

#[test]
fn moving_average() {
    let golden = Golden::read();
    for dtype in [Dtype::F64, Dtype::F32] {
        // PyTorch's average starts as a copy of the first parameters it sees.
        let mut average = golden.row("ema/p", 0, dtype);
        for t in 1..10 {
            ema::apply(golden.number("ema/decay"), &golden.row("ema/p", t, dtype), &mut average);
            let expected = golden.row("ema/average", t, Dtype::F64);
            agree(&format!("average {t}"), &average, &expected);
        }
    }
}

#[test]
fn clipping_by_global_norm() {
    let golden = Golden::read();
    for (name, clips) in [("clip", true), ("clip_nothing", false)] {
        let g: Vec<Tensor> = (0..3).map(|i| golden.tensor(&format!("{name}/g{i}"))).collect();
        let norm = global_norm(&g).unwrap();
        let expected = golden.number(&format!("{name}/norm"));
        assert!((norm - expected).abs() < 1e-6 * expected, "{norm} {expected}");
        let scale = clip_scale(norm, golden.number(&format!("{name}/max_norm")));
        assert_eq!(scale < 1.0, clips);
        for (i, g) in g.iter().enumerate() {
            let ours: Vec<f64> = g.to_f64().iter().map(|g| scale * g).collect();
            let name = format!("{name}/clipped{i}");
            agree(&name, &Tensor::from_slice(&ours, g.shape()), &golden.tensor(&name));
        }
    }
}
