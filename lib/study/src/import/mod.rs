//! Imports trials of earlier studies, from which the sampler of a round learns.
//!
//! They are stored in `imported/NNNN.json`, one file per import, and are not trials of the study: they have no numbers,
//! so the round of a trial still follows from its number. Samplers treat them as trials that ended before the study's
//! first trial; pruners, narrowing and results ignore them.

mod journal;

use crate::config::{Direction, StudyConfig};
use crate::record::Outcome;
use crate::samplers::Sampler;
use crate::space::{Parameter, Space};
use crate::study::Study;
use crate::trial::{Point, Trial};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use unix::publish::{create_folder, publish_new};
use unix::{Error, Result, small, text, warn};

/// Maximum size of an imported file in bytes.
const MAX_BYTES: u64 = 1 << 30;

/// A trial of another study.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ImportedTrial {
    /// Parameters by name.
    pub params: BTreeMap<String, Value>,
    /// How the trial ended.
    pub state: Option<Outcome>,
    /// The final value.
    pub value: Option<f64>,
    /// Values of the metric by step; NaN is null.
    #[serde(default)]
    pub values: BTreeMap<u64, Option<f64>>,
}

/// The content of a file in `imported`.
#[derive(Serialize, Deserialize)]
struct Import {
    /// Name of the round whose sampler uses the trials.
    round: String,
    trials: Vec<ImportedTrial>,
}

/// The outcome of an import.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Imported {
    /// Number of trials added.
    pub imported: usize,
    /// Number of trials that had already been imported.
    pub known: usize,
    /// Number of trials skipped because they do not match the space.
    pub left_out: usize,
}

/// Imports the trials of a file for the sampler of a round. The file is an Optuna journal (`name` selects one of
/// several studies), or JSON or CSV written by `hpo export`. Trials outside the space are skipped with a warning.
///
/// Errors: 2 for a sampler that does not learn; 65 for an unknown format or the opposite direction; 66, 73, 74.
pub fn import(study: &Study, round: usize, file: &Path, name: Option<&str>) -> Result<Imported> {
    let own = &study.rounds()[round];
    if !matches!(study.config().sampler(own), Sampler::Tpe(_) | Sampler::Cma(_)) {
        let text = format!("the sampler of round {} does not learn from trials", own.name);
        return Err(Error::usage(text));
    }
    let Some(space) = study.space_of(round)? else {
        let text = format!(
            "the space of round {} is narrowed and unknown until the previous round has ended",
            own.name
        );
        return Err(Error::usage(text));
    };
    let found = read(study, file, name)?;
    let (names, config) = (&space.0, study.config());
    let is_known = |name: &&String| {
        names.contains_key(*name) || names.keys().any(|own| config.key(own) == name.as_str())
    };
    let given: BTreeSet<&String> = found.iter().flat_map(|former| former.params.keys()).collect();
    let others: Vec<&str> =
        given.into_iter().filter(|n| !is_known(n)).map(|n| n.as_str()).collect();
    if !others.is_empty() {
        let file = file.display();
        warn!(
            "{file}: ignoring parameters that round {} does not search: {}",
            own.name,
            others.join(", ")
        );
    }
    let (files, all) = (files(study)?, found.len());
    let earlier = files.iter().filter(|import| import.round == own.name);
    let earlier: Vec<&ImportedTrial> = earlier.flat_map(|import| &import.trials).collect();
    let (mut trials, mut known, mut reasons) = (Vec::new(), 0, BTreeMap::<String, usize>::new());
    for former in found {
        match restricted(config, &space, former) {
            Ok(restricted) if earlier.contains(&&restricted) => known += 1,
            Ok(restricted) => trials.push(restricted),
            Err(reason) => *reasons.entry(reason).or_default() += 1,
        }
    }
    let done = Imported { imported: trials.len(), known, left_out: reasons.values().sum() };
    if !reasons.is_empty() {
        let reasons = reasons.iter().map(|(reason, count)| format!("{count} {reason}"));
        let reasons = reasons.collect::<Vec<_>>().join(", ");
        warn!("{}: skipped {} of {all} trials: {reasons}", file.display(), done.left_out);
    }
    if !trials.is_empty() {
        let import = text::json_pretty(&Import { round: own.name.clone(), trials })?;
        let mut number = files.len();
        create_folder(&folder(study))?;
        while !publish_new(&folder(study).join(format!("{number:04}.json")), import.as_bytes())? {
            number += 1;
        }
    }
    Ok(done)
}

