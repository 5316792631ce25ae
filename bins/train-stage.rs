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
    #[arg(required_unless_present_any = ["warm_kernels", "example", "schema"])]
    run: Option<PathBuf>,
    /// Where to start: auto (the newest good checkpoint, if there is one), never (update 0), or the path of a
    /// checkpoint. The same command, given again, resumes the run that it started
    #[arg(long, value_name = "WHAT", default_value = "auto")]
    resume: String,
    /// Resume although configuration or data differ from those of the checkpoint; the log records the changes
    #[arg(long)]
    accept_config_change: bool,
    /// Retry a run that diverged, or made no progress in several attempts
    #[arg(long)]
    retry: bool,
    /// Device: auto (a GPU if there is one, else the CPU), cpu, cuda, cuda:N or emu
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: DeviceChoice,
    /// Check the configuration, the content of all input files, disk space and memory, and report every problem;
    /// do not train
    #[arg(long, conflicts_with = "dry_run")]
    check: bool,
    /// Measure a few updates and report memory, time and cost of the run; do not train
    #[arg(long)]
    dry_run: bool,
    /// Print a small configuration of the task to start from
    #[arg(long, conflicts_with_all = ["config", "run", "check", "dry_run"])]
    example: bool,
    /// Print the JSON Schema of the task's configuration, for editors and other programs
    #[arg(long, conflicts_with_all = ["example", "config", "run", "check", "dry_run"])]
    schema: bool,
    /// Compile the kernels for these GPU architectures, e.g. sm_80,sm_90a, into the cache, so that training need
    /// not; requires no GPU
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
  RUN/config.yaml  The resolved configuration with all defaults.
  RUN/env.json     Versions, host and job, one entry per attempt.
  RUN/log.jsonl    One record per line: start, inputs, update, validation, checkpoint, saved, spike,
                   warning, refused, stop.
  RUN/inputs.json  Hashes of the input files verified so far, with inode, size, mtime and ctime.
  RUN/status.json  State, update, best validation, cost.
  RUN/ckpt         Checkpoints step-N, and the links latest and best; see ckpt(1).
  RUN/lease        One file attempt-N.json per attempt, with its owner; the mtime is its last heartbeat.

STARTING AGAIN
  The same command may be given any number of times, on any host:
    finished                            reports that, exits 0
    another process holds the run       names it, exits 75
    that process is gone                resumes as the next attempt
    its last heartbeat is 90 s old      watches it for another 30 s, then resumes as the next attempt
    stopped or killed                   resumes from the newest good checkpoint
    no checkpoint                       starts at update 0, with the same seed
    checkpoints, none of them good      exits 65
    configuration or data differ        shows the differences, exits 78, unless --accept-config-change
    several attempts without progress   exits 1 until --retry or an accepted change
    diverged                            the same
  --resume PATH and --resume never apply until the run has a checkpoint that descends from them. From
  then on the same command resumes from the newest checkpoint, as with auto, so that it can be requeued.
  --resume never refuses a run that has other checkpoints (73). To start from PATH a second time, use another
  run directory or another configuration.
  A process whose run was taken over by a newer attempt writes nothing more and exits 75. A warning says that
  bits may differ if the run resumes with another version, processor or device.

INPUT FILES
  Every file that a run reads (split manifest, data files, stats.json, latent index and shards) must have the
  BLAKE3 hash that its manifest or index recorded. A background thread hashes the files while training runs.
  Before each validation and checkpoint, and before the run finishes, rank 0 waits for that thread and compares
  inode, size, mtime and ctime of every file; a file for which one of them changed is hashed again. Files
  recorded in RUN/inputs.json are not read again by later attempts. A file with different content stops the
  run before anything that depends on it is saved: status 65, or 78 if the run already has a checkpoint.
  --check reads and hashes everything. longhaul-recovery(7) says what this does not detect.

DEVICES
  auto selects the first visible GPU, or the CPU if there is none, and reports the choice and its reason. cuda
  is cuda:0. Kernels are compiled for the GPU when they are first used, which takes seconds, and cached;
  --warm-kernels compiles them in advance, on a machine without a GPU. emu, in builds for tests, runs the same
  kernels in an emulator on the host, thousands of times slower, and checks every memory access. A checkpoint
  can be loaded on any device; bits differ between devices. Attention with more than 64 features per head
  requires a GPU with 160 KiB of shared memory (compute capability 8.0, 9.0 or 10.0). The keys training.amp,
  precision, tf32, compile and mem_budget control memory and speed on a GPU, see longhaul-config(5).

