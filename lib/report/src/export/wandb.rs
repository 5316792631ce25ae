//! Offline runs of Weights & Biases: `wandb/offline-run-YYYYMMDD_HHMMSS-RUN/run-RUN.wandb` and the files it refers to.
//!
//! The file is a [`WandbLog`] of `Record` messages (wandb/proto/wandb_internal.proto), an internal format of the
//! client; `make interop` opens it with the real client. A run that has not ended has no exit record, so the client
//! shows it as crashed or running.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use unix::status::State;
use unix::{Error, Result};

use super::evaluation::size;
use super::protobuf::Message;
use super::run::{json_number, utc};
use super::wandb_log::WandbLog;
use super::{Evaluation, Files, Labels, RecordedUpdate, Run};

/// Name of the program in the first record.
const PRODUCER: &str = "longhaul evaluate export";
/// The oldest client that may read the file.
const MIN_CONSUMER: &str = "0.40.0";

/// A file of a run, with its path below `files/`.
type Media = (String, Vec<u8>);

/// Returns the folder of the offline run.
pub(super) fn files(run: &Run, labels: &Labels) -> Result<Files> {
    let digits: Vec<String> = utc(run.started)
        .split(['T', '.'])
        .map(|part| part.chars().filter(char::is_ascii_digit).collect())
        .collect();
    let folder = format!("wandb/offline-run-{}_{}-{}", digits[0], digits[1], run.id);
    let folder = PathBuf::from(folder);
    let mut media = Vec::new();
    let log = log(run, labels, &mut media)?;
    let mut files = vec![(folder.join(format!("run-{}.wandb", run.id)), log)];
    let media = media.into_iter();
    files.extend(media.map(|(name, bytes)| (folder.join("files").join(name), bytes)));
    Ok(Files { files, mark: PRODUCER.into(), alone: None, grows: true })
}

/// Records with consecutive numbers.
struct Records(WandbLog, u64);

impl Records {
    fn add(&mut self, field: u32, content: Message) {
        self.1 += 1;
        self.0.add(&Message::default().int(1, self.1).message(field, content).encoded());
    }
}

fn log(run: &Run, labels: &Labels, media: &mut Vec<Media>) -> Result<Vec<u8>> {
    let mut records = Records(WandbLog::new(), 0);
    let version = Message::default().bytes(1, PRODUCER).bytes(2, MIN_CONSUMER);
    records.add(21, Message::default().message(1, version));
    records.add(17, of_run(run, labels)?);
    let evaluations = by_step(run);
    let mut summary: BTreeMap<String, Value> = BTreeMap::new();
    for step in &run.steps {
        let usage = usage(run, step);
        if !usage.is_empty() {
            let items = usage.iter().map(|(key, value)| item(&[(1, key)], &json!(value)));
            let time = timestamp(step.time);
            records.add(7, Message::default().message(2, time).messages(3, items));
        }
        let mut row: Vec<(String, Value)> = step
            .values
            .iter()
            .filter(|(name, _)| !name.starts_with("system/"))
            .map(|(name, value)| (name.clone(), json_number(*value)))
            .collect();
        for evaluation in evaluations.get(&step.update).into_iter().flatten() {
            let before = media.len();
            row.extend(values(evaluation, step.update, media)?);
            let items = media[before..].iter().map(|(path, _)| Message::default().bytes(1, path));
            records.add(6, Message::default().messages(1, items));
        }
        row.push(("_step".into(), json!(step.update)));
        row.push(("_timestamp".into(), json!(step.time)));
        row.push(("_runtime".into(), json!((step.time - run.started).max(0.0))));
        let items = row.iter().map(|(key, value)| item(&[(2, key)], value));
        let number = Message::default().int(1, step.update);
        records.add(2, Message::default().messages(1, items).message(2, number));
        summary.extend(row);
    }
    if run.has_ended() {
        let items = summary.iter().map(|(key, value)| item(&[(2, key)], value));
        records.add(3, Message::default().messages(1, items));
        let code = u64::from(run.state != Some(State::Finished));
        let runtime = (run.last - run.started).max(0.0) as u64;
        records.add(18, Message::default().int(1, code).int(2, runtime));
    }
    Ok(records.0.bytes())
}

/// Encodes a key and its value as JSON; configuration, history, summary and usage use the same fields.
fn item(keys: &[(u32, &str)], value: &Value) -> Message {
    let keys = keys.iter().fold(Message::default(), |item, (field, key)| item.bytes(*field, key));
    keys.bytes(16, value.to_string())
}

fn timestamp(seconds: f64) -> Message {
    let nanos = (seconds.fract() * 1e9).round();
    Message::default().int(1, seconds as u64).int(2, (nanos as u64).min(999_999_999))
}

