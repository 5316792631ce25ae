//! The commands that only read a study: `status`, `trials`, `best`, `importance`, `export`.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser};
use serde_json::{Value, json};
use study::Study;
use study::record::Record;
use study::results::{csv, entry};
use study::summary::STATES;
use study::worker::command::nested;
use unix::cli::Output;
use unix::config::to_yaml;
use unix::out::Out;
use unix::publish::publish_bytes;
use unix::{Error, Exit, Result, text};

/// Refresh interval of `status --watch`.
const INTERVAL: Duration = Duration::from_secs(5);

/// The arguments of `hpo trials`.
#[derive(clap::Args)]
pub struct TrialsArgs {
    /// Folder of the study
    study: PathBuf,
    /// Only trials in this state
    #[arg(long, value_parser = states(&STATES))]
    state: Option<String>,
    /// Only trials of this round
    #[arg(long, value_name = "NAME")]
    round: Option<String>,
    /// Print only the trial numbers, in the format of sbatch --array
    #[arg(long)]
    ids: bool,
    #[command(flatten)]
    output: Output,
}

/// The arguments of `hpo best`.
#[derive(clap::Args)]
pub struct BestArgs {
    /// Folder of the study
    study: PathBuf,
    /// Round [default: the last one with a complete trial]
    #[arg(long, value_name = "NAME", conflicts_with = "trial")]
    round: Option<String>,
    /// Use this trial instead of the best one
    #[arg(long, value_name = "NUMBER")]
    trial: Option<u64>,
    /// Print a flat mapping from parameter names to values
    #[arg(long)]
    flat: bool,
    #[command(flatten)]
    output: Output,
}

/// The arguments of `hpo importance`.
#[derive(clap::Args)]
pub struct ImportanceArgs {
    /// Folder of the study
    study: PathBuf,
    /// Round [default: the last one with a complete trial]
    #[arg(long, value_name = "NAME")]
    round: Option<String>,
    #[command(flatten)]
    output: Output,
}

/// The arguments of `hpo export`.
#[derive(clap::Args)]
pub struct ExportArgs {
    /// Folder of the study
    study: PathBuf,
    /// Format
    #[arg(long)]
    format: Format,
    /// File to write; `-` for stdout
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    to: PathBuf,
    /// Overwrite an existing file
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    output: Output,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// A journal for Optuna and optuna-dashboard
    Optuna,
    /// A table with a column per parameter
    Csv,
    /// A list in the format of trials_history.json
    Json,
}

/// Returns a parser of states that lists them with their meanings.
pub fn states(all: &[(&'static str, &'static str)]) -> PossibleValuesParser {
    all.iter().map(|(name, meaning)| PossibleValue::new(*name).help(*meaning)).into()
}

/// Shows the progress of studies by round.
pub fn status(folders: &[PathBuf], watch: bool, output: Output) -> Result<Exit> {
    loop {
        let mut rows = Vec::new();
        for folder in folders {
            let study = Study::open(folder)?;
            let own = (0..study.rounds().len()).map(|round| study.progress(round));
            rows.extend(own.collect::<Result<Vec<_>>>()?);
        }
        let is_over = rows.iter().all(|row| row["left"] == 0);
        // Omit the columns of rare states that no trial is in.
        for name in ["asked", "diverged", "out_of_memory"] {
            if !output.json && rows.iter().all(|row| row[name] == 0) {
                let rows = rows.iter_mut().filter_map(Value::as_object_mut);
                rows.for_each(|row| _ = row.shift_remove(name));
            }
        }
        if watch && std::io::stdout().is_terminal() {
            print!("\x1b[H\x1b[2J");
        }
        Out::stdout(output).rows(rows)?;
        if !watch || is_over {
            return Ok(Exit::Done);
        }
        std::thread::sleep(INTERVAL);
    }
}

