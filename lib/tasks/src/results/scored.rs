//! What an evaluation measured and how, read from the folder that `evaluate score` wrote.

use super::{flatten, number};
use data::fields::parameter::Parameter;
use data::records::Side;
use report::export::refuse_texts;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use unix::{Error, Result, small, text};

/// Maximum size of metrics.json in bytes.
const MAX_BYTES: u64 = 256 << 20;

/// The fields of a protocol that must be equal for two results to be comparable. The models and how they were rolled
/// out may differ: they are what is compared.
const COMPARED: [&str; 14] = [
    "split_hash",
    "on",
    "grid",
    "frames",
    "frame_interval",
    "stride",
    "time_step",
    "steps",
    "start_frames",
    "trajectories",
    "rollouts",
    "records",
    "input",
    "target",
];

/// The protocol of an evaluation, its models and its metrics.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scored {
    /// Task of the evaluated model.
    pub task: String,
    /// Identifies the evaluation: a hash of the whole protocol without paths. A repetition has the same.
    pub evaluation: String,
    /// The part of the protocol that must be equal in a comparison: data, split, rollouts and metric version.
    pub protocol: Map<String, Value>,
    /// The rest of the protocol, which may differ: how the model was evaluated.
    pub settings: Map<String, Value>,
    /// The evaluated model and its dependencies, by task.
    pub models: Map<String, Value>,
    /// Metrics over whole rollouts of all regimes, or over all records: `SPACE.MODEL.QUANTITY`.
    pub metrics: Map<String, Value>,
}

/// A folder written by `evaluate score`.
#[derive(Clone, Debug)]
pub struct Report {
    /// The folder, as given.
    pub path: PathBuf,
    /// Its result.
    pub scored: Scored,
    /// NRMSE by parameter value and model, as in the table of `evaluate score`.
    pub regimes: Vec<(String, Map<String, Value>)>,
}

/// The part of metrics.json that is read.
#[derive(Deserialize)]
struct Metrics {
    format: String,
    version: u64,
    protocol: Map<String, Value>,
    regimes: Vec<Regime>,
    overall: Map<String, Value>,
}

#[derive(Deserialize)]
struct Regime {
    parameter: Parameter,
    nrmse_of_starts: Map<String, Value>,
}

impl Report {
    /// Whether a directory is such a folder.
    pub fn is_at(path: &Path) -> bool {
        path.join("metrics.json").exists()
    }

    /// Reads the result. Errors: 2 for one of texts, 66 if there is none, 65 for a damaged one.
    pub fn read(path: &Path) -> Result<Self> {
        refuse_texts(path)?;
        let file = path.join("metrics.json");
        let bad = |cause: &dyn std::fmt::Display| {
            Error::data(format!(
                "{}: {cause}; it is not a result of evaluate score",
                file.display()
            ))
        };
        let bytes = small::read(&file, MAX_BYTES)?;
        let metrics: Metrics = serde_json::from_slice(&bytes).map_err(|cause| bad(&cause))?;
        if metrics.format != "longhaul-evaluation" {
            return Err(bad(&format_args!("format {}", text::quote(&metrics.format))));
        }
        let scored = Scored::of(&metrics).ok_or_else(|| bad(&"the protocol names no task"))?;
        let of_regime = |regime: Regime| {
            let mean = |(model, value): (String, Value)| (model, value["mean"].clone());
            let models = regime.nrmse_of_starts.into_iter().map(mean).collect();
            (regime.parameter.to_string(), models)
        };
        let regimes = metrics.regimes.into_iter().map(of_regime).collect();
        Ok(Self { path: path.to_path_buf(), scored, regimes })
    }
}

