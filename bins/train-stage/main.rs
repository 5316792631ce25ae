//! The command line of `train-stage`: trains one task from configuration and data, writes checkpoints and a log.

mod keys;
mod look;
mod manual;
mod run;

use clap::Parser;
use clap::builder::{PossibleValue, PossibleValuesParser};
use keys::{KeysOf, list_keys};
use learn::train::Absent;
use manual::MANUAL;
use std::path::PathBuf;
use std::process::ExitCode;
use tasks::{Entry, TASKS};
use tensor::DeviceChoice;
use unix::cli::Output;
use unix::out::Out;
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
#[command(group = clap::ArgGroup::new("look").args(["check", "dry_run"]))]
struct Args {
    /// Task to train; TASK --help lists its configuration keys
    #[arg(required_unless_present = "warm_kernels", value_parser = names())]
    task: Option<String>,
    /// Configuration file, see longhaul-config(5); may be given more than once; later files override earlier ones
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
    /// Where to start: auto (the newest good checkpoint of DIR, if there is one), never (update 0), a checkpoint such
    /// as RUN/ckpt/best or RUN/ckpt/step-00001200, or another RUN, at its newest good checkpoint. The state of the
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
    /// Check everything that the run needs, and report all points in one table, see CHECKS; do not train. Memory is
    /// predicted from small batches
    #[arg(long)]
    check: bool,
    /// Measure a few updates, if they fit into memory, and report memory, time and cost of the run; on the CPU, also the time
    /// of updates with and without training.amp; do not train
    #[arg(long)]
    dry_run: bool,
    /// With --check or --dry-run: estimate memory, time and cost on GPUs that are not here, from the shapes of all
    /// operations: h100, h200, a100-80 or a100-40, with :N for N GPUs; or for a memory such as 24GB. Nothing is computed
    #[arg(long, value_name = "GPU", requires = "look")]
    on: Option<Absent>,
    /// Run the first 50 updates this many times (3 if no number is given), without a run directory, and compare every
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

/// Returns the names of all tasks, each with a one-line description.
fn names() -> PossibleValuesParser {
    TASKS.iter().map(|task| PossibleValue::new(task.spec.name).help(task.about)).into()
}

fn main() -> ExitCode {
    if let Some(code) = data::fields::field::run_helper_if_requested() {
        return code;
    }
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.as_slice() {
        [task, help] if ["-h", "--help"].contains(&help.as_str()) && find_task(task).is_some() => {
            unix::cli::main::<KeysOf>(list_keys)
        }
        _ => unix::cli::main::<Args>(body),
    }
}

fn find_task(name: &str) -> Option<&'static Entry> {
    TASKS.iter().find(|task| task.spec.name == name)
}

fn body(args: Args) -> Result<Exit> {
    let task = args.task.as_deref().and_then(find_task);
    if let (Some(task), Some(times)) = (task, args.verify_determinism) {
        return look::verify(&args, task, times);
    }
    if let Some(task) = task.filter(|_| args.metrics) {
        return look::list_metrics(&args, task);
    }
    match (task, &args.run) {
        (Some(task), Some(folder)) => run::run(&args, task, folder),
        (Some(task), None) if args.schema => {
            let schema = serde_json::to_string_pretty(&(task.schema)()).map_err(Error::bug)?;
            Out::stdout(args.output).raw(format!("{schema}\n").as_bytes()).map(|()| Exit::Done)
        }
        (Some(task), None) => {
            Out::stdout(args.output).raw(task.spec.example.as_bytes()).map(|()| Exit::Done)
        }
        (None, _) => look::warm(&args),
    }
}
