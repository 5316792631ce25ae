//! A task in one file: linear classification of synthetic data. Samples have weights, and accuracy selects the best
//! checkpoint; the engine does everything else. `cargo run -p learn --example new_task FOLDER` trains one run without
//! interruption, kills another one midway and restarts it: both end with the same bits. Then it scores the best
//! checkpoint and predicts the classes of new samples.

use data::{inputs::InputFile, split::SplitName};
use dist::Solo;
use learn::checkpoint::load_newest;
use learn::trained::{Parts, TrainedModel, Weights};
use learn::{evaluate::*, forward::Forward, nn::Linear, params::*, score::*, task::*, train::*};
use report::evaluation::{self, Metric, Subject};
use rustix::process::{Signal, getpid, kill_process};
use serde_json::json;
use std::{ops::Range, path::Path, path::PathBuf, process::Command};
use tensor::{Device, Tensor, ops::squared_error::SquaredError, random::Philox, random::Purpose};
use unix::{Error, Result, cli::Output, out::Out, signal::Signals, work};

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
        let input = |name| batch.input(forward, name);
        let (targets, weights) = (input("targets")?, input("weights")?);
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

/// A trained model, and the split that follows those of training and validation.
struct Scored(TrainedModel<Classes>);

impl Scored {
    fn restore(run: &Path) -> Result<Self> {
        let parts = Parts::read(run, Weights::Ema)?;
        let layer = |b: &mut Builder| Linear::new(b, "layer", WIDTH, CLASSES);
        let numbers = Philox::new(3, Purpose::Test);
        parts.restore(Device::Cpu, |b| Ok(Classes { layer: layer(b), numbers })).map(Self)
    }

    /// The true and the predicted class of each sample.
    fn classes(&self, samples: Range<u64>) -> Result<Vec<(usize, usize)>> {
        let all: Vec<u64> = samples.map(|i| 2 * SAMPLES + i).collect();
        let (inputs, truth) = self.0.model.read(&all);
        let batch = Batch::new(1.0).with("inputs", inputs);
        let found = self.0.run(|forward, model| model.predict(forward, &batch))?;
        Ok(truth.into_iter().zip(found.rows("scores")?.map(largest)).collect())
    }
}

impl Evaluator for Scored {
    type Part = Vec<(usize, usize)>;
    type Sums = u64;

    fn subject(&self) -> Subject {
        subject(("classes", "accuracy"), (Path::new("nothing"), "made up"), SplitName::Test)
    }

    fn models(&self) -> Vec<Model> {
        let (origin, parameters) = (self.0.origin.clone(), self.0.params.count());
        vec![Model { task: "classes", origin, parameters, data: None }]
    }

    fn items(&self) -> u64 {
        SAMPLES
    }

    fn inputs(&self) -> Vec<InputFile> {
        Vec::new()
    }

    fn loss_name(&self) -> &'static str {
        "error"
    }

    fn measure(&self, block: Range<u64>) -> Result<Block<Self::Part>> {
        let part = self.classes(block)?;
        let losses = part.iter().map(|(a, b)| f64::from(u8::from(a != b)).into()).collect();
        Ok(Block { part, losses })
    }

    fn add(&self, right: &mut u64, part: Self::Part) {
        *right += part.iter().filter(|(a, b)| a == b).count() as u64;
    }

    fn finish(&self, right: &u64, _: &Losses) -> Result<Results> {
        let accuracy = Metric::score(*right as f64 / SAMPLES as f64);
        let methods = [("classes".into(), [("accuracy".into(), accuracy)].into())].into();
        let scores = evaluation::Scores { samples: SAMPLES, methods };
        Ok(Results { scores, ..Results::default() })
    }
}

/// Predictions as JSON lines on stdout, and the next sample.
struct Lines(Scored, JsonLines, u64);

impl Predictor for Lines {
    type Input = Range<u64>;
    type Output = String;

    fn read(&mut self) -> Result<Option<(Range<u64>, u64)>> {
        let block = self.2..SAMPLES.min(self.2 + 250);
        self.2 = block.end;
        Ok((!block.is_empty()).then_some((block, 250)))
    }

    fn predict(&self, block: Range<u64>) -> Result<String> {
        let line = |(_, class): &(usize, usize)| format!("{}\n", json!({"class": class}));
        Ok(self.0.classes(block)?.iter().map(line).collect())
    }

    fn write(&mut self, outputs: Vec<String>, done: u64) -> Result<()> {
        self.1.write(outputs.concat().as_bytes(), done)
    }
}

fn main() -> Result<()> {
    let folder = std::env::args_os().nth(1).map(PathBuf::from).unwrap_or("new_task".into());
    if std::env::var_os("KILL_AT").is_some() {
        let config = serde_json::from_str(EXAMPLE).map_err(Error::bug)?;
        let task = ConfiguredTask::new::<Classes>(config)?;
        return train(TrainJob::new(task, folder, Device::Cpu, &Solo)).map(drop);
    }
    for (name, kill_at) in [("whole", "never"), ("killed", "101"), ("killed", "never")] {
        let mut run = Command::new(std::env::current_exe().map_err(Error::bug)?);
        run.arg(folder.join(name)).env("KILL_AT", kill_at).status().map_err(Error::bug)?;
    }
    let newest = |name: &str| load_newest(&folder.join(name).join("ckpt"));
    let files = |name: &str| newest(name).map(|found| found.map(|found| found.manifest.files));
    assert_eq!(files("whole")?, files("killed")?, "the killed run has other bits");
    let (run, signals) = (folder.join("killed"), Signals::install()?);
    let to = &folder.join("scores");
    let job =
        ScoreJob { folder: to, summary: None, ranks: &Solo, signals, worst: None, amp: false };
    let task = work::Task { folder: to, task: "evaluation", advice: "" };
    let scored = Scored::restore(&run)?;
    let found = work::run(task, signals, |work| score(&scored, &job, Some(work)))?;
    println!("{}: {:?}", scored.0.origin, found.map(|found| found.scores.methods));
    let lines = JsonLines::Pipe(Out::stdout(Output::default()));
    predict(&mut Lines(scored, lines, 0), &Solo, signals).map(drop)
}
