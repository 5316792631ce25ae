//! `hpo refit`: retrains the best configuration with several seeds, evaluates it on the test split and writes a report.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use study::Study;
use study::record::End;
use study::refit::Refit;
use study::worker::command::filled;
use study::worker::{Limits, Worker};
use unix::budget::Budget;
use unix::cli::Output;
use unix::lease::Lease;
use unix::out::Out;
use unix::publish::{create_folder, publish_bytes};
use unix::run_dir::RunDir;
use unix::signal::Signals;
use unix::time::parse_duration;
use unix::{Error, Exit, Result, note, small};

use crate::seeds::Results;

/// Maximum size of the output of a test in bytes.
const MAX_BYTES: u64 = 1 << 26;
/// Polling interval while a test, or another process that runs the tests, is running.
const POLL: Duration = Duration::from_millis(50);

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

/// The splits to train on.
#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
pub enum On {
    /// The training split
    Train,
    /// The training and validation splits; only the test split then measures the result
    #[value(name = "train+validation")]
    TrainValidation,
}

/// Trains, tests and reports; resumes without repeating completed steps.
pub fn refit(args: &RefitArgs) -> Result<Exit> {
    let search = Study::open(&args.study)?;
    let trial = match args.trial {
        Some(number) => search
            .records()
            .get(&number)
            .filter(|trial| trial.end.as_ref().is_some_and(|end| end.state == End::Complete))
            .ok_or_else(|| Error::usage(format!("trial {number} is not complete")))?,
        None => {
            let round = args.round.as_ref().map(|name| search.round_named(name)).transpose()?;
            search.winner(round)?
        }
    };
    let overrides = overrides(args)?;
    let folder = args.to.clone().unwrap_or_else(|| search.folder().join("refit"));
    let own = search.create_refit(&Refit { trial, seeds: args.seeds, overrides }, &folder)?;
    let left = Budget::from_environment(args.time).left();
    let end = left.and_then(|left| Instant::now().checked_add(left));
    let limits = Limits { trials: None, end, round: None, wait: true };
    let mut worker = Worker::new(own, limits)?;
    if worker.run()? > 0 {
        return Ok(Exit::Again);
    }
    let own = Study::open(&folder)?;
    for (number, record) in own.records() {
        let Some(end) = record.end.as_ref().filter(|end| end.state == End::Failed) else {
            continue;
        };
        return Err(Error::failure(format!(
            "trial {number} failed: {}; fix the cause, run `hpo retry {}`, then run this command again",
            end.error.as_deref().unwrap_or("no message"),
            own.folder().display()
        )));
    }
    let Some(_lease) = lease(&own, worker.signals(), end)? else { return Ok(Exit::Again) };
    let (mut validation, mut tests) = (Vec::new(), Vec::new());
    for record in own.records().values() {
        let value = record.end.as_ref().and_then(|end| end.value);
        validation.push(value.filter(|_| args.on == On::Train));
        let is_complete = record.end.as_ref().is_some_and(|end| end.state == End::Complete);
        let tested = match is_complete {
            true => test(&own, record.number, args.on, worker.signals(), end)?,
            false => Some(Map::new()),
        };
        let Some(tested) = tested else { return Ok(Exit::Again) };
        tests.push(tested);
    }
    let results = Results { search: &search, trial, refit: &own, on: args.on, validation, tests };
    let document = results.document()?;
    let text = document.markdown();
    publish_bytes(&own.folder().join("report.md"), text.as_bytes())?;
    publish_bytes(&own.folder().join("report.html"), document.html().as_bytes())?;
    note!("report: {}", own.folder().join("report.html").display());
    Out::stdout(args.output).rows(results.rows())
}

fn overrides(args: &RefitArgs) -> Result<BTreeMap<String, Value>> {
    let parse = |text: &String| {
        let wrong = || Error::usage(format!("-s {text}: expected KEY=VALUE"));
        let (key, value) = text.split_once('=').ok_or_else(wrong)?;
        let value = serde_yaml::from_str(value).map_err(|_| wrong())?;
        Ok((key.to_string(), value))
    };
    let mut all: BTreeMap<String, Value> =
        args.overrides.iter().map(parse).collect::<Result<_>>()?;
    if args.on == On::TrainValidation {
        all.insert("data.train_on".into(), "train+validation".into());
    }
    Ok(all)
}

/// Waits until no other process is testing or reporting; `None` if this one must stop.
fn lease(own: &Study, signals: Signals, end: Option<Instant>) -> Result<Option<Lease>> {
    let folder = own.folder().join("lease");
    loop {
        let must_stop = || must_stop(signals, end);
        match Lease::take(&folder, || Ok(1), &must_stop) {
            Err(error) if error.exit == Exit::Again && !must_stop() => std::thread::sleep(POLL),
            Err(error) if error.exit == Exit::Again => return Ok(None),
            lease => return lease.map(Some),
        }
    }
}

