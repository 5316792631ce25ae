//! Retrains the best configuration of a study with new seeds and evaluates it on the test split. A refit is itself a
//! study, with fixed parameters.

use crate::config::{Round, StudyConfig};
use crate::pruners::Pruner;
use crate::record::{Outcome, Record};
use crate::refit_report::Results;
use crate::samplers::Sampler;
use crate::space::{Parameter, Space};
use crate::study::Study;
use crate::worker::command::filled;
use crate::worker::{Limits, Worker};
use clap::ValueEnum;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use unix::lease::Lease;
use unix::publish::create_folder;
use unix::run_dir::RunDir;
use unix::{Error, Exit, Result, small};

/// Maximum size of a task's schema, and of the output of a test, in bytes.
const MAX_BYTES: u64 = 1 << 26;
/// Polling interval while a test, or another process that runs tests, is running.
const POLL: Duration = Duration::from_millis(50);

/// Settings of a refit.
pub struct Refit<'a> {
    /// The study that the trial belongs to.
    pub search: &'a Study,
    /// The trial whose configuration is retrained.
    pub trial: &'a Record,
    /// Number of seeds.
    pub seeds: u64,
    /// The splits to train on.
    pub on: On,
    /// Configuration keys that override the trial's, with their values.
    pub overrides: BTreeMap<String, Value>,
}

/// The splits to train on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum On {
    /// The training split
    Train,
    /// The training and validation splits; only the test split then measures the result
    #[value(name = "train+validation")]
    TrainValidation,
}

impl Study {
    /// Returns the complete trial with this number, by default the best trial of a round, by default of the last round.
    /// Errors: 2 if the trial is not complete; 75 if the round has not ended; 1 if it has no complete trial.
    pub fn winner(&self, number: Option<u64>, round: Option<usize>) -> Result<&Record> {
        if let Some(number) = number {
            let found = self.records().get(&number).filter(|trial| trial.is(Outcome::Complete));
            return found.ok_or_else(|| Error::usage(format!("trial {number} is not complete")));
        }
        let round = round.unwrap_or(self.rounds().len() - 1);
        let name = &self.rounds()[round].name;
        let space = self.space_of(round)?;
        if !space.is_some_and(|space| self.has_ended(round, &space)) {
            let text = format!("round {name} has not ended; run workers, or choose a trial");
            return Err(Error::new(Exit::Again, text));
        }
        let best = self.ranking(round).first().copied();
        best.ok_or_else(|| Error::failure(format!("no trial of round {name} is complete")))
    }

    /// Returns the other complete trials in the round of `trial` that are worse by at most `margin`, the best first.
    pub(crate) fn within(&self, trial: &Record, margin: f64) -> Vec<&Record> {
        let sign = self.config().direction.sign();
        let value = |record: &Record| record.value().map(|value| sign * value);
        let Some(limit) = value(trial).map(|value| value + margin) else { return Vec::new() };
        let ranking = self.ranking(self.round_of(trial.number).unwrap_or(0)).into_iter();
        let others = ranking.filter(|record| record.number != trial.number);
        others.filter(|record| value(record).is_some_and(|value| value <= limit)).collect()
    }
}

