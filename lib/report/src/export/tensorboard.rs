//! TensorBoard event files.
//!
//! A file is a sequence of records: length (u64), masked CRC-32C of the length, an `Event` message, masked CRC-32C of
//! the message; all numbers little-endian (tensorboard/compat/tensorflow_stub/pywrap_tensorflow.py). The log is
//! converted without its superseded records, so one file holds the run and nothing needs to be purged by a
//! `SessionLog`. Scalars are f32, as in every event file.

use std::path::PathBuf;

use serde_json::Value;
use unix::status::State;

use super::evaluation::size;
use super::protobuf::Message;
use super::run::value_text;
use super::{Evaluation, Files, Labels, Run};

/// Name of the writer in the first event.
const WRITER: &str = "longhaul evaluate export";
/// Maximum number of characters of a field of the worst items, as of texts in worst.html.
const MAX_CELL: usize = 2000;

/// Returns `RUN/events.out.tfevents.SECONDS.longhaul`, where SECONDS is the start of the run.
pub(super) fn files(run: &Run, labels: &Labels) -> Files {
    let name = format!("events.out.tfevents.{}.longhaul", run.started as u64);
    let file = (PathBuf::from(&run.id).join(name), events(run, labels));
    Files { files: vec![file], mark: WRITER.into(), alone: Some("tfevents"), grows: true }
}

fn events(run: &Run, labels: &Labels) -> Vec<u8> {
    let writer = Message::default().bytes(1, WRITER);
    let version = event(run.started, 0).bytes(3, "brain.Event:2").message(10, writer);
    let mut file = record(version);
    let mut add = |time: f64, step: u64, values: Vec<Message>| {
        let summary = Message::default().messages(1, values);
        file.extend(record(event(time, step).message(5, summary)));
    };
    add(run.started, 0, vec![text("run", &description(run, labels)), start(run)]);
    for step in &run.steps {
        let values = step.values.iter().map(|(name, value)| scalar(name, *value));
        add(step.time, step.update, values.collect());
    }
    for evaluation in &run.evaluations {
        add(evaluation.time, run.update_of(evaluation), values(evaluation));
    }
    if run.has_ended() {
        add(run.last, 0, vec![end(run)]);
    }
    file
}

/// Encodes a record of an event file.
fn record(event: Message) -> Vec<u8> {
    let data = event.encoded();
    let length = (data.len() as u64).to_le_bytes();
    let crcs = [masked_crc(&length), masked_crc(&data)].map(u32::to_le_bytes);
    [&length[..], &crcs[0], &data, &crcs[1]].concat()
}

