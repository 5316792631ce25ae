//! Lists the checkpoints of a run as table rows and JSON records.

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Map, Value, json};
use unix::Result;
use unix::space::human_bytes;
use unix::time::format_duration;

use super::find::require_folder;
use super::list::{Entry, list};

/// One checkpoint in the listing.
#[derive(Clone, Debug, Serialize)]
pub struct Listing {
    /// Path of the checkpoint directory.
    pub path: PathBuf,
    /// The update number in the directory's name.
    pub step: u64,
    /// Updates completed; like `attempt`, None when the manifest cannot be read.
    pub update: Option<u64>,
    /// Number of the attempt that wrote the checkpoint.
    pub attempt: Option<u64>,
    /// Seconds since the checkpoint was written.
    pub age: Option<u64>,
    /// Total file size in bytes.
    pub bytes: Option<u64>,
    /// Metrics of the last validation.
    pub metrics: Value,
    /// Whether the link `best` points to this checkpoint.
    pub best: bool,
    /// Whether the link `latest` points to this checkpoint.
    pub latest: bool,
    /// Whether the manifest is readable and all file sizes match it.
    pub good: bool,
    /// Problem found by the quick check; None when the checkpoint is good.
    pub problem: Option<String>,
}

/// Lists the checkpoints of a run directory or of its `ckpt`, newest last. Errors: 66 when there is no such directory.
pub fn listing(path: &Path) -> Result<Vec<Listing>> {
    let folder = require_folder(path)?;
    let target = |link: &str| std::fs::read_link(folder.join(link)).unwrap_or_default();
    let (best, latest) = (target("best"), target("latest"));
    let of = |entry: &Entry| {
        let manifest = entry.manifest();
        let named = |link: &Path| link.file_name().is_some_and(|name| name == entry.name());
        Listing {
            path: entry.path.clone(),
            step: entry.step,
            update: manifest.map(|manifest| manifest.update),
            attempt: manifest.map(|manifest| manifest.attempt),
            age: entry.modified.and_then(|time| time.elapsed().ok()).map(|age| age.as_secs()),
            bytes: manifest.map(|manifest| manifest.bytes()),
            metrics: manifest.map_or(Value::Null, |manifest| manifest.metrics.clone()),
            best: named(&best),
            latest: named(&latest),
            good: entry.is_good(),
            problem: entry.problem(),
        }
    };
    Ok(list(&folder)?.iter().map(of).collect())
}

impl Listing {
    /// Formats the checkpoint as a table row with human-readable size and age, and one column per metric.
    pub fn row(&self) -> Map<String, Value> {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let age = self.age.map(|age| format_duration(std::time::Duration::from_secs(age)));
        let marks = [(self.latest, "latest"), (self.best, "best")];
        let marks: Vec<&str> = marks.iter().filter(|(on, _)| *on).map(|(_, mark)| *mark).collect();
        let state = self.problem.clone().unwrap_or_else(|| "good".into());
        let mut row = Map::new();
        row.insert("checkpoint".into(), name.into());
        row.insert("update".into(), json!(self.update));
        row.insert("age".into(), json!(age));
        row.insert("size".into(), json!(self.bytes.map(human_bytes)));
        for (name, value) in self.metrics.as_object().into_iter().flatten() {
            row.entry(name.clone()).or_insert(value.clone());
        }
        row.insert("marks".into(), json!(marks.join(" ")));
        row.insert("state".into(), state.into());
        row
    }
}
