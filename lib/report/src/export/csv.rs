//! CSV files (RFC 4180): the run, its curve and its evaluations.

use std::path::PathBuf;

use serde_json::Value;
use unix::{Error, Result};

use super::run::{utc, value_text};
use super::{Files, Labels, Run};

/// Returns `RUN/run.csv` with the hyper-parameters, `RUN/history.csv` with a line per update and a column per value,
/// and the files of every evaluation.
pub(super) fn files(run: &Run, labels: &Labels) -> Result<Files> {
    let folder = PathBuf::from(&run.id);
    let mut files = vec![
        (folder.join("run.csv"), facts(run, labels)?),
        (folder.join("history.csv"), history(run)?),
    ];
    for evaluation in &run.evaluations {
        let folder = folder.join(&evaluation.name);
        let own = evaluation.files()?.into_iter();
        files.extend(own.map(|(name, bytes)| (folder.join(name), bytes)));
    }
    let mark = table([identity_row(run)])?;
    Ok(Files { files, mark, alone: None, grows: false })
}

/// The row that identifies this run.
fn identity_row(run: &Run) -> Vec<String> {
    vec!["started".into(), run.started_text()]
}

fn facts(run: &Run, labels: &Labels) -> Result<Vec<u8>> {
    let text = |key: &str, value: &str| vec![key.to_string(), value.to_string()];
    let mut rows = vec![text("key", "value"), text("run", &run.id), identity_row(run)];
    rows.extend(labels.name.iter().chain(&run.name).take(1).map(|name| text("name", name)));
    rows.extend(labels.tags.iter().map(|tag| text("tag", tag)));
    rows.extend(labels.notes.iter().map(|notes| text("notes", notes)));
    let state = run.state.and_then(|state| serde_json::to_value(state).ok());
    rows.extend(state.map(|state| text("state", &value_text(&state))));
    rows.extend(run.facts.iter().map(|(key, value)| text(key, &value_text(value))));
    let config = run.hyperparameters();
    rows.extend(config.iter().map(|(key, value)| text(&format!("config.{key}"), &show(value))));
    table(rows)
}

/// Formats a value; a missing one is an empty cell.
fn show(value: &Value) -> String {
    if value.is_null() { String::new() } else { value_text(value) }
}

fn history(run: &Run) -> Result<Vec<u8>> {
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in run.steps.iter().flat_map(|step| &step.values) {
        if !names.contains(&&**name) {
            names.push(name);
        }
    }
    let header = ["update", "time"].into_iter().chain(names.iter().copied());
    let header: Vec<String> = header.map(str::to_string).collect();
    let rows = run.steps.iter().map(|step| {
        let value = |name: &&str| step.values.iter().find(|(own, _)| own == name).map(|(_, v)| v);
        let values = names.iter().map(|name| value(name).map_or(String::new(), |v| number(*v)));
        [step.update.to_string(), utc(step.time)].into_iter().chain(values).collect()
    });
    table(std::iter::once(header).chain(rows))
}

/// Formats a number as the shortest text that parses to the same number.
fn number(value: f64) -> String {
    let is_integer = value.fract() == 0.0 && value.abs() < 1e15;
    if is_integer { value.to_string() } else { format!("{value:?}") }
}

pub(super) fn table(rows: impl IntoIterator<Item = Vec<String>>) -> Result<Vec<u8>> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    rows.into_iter().try_for_each(|row| writer.write_record(row)).map_err(Error::bug)?;
    writer.into_inner().map_err(Error::bug)
}
