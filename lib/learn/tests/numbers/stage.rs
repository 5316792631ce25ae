//! A minimal task that injects faults on request: it learns the mean of its samples.

use std::sync::atomic::{AtomicU64, Ordering};

use learn::config::Config;
use learn::forward::Forward;
use learn::params::{Builder, Init, ParamId, ParamSet};
use learn::score::Direction;
use learn::score::Scores;
use learn::task::{Batch, Buffers, Define, Empty, Loss, Part, Predictions, Spec, Task};
use rustix::process::{Signal, getpid, kill_process};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tensor::Tensor;
use tensor::op::{Grads, Launch, Op, Saved};
use tensor::ops::activation::Activation;
use tensor::ops::linear::Linear;
use tensor::ops::squared_error::SquaredError;
use tensor::random::{Philox, Purpose};
use unix::Result;
use unix::signal::Signals;

const WIDTH: usize = 4;

/// Environment variable: the signal that the process sends itself at a computation, `kill:17` or `term:17`.
pub const DIE: &str = "NUMBERS_DIE";
/// Environment variable: [`Faults::flip`] for this process alone, `21:0`.
pub const FLIP: &str = "NUMBERS_FLIP";

/// Number of losses that this process has computed; replays of graphs compute none.
pub static COMPUTATIONS: AtomicU64 = AtomicU64::new(0);

/// Faults of the data or the hardware.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Faults {
    /// This sample is NaN.
    pub nan_sample: Option<u64>,
    /// All samples are NaN from this pass on (from 1; an update has one or two passes).
    pub nan_from: Option<u64>,
    /// All samples of every n-th pass are NaN.
    pub nan_every: Option<u64>,
    /// This sample is far too large.
    pub large_sample: Option<u64>,
    /// All samples of this pass are far too large.
    pub large_pass: Option<u64>,
    /// Samples have different weights, and there is no noise that depends on the batch.
    pub uneven: bool,
    /// The loss has a second part, with a denominator of its own: few samples count, each hundreds of times, and the
    /// factor grows with every update.
    pub parts: bool,
    /// The loss of every other batch is twice as large and has other terms.
    pub variants: bool,
    /// The computation (from 1) of a process, and the bit of one gradient element to flip in it.
    pub flip: Option<(u64, u32)>,
}

pub type MeanConfig = Config<Faults, Empty, Empty>;

pub struct Mean {
    mean: ParamId,
    seed: u64,
    faults: Faults,
    accumulation: u64,
    computations: AtomicU64,
    die: Option<(Signal, u64)>,
}

/// Factor of the second part of the loss in an update (from 0).
pub fn rare_factor(update: u64) -> f64 {
    0.3 + 0.1 * update as f64
}

/// The identity, whose gradient may have one flipped bit.
struct Flip(Option<u32>);

impl Op for Flip {
    fn name(&self) -> &'static str {
        "flip"
    }
    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        Ok(inputs[0].to_vec())
    }
    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        out.write::<f32>().copy_from_slice(inputs[0].read::<f32>());
        Saved::new()
    }
    fn backward(&self, _: &Saved, mut dy: Tensor, grads: &mut Grads) {
        if let Some(bit) = self.0 {
            let element = &mut dy.write::<f32>()[1];
            *element = f32::from_bits(element.to_bits() ^ (1 << bit));
        }
        grads.accumulate(0, dy);
    }
}

impl Launch for Flip {
    fn launch_forward(&self, _: &[&Tensor], _: &mut Tensor) -> Saved {
        unreachable!("the tests that flip bits run on the CPU")
    }
    fn launch_backward(&self, _: &Saved, _: Tensor, _: &mut Grads) {
        unreachable!("the tests that flip bits run on the CPU")
    }
}

impl Define for Mean {
    const SPEC: Spec =
        Spec { name: "mean", metric: "error", direction: Direction::Minimize, example: "" };
    type Data = Faults;
    type Model = Empty;
    type Loss = Empty;

    fn open(config: &MeanConfig) -> Result<(Self, ParamSet)> {
        let mut builder = Builder::new(config.seed);
        let mean = builder.param("mean", &[WIDTH, 1], Init::Uniform(1.0));
        let die = std::env::var(DIE).ok().map(|text| {
            let (signal, at) = text.split_once(':').unwrap();
            (if signal == "kill" { Signal::KILL } else { Signal::TERM }, at.parse().unwrap())
        });
        let (seed, mut faults) = (config.seed, config.data.clone());
        if let Ok(text) = std::env::var(FLIP) {
            let (at, bit) = text.split_once(':').unwrap();
            faults.flip = Some((at.parse().unwrap(), bit.parse().unwrap()));
        }
        let (accumulation, computations) = (config.training.accumulation, AtomicU64::new(0));
        let task = Self { mean, seed, faults, accumulation, computations, die };
        Ok((task, builder.finish()))
    }
}

impl Task for Mean {
    /// So many that a run sees each at most once.
    fn sources(&self) -> Vec<(u64, f64)> {
        vec![(1_000_000, 1.0)]
    }

    fn data_hash(&self) -> String {
        "mean".into()
    }

