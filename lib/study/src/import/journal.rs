//! Reads trials from a journal of Optuna's `JournalFileBackend`: one operation per line, with the operation codes and
//! field names of optuna.storages.journal.

use super::ImportedTrial;
use crate::config::Direction;
use crate::record::Outcome;
use serde_json::Value;

const CREATE_STUDY: u64 = 0;
const DELETE_STUDY: u64 = 1;
const CREATE_TRIAL: u64 = 4;
const SET_PARAM: u64 = 5;
const SET_STATE: u64 = 6;
const SET_INTERMEDIATE: u64 = 7;
const DISCARD_TRIALS: u64 = 10;

/// A study in the journal.
struct JournalStudy {
    name: String,
    directions: Vec<u64>,
    is_deleted: bool,
}

/// Returns the trials and the direction of the study `name`, or of the only study. Errors: a description of the
/// problem.
pub fn read(journal: &str, name: Option<&str>) -> Result<(Vec<ImportedTrial>, Direction), String> {
    let mut studies: Vec<JournalStudy> = Vec::new();
    // Each trial with the id of its study; the index is the trial's id.
    let mut trials: Vec<(u64, ImportedTrial)> = Vec::new();
    let lines: Vec<&str> = journal.lines().collect();
    for (at, line) in lines.iter().enumerate() {
        let record = match parse(line) {
            Some(record) => record,
            None if at + 1 == lines.len() => {
                return Err(format!(
                    "line {} is incomplete: the journal is truncated or being written; import a complete copy",
                    at + 1
                ));
            }
            None => {
                return Err(format!("line {} is not an operation of an Optuna journal", at + 1));
            }
        };
        let number = |key: &str| record[key].as_u64();
        let text = |key: &str| record[key].as_str().unwrap_or_default();
        let study = number("study_id").unwrap_or(u64::MAX);
        let exists = studies.get(study as usize).is_some_and(|found| !found.is_deleted);
        let trial = number("trial_id").and_then(|id| trials.get_mut(id as usize));
        // Ended trials are immutable.
        let trial = trial.map(|(_, own)| own).filter(|own| own.state.is_none());
        match (number("op_code"), trial) {
            (Some(CREATE_STUDY), _) => {
                let name = text("study_name");
                let directions = record["directions"].as_array().into_iter().flatten();
                let directions = directions.filter_map(Value::as_u64).collect();
                if !studies.iter().any(|found| found.name == name && !found.is_deleted) {
                    studies.push(JournalStudy { name: name.into(), directions, is_deleted: false });
                }
            }
            (Some(DELETE_STUDY), _) if exists => studies[study as usize].is_deleted = true,
            (Some(CREATE_TRIAL), _) if exists => trials.push((study, new_trial(&record))),
            (Some(SET_PARAM), Some(own)) => {
                let value = external(&record["distribution"], &record["param_value_internal"]);
                own.params.extend(value.map(|value| (text("param_name").to_string(), value)));
            }
            (Some(SET_STATE), Some(own)) => {
                own.value = record["values"][0].as_f64().or(own.value);
                own.state = state(number("state"));
            }
            (Some(SET_INTERMEDIATE), Some(own)) => {
                let value = record["intermediate_value"].as_f64();
                own.values.extend(number("step").map(|step| (step, value)));
            }
            (Some(DISCARD_TRIALS), _) => {
                return Err("it contains discarded trials, which are not supported".into());
            }
            _ => {}
        }
    }
    let left = || studies.iter().zip(0..).filter(|(found, _)| !found.is_deleted);
    let mut wanted = left().filter(|(found, _)| name.is_none_or(|name| found.name == name));
    let (study, id) = match (wanted.next(), wanted.next()) {
        (Some(found), None) => found,
        _ => {
            let names: Vec<&str> = left().map(|(found, _)| found.name.as_str()).collect();
            return Err(match names.is_empty() {
                true => "it contains no study".into(),
                false => format!("name one of its studies with --name: {}", names.join(", ")),
            });
        }
    };
    let direction = match study.directions[..] {
        [1] => Direction::Minimize,
        [2] => Direction::Maximize,
        _ => return Err(format!("study {} does not have exactly one objective", study.name)),
    };
    let own = trials.into_iter().filter(|(study, _)| *study == id).map(|(_, own)| own);
    Ok((own.collect(), direction))
}

/// Parses an operation. Python writes NaN and Infinity, which JSON does not have; they become null.
fn parse(line: &str) -> Option<Value> {
    let record = serde_json::from_str(line).ok().or_else(|| {
        let mut is_quoted = false;
        // Split at quotes; a quote within a string is preceded by an odd number of backslashes.
        let parts = line.split_inclusive('"').map(|part| {
            let plain = |part: &str| {
                let part = part.replace("-Infinity", "null").replace("Infinity", "null");
                part.replace("NaN", "null")
            };
            let text = if is_quoted { part.to_string() } else { plain(part) };
            let content = part.strip_suffix('"').unwrap_or(part);
            let is_escaped = (content.len() - content.trim_end_matches('\\').len()) % 2 == 1;
            is_quoted ^= part.ends_with('"') && !(is_quoted && is_escaped);
            text
        });
        serde_json::from_str(&parts.collect::<String>()).ok()
    });
    record.filter(Value::is_object)
}

/// Creates a trial from its record; a trial that was added as a whole has all fields.
fn new_trial(record: &Value) -> ImportedTrial {
    let object = |key: &str| record[key].as_object().into_iter().flatten();
    let params = object("params").filter_map(|(name, number)| {
        Some((name.clone(), external(&record["distributions"][name.as_str()], number)?))
    });
    let step = |(step, value): (&String, &Value)| Some((step.parse().ok()?, value.as_f64()));
    ImportedTrial {
        params: params.collect(),
        state: state(record["state"].as_u64()),
        value: record["values"][0].as_f64().or(record["value"].as_f64()),
        values: object("intermediate_values").filter_map(step).collect(),
    }
}

/// Maps optuna.trial.TrialState, which does not distinguish the causes of a failure.
fn state(number: Option<u64>) -> Option<Outcome> {
    match number {
        Some(1) => Some(Outcome::Complete),
        Some(2) => Some(Outcome::Pruned),
        Some(3) => Some(Outcome::Failed),
        _ => None,
    }
}

/// Decodes a number with its distribution, which is JSON in a string.
fn external(distribution: &Value, value: &Value) -> Option<Value> {
    let number = value.as_f64()?;
    let distribution: Value = serde_json::from_str(distribution.as_str()?).ok()?;
    match distribution["name"].as_str()? {
        "CategoricalDistribution" => {
            distribution["attributes"]["choices"].get(number as usize).cloned()
        }
        name if name.starts_with("Int") => Some(Value::from(number as i64)),
        _ => Some(value.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_json_lacks_are_null_and_texts_stay_as_they_are() {
        let line = r#"{"a": "NaN \\", "b": [NaN, -Infinity], "c": "\"Infinity\\", "d": Infinity, "e": "x\\\""}"#;
        let expected =
            r#"{"a": "NaN \\", "b": [null, null], "c": "\"Infinity\\", "d": null, "e": "x\\\""}"#;
        assert_eq!(parse(line), serde_json::from_str(expected).ok());
        assert_eq!(parse("[NaN]"), None);
        assert_eq!(parse(r#"{"a": NaN"#), None);
    }
}
