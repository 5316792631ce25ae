//! `evaluate score`: scores a trained model on unseen data.

use std::path::PathBuf;

use data::split::SplitName;
use learn::evaluate::{Results, ScoreJob, refuse_earlier};
use learn::trained::Parts;
use serde_json::{Map, Value};
use tasks::ModelArgs;
use tasks::evaluation::{ScoreCommand, ScoreRequest, TaskOptions, entry};
use unix::cli::Output;
use unix::out::Out;
use unix::signal::Signals;
use unix::work::{self, Task, Work};
use unix::{Exit, Result, diagnostics};

/// The arguments of `evaluate score`.
#[derive(clap::Args)]
pub struct Score {
    #[command(flatten)]
    model: ModelArgs,
    /// Split manifest of ds-prep split; for a text model, a folder written by ds-prep tokenize
    #[arg(long, value_name = "DATA")]
    data: PathBuf,
    /// Split
    #[arg(long, value_name = "NAME", default_value_t = SplitName::Test)]
    split: SplitName,
    /// Show so many of the samples with the largest losses in worst.html; 0 for none [default: depends on the task]
    #[arg(long, value_name = "N")]
    worst: Option<usize>,
    /// Folder for metrics.json, metrics.csv, losses.csv and the other files
    #[arg(short = 'o', long = "output", value_name = "DIR")]
    to: PathBuf,
    /// Also write a summary to a JSON file: for fields, the errors by parameter value; otherwise a copy of metrics.json
    #[arg(long, value_name = "FILE")]
    summary: Option<PathBuf>,
    /// Overwrite an earlier result
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    options: TaskOptions<ScoreCommand>,
    #[command(flatten)]
    output: Output,
}

/// Advice when every attempt was interrupted before it stored anything.
const ADVICE: &str =
    "give its job a longer time limit (sbatch --time), or choose fewer --steps, then run it again";

/// Scores a model, and prints the table.
pub fn score(args: &Score) -> Result<Exit> {
    let signals = Signals::install()?;
    let ranks = dist::open(|| Exit::Again)?;
    let run = |work: Option<&mut Work>| {
        let opener = args.model.opener_of(&*ranks)?;
        let parts = Parts::read(args.model.run(), opener.weights)?;
        let entry = entry(&parts)?;
        let (data, split, options) = (&*args.data, args.split, args.options.of(entry)?);
        let request = ScoreRequest { parts: &parts, opener: &opener, data, split, options };
        let (summary, worst) = (args.summary.as_ref(), args.worst);
        let (folder, amp) = (&*args.to, opener.mode.amp);
        let job = ScoreJob { folder, summary, ranks: &*ranks, signals, worst, amp };
        (entry.score.open)(&request)?.run(&job, work)
    };
    let reported = || {
        if ranks.rank() > 0 {
            return run(None);
        }
        if !args.force {
            refuse_earlier(&args.to, args.summary.as_ref())?;
        }
        let task = Task { folder: &args.to, task: "evaluation", advice: ADVICE };
        work::run(task, signals, |work| run(Some(work)))
    };
    let results = reported().map_err(|error| ranks.abort(error))?;
    ranks.close()?;
    results.map_or(Ok(Exit::Done), |results| print(results, args.output))
}

fn print(results: Results, output: Output) -> Result<Exit> {
    let Results { mut rows, failed, .. } = results;
    if failed.is_some() && !output.json {
        // Values that are not finite are null in JSON, which a table would leave blank.
        let values = rows.iter_mut().filter_map(Value::as_object_mut).flat_map(Map::values_mut);
        values.filter(|value| value.is_null()).for_each(|value| *value = "NaN".into());
    }
    Out::stdout(output).rows(rows)?;
    Ok(failed.map_or(Exit::Done, |failed| {
        diagnostics::say(format_args!("failed: {failed}"));
        Exit::Failure
    }))
}
