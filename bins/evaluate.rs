//! What trained models do on data that they have not seen, beside the simplest of predictions.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::slice::from_ref;

use clap::Parser;
use data::fields::split::SplitName;
use data::fields::split_set::{TrajectorySet, Verify};
use data::inputs::Verifier;
use learn::task::load_config;
use learn::trained::Weights;
use serde_json::Value;
use tasks::pde::evaluate::{self, Models, Plan, Protocol, pictures};
use tasks::pde::operator::OperatorTask;
use tasks::pde::{TrainedCodec, TrainedOperator};
use tasks::regression::{TrainedSteady, evaluate_steady};
use tensor::{Device, Wanted};
use unix::cli::Output;
use unix::out::Out;
use unix::progress::Progress;
use unix::publish::{create_folder, publish_bytes};
use unix::signal::Signals;
use unix::work::{self, Task, Work};
use unix::{Context, Error, Exit, Result, note, warn};

/// Measure trained models on unseen data, with baselines beside every number
///
/// From start frames spread over every trajectory the operator is rolled out in the latents of its codec
/// and decoded; errors are told in physical units and in the latents, by step and by parameter value.
/// Beside it stand persistence, the mean of the training data, and the codec alone. Without an operator
/// the codec is measured. Of a steady problem the model is measured, beside the mean of the training
/// solutions and the solution of the nearest training sample.
#[derive(Parser)]
#[command(name = "evaluate", version = env!("LONGHAUL_VERSION"), after_long_help = MANUAL)]
struct Args {
    /// Run directory or checkpoint of the codec
    #[arg(long, value_name = "PATH", required_unless_present_any = ["steady", "check"])]
    codec: Option<PathBuf>,
    /// Run directory or checkpoint of the operator, trained on latents of just that codec
    #[arg(long, value_name = "PATH")]
    operator: Option<PathBuf>,
    /// Run directory or checkpoint of a model of a steady problem, instead of codec and operator
    #[arg(long, value_name = "PATH", conflicts_with_all = ["codec", "operator"])]
    steady: Option<PathBuf>,
    /// Split manifest, from ds-prep split
    #[arg(long, value_name = "MANIFEST")]
    data: PathBuf,
    /// Split to measure on
    #[arg(long, value_name = "NAME", default_value_t = SplitName::Test)]
    split: SplitName,
    /// Steps of a rollout
    #[arg(long, value_name = "N", default_value_t = 16)]
    steps: usize,
    /// Frames from one state to the next; when not given, the longest that the operator was trained with
    #[arg(long, value_name = "N")]
    stride: Option<usize>,
    /// Start frames of each trajectory, spread evenly; 0 for all from which a rollout fits
    #[arg(long, value_name = "N", default_value_t = 8)]
    starts: usize,
    /// At most so many trajectories of each parameter value
    #[arg(long, value_name = "N")]
    max_trajectories: Option<usize>,
    /// Weights of the models: ema, their average where there is one, or raw
    #[arg(long, value_name = "WHICH", default_value_t)]
    weights: Weights,
    /// Where to compute: auto (a GPU where there is one, else the CPU), cpu, cuda, cuda:N, emu
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: Wanted,
    /// Number of threads, at most 1024; one for each processor by default
    #[arg(long, value_parser = unix::cli::threads, value_name = "N")]
    threads: Option<usize>,
    /// Folder for metrics.json, metrics.csv and pictures/
    #[arg(short = 'o', long = "output", value_name = "DIR")]
    to: PathBuf,
    /// Write the errors of whole rollouts by parameter value to a JSON file as well
    #[arg(long, value_name = "FILE")]
    summary: Option<PathBuf>,
    /// Check that the rollouts fit into the trajectories of the split; needs no models and measures nothing
    #[arg(long)]
    check: bool,
    /// With --check: configuration of an operator that is yet to be trained; its rollouts must fit, too
    #[arg(long, value_name = "FILE", requires = "check")]
    operator_config: Option<PathBuf>,
    /// Replace an earlier result
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    output: Output,
}