/// Computes CRC-32C, rotated and shifted so that CRCs of data with embedded CRCs stay reliable.
fn masked_crc(data: &[u8]) -> u32 {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

fn event(time: f64, step: u64) -> Message {
    Message::default().double(1, time).int(2, step)
}

fn scalar(tag: &str, value: f64) -> Message {
    Message::default().bytes(1, tag).float(2, value as f32)
}

/// Encodes the metadata that assign a value to a plugin.
fn plugin(name: &str, content: Message) -> Message {
    let data = Message::default().bytes(1, name).message(2, content);
    Message::default().message(1, data)
}

/// Encodes a text summary in Markdown.
fn text(tag: &str, markdown: &str) -> Message {
    // DT_STRING, without dimensions.
    let tensor = Message::default().int(1, 7).message(2, Message::default()).bytes(8, markdown);
    let metadata = plugin("text", Message::default());
    Message::default().bytes(1, tag).message(9, metadata).message(8, tensor)
}

fn image(tag: &str, png: &[u8]) -> Message {
    let (width, height) = size(png);
    let image =
        Message::default().int(1, height.into()).int(2, width.into()).int(3, 3).bytes(4, png);
    Message::default().bytes(1, tag).message(4, image)
}

/// Encodes a message for the plugin `hparams`, stored in `field`.
fn session(tag: &str, field: u32, content: Message) -> Message {
    let data = Message::default().int(1, 0).message(field, content);
    Message::default().bytes(1, tag).message(9, plugin("hparams", data))
}

/// Encodes the hyper-parameters, for the table that compares runs.
fn start(run: &Run) -> Message {
    let entry = |(key, value): (String, Value)| {
        // A google.protobuf.Value.
        let value = match &value {
            Value::Number(number) => Message::default().double(2, number.as_f64().unwrap_or(0.0)),
            Value::Bool(flag) => Message::default().int(4, (*flag).into()),
            other => Message::default().bytes(3, value_text(other)),
        };
        Message::default().bytes(1, key).message(2, value)
    };
    let content = Message::default()
        .messages(1, run.hyperparameters().into_iter().map(entry))
        .bytes(4, &run.id)
        .double(5, run.started);
    session("_hparams_/session_start_info", 3, content)
}

fn end(run: &Run) -> Message {
    let status = if run.state == Some(State::Finished) { 1 } else { 2 };
    let content = Message::default().int(1, status).double(2, run.last);
    session("_hparams_/session_end_info", 4, content)
}

fn values(evaluation: &Evaluation) -> Vec<Message> {
    let prefix = format!("evaluation/{}", evaluation.name);
    let metrics = evaluation.metrics.iter();
    let mut values: Vec<Message> =
        metrics.map(|(name, value)| scalar(&format!("{prefix}/{name}"), *value)).collect();
    let rows = markdown(&evaluation.columns, evaluation.totals());
    values.push(text(&format!("{prefix}/table"), &rows));
    let worst = &evaluation.worst;
    if !worst.rows.is_empty() {
        let cell = |cell: &Value| match cell {
            Value::Null => String::new(),
            cell => value_text(cell).chars().take(MAX_CELL).collect(),
        };
        let rows: Vec<Vec<String>> =
            worst.rows.iter().map(|row| row.iter().map(cell).collect()).collect();
        values.push(text(&format!("{prefix}/worst"), &markdown(&worst.columns, &rows)));
    }
    values.extend(
        evaluation.all_pictures().map(|(name, png)| image(&format!("{prefix}/{name}"), png)),
    );
    values
}

/// Describes the run in Markdown: name, tags, notes, facts and configuration.
fn description(run: &Run, labels: &Labels) -> String {
    let row = |key: &str, value: &str| vec![key.to_string(), value.to_string()];
    let mut rows = vec![row("run", &run.id)];
    rows.extend(labels.name.iter().chain(&run.name).take(1).map(|name| row("name", name)));
    rows.extend((!labels.tags.is_empty()).then(|| row("tags", &labels.tags.join(", "))));
    rows.extend(labels.notes.iter().map(|notes| row("notes", notes)));
    rows.extend(run.facts.iter().map(|(key, value)| row(key, &value_text(value))));
    let config = run.hyperparameters();
    rows.extend(
        config.iter().map(|(key, value)| row(&format!("config.{key}"), &value_text(value))),
    );
    markdown(&row("key", "value"), &rows)
}

/// Formats a table in Markdown.
fn markdown<'a>(columns: &[String], rows: impl IntoIterator<Item = &'a Vec<String>>) -> String {
    let line = |cells: &[String]| {
        let cell = |cell: &String| cell.replace('|', "\\|").replace('\n', " ");
        format!("| {} |\n", cells.iter().map(cell).collect::<Vec<_>>().join(" | "))
    };
    let rule = format!("|{}\n", " --- |".repeat(columns.len()));
    let rows = rows.into_iter().map(|row| line(row));
    [line(columns), rule].into_iter().chain(rows).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CRC-32C values of RFC 3720, B.4, then masked; and the first record of every file that TensorFlow writes.
    #[test]
    fn masked_checksums() {
        let unmask = |crc: u32| crc.wrapping_sub(0xa282_ead8).rotate_left(15);
        assert_eq!(unmask(masked_crc(&[0; 32])), 0x8a91_36aa);
        assert_eq!(unmask(masked_crc(&[0xff; 32])), 0x62a8_ab43);
        let ascending: Vec<u8> = (0..32).collect();
        assert_eq!(unmask(masked_crc(&ascending)), 0x46dd_794e);
    }
}
