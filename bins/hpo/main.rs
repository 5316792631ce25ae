//! The command line of `hpo`. Commands that only read a study are in `report.rs`.

mod figures;
mod import;
mod importance;
mod manual;
mod plot;
mod refit;
mod report;
mod seeds;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand, ValueEnum};
use manual::MANUAL;
use serde_json::{Value, json};
use study::claim::Claim;
use study::record::{End, Ended, Record};
use study::worker::supervise::{VERB, supervise};
use study::worker::{Limits, Worker};
use study::{Study, ask};
use unix::budget::Budget;
use unix::cli::Output;
use unix::out::Out;
use unix::time::parse_duration;
use unix::{Error, Exit, Result};

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
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Create a study and check its parameters against the configuration keys of the task
    New {
        /// Folder of the study, created if missing
        #[arg(required_unless_present = "example")]
        study: Option<PathBuf>,
        /// Configuration file, see longhaul-study(5)
        #[arg(short, long, value_name = "FILE", required_unless_present = "example")]
        config: Option<PathBuf>,
        /// Print a small example configuration
        #[arg(long, conflicts_with_all = ["study", "config", "overrides"])]
        example: bool,
        /// Override a configuration key, e.g. -s trials=20
        #[arg(short = 's', long = "set", value_name = "KEY=VALUE")]
        overrides: Vec<String>,
        #[command(flatten)]
        output: Output,
    },
    /// Run trials one after another until none remain
    ///
    /// Interrupted trials are resumed first. Signals are forwarded to the running trial, which writes a checkpoint.
    Worker(WorkerArgs),
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
    Tell(TellArgs),
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
    Importance(importance::ImportanceArgs),
    /// Retry trials that failed, diverged or ran out of memory, or whose caller of ask is gone
    ///
    /// The next free worker or the next caller of ask runs them.
    Retry {
        /// Folder of the study
        study: PathBuf,
        /// Trial numbers; open trials of ask must be listed [default: all that failed, diverged or ran out of memory]
        trials: Vec<u64>,
        #[command(flatten)]
        output: Output,
    },
    /// Import trials of another study for the sampler of a round to learn from
    ///
    /// The sampler treats imported trials as if they had ended before the first trial of the round; they do not count
    /// as trials of this study. Trials that failed, lack a parameter or lie outside the search space are skipped with a
    /// warning. Importing a file again adds only new trials.
    Import(import::ImportArgs),
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

#[derive(clap::Args)]
struct WorkerArgs {
    /// Folder of the study
    study: PathBuf,
    /// Stop after this many trials have ended
    #[arg(long, value_name = "N")]
    trials: Option<u64>,
    /// Stop after this time, e.g. 4h, or earlier if the job ends earlier
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    time: Option<Duration>,
    /// Run only trials of this round
    #[arg(long, value_name = "NAME")]
    round: Option<String>,
    /// Exit with 75 instead of waiting while other workers run the remaining trials
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    output: Output,
}

#[derive(clap::Args)]
struct TellArgs {
    /// Folder of the study
    study: PathBuf,
    /// Number of the trial
    trial: u64,
    /// Value of the metric
    #[arg(allow_negative_numbers = true, required_unless_present = "state")]
    value: Option<f64>,
    /// Step of the value; without --step, the value is final
    #[arg(long, value_name = "N", conflicts_with_all = ["last", "state"])]
    step: Option<u64>,
    /// The value is final (the default without --step)
    #[arg(long = "final", conflicts_with = "state")]
    last: bool,
    /// End the trial without a value
    #[arg(long, conflicts_with = "value")]
    state: Option<State>,
    /// Error message to record with --state
    #[arg(long, requires = "state", value_name = "TEXT")]
    error: Option<String>,
    #[command(flatten)]
    output: Output,
}

#[derive(Clone, Copy, ValueEnum)]
#[value(rename_all = "snake_case")]
enum State {
    /// Ended by the pruner
    Pruned,
    /// The loss was NaN or infinite
    Diverged,
    /// Ran out of memory
    OutOfMemory,
    /// Failed with an error unrelated to the parameters
    Failed,
}

fn main() -> ExitCode {
    unix::cli::main_with_status(run)
}

fn run(args: Args) -> Result<ExitCode> {
    let done = match args.verb {
        Verb::New { study: Some(study), config: Some(config), overrides, output, .. } => {
            create(&study, &config, &overrides, Out::stdout(output))
        }
        Verb::New { output, .. } => {
            let example = include_bytes!("study.yaml");
            Out::stdout(output).raw(example).map(|()| Exit::Done)
        }
        Verb::Worker(args) => work(&args),
        Verb::Ask { study, output } => {
            let asked = ask::ask(&mut Study::open(&study)?)?;
            let text = serde_json::to_string(&asked).map_err(Error::bug)?;
            Out::stdout(output).item(&asked, text).map(|()| Exit::Done)
        }
        Verb::Tell(args) => tell(&args),
        Verb::Status { studies, watch, output } => report::status(&studies, watch, output),
        Verb::Trials(args) => report::trials(&args),
        Verb::Best(args) => report::best(&args),
        Verb::Retry { study, trials, output } => retry(&study, &trials, Out::stdout(output)),
        Verb::Import(args) => import::import(&args),
        Verb::Importance(args) => importance::importance(&args),
        Verb::Plot(args) => plot::plot(&args),
        Verb::Refit(args) => refit::refit(&args),
        Verb::Export(args) => report::export(&args),
        Verb::Supervise { parent, signal, folder, words } => {
            return supervise(parent, &signal, &folder, &words).map(ExitCode::from);
        }
    };
    done.map(ExitCode::from)
}