const MANUAL: &str = "\
FILES
  DIR/metrics.json  Protocol, definitions, every quantity of every model by step and over the rollout.
  DIR/metrics.csv   The same numbers, one a line: regime, space, quantity, model, step, value.
  DIR/pictures      NAME-VALUE.png of each parameter value, and summary.png.
  DIR/status.json, DIR/lease  How it stands, for timekeep status and cron.

QUANTITIES
  The table tells NRMSE of the decoded fields: sqrt(sum of squared errors / sum of squared targets) over
  all points, steps from 1 on and trajectories of a regime, for each start frame, averaged over those.
  operator     The rollout; one_step is its first step alone.
  persistence  The start stays as it is.
  mean         The mean of the training data.
  codec        decode(encode(target)): the floor of every method on these latents.
  ratio        operator / persistence: below 1 the operator is the better one.
  Of a steady problem:
  steady       The model.
  mean         The mean of the training solutions of the parameter value, point by point.
  nearest      The solution of the training sample of the parameter value whose input is nearest.

  metrics.json defines all others: PDEBench's nRMSE, RMSE, MAE, largest error, errors of the mean, of the
  boundary and of bands of wave numbers, and errors in the latents.

EXIT STATUS
  0   Measured.
  1   Stopped or killed in three attempts in a row: nothing is kept of one, so it needs a longer time limit.
      Run again, it counts from 0.
  2   The command line is wrong, or no rollout fits into the trajectories.
  65  A checkpoint is bad, a data file is not what the split manifest recorded, or the operator belongs to
      another codec. Data files are hashed while rollouts are computed, before any result is written.
  66  A checkpoint or the data is missing.
  73  The result cannot be written, or there is one already.
  75  Stopped by TERM, INT, HUP or USR1 before there was a result; the same command begins anew.

