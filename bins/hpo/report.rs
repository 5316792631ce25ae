//! The commands that only read a study: `status`, `trials`, `best`, `export`.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use serde_json::{Map, Value, json};
use study::Study;
use study::claim::is_at_work;
use study::record::{End, Record};
use study::results::{best_config, csv, entry};
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
    #[arg(long)]
    state: Option<TrialState>,
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

/// The state of a trial, see longhaul-study(5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum TrialState {
    /// A process is working on it
    Running,
    /// Interrupted; the next free worker resumes it
    Stopped,
    /// Started by ask; the caller runs it
    Asked,
    /// Has a final value
    Complete,
    /// Ended by the pruner
    Pruned,
    /// The loss was NaN or infinite
    Diverged,
    /// Ran out of memory
    OutOfMemory,
    /// Failed with an error unrelated to the parameters
    Failed,
}

impl TrialState {
    fn of(study: &Study, record: &Record) -> Result<Self> {
        Ok(match record.end.as_ref().map(|end| end.state) {
            Some(End::Complete) => Self::Complete,
            Some(End::Pruned) => Self::Pruned,
            Some(End::Diverged) => Self::Diverged,
            Some(End::OutOfMemory) => Self::OutOfMemory,
            Some(End::Failed) => Self::Failed,
            None if record.start.asked => Self::Asked,
            None if is_at_work(study, record.number)? => Self::Running,
            None => Self::Stopped,
        })
    }

    fn name(self) -> String {
        self.to_possible_value().map_or(String::new(), |value| value.get_name().into())
    }
}

/// Shows the progress of studies by round.
pub fn status(folders: &[PathBuf], watch: bool, output: Output) -> Result<Exit> {
    loop {
        let (mut rows, mut left) = (Vec::new(), 0);
        for folder in folders {
            let study = Study::open(folder)?;
            for round in 0..study.rounds().len() {
                let row = round_row(&study, round)?;
                left += row["left"].as_u64().unwrap_or(0);
                rows.push(row);
            }
        }
        if !output.json {
            drop_rare_states(&mut rows);
        }
        if watch && std::io::stdout().is_terminal() {
            print!("\x1b[H\x1b[2J");
        }
        Out::stdout(output).rows(rows)?;
        if !watch || left == 0 {
            return Ok(Exit::Done);
        }
        std::thread::sleep(INTERVAL);
    }
}

/// Drops the columns of rare states if no round has a trial in them.
fn drop_rare_states(rows: &mut [Map<String, Value>]) {
    for name in ["asked", "diverged", "out_of_memory"] {
        if rows.iter().all(|row| row[name] == 0) {
            rows.iter_mut().for_each(|row| _ = row.shift_remove(name));
        }
    }
}

fn round_row(study: &Study, round: usize) -> Result<Map<String, Value>> {
    let own = &study.rounds()[round];
    let first = study.first_of(round);
    let space = study.space_of(round)?;
    let all =
        space.as_ref().map_or(first..first + own.trials, |space| study.numbers_of(round, space));
    let states =
        study.records().range(all.clone()).map(|(_, record)| TrialState::of(study, record));
    let states = states.collect::<Result<Vec<TrialState>>>()?;
    let best = study.ranking(round).first().map(|record| (record.number, record.end.clone()));
    let count = all.end - all.start;
    let ended = study.records().range(all).filter(|(_, record)| record.has_ended()).count() as u64;
    let mut row = Map::new();
    row.insert("study".into(), study.name().into());
    row.insert("round".into(), own.name.clone().into());
    row.insert("trials".into(), count.into());
    for state in TrialState::value_variants() {
        row.insert(state.name(), states.iter().filter(|other| *other == state).count().into());
    }
    row.insert("left".into(), (count - ended).into());
    row.insert("best".into(), best.as_ref().and_then(|(_, end)| end.as_ref()?.value).into());
    row.insert("trial".into(), best.map(|(number, _)| number).into());
    Ok(row)
}

/// Lists trials.
pub fn trials(args: &TrialsArgs) -> Result<Exit> {
    let study = Study::open(&args.study)?;
    let round = args.round.as_ref().map(|name| study.round_named(name)).transpose()?;
    let sign = study.config().direction.sign();
    let (mut rows, mut numbers) = (Vec::new(), Vec::new());
    for record in study.records().values() {
        let state = TrialState::of(&study, record)?;
        let other_round = round.is_some_and(|round| study.round_of(record.number) != Some(round));
        if other_round || args.state.is_some_and(|wanted| wanted != state) {
            continue;
        }
        numbers.push(record.number);
        let best = record.best(sign);
        let end = record.end.as_ref();
        let value = end.and_then(|end| end.value).or(best.map(|(_, value)| value));
        let last = record.values.keys().next_back();
        let mut row = json!({
            "trial": record.number, "round": record.start.round, "state": state.name(), "value": value,
            "step": last, "attempts": record.attempts,
        });
        let note = end.map_or(record.stopped.clone(), |end| end.error.clone());
        if let Value::Object(fields) = &mut row {
            let params = record.start.params.iter();
            match Out::stdout(args.output).is_json() {
                true => _ = fields.insert("params".into(), json!(record.start.params)),
                false => params.for_each(|(name, value)| {
                    fields.entry(name.clone()).or_insert_with(|| value.clone());
                }),
            }
            fields.insert("note".into(), json!(note));
            if let Some(batch) = end.and_then(|end| end.batch_size) {
                fields.insert("batch_size".into(), batch.into());
            }
        }
        rows.push(row);
    }
    if args.ids {
        // Without trials, print nothing, not even an empty line.
        let line = if numbers.is_empty() { String::new() } else { ranges(&numbers) + "\n" };
        return Out::stdout(args.output).raw(line.as_bytes()).map(|()| Exit::Done);
    }
    Out::stdout(args.output).rows(rows)
}

/// Numbers in ascending order as `0-3,7`.
fn ranges(numbers: &[u64]) -> String {
    let mut parts: Vec<(u64, u64)> = Vec::new();
    for number in numbers {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == *number => *last = *number,
            _ => parts.push((*number, *number)),
        }
    }
    let part = |(first, last): &(u64, u64)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    parts.iter().map(part).collect::<Vec<_>>().join(",")
}

/// Prints the parameters of the best trial.
pub fn best(args: &BestArgs) -> Result<Exit> {
    let study = Study::open(&args.study)?;
    let rounds = match &args.round {
        Some(name) => vec![study.round_named(name)?],
        None => (0..study.rounds().len()).rev().collect(),
    };
    let record = match args.trial {
        Some(number) => study.records().get(&number),
        None => rounds.into_iter().find_map(|round| study.ranking(round).first().copied()),
    };
    let missing = || match args.trial {
        Some(number) => Error::usage(format!("trial {number} has not been started")),
        None => Error::failure("no trial is complete yet"),
    };
    let record = record.ok_or_else(missing)?;
    let config = best_config(&study, record, args.flat);
    let mut out = Out::stdout(args.output);
    match out.is_json() {
        true => out.row(&config)?,
        false => out.raw(to_yaml(&config)?.as_bytes())?,
    }
    Ok(Exit::Done)
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