RANKS
  Several ranks, started by mpirun or srun --mpi=pmix, train one run. The samples of training.batch_size are
  divided among them, in the same order and with the same noise as on one rank, and gradients are summed
  concurrently with the backward pass. Each rank uses the GPU with its number on the host; ranks on one host
  divide its processors. Rank 0 writes the files of the run and the messages. A signal to any rank stops all
  ranks after the same update. A run resumes with any number of ranks; the bits are the same with
  training.deterministic, otherwise only for the same number. optimizer.shard distributes the optimizer state.
  A rank that dies, is suspended or hangs ends the job within 30 s with a message that names it and its host,
  and with status 75 if there is a checkpoint (mpirun and srun may report another status, 137). An error of
  one rank ends all ranks with its status. If it occurs in the middle of an update, the rank calls MPI_Abort:
  mpirun then exits with that status, srun may exit with 137.
  mpirun itself reacts to TERM, INT (Ctrl-C) and HUP by killing its ranks, Open MPI's after one second, and
  exits 1; the run then resumes from its last regular checkpoint. Start it as `timekeep run -- mpirun ...`,
  which sends mpirun USR1 instead: all ranks stop, save a checkpoint, and the status is 75.

ENVIRONMENT
  LONGHAUL_START_LIMIT  How long ranks wait for each other at the start, or none; default 10m.
  LONGHAUL_HEARTBEAT  Seconds between heartbeats, default 10; a lease is stale after nine of them.
  LONGHAUL_KERNEL_CACHE  Folder of compiled kernels of this user, at most 256 MiB; default in ~/.cache.
  LONGHAUL_NVRTC  The CUDA compiler libnvrtc.so, or its folder; not needed if all kernels are cached.
  LONGHAUL_DEVICE_MEMORY  Largest number of bytes to use of a GPU that is shared with other programs.
  CUDA_VISIBLE_DEVICES  The GPUs that cuda:N counts.

SIGNALS
  TERM, INT, HUP and USR1 end the run after the current update, with a checkpoint and status 75. A second
  TERM or INT ends it at once; the last checkpoint remains valid. USR2 requests a checkpoint.

EXIT STATUS
  0   Finished, now or earlier.
  1   Diverged: the loss or gradient was not finite too often, or there were too many spikes. Or several
      attempts made no progress.
  2   The command line is wrong.
  65  An input file is not what its manifest or index recorded, or a checkpoint is damaged.
  66  The data is missing.
  73  The run directory cannot be written; also when saves keep failing because it became read-only.
  74  Reading or writing failed, or too many consecutive saves did (checkpoint.failed_saves). Or the run
      directory was moved, removed or replaced during the run.
  75  Stopped with a checkpoint, or another process holds the run. Run the same command again; if the
      message blames the machine, on another one.
  78  The configuration is wrong, or configuration or data differ from those of the checkpoint.

EXAMPLES
  A data set and a codec for it:
    $ ds-prep gen burgers --parameter 0.01 --samples 10 --grid 64 --frames 11 --seed 1 -o data
    $ ds-prep split data/*.hdf5 --seed 1 -o data/split.json
    $ ds-prep stats data/split.json
    $ printf '%s\\n' 'data: {split: data/split.json, stats: data/stats.json}' \\
    >   'model: {patch: 8, latent: 4, hidden: 16, encoder_depth: 1, decoder_depth: 1}' \\
    >   'loss: {}' 'training: {updates: 20, batch_size: 8}' \\
    >   'optimizer: {method: {kind: adamw}, learning_rate: 1e-3}' > codec.yaml
  A small configuration to start from, and all keys:
    $ train-stage operator --example > operator.yaml
    $ train-stage operator --help
  Check for problems, and estimate time and memory:
    $ train-stage codec -c codec.yaml --run codec --check
    $ train-stage codec -c codec.yaml --run codec --dry-run
  Train with another learning rate; the second command finds the run finished:
    $ train-stage codec -c codec.yaml -s optimizer.learning_rate=2e-3 --run codec
    $ train-stage codec -c codec.yaml -s optimizer.learning_rate=2e-3 --run codec

SEE ALSO
  longhaul(7), longhaul-config(5), latent-cache(1), evaluate(1), ckpt(1), timekeep(1)
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
        "task       {}\nparameters  {}\nupdates     {} ({:.1} epochs of {} samples)\n\
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