EXAMPLES
  A data set, a codec and an operator on its latents:
    $ ds-prep gen burgers --parameter 0.01 --samples 10 --grid 64 --frames 21 --seed 1 -o data
    $ ds-prep split data/*.hdf5 --seed 1 -o data/split.json
    $ ds-prep stats data/split.json
    $ printf '%s\\n' 'data: {split: data/split.json, stats: data/stats.json}' \\
    >   'model: {patch: 8, latent: 4, hidden: 16, encoder_depth: 1, decoder_depth: 1}' \\
    >   'loss: {}' 'training: {updates: 20, batch_size: 8}' \\
    >   'optimizer: {method: {kind: adamw}, learning_rate: 1e-3}' > codec.yaml
    $ train-stage codec -c codec.yaml --run codec
    $ latent-cache make --codec codec --data data/split.json -o latents
    $ printf '%s\\n' 'data: {train: latents/train, validation: latents/validation}' \\
    >   'model: {core: {kind: pdet_stack, hidden: 16, depth: 2, filter: 5}}' \\
    >   'loss: {horizons: [2], validation_steps: 4}' 'training: {updates: 20, batch_size: 8}' \\
    >   'optimizer: {method: {kind: adamw}, learning_rate: 1e-3}' > operator.yaml
    $ train-stage operator -c operator.yaml --run operator
  What they are worth on the test split:
    $ evaluate --codec codec --operator operator --data data/split.json --steps 8 -o result
  Whether those 8 steps fit, before anything is trained:
    $ evaluate --check --operator-config operator.yaml --data data/split.json --steps 8 -o result
  The codec alone:
    $ evaluate --codec codec --data data/split.json --steps 8 -o codec-result --json
  A steady problem, from rock to pressure:
    $ ds-prep gen darcy --parameter 1 --samples 20 --grid 16 --seed 1 -o rock
    $ ds-prep split rock/*.hdf5 --seed 1 -o rock/split.json
    $ ds-prep stats rock/split.json
    $ printf '%s\\n' 'data: {split: rock/split.json, stats: rock/stats.json, turn: true}' \\
    >   'model: {patch: 2, core: {kind: pdet_unet, hidden: 16, depths: [1, 1], filter: 3}}' \\
    >   'loss: {}' 'training: {updates: 20, batch_size: 8}' \\
    >   'optimizer: {method: {kind: adamw}, learning_rate: 1e-3}' > steady.yaml
    $ train-stage steady -c steady.yaml --run steady
    $ evaluate --steady steady --data rock/split.json -o rock-result

SEE ALSO
  longhaul(7), train-stage(1), latent-cache(1), ds-prep(1), ckpt(1), timekeep(1)
";

fn main() -> ExitCode {
    data::fields::field::serve_if_asked().unwrap_or_else(|| unix::cli::main::<Args>(run))
}

/// What to do when it is interrupted each time.
const ADVICE: &str = "an evaluation cannot resume: give its job a longer time limit (sbatch --time), or \
                      measure less (--starts, --max-trajectories), then run it again";

/// What a signal leaves behind: files are written when everything was measured.
fn nothing() -> String {
    "nothing was written; run the same command again".into()
}

fn run(args: Args) -> Result<Exit> {
    if args.check {
        return check(&args);
    }
    let signals = Signals::install()?;
    refuse_earlier_result(&args)?;
    let task = Task { folder: &args.to, stage: "evaluation", advice: ADVICE };
    let rows = work::tell(task, signals, |work| measure(&args, signals, work))?;
    let mut out = Out::stdout(args.output);
    rows.iter().try_for_each(|row| out.row(row))?;
    out.finish()?;
    Ok(Exit::Done)
}

/// Whether the rollouts of the evaluation, and of the operator's training and validation, fit into the
/// trajectories. Errors: 2 where they do not, 78 for a bad configuration, 65, 66.
fn check(args: &Args) -> Result<Exit> {
    let (mut stride, mut needed) = (1, Vec::new());
    if let Some(file) = &args.operator_config {
        let environment = |name: &str| std::env::var(name).ok();
        let config = load_config::<OperatorTask>(from_ref(file), &[], &environment)?;
        let config = config.config;
        let longest = |numbers: &[usize]| numbers.iter().copied().max().unwrap_or(1);
        stride = longest(&config.data.strides);
        needed.push((SplitName::Train, longest(&config.loss.horizons), stride));
        needed.push((SplitName::Validation, config.loss.validation_steps, stride));
    }
    needed.push((args.split, args.steps, args.stride.unwrap_or(stride)));
    for (split, steps, stride) in needed {
        let set = TrajectorySet::open(&args.data, split, Verify::Sizes)?;
        Plan::new(&set, steps, stride, args.starts, args.max_trajectories)
            .context(|| format!("{}, {split}", args.data.display()))?;
    }
    Ok(Exit::Done)
}

/// Measures, and writes all files; the rows of the table.
fn measure(args: &Args, signals: Signals, work: &mut Work) -> Result<Vec<Value>> {
    tensor::parallel::start_threads(args.threads)?;
    let device = args.device.open()?.0;
    let set = TrajectorySet::open(&args.data, args.split, Verify::Sizes)?;
    let Some(codec) = &args.codec else { return measure_steady(args, &set, device, signals, work) };
    let mut verifier = Verifier::start(set.input_files(), None)?;
    let codec = TrainedCodec::open(codec, args.weights)?.on(device)?;
    let open = |path: &PathBuf| TrainedOperator::open(path, args.weights, &codec)?.on(device);
    let operator = args.operator.as_ref().map(open).transpose()?;
    let models = Models { codec: &codec, operator: operator.as_ref() };
    if !codec.origin().was_trained_on(set.manifest_hash()) {
        warn!(
            "the codec was trained with another split than {}: what is measured may be what it was \
             trained on",
            args.data.display()
        );
    }
    let stride = stride(args, operator.as_ref());
    let plan = Plan::new(&set, args.steps, stride, args.starts, args.max_trajectories)?;
    let protocol = Protocol::of(&args.data, &set, &plan, models);
    note!("{protocol}");
    let mut progress = Progress::new("rollouts", plan.len() as u64);
    let mut rollouts = 0;
    work.progress(0, Some(plan.len() as u64))?;
    let result = evaluate::evaluate(models, &set, &plan, |done| {
        progress.advance(done as u64);
        rollouts += done as u64;
        work.progress(rollouts, Some(plan.len() as u64))?;
        signals.go_on(nothing)
    })?;
    drop(progress);
    let go_on = || signals.go_on(nothing);
    let drawn = pictures::draw(&result, models, &set, &plan, &protocol, go_on)?;
    verifier.finish(go_on)?;
    let summary = evaluate::summary(&result);
    let csv = evaluate::metrics_csv(&result);
    write(args, summary, &csv, &evaluate::metrics_json(&result, &protocol), drawn)?;
    let rows = evaluate::rows(&result);
    rows.iter().map(serde_json::to_value).collect::<Result<_, _>>().map_err(Error::bug)
}

fn measure_steady(
    args: &Args,
    set: &TrajectorySet,
    device: Device,
    signals: Signals,
    work: &mut Work,
) -> Result<Vec<Value>> {
    let Some(path) = &args.steady else {
        return Err(Error::usage("--codec or --steady is wanted"));
    };
    let model = TrainedSteady::open(path, args.weights)?.on(device)?;
    if !model.origin().was_trained_on(set.manifest_hash()) {
        warn!(
            "the model was trained with another split than {}: what is measured may be what it was \
             trained on",
            args.data.display()
        );
    }
    let train = TrajectorySet::open(&args.data, SplitName::Train, Verify::Sizes)?;
    let mut verifier = Verifier::start([set.input_files(), train.input_files()].concat(), None)?;
    let go_on = || signals.go_on(nothing);
    work.progress(0, None)?;
    let result = evaluate_steady(&model, set, &train, args.max_trajectories, go_on)?;
    let summary = serde_json::to_value(result.rows()).map_err(Error::bug)?;
    let json = result.json(&args.data, set, &model);
    let pictures = result.pictures()?;
    verifier.finish(go_on)?;
    write(args, summary, &result.csv(), &json, pictures)?;
    let rows = result.rows();
    rows.iter().map(serde_json::to_value).collect::<Result<_, _>>().map_err(Error::bug)
}

/// The stride asked for, else the one the operator knows.
fn stride(args: &Args, operator: Option<&TrainedOperator>) -> usize {
    let trained = operator.map_or(&[][..], |operator| operator.strides());
    let longest = trained.iter().copied().max().unwrap_or(1);
    match args.stride {
        None => longest,
        Some(stride) => {
            if !trained.is_empty() && !trained.contains(&stride) {
                warn!(
                    "the operator was trained with strides {trained:?}, it is measured with {stride}"
                );
            }
            stride
        }
    }
}

fn metrics(folder: &Path) -> PathBuf {
    folder.join("metrics.json")
}

fn refuse_earlier_result(args: &Args) -> Result<()> {
    let earlier = |path: &&PathBuf| !args.force && path.exists();
    match [Some(metrics(&args.to)), args.summary.clone()].iter().flatten().find(earlier) {
        None => Ok(()),
        Some(path) => Err(Error::create(
            path,
            "it holds an earlier result; give another name, or --force to replace it",
        )),
    }
}

/// Writes all files; metrics.json, by which a result is known, last.
fn write(
    args: &Args,
    summary: Value,
    csv: &str,
    metrics_json: &Value,
    drawn: Vec<pictures::Picture>,
) -> Result<()> {
    let pictures = args.to.join("pictures");
    create_folder(&pictures)?;
    for (name, png) in drawn {
        publish_bytes(&pictures.join(name), &png)?;
    }
    publish_bytes(&args.to.join("metrics.csv"), csv.as_bytes())?;
    let publish = |path: &Path, value: &Value| {
        let mut text = serde_json::to_string_pretty(value).map_err(Error::bug)?;
        text.push('\n');
        publish_bytes(path, text.as_bytes())
    };
    if let Some(path) = &args.summary {
        publish(path, &summary)?;
    }
    publish(&metrics(&args.to), metrics_json)
}
