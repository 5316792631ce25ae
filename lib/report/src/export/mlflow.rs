//! Logs a run to an MLflow server over its REST API
//! (<https://mlflow.org/docs/latest/api_reference/rest-api.html>).
//!
//! The run is found by its tag `longhaul.run_id`, and only data that the server lacks are sent. The server cannot
//! delete points: if some of its points have been superseded since, the run is deleted there and logged again.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Value, json};
use unix::status::State;
use unix::{Error, Exit, Result, warn};

use super::client::{Answer, Client};
use super::run::{json_number, value_text};
use super::{Evaluation, Labels, Run};

/// Maximum numbers of metrics and parameters in a request to `runs/log-batch`.
const METRICS: usize = 1000;
const PARAMS: usize = 100;
/// Maximum number of characters of a parameter's value.
const VALUE: usize = 6000;

/// A run on the server.
#[derive(Clone, Debug)]
pub struct LoggedRun {
    /// URL of its page.
    pub url: String,
    /// Number of points that were sent.
    pub points: usize,
}

/// A value of a metric at a step.
struct Point {
    key: String,
    value: f64,
    /// Milliseconds since 1970.
    time: i64,
    step: u64,
}

/// The state of a run on the server.
struct Remote {
    id: String,
    /// URI of its artifacts.
    artifacts: String,
    /// Step and time of the last point of every metric.
    last: HashMap<String, (u64, i64)>,
    params: HashMap<String, String>,
    started: Option<String>,
}

/// Creates or completes a run in the experiment named after the project. If a different run has the same name, replaces
/// it with `replace`, otherwise fails with 73. Other errors: 74 if the server cannot be reached, 1 if it refuses a
/// request.
pub fn log(client: &Client, run: &Run, labels: &Labels, replace: bool) -> Result<LoggedRun> {
    let experiment = experiment(client, &labels.project)?;
    let points = points(run);
    let mut remote = find(client, &experiment, run)?;
    if let Some(found) = &remote {
        let is_other = found.started.as_ref().is_some_and(|own| *own != run.started_text());
        if is_other && !replace {
            let (url, id, project) = (client.url(), &run.id, &labels.project);
            let text = "choose another --project, or replace it with --force";
            return Err(Error::new(
                Exit::CannotCreate,
                format!("{url}: experiment {project} has a different run named {id}; {text}"),
            ));
        }
        if is_other || has_superseded(found, &points) {
            let why = if is_other { "a different run" } else { "a run with superseded points" };
            warn!("{}: {}: replacing {why}", client.url(), run.id);
            client.post("runs/delete", &json!({"run_id": found.id}))?;
            remote = None;
        }
    }
    let remote = match remote {
        Some(found) => found,
        None => create(client, &experiment, run, labels)?,
    };
    set_params(client, &remote, run)?;
    let mut missing: Vec<&Point> = points
        .iter()
        .filter(|point| remote.last.get(&point.key).is_none_or(|(step, _)| *step < point.step))
        .collect();
    let mut of_evaluations = Vec::new();
    for evaluation in &run.evaluations {
        let scores = scores(run, evaluation);
        let is_known =
            |point: &Point| remote.last.get(&point.key) == Some(&(point.step, point.time));
        if scores.is_empty() || !scores.iter().all(is_known) {
            upload(client, &remote, evaluation)?;
            of_evaluations.extend(scores);
        }
    }
    missing.extend(&of_evaluations);
    for part in missing.chunks(METRICS) {
        let metrics: Vec<Value> = part.iter().map(|point| point.json()).collect();
        let body = json!({"run_id": remote.id, "metrics": metrics});
        client.post("runs/log-batch", &body)?;
    }
    let tags = tags(run, labels);
    client.post("runs/log-batch", &json!({"run_id": remote.id, "tags": tags}))?;
    let mut update = json!({"run_id": remote.id, "status": status(run)});
    if run.has_ended() {
        update["end_time"] = json!(milliseconds(run.last));
    }
    client.post("runs/update", &update)?;
    let url = format!("{}/#/experiments/{experiment}/runs/{}", client.url(), remote.id);
    Ok(LoggedRun { url, points: missing.len() })
}

