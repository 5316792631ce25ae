//! Data sets: make, divide, measure, check and list them.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

use clap::{Parser, Subcommand};
use data::check::{Report, check_files, check_split};
use data::divide::{Share, divide};
use data::field::Field;
use data::generate::{Equation, Generation};
use data::list::{FileRecord, describe, frames, parts};
use data::split::{Split, SplitName};
use data::split_set::{TrajectorySet, Verify};
use data::stats::Stats;
use unix::cli::Output;
use unix::out::Out;
use unix::progress::Progress;
use unix::signal::Signals;
use unix::{Error, Exit, Result, inputs, note};

/// Make, divide, measure and check data sets
///
/// ds-prep turns a PDE solver or PDEBench's HDF5 files into data sets for training: files of
/// trajectories, a split manifest that says which trajectory is for what, and the statistics of the
/// training split. Nothing is trained on before `ds-prep check` has found no fault.
#[derive(Parser)]
#[command(name = "ds-prep", version = env!("LONGHAUL_VERSION"), after_long_help = MANUAL)]
struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Solve an equation for random initial states, one file for each parameter value
    Gen(Gen),
    /// Divide the trajectories of files into training, validation and test
    Split(Divide),
    /// Compute the statistics of a manifest's training split
    Stats {
        /// The manifest
        manifest: PathBuf,
        /// Where the statistics go; stats.json beside the manifest when not given
        #[arg(short = 'o', long = "output", value_name = "FILE")]
        to: Option<PathBuf>,
        #[command(flatten)]
        output: Output,
    },
    /// Look for every fault of files, or of manifests (*.json) and their files
    Check {
        /// HDF5 files or manifests; `-` reads their names from stdin
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Largest |u| that is no fault
        #[arg(long, default_value_t = 1e10)]
        limit: f32,
        #[command(flatten)]
        output: Output,
    },
    /// List files, or the parts of manifests (*.json)
    Ls {
        /// HDF5 files or manifests; `-` reads their names from stdin
        #[arg(required = true)]
        files: Vec<PathBuf>,
        #[command(flatten)]
        output: Output,
    },
    /// Show what a file says of itself, or one of its trajectories frame by frame
    Show {
        /// HDF5 file
        file: PathBuf,
        /// Number of the trajectory, from 0
        #[arg(long, value_name = "NUMBER")]
        sample: Option<usize>,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(clap::Args)]
struct Gen {
    /// Equation: burgers (u_t + uu_x = nu/pi u_xx) or advection (u_t + beta u_x = 0)
    equation: Equation,
    /// Values of nu or beta, e.g. 0.001,0.01,0.1
    #[arg(long, required = true, value_delimiter = ',', value_name = "VALUE")]
    #[arg(allow_negative_numbers = true)]
    parameter: Vec<f64>,
    /// Trajectories of each file
    #[arg(long, value_name = "NUMBER")]
    samples: usize,
    /// Seed of the initial states
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Cells
    #[arg(long, default_value_t = 1024)]
    grid: usize,
    /// Frames, the initial state included
    #[arg(long, default_value_t = 201)]
    frames: usize,
    /// Time of the last frame
    #[arg(long, default_value_t = 2.0, value_name = "TIME")]
    end: f64,
    /// Number of the first trajectory: files with other numbers continue each other
    #[arg(long, default_value_t = 0, value_name = "NUMBER")]
    first: u64,
    /// Threads; all that there are when not given. The numbers do not depend on them
    #[arg(long)]
    threads: Option<usize>,
    /// Folder of the files, which must not be there yet
    #[arg(short = 'o', long = "output", value_name = "FOLDER")]
    to: PathBuf,
    #[command(flatten)]
    output: Output,
}

#[derive(clap::Args)]
struct Divide {
    /// HDF5 files; `-` reads their names from stdin
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Share of training: a percentage, or a number of trajectories of each parameter value
    #[arg(long, default_value = "80%", value_name = "SHARE")]
    train: Share,
    /// Share of validation
    #[arg(long, default_value = "10%", value_name = "SHARE")]
    validation: Share,
    /// Share of the test
    #[arg(long, default_value = "10%", value_name = "SHARE")]
    test: Share,
    /// Seed of the choice
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// The manifest
    #[arg(short = 'o', long = "output", default_value = "split.json", value_name = "FILE")]
    to: PathBuf,
    #[command(flatten)]
    output: Output,
}

const MANUAL: &str = "\
FILES
  HDF5 files in PDEBench's layout: tensor [trajectories, frames, x], x-coordinate, t-coordinate, and
  the parameter as attribute Nu or beta of the root (or in the name of the file).

  split.json holds the files by path (relative to it) and BLAKE3, and of each split the numbers of
  its trajectories; every parameter value is divided in the same proportion.
  stats.json holds count, mean, standard deviation, range and root mean square of the training split.

EXIT STATUS
  0   The work is done; check found no fault.
  2   The command line is wrong.
  65  The data is bad, or check found faults.
  66  A file is missing.
  73  A file cannot be created, or is there already.
  74  Reading or writing failed midway.
  75  gen was told to stop; the files named on stdout are whole.