fn of_run(run: &Run, labels: &Labels) -> Result<Message> {
    let facts = Value::Object(run.facts.clone());
    let config = run.config.iter().map(|(key, value)| item(&[(1, key)], value));
    let config =
        config.chain([item(&[(1, "longhaul")], &facts), item(&[(1, "_wandb")], &json!({}))]);
    let tags = labels.tags.iter();
    let message = Message::default()
        .bytes(1, &run.id)
        .optional(2, labels.entity.as_deref())
        .bytes(3, &labels.project)
        .message(4, Message::default().messages(1, config))
        .bytes(8, run.shown_name(labels))
        .optional(9, labels.notes.as_deref())
        .optional(13, run.facts.get("host").and_then(Value::as_str));
    let message = tags.fold(message, |message, tag| message.bytes(10, tag));
    Ok(message.message(17, timestamp(run.started)))
}

/// Returns the machine's usage under the names that the client uses.
fn usage(run: &Run, step: &RecordedUpdate) -> Vec<(&'static str, f64)> {
    let value = |name: &str| step.values.iter().find(|(own, _)| own == name).map(|(_, v)| *v);
    let threads = run.facts.get("threads").and_then(Value::as_f64).unwrap_or(1.0).max(1.0);
    // The client's `cpu` is a percentage of all CPUs that the process may use.
    [
        ("cpu", value("system/cpu_percent").map(|percent| percent / threads)),
        ("proc.memory.rssMB", value("system/memory_bytes").map(|b| b / f64::from(1 << 20))),
        ("gpu.0.memoryAllocatedBytes", value("system/gpu_memory_bytes")),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name, value?)))
    .collect()
}

/// Groups evaluations by the last recorded step at or before each of them, so that steps do not decrease.
fn by_step(run: &Run) -> BTreeMap<u64, Vec<&Evaluation>> {
    let mut all: BTreeMap<u64, Vec<&Evaluation>> = BTreeMap::new();
    for evaluation in &run.evaluations {
        let update = run.update_of(evaluation);
        let earlier = run.steps.iter().rev().map(|step| step.update).find(|step| *step <= update);
        let first = run.steps.first().map(|step| step.update);
        if let Some(step) = earlier.or(first) {
            all.entry(step).or_default().push(evaluation);
        }
    }
    all
}

/// Returns the metrics, the tables and the pictures of an evaluation; adds the files of the tables and pictures to
/// `media`.
fn values(
    evaluation: &Evaluation,
    step: u64,
    media: &mut Vec<Media>,
) -> Result<Vec<(String, Value)>> {
    let prefix = format!("evaluation/{}", evaluation.name);
    let metrics = evaluation.metrics.iter();
    let mut row: Vec<(String, Value)> =
        metrics.map(|(name, value)| (format!("{prefix}/{name}"), json_number(*value))).collect();
    let cell = |cell: &String| cell.parse().map_or_else(|_| json!(cell), json_number);
    let data: Vec<Vec<Value>> =
        evaluation.rows.iter().map(|row| row.iter().map(cell).collect()).collect();
    let stem = format!("{}_{step}", evaluation.name);
    row.push((format!("{prefix}/table"), table(&stem, &evaluation.columns, &data, media)?));
    let worst = &evaluation.worst;
    if !worst.rows.is_empty() {
        let stem = format!("{}_worst_{step}", evaluation.name);
        row.push((format!("{prefix}/worst"), table(&stem, &worst.columns, &worst.rows, media)?));
    }
    for (name, png) in evaluation.all_pictures() {
        let hash = sha256(png);
        let stem = name.trim_end_matches(".png");
        let path = format!("media/images/{}_{stem}_{step}_{}.png", evaluation.name, &hash[..20]);
        let (width, height) = size(png);
        row.push((
            format!("{prefix}/{stem}"),
            json!({
                "_type": "image-file", "format": "png", "path": path, "sha256": hash,
                "size": png.len(), "width": width, "height": height,
            }),
        ));
        media.push((path, png.clone()));
    }
    Ok(row)
}

/// Adds the file of a table to `media` and returns the value that refers to it. Pictures are not in cells, because the
/// client takes those from an artifact, which names the files by absolute paths.
fn table(
    stem: &str,
    columns: &[String],
    data: &[Vec<Value>],
    media: &mut Vec<Media>,
) -> Result<Value> {
    let table = json!({"columns": columns, "data": data});
    let bytes = serde_json::to_vec(&table).map_err(Error::bug)?;
    let hash = sha256(&bytes);
    let path = format!("media/table/{stem}_{}.table.json", &hash[..20]);
    let value = json!({
        "_type": "table-file", "path": path, "sha256": hash, "size": bytes.len(),
        "ncols": columns.len(), "nrows": data.len(),
    });
    media.push((path, bytes));
    Ok(value)
}

/// Computes the SHA-256 hash in hexadecimal.
fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