impl Scored {
    fn of(found: &Metrics) -> Option<Self> {
        let task = found.protocol.get("task")?.as_str()?.to_string();
        let mut protocol: Map<String, Value> = COMPARED
            .iter()
            .filter_map(|key| Some((key.to_string(), found.protocol.get(*key)?.clone())))
            .collect();
        // The error of a codec that sees the target is not comparable with that of a prediction.
        let measures = if task == "codec" { "reconstruction" } else { "prediction" };
        protocol.insert("measures".into(), json!(measures));
        protocol.insert("metric_version".into(), json!(found.version));
        let is_model = |value: &Value| value.get("checkpoint").is_some();
        let models = found.protocol.iter().filter(|(_, value)| is_model(value));
        let models: Map<String, Value> = models.map(|(k, v)| (k.clone(), v.clone())).collect();
        let is_setting = |key: &str| {
            !COMPARED.contains(&key)
                && !["task", "split"].contains(&key)
                && !models.contains_key(key)
        };
        let settings = found.protocol.iter().filter(|(key, _)| is_setting(key));
        let settings = settings.map(|(key, value)| (key.clone(), value.clone())).collect();
        let mut identity = found.protocol.clone();
        identity.shift_remove("split");
        for model in models.keys() {
            if let Some(Value::Object(fields)) = identity.get_mut(model) {
                fields.shift_remove("checkpoint");
            }
        }
        identity.insert("metric_version".into(), json!(found.version));
        let evaluation = unix::config::hash(&Value::Object(identity));
        Some(Self { task, evaluation, protocol, settings, models, metrics: metrics(found) })
    }

    /// A metric by its full name `SPACE.MODEL.QUANTITY`; without the space, of the decoded fields; a quantity alone is
    /// that of the evaluated model. None if it was not measured, NaN if it is not finite.
    pub fn metric(&self, name: &str) -> Option<f64> {
        let own = format!("field.{}.{name}", self.task);
        [name, &own, &format!("field.{name}")]
            .iter()
            .find_map(|name| number(self.metrics.get(*name)?))
    }

    /// The fields in which the protocols differ, with both values; empty if results may be compared.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let keys = self
            .protocol
            .keys()
            .chain(other.protocol.keys().filter(|key| !self.protocol.contains_key(*key)));
        let show = |scored: &Self, key: &str| {
            scored.protocol.get(key).map_or_else(|| "none".into(), text::summary)
        };
        keys.filter(|key| self.protocol.get(*key) != other.protocol.get(*key))
            .map(|key| format!("{key} is {} and {}", show(self, key), show(other, key)))
            .collect()
    }

    /// The protocol in one line.
    pub fn describe(&self) -> String {
        let shown = |key: &str| self.protocol.get(key).map_or_else(|| "?".into(), text::summary);
        let list = |key: &str| self.protocol.get(key).and_then(Value::as_array);
        let grid: Vec<String> = list("grid").into_iter().flatten().map(Value::to_string).collect();
        let hash: String = shown("split_hash").chars().take(12).collect();
        let steps = match self.protocol.get("steps").and_then(Value::as_u64) {
            Some(0) => String::new(),
            _ => format!(
                ", {} start frames each, {} rollouts of {} steps of {} frames (dt = {})",
                list("start_frames").map_or(0, Vec::len),
                shown("rollouts"),
                shown("steps"),
                shown("stride"),
                shown("time_step")
            ),
        };
        let measures = match self.protocol.get("measures").and_then(Value::as_str) {
            Some("reconstruction") => "Reconstruction",
            _ => "Prediction",
        };
        if self.protocol.contains_key("records") {
            let side = |key: &str| {
                let side = self.protocol.get(key).and_then(|side| Side::deserialize(side).ok());
                side.map_or("?".into(), |side| side.to_string())
            };
            return format!(
                "{measures} of {} records of the {} split {hash}: inputs with {}, targets with {}",
                shown("records"),
                shown("on"),
                side("input"),
                side("target")
            );
        }
        format!(
            "{measures} of {} trajectories of the {} split {hash} on {} points{steps}",
            shown("trajectories"),
            shown("on"),
            grid.join(" x ")
        )
    }
}

/// Every metric over whole rollouts by path, null where it is not finite, and the mean over regimes of `nrmse_of_starts` of every model, which is
/// the last line of the table of `evaluate score`.
fn metrics(found: &Metrics) -> Map<String, Value> {
    let mut all = Map::new();
    flatten("", &Value::Object(found.overall.clone()), &mut all);
    let mut metrics: Map<String, Value> = all
        .into_iter()
        .filter(|(_, value)| number(value).is_some())
        .map(|(path, value)| (path.strip_suffix(".rollout").unwrap_or(&path).to_string(), value))
        .collect();
    for model in found.regimes.iter().take(1).flat_map(|regime| regime.nrmse_of_starts.keys()) {
        let of_regime = |regime: &Regime| number(&regime.nrmse_of_starts.get(model)?["mean"]);
        let values: Option<Vec<f64>> = found.regimes.iter().map(of_regime).collect();
        if let Some(values) = values {
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            metrics.insert(format!("field.{model}.nrmse_of_starts"), json!(mean));
        }
    }
    metrics
}