fn must_stop(signals: Signals, end: Option<Instant>) -> bool {
    signals.stop_requested().is_some() || end.is_some_and(|end| Instant::now() >= end)
}

/// The results of a trial's test, which is run if it has not completed; `None` if this process must stop.
fn test(
    own: &Study,
    number: u64,
    on: On,
    signals: Signals,
    end: Option<Instant>,
) -> Result<Option<Map<String, Value>>> {
    let run = RunDir::open(&own.trial_folder(number))?;
    let Some(command) = test_command(own, &run) else { return Ok(Some(Map::new())) };
    let folder = own.folder().join("test");
    let output = folder.join(format!("{number:05}"));
    let done = output.with_extension("jsonl");
    if !done.exists() {
        create_folder(&folder)?;
        if output.exists() {
            // Left by an interrupted test.
            std::fs::remove_dir_all(&output).map_err(|cause| Error::io(&output, cause))?;
        }
        let model = match on {
            On::Train => run.path().to_path_buf(),
            // Not the best checkpoint: it was selected on data that the model was trained on.
            On::TrainValidation => run.path().join("ckpt/latest"),
        };
        let placeholders = [("run", &model), ("output", &output)];
        let placeholders =
            placeholders.map(|(name, path)| (name.to_string(), path.display().to_string()));
        let placeholders = BTreeMap::from(placeholders);
        let words: Vec<String> = command.iter().map(|word| filled(word, &placeholders)).collect();
        let part = done.with_extension("part");
        if !run_test(&words, own.config().directory.as_deref(), &part, signals, end)? {
            return Ok(None);
        }
        numbers(&part)?;
        std::fs::rename(&part, &done).map_err(|cause| Error::io(&done, cause))?;
    }
    numbers(&done).map(Some)
}

/// The configured test command, or `evaluate score` for a task with data.split or data.tokens.
fn test_command(own: &Study, run: &RunDir) -> Option<Vec<String>> {
    if let Some(command) = &own.config().test {
        return Some(command.clone());
    }
    own.config().task()?;
    let config = run.read_config().ok()?;
    let data = &config["data"];
    let data = data["split"].as_str().or_else(|| data["tokens"].as_str())?;
    // In the folder of train-stage, if the command gives one.
    let folder = own.config().command[0].strip_suffix("train-stage")?;
    let words = ["score", "{run}", "--data", data, "-o", "{output}", "--json"];
    let program = format!("{folder}evaluate");
    Some(std::iter::once(program.as_str()).chain(words).map(String::from).collect())
}

/// Runs a test, writing stdout to a file; false if stopped. Errors: 66 if the program is missing; 1 if it fails.
fn run_test(
    words: &[String],
    directory: Option<&Path>,
    to: &Path,
    signals: Signals,
    end: Option<Instant>,
) -> Result<bool> {
    let (program, arguments) = words.split_first().ok_or_else(|| Error::usage("no command"))?;
    let file = File::create(to).map_err(|cause| Error::create(to, cause))?;
    let mut command = Command::new(program);
    command.args(arguments).current_dir(directory.unwrap_or(Path::new(".")));
    let child = command.stdin(Stdio::null()).stdout(file).spawn();
    let mut child = child.map_err(|cause| Error::open(Path::new(program), cause))?;
    let wait = |cause| Error::failure(format!("wait: {cause}"));
    loop {
        if let Some(status) = child.try_wait().map_err(wait)? {
            return match status.success() {
                true => Ok(true),
                false if must_stop(signals, end) => Ok(false),
                false => Err(Error::failure(format!("`{}` failed: {status}", words.join(" ")))),
            };
        }
        if must_stop(signals, end) {
            // A test has no checkpoint; it will be restarted from scratch.
            child.kill().and_then(|()| child.wait()).map_err(wait)?;
            return Ok(false);
        }
        std::thread::sleep(POLL);
    }
}

/// The numbers in the last line of a test's output. Errors: 65.
fn numbers(path: &Path) -> Result<Map<String, Value>> {
    let bytes = small::read(path, MAX_BYTES)?;
    let text = String::from_utf8_lossy(&bytes);
    let last = text.lines().rev().find(|line| !line.trim().is_empty());
    let found = last.and_then(|line| serde_json::from_str::<Map<String, Value>>(line).ok());
    let found = found.ok_or_else(|| {
        let text = "the last line of the test's output is not a JSON object";
        Error::data(format!("{}: {text}", path.display()))
    })?;
    Ok(found.into_iter().filter(|(_, value)| value.is_number()).collect())
}
