//! Results of `evaluate score`.

use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde_json::Value;
use unix::{Error, Result, secrets, small};

use super::run::{id, number, redacted};

/// Maximum size of metrics.json and metrics.csv in bytes.
const MAX_BYTES: u64 = 64 << 20;
/// Maximum size of a picture in bytes.
const MAX_PICTURE: u64 = 64 << 20;

/// The metrics, the table and the pictures of an evaluation.
#[derive(Clone, Debug)]
pub struct Evaluation {
    /// Name of its folder.
    pub name: String,
    /// The run of the evaluated checkpoint, if its path names one.
    pub run: Option<PathBuf>,
    /// Update of the evaluated checkpoint, if known.
    pub update: Option<u64>,
    /// When it was written, in seconds since 1970.
    pub time: f64,
    /// Metrics over everything evaluated, by name, such as `field/operator/nrmse`.
    pub metrics: Vec<(String, f64)>,
    /// Column names of the table in metrics.csv.
    pub columns: Vec<String>,
    /// Its rows.
    pub rows: Vec<Vec<String>>,
    /// Pictures as PNG, by file name.
    pub pictures: Vec<(String, Vec<u8>)>,
}

/// Errors: 2 for a folder with a result of texts, which only people and their scripts read.
pub fn refuse_texts(folder: &Path) -> Result<()> {
    const TEXTS: &str = "evaluation_results.json";
    match folder.join(TEXTS).exists() && !folder.join("metrics.json").exists() {
        false => Ok(()),
        true => Err(Error::usage(format!(
            "{}: the result of a model of texts ({TEXTS}); only results of fields and of records, with metrics.json, can be \
             compared, exported or put on a leaderboard",
            folder.display()
        ))),
    }
}

impl Evaluation {
    /// Reads a folder. Errors: 66 if it is not complete, 65 for damaged files.
    pub fn read(folder: &Path) -> Result<Self> {
        refuse_texts(folder)?;
        let file = folder.join("metrics.json");
        let json = small::read(&file, MAX_BYTES)?;
        let bad = |cause: &dyn std::fmt::Display, file: &Path| {
            Error::data(format!(
                "{}: {cause}; it is not a result of evaluate score",
                file.display()
            ))
        };
        let json: Value = serde_json::from_slice(&json).map_err(|cause| bad(&cause, &file))?;
        let mut metrics = Vec::new();
        collect("", &json["overall"], &mut metrics);
        let checkpoint = checkpoint(&redacted(json)?);
        let time = file.metadata().and_then(|found| found.modified()).ok();
        let time = time.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
        let file = folder.join("metrics.csv");
        let table = small::read(&file, MAX_BYTES)?;
        let mut reader = csv::Reader::from_reader(&table[..]);
        let cells = |record: &csv::StringRecord| -> Vec<String> {
            record.iter().map(|cell| secrets::redact(cell).into_owned()).collect()
        };
        let columns = cells(reader.headers().map_err(|cause| bad(&cause, &file))?);
        let rows = reader.records().map(|record| record.map(|record| cells(&record)));
        let rows = rows.collect::<Result<_, _>>().map_err(|cause| bad(&cause, &file))?;
        let whole = folder.canonicalize().map_err(|cause| Error::open(folder, cause))?;
        let name = whole.file_name().unwrap_or_default().to_string_lossy();
        Ok(Self {
            name: secrets::redact(&name).replace(['/', '\\', ':'], "-"),
            run: checkpoint.as_deref().and_then(run_of).map(Path::to_path_buf),
            update: checkpoint.as_deref().and_then(update),
            time: time.as_millis() as f64 / 1e3,
            metrics,
            columns,
            rows,
            pictures: pictures(&folder.join("pictures"))?,
        })
    }

    /// Refuses (65) the evaluation of a run with another name than `run`, whose directory may have been moved since.
    pub fn require_run(&self, run: &Path) -> Result<()> {
        let Some(own) = &self.run else { return Ok(()) };
        let name = id(run)?;
        let same = own.file_name().is_some_and(|own| own.to_string_lossy() == name)
            || id(own).is_ok_and(|own| own == name);
        match same {
            true => Ok(()),
            false => Err(Error::data(format!(
                "{} is an evaluation of {}, not of {}; export it with that run",
                self.name,
                own.display(),
                run.display()
            ))),
        }
    }

    /// The rows over whole rollouts, without those of single steps.
    pub(super) fn totals(&self) -> impl Iterator<Item = &Vec<String>> {
        let step = self.columns.iter().position(|column| column == "step");
        self.rows.iter().filter(move |row| {
            step.and_then(|step| row.get(step)).is_none_or(|step| step == "rollout")
        })
    }
}

/// The numbers in nested objects, with paths as names.
fn collect(path: &str, value: &Value, metrics: &mut Vec<(String, f64)>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(key, value)| match (path, &**key) {
            ("", key) => collect(key, value, metrics),
            (path, "rollout") => collect(path, value, metrics),
            (path, key) => collect(&format!("{path}/{key}"), value, metrics),
        }),
        value => metrics.extend(number(value).map(|value| (path.to_string(), value))),
    }
}

/// The path of the evaluated checkpoint.
fn checkpoint(json: &Value) -> Option<PathBuf> {
    let protocol = &json["protocol"];
    Some(protocol[protocol["task"].as_str()?]["checkpoint"].as_str()?.into())
}

/// The run directory of a checkpoint that is in one.
fn run_of(checkpoint: &Path) -> Option<&Path> {
    let folder = checkpoint.parent()?;
    folder.ends_with("ckpt").then(|| folder.parent()).flatten()
}

/// The update of a checkpoint, by the name of its folder.
fn update(checkpoint: &Path) -> Option<u64> {
    checkpoint.file_name()?.to_str()?.strip_prefix("step-")?.parse().ok()
}

/// The PNG files of a folder, the summary first; none if there is no such folder.
fn pictures(folder: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let listed = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = listed
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "png"))
        .collect();
    paths.sort_by_key(|path| (!path.ends_with("summary.png"), path.clone()));
    let read = |path: PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok((name, small::read(&path, MAX_PICTURE)?))
    };
    paths.into_iter().map(read).collect()
}

/// Width and height of a PNG; 0 if it is damaged.
pub(super) fn size(png: &[u8]) -> (u32, u32) {
    let reader = png::Decoder::new(std::io::Cursor::new(png)).read_info();
    reader.map_or((0, 0), |reader| (reader.info().width, reader.info().height))
}
