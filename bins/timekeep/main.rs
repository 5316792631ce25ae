//! The command line of `timekeep`.

mod manual;
mod pipeline;
mod run;
mod runs;
mod watch;

use clap::{Parser, Subcommand};
use manual::MANUAL;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use unix::Result;
use unix::cli::Output;
use unix::timekeep::guard::{self, Schedule, VERB};
use unix::timekeep::{Signal, parse_warn_signal};

/// Manage the time limits of jobs: time left, warning, requeueing, status of runs
///
/// A batch job ends at a known time, and a run may need many jobs. timekeep prints the time left, warns a command early
/// enough to save its work, waits until it has exited, and has SLURM requeue the job if the command did not finish. It
/// reports the state of runs, submits those that stopped, and computes the best checkpoint interval.
/// longhaul-slurm(7) is an introduction, and says which exit statuses requeue a job, which runs cron submits, and how
/// signals are passed on.
#[derive(Parser)]
#[command(name = "timekeep", version = env!("LONGHAUL_VERSION"), after_long_help = MANUAL)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Print the seconds left until the time limit, and its source
    Left {
        #[command(flatten)]
        output: Output,
    },
    /// Run a command, warn it before the time limit, and end it if it does not exit; in a batch job, requeue the job
    /// if it exits with 75
    Run(run::RunArgs),
    /// Show the steps of a pipeline, one per line: state, hours so far and command
    ///
    /// A step is done if its command has succeeded and neither the command, the files that it names, nor a step before
    /// it has changed since. longhaul-slurm(7) describes the file.
    Pipeline(pipeline::PipelineArgs),
    /// Show the state of runs and studies, one per line
    ///
    /// A study of hpo is one line, with the number of trials that have ended. Its trials are runs: name their folders,
    /// STUDY/trials/*, to see them.
    Status {
        /// Run directories and studies; `-` reads their names from stdin
        #[arg(required = true)]
        runs: Vec<PathBuf>,
        #[command(flatten)]
        output: Output,
    },
    /// Watch runs: a page on the terminal with progress, time left, cost, validations, warnings and curves
    ///
    /// Reads only the files of the runs, so it can run on a login node; it asks SLURM nothing. The time left follows
    /// from the pace of the last updates. The price of an hour is cost.rate_per_hour, else LONGHAUL_RATE_PER_HOUR of the
    /// environment or of the site file that the run was submitted with. The key q, Ctrl-C or TERM ends it. If stdout is
    /// not a terminal, the page is printed once.
    Watch(watch::WatchArgs),
    /// Compute the best checkpoint interval from the cost of a checkpoint and the failure rate of nodes
    Interval(runs::IntervalArgs),
    /// Submit a run to SLURM, and record the command for cron
    Submit(runs::SubmitArgs),
    /// Resubmit runs that stopped, except those that are finished, have failed or were cancelled
    ///
    /// Trials of a study of hpo are left alone: its workers resume them.
    Cron {
        /// Run directories that were submitted with timekeep submit; `-` reads their names from stdin
        #[arg(required = true)]
        runs: Vec<PathBuf>,
        #[command(flatten)]
        output: Output,
    },
    /// Enforce the limit of a command whose timekeep was killed
    #[command(name = VERB, hide = true)]
    Guard(GuardArgs),
}

/// The arguments of the guard, which timekeep starts itself.
#[derive(clap::Args)]
struct GuardArgs {
    group: i32,
    margin: u64,
    grace: u64,
    #[arg(value_parser = parse_warn_signal)]
    warn_signal: Signal,
    end: u64,
}

fn main() -> ExitCode {
    unix::cli::main_with_status(body)
}

fn body(args: Args) -> Result<u8> {
    match args.command {
        Command::Left { output } => run::left(output),
        Command::Status { runs, output } => runs::status(&runs, output),
        Command::Watch(args) => watch::watch(&args),
        Command::Interval(args) => runs::interval(&args),
        Command::Submit(args) => runs::submit(&args),
        Command::Guard(GuardArgs { group, margin, grace, warn_signal, end }) => {
            let [margin, grace] = [margin, grace].map(Duration::from_secs);
            guard::run(group, Schedule { margin, grace, warn_signal }, end).map(|()| 0)
        }
        Command::Cron { runs, output } => runs::cron(&runs, output),
        Command::Pipeline(args) => pipeline::pipeline(&args),
        Command::Run(args) => run::run(args),
    }
}