impl Point {
    fn json(&self) -> Value {
        let value = json_number(self.value);
        json!({"key": self.key, "value": value, "timestamp": self.time, "step": self.step})
    }
}

/// Collects the values of all metrics, ordered by step.
fn points(run: &Run) -> Vec<Point> {
    let of_step = |step: &super::RecordedUpdate| {
        let (time, update) = (milliseconds(step.time), step.update);
        let point = |(name, value): &(String, f64)| Point {
            key: key(name),
            value: *value,
            time,
            step: update,
        };
        step.values.iter().map(point).collect::<Vec<_>>()
    };
    run.steps.iter().flat_map(of_step).collect()
}

fn scores(run: &Run, evaluation: &Evaluation) -> Vec<Point> {
    let (time, step) = (milliseconds(evaluation.time), run.update_of(evaluation));
    let metrics = evaluation.metrics.iter();
    metrics
        .map(|(name, value)| Point {
            key: key(&format!("evaluation/{}/{name}", evaluation.name)),
            value: *value,
            time,
            step,
        })
        .collect()
}

/// Returns the name with `_` in place of every character that MLflow refuses.
fn key(name: &str) -> String {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "_-. :/".contains(c);
    name.chars().map(|c| if is_allowed(c) { c } else { '_' }).take(250).collect()
}

fn milliseconds(seconds: f64) -> i64 {
    (1e3 * seconds).round() as i64
}

/// Whether the server has a point that is not in the log any more. Superseded points were recorded before those that
/// replace them, so it suffices to look at the last point of every metric.
fn has_superseded(remote: &Remote, points: &[Point]) -> bool {
    let mut ours: HashMap<&str, BTreeMap<u64, i64>> = HashMap::new();
    for point in points {
        ours.entry(&point.key).or_default().insert(point.step, point.time);
    }
    let is_gone = |(key, (step, time)): (&String, &(u64, i64))| {
        ours.get(&**key).is_some_and(|ours| ours.get(step) != Some(time))
    };
    remote.last.iter().any(is_gone)
}

/// Returns the id of an experiment, creating it if it does not exist.
fn experiment(client: &Client, name: &str) -> Result<String> {
    let id = |value: &Value| value["experiment_id"].as_str().map(str::to_string);
    let unknown = || Error::failure(format!("{}: experiment {name} has no id", client.url()));
    for attempt in 0.. {
        match client.get("experiments/get-by-name", ("experiment_name", name))? {
            Answer::Done(found) if found["experiment"]["lifecycle_stage"] == "deleted" => {
                return Err(Error::failure(format!(
                    "{}: experiment {name} was deleted; restore it, or choose another --project",
                    client.url()
                )));
            }
            Answer::Done(found) => return id(&found["experiment"]).ok_or_else(unknown),
            Answer::Refused(code, error) if code != "RESOURCE_DOES_NOT_EXIST" => return Err(error),
            Answer::Refused(..) => {}
        }
        match client.try_post("experiments/create", &json!({"name": name}))? {
            Answer::Done(made) => return id(&made).ok_or_else(unknown),
            // Another process has created it first.
            Answer::Refused(code, _) if code == "RESOURCE_ALREADY_EXISTS" && attempt == 0 => {}
            Answer::Refused(_, error) => return Err(error),
        }
    }
    Err(unknown())
}

fn find(client: &Client, experiment: &str, run: &Run) -> Result<Option<Remote>> {
    let body = json!({
        "experiment_ids": [experiment],
        "filter": format!("tags.\"longhaul.run_id\" = '{}'", run.id),
        "max_results": 1,
    });
    let found = client.post("runs/search", &body)?;
    Ok(found["runs"].get(0).and_then(remote))
}