    fn batch(&self, micro_batch: u64, first: u64, samples: &[u64]) -> Result<Batch> {
        let (faults, pass) = (&self.faults, micro_batch + 1);
        let values = Philox::new(self.seed, Purpose::Test);
        let noise = Philox::new(self.seed, Purpose::Noise).at_update(micro_batch);
        let noise_scale = if faults.uneven { 0.0 } else { 0.1 };
        let (mut rows, mut weights) = (Vec::new(), Vec::new());
        for (place, sample) in (first..).zip(samples) {
            let is_nan = faults.nan_sample == Some(*sample)
                || faults.nan_from.is_some_and(|from| pass >= from)
                || faults.nan_every.is_some_and(|n| pass.is_multiple_of(n));
            let is_large = faults.large_sample == Some(*sample) || faults.large_pass == Some(pass);
            let scale = if is_nan {
                f32::NAN
            } else if is_large {
                1e4
            } else {
                1.0
            };
            for element in 0..WIDTH as u64 {
                let x = 5.0 + values.normal(*sample, element);
                rows.push(scale * (x + noise_scale * noise.normal(place, element)));
            }
            weights.push(if faults.uneven { 0.25 + (sample % 5) as f32 } else { 1.0 });
        }
        let sum = |weights: &[f32]| f64::from(weights.iter().sum::<f32>());
        // Ranks with two samples have different variants.
        let variant = if faults.variants { (micro_batch + first / 2) % 2 } else { 0 };
        let batch = Batch::new(sum(&weights))
            .with_variant(variant as u32)
            .with("rows", Tensor::from_slice(&rows, &[samples.len(), WIDTH]))
            .with("weights", Tensor::from_slice(&weights, &[samples.len()]));
        if !faults.parts {
            return Ok(batch);
        }
        let weight = |s: &u64| if s.is_multiple_of(5) { 300.1 + (s % 7) as f32 } else { 0.0 };
        let rare: Vec<f32> = samples.iter().map(weight).collect();
        let parts = [
            Part::new("all", sum(&weights)),
            Part::new("rare", sum(&rare)).times(rare_factor(micro_batch / self.accumulation)),
        ];
        let batch = batch.weighing(samples.len() as f64).with_parts(parts);
        Ok(batch.with("rare", Tensor::from_slice(&rare, &[samples.len()])))
    }

    fn loss(&self, forward: &Forward, batch: &Batch) -> Result<Loss> {
        COMPUTATIONS.fetch_add(1, Ordering::SeqCst);
        let computation = self.computations.fetch_add(1, Ordering::SeqCst) + 1;
        if let Some((signal, _)) = self.die.filter(|(_, at)| *at == computation) {
            kill_process(getpid(), signal).unwrap();
            // Another thread may be the one that receives it.
            while Signals::install()?.stop_requested().is_none() {
                std::thread::yield_now();
            }
        }
        let flip = self.faults.flip.filter(|(at, _)| *at == computation).map(|(_, bit)| bit);
        // Without a fault, the op is left out, because it has no kernel on some devices.
        let mean = match flip {
            None => forward.get(self.mean).clone(),
            Some(_) => forward.apply(Flip(flip), &[forward.get(self.mean)])?,
        };
        let [rows, weights] = [batch.input(forward, "rows")?, batch.input(forward, "weights")?];
        // One row per sample.
        let repeat = Linear { bias: false, activation: Activation::Identity };
        let found = forward.apply(repeat, &[&forward.full(&[rows.shape()[0], 1], 1.0)?, &mean])?;
        let factor = [1.0, 2.0][batch.variant() as usize];
        let channels = forward.full(&[WIDTH], factor)?;
        let error = |weights| forward.apply(SquaredError, &[&found, &rows, weights, &channels]);
        let all = error(&weights)?;
        if self.faults.variants {
            let terms = ["both", ["even", "odd"][batch.variant() as usize]];
            let terms = terms.map(|name| (name, all.value().clone()).into()).into();
            return Ok(Loss { sum: all, terms });
        }
        if !self.faults.parts {
            return Ok(all.into());
        }
        let rare = error(&batch.input(forward, "rare")?)?;
        Loss::of_parts(forward, batch, &[("all", &all), ("rare", &rare)])
    }

    fn terms(&self) -> Vec<String> {
        let all = ["odd", "both", "even"].map(String::from);
        if self.faults.variants { all.into() } else { Vec::new() }
    }

    fn validation_samples(&self) -> u64 {
        1
    }

    fn evaluate(&self, forward: &Forward, _: &[u64], scores: &mut Scores) -> Result<()> {
        let values = forward.get(self.mean).value().to_host()?;
        scores.nrmse("error", "mean=5", values.read(), &vec![5.0; values.len()]);
        Ok(())
    }

    fn predict(&self, forward: &Forward, _: &Batch) -> Result<Predictions> {
        let values = forward.get(self.mean).value().to_host()?;
        Ok(Predictions::default().with("mean", values.len(), values.read::<f32>().to_vec()))
    }

    fn buffers(&self) -> Buffers {
        vec![("width".into(), Tensor::scalar(WIDTH as f64))]
    }
}
