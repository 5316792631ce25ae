//! Trains one task: reads configuration and data, writes checkpoints and a log.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use clap::builder::{PossibleValue, PossibleValuesParser};
use dist::{Collective, Solo};
use learn::recompute::Plan;
use learn::task::Configured;
use learn::train::{self, Estimate, Job, Resume};
use tasks::{Entry, TASKS};
use tensor::kernel::cache;
use tensor::{Device, DeviceChoice};
use unix::cli::Output;
use unix::config::Key;
use unix::out::Out;
use unix::progress::Progress;
use unix::space::human_bytes;
use unix::{Error, Exit, Result};

/// Train the model of a task; start or resume a run
///
/// Reads a configuration and the data it names, resumes from the newest checkpoint in the run directory if there is
/// one, and writes checkpoints and a log. When a signal or the time limit stops it, it saves a checkpoint and exits
/// with 75. The same command resumes, and the result has the same bits as that of a run that was never stopped.
///
/// longhaul(7) describes the run directory, signals, devices, ranks and the environment; longhaul-recovery(7) describes
/// what happens when a run is started again, and how its input files are verified.
#[derive(Parser)]
#[command(name = "train-stage", version = env!("LONGHAUL_VERSION"), after_long_help = MANUAL)]
struct Args {
    /// Task to train; TASK --help lists its configuration keys
    #[arg(required_unless_present = "warm_kernels", value_parser = names())]
    task: Option<String>,
    /// Configuration file, see longhaul-config(5); may be given more than once, later files override earlier ones
    #[arg(short, long, value_name = "FILE")]
    #[arg(required_unless_present_any = ["warm_kernels", "example", "schema"])]
    config: Vec<PathBuf>,
    /// Override a configuration key, e.g. -s training.updates=2000
    #[arg(short = 's', long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Run directory, created if missing
    #[arg(short, long, value_name = "DIR")]
    #[arg(required_unless_present_any = ["warm_kernels", "example", "schema", "metrics", "verify_determinism"])]
    run: Option<PathBuf>,
    /// Where to start: auto (the newest good checkpoint of DIR, if there is one), never (update 0), a checkpoint such as
    /// RUN/ckpt/best or RUN/ckpt/step-00001200, or another RUN, at its newest good checkpoint. The state of the
    /// optimizer and the update number continue; for the weights alone, set init.from. The same command, given again,
    /// resumes the run that it started
    #[arg(long, value_name = "WHAT", default_value = "auto")]
    resume: String,
    /// Resume although configuration or data differ from those of the checkpoint; the log records the changes
    #[arg(long)]
    accept_config_change: bool,
    /// Retry a run that diverged or made no progress in several attempts
    #[arg(long)]
    retry: bool,
    /// Device: auto (a GPU if there is one, else the CPU), cpu, cuda, cuda:N or emu
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: DeviceChoice,
    /// Check the configuration, the content of all input files, disk space and memory, which is predicted from small
    /// batches, and report every problem; do not train
    #[arg(long, conflicts_with = "dry_run")]
    check: bool,
    /// Measure a few updates, if they fit into memory, and report memory, time and cost of the run; do not train
    #[arg(long)]
    dry_run: bool,
    /// Make the first 50 updates this many times (3 if no number is given), without a run directory, and compare every
    /// tensor: print a hash of the parameters, or name the first tensor that differs and exit with 1
    #[arg(long, value_name = "TIMES", num_args = 0..=1, require_equals = true, default_missing_value = "3")]
    #[arg(value_parser = clap::value_parser!(u64).range(2..=1000), conflicts_with_all = ["check", "dry_run"])]
    verify_determinism: Option<u64>,
    /// Print the names of the metrics of validations, which training.monitor can name; do not train
    #[arg(long, conflicts_with_all = ["run", "check", "dry_run", "verify_determinism"])]
    metrics: bool,
    /// Print a small configuration of the task to start from
    #[arg(long, conflicts_with_all = ["config", "run", "check", "dry_run"])]
    example: bool,
    /// Print the JSON Schema of the task's configuration, for editors and other programs
    #[arg(long, conflicts_with_all = ["example", "config", "run", "check", "dry_run"])]
    schema: bool,
    /// Compile the kernels for these GPU architectures, e.g. sm_80,sm_90a, in advance, and store them in the cache;
    /// requires no GPU
    #[arg(long, value_name = "ARCHITECTURES", value_delimiter = ',')]
    #[arg(conflicts_with_all = ["task", "config", "run"])]
    warm_kernels: Vec<String>,
    #[command(flatten)]
    output: Output,
}

