//! The command line of `evaluate`. Its subcommands are in `score.rs` and `predict.rs` (running models), `results.rs`
//! (comparing results), `plot.rs` (plotting curves) and `export.rs` (converting runs for experiment trackers).

mod export;
mod manual;
mod plot;
mod predict;
mod results;
mod score;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use manual::MANUAL;

/// Score trained models on unseen data, predict with them, and compare the results
///
/// RUN is a run directory or a checkpoint of any task. Models it depends on, such as the codec of an operator, are
/// found by the paths in its checkpoint. The scores are listed next to those of baselines, with 95% bootstrap
/// confidence intervals over the samples. Some tasks have options of their own, which `evaluate score RUN --help`
/// lists: an operator, for example, is rolled out from start frames spread over every trajectory. longhaul-files(5)
/// defines every metric and describes the files that score, predict and leaderboard write.
///
/// Started with mpirun or srun, the ranks of score and predict share the work; the results are the same for any number
/// of ranks. An interrupted command resumes when it is given again, with the results of one that was not interrupted;
/// only predictions of inputs from stdin, or to stdout, start over.
#[derive(Parser)]
#[command(name = "evaluate", version = env!("LONGHAUL_VERSION"), after_long_help = MANUAL)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Score a model and the baselines on a split
    Score(score::Score),
    /// Write the predictions of a model for new inputs
    ///
    /// For an operator, a rollout from the first frame of every trajectory; for the model of a steady problem, the
    /// solution for every input; for a codec, the reconstruction of every frame; for a record model, the target of
    /// every input; for a text model, the label of every text and the answer in every context; for a decoder, the
    /// assistant's answer to every prompt.
    Predict(predict::Predict),
    /// Check that the rollouts fit into the trajectories of a split; requires no models
    Check(tasks::check::Check),
    /// Compare evaluations or runs: metrics, and configuration keys that differ
    ///
    /// Evaluations must have the same protocol, and runs the same task and data; otherwise the command fails and names
    /// what differs. For evaluations, the per-item differences of the losses show whether the difference from the first
    /// one can be explained by chance.
    Compare(results::Compare),
    /// Analyse the log of a run, and advise which configuration keys to change
    Analyze(results::Analyze),
    /// Draw loss, validation metrics, learning rate, gradient norm and throughput of runs by update
    ///
    /// One chart per metric, with a curve for each run that has it, on the terminal or as a picture. Updates that a
    /// resume or rewind superseded are not drawn. Values that are positive and span more than a factor of 5 have a
    /// logarithmic axis. On the terminal, curves are drawn in Braille characters if the locale is UTF-8, and in colours
    /// unless NO_COLOR is set.
    Plot(plot::Plot),
    /// Convert runs for TensorBoard, Weights & Biases, MLflow or CSV
    ///
    /// A run is one curve, over any number of attempts: points that a resume or a rewind superseded are left out. Its
    /// id is the name of the run directory. Values logged with each update, such as loss and learning rate, are called
    /// train/NAME, validation metrics eval/NAME, the usage of the machine (resident memory, CPU time, GPU memory, of
    /// rank 0) system/NAME. Hyper-parameters are the keys of config.yaml. Exporting again adds what is new.
    Export(export::Export),
    /// Test an evaluation against a baseline on a leaderboard; exit 1 if it fails
    ///
    /// The baseline is the row with the best METRIC among those with the same protocol. The candidate's own rows do not
    /// count. The candidate fails if a metric is missing. Whether smaller or larger values are better is a property of
    /// each metric; a metric for which neither is better is refused.
    Gate(results::GateArgs),
    /// Record evaluations on a leaderboard, and show it
    #[command(subcommand)]
    Leaderboard(results::Leaderboard),
}

fn main() -> ExitCode {
    data::fields::field::run_helper_if_requested().unwrap_or_else(|| {
        unix::cli::main_of::<Args, _>(tasks::evaluation::hide_inapplicable_options, |args| {
            match args.command {
                Command::Score(args) => score::score(&args),
                Command::Predict(args) => predict::predict(&args),
                Command::Check(args) => tasks::check::check(&args),
                Command::Compare(args) => results::compare(&args),
                Command::Analyze(args) => results::analyze(&args),
                Command::Plot(args) => plot::plot(&args),
                Command::Export(args) => export::export(&args),
                Command::Gate(args) => results::gate(&args),
                Command::Leaderboard(command) => results::leaderboard(&command),
            }
        })
    })
}
