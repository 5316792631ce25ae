//! The commands that run trials and record their values: `new`, `worker`, `ask`, `tell`, `retry`,
//! `import`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;
use study::record::{EndRecord, Outcome};
use study::summary::STATES;
use study::worker::{Limits, Worker};
use study::{Study, ask, import};
use unix::budget::Budget;
use unix::cli::Output;
use unix::out::Out;
use unix::time::parse_duration;
use unix::{Error, Exit, Result};

use crate::report::states;

/// The arguments of `hpo new`.
#[derive(clap::Args)]
pub struct NewArgs {
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
}

/// The arguments of `hpo worker`.
#[derive(clap::Args)]
pub struct WorkerArgs {
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

/// The arguments of `hpo tell`.
#[derive(clap::Args)]
pub struct TellArgs {
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
    #[arg(long, conflicts_with = "value", value_parser = states(&STATES[4..]))]
    state: Option<String>,
    /// Error message to record with --state
    #[arg(long, requires = "state", value_name = "TEXT")]
    error: Option<String>,
    #[command(flatten)]
    output: Output,
}

/// The arguments of `hpo import`.
#[derive(clap::Args)]
pub struct ImportArgs {
    /// Folder of the study
    study: PathBuf,
    /// Journal of Optuna's JournalFileBackend, or JSON or CSV written by `hpo export`
    file: PathBuf,
    /// Round whose sampler learns from the trials [default: the first]
    #[arg(long, value_name = "NAME")]
    round: Option<String>,
    /// Name of the study, if an Optuna journal contains several
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    #[command(flatten)]
    output: Output,
}

/// Creates a study, or prints an example configuration.
pub fn new(args: &NewArgs) -> Result<Exit> {
    let mut out = Out::stdout(args.output);
    let (Some(folder), Some(config)) = (&args.study, &args.config) else {
        return out.raw(include_bytes!("study.yaml")).map(|()| Exit::Done);
    };
    let study = Study::create(folder, config, &args.overrides)?;
    out.rows(study.rounds().iter().enumerate().map(|(round, own)| {
        let space = own.narrow.is_none().then(|| study.config().space(round).0.len());
        json!({"round": own.name, "trials": own.trials, "parameters": space})
    }))
}

/// Runs trials until none remain.
pub fn work(args: &WorkerArgs) -> Result<Exit> {
    let study = Study::open(&args.study)?;
    let round = args.round.as_ref().map(|name| study.round_named(name)).transpose()?;
    let end = Budget::from_environment(args.time).end().map(|end| end.at);
    let limits = Limits { trials: args.trials, end, round, wait: !args.no_wait };
    let mut worker = Worker::new(study, limits)?;
    let left = worker.run()?;
    let record = json!({"ended": worker.ended(), "left": left});
    let text = format!("{} trials ended, {left} remain", worker.ended());
    Out::stdout(args.output).item(&record, text)?;
    Ok(if left == 0 { Exit::Done } else { Exit::Again })
}

/// Starts a trial that another program runs.
pub fn ask(study: &Path, output: Output) -> Result<Exit> {
    let asked = ask::ask(&mut Study::open(study)?)?;
    let text = serde_json::to_string(&asked).map_err(Error::bug)?;
    Out::stdout(output).item(&asked, text).map(|()| Exit::Done)
}

/// Records a value or the end of a trial.
pub fn tell(args: &TellArgs) -> Result<Exit> {
    let state = args.state.as_deref().and_then(Outcome::named);
    let told = match (state, args.value, args.step) {
        (Some(state), ..) => {
            ask::Told::End(EndRecord { error: args.error.clone(), ..EndRecord::of(state) })
        }
        (_, Some(value), Some(step)) => ask::Told::Step(step, value),
        (_, Some(value), None) => ask::Told::End(EndRecord::with(value)),
        (None, None, _) => return Err(Error::usage("give a value or --state")),
    };
    let prune = ask::tell(&mut Study::open(&args.study)?, args.trial, told)?;
    let record = json!({"trial": args.trial, "prune": prune});
    let text = if prune { "prune" } else { "continue" };
    Out::stdout(args.output).item(&record, text).map(|()| Exit::Done)
}

/// Reopens trials so that they are run again.
pub fn retry(study: &Path, trials: &[u64], output: Output) -> Result<Exit> {
    let retried = Study::open(study)?.retry(trials)?;
    Out::stdout(output).rows(retried.into_iter().map(|number| json!({"trial": number})))
}

/// Imports trials of another study into the history of a round's sampler.
pub fn import(args: &ImportArgs) -> Result<Exit> {
    let study = Study::open(&args.study)?;
    let round = args.round.as_ref().map_or(Ok(0), |name| study.round_named(name))?;
    let done = import::import(&study, round, &args.file, args.name.as_deref())?;
    let text = format!(
        "{} trials imported, {} already known, {} skipped",
        done.imported, done.known, done.left_out
    );
    Out::stdout(args.output).item(&done, text).map(|()| Exit::Done)
}