/// Lists trials.
pub fn trials(args: &TrialsArgs) -> Result<Exit> {
    let study = Study::open(&args.study)?;
    let round = args.round.as_ref().map(|name| study.round_named(name)).transpose()?;
    let sign = study.config().direction.sign();
    let (mut rows, mut numbers) = (Vec::new(), Vec::new());
    for record in study.records().values() {
        let state = study.state(record)?;
        let other_round = round.is_some_and(|round| study.round_of(record.number) != Some(round));
        if other_round || args.state.as_ref().is_some_and(|wanted| wanted != state) {
            continue;
        }
        numbers.push(record.number);
        let mut row = json!({
            "trial": record.number, "round": record.start.round, "state": state,
            "value": record.value().or(record.best(sign).map(|(_, value)| value)),
            "step": record.values.keys().next_back(), "attempts": record.attempts,
        });
        let params = &record.start.params;
        if args.output.json {
            row["params"] = json!(params);
        } else {
            for (name, value) in params {
                if row.get(name).is_none() {
                    row[name] = value.clone();
                }
            }
        }
        let end = record.end.as_ref();
        row["note"] = json!(end.map_or(record.stopped.as_ref(), |end| end.error.as_ref()));
        if let Some(batch) = end.and_then(|end| end.batch_size) {
            row["batch_size"] = batch.into();
        }
        rows.push(row);
    }
    if args.ids {
        // If there are no trials, print nothing, not even an empty line.
        let line = if numbers.is_empty() { String::new() } else { ranges(&numbers) + "\n" };
        return Out::stdout(args.output).raw(line.as_bytes()).map(|()| Exit::Done);
    }
    Out::stdout(args.output).rows(rows)
}

/// Formats numbers in ascending order as `0-3,7`.
fn ranges(numbers: &[u64]) -> String {
    let parts = numbers.chunk_by(|a, b| a + 1 == *b).map(|part| match part {
        [first, .., last] => format!("{first}-{last}"),
        part => part[0].to_string(),
    });
    parts.collect::<Vec<_>>().join(",")
}

/// Prints the parameters of the best trial.
pub fn best(args: &BestArgs) -> Result<Exit> {
    let study = Study::open(&args.study)?;
    let record = if let Some(number) = args.trial {
        let missing = || Error::usage(format!("trial {number} has not been started"));
        study.records().get(&number).ok_or_else(missing)?
    } else {
        let round = args.round.as_ref().map(|name| study.round_named(name)).transpose()?;
        let ranking = study.ranking(round.unwrap_or_else(|| study.last_complete()));
        ranking.first().copied().ok_or_else(|| Error::failure("no trial is complete yet"))?
    };
    let params = &record.start.params;
    let config = if args.flat { json!(params) } else { nested(study.config(), params) };
    let mut out = Out::stdout(args.output);
    match out.is_json() {
        true => out.row(&config)?,
        false => out.raw(to_yaml(&config)?.as_bytes())?,
    }
    Ok(Exit::Done)
}

/// Prints the importance of each parameter in descending order.
pub fn importance(args: &ImportanceArgs) -> Result<Exit> {
    let study = Study::open(&args.study)?;
    let round = match &args.round {
        Some(name) => study.round_named(name)?,
        None => study.last_complete(),
    };
    let found = study.importances(round)?.ok_or_else(|| {
        let name = &study.rounds()[round].name;
        let text = format!("round {name} has fewer than two complete trials");
        Error::new(Exit::NoInput, text)
    })?;
    let is_json = args.output.json;
    let shown = |share: f64| if is_json { json!(share) } else { json!(format!("{share:.4}")) };
    Out::stdout(args.output).rows(found.into_iter().map(|own| {
        json!({
            "parameter": own.parameter, "importance": shown(own.importance), "trials": own.trials,
        })
    }))
}

/// Exports the trials for other programs.
pub fn export(args: &ExportArgs) -> Result<Exit> {
    let study = Study::open(&args.study)?;
    let records: Vec<&Record> = study.records().values().collect();
    let bytes = match args.format {
        Format::Csv => csv(&records)?,
        Format::Json => {
            let entries: Vec<Value> = records.iter().map(|record| entry(record)).collect();
            text::json_pretty(&entries)?.into_bytes()
        }
        Format::Optuna => study::optuna::journal(&study)?,
    };
    if args.to.as_os_str() == "-" {
        return Out::stdout(Output::default()).raw(&bytes).map(|()| Exit::Done);
    }
    if args.to.exists() && !args.force {
        return Err(Error::create(&args.to, "it exists; choose another name or use --force"));
    }
    publish_bytes(&args.to, &bytes)?;
    let record = json!({"file": args.to, "trials": records.len()});
    let text = format!("{}: {} trials", args.to.display(), records.len());
    Out::stdout(args.output).item(&record, text).map(|()| Exit::Done)
}