/// Parses a run of the server: JSON of protocol buffers, where 64-bit numbers may be strings and empty lists are
/// absent.
fn remote(run: &Value) -> Option<Remote> {
    let list = |name: &str| run["data"][name].as_array().into_iter().flatten();
    let number = |value: &Value| value.as_i64().or_else(|| value.as_str()?.parse().ok());
    let text = |value: &Value| value.as_str().map(str::to_string);
    let pair = |item: &Value| Some((text(&item["key"])?, text(&item["value"])?));
    let last = list("metrics").filter_map(|metric| {
        let step = u64::try_from(number(&metric["step"]).unwrap_or(0)).ok()?;
        Some((text(&metric["key"])?, (step, number(&metric["timestamp"])?)))
    });
    let mut tags = list("tags").filter_map(pair);
    Some(Remote {
        id: text(&run["info"]["run_id"])?,
        artifacts: text(&run["info"]["artifact_uri"]).unwrap_or_default(),
        last: last.collect(),
        params: list("params").filter_map(pair).collect(),
        started: tags.find(|(key, _)| key == "longhaul.started").map(|(_, value)| value),
    })
}

fn create(client: &Client, experiment: &str, run: &Run, labels: &Labels) -> Result<Remote> {
    let body = json!({
        "experiment_id": experiment,
        "start_time": milliseconds(run.started),
        "run_name": run.shown_name(labels),
        "tags": tags(run, labels),
    });
    let made = client.post("runs/create", &body)?;
    remote(&made["run"])
        .ok_or_else(|| Error::failure(format!("{}: the new run has no id", client.url())))
}

fn tags(run: &Run, labels: &Labels) -> Vec<Value> {
    let tag = |key: &str, value: &str| json!({"key": key, "value": value});
    let mut tags = vec![
        tag("longhaul.run_id", &run.id),
        tag("longhaul.started", &run.started_text()),
        tag("mlflow.runName", run.shown_name(labels)),
    ];
    tags.extend(labels.notes.iter().map(|notes| tag("mlflow.note.content", notes)));
    tags.extend(labels.tags.iter().map(|own| tag(&key(own), "true")));
    let facts = run.facts.iter();
    tags.extend(facts.map(|(name, value)| tag(&format!("longhaul.{name}"), &value_text(value))));
    tags
}

fn status(run: &Run) -> &'static str {
    match run.state {
        Some(State::Finished) => "FINISHED",
        Some(State::Failed) => "FAILED",
        // The run will be started again.
        Some(State::Stopped) => "SCHEDULED",
        Some(State::Running) | None => "RUNNING",
    }
}

/// Sends the parameters that the server lacks; the server refuses to change existing ones.
fn set_params(client: &Client, remote: &Remote, run: &Run) -> Result<()> {
    let mut params = Vec::new();
    for (name, value) in run.hyperparameters() {
        let (name, value) =
            (key(&name), value_text(&value).chars().take(VALUE).collect::<String>());
        match remote.params.get(&name) {
            None => params.push(json!({"key": name, "value": value})),
            Some(old) if *old != value => {
                warn!("{}: {name} stays {old}: MLflow keeps the first value", client.url());
            }
            Some(_) => {}
        }
    }
    for part in params.chunks(PARAMS) {
        client.post("runs/log-batch", &json!({"run_id": remote.id, "params": part}))?;
    }
    Ok(())
}

/// Stores the files of an evaluation as artifacts, if the server accepts them.
fn upload(client: &Client, remote: &Remote, evaluation: &Evaluation) -> Result<()> {
    let Some(root) = remote.artifacts.strip_prefix("mlflow-artifacts:") else {
        let place = &remote.artifacts;
        warn!("{}: tables and pictures not stored: artifacts are in {place}", client.url());
        return Ok(());
    };
    // mlflow-artifacts:/PATH or mlflow-artifacts://HOST/PATH
    let root = match root.strip_prefix("//") {
        Some(rest) => rest.split_once('/').map_or("", |(_, path)| path),
        None => root.trim_start_matches('/'),
    };
    for (name, bytes) in evaluation.files()? {
        client.put(&format!("{root}/evaluations/{}/{name}", evaluation.name), &bytes)?;
    }
    Ok(())
}
