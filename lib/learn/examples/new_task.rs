//! A task in one file: linear classification of synthetic data. Samples have weights, and accuracy selects the best
//! checkpoint; the engine does everything else. `cargo run -p learn --example new_task FOLDER` trains one run without
//! interruption, kills another one midway and restarts it: both end with the same bits.

use dist::Solo;
use learn::checkpoint::{best, load, load_newest};
use learn::{forward::Forward, nn::Linear, params::*, score::*, task::*, train::*};
use rustix::process::{Signal, getpid, kill_process};
use std::{path::PathBuf, process::Command};
use tensor::random::{Philox, Purpose};
use tensor::{Device, Tensor, ops::squared_error::SquaredError};
use unix::{Error, Result};

const CLASSES: usize = 5;
const WIDTH: usize = 7;
const SAMPLES: u64 = 1000;
const EXAMPLE: &str = r#"{"seed": 3, "data": {}, "model": {}, "loss": {}, "checkpoint": {"every": 20},
    "training": {"updates": 90, "batch_size": 32, "accumulation": 2, "validate_every": 15},
    "optimizer": {"method": {"kind": "adamw"}, "learning_rate": 0.02}}"#;

struct Classes {
    layer: Linear,
    numbers: Philox,
}

impl Classes {
    /// The inputs of the given samples, and their classes: the index of the largest of the first inputs.
    fn read(&self, samples: &[u64]) -> (Tensor, Vec<usize>) {
        let row = |s: &u64| [0, 1, 2, 3, 4, 5, 6].map(|i| self.numbers.normal(*s, i));
        let rows: Vec<[f32; WIDTH]> = samples.iter().map(row).collect();
        let classes = rows.iter().map(|row| largest(&row[..CLASSES])).collect();
        (Tensor::from_slice(rows.as_flattened(), &[samples.len(), WIDTH]), classes)
    }
}

fn largest(values: &[f32]) -> usize {
    (0..values.len()).max_by(|a, b| values[*a].total_cmp(&values[*b])).unwrap_or(0)
}

impl Define for Classes {
    const SPEC: Spec = Spec::new("classes", "accuracy", Direction::Maximize, EXAMPLE);
    type Data = Empty;
    type Model = Empty;
    type Loss = Empty;

    fn open(config: &ConfigOf<Self>) -> Result<(Self, ParamSet)> {
        let mut builder = Builder::new(config.seed);
        let layer = Linear::new(&mut builder, "layer", WIDTH, CLASSES);
        Ok((Self { layer, numbers: Philox::new(config.seed, Purpose::Test) }, builder.finish()))
    }
}

impl Task for Classes {
    fn sources(&self) -> Vec<(u64, f64)> {
        vec![(SAMPLES, 1.0)]
    }

    fn data_hash(&self) -> String {
        "made up".into()
    }

    fn batch(&self, micro_batch: u64, _: u64, samples: &[u64]) -> Result<Batch> {
        if std::env::var("KILL_AT").is_ok_and(|at| at == micro_batch.to_string()) {
            kill_process(getpid(), Signal::KILL).map_err(Error::bug)?;
        }
        let (inputs, classes) = self.read(samples);
        let one_hot = |class| (0..CLASSES).map(move |i| f32::from(u8::from(i == class)));
        let targets: Vec<f32> = classes.into_iter().flat_map(one_hot).collect();
        let weights: Vec<f32> = samples.iter().map(|sample| 1.0 + (sample % 4) as f32).collect();
        Ok(Batch::new(f64::from(weights.iter().sum::<f32>()))
            .with("inputs", inputs)
            .with("targets", Tensor::from_slice(&targets, &[samples.len(), CLASSES]))
            .with("weights", Tensor::from_slice(&weights, &[samples.len()])))
    }

    fn loss(&self, forward: &Forward, batch: &Batch) -> Result<Loss> {
        let found = self.layer.forward(forward, &batch.input(forward, "inputs")?)?;
        let [targets, weights] =
            [batch.input(forward, "targets")?, batch.input(forward, "weights")?];
        let ones = forward.full(&[CLASSES], 1.0)?;
        Ok(forward.apply(SquaredError, &[&found, &targets, &weights, &ones])?.into())
    }

    fn validation_samples(&self) -> u64 {
        SAMPLES
    }

    fn evaluate(&self, forward: &Forward, samples: &[u64], scores: &mut Scores) -> Result<()> {
        let (inputs, classes) = self.read(&samples.iter().map(|s| SAMPLES + s).collect::<Vec<_>>());
        let batch = Batch::new(1.0).with("inputs", inputs).to_device(forward.device())?;
        for (class, row) in classes.iter().zip(self.predict(forward, &batch)?.rows("scores")?) {
            scores.confusion("", *class, largest(row));
        }
        Ok(())
    }

    fn predict(&self, forward: &Forward, batch: &Batch) -> Result<Predictions> {
        let x = batch.input(forward, "inputs")?;
        let found = self.layer.forward(forward, &x)?.value().to_host()?;
        Ok(Predictions::default().with("scores", CLASSES, found.read::<f32>().to_vec()))
    }
}

fn main() -> Result<()> {
    let folder = std::env::args_os().nth(1).map(PathBuf::from).unwrap_or("new_task".into());
    if std::env::var_os("KILL_AT").is_some() {
        let task = Configured::new::<Classes>(serde_json::from_str(EXAMPLE).map_err(Error::bug)?)?;
        return train(&Job::new(task, folder, Device::Cpu, &Solo)).map(drop);
    }
    for (name, kill_at) in [("whole", "never"), ("killed", "101"), ("killed", "never")] {
        let mut run = Command::new(std::env::current_exe().map_err(Error::bug)?);
        run.arg(folder.join(name)).env("KILL_AT", kill_at).status().map_err(Error::bug)?;
    }
    let newest = |name: &str| load_newest(&folder.join(name).join("ckpt"));
    let files = |name: &str| newest(name).map(|newest| newest.map(|found| found.manifest.files));
    assert_eq!(files("whole")?, files("killed")?, "the killed run has other bits");
    let best = best(&folder.join("killed/ckpt"))?.ok_or_else(|| Error::data("no checkpoint"))?;
    println!("best: {}, {}", best.display(), load(&best)?.manifest.metrics);
    Ok(())
}