/// Returns the trials imported for the sampler of a round, numbered downwards from `u64::MAX`. Errors: 65, 66, 74.
pub fn imported(study: &Study, round: usize, space: &Space) -> Result<Vec<Trial>> {
    let sign = study.config().direction.sign();
    let number = |value: Option<f64>| value.map_or(f64::NAN, |value| sign * value);
    let files = files(study)?.into_iter();
    let own = files.filter(|import| import.round == study.rounds()[round].name);
    let trials = own.flat_map(|import| import.trials).enumerate().filter_map(|(at, own)| {
        let state = own.state?;
        Some(Trial {
            number: u64::MAX - at as u64,
            state: state.state(),
            point: space.point(&own.params),
            value: (state == Outcome::Complete).then(|| number(own.value)),
            intermediate: own.values.iter().map(|(step, value)| (*step, number(*value))).collect(),
        })
    });
    Ok(trials.collect())
}

fn folder(study: &Study) -> PathBuf {
    study.folder().join("imported")
}

/// Reads the imports in order of their numbers.
fn files(study: &Study) -> Result<Vec<Import>> {
    let folder = folder(study);
    if folder.symlink_metadata().is_err() {
        return Ok(Vec::new());
    }
    let entries = std::fs::read_dir(&folder).map_err(|cause| Error::open(&folder, cause))?;
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>();
    let mut paths = paths.map_err(|cause| Error::io(&folder, cause))?;
    let is_number = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.strip_suffix(".json").is_some_and(|stem| stem.parse::<u64>().is_ok())
    };
    paths.retain(is_number);
    paths.sort();
    let mut imports = Vec::new();
    for path in paths {
        let advice = "move it away and import the trials again";
        imports.extend(small::read_json::<Import>(&path, MAX_BYTES, advice)?);
    }
    Ok(imports)
}

/// Reads the ended trials of a file.
fn read(study: &Study, file: &Path, name: Option<&str>) -> Result<Vec<ImportedTrial>> {
    let wrong = |cause: String| Error::data(format!("{}: {cause}", file.display()));
    let bytes = small::read(file, MAX_BYTES)?;
    let text = std::str::from_utf8(&bytes).map_err(|cause| wrong(cause.to_string()))?;
    let mut trials = match text.trim_start().chars().next() {
        Some('{') => {
            let (trials, direction) = journal::read(text, name).map_err(wrong)?;
            if direction != study.config().direction {
                let word =
                    |direction| if direction == Direction::Minimize { "mini" } else { "maxi" };
                let (theirs, ours) = (word(direction), word(study.config().direction));
                return Err(wrong(format!(
                    "the imported study {theirs}mizes its metric, but this one {ours}mizes it"
                )));
            }
            trials
        }
        Some('[') => from_json(text).map_err(wrong)?,
        _ => from_csv(text).map_err(wrong)?,
    };
    trials.retain(|trial| trial.state.is_some());
    match trials.is_empty() {
        true => Err(wrong("none of its trials has ended".into())),
        false => Ok(trials),
    }
}

fn end(word: &str) -> Option<Outcome> {
    Outcome::named(word).or((word == "FAIL").then_some(Outcome::Failed))
}

