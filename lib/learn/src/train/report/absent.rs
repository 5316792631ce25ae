//! Estimates the resources of a run on GPUs that this machine does not have, from the shapes of its ops.

use super::memory_parts::MemoryParts;
use crate::config::Training;
use crate::forward::Forward;
use crate::params::ParamSet;
use crate::recompute::Recompute;
use crate::task::{ConfiguredTask, Task};
use serde::Serialize;
use std::fmt;
use std::rc::Rc;
use std::str::FromStr;
use tensor::trace::{TracedOp, trace};
use tensor::{Dtype, Tape};
use unix::{Error, Result};

/// A kind of GPU: the rates of its data sheet (dense, without sparsity).
#[derive(Clone, Copy, Debug, PartialEq)]
struct Gpu {
    name: &'static str,
    /// Bytes of memory.
    memory: f64,
    /// Bytes per second to and from memory.
    bandwidth: f64,
    /// Operations per second of tensor cores in 16 bits and in TF32, and of f32 without them.
    rates: [f64; 3],
}

const GPUS: [Gpu; 4] = [
    Gpu { name: "h200", memory: 141e9, bandwidth: 4.8e12, rates: [989e12, 494e12, 67e12] },
    Gpu { name: "h100", memory: 80e9, bandwidth: 3.35e12, rates: [989e12, 494e12, 67e12] },
    Gpu { name: "a100-80", memory: 80e9, bandwidth: 2.0e12, rates: [312e12, 156e12, 19.5e12] },
    Gpu { name: "a100-40", memory: 40e9, bandwidth: 1.555e12, rates: [312e12, 156e12, 19.5e12] },
];

/// Fractions of the rates of operations and of memory that training reaches, and the seconds of a kernel that has nothing
/// to do. With these, an update of bert-base with 16 texts of 128 tokens takes 11 ms on an H200; measured were 14.2 to 15.7
/// (benches/results), and nothing else has been compared.
const REACHED: [f64; 2] = [0.3, 0.3];
const LAUNCH: f64 = 2.5e-6;
/// GPUs of a node, and bytes per second that each sends to the others of its node, and to other nodes.
const NODE: usize = 8;
const LINKS: [f64; 2] = [200e9, 40e9];
/// Memory that the driver takes, and that libraries take.
const CONTEXT: f64 = 0.6e9;

/// Where a run is to be trained: `h100`, `h100:16`, or the memory of a GPU such as `24GB`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Absent {
    gpu: Option<Gpu>,
    count: u64,
    memory: f64,
}

impl FromStr for Absent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.strip_suffix("GB").and_then(|text| text.parse::<f64>().ok());
        if let Some(memory) = number.filter(|x| *x > 0.0 && x.is_finite()) {
            return Ok(Self { gpu: None, count: 1, memory: 1e9 * memory });
        }
        let (name, count) = text.split_once(':').unwrap_or((text, "1"));
        let gpu = GPUS.iter().find(|gpu| gpu.name == name);
        let count = count.parse::<u64>().ok().filter(|count| *count > 0);
        match (gpu, count) {
            (Some(gpu), Some(count)) => Ok(Self { gpu: Some(*gpu), count, memory: gpu.memory }),
            _ => {
                let names = GPUS.map(|gpu| gpu.name).join(", ");
                Err(format!(
                    "is none of {names}, each with :N for N GPUs, or a memory such as 24GB"
                ))
            }
        }
    }
}

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.gpu {
            Some(gpu) => write!(f, "{}:{}", gpu.name, self.count),
            None => write!(f, "{}GB", self.memory / 1e9),
        }
    }
}

