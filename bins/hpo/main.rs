//! The command line of `hpo`.

mod manual;
mod plot;
mod refit;
mod report;
mod trials;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use manual::MANUAL;
use study::worker::supervise::{VERB, supervise};
use unix::Result;
use unix::cli::Output;

/// Search hyper-parameters in a shared directory
///
/// A study is a directory with a configuration, study.yaml, and one folder per trial. Any number of workers, on any
/// number of nodes that share the directory, run its trials; no server is needed. If a worker is stopped or killed, the
/// next free worker resumes its trial from the last checkpoint, with the same result. longhaul-study(5) describes the
/// configuration and the files.
#[derive(Parser)]
#[command(name = "hpo", version = env!("LONGHAUL_VERSION"), after_long_help = MANUAL)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Create a study and check its parameters against the configuration keys of the task
    New(trials::NewArgs),
    /// Run trials one after another until none remain
    ///
    /// Interrupted trials are resumed first. Signals are forwarded to the running trial, which writes a checkpoint.
    Worker(trials::WorkerArgs),
    /// Start a trial for another program to run; print its number and parameters
    Ask {
        /// Folder of the study
        study: PathBuf,
        #[command(flatten)]
        output: Output,
    },
    /// Report a value of a trial; for a trial started by ask, print whether to prune it
    ///
    /// The command of a study, if it is not train-stage, also reports its values this way: workers set HPO_STUDY and
    /// HPO_TRIAL to the study and the trial. A worker stops such a command with TERM.
    Tell(trials::TellArgs),
    /// Show the progress of studies by round
    Status {
        /// Folders of studies
        #[arg(required = true)]
        studies: Vec<PathBuf>,
        /// Refresh every few seconds until all trials have ended
        #[arg(long)]
        watch: bool,
        #[command(flatten)]
        output: Output,
    },
    /// List trials
    Trials(report::TrialsArgs),
    /// Print the parameters of the best trial as a configuration
    Best(report::BestArgs),
    /// Plot the trials of a round and the parameter importances
    ///
    /// Plots are drawn in the terminal or written to a picture file. Pruned trials are drawn at their best value,
    /// trials without a value at the worst end of the axis.
    Plot(plot::PlotArgs),
    /// Print the importance of each parameter
    ///
    /// PED-ANOVA compares the distribution of a parameter among the best tenth of the complete trials with its
    /// distribution among all of them. A conditional parameter is evaluated on the trials in which it was active, and
    /// counts less if they are few; whether it was active counts towards the parameters in its condition.
    Importance(report::ImportanceArgs),
    /// Retry trials that failed, diverged or ran out of memory, or whose caller of ask is gone
    ///
    /// The next free worker or the next caller of ask runs them.
    Retry {
        /// Folder of the study
        study: PathBuf,
        /// Trial numbers [default: all that failed, diverged or ran out of memory; open trials started by ask only if
        /// listed]
        trials: Vec<u64>,
        #[command(flatten)]
        output: Output,
    },
    /// Import trials of another study for the sampler of a round to learn from
    ///
    /// The sampler treats imported trials as if they had ended before the first trial of the round; they do not count
    /// as trials of this study. Trials that failed, lack a parameter or lie outside the search space are skipped with a
    /// warning. Importing a file again adds only new trials.
    Import(trials::ImportArgs),
    /// Retrain the best configuration with several seeds, evaluate on the test split and write a report
    ///
    /// Several processes may run it concurrently; interrupted runs are resumed. The folder of the refit is itself a
    /// study, with one trial per seed; report.md and report.html are written there.
    Refit(refit::RefitArgs),
    /// Export the trials for other programs
    Export(report::ExportArgs),
    /// Supervise the command of a trial for a worker
    #[command(name = VERB, hide = true)]
    Supervise {
        parent: u32,
        signal: String,
        folder: PathBuf,
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
}

fn main() -> ExitCode {
    unix::cli::main_with_status(run)
}

fn run(args: Args) -> Result<ExitCode> {
    let done = match args.command {
        Command::New(args) => trials::new(&args),
        Command::Worker(args) => trials::work(&args),
        Command::Ask { study, output } => trials::ask(&study, output),
        Command::Tell(args) => trials::tell(&args),
        Command::Status { studies, watch, output } => report::status(&studies, watch, output),
        Command::Trials(args) => report::trials(&args),
        Command::Best(args) => report::best(&args),
        Command::Retry { study, trials, output } => trials::retry(&study, &trials, output),
        Command::Import(args) => trials::import(&args),
        Command::Importance(args) => report::importance(&args),
        Command::Plot(args) => plot::plot(&args),
        Command::Refit(args) => refit::refit(&args),
        Command::Export(args) => report::export(&args),
        Command::Supervise { parent, signal, folder, words } => {
            return supervise(parent, &signal, &folder, &words).map(ExitCode::from);
        }
    };
    done.map(ExitCode::from)
}
