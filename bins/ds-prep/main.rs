//! The command line of `ds-prep`: generates, imports, splits, checks, audits, lists and plots data sets.

mod audit_plot;
mod check;
mod divide;
mod generate;
mod import;
mod list;
mod manual;
mod records;
mod texts;

use clap::{Parser, Subcommand};
use manual::MANUAL;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use unix::cli::{Given, Output};
use unix::out::Out;
use unix::{Error, Exit, Result};

/// Generate, import, split and check data sets
///
/// ds-prep prepares training data from PDE solvers, PDEBench's HDF5 files, other arrays, or texts with labels or
/// vectors: files of trajectories or stores of records, a split manifest that assigns them to training, validation and
/// test, and the statistics of the training split. Run `ds-prep check` before training. longhaul-files(5) describes the
/// layouts of these files, the equations, what audit finds, and the limits of what is read.
#[derive(Parser)]
#[command(name = "ds-prep", version = env!("LONGHAUL_VERSION"), after_long_help = MANUAL)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Solve an equation for random initial states, one file per parameter value; or write synthetic texts or pages
    Gen(Given<generate::Gen>),
    /// Convert files of any layout to contiguous files, optionally cropped or resampled; or make records
    Import(Box<Given<import::Import>>),
    /// Split trajectories or records into training, validation and test
    Split(Given<divide::Divide>),
    /// Encode the texts of a manifest with the tokenizer of a model
    Tokenize(texts::Tokenize),
    /// Build a tokenizer from the training split of a manifest: of words, or of bytes for conversations
    Vocabulary(texts::Vocabulary),
    /// Compute the statistics of the training split of a manifest
    Stats {
        /// Split manifest
        manifest: PathBuf,
        /// Output file, `-` for stdout; default: stats.json in the manifest's folder
        #[arg(short = 'o', long = "output", value_name = "FILE")]
        to: Option<PathBuf>,
        #[command(flatten)]
        output: Output,
    },
    /// Report every problem in files or record stores, or in manifests (*.json) and what they list
    Check {
        /// HDF5 files, record stores or manifests; `-` reads their names from stdin
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Largest |u| that is not reported as a problem; default: 1e10 for files of trajectories, none for records,
        /// whose units are unknown
        #[arg(long)]
        limit: Option<f32>,
        #[command(flatten)]
        output: Output,
    },
    /// Find leaks between splits by content: exact copies and near-duplicates
    Audit(Given<audit_plot::Audit>),
    /// Plot a trajectory
    Plot(audit_plot::Plot),
    /// List files or record stores, or the splits of manifests (*.json)
    Ls {
        /// HDF5 files, record stores or manifests; `-` reads their names from stdin
        #[arg(required = true)]
        files: Vec<PathBuf>,
        #[command(flatten)]
        output: Output,
    },
    /// Show the metadata of a file or store, or one of its trajectories frame by frame, or one record by channel
    Show {
        /// File or record store
        file: PathBuf,
        /// Index of the trajectory or record, from 0
        #[arg(long, value_name = "NUMBER")]
        sample: Option<usize>,
        #[command(flatten)]
        output: Output,
    },
}

fn main() -> ExitCode {
    data::fields::field::run_helper_if_requested().unwrap_or_else(|| unix::cli::main::<Args>(run))
}

fn run(args: Args) -> Result<Exit> {
    match args.command {
        Command::Gen(gen_args) => generate::run(&gen_args),
        Command::Import(import_args) => import::run(*import_args),
        Command::Split(divide_args) => divide::split(&divide_args),
        Command::Vocabulary(vocabulary_args) => texts::vocabulary(&vocabulary_args),
        Command::Tokenize(tokenize_args) => texts::encode(&tokenize_args),
        Command::Audit(audit_args) => audit_plot::audit(&audit_args),
        Command::Plot(plot_args) => audit_plot::plot(&plot_args),
        Command::Stats { manifest, to, output } => check::stats(&manifest, to, Out::stdout(output)),
        Command::Check { files, limit, output } => check::check(&files, limit, Out::stdout(output)),
        Command::Ls { files, output } => list::list(&files, Out::stdout(output)),
        Command::Show { file, sample, output } => list::show(&file, sample, Out::stdout(output)),
    }
}

/// Runs `work` on `threads` threads, by default one per processor.
fn in_pool(threads: Option<usize>, work: impl FnOnce() -> Result<()> + Send) -> Result<()> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads.unwrap_or(0)).build();
    let cannot = |cause| Error::new(Exit::Failure, format!("cannot start threads: {cause}"));
    pool.map_err(cannot)?.install(work)
}

fn is_manifest(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "json")
}