EXAMPLES
  Burgers at three viscosities, divided, measured and checked:
    $ ds-prep gen burgers --parameter 0.001,0.01,0.1 --samples 10 --grid 128 --frames 21 -o raw
    $ ds-prep split raw/*.hdf5 --train 80% --validation 10% --test 10% -o split.json
    $ ds-prep stats split.json
    $ ds-prep check split.json
  Files whose names another program finds:
    $ find raw -name '*.hdf5' | ds-prep ls -
  One trajectory, frame by frame:
    $ ds-prep show raw/1D_Burgers_Sols_Nu0.1.hdf5 --sample 3

SEE ALSO
  longhaul(7), latent-cache(1), train-stage(1)
";

fn main() -> ExitCode {
    unix::cli::main::<Args>(run)
}

fn run(args: Args) -> Result<Exit> {
    match args.verb {
        Verb::Gen(gen_args) => generate(&gen_args),
        Verb::Split(divide_args) => split(&divide_args),
        Verb::Stats { manifest, to, output } => stats(&manifest, to, Out::stdout(output)),
        Verb::Check { files, limit, output } => check(&files, limit, Out::stdout(output)),
        Verb::Ls { files, output } => list(&files, Out::stdout(output)),
        Verb::Show { file, sample, output } => show(&file, sample, Out::stdout(output)),
    }
}

fn generate(args: &Gen) -> Result<Exit> {
    let mut files: Vec<(PathBuf, Generation)> = Vec::new();
    for &parameter in &args.parameter {
        let Gen { equation, samples, first, seed, grid, frames, end, .. } = *args;
        let file = Generation { equation, parameter, samples, first, seed, grid, frames, end };
        file.validate()?;
        let path = args.to.join(equation.file_name(parameter));
        if path.exists() {
            let cause = "it is there already; move it or choose another folder";
            return Err(Error::create(&path, cause));
        }
        if files.iter().any(|(other, _)| *other == path) {
            return Err(Error::usage(format!("parameter {parameter} is given twice")));
        }
        files.push((path, file));
    }
    let signals = Signals::install()?;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(args.threads.unwrap_or(0)).build();
    let pool = pool.map_err(|cause| Error::usage(format!("--threads: {cause}")))?;
    let total = args.samples.saturating_mul(files.len());
    let progress = Mutex::new(Progress::new("trajectories", total as u64));
    let mut out = Out::stdout(args.output);
    unix::publish::create_folder(&args.to)?;
    for (path, file) in &files {
        let done = || match signals.stop_requested() {
            Some(signal) => {
                let what = format!("stopped by {signal}; {} was not made", path.display());
                Err(Error::new(Exit::Again, what))
            }
            None => {
                progress.lock().unwrap_or_else(PoisonError::into_inner).advance(1);
                Ok(())
            }
        };
        pool.install(|| file.write(path, done))?;
        out.row(&FileRecord::of(path)?)?;
    }
    finish(out)
}

fn split(args: &Divide) -> Result<Exit> {
    let files = inputs::files(&args.files)?;
    let shares = [args.train, args.validation, args.test];
    let split = divide(&files, shares, args.seed, &args.to)?;
    if args.to.exists() && Split::load(&args.to).map_or(true, |(old, _)| old != split) {
        let cause =
            "another one is there, which runs may have used; move it or choose another name";
        return Err(Error::create(&args.to, cause));
    }
    split.save(&args.to)?;
    let mut out = Out::stdout(args.output);
    parts(&split, &args.to).iter().try_for_each(|part| out.row(part))?;
    finish(out)
}

fn stats(manifest: &Path, to: Option<PathBuf>, mut out: Out) -> Result<Exit> {
    let set = TrajectorySet::open(manifest, SplitName::Train, Verify::Hashes)?;
    let stats = Stats::of(&set)?;
    stats.save(&to.unwrap_or_else(|| manifest.with_file_name("stats.json")))?;
    stats.records().iter().try_for_each(|record| out.row(record))?;
    finish(out)
}

fn check(files: &[PathBuf], limit: f32, mut out: Out) -> Result<Exit> {
    let mut all = Report::default();
    for path in inputs::files(files)? {
        let report = if is_manifest(&path) {
            check_split(&path, limit)?
        } else {
            check_files(&[path], limit)
        };
        all.files += report.files;
        all.trajectories += report.trajectories;
        for fault in report.faults {
            out.item(&fault, &fault.message)?;
            all.faults.push(fault);
        }
    }
    let Report { files, trajectories, faults } = all;
    note!("{files} files, {trajectories} trajectories, {} faults", faults.len());
    Ok(if faults.is_empty() { Exit::Done } else { Exit::Data })
}

fn list(files: &[PathBuf], mut out: Out) -> Result<Exit> {
    for path in inputs::files(files)? {
        if is_manifest(&path) {
            let (split, _) = Split::load(&path)?;
            parts(&split, &path).iter().try_for_each(|part| out.row(part))?;
        } else {
            out.row(&FileRecord::of(&path)?)?;
        }
    }
    finish(out)
}

fn show(file: &Path, sample: Option<usize>, mut out: Out) -> Result<Exit> {
    match sample {
        Some(sample) => {
            let frames = frames(&Field::open(file)?, sample)?;
            frames.iter().try_for_each(|frame| out.row(frame))?;
        }
        None => {
            let record = describe(file)?;
            let text = serde_json::to_string_pretty(&record).map_err(Error::bug)?;
            out.item(&record, text)?;
        }
    }
    finish(out)
}

fn finish(out: Out) -> Result<Exit> {
    out.finish()?;
    Ok(Exit::Done)
}

fn is_manifest(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "json")
}
