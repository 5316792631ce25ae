//! What the programs that measure one training update have in common.

use learn::forward::Forward;
use learn::optim::{Method, Optimizer, OptimizerState};
use learn::params::ParamSet;
use learn::recompute::Recompute;
use std::rc::Rc;
use std::time::Instant;
use tensor::check::draw;
use tensor::kernel::Graph;
use tensor::op::Draw;
use tensor::product::bf16;
use tensor::updates::decision::{DeviceStepControl, StepControl, StepPolicy};
use tensor::updates::norm;
use tensor::{Device, DeviceChoice, Dtype, Tape, Tensor, Var, kernel};
use unix::{Error, Exit, Result};

/// Where updates are measured.
#[derive(clap::Args)]
pub struct Place {
    /// Where to compute: cpu, cuda, cuda:N
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: DeviceChoice,
    /// Element type of the computation; f16 needs a GPU; on the CPU, bf16 rounds operands of matrix products (training.amp)
    #[arg(long, value_name = "TYPE", value_parser = ["f32", "bf16", "f16"], default_value = "f32")]
    precision: String,
    /// Record passes as CUDA graphs (training.compile); needs a GPU
    #[arg(long)]
    compile: bool,
    /// Number of threads
    #[arg(long, value_name = "N", default_value_t = 2)]
    threads: usize,
}

impl Place {
    /// Runs `work` on the threads, with the device and the dtype of the computation. Errors: 2 if they do not go together;
    /// there is no such device.
    pub fn inside(&self, work: impl FnOnce(Device, Dtype) -> Result<()> + Send) -> Result<Exit> {
        tensor::parallel::start_threads(Some(self.threads))?;
        let device = self.device.open()?.0;
        let dtype = match self.precision.as_str() {
            "bf16" => Dtype::Bf16,
            "f16" => Dtype::F16,
            _ => Dtype::F32,
        };
        let mut rounding = None;
        let dtype = match (device, dtype) {
            (Device::Cpu, Dtype::F16) => {
                return Err(Error::usage("--precision f16 needs a GPU: --device cuda"));
            }
            (Device::Cpu, Dtype::Bf16) => {
                rounding = Some(bf16::Rounding::begin());
                Dtype::F32
            }
            _ => dtype,
        };
        if device == Device::Cpu && self.compile {
            return Err(Error::usage("--compile needs a GPU: --device cuda"));
        }
        tensor::parallel::inside(|| work(device, dtype))?;
        drop(rounding);
        Ok(Exit::Done)
    }
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

/// What a recorded pass depends on: shapes of its inputs, and which blocks are recomputed.
type Key = (Vec<Vec<usize>>, Option<Vec<bool>>);

/// Parameters in training: AdamW with clipping of the gradient norm.
pub struct Training {
    /// The parameters.
    pub params: ParamSet,
    optimizer: Optimizer,
    state: OptimizerState,
    rule: StepPolicy,
    decided: DeviceStepControl,
    /// The sum of the weights of the samples.
    weight: [Tensor; 1],
    device: Device,
    recompute: Rc<Recompute>,
    compile: bool,
    key: Option<Key>,
    recorded: Option<Graph>,
    /// The dropout counter of the next update; None: nothing is dropped.
    pub counter: Option<Tensor>,
    loss: Option<Tensor>,
    /// Bytes of tensors on the CPU that the last forward pass kept.
    pub activations: usize,
}

impl Training {
    /// `budget` is `training.mem_budget`.
    pub fn new(params: ParamSet, device: Device, place: &Place, budget: f64) -> Result<Self> {
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
            compile: place.compile,
            key: None,
            recorded: None,
            counter: None,
            loss: None,
            activations: 0,
        })
    }

    /// Replaces AdamW by another optimizer.
    #[allow(dead_code)] // not every program has several
    pub fn with_method(mut self, method: Method) -> Self {
        self.optimizer.method = method;
        self.rule.betas = self.optimizer.corrected();
        self.state = OptimizerState::new(&self.optimizer, &self.params.trained, |_| true);
        self
    }

    /// Sets the sum of the weights of the samples, by which the loss is divided.
    #[allow(dead_code)] // not every loss is a sum
    pub fn with_weight(mut self, weight: f64) -> Result<Self> {
        self.weight = [Tensor::full(&[1], weight, Dtype::F32).to_device(self.device)?];
        Ok(self)
    }

    /// One update with the loss that `loss` computes in `dtype`. `differing` are the tensors it reads and owns that are
    /// others in every update.
    pub fn update(
        &mut self,
        dtype: Dtype,
        mut differing: Vec<Tensor>,
        loss: impl FnOnce(&Forward) -> Result<Var>,
    ) -> Result<()> {
        let counter = self.counter.take();
        differing.extend(counter.clone());
        let plan = self.recompute.plan().map(|plan| plan.keep);
        let key = Some((differing.iter().map(|t| t.shape().to_vec()).collect(), plan));
        let found = if !self.compile || self.key != key {
            // The first pass is not recorded: it loads kernels and measures blocks.
            (self.key, self.recorded) = (key, None);
            self.pass(dtype, counter, loss)?
        } else {
            let mut graph = match self.recorded.take() {
                Some(graph) => graph,
                None => {
                    // The graph owns the memory that the recording reads.
                    let copies = differing.iter().map(Tensor::copied).collect();
                    let inputs = std::mem::replace(&mut differing, copies);
                    Graph::record(self.device, inputs, |_| self.pass(dtype, counter, loss))?
                }
            };
            graph.replay(&differing, |_| Ok(()))?;
            let found = graph.outputs().to_vec();
            self.recorded = Some(graph);
            found
        };
        let (loss, gradients) = found.split_at(1);
        let rate = self.optimizer.learning_rate;
        let squares = norm::squares(self.device, gradients);
        self.rule.decide_on_device(&mut self.decided, loss, &self.weight, &squares, rate);
        self.state.step(
            &self.optimizer,
            1.0,
            &[],
            &self.decided,
            &mut self.params.trained,
            gradients,
        );
        self.loss = loss.first().cloned();
        if self.device == Device::Cpu { Ok(()) } else { kernel::finish(self.device) }
    }

    /// The loss of the last update.
    pub fn last_loss(&self) -> Option<f64> {
        self.loss.as_ref().and_then(|loss| loss.to_host().ok()).map(|loss| loss.item())
    }

    /// The loss and the gradients.
    fn pass(
        &mut self,
        dtype: Dtype,
        counter: Option<Tensor>,
        loss: impl FnOnce(&Forward) -> Result<Var>,
    ) -> Result<Vec<Tensor>> {
        let before = tensor::memory::usage().live;
        let tape = Tape::new();
        let forward = Forward::training(&tape, &self.params).computing_in(dtype)?;
        let forward = forward.recomputing(Rc::clone(&self.recompute));
        let forward = match &counter {
            Some(counter) => forward.with_counter(counter),
            None => forward,
        };
        let loss = loss(&forward)?;
        let variables = forward.variables().to_vec();
        drop(forward);
        self.recompute.end_pass();
        self.activations = tensor::memory::usage().live.saturating_sub(before);
        let mut found = tape.backward(&loss)?;
        let gradients = variables.iter().filter_map(|v| found.take(v));
        Ok([loss.value().clone()].into_iter().chain(gradients).collect())
    }
}
