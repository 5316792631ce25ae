//! The result files of a round, in `rounds/NAME/`.

use crate::record::{Outcome, Record};
use crate::space::{Space, plain};
use crate::study::Study;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use unix::config::to_yaml;
use unix::publish::{create_folder, publish_bytes};
use unix::{Error, Result, text};

/// Number of trials in topk.csv and topk.json.
const TOP: usize = 10;

/// Writes the results of a round that has ended, unless they are up to date: best_config.yaml, trials_history.json,
/// topk.json and topk.csv. Errors: 73, 74.
pub fn write(study: &Study, round: usize, space: &Space) -> Result<()> {
    let folder = study.round_folder(round);
    let range = study.numbers_of(round, space);
    let all: Vec<&Record> = study.records().range(range).map(|(_, record)| record).collect();
    let history = folder.join("trials_history.json");
    let list: Vec<Value> = all.iter().map(|record| entry(record)).collect();
    let list = text::json_pretty(&list)?;
    if std::fs::read(&history).is_ok_and(|old| old == list.as_bytes()) {
        return Ok(());
    }
    create_folder(&folder)?;
    let ranking = study.ranking(round);
    if let Some(best) = ranking.first() {
        let flat = to_yaml(&json!(best.start.params))?;
        publish_bytes(&folder.join("best_config.yaml"), flat.as_bytes())?;
    }
    let top: Vec<&Record> = ranking.into_iter().take(TOP).collect();
    let entries: Vec<Value> = top.iter().map(|record| entry(record)).collect();
    publish_bytes(&folder.join("topk.json"), text::json_pretty(&entries)?.as_bytes())?;
    publish_bytes(&folder.join("topk.csv"), &csv(&top)?)?;
    publish_bytes(&history, list.as_bytes())
}

/// Writes the results of every round that has ended. Errors: 65, 66, 73, 74.
pub fn write_ended(study: &Study) -> Result<()> {
    for round in 0..study.rounds().len() {
        let space = study.space_of(round)?.filter(|space| study.has_ended(round, space));
        space.map_or(Ok(()), |space| write(study, round, &space))?;
    }
    Ok(())
}

/// Returns an entry of trials_history.json.
pub fn entry(record: &Record) -> Value {
    let state = match record.end.as_ref().map(|end| end.state) {
        Some(Outcome::Complete) => "COMPLETE",
        Some(Outcome::Pruned) => "PRUNED",
        Some(_) => "FAIL",
        None => "RUNNING",
    };
    json!({
        "number": record.number,
        "value": record.value(),
        "params": record.start.params,
        "state": state,
        "datetime_start": record.started,
        "datetime_complete": record.ended,
    })
}

/// Writes trials as CSV: number, round, state, value, error, and a column for each parameter.
pub fn csv(records: &[&Record]) -> Result<Vec<u8>> {
    let names: BTreeSet<&String> =
        records.iter().flat_map(|record| record.start.params.keys()).collect();
    let mut writer = csv::Writer::from_writer(Vec::new());
    let fixed = ["number", "round", "state", "value", "error"];
    let header = fixed.into_iter().chain(names.iter().map(|name| name.as_str()));
    writer.write_record(header).map_err(Error::bug)?;
    for record in records {
        let end = record.end.as_ref();
        let start = [
            record.number.to_string(),
            record.start.round.clone(),
            end.map_or("open", |end| end.state.name()).to_string(),
            record.value().map_or(String::new(), |value| value.to_string()),
            end.and_then(|end| end.error.clone()).unwrap_or_default(),
        ];
        let params =
            names.iter().map(|name| record.start.params.get(*name).map_or(String::new(), plain));
        writer.write_record(start.into_iter().chain(params)).map_err(Error::bug)?;
    }
    writer.into_inner().map_err(Error::bug)
}
