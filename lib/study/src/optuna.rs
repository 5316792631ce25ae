//! Exports a study as an Optuna 5 journal for `JournalFileBackend` and optuna-dashboard: one operation per line, with
//! the operation codes and field names of optuna.storages.journal.

use crate::config::Direction;
use crate::record::{Outcome, Record};
use crate::space::{Domain, Parameter, Space};
use crate::study::Study;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use unix::{Error, Result};

const CREATE_STUDY: u8 = 0;
const CREATE_TRIAL: u8 = 4;

/// Returns the journal of a study. All rounds become one Optuna study; the round is a user attribute of each trial.
pub fn journal(study: &Study) -> Result<Vec<u8>> {
    // optuna.study.StudyDirection.
    let direction = match study.config().direction {
        Direction::Minimize => 1,
        Direction::Maximize => 2,
    };
    let mut lines = vec![json!({
        "op_code": CREATE_STUDY, "worker_id": "longhaul", "study_name": study.name(),
        "directions": [direction],
    })];
    let spaces: Result<Vec<Option<Space>>> =
        (0..study.rounds().len()).map(|round| study.space_of(round)).collect();
    let spaces = spaces?;
    let sign = study.config().direction.sign();
    for record in study.records().values() {
        let round = study.round_of(record.number);
        let space = round.and_then(|round| spaces[round].as_ref());
        lines.extend(space.map(|space| trial(record, space, sign)));
    }
    let mut bytes = Vec::new();
    for line in lines {
        serde_json::to_writer(&mut bytes, &line).map_err(Error::bug)?;
        bytes.push(b'\n');
    }
    Ok(bytes)
}

fn trial(record: &Record, space: &Space, sign: f64) -> Value {
    // optuna.trial.TrialState.
    let end = record.end.as_ref();
    let state = match end.map(|end| end.state) {
        None => 0,
        Some(Outcome::Complete) => 1,
        Some(Outcome::Pruned) => 2,
        Some(_) => 3,
    };
    let value = end.and_then(|end| end.value).or(record.best(sign).map(|(_, value)| value));
    let value = value.filter(|_| (1..=2).contains(&state));
    // Optuna has no fixed parameters.
    let point = space.point(&record.start.params);
    let searched =
        point.iter().filter(|(name, _)| !matches!(space.0[*name], Parameter::Fixed { .. }));
    let params: BTreeMap<&String, &f64> = searched.collect();
    let distributions: Map<String, Value> = params
        .keys()
        .map(|name| (name.to_string(), distribution(&space.0[*name]).to_string().into()))
        .collect();
    // JSON has no NaN.
    let values: Map<String, Value> = record
        .values
        .iter()
        .filter_map(|(step, value)| Some((step.to_string(), json!((*value)?))))
        .collect();
    let mut attributes = json!({ "round": record.start.round });
    if let Some(error) = end.and_then(|end| end.error.as_ref()) {
        attributes["error"] = json!(error);
    }
    let time = |text: &String| text.trim_end_matches('Z').to_string();
    let mut line = json!({
        "op_code": CREATE_TRIAL, "worker_id": "longhaul", "study_id": 0, "state": state,
        "value": value,
        "datetime_start": time(&record.started), "params": params,
        "distributions": distributions, "user_attrs": attributes, "system_attrs": {},
        "intermediate_values": values,
    });
    if let Some(ended) = &record.ended {
        line["datetime_complete"] = time(ended).into();
    }
    line
}

/// Encodes an Optuna distribution as JSON.
fn distribution(parameter: &Parameter) -> Value {
    let (name, attributes) = match (parameter, parameter.domain()) {
        (Parameter::Categorical { choices, .. }, _) => {
            // Optuna accepts only scalars.
            let scalar = |choice: &Value| match choice {
                Value::Array(_) | Value::Object(_) => choice.to_string().into(),
                scalar => scalar.clone(),
            };
            let choices: Vec<Value> = choices.iter().map(scalar).collect();
            ("CategoricalDistribution", json!({ "choices": choices }))
        }
        (Parameter::Int { .. }, Domain::Numeric { low, high, step, log }) => {
            let step = step.unwrap_or(1.0) as i64;
            let (low, high) = (low as i64, high as i64);
            // Optuna does not combine log with a step.
            let step = if log { 1 } else { step };
            ("IntDistribution", json!({ "log": log, "step": step, "low": low, "high": high }))
        }
        (_, Domain::Numeric { low, high, step, log }) => {
            ("FloatDistribution", json!({ "step": step, "low": low, "high": high, "log": log }))
        }
        (_, Domain::Categorical(_)) => ("CategoricalDistribution", json!({ "choices": [null] })),
    };
    json!({ "name": name, "attributes": attributes })
}
