//! Scores of trained models on unseen data, and their predictions.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::slice::from_ref;

use clap::{Parser, Subcommand};
use data::fields::generate::Equation;
use data::fields::split::SplitName;
use data::fields::split_set::{TrajectorySet, Verify};
use data::fields::stats;
use data::inputs::Verifier;
use learn::score::Bits;
use learn::task::load_config;
use serde_json::{Value, json};
use tasks::ModelArgs;
use tasks::pde::evaluate::{
    self, Evaluation, Evaluator, Partial, Plan, Protocol, Request, pictures,
};
use tasks::pde::operator::OperatorTask;
use tasks::predict_file;
use unix::cli::Output;
use unix::out::Out;
use unix::progress::Progress;
use unix::publish::{create_folder, publish_bytes};
use unix::signal::Signals;
use unix::work::{self, Task, Work};
use unix::{Context, Error, Exit, Result, note, warn};

/// Score trained models on unseen data, compare them with simple baselines, and predict with them
///
/// RUN is a run directory or a checkpoint of any task. Models it depends on, such as the codec of an operator, are
/// found by the paths in its checkpoint. An operator is rolled out in latent space from start frames spread over every
/// trajectory, and decoded; the baselines are persistence, the mean of the training data and the codec alone. The
/// model of a steady problem is compared with the mean of the training solutions and with the solution of the nearest
/// training sample. Errors are given in physical units and in latent space, by step and by parameter value, with 95 %
/// intervals over trajectories. longhaul-files(5) defines every metric and describes the files that score and predict
/// write.
#[derive(Parser)]
#[command(name = "evaluate", version = env!("LONGHAUL_VERSION"), after_long_help = MANUAL)]
struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Compute the errors of a model and of the baselines on a split
    Score(Score),
    /// Write the predictions of a model for the trajectories of a file
    ///
    /// For an operator, a rollout from the first frame of every trajectory; for the model of a steady problem, the
    /// solution for every input; for a codec, the reconstruction of every frame.
    Predict(Predict),
    /// Check that the rollouts fit into the trajectories of a split; requires no models
    Check(Check),
}

#[derive(clap::Args)]
struct Rollouts {
    /// Steps of a rollout
    #[arg(long, value_name = "N", default_value_t = 16)]
    steps: usize,
    /// Frames from one state to the next [default: the largest stride of the training]
    #[arg(long, value_name = "N")]
    stride: Option<usize>,
}

#[derive(clap::Args)]
struct Data {
    /// Split manifest of ds-prep split
    #[arg(long, value_name = "MANIFEST")]
    data: PathBuf,
    /// Split of the manifest
    #[arg(long, value_name = "NAME", default_value_t = SplitName::Test)]
    split: SplitName,
    /// Start frames per trajectory, spread evenly; 0 for all from which a rollout fits
    #[arg(long, value_name = "N", default_value_t = 8)]
    starts: usize,
    /// Largest number of trajectories per parameter value
    #[arg(long, value_name = "N")]
    max_trajectories: Option<usize>,
    #[command(flatten)]
    rollouts: Rollouts,
}

#[derive(clap::Args)]
struct ViewArgs {
    /// Also average the predictions from N copies of each initial state, transformed by exact symmetries of the
    /// equation
    #[arg(long, value_name = "N", default_value = "1")]
    views: NonZeroUsize,
    /// Equation of the data, for --views, if its files do not name it
    #[arg(long, value_name = "NAME")]
    equation: Option<Equation>,
}

impl ViewArgs {
    fn add_to(&self, request: Request) -> Request {
        Request { views: self.views.get(), equation: self.equation, ..request }
    }
}

#[derive(clap::Args)]
struct Score {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    data: Data,
    #[command(flatten)]
    views: ViewArgs,
    /// Folder for metrics.json, metrics.csv, times.json and pictures/
    #[arg(short = 'o', long = "output", value_name = "DIR")]
    to: PathBuf,
    /// Also write the errors over whole rollouts, by parameter value, to a JSON file
    #[arg(long, value_name = "FILE")]
    summary: Option<PathBuf>,
    /// Overwrite an earlier result
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    output: Output,
}

#[derive(clap::Args)]
struct Predict {
    #[command(flatten)]
    model: ModelArgs,
    /// Field file with the initial states, the inputs or the fields; see longhaul-files(5) for formats
    #[arg(long, value_name = "FILE")]
    inputs: PathBuf,
    /// Field file to write, NAME.hdf5 or NAME.safetensors
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    to: PathBuf,
    /// Overwrite an existing file
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    rollouts: Rollouts,
    #[command(flatten)]
    views: ViewArgs,
    #[command(flatten)]
    output: Output,
}

