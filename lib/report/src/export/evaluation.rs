//! Results of `evaluate score`.

use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use unix::{Error, Result, secrets, small};

use super::WorstItems;
use super::csv::table;
use super::run::id;
use crate::evaluation::{MetricsFile, pictures};

/// Maximum size of metrics.csv in bytes.
const MAX_BYTES: u64 = 64 << 20;

/// The metrics, the table, the worst items and the pictures of an evaluation.
#[derive(Clone, Debug)]
pub struct Evaluation {
    /// Name of the evaluation's folder.
    pub name: String,
    /// The run of the evaluated checkpoint, if its path names one.
    pub run: Option<PathBuf>,
    /// Update of the evaluated checkpoint, if known.
    pub update: Option<u64>,
    /// Time at which it was written, in seconds since 1970.
    pub time: f64,
    /// Metrics over all samples, by name, such as `operator/nrmse`.
    pub metrics: Vec<(String, f64)>,
    /// Column names of the table in metrics.csv.
    pub columns: Vec<String>,
    /// Rows of the table.
    pub rows: Vec<Vec<String>>,
    /// Items with the largest losses.
    pub worst: WorstItems,
    /// Pictures as PNG, by file name, without those of the worst items.
    pub pictures: Vec<(String, Vec<u8>)>,
}

impl Evaluation {
    /// Reads a folder. Errors: 66 if it is incomplete; 65 for damaged files or a result of an earlier version.
    pub fn read(folder: &Path) -> Result<Self> {
        let found = MetricsFile::read(folder)?;
        let redacted = |text: &str| secrets::redact(text).into_owned();
        let metrics = found.scores.numbers('/').into_iter();
        let metrics = metrics.map(|(name, value)| (redacted(&name), value)).collect();
        let model = found.subject.models.get(&found.subject.task);
        let checkpoint = model.and_then(|model| model["checkpoint"].as_str());
        let checkpoint = checkpoint.map(|path| PathBuf::from(redacted(path)));
        let time = folder.join("metrics.json").metadata().and_then(|found| found.modified()).ok();
        let time = time.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
        let file = folder.join("metrics.csv");
        let bad = |cause: csv::Error| {
            Error::data(format!(
                "{}: {cause}; it is not a result of evaluate score",
                file.display()
            ))
        };
        let table = small::read(&file, MAX_BYTES)?;
        let mut reader = csv::Reader::from_reader(&table[..]);
        let cells =
            |record: &csv::StringRecord| -> Vec<String> { record.iter().map(redacted).collect() };
        let columns = cells(reader.headers().map_err(bad)?);
        let rows = reader.records().map(|record| record.map(|record| cells(&record)));
        let rows = rows.collect::<Result<_, _>>().map_err(bad)?;
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
            worst: WorstItems::read(folder)?,
            pictures: pictures(folder)?,
        })
    }

    /// Refuses (65) an evaluation of a run whose name differs from that of `run`; its directory may have been moved
    /// since.
    pub fn require_run(&self, run: &Path) -> Result<()> {
        let Some(own) = &self.run else { return Ok(()) };
        let name = id(run)?;
        let same = own.file_name().is_some_and(|own| own.to_string_lossy() == name)
            || id(own).is_ok_and(|own| own == name);
        match same {
            true => Ok(()),
            false => Err(Error::data(format!(
                "{} is an evaluation of {}, not of {}; export it with the run it belongs to",
                self.name,
                own.display(),
                run.display()
            ))),
        }
    }

    /// Iterates over all pictures, as PNG by file name.
    pub(super) fn all_pictures(&self) -> impl Iterator<Item = &(String, Vec<u8>)> {
        self.pictures.iter().chain(&self.worst.pictures)
    }

    /// Returns the evaluation as files by name: `metrics.csv`, those of the worst items, and all pictures.
    pub(super) fn files(&self) -> Result<Vec<(String, Vec<u8>)>> {
        let rows = std::iter::once(&self.columns).chain(&self.rows).cloned();
        let mut files = vec![("metrics.csv".to_string(), table(rows)?)];
        files.extend(self.worst.files.iter().chain(self.all_pictures()).cloned());
        Ok(files)
    }

    /// Iterates over the rows that do not belong to a single step.
    pub(super) fn totals(&self) -> impl Iterator<Item = &Vec<String>> {
        let step = self.columns.iter().position(|column| column == "step");
        self.rows.iter().filter(move |row| {
            step.and_then(|step| row.get(step)).is_none_or(|step| step.is_empty())
        })
    }
}

/// Returns the run directory that contains a checkpoint.
fn run_of(checkpoint: &Path) -> Option<&Path> {
    let folder = checkpoint.parent()?;
    folder.ends_with("ckpt").then(|| folder.parent()).flatten()
}

/// Parses the update of a checkpoint from the name of its folder.
fn update(checkpoint: &Path) -> Option<u64> {
    checkpoint.file_name()?.to_str()?.strip_prefix("step-")?.parse().ok()
}

/// Returns width and height of a PNG; 0 if it is damaged.
pub(super) fn size(png: &[u8]) -> (u32, u32) {
    let reader = png::Decoder::new(std::io::Cursor::new(png)).read_info();
    reader.map_or((0, 0), |reader| (reader.info().width, reader.info().height))
}