/// The names of all tasks, each with a one-line description.
fn names() -> PossibleValuesParser {
    TASKS.iter().map(|task| PossibleValue::new(task.spec.name).help(task.about)).into()
}

const MANUAL: &str = "\
EXIT STATUS
  0   Finished, now or earlier.
  1   Diverged: the loss or gradient was not finite too often, or there were too many spikes. Or several
      attempts made no progress. With --verify-determinism, a tensor differs.
  2   The command line is wrong.
  65  An input file is not what its manifest or index recorded, or a checkpoint is damaged.
  66  The data is missing.
  73  The run directory cannot be written, or saves keep failing because it became read-only.
  74  Reading or writing failed, or too many consecutive saves did (checkpoint.failed_saves). Or the run
      directory was moved, removed or replaced during the run.
  75  Stopped with a checkpoint, or another process holds the run. Run the same command again; if the
      message blames the machine, run it on another one.
  78  The configuration is wrong, or configuration or data differ from those of the checkpoint.

EXAMPLES
  A data set:
    $ ds-prep gen burgers --parameter 0.01 --samples 10 --grid 128 --frames 11 --seed 1 -o data
    $ ds-prep split data/*.hdf5 --seed 1 -o split.json
    $ ds-prep stats split.json
  A small configuration to start from, and all keys:
    $ train-stage codec --example > codec.yaml
    $ train-stage codec --help
  Check for problems, and estimate time and memory:
    $ train-stage codec -c codec.yaml --run codec --check
    $ train-stage codec -c codec.yaml --run codec --dry-run
  Train three times for 50 updates and compare the bits:
    $ train-stage codec -c codec.yaml --verify-determinism
  Train for 100 updates; the second command finds the run finished:
    $ train-stage codec -c codec.yaml -s training.updates=100 --run codec
    $ train-stage codec -c codec.yaml -s training.updates=100 --run codec
  Continue it in another directory for 10 more updates, from its newest checkpoint or another one:
    $ longer='-s training.updates=110 --accept-config-change'
    $ train-stage codec -c codec.yaml $longer --run longer --resume codec
    $ train-stage codec -c codec.yaml $longer --run longer-too --resume codec/ckpt/step-00000100
  Start from its weights alone, of the best checkpoint or another one: a new optimizer, update 0:
    $ fresh='-s training.updates=60'
    $ train-stage codec -c codec.yaml $fresh -s init.from=codec --run tuned
    $ train-stage codec -c codec.yaml $fresh -s init.from=codec/ckpt/latest --run tuned-too
  A model of your own arrays: see REGRESSION ON YOUR OWN ARRAYS in longhaul(7).

SEE ALSO
  longhaul-config(5), longhaul-files(5), latent-cache(1), evaluate(1), ckpt(1), timekeep(1), longhaul(7),
  longhaul-recovery(7), longhaul-slurm(7)
";

fn main() -> ExitCode {
    if let Some(code) = data::fields::field::run_helper_if_requested() {
        return code;
    }
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.as_slice() {
        [task, help] if ["-h", "--help"].contains(&help.as_str()) && named(task).is_some() => {
            unix::cli::main::<KeysOf>(list_keys)
        }
        _ => unix::cli::main::<Args>(body),
    }
}

fn named(name: &str) -> Option<&'static Entry> {
    TASKS.iter().find(|task| task.spec.name == name)
}

/// `train-stage TASK --help`, which lists the configuration keys of the task.
#[derive(Parser)]
#[command(name = "train-stage", disable_help_flag = true)]
struct KeysOf {
    #[arg(value_parser = names())]
    task: String,
    #[arg(short, long)]
    help: bool,
}

fn list_keys(args: KeysOf) -> Result<Exit> {
    let Some(task) = named(&args.task).filter(|_| args.help) else { return Ok(Exit::Usage) };
    let mut text = format!("train-stage {}: {}\n\n", task.spec.name, task.about);
    for Key { path, takes, default, required, doc } in (task.keys)() {
        let absent = match (required, default) {
            (true, _) => "required".to_string(),
            (false, default) => format!("default {}", default.unwrap_or_default()),
        };
        text += &format!("{path}  {takes}; {absent}\n    {}\n", doc.replace('\n', " "));
    }
    Out::stdout(Output::default()).raw(text.as_bytes()).map(|()| Exit::Done)
}

fn body(args: Args) -> Result<Exit> {
    let task = args.task.as_deref().and_then(named);
    if let (Some(task), Some(times)) = (task, args.verify_determinism) {
        return verify(&args, task, times);
    }
    if let Some(task) = task.filter(|_| args.metrics) {
        return list_metrics(&args, task);
    }
    match (task, &args.run) {
        (Some(task), Some(folder)) => run(&args, task, folder),
        (Some(task), None) if args.schema => {
            let schema = serde_json::to_string_pretty(&(task.schema)()).map_err(Error::bug)?;
            Out::stdout(args.output).raw(format!("{schema}\n").as_bytes()).map(|()| Exit::Done)
        }
        (Some(task), None) => {
            Out::stdout(args.output).raw(task.spec.example.as_bytes()).map(|()| Exit::Done)
        }
        (None, _) => warm(&args),
    }
}

/// Compiles kernels in advance.
fn warm(args: &Args) -> Result<Exit> {
    let all = cache::units(&args.warm_kernels).len();
    let advance = Progress::shared("kernel files", all as u64);
    let compiled = cache::warm(&args.warm_kernels, || advance(1))?;
    drop(advance);
    let cached = all - compiled;
    let record = serde_json::json!({ "compiled": compiled, "cached": cached });
    let text = format!("compiled  {compiled}\ncached    {cached}");
    Out::stdout(args.output).item(&record, text).map(|()| Exit::Done)
}

fn run(args: &Args, task: &Entry, folder: &Path) -> Result<Exit> {
    if !args.check && !args.dry_run {
        // From here on a signal requests an orderly stop, even while input files are being read.
        unix::signal::Signals::install()?;
    }
    let environment = |name: &str| std::env::var(name).ok();
    let loaded = (task.load)(&args.config, &args.overrides, &environment);
    let alone = args.check || args.dry_run;
    let run = folder.to_path_buf();
    let ranks = match alone {
        true => Box::new(Solo),
        false => dist::open(move || train::lost_a_rank(&run))?,
    };
    let name = task.spec.name;
    run_on(args, folder, name, loaded, &*ranks).map_err(|error| ranks.abort(error))
}

fn run_on(
    args: &Args,
    folder: &Path,
    name: &str,
    loaded: Result<Configured>,
    ranks: &dyn Collective,
) -> Result<Exit> {
    let alone = args.check || args.dry_run;
    let device = || args.device.of_rank(ranks.local_rank()).open();
    let own = loaded.and_then(|loaded| Ok((loaded, device()?))).inspect_err(|error| {
        if !alone && ranks.rank() == 0 {
            train::startup_failed(folder, name, error);
        }
    });
    let (task, (device, why)) = match train::all_ok(ranks, own)? {
        Ok(own) => own,
        Err(error) => {
            ranks.close()?;
            return Ok(error.exit);
        }
    };
    let threads = match task.config.training.threads {
        None if ranks.size() > 1 => Some(dist::threads(ranks)?),
        threads => threads,
    };
    tensor::parallel::start_threads(threads)?;
    if args.check {
        return check(args, &task, device, folder);
    }
    if args.dry_run {
        let estimate = train::dry_run(&task, device)?;
        let lacking = estimate.lacks_memory(device).filter(|_| estimate.times.seconds.is_none());
        return tell(args, &estimate, lacking).map(|()| Exit::Done);
    }
    let exit = train::train(&Job {
        task,
        run: folder.to_path_buf(),
        resume: match args.resume.as_str() {
            "auto" => Resume::Auto,
            "never" => Resume::Never,
            path => Resume::From(Path::new(path).to_path_buf()),
        },
        accept_changes: args.accept_config_change,
        retry: args.retry,
        device,
        why_device: why,
        ranks,
    })?;
    ranks.close()?;
    Ok(exit)
}

/// Trains several times and compares the bits.
fn verify(args: &Args, task: &Entry, times: u64) -> Result<Exit> {
    let environment = |name: &str| std::env::var(name).ok();
    let task = (task.load)(&args.config, &args.overrides, &environment)?;
    let (device, _) = args.device.open()?;
    tensor::parallel::start_threads(task.config.training.threads)?;
    let found = train::verify_determinism(&task, device, times)?;
    let text = format!(
        "{} updates, {} times: all {} tensors have the same bits\nparameters  {}",
        found.updates, found.runs, found.tensors, found.parameters
    );
    Out::stdout(args.output).item(&found, text).map(|()| Exit::Done)
}

fn list_metrics(args: &Args, task: &Entry) -> Result<Exit> {
    let environment = |name: &str| std::env::var(name).ok();
    let task = (task.load)(&args.config, &args.overrides, &environment)?;
    tensor::parallel::start_threads(task.config.training.threads)?;
    let mut out = Out::stdout(args.output);
    for name in train::metric_names(&task)? {
        out.item(&serde_json::json!({ "metric": name }), &name)?;
    }
    out.finish()
}

/// Prints every problem; the exit status is that of the first.
fn check(args: &Args, task: &Configured, device: Device, folder: &Path) -> Result<Exit> {
    let report = train::check(task, device, folder);
    if let Some(estimate) = &report.estimate {
        tell(args, estimate, None)?;
    }
    Error::all(&report.problems).map(|()| Exit::Done)
}

/// Describes the recomputed blocks, and the memory saved and time spent by recomputing them.
fn recomputed(plan: &Plan) -> String {
    let again = plan.keep.iter().filter(|keep| !**keep).count();
    let ((kept, all), (repeated, operations)) = (plan.bytes(), plan.operations());
    format!(
        "recomputed  {again} of {} blocks: {} of {} kept, {:.1} % of their operations repeated\n",
        plan.keep.len(),
        human_bytes(kept as u64),
        human_bytes(all as u64),
        100.0 * repeated as f64 / operations.max(1) as f64
    )
}

fn tell(args: &Args, e: &Estimate, lacking: Option<u64>) -> Result<()> {
    let mut text = format!(
        "task        {}\nparameters  {}\nupdates     {} ({:.1} epochs of {} samples)\n\
         memory      {}\n{}checkpoint  {}",
        e.task,
        e.parameters,
        e.updates,
        e.epochs,
        e.samples,
        human_bytes(e.memory_bytes as u64),
        e.plan.as_ref().map_or(String::new(), recomputed),
        human_bytes(e.checkpoint_bytes as u64),
    );
    let times = &e.times;
    if let (Some(update), Some(validation), Some(seconds), Some(cost)) =
        (times.seconds_per_update, times.seconds_per_validation, times.seconds, times.cost)
    {
        text += &format!(
            "\nupdate      {:.1} ms\nvalidation  {validation:.2} s\ntotal       {} (cost {cost:.2})",
            1e3 * update,
            unix::time::format_duration(std::time::Duration::from_secs_f64(seconds)),
        );
    }
    if let Some(available) = lacking {
        let available = human_bytes(available);
        text += &format!("\ntotal       not measured: {available} of memory available");
    }
    Out::stdout(args.output).item(e, text)
}