#[derive(clap::Args)]
struct Check {
    #[command(flatten)]
    data: Data,
    /// Configuration of an operator that is not trained yet; the rollouts of its training and validation must fit
    /// as well
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

const MANUAL: &str = "\
EXIT STATUS
  0   Complete.
  1   Three consecutive attempts were stopped or killed before they stored anything: the job needs a longer time
      limit. The next attempt counts from 0 again.
  2   The command line is wrong, or no rollout fits into the trajectories.
  65  A checkpoint is damaged, a data file is not what the split manifest recorded, or the codec is not the one
      that the operator was trained with. Data files are hashed concurrently with the rollouts and compared before
      any result is written.
  66  A checkpoint or the data is missing.
  73  The result cannot be written, or already exists.
  75  Stopped by TERM, INT, HUP or USR1; the same command resumes after the last stored batch of rollouts or
      trajectories.

EXAMPLES
  A data set, a codec and an operator on its latents:
    $ ds-prep gen burgers --parameter 0.01 --samples 10 --grid 128 --frames 41 --seed 1 -o data
    $ ds-prep split data/*.hdf5 --seed 1 -o split.json
    $ ds-prep stats split.json
    $ train-stage codec --example > codec.yaml
    $ train-stage codec -c codec.yaml -s training.updates=100 --run codec
    $ latent-cache make codec --data split.json -o latents
    $ train-stage operator --example > operator.yaml
    $ train-stage operator -c operator.yaml -s training.updates=100 --run operator
  Their errors on the test split:
    $ evaluate score operator --data split.json --steps 8 -o result
  The same with a codec that was moved:
    $ cp -r codec moved
    $ evaluate score operator --with codec=moved --data split.json --steps 8 -o moved-result
  The mean of 8 rollouts from copies transformed by symmetries of the equation, and its error bars:
    $ evaluate score operator --data split.json --steps 8 --views 8 -o views-result
  Check that 8 steps fit before training anything:
    $ evaluate check -c operator.yaml --data split.json --steps 8
  The errors of the codec alone:
    $ evaluate score codec --data split.json --steps 8 -o codec-result --json
  Rollouts of 20 steps from the first frames of a file:
    $ ds-prep gen burgers --parameter 0.01 --samples 3 --grid 128 --frames 2 --seed 9 -o new
    $ evaluate predict operator --inputs new/*.hdf5 --steps 20 -o predicted.hdf5
    $ ds-prep show predicted.hdf5
  A steady problem, from permeability to pressure:
    $ ds-prep gen darcy --parameter 1 --samples 20 --grid 32 --seed 1 -o rock
    $ ds-prep split rock/*.hdf5 --seed 1 -o rock/split.json
    $ ds-prep stats rock/split.json
    $ train-stage regression --example > darcy.yaml
    $ train-stage regression -c darcy.yaml -s data.split=rock/split.json \\
    >   -s data.stats=rock/stats.json -s training.updates=100 --run darcy
    $ evaluate score darcy --data rock/split.json -o rock-result

SEE ALSO
  longhaul-files(5), train-stage(1), latent-cache(1), ds-prep(1), timekeep(1), longhaul(7)
";

fn main() -> ExitCode {
    data::fields::field::run_helper_if_requested().unwrap_or_else(|| {
        unix::cli::main::<Args>(|args| match args.verb {
            Verb::Score(args) => score(&args),
            Verb::Predict(args) => predict(&args),
            Verb::Check(args) => check(&args),
        })
    })
}

/// Advice when every attempt was interrupted before it stored anything.
const ADVICE: &str =
    "give its job a longer time limit (sbatch --time), or choose fewer --steps, then run it again";

fn again() -> String {
    "run the same command again to resume".into()
}

impl Rollouts {
    /// A single rollout of each trajectory.
    fn request(&self) -> Request {
        let (steps, stride) = (self.steps, self.stride);
        Request { steps, stride, starts: 1, max_trajectories: None, views: 1, equation: None }
    }
}

impl Data {
    fn request(&self) -> Request {
        let (starts, max_trajectories) = (self.starts, self.max_trajectories);
        Request { starts, max_trajectories, ..self.rollouts.request() }
    }

    fn open(&self, split: SplitName) -> Result<TrajectorySet> {
        TrajectorySet::open(&self.data, split, Verify::Sizes)
    }
}

/// Checks that the rollouts of the evaluation, and of the operator's training and validation, fit into the
/// trajectories. Errors: 2 if they do not, 78 for a bad configuration, 65, 66.
fn check(args: &Check) -> Result<Exit> {
    let request = args.data.request();
    let (mut stride, mut needed) = (1, Vec::new());
    if let Some(file) = &args.config {
        let environment = |name: &str| std::env::var(name).ok();
        let config = load_config::<OperatorTask>(from_ref(file), &[], &environment)?.config;
        let longest = |numbers: &[usize]| numbers.iter().copied().max().unwrap_or(1);
        stride = longest(&config.data.strides);
        let trained = |steps| Request { steps, stride: Some(stride), ..request };
        needed.push((SplitName::Train, trained(longest(&config.loss.horizons))));
        needed.push((SplitName::Validation, trained(config.loss.validation_steps)));
    }
    needed.push((args.data.split, request));
    let mut out = Out::stdout(args.output);
    for (split, request) in needed {
        let plan = Plan::of_rollouts(&args.data.open(split)?, &request, stride)
            .context(|| format!("{}, {split}", args.data.data.display()))?;
        out.row(&json!({"split": split.to_string(), "rollouts": plan.count()}))?;
    }
    out.finish()
}

fn predict(args: &Predict) -> Result<Exit> {
    let signals = Signals::install()?;
    refuse_earlier([&args.to], args.force)?;
    let model = args.model.open()?;
    let request = args.views.add_to(args.rollouts.request());
    let (mut progress, mut trajectories) = (Progress::new("trajectories", 0), 0);
    predict_file(&*model, &args.inputs, &args.to, args.force, &request, |done, all| {
        trajectories = all;
        if all != 0 && done == 0 {
            progress = Progress::new("trajectories", all as u64);
        }
        progress.set(done as u64);
        signals.check_stop(again)
    })?;
    drop(progress);
    let file = args.to.display().to_string();
    let text = format!("{file}: {trajectories} trajectories");
    let record = json!({"file": file, "trajectories": trajectories});
    Out::stdout(args.output).item(&record, text).map(|()| Exit::Done)
}

fn score(args: &Score) -> Result<Exit> {
    let signals = Signals::install()?;
    refuse_earlier([&metrics(&args.to)].into_iter().chain(&args.summary), args.force)?;
    let task = Task { folder: &args.to, task: "evaluation", advice: ADVICE };
    let rows = work::run(task, signals, |work| measure(args, signals, work))?;
    Out::stdout(args.output).rows(rows)
}

/// Evaluates and writes all files; returns the rows of the table.
fn measure(args: &Score, signals: Signals, work: &mut Work) -> Result<Vec<Value>> {
    let data = &args.data;
    let model = args.model.open()?;
    let set = data.open(data.split)?;
    let train = model.needs_training_data().then(|| data.open(SplitName::Train)).transpose()?;
    let validation = data.open(SplitName::Validation)?;
    let files = [&set, &validation]
        .into_iter()
        .chain(&train)
        .flat_map(TrajectorySet::input_files)
        .collect();
    let mut verifier = Verifier::start(files, None)?;
    let plan = model.plan(&set, &args.views.add_to(data.request()))?;
    for (task, origin, _) in model.models() {
        // The data of an operator are latents, which its codec accounts for.
        if model.latent().is_none_or(|_| task == "codec")
            && !origin.was_trained_on(set.manifest_hash())
        {
            warn!(
                "the {task} was trained on a different split than {}; the test data may overlap its training data",
                data.data.display()
            );
        }
    }
    let protocol = Protocol::of(&data.data, &set, &plan, &*model);
    note!("{protocol}");
    let all = Some(plan.count() as u64);
    let mut progress = Progress::new("rollouts", plan.count() as u64);
    let evaluator = Evaluator { model: &*model, set: &set, train: train.as_ref(), plan: &plan };
    work.progress(0, all)?;
    signals.check_stop(again)?;
    let partial = Partial::new(args.to.join("partial.json"), &protocol)?;
    let check_stop = || signals.check_stop(again);
    let mut earlier = partial.load();
    if earlier.validation_rms.is_none() {
        earlier.validation_rms = Some(Bits(stats::rms(&validation, check_stop)?));
    }
    let result = evaluate::evaluate(&evaluator, earlier, |result| {
        partial.save(result)?;
        work.stored();
        unix::fail::point("save.after_shard").map_err(|cause| Error::io(&args.to, cause))?;
        let done = result.rollouts() as u64;
        progress.set(done);
        work.progress(done, all)?;
        signals.check_stop(again)
    })?;
    drop(progress);
    let drawn = pictures::draw(&result, &evaluator, &protocol, check_stop)?;
    verifier.finish(check_stop)?;
    write(args, &result, &protocol, drawn)?;
    partial.remove();
    Ok(evaluate::rows(&result))
}

fn metrics(folder: &Path) -> PathBuf {
    folder.join("metrics.json")
}

fn refuse_earlier<'a>(paths: impl IntoIterator<Item = &'a PathBuf>, force: bool) -> Result<()> {
    match paths.into_iter().find(|path| !force && path.exists()) {
        None => Ok(()),
        Some(path) => Err(Error::create(
            path,
            "it contains an earlier result; choose another name, or overwrite it with --force",
        )),
    }
}

/// Writes all files; metrics.json comes last because it marks a complete result.
fn write(
    args: &Score,
    result: &Evaluation,
    protocol: &Protocol,
    drawn: Vec<pictures::Picture>,
) -> Result<()> {
    let pictures = args.to.join("pictures");
    create_folder(&pictures)?;
    for (name, png) in drawn {
        publish_bytes(&pictures.join(name), &png)?;
    }
    publish_bytes(&args.to.join("metrics.csv"), evaluate::metrics_csv(result).as_bytes())?;
    let publish = |path: &Path, value: &Value| {
        let text = serde_json::to_string_pretty(value).map_err(Error::bug)?;
        publish_bytes(path, format!("{text}\n").as_bytes())
    };
    publish(&args.to.join("times.json"), &evaluate::times(result))?;
    if let Some(path) = &args.summary {
        publish(path, &evaluate::summary(result))?;
    }
    publish(&metrics(&args.to), &evaluate::metrics_json(result, protocol))
}
