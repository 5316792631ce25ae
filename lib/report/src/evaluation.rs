//! The result of an evaluation, `metrics.json`, in the same form for all tasks.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fmt::{Display, Write};
use std::path::{Path, PathBuf};
use unix::text::{self, quote};
use unix::{Error, Result, small};

/// Maximum size of `metrics.json` in bytes.
const MAX_BYTES: u64 = 256 << 20;
/// Maximum size of a picture in bytes.
pub(crate) const MAX_PICTURE: u64 = 64 << 20;
/// Number of characters of a hash shown to users.
const SHOWN: usize = 12;
/// Format of `metrics.json`.
pub const FORMAT: &str = "longhaul-evaluation";
/// The version written; results of an earlier one are refused.
pub const VERSION: u64 = 2;
/// Names of the result files of version 1.
const VERSION_1_FILES: [&str; 2] = ["metrics.json", "evaluation_results.json"];

/// Whether a metric is minimised or maximised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Smaller is better: losses, errors.
    #[default]
    Minimize,
    /// Larger is better: accuracy, F1.
    Maximize,
}

impl Direction {
    /// Whether `a` is strictly better than `b`; a NaN never is.
    pub fn is_better(self, a: f64, b: f64) -> bool {
        match self {
            Self::Minimize => a < b,
            Self::Maximize => a > b,
        }
    }

    /// 1 to minimise, -1 to maximise; multiplying by it makes lower values better.
    pub fn sign(self) -> f64 {
        match self {
            Self::Minimize => 1.0,
            Self::Maximize => -1.0,
        }
    }
}

/// One metric of one method.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// Its value; NaN (null in JSON) if it is not finite or not defined.
    #[serde(with = "or_null")]
    pub value: f64,
    /// Whether lower or higher values are better; `None` if neither, as for counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direction: Option<Direction>,
    /// The 95% confidence interval of the value, by bootstrap over samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<[f64; 2]>,
    /// The value at each step of a rollout; step 0 is the initial state.
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "all_or_null")]
    pub by_step: Vec<f64>,
}

impl Metric {
    /// Creates a value for which smaller is better.
    pub fn error(value: f64) -> Self {
        Self { direction: Some(Direction::Minimize), ..Self::plain(value) }
    }

    /// Creates a value for which larger is better.
    pub fn score(value: f64) -> Self {
        Self { direction: Some(Direction::Maximize), ..Self::plain(value) }
    }

    /// Creates a value without a direction, such as a count.
    pub fn plain(value: f64) -> Self {
        Self { value, direction: None, interval: None, by_step: Vec::new() }
    }

    /// Sets the 95% confidence interval, or none if a bound is not finite.
    pub fn with_interval(self, interval: Option<[f64; 2]>) -> Self {
        let interval = interval.filter(|bounds| bounds.iter().all(|bound| bound.is_finite()));
        Self { interval, ..self }
    }
}

/// Metrics by name, in the order in which they are shown.
pub type MetricsByName = IndexMap<String, Metric>;

/// The metrics of every method over some samples.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// Number of samples.
    pub samples: u64,
    /// By method: the evaluated model first, then variants of it and baselines.
    pub methods: IndexMap<String, MetricsByName>,
}

impl Scores {
    /// Returns a metric of a method. `name` is `METHOD.METRIC`, or `METRIC` for the evaluated model.
    pub fn metric(&self, name: &str) -> Option<&Metric> {
        let own = self.methods.values().next().and_then(|own| own.get(name));
        own.or_else(|| {
            self.methods.iter().find_map(|(method, metrics)| {
                metrics.get(name.strip_prefix(method.as_str())?.strip_prefix('.')?)
            })
        })
    }

    /// Returns the values of all metrics by `METHOD.METRIC`, with this separator, and the bounds of their intervals
    /// with `_low` and `_high` appended to the name.
    pub fn numbers(&self, separator: char) -> IndexMap<String, f64> {
        let mut numbers = IndexMap::new();
        for (method, metrics) in &self.methods {
            for (name, metric) in metrics {
                let name = format!("{method}{separator}{name}");
                numbers.insert(name.clone(), metric.value);
                if let Some([low, high]) = metric.interval {
                    numbers.insert(format!("{name}_low"), low);
                    numbers.insert(format!("{name}_high"), high);
                }
            }
        }
        numbers
    }
}

/// A group of samples that share a parameter value, a class or a criterion.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// Kind of the groups: `parameter`, `label`, `criterion`.
    pub kind: String,
    /// The value that the samples of this group share.
    pub name: String,
    /// Its scores.
    #[serde(flatten)]
    pub scores: Scores,
}

/// The evaluated model and data, and the protocol.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Subject {
    /// Task of the evaluated model.
    pub task: String,
    /// The most important metric, by which results are ranked.
    pub metric: String,
    /// The protocol in one line, for users.
    pub description: String,
    /// Settings that must be equal for two results to be comparable: data, split, samples.
    pub protocol: Map<String, Value>,
    /// Settings that may differ between compared results: how the model predicts, the location of the data.
    pub settings: Map<String, Value>,
    /// The evaluated model and the models that it depends on, by task.
    pub models: Map<String, Value>,
}

impl Subject {
    /// Identifies the evaluation by a hash of everything except paths. Repeating an evaluation gives the same hash.
    pub fn hash(&self) -> String {
        let mut models = self.models.clone();
        for model in models.values_mut().filter_map(Value::as_object_mut) {
            model.shift_remove("checkpoint");
        }
        let mut settings = self.settings.clone();
        settings.shift_remove("data");
        let all = [self.protocol.clone(), settings, models].map(Value::Object);
        unix::config::hash(&Value::from(all.to_vec()))
    }

