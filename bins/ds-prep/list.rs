//! `ds-prep ls` and `ds-prep show`: the contents of files, stores and manifests.

use crate::{is_manifest, records, texts};
use data::fields::field::Field;
use data::fields::list::{FileSummary, describe, frames};
use data::fields::split::Split;
use data::records::stats::of_record;
use data::records::{RecordSplit, Records};
use data::split::Source;
use data::text::{TextSplit, TextStore, TokenSet};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use unix::out::Out;
use unix::{Exit, Result, inputs};

/// Lists files. Files that cannot be read are reported, and the others are still listed.
pub fn list(files: &[PathBuf], mut out: Out) -> Result<Exit> {
    // A closed or full stdout ends the program.
    let fatal = [Exit::Done, Exit::Io];
    let exit = inputs::each(files, &fatal, |path| {
        let rows = if TextSplit::is_manifest(path) {
            TextSplit::load(path)?.0.rows(path)
        } else if RecordSplit::is_manifest(path) {
            RecordSplit::load(path)?.0.rows(path)
        } else if TokenSet::is_at(path) {
            return texts::rows(path)?.iter().try_for_each(|split| out.row(split));
        } else if TextStore::is_store(path) {
            vec![texts::row(&TextStore::open(path)?)]
        } else if Records::is_store(path) {
            vec![records::row(&Records::open(path)?)]
        } else if is_manifest(path) {
            Split::load(path)?.0.rows(path)
        } else {
            return out.row(&FileSummary::of(path)?);
        };
        rows.iter().try_for_each(|row| out.row(row))
    })?;
    out.finish()?;
    Ok(exit)
}

/// Shows the metadata of a file, or one of its samples.
pub fn show(file: &Path, sample: Option<usize>, out: Out) -> Result<Exit> {
    let is_text = TextStore::is_store(file);
    let is_store = is_text || Records::is_store(file);
    let record = match sample {
        Some(sample) if is_text => texts::of_record(&TextStore::open(file)?, sample)?,
        Some(sample) if is_store => return out.rows(of_record(&Records::open(file)?, sample)?),
        Some(sample) => return out.rows(frames(&Field::open(file)?, sample)?),
        None if is_text => texts::describe(file)?,
        None if is_store => records::describe(file)?,
        None => describe(file)?,
    };
    if out.is_json() { out.rows([record]) } else { out.rows(entries("", &record)) }
}

/// Returns the values of a record, one per row of a table, e.g. `attributes.Nu` and its value.
fn entries(name: &str, value: &Value) -> Vec<Value> {
    let inside = |key: &str| if name.is_empty() { key.into() } else { format!("{name}.{key}") };
    match value {
        Value::Object(fields) => {
            fields.iter().flat_map(|(key, value)| entries(&inside(key), value)).collect()
        }
        Value::Array(items) if items.iter().any(Value::is_object) => {
            let item = |(i, item): (usize, &Value)| entries(&inside(&i.to_string()), item);
            items.iter().enumerate().flat_map(item).collect()
        }
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(Value::to_string).collect();
            vec![json!({"field": name, "value": items.join(", ")})]
        }
        value => vec![json!({"field": name, "value": value})],
    }
}