/// Estimated resources of a run on absent GPUs.
#[derive(Clone, Debug, Serialize)]
pub struct AbsentEstimate {
    /// The GPUs.
    pub on: String,
    /// Number of elements in all parameters.
    pub parameters: usize,
    /// Number of updates.
    pub updates: u64,
    /// Memory of each GPU in bytes, by part.
    pub memory: MemoryParts,
    /// Sum of the parts in bytes.
    pub memory_bytes: f64,
    /// Memory that a GPU has, in bytes.
    pub available_bytes: f64,
    /// Size of one checkpoint in bytes.
    pub checkpoint_bytes: f64,
    /// Floating-point operations of an update on each GPU.
    pub flops: f64,
    /// Seconds of an update; null if only the memory of the GPU is known.
    pub seconds_per_update: Option<f64>,
    /// Share of matrix products, convolutions and attention in the time of an update.
    pub products: Option<f64>,
    /// Share of the sums of gradients over GPUs, which partly run beside other work.
    pub communication: Option<f64>,
    /// Seconds of all updates.
    pub seconds: Option<f64>,
    /// Cost of all updates; null if no price is known ([`crate::config::Cost::rate`]).
    pub cost: Option<f64>,
}

/// A forward pass with some samples.
#[derive(Clone)]
struct Pass {
    ops: Vec<TracedOp>,
    /// Bytes that it keeps, with `training.mem_budget`.
    activations: f64,
    /// Shares of them that the model names.
    parts: Vec<(&'static str, f64)>,
    /// Bytes that computing blocks again takes beyond these.
    block: f64,
    /// Operations of the blocks that are computed again.
    repeated: f64,
}

/// How forward passes are traced.
struct Tracer<'a> {
    task: &'a dyn Task,
    params: &'a ParamSet,
    dtype: Dtype,
    seed: u64,
    mem_budget: f64,
}

impl Tracer<'_> {
    /// Traces a pass of `count` samples: the longest ones, whose memory is largest, or the first.
    fn pass(&self, count: u64, longest: bool) -> Result<Pass> {
        let all = crate::task::samples(self.task);
        let lengths = self.task.buckets().filter(|_| longest).map(|buckets| buckets.lengths);
        let longest = lengths.and_then(|lengths| (0..all).max_by_key(|i| lengths[*i as usize]));
        let samples: Vec<u64> = (0..count).map(|i| longest.unwrap_or(i % all)).collect();
        let batch = self.task.batch(0, 0, &samples)?.with_counter(self.seed, 0, 0);
        let before = tensor::memory::usage().live;
        let recompute = Rc::new(Recompute::new(self.mem_budget));
        let (activations, ops) = trace(|| -> Result<usize> {
            let tape = Tape::new();
            let forward = Forward::training(&tape, self.params).with_counter(batch.counter());
            let forward = forward.computing_in(self.dtype)?.recomputing(recompute.clone());
            // Copies of the parameters count as a part of their own.
            let copied = tensor::memory::usage().live;
            let _loss = self.task.loss(&forward, &batch)?;
            Ok(tensor::memory::usage().live.saturating_sub(copied.max(before)))
        });
        recompute.end_pass();
        let plan = recompute.plan().unwrap_or_default();
        // The backward pass frees blocks from the last one on, and computes others again beside those that are left.
        let (mut freed, mut block) = (0, 0);
        for (own, keep) in plan.blocks.iter().zip(&plan.keep).rev() {
            match keep {
                true => freed += own.bytes,
                false => block = block.max(own.bytes.saturating_sub(freed)),
            }
        }
        // While blocks are measured, all keep only their inputs.
        let activations = activations? + plan.bytes().0;
        let repeated = plan.flops().0 as f64;
        let parts = recompute.parts();
        Ok(Pass { ops, activations: activations as f64, parts, block: block as f64, repeated })
    }

    /// The passes of two sizes between which everything grows linearly, and the smaller size; for `samples` samples.
    fn passes(&self, samples: u64, longest: bool) -> Result<([Pass; 2], f64)> {
        // Two samples of each kind, where a task has two.
        let [one, two] = [self.pass(2, longest)?, self.pass(4, longest)?];
        if one.ops.len() == two.ops.len() {
            return Ok(([one, two], 2.0));
        }
        let only = self.pass(samples, longest)?;
        Ok(([only.clone(), only], samples as f64))
    }
}

/// Returns value(target) of a line through value(1) = `one` and value(2) = `two`.
fn along(one: f64, two: f64, target: f64) -> f64 {
    (one + (two - one) * (target - 1.0)).max(0.0)
}

