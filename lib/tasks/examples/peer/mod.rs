//! What the programs that measure one training update have in common.

use learn::forward::Forward;
use learn::optim::{Method, Optimizer, OptimizerState};
use learn::params::ParamSet;
use learn::recompute::Recompute;
use std::rc::Rc;
use std::time::Instant;
use tensor::check::draw;
use tensor::op::Draw;
use tensor::updates::decision::{DeviceStepControl, StepControl, StepPolicy};
use tensor::updates::norm;
use tensor::{Device, DeviceChoice, Dtype, Tape, Tensor, Var, kernel};
use unix::{Error, Result};

/// Checks the command line: `--NAME NUMBER` for `numbers`, `--NAME WORD` for `words`, `--device` and `--precision`.
/// Errors: 2.
pub fn check_options(numbers: &[&str], words: &[&str]) -> Result<()> {
    let mut given = std::env::args().skip(1);
    while let Some(option) = given.next() {
        let name = option.strip_prefix("--").unwrap_or_default();
        let is_number = numbers.contains(&name);
        if !is_number && !words.contains(&name) && !["device", "precision"].contains(&name) {
            let known: Vec<String> = [numbers, words, &["device", "precision"]]
                .concat()
                .iter()
                .map(|n| format!("--{n}"))
                .collect();
            return Err(Error::usage(format!("unknown option {option}; use {}", known.join(", "))));
        }
        let value = given.next().ok_or_else(|| Error::usage(format!("{option} has no value")))?;
        if is_number && value.parse::<usize>().is_err() {
            return Err(Error::usage(format!("{option} {value}: not a number")));
        }
    }
    Ok(())
}

/// The word given as `--name`, or the default.
pub fn word(name: &str, default: &str) -> String {
    let mut words = std::env::args().skip_while(|word| *word != format!("--{name}"));
    words.nth(1).unwrap_or(default.into())
}

/// The number given as `--name`, or the default.
pub fn argument(name: &str, default: usize) -> usize {
    word(name, "").parse().unwrap_or(default)
}

/// The device given as `--device` (default cpu) and the dtype of computation given as `--precision` (default f32).
/// Errors: 2 if they are unknown; there is no such device.
pub fn place() -> Result<(Device, Dtype)> {
    let device = word("device", "cpu").parse::<DeviceChoice>()?.open()?.0;
    let dtype = match word("precision", "f32").as_str() {
        "f32" => Dtype::F32,
        "bf16" => Dtype::Bf16,
        "f16" => Dtype::F16,
        other => {
            return Err(Error::usage(format!("--precision {other}: use f32, bf16 or f16")));
        }
    };
    if device == Device::Cpu && dtype != Dtype::F32 {
        return Err(Error::usage(format!("--precision {dtype} needs a GPU: --device cuda")));
    }
    Ok((device, dtype))
}

/// Peak bytes of tensors on a device; 0 on the CPU, whose memory is in [`peak_rss`].
pub fn peak_on(device: Device) -> usize {
    if device == Device::Cpu { 0 } else { device.usage().peak }
}

/// Normal random numbers, the same in every run.
#[allow(dead_code)] // not every program draws its inputs here
pub fn random(shape: &[usize], i: usize) -> Tensor {
    draw(shape, &Draw::Normal, 7, i as u64).to_dtype(Dtype::F32)
}

/// Milliseconds of each of `repeats` calls, sorted, after two calls that are not measured.
#[allow(dead_code)] // not every program repeats one call
pub fn times(repeats: usize, mut call: impl FnMut() -> Result<()>) -> Result<Vec<f64>> {
    let mut times = Vec::new();
    for _ in 0..repeats + 2 {
        let start = Instant::now();
        call()?;
        times.push(1e3 * start.elapsed().as_secs_f64());
    }
    let mut times = times.split_off(2);
    times.sort_by(f64::total_cmp);
    Ok(times)
}

/// The peak of resident memory so far, in bytes.
pub fn peak_rss() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:")?.split_whitespace().next());
    1024 * peak.and_then(|kib| kib.parse().ok()).unwrap_or(0)
}

/// Parameters in training: AdamW with clipping of the gradient norm.
pub struct Training {
    /// The parameters.
    pub params: ParamSet,
    optimizer: Optimizer,
    state: OptimizerState,
    rule: StepPolicy,
    decided: DeviceStepControl,
    /// The weights of the samples add up to 1.
    weight: [Tensor; 1],
    device: Device,
    recompute: Rc<Recompute>,
    /// The dropout counter; None: nothing is dropped.
    pub counter: Option<Tensor>,
    /// Bytes of tensors on the CPU that the last forward pass kept.
    pub activations: usize,
}

impl Training {
    /// `budget` is `training.mem_budget`.
    pub fn new(params: ParamSet, device: Device, budget: f64) -> Result<Self> {
        let optimizer = Optimizer {
            method: Method::AdamW { betas: [0.9, 0.999], epsilon: 1e-8 },
            learning_rate: 1e-3,
            weight_decay: 0.01,
            groups: Vec::new(),
            layer_decay: None,
            shard: false,
        };
        let params = params.to_device(device)?;
        let rule = StepPolicy {
            clip: 1.0,
            betas: optimizer.corrected(),
            decay: 0.0,
            warmup: true,
            scaled: false,
            unit: 1.0,
        };
        Ok(Self {
            state: OptimizerState::new(&optimizer, &params.trained, |_| true),
            rule,
            decided: DeviceStepControl::of(&StepControl::default(), 1.0).to_device(device)?,
            weight: [Tensor::full(&[1], 1.0, Dtype::F32).to_device(device)?],
            params,
            optimizer,
            device,
            recompute: Rc::new(Recompute::new(budget)),
            counter: None,
            activations: 0,
        })
    }

    /// One update with the loss that `loss` computes in `dtype`.
    pub fn update(
        &mut self,
        dtype: Dtype,
        loss: impl FnOnce(&Forward) -> Result<Var>,
    ) -> Result<()> {
        let before = tensor::memory::usage().live;
        let tape = Tape::new();
        let forward = Forward::training(&tape, &self.params).computing_in(dtype)?;
        let forward = forward.recomputing(Rc::clone(&self.recompute));
        let forward = match &self.counter {
            Some(counter) => forward.with_counter(counter),
            None => forward,
        };
        let loss = loss(&forward)?;
        let variables = forward.variables().to_vec();
        drop(forward);
        self.recompute.end_pass();
        self.activations = tensor::memory::usage().live.saturating_sub(before);
        let mut found = tape.backward(&loss)?;
        let gradients: Vec<Tensor> = variables.iter().filter_map(|v| found.take(v)).collect();
        drop(variables);
        let (loss, rate) = ([loss.value().clone()], self.optimizer.learning_rate);
        let squares = norm::squares(self.device, &gradients);
        self.rule.decide_on_device(&mut self.decided, &loss, &self.weight, &squares, rate);
        self.state.step(&self.optimizer, 1.0, &self.decided, &mut self.params.trained, &gradients);
        if self.device == Device::Cpu { Ok(()) } else { kernel::finish(self.device) }
    }
}