impl<'a> Refit<'a> {
    /// Trains and tests every seed in the study `folder` until `end`; completed steps are not repeated. Returns `None`
    /// if it must be run again. Errors: 1 if a seed or a test fails; 65 if the output of a test does
    /// not end in a JSON object; those of [`Study::create`].
    pub fn run(self, folder: &Path, end: Option<Instant>) -> Result<Option<Results<'a>>> {
        let limits = Limits { trials: None, end, round: None, wait: true };
        let mut worker = Worker::new(self.create(folder)?, limits)?;
        if worker.run()? > 0 {
            return Ok(None);
        }
        let own = Study::open(folder)?;
        for (number, record) in own.records() {
            if let Some(end) = record.end.as_ref().filter(|end| end.state == Outcome::Failed) {
                return Err(Error::failure(format!(
                    "trial {number} failed: {}; fix the cause, run `hpo retry {}`, then run this command again",
                    end.error.as_deref().unwrap_or("no message"),
                    own.folder().display()
                )));
            }
        }
        let signals = worker.signals();
        let stop =
            || signals.stop_requested().is_some() || end.is_some_and(|end| Instant::now() >= end);
        let Some(_lease) = lease(&own, &stop)? else { return Ok(None) };
        let (mut validation, mut tests) = (Vec::new(), Vec::new());
        for record in own.records().values() {
            validation.push(record.value().filter(|_| self.on == On::Train));
            tests.push(match record.is(Outcome::Complete) {
                true => match self.test(&own, record.number, &stop)? {
                    Some(found) => found,
                    None => return Ok(None),
                },
                false => Map::new(),
            });
        }
        let Self { search, trial, on, .. } = self;
        Ok(Some(Results { search, trial, refit: own, on, validation, tests }))
    }

    /// Creates the study of the refit in `folder`, or opens it if it exists. Its seeds follow the seeds of the search:
    /// the best trial was selected partly because of its seed, so reusing that seed would bias the result.
    fn create(&self, folder: &Path) -> Result<Study> {
        let (search, config) = (self.search, self.search.config());
        let mut overrides = self.overrides.clone();
        if self.on == On::TrainValidation {
            overrides.insert("data.train_on".into(), "train+validation".into());
        }
        let round = search.round_of(self.trial.number).unwrap_or(0);
        let overridden = |name: &str| {
            let key = config.key(name);
            overrides.keys().any(|other| config.key(other) == key)
        };
        let mut values = search.rounds()[round].fidelity.clone();
        values.extend(self.trial.start.params.clone());
        values.retain(|name, _| !overridden(name));
        values.extend(overrides);
        let fixed = |value: Value| Parameter::Fixed { value, when: BTreeMap::new() };
        let space = values.into_iter().map(|(name, value)| (name, fixed(value))).collect();
        let trials: u64 = search.rounds().iter().map(|round| round.trials).sum();
        let config = StudyConfig {
            name: Some(format!("{}, refit", search.name())),
            seed: config.seed.wrapping_add(trials),
            space: Space(space),
            sampler: Sampler::Random,
            pruner: Pruner::None,
            trials: None,
            rounds: vec![Round { name: "refit".into(), trials: self.seeds, ..Round::default() }],
            ..config.clone()
        };
        let schema = search.folder().join("schema.json");
        let advice = "copy it from another study of this task";
        let schema = small::read_json::<Value>(&schema, MAX_BYTES, advice)?;
        Study::create_with(folder, config, schema, "the configuration of the refit")
    }

    /// Returns the results of a trial's test, running it if it has not completed; `None` if this process must stop.
    fn test(
        &self,
        own: &Study,
        number: u64,
        stop: &dyn Fn() -> bool,
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
            let model = match self.on {
                On::Train => run.path().to_path_buf(),
                // Not the best checkpoint: it was selected on data that the model was trained on.
                On::TrainValidation => run.path().join("ckpt/latest"),
            };
            let paths = [("run", &model), ("output", &output)];
            let paths = paths.map(|(name, path)| (name.to_string(), path.display().to_string()));
            let paths = BTreeMap::from(paths);
            let words: Vec<String> = command.iter().map(|word| filled(word, &paths)).collect();
            let part = done.with_extension("part");
            if !run_test(&words, own.config().directory.as_deref(), &part, stop)? {
                return Ok(None);
            }
            parse_test_output(&part)?;
            std::fs::rename(&part, &done).map_err(|cause| Error::io(&done, cause))?;
        }
        parse_test_output(&done).map(Some)
    }
}

/// Waits until no other process is testing or reporting; `None` if this process must stop.
fn lease(own: &Study, stop: &dyn Fn() -> bool) -> Result<Option<Lease>> {
    loop {
        match Lease::take(&own.folder().join("lease"), || Ok(1), stop) {
            Err(error) if error.exit == Exit::Again && !stop() => sleep(POLL),
            Err(error) if error.exit == Exit::Again => return Ok(None),
            lease => return lease.map(Some),
        }
    }
}

/// Returns the configured test command, or `evaluate score` for a task with data.split or data.tokens.
fn test_command(own: &Study, run: &RunDir) -> Option<Vec<String>> {
    if let Some(command) = &own.config().test {
        return Some(command.clone());
    }
    own.config().task()?;
    let config = run.read_config().ok()?;
    let data = &config["data"];
    let data = data["split"].as_str().or_else(|| data["tokens"].as_str())?;
    // `evaluate` is in the folder of train-stage, if the command gives one.
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
    stop: &dyn Fn() -> bool,
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
                false if stop() => Ok(false),
                false => Err(Error::failure(format!("`{}` failed: {status}", words.join(" ")))),
            };
        }
        if stop() {
            // A test has no checkpoint, so it will be restarted from scratch.
            child.kill().and_then(|()| child.wait()).map_err(wait)?;
            return Ok(false);
        }
        sleep(POLL);
    }
}

/// Parses the numbers in the last line of a test's output. Errors: 65.
fn parse_test_output(path: &Path) -> Result<Map<String, Value>> {
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

/// Mean and spread over seeds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Number of seeds.
    pub count: usize,
    /// Mean.
    pub mean: f64,
    /// Sample standard deviation (n - 1); `None` for a single seed.
    pub std: Option<f64>,
    /// Minimum.
    pub low: f64,
    /// Maximum.
    pub high: f64,
}

impl Spread {
    /// Computes mean and spread; `None` without values.
    pub(crate) fn of(values: &[f64]) -> Option<Self> {
        let count = values.len();
        let mean = values.iter().sum::<f64>() / count as f64;
        let squares = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
        (count > 0).then(|| Self {
            count,
            mean,
            std: (count > 1).then(|| (squares / (count - 1) as f64).sqrt()),
            low: values.iter().copied().fold(f64::INFINITY, f64::min),
            high: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_of_known_values() {
        let found = Spread::of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).unwrap();
        assert_eq!((found.count, found.mean, found.low, found.high), (8, 5.0, 2.0, 9.0));
        // The squared deviations sum to 32.
        assert!((found.std.unwrap() - (32.0_f64 / 7.0).sqrt()).abs() < 1e-15);
        assert_eq!(Spread::of(&[3.0]).unwrap().std, None);
        assert_eq!(Spread::of(&[]), None);
    }
}
