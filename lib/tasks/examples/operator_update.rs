//! Time and memory of one training update of the operator, for comparison with other programs: the counterpart of
//! `tests/peers/operator_update.py`.
//!
//! `--device cuda` and `--precision bf16` measure a GPU.
//!
//! Prints one JSON object: median and minimum milliseconds per update (forward over the horizon, squared error,
//! backward, clipping, AdamW), and the peaks of resident memory and of the device's tensors in bytes.

use learn::forward::Forward;
use learn::optim::{Method, Optimizer, OptimizerState};
use learn::params::Builder;
use std::time::Instant;
use tasks::pde::models::operator::{Attention, BackboneConfig, ConditionPath, Output};
use tasks::pde::models::{Operator, OperatorModel, PdetStack};
use tensor::check::draw;
use tensor::op::Draw;
use tensor::ops::depthwise_conv::Padding;
use tensor::ops::squared_error::SquaredError;
use tensor::ops::weighted_sum::WeightedSum;
use tensor::updates::decision::{DeviceStepControl, StepControl, StepPolicy};
use tensor::{Device, DeviceChoice, Dtype, Tape, Tensor, constant, kernel};

/// The number given as `--name`, or the default.
fn argument(name: &str, default: usize) -> usize {
    let mut words = std::env::args().skip_while(|word| *word != format!("--{name}"));
    words.nth(1).and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// The word given as `--name`, or the default.
fn word(name: &str, default: &str) -> String {
    let mut words = std::env::args().skip_while(|word| *word != format!("--{name}"));
    words.nth(1).unwrap_or(default.into())
}

fn main() -> unix::Result<()> {
    tensor::parallel::start_threads(Some(argument("threads", 2)))?;
    tensor::parallel::inside(measure)
}

fn measure() -> unix::Result<()> {
    let [hidden, depth, heads] =
        [("hidden", 256), ("depth", 8), ("heads", 8)].map(|(n, d)| argument(n, d));
    let [tokens, dim, batch] =
        [("tokens", 128), ("dim", 128), ("batch", 64)].map(|(n, d)| argument(n, d));
    let [kernel_size, every, ratio] =
        [("filter", 7), ("attention-every", 1), ("mlp-ratio", 4)].map(|(n, d)| argument(n, d));
    let [horizon, repeats] = [("horizon", 1), ("repeats", 9)].map(|(n, d)| argument(n, d));
    let attention = match heads {
        0 => Attention::None,
        heads => Attention::MultiHead { heads, qk_norm: argument("qk-norm", 1) == 1 },
    };
    let model = OperatorModel {
        backbone: BackboneConfig::PdetStack(PdetStack {
            hidden,
            depth,
            iterations: 1,
            attention,
            attention_every: every,
            kernel_size,
            mlp_ratio: ratio,
            branch_scale: 0.1,
            positions: false,
        }),
        condition: ConditionPath::Adaptive,
        condition_width: 64,
        output: Output::Scale,
    };
    let mut builder = Builder::new(1);
    let operator = Operator::new(&mut builder, &model, dim, [1, tokens], Padding::Periodic, 2);
    let device = word("device", "cpu").parse::<DeviceChoice>()?.open()?.0;
    let dtype = match word("precision", "f32").as_str() {
        "bf16" => Dtype::Bf16,
        "f16" => Dtype::F16,
        _ => Dtype::F32,
    };
    let mut params = builder.finish().to_device(device)?;
    let optimizer = Optimizer {
        method: Method::AdamW { betas: [0.9, 0.999], epsilon: 1e-8 },
        learning_rate: 1e-3,
        weight_decay: 0.01,
        groups: Vec::new(),
        shard: false,
    };
    let mut memory = OptimizerState::new(&optimizer, &params.trained, |_| true);
    let rule = StepPolicy {
        clip: 1.0,
        betas: optimizer.corrected(),
        decay: 0.0,
        warmup: true,
        scaled: false,
        unit: 1.0,
    };
    let mut decided = DeviceStepControl::of(&StepControl::default(), 1.0).to_device(device)?;
    let random = |shape: &[usize], i| {
        draw(shape, &Draw::Normal, 7, i).to_dtype(Dtype::F32).to_device(device)
    };
    let (z, target) = (random(&[batch, tokens, dim], 0)?, random(&[batch, tokens, dim], 1)?);
    let features = random(&[batch, 2], 2)?;
    let weights = Tensor::full(&[batch], 1.0 / batch as f64, Dtype::F32).to_device(device)?;
    let channels = Tensor::full(&[dim], 1.0, Dtype::F32).to_device(device)?;
    // The weights of the samples add up to 1.
    let weight = [Tensor::full(&[1], 1.0, Dtype::F32).to_device(device)?];
    let mut times = Vec::new();
    for _ in 0..repeats + 2 {
        let start = Instant::now();
        let tape = Tape::new();
        let forward = Forward::training(&tape, &params).computing_in(dtype)?;
        let [features, weights, channels, target] =
            [&features, &weights, &channels, &target].map(|t| constant(t.clone()));
        let (mut state, mut terms) = (constant(z.clone()), Vec::new());
        for _ in 0..horizon {
            state = operator.forward(&forward, &state, &features)?;
            terms.push(forward.apply(SquaredError, &[&state, &target, &weights, &channels])?);
        }
        let share = WeightedSum(vec![1.0 / horizon as f64; horizon]);
        let loss = forward.apply(share, &terms.iter().collect::<Vec<_>>())?;
        let variables = forward.variables().to_vec();
        drop((forward, state, terms));
        let mut found = tape.backward(&loss)?;
        let gradients: Vec<Tensor> = variables.iter().filter_map(|v| found.take(v)).collect();
        drop(variables);
        let rate = optimizer.learning_rate;
        let loss = [loss.value().clone()];
        rule.decide_on_device(&mut decided, &loss, &weight, &gradients, rate);
        memory.step(&optimizer, 1.0, &decided, &mut params.trained, &gradients);
        if device != Device::Cpu {
            kernel::finish(device)?;
        }
        times.push(1e3 * start.elapsed().as_secs_f64());
    }
    let mut times = times.split_off(2);
    times.sort_by(f64::total_cmp);
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:")?.split_whitespace().next());
    let peak: usize = peak.and_then(|kib| kib.parse().ok()).unwrap_or(0);
    println!(
        "{{\"parameters\": {}, \"median_ms\": {:.2}, \"minimum_ms\": {:.2}, \"peak_rss_bytes\": {}, \
         \"peak_device_bytes\": {}}}",
        params.count(),
        times[times.len() / 2],
        times[0],
        peak * 1024,
        if device == Device::Cpu { 0 } else { device.usage().peak }
    );
    Ok(())
}