    /// Lists the parts of the protocol that differ, with both values; empty if the results can be compared.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let new = other.protocol.keys().filter(|key| !self.protocol.contains_key(*key));
        let keys = self.protocol.keys().chain(new);
        let show = |subject: &Self, key: &str| {
            subject.protocol.get(key).map_or_else(|| "none".into(), text::summary)
        };
        keys.filter(|key| self.protocol.get(*key) != other.protocol.get(*key))
            .map(|key| format!("{key} is {} and {}", show(self, key), show(other, key)))
            .collect()
    }

    /// Returns the protocol in one line, with the beginning of the data hash.
    pub fn describe(&self) -> String {
        let hash = self.protocol.get("data_hash").map_or_else(|| "?".into(), text::summary);
        let hash: String = hash.chars().take(SHOWN).collect();
        format!("{}; data {hash}", text::line(&self.description))
    }
}

/// The content of `metrics.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetricsFile {
    /// [`FORMAT`].
    pub format: String,
    /// [`VERSION`].
    pub version: u64,
    /// The evaluated model and data, and the protocol.
    #[serde(flatten)]
    pub subject: Subject,
    /// Scores over all samples.
    #[serde(flatten)]
    pub scores: Scores,
    /// Scores over the samples of each group.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<Group>,
    /// Further results of the task, such as a confusion matrix, which are not compared.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub details: Map<String, Value>,
}

impl MetricsFile {
    /// Whether `evaluate score` wrote a directory, in this version or an earlier one.
    pub fn is_in(folder: &Path) -> bool {
        VERSION_1_FILES.iter().any(|name| folder.join(name).exists())
    }

    /// Reads the result in a directory of `evaluate score`.
    ///
    /// Errors: 65 for a result that is damaged or of another version; for an earlier version, the message contains the
    /// command that evaluates again. 66 if there is no result.
    pub fn read(folder: &Path) -> Result<Self> {
        #[derive(Deserialize)]
        struct Header {
            format: String,
            version: u64,
        }
        let path = folder.join(VERSION_1_FILES[0]);
        let again = |what: &str| {
            Err(Error::data(format!(
                "{}: {what} of an earlier version, but this program reads version {VERSION}; make it again: evaluate score \
                 RUN --data DATA -o {} --force",
                folder.display(),
                folder.display()
            )))
        };
        if !path.exists() && folder.join(VERSION_1_FILES[1]).exists() {
            return again(VERSION_1_FILES[1]);
        }
        let bad = |cause: &dyn Display| {
            Error::data(format!(
                "{}: {cause}; it is not a result of evaluate score",
                path.display()
            ))
        };
        let text = small::read(&path, MAX_BYTES)?;
        let header: Header = serde_json::from_slice(&text).map_err(|cause| bad(&cause))?;
        if header.format != FORMAT {
            return Err(bad(&format_args!("format {}", quote(&header.format))));
        }
        match header.version {
            VERSION => serde_json::from_slice(&text).map_err(|cause| bad(&cause)),
            earlier if earlier < VERSION => again("a result"),
            later => Err(Error::data(format!(
                "{}: the result has version {later}, but this program reads version {VERSION}; use a newer longhaul",
                path.display()
            ))),
        }
    }

    /// Returns all numbers as CSV, with the columns group (empty for all samples), method, metric, step (empty for the
    /// value over all steps), value, and the bounds of the interval.
    pub fn csv(&self) -> String {
        let mut text = String::from("group,method,metric,step,value,low,high\n");
        let all = std::iter::once(("", &self.scores));
        let groups = self.groups.iter().map(|group| (group.name.as_str(), &group.scores));
        for (group, scores) in all.chain(groups) {
            for (method, metrics) in &scores.methods {
                for (name, metric) in metrics {
                    let start = [group, method, name].map(cell).join(",");
                    let bounds = metric.interval.map(|[low, high]| format!("{low},{high}"));
                    let bounds = bounds.unwrap_or_else(|| ",".into());
                    // Writing to a String cannot fail.
                    let _ = writeln!(text, "{start},,{},{bounds}", metric.value);
                    for (step, value) in metric.by_step.iter().enumerate() {
                        let _ = writeln!(text, "{start},{step},{value},,");
                    }
                }
            }
        }
        text
    }
}

/// Reads the pictures of a result, as PNG by file name, the summary first. Pictures of the worst items are left out
/// because they have their own page. Empty if there is no folder of pictures.
///
/// Errors: 65, 66, 74.
pub fn pictures(folder: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let listed = std::fs::read_dir(folder.join("pictures")).into_iter().flatten().flatten();
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let is_shown = |path: &PathBuf| {
        path.extension().is_some_and(|ending| ending == "png") && !name(path).starts_with("worst-")
    };
    let mut paths: Vec<PathBuf> = listed.map(|entry| entry.path()).filter(is_shown).collect();
    paths.sort_by_key(|path| (!path.ends_with("summary.png"), path.clone()));
    let read = |path: PathBuf| Ok((name(&path), small::read(&path, MAX_PICTURE)?));
    paths.into_iter().map(read).collect()
}

/// Formats a cell of a CSV file, in quotes if it needs them.
fn cell(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.into(),
    }
}

/// Serialises f64 as JSON, with null for NaN and the infinities.
mod or_null {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        value.is_finite().then_some(*value).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
    }
}

/// Serialises a list of f64 like [`or_null`].
mod all_or_null {
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(values: &[f64], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(values.iter().map(|value| value.is_finite().then_some(*value)))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<f64>, D::Error> {
        let all: Vec<Option<f64>> = Vec::deserialize(deserializer)?;
        Ok(all.into_iter().map(|value| value.unwrap_or(f64::NAN)).collect())
    }
}