/// Parses the format of trials_history.json.
fn from_json(text: &str) -> Result<Vec<ImportedTrial>, String> {
    let list: Vec<Value> = serde_json::from_str(text).map_err(|cause| cause.to_string())?;
    let former = |entry: Value| {
        let params = entry["params"].as_object();
        let params = params.ok_or("an entry has no params; expected JSON written by hpo export")?;
        Ok(ImportedTrial {
            params: params.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
            state: entry["state"].as_str().and_then(end),
            value: entry["value"].as_f64(),
            values: BTreeMap::new(),
        })
    };
    list.into_iter().map(former).collect()
}

/// Parses a table with the columns state and value, and a column per parameter.
fn from_csv(text: &str) -> Result<Vec<ImportedTrial>, String> {
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let header = reader.headers().map_err(|cause| cause.to_string())?.clone();
    let column = |name: &str| header.iter().position(|column| column == name);
    let (Some(state), Some(value)) = (column("state"), column("value")) else {
        return Err("neither an Optuna journal nor JSON or CSV written by hpo export".into());
    };
    let own = ["number", "round", "state", "value", "error"];
    let mut trials = Vec::new();
    for row in reader.records() {
        let row = row.map_err(|cause| cause.to_string())?;
        let cells =
            header.iter().zip(&row).filter(|(name, cell)| !own.contains(name) && !cell.is_empty());
        trials.push(ImportedTrial {
            params: cells.map(|(name, cell)| (name.to_string(), cell.into())).collect(),
            state: row.get(state).and_then(end),
            value: row.get(value).and_then(|cell| cell.parse().ok()),
            values: BTreeMap::new(),
        });
    }
    Ok(trials)
}

/// Restricts a trial to the parameters of the space. Errors: the reason why it cannot be restricted or has no value to
/// learn from.
fn restricted(
    config: &StudyConfig,
    space: &Space,
    former: ImportedTrial,
) -> Result<ImportedTrial, String> {
    let params = parameters(config, space, &former)?;
    let is_finite = former.value.is_some_and(f64::is_finite);
    match former.state {
        Some(Outcome::Failed) | None => Err("failed".into()),
        Some(Outcome::Complete) if !is_finite => Err("without a finite value".into()),
        _ => Ok(ImportedTrial { params, ..former }),
    }
}

/// Returns the values of the active parameters. Errors: the first parameter that is missing or outside the space.
fn parameters(
    config: &StudyConfig,
    space: &Space,
    former: &ImportedTrial,
) -> Result<BTreeMap<String, Value>, String> {
    let mut point = Point::new();
    for name in space.order().into_iter().filter(|name| space.0.contains_key(*name)) {
        if !space.is_active(name, &point) {
            continue;
        }
        let parameter = &space.0[name];
        let given = former.params.get(name).or_else(|| former.params.get(config.key(name)));
        let number = match given {
            Some(value) => {
                encode(parameter, value).ok_or_else(|| format!("with {name} outside the space"))?
            }
            // A parameter with a single value may have been fixed, and not recorded, in the other study.
            None => {
                let single = parameter.domain().values().filter(|_| parameter.domain().is_single());
                single
                    .and_then(|mut values| values.next())
                    .ok_or_else(|| format!("without {name}"))?
            }
        };
        point.insert(name.to_string(), number);
    }
    Ok(space.values(&point))
}

/// Encodes a value; a string may be the text form of a value, as in CSV.
fn encode(parameter: &Parameter, value: &Value) -> Option<f64> {
    let found = parameter.number(value).or_else(|| {
        let text = value.as_str()?;
        let is_same = |value: &Value| text == format!("{value}");
        match parameter {
            Parameter::Categorical { choices, .. } => {
                choices.iter().position(is_same).map(|i| i as f64)
            }
            Parameter::Fixed { value, .. } => is_same(value).then_some(0.0),
            _ => parameter.number(&Value::from(text.parse::<f64>().ok()?)),
        }
    })?;
    let is_int = matches!(parameter, Parameter::Int { .. });
    (!is_int || found.fract() == 0.0).then_some(found)
}
