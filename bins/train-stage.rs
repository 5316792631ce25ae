//! Trains one task: reads configuration and data, writes checkpoints and a log.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

use clap::Parser;
use clap::builder::{PossibleValue, PossibleValuesParser};
use dist::{Collective, Solo};
use learn::recompute::Plan;
use learn::task::Configured;
use learn::train::{self, Estimate, Job, Resume};
use tasks::{Entry, TASKS};
use tensor::kernel::cache;
use tensor::{Device, Wanted};
use unix::cli::Output;
use unix::config::Key;
use unix::out::Out;
use unix::progress::Progress;
use unix::space::human_bytes;
use unix::{Error, Exit, Result};

/// Train one task, from where it was left to its end
///
/// Reads a configuration, the data it names and, when the run directory has them, its own checkpoints;
/// writes checkpoints and a log. When a signal or the end of its time stops it, it saves a checkpoint and exits with 75:
/// the same command resumes, and the result has the same bits as that of a run that was never stopped.
#[derive(Parser)]
#[command(name = "train-stage", version = env!("LONGHAUL_VERSION"), after_long_help = MANUAL)]
struct Args {
    /// What to train; TASK --help lists the keys of its configuration
    #[arg(required_unless_present = "warm_kernels", value_parser = names())]
    task: Option<String>,
    /// Configuration file, longhaul-config(5); given again, later files win
    #[arg(short, long, value_name = "FILE")]
    #[arg(required_unless_present_any = ["warm_kernels", "example", "schema"])]
    config: Vec<PathBuf>,
    /// One key of the configuration, e.g. -s training.updates=2000
    #[arg(short = 's', long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Run directory, made if absent
    #[arg(short, long, value_name = "DIR")]
    #[arg(required_unless_present_any = ["warm_kernels", "example", "schema"])]
    run: Option<PathBuf>,
    /// Where to start: auto, the newest good checkpoint, if any; never, at update 0; or the path of a
    /// checkpoint. The same command given again resumes what it started
    #[arg(long, value_name = "WHAT", default_value = "auto")]
    resume: String,
    /// Resume although configuration or data differ from those of the checkpoint; log and manifest record it
    #[arg(long)]
    accept_config_change: bool,
    /// Try again what diverged, or made no new update in several starts
    #[arg(long)]
    retry: bool,
    /// Where to compute: auto (a GPU where there is one, else the CPU), cpu, cuda, cuda:N, emu
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: Wanted,
    /// Check configuration, content of all input files, space and memory; report every problem; train nothing
    #[arg(long, conflicts_with = "dry_run")]
    check: bool,
    /// Measure a few updates and report memory, time and cost of the run; train nothing
    #[arg(long)]
    dry_run: bool,
    /// Print a small configuration of the task to start from
    #[arg(long, conflicts_with_all = ["config", "run", "check", "dry_run"])]
    example: bool,
    /// Print the JSON Schema of the task's configuration, for editors and other programs
    #[arg(long, conflicts_with_all = ["example", "config", "run", "check", "dry_run"])]
    schema: bool,
    /// Compile the kernels for GPUs of these architectures, e.g. sm_80,sm_90a, into the cache, so that
    /// no start does; needs no GPU and trains nothing
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
FILES
  RUN/config.yaml  The resolved configuration, complete.
  RUN/env.json     Versions, host and job, one entry a start.
  RUN/log.jsonl    A record a line: start, inputs, update, validation, checkpoint, saved, spike,
                   warning, refused, stop.
  RUN/inputs.json  Hashes of the input files verified so far, with inode, size, mtime and ctime.
  RUN/status.json  State, update, best validation, cost.
  RUN/ckpt         Checkpoints step-N, and the links latest and best; see ckpt(1).
  RUN/lease        Who works on the run, attempt-N.json; its time is that of the last sign of life.

STARTING AGAIN
  The same command may be given any number of times, from anywhere:
    finished                            says so, 0
    another process is at work          says which, does nothing, 75
    that process is gone                goes on as the next attempt
    it gave no sign of life for 90 s    watches it for 30 s more, then goes on as the next attempt
    stopped, killed                     goes on from the newest good checkpoint
    no checkpoint                       begins, with the same seed
    checkpoints, none of them good      65
    configuration or data differ        shows the difference, 78; --accept-config-change
    several starts without progress     failed, 1, and again until --retry or an accepted change
    diverged                            the same
  --resume PATH and --resume never apply until the run has a checkpoint that descends from them. From
  then on the same command resumes from the newest checkpoint, as auto does, so that it can be requeued.
  never refuses a run that has other checkpoints (73). To start from PATH once more, give another run
  directory or another configuration.
  An older process that comes back after it was taken over writes nothing more and ends with 75. When
  another version, processor or device goes on, a warning says that bits may differ.

INPUT FILES
  Every file that a run reads (split manifest, data files, stats.json, latent index and shards) must have the
  BLAKE3 that its manifest or index recorded. One thread hashes them while training begins. Before each
  validation and checkpoint, and before the run finishes, rank 0 waits for that thread and compares the
  inode, size, mtime and ctime of every file; a file for which one of them changed is hashed again. Files
  that RUN/inputs.json vouches for are not read again by later starts. A file with another content stops the
  run before anything that depends on it is saved: status 65, or 78 when the run already has a checkpoint.
  --check reads and hashes everything. longhaul-recovery(7) says what this does not detect.

DEVICES
  auto takes the first GPU it may see, and the CPU where there is none, and says which and why. cuda is
  cuda:0. Kernels are compiled for the GPU at hand when they are first used, which takes seconds, and
  kept; --warm-kernels does it ahead, on a machine without one. emu, in builds for tests, runs the very
  kernels on the host, thousands of times slower, and watches every access to memory. A checkpoint goes
  from any device to any other; bits are those of the device. Attention with more than 64 features a head
  needs a GPU with 160 KiB of shared memory (compute capability 8.0, 9.0, 10.0). What shapes memory and speed on a GPU are
  the keys training.amp, precision, tf32, compile and mem_budget, longhaul-config(5).

RANKS
  Started by mpirun, or by srun --mpi=pmix, as several tasks, all of them train one run: the samples of
  training.batch_size are shared among them, in the order and with the noise that one rank would give
  them, and gradients are summed while the backward pass still runs. Each rank takes the GPU of its
  number on its host; processors that several ranks may use are divided among them. Rank 0 has the
  files of the run and speaks. A signal to any rank stops all of them after the same update. A run goes
  on with any number of ranks; bits are the same with training.deterministic, else for the same number.
  optimizer.shard divides the memory of the optimizer. A rank that is gone, stopped, or stuck ends the
  job within 30 s with a line that names it and its host, and status 75 where a checkpoint stands
  (mpirun and srun may give a status of their own, 137). An error of one rank ends all with its status. If
  it comes in the middle of an update, the rank calls MPI_Abort: mpirun then ends with that status, srun
  may end with 137.
  mpirun itself answers TERM, INT (Ctrl-C) and HUP by killing its ranks, Open MPI's after one second, and
  ends with 1: the run resumes from its last regular checkpoint. Start it as `timekeep run -- mpirun ...`,
  which sends mpirun USR1 instead: all ranks stop, save a checkpoint, and the status is 75.

ENVIRONMENT
  LONGHAUL_START_LIMIT  How long the ranks may take until all are connected: 10m unless given, or none.
  LONGHAUL_HEARTBEAT  Seconds between two signs of life; 10 unless given, and then 9 are the 90 s above.
  LONGHAUL_KERNEL_CACHE  This user's folder of compiled kernels, 256 MiB at most; else in ~/.cache.
  LONGHAUL_NVRTC  The compiler of kernels, libnvrtc.so, or its folder; not needed when all are cached.
  LONGHAUL_DEVICE_MEMORY  The most bytes to take of a GPU that is shared with others.
  CUDA_VISIBLE_DEVICES  The GPUs that cuda:N counts.

SIGNALS
  TERM, INT, HUP and USR1 end the run after the update at hand, with a checkpoint and status 75. A
  second TERM or INT ends it at once; the last checkpoint is whole. USR2 asks for a checkpoint.

EXIT STATUS
  0   Finished, now or before.
  1   Diverged: loss or gradient not finite too often, or one spike after another. Or no progress in
      several starts.
  2   The command line is wrong.
  65  An input file is not what its manifest or index recorded, or a checkpoint is bad.
  66  The data is missing.
  73  The run directory cannot be written; also when saves keep failing because it became read-only.
  74  Reading or writing failed, or too many saves in a row did (checkpoint.failed_saves). Or the run
      directory was moved, removed or replaced during the run.
  75  Stopped with a checkpoint, or another process has the run; run the same command again, elsewhere
      if it blames the machine.
  78  The configuration is wrong, or configuration or data are not those of the checkpoint.

EXAMPLES
  A data set and a codec for it:
    $ ds-prep gen burgers --parameter 0.01 --samples 10 --grid 64 --frames 11 --seed 1 -o data
    $ ds-prep split data/*.hdf5 --seed 1 -o data/split.json
    $ ds-prep stats data/split.json
    $ printf '%s\\n' 'data: {split: data/split.json, stats: data/stats.json}' \\
    >   'model: {patch: 8, latent: 4, hidden: 16, encoder_depth: 1, decoder_depth: 1}' \\
    >   'loss: {}' 'training: {updates: 20, batch_size: 8}' \\
    >   'optimizer: {method: {kind: adamw}, learning_rate: 1e-3}' > codec.yaml
  A small configuration to start from, and every key that it may have:
    $ train-stage operator --example > operator.yaml
    $ train-stage operator --help
  What is wrong, and what will it take:
    $ train-stage codec -c codec.yaml --run codec --check
    $ train-stage codec -c codec.yaml --run codec --dry-run
  Train, with another rate; a second time there is nothing to do:
    $ train-stage codec -c codec.yaml -s optimizer.learning_rate=2e-3 --run codec
    $ train-stage codec -c codec.yaml -s optimizer.learning_rate=2e-3 --run codec

SEE ALSO
  longhaul(7), longhaul-config(5), latent-cache(1), evaluate(1), ckpt(1), timekeep(1)
";

fn main() -> ExitCode {
    if let Some(code) = data::fields::field::serve_if_asked() {
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

/// `train-stage TASK --help`, which lists the keys of that task.
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
    Out::stdout(Output::default()).raw(text.as_bytes())?;
    Ok(Exit::Done)
}

fn body(args: Args) -> Result<Exit> {
    match (args.task.as_deref().and_then(named), &args.run) {
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
    let progress = Mutex::new(Progress::new("kernel files", all as u64));
    let step = || progress.lock().unwrap_or_else(PoisonError::into_inner).advance(1);
    let compiled = cache::warm(&args.warm_kernels, step)?;
    drop(progress);
    let cached = all - compiled;
    let told = serde_json::json!({ "compiled": compiled, "cached": cached });
    let text = format!("compiled    {compiled}\nin cache    {cached}");
    Out::stdout(args.output).item(&told, text)?;
    Ok(Exit::Done)
}

fn run(args: &Args, task: &Entry, folder: &Path) -> Result<Exit> {
    if !args.check && !args.dry_run {
        // A signal that arrives while files are read also requests an orderly stop.
        unix::signal::Signals::install()?;
    }
    let environment = |name: &str| std::env::var(name).ok();
    let loaded = (task.load)(&args.config, &args.overrides, &environment);
    let alone = args.check || args.dry_run;
    let ranks = if alone { Box::new(Solo) } else { open_ranks(folder)? };
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
        tell(args, &estimate)?;
        return Ok(Exit::Done);
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

fn open_ranks(folder: &Path) -> Result<Box<dyn Collective>> {
    let folder = folder.to_path_buf();
    dist::open(move || train::lost_a_rank(&folder))
}

/// Prints every problem; the exit status is that of the first.
fn check(args: &Args, task: &Configured, device: Device, folder: &Path) -> Result<Exit> {
    let report = train::check(task, device, folder);
    if let Some(estimate) = &report.estimate {
        tell(args, estimate)?;
    }
    Error::all(&report.problems).map(|()| Exit::Done)
}

/// Describes the recomputed blocks, and the memory saved and time spent by recomputing them.
fn recomputed(plan: &Plan) -> String {
    let again = plan.keep.iter().filter(|keep| !**keep).count();
    let ((kept, all), (repeated, operations)) = (plan.bytes(), plan.operations());
    format!(
        "recomputed  {again} of {} blocks: {} of {} kept, {:.1} % of their forward passes again\n",
        plan.keep.len(),
        human_bytes(kept as u64),
        human_bytes(all as u64),
        100.0 * repeated as f64 / operations.max(1) as f64
    )
}

fn tell(args: &Args, e: &Estimate) -> Result<()> {
    let text = format!(
        "stage       {}\nparameters  {}\nupdates     {} ({:.1} epochs of {} samples)\n\
         memory      {}\n{}checkpoint  {}\nupdate      {:.1} ms\nvalidation  {:.2} s\n\
         in all      {} (cost {:.2})",
        e.task,
        e.parameters,
        e.updates,
        e.epochs,
        e.samples,
        human_bytes(e.memory_bytes as u64),
        e.plan.as_ref().map_or(String::new(), recomputed),
        human_bytes(e.checkpoint_bytes as u64),
        1e3 * e.seconds_per_update,
        e.seconds_per_validation,
        unix::time::format_duration(std::time::Duration::from_secs_f64(e.seconds)),
        e.cost
    );
    Out::stdout(args.output).item(e, text)
}