fn create(folder: &Path, config: &Path, overrides: &[String], out: Out) -> Result<Exit> {
    let study = Study::create(folder, config, overrides, schema)?;
    let rows = (0..study.rounds().len()).map(|round| {
        let own = &study.rounds()[round];
        let space = own.narrow.is_none().then(|| study.config().space(round).0.len());
        json!({"round": own.name, "trials": own.trials, "parameters": space})
    });
    out.rows(rows.collect::<Vec<_>>())
}

/// The configuration schema of a task.
fn schema(program: &str, task: &str) -> Result<Value> {
    let output = Command::new(program).args([task, "--schema"]).output();
    let output = output.map_err(|cause| Error::open(Path::new(program), cause))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let text = text.lines().next().unwrap_or_default();
        return Err(Error::config(format!("command: {program} {task} --schema failed: {text}")));
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|cause| Error::config(format!("command: {program} {task} --schema: {cause}")))
}

fn work(args: &WorkerArgs) -> Result<Exit> {
    let study = Study::open(&args.study)?;
    let round = args.round.as_ref().map(|name| study.round_named(name)).transpose()?;
    let left = Budget::from_environment(args.time).left();
    let end = left.and_then(|left| Instant::now().checked_add(left));
    let limits = Limits { trials: args.trials, end, round, wait: !args.no_wait };
    let mut worker = Worker::new(study, limits)?;
    let left = worker.run()?;
    let record = json!({"ended": worker.ended(), "left": left});
    let text = format!("{} trials ended, {left} remain", worker.ended());
    Out::stdout(args.output).item(&record, text)?;
    Ok(if left == 0 { Exit::Done } else { Exit::Again })
}

fn tell(args: &TellArgs) -> Result<Exit> {
    let mut study = Study::open(&args.study)?;
    let end = |state: State| match state {
        State::Pruned => End::Pruned,
        State::Diverged => End::Diverged,
        State::OutOfMemory => End::OutOfMemory,
        State::Failed => End::Failed,
    };
    let told = match (args.state, args.value, args.step) {
        (Some(state), ..) => {
            ask::Told::End(Ended { error: args.error.clone(), ..Ended::of(end(state)) })
        }
        (_, Some(value), Some(step)) => ask::Told::Step(step, value),
        (_, Some(value), None) => ask::Told::End(Ended::with(value)),
        (None, None, _) => return Err(Error::usage("give a value or --state")),
    };
    let prune = ask::tell(&mut study, args.trial, told)?;
    let record = json!({"trial": args.trial, "prune": prune});
    Out::stdout(args.output)
        .item(&record, if prune { "prune" } else { "continue" })
        .map(|()| Exit::Done)
}

/// Renames the run's log, so that the next attempt does not see values of earlier ones; train-stage does this itself.
fn set_log_aside(claim: &Claim) -> Result<()> {
    let log = claim.run()?.log();
    let attempts = claim.record.as_ref().map_or(0, |record| record.attempts);
    match log.exists() {
        true => std::fs::rename(&log, log.with_file_name(format!("log-{attempts}.jsonl")))
            .map_err(|cause| Error::io(&log, cause)),
        false => Ok(()),
    }
}

fn retry(folder: &Path, numbers: &[u64], out: Out) -> Result<Exit> {
    let study = Study::open(folder)?;
    let failed = |record: &Record| {
        let failed = [End::Failed, End::OutOfMemory, End::Diverged];
        record.end.as_ref().is_some_and(|end| failed.contains(&end.state))
    };
    let may_retry = |record: &Record| failed(record) || record.waits_for_caller();
    let all = study.records().values().filter(|record| failed(record)).map(|record| record.number);
    let numbers = if numbers.is_empty() { all.collect() } else { numbers.to_vec() };
    let mut rows = Vec::new();
    for number in numbers {
        if !study.records().get(&number).is_some_and(may_retry) {
            return Err(Error::usage(format!("trial {number} has not failed")));
        }
        // Before the retry is recorded, so that no process trusts the end of the trial in a snapshot.
        study.mark_retried(number)?;
        let Some(mut claim) = Claim::take(&study, number, &|| false)? else {
            return Err(Error::new(
                Exit::Again,
                format!("another process is working on trial {number}"),
            ));
        };
        if !claim.record.as_ref().is_some_and(may_retry) {
            continue;
        }
        if study.config().task().is_none() {
            set_log_aside(&claim)?;
        }
        claim.retry()?;
        rows.push(json!({"trial": number}));
    }
    out.rows(rows)
}
