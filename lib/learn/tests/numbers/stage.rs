//! A stage as small as one can be, with faults on request: it learns the mean of its samples.

use std::sync::atomic::{AtomicU64, Ordering};

use data::inputs::InputFile;
use data::parameter::Parameter;
use learn::config::Config;
use learn::metrics::Regimes;
use learn::params::{Builder, Init, ParamId, Params};
use learn::pass::Pass;
use learn::stages::{Constants, Stage};
use rustix::process::{Signal, getpid, kill_process};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tensor::op::{Grads, Op, Saved};
use tensor::ops::squared_error::SquaredError;
use tensor::random::{Philox, Purpose};
use tensor::{Dtype, Tensor, Var, constant};
use unix::Result;
use unix::signal::Signals;

const WIDTH: usize = 4;

/// Environment variable: what the process does to itself at which computation, `kill:17` or `term:17`.
pub const DIE: &str = "NUMBERS_DIE";
/// Environment variable: [`Faults::flip`] of this process alone, `21:0`.
pub const FLIP: &str = "NUMBERS_FLIP";

/// What is wrong with the data or the machine.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Faults {
    /// This sample is not a number.
    pub nan_sample: Option<u64>,
    /// No number from this pass on (from 1; an update has two of them, or one).
    pub nan_from: Option<u64>,
    /// No number in every n-th pass.
    pub nan_every: Option<u64>,
    /// This sample is far too large.
    pub large_sample: Option<u64>,
    /// All samples of this pass are, whichever they are.
    pub large_pass: Option<u64>,
    /// In this computation (from 1) of a process this bit of one element of the gradient is flipped.
    pub flip: Option<(u64, u32)>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Nothing {}

pub type MeanConfig = Config<Faults, Nothing, Nothing>;

pub struct Mean {
    mean: ParamId,
    seed: u64,
    rows: usize,
    faults: Faults,
    computations: AtomicU64,
    die: Option<(Signal, u64)>,
}

/// The identity; its gradient may be wrong in one bit.
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
        grads.pass(0, dy);
    }
}

impl Stage for Mean {
    const NAME: &'static str = "mean";
    const METRIC: &'static str = "error";
    const EXAMPLE: &'static str = "";
    type Data = Faults;
    type Model = Nothing;
    type Loss = Nothing;
    type Batch = Tensor;

    fn open(config: &MeanConfig) -> Result<(Self, Params)> {
        // Portions are of one sample then, for batches of up to eight.
        let rows = match config.training.deterministic {
            true => 1,
            false => config.training.batch_size as usize,
        };
        let mut builder = Builder::new(config.seed);
        let mean = builder.param("mean", &[rows, WIDTH], Init::Uniform(1.0));
        let die = std::env::var(DIE).ok().map(|text| {
            let (signal, at) = text.split_once(':').unwrap();
            (if signal == "kill" { Signal::KILL } else { Signal::TERM }, at.parse().unwrap())
        });
        let (seed, mut faults) = (config.seed, config.data.clone());
        if let Ok(text) = std::env::var(FLIP) {
            let (at, bit) = text.split_once(':').unwrap();
            faults.flip = Some((at.parse().unwrap(), bit.parse().unwrap()));
        }
        let stage = Self { mean, seed, rows, faults, computations: AtomicU64::new(0), die };
        Ok((stage, builder.finish()))
    }

    /// So many that a run sees each at most once.
    fn sources(&self) -> Vec<(u64, f64)> {
        vec![(1_000_000, 1.0)]
    }

    fn data_hash(&self) -> String {
        "mean".into()
    }

    fn input_files(&self) -> Vec<InputFile> {
        Vec::new()
    }

    fn batch(&self, pass: u64, first: u64, samples: &[u64]) -> Result<Tensor> {
        let (faults, pass) = (&self.faults, pass + 1);
        let values = Philox::new(self.seed, Purpose::Test);
        let noise = Philox::new(self.seed, Purpose::Noise).at_update(pass);
        let mut rows = Vec::new();
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
                rows.push(scale * (x + 0.1 * noise.normal(place, element)));
            }
        }
        Ok(Tensor::of(&rows, &[samples.len(), WIDTH]))
    }

    fn loss(&self, pass: &Pass, batch: &Tensor) -> Result<Var> {
        let computation = self.computations.fetch_add(1, Ordering::SeqCst) + 1;
        if let Some((signal, _)) = self.die.filter(|(_, at)| *at == computation) {
            kill_process(getpid(), signal).unwrap();
            // Another thread may be the one that gets it.
            while Signals::install()?.stop_requested().is_none() {
                std::thread::yield_now();
            }
        }
        let flip = self.faults.flip.filter(|(at, _)| *at == computation).map(|(_, bit)| bit);
        let mean = pass.apply(Flip(flip), &[pass.get(self.mean)])?;
        let weights = Tensor::full(&[self.rows], 1.0 / self.rows as f64, Dtype::F32);
        let channels = Tensor::full(&[WIDTH], 1.0, Dtype::F32);
        let [batch, weights, channels] = [batch.clone(), weights, channels].map(constant);
        pass.apply(SquaredError, &[&mean, &batch, &weights, &channels])
    }

    fn validation_samples(&self) -> u64 {
        1
    }

    fn judge(&self, params: &Params, _: &[u64]) -> Result<Regimes> {
        let values = params.entries()[0].1.to_host()?;
        let mut regimes = Regimes::default();
        regimes.add(&Parameter::new("mean", 5.0), values.read(), &vec![5.0; values.len()]);
        Ok(regimes)
    }

    fn constants(&self) -> Constants {
        vec![("rows".into(), Tensor::scalar(self.rows as f64))]
    }
}
