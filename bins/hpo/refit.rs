//! `hpo refit`: retrains the best configuration with several seeds, evaluates it on the test split and writes a report.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use study::Study;
use study::refit::{On, Refit};
use unix::budget::Budget;
use unix::cli::Output;
use unix::out::Out;
use unix::publish::publish_bytes;
use unix::time::parse_duration;
use unix::{Error, Exit, Result, note};

/// The arguments of `hpo refit`.
#[derive(clap::Args)]
pub struct RefitArgs {
    /// Folder of the study
    study: PathBuf,
    /// Number of seeds
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// Splits to train on; train+validation requires a task with the key data.train_on
    #[arg(long, default_value = "train")]
    on: On,
    /// Round whose best trial is retrained [default: the last one]
    #[arg(long, value_name = "NAME", conflicts_with = "trial")]
    round: Option<String>,
    /// Retrain this trial instead of the best one
    #[arg(long, value_name = "NUMBER")]
    trial: Option<u64>,
    /// Override a configuration key of the trial or its round's fidelity, e.g. -s training.updates=5000
    #[arg(short = 's', long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Folder of the refit [default: STUDY/refit]
    #[arg(short = 'o', long = "output", value_name = "DIR")]
    to: Option<PathBuf>,
    /// Stop after this time, e.g. 4h, or earlier if the job ends earlier
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    time: Option<Duration>,
    #[command(flatten)]
    output: Output,
}

/// Trains and tests the seeds and writes the report; resumes without repeating completed steps.
pub fn refit(args: &RefitArgs) -> Result<Exit> {
    let search = Study::open(&args.study)?;
    let round = args.round.as_ref().map(|name| search.round_named(name)).transpose()?;
    let refit = Refit {
        search: &search,
        trial: search.winner(args.trial, round)?,
        seeds: args.seeds,
        on: args.on,
        overrides: args.overrides.iter().map(parsed).collect::<Result<BTreeMap<_, _>>>()?,
    };
    let folder = args.to.clone().unwrap_or_else(|| search.folder().join("refit"));
    let end = Budget::from_environment(args.time).end().map(|end| end.at);
    let Some(results) = refit.run(&folder, end)? else { return Ok(Exit::Again) };
    let document = results.document()?;
    let folder = results.refit.folder();
    publish_bytes(&folder.join("report.md"), document.markdown().as_bytes())?;
    publish_bytes(&folder.join("report.html"), document.html().as_bytes())?;
    note!("report: {}", folder.join("report.html").display());
    Out::stdout(args.output).rows(results.rows())
}

fn parsed(text: &String) -> Result<(String, Value)> {
    let wrong = || Error::usage(format!("-s {text}: expected KEY=VALUE"));
    let (key, value) = text.split_once('=').ok_or_else(wrong)?;
    Ok((key.to_string(), serde_yaml::from_str(value).map_err(|_| wrong())?))
}