/// Estimates memory, time and cost of a run on GPUs that are absent: no update is computed. Errors: those of opening the
/// task; 78 if the batch cannot be divided among the GPUs.
pub fn estimate(configured: &ConfiguredTask, on: Absent) -> Result<AbsentEstimate> {
    of_training(configured, &configured.config.training, on)
}

/// Bytes that an update of `samples` samples in f32 needs before any block is recomputed, from the shapes of its ops.
pub(super) fn memory_of(configured: &ConfiguredTask, samples: u64) -> Result<f64> {
    let training = &configured.config.training;
    let own = Training { batch_size: samples, amp: false, mem_budget: 1.0, ..training.clone() };
    let here = Absent { gpu: None, count: 1, memory: 0.0 };
    let found = of_training(configured, &own, here)?;
    Ok(found.memory_bytes - found.memory.context)
}

/// [`estimate`] with other settings of training.
fn of_training(
    configured: &ConfiguredTask,
    training: &Training,
    on: Absent,
) -> Result<AbsentEstimate> {
    let config = &configured.config;
    if !training.batch_size.is_multiple_of(on.count) {
        return Err(Error::config(format!(
            "training.batch_size: {} samples cannot be divided among {} GPUs",
            training.batch_size, on.count
        )));
    }
    let samples = training.batch_size / on.count;
    let (task, mut params) = configured.open()?;
    let dtype = match training.amp {
        false => Dtype::F32,
        true => training.precision.dtype(),
    };
    let frozen = match &config.init {
        Some(init) => init.frozen_bytes(&params)? as f64,
        None => params.frozen.bytes() as f64,
    };
    // Stored in whatever form, they are brought into the dtype where they are used, one weight of a layer at a time.
    let is_stored = frozen < (params.frozen.count() * dtype.bytes()) as f64;
    let expanded = if is_stored { params.frozen.largest_linear() * dtype.bytes() } else { 0 };
    params.frozen = params.frozen.untouched(dtype);
    let (seed, mem_budget) = (config.seed, training.mem_budget);
    let tracer = Tracer { task: &*task, params: &params, dtype, seed, mem_budget };
    let ([one, two], size) = tracer.passes(samples, false)?;
    let target = samples as f64 / size;
    let of_op = |(one, two): (&TracedOp, &TracedOp)| {
        let at = |of: fn(&TracedOp) -> usize| along(of(one) as f64, of(two) as f64, target);
        Work {
            flops: at(|op| op.flops),
            backward_flops: at(|op| op.backward_flops),
            gradients: at(|op| op.gradients),
            read: at(|op| op.read),
            written: at(|op| op.written),
            element: one.element,
        }
    };
    let ops: Vec<Work> = one.ops.iter().zip(&two.ops).map(of_op).collect();
    let of_forward = ops.iter().map(|op| op.flops).sum::<f64>();
    // The fraction of the forward pass that the backward pass computes again.
    let repeated = along(one.repeated, two.repeated, target) / of_forward.max(1.0);
    let ([one, two], size) = match task.buckets() {
        Some(_) => tracer.passes(samples, true)?,
        None => ([one, two], size),
    };
    let target = samples as f64 / size;
    let at = |of: fn(&Pass) -> f64| along(of(&one), of(&two), target);
    let largest = |of: fn(&TracedOp) -> usize| {
        let all = one.ops.iter().zip(&two.ops);
        let all = all.map(|(one, two)| along(of(one) as f64, of(two) as f64, target));
        all.fold(0.0, f64::max)
    };
    let parts = one.parts.iter().zip(&two.parts);
    let parts =
        parts.map(|((name, one), (_, two))| (name.to_string(), along(*one, *two, target).into()));
    let (trained, all) = (params.trained.count() as f64, params.count() as f64);
    let owned = if config.optimizer.shard { on.count as f64 } else { 1.0 };
    let state: usize = params.trained.tensors().map(|t| config.optimizer.state_bytes(t)).sum();
    let memory = MemoryParts {
        parameters: 4.0 * trained + frozen,
        // Of frozen parameters only what takes more memory than its copy.
        copies: match dtype {
            Dtype::F32 => 0.0,
            _ if frozen > 2.0 * (all - trained) => 2.0 * all,
            _ => 2.0 * trained,
        },
        gradients: 4.0 * trained,
        optimizer: state as f64 / owned,
        average: if training.ema.is_some() { 4.0 * trained } else { 0.0 },
        activations: at(|pass| pass.activations),
        activations_by_part: parts.collect(),
        block: at(|pass| pass.block),
        logits: largest(|op| op.workspace),
        workspace: largest(|op| op.passed) + expanded as f64,
        context: CONTEXT,
    };
    let passes = training.accumulation as f64;
    let of_backward = ops.iter().map(|op| op.backward_flops).sum::<f64>();
    let flops = passes * ((1.0 + repeated) * of_forward + of_backward);
    let times = on.gpu.map(|gpu| {
        let of_pass = |op: &Work| {
            let (calculation, movement) = op.seconds(&gpu, training.tf32);
            let repeats = 1.0 + repeated;
            let forward = calculation[0].max(movement[0]) + LAUNCH;
            let backward = match op.gradients > 0.0 {
                true => calculation[1].max(movement[1]) + 2.0 * LAUNCH,
                false => 0.0,
            };
            let products =
                if calculation[0] > movement[0] { repeats * forward + backward } else { 0.0 };
            [repeats * forward + backward, products]
        };
        let [mut total, mut products] = [0.0; 2];
        for op in &ops {
            let [all, own] = of_pass(op);
            total += passes * all;
            products += passes * own;
        }
        // Gradient, value and state of each parameter are read, and the latter two written.
        let update =
            (4.0 * (3.0 * trained) + 8.0 * state as f64 / owned) / (gpu.bandwidth * REACHED[1]);
        let n = on.count as f64;
        let link = LINKS[usize::from(on.count as usize > NODE)];
        let bytes = training.reduce_dtype.dtype().bytes() as f64;
        let sums = 2.0 * (n - 1.0) / n * bytes * trained / link;
        // Sums start while the rest of the backward pass runs, which is about two thirds of an update.
        let exposed = (sums - total * 2.0 / 3.0).max(0.1 * sums);
        (total + update + exposed, products, exposed)
    });
    let seconds = times.map(|(seconds, ..)| seconds * training.updates as f64);
    Ok(AbsentEstimate {
        on: on.to_string(),
        parameters: params.count(),
        updates: training.updates,
        memory_bytes: memory.each().iter().map(|(_, bytes)| bytes).sum(),
        available_bytes: on.memory,
        checkpoint_bytes: 4.0 * (trained + state as f64) + memory.average,
        memory,
        flops,
        seconds_per_update: times.map(|(seconds, ..)| seconds),
        products: times.map(|(seconds, products, _)| products / seconds),
        communication: times.map(|(seconds, _, exposed)| exposed / seconds),
        seconds,
        cost: seconds.and_then(|seconds| {
            let name = on.gpu.map_or(String::new(), |gpu| gpu.name.to_uppercase());
            config.cost.of(seconds, &name, on.count as usize)
        }),
    })
}

/// An op with the samples of a GPU.
struct Work {
    flops: f64,
    backward_flops: f64,
    gradients: f64,
    read: f64,
    written: f64,
    element: usize,
}

impl Work {
    /// Seconds of calculation and of moving bytes, each in a forward and in a backward pass, which reads the inputs and the
    /// gradient of the output and writes the gradients of inputs that are needed.
    fn seconds(&self, gpu: &Gpu, tf32: bool) -> ([f64; 2], [f64; 2]) {
        let rate = match (self.element, tf32) {
            (2, _) => gpu.rates[0],
            (_, true) => gpu.rates[1],
            (_, false) => gpu.rates[2],
        };
        let bandwidth = gpu.bandwidth * REACHED[1];
        let forward = (self.read + self.written) / bandwidth;
        let backward = (self.read + self.written + self.gradients) / bandwidth;
        let calculation =
            [self.flops, self.backward_flops].map(|flops| flops / (rate * REACHED[0]));
        (calculation, [forward, backward])
    }
}
