//! `FOLDER/summary.json`: the states, results and times of the steps.
//!
//! Everything except `times` is the same whether or not the pipeline was interrupted. Each step rewrites the file when
//! it ends, so that it also describes a pipeline that stopped at a failed step.

use std::path::PathBuf;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::step::StepState;
use super::{Pipeline, SUMMARY};
use crate::publish::{create_folder, publish_bytes};
use crate::{Result, small, text};

/// Maximum size of a summary in bytes.
const MAX_BYTES: u64 = 256 << 20;

/// The state of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PipelineState {
    /// All steps are up to date.
    Done,
    /// A step failed.
    Failed,
    /// There are steps left to run.
    Unfinished,
}

/// Content of `summary.json`.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// The pipeline file, as given.
    pub pipeline: String,
    /// The state of the pipeline.
    pub state: PipelineState,
    /// The first step that failed.
    pub failed: Option<String>,
    /// The state of each step, and the status of its command.
    pub steps: Map<String, Value>,
    /// The results of steps that are up to date or failed.
    pub results: Map<String, Value>,
    /// Hours, number of attempts and end time of each step.
    pub times: Map<String, Value>,
}

/// Computes the summary of a pipeline. Errors: 65, 66, 74.
pub fn of(pipeline: &Pipeline) -> Result<Summary> {
    let step_statuses = pipeline.step_statuses()?;
    let all_done = step_statuses.iter().all(|step| step.state == StepState::Done);
    let mut summary = Summary {
        pipeline: pipeline.file.display().to_string(),
        state: if all_done { PipelineState::Done } else { PipelineState::Unfinished },
        failed: None,
        steps: Map::new(),
        results: Map::new(),
        times: Map::new(),
    };
    for (at, (step, standing)) in pipeline.steps.iter().zip(step_statuses).enumerate() {
        let name = &step.name;
        if standing.state == StepState::Failed && summary.failed.is_none() {
            summary.state = PipelineState::Failed;
            summary.failed = Some(name.clone());
        }
        let stamp = standing.stamp.as_ref();
        let status = stamp.and_then(|stamp| stamp.status);
        summary.steps.insert(name.clone(), json!({"state": standing.state, "status": status}));
        if let Some(stamp) = stamp {
            let times = json!({
                "hours": standing.hours, "attempts": stamp.attempts, "time": stamp.time,
            });
            summary.times.insert(name.clone(), times);
        }
        if matches!(standing.state, StepState::Done | StepState::Failed)
            && let Some(result) = pipeline.result(at)?
        {
            summary.results.insert(name.clone(), result);
        }
    }
    Ok(summary)
}

/// Writes the summary; returns its path and content. Errors: 65, 66, 73, 74.
///
/// Steps that run concurrently may write it at the same time. Each reads the stamps again after it has written the
/// summary, until they no longer change, so that the last writer has seen all of them.
pub fn write(pipeline: &Pipeline) -> Result<(PathBuf, Summary)> {
    create_folder(&pipeline.folder)?;
    let path = pipeline.folder.join(SUMMARY);
    let mut written = match path.exists() {
        true => small::read(&path, MAX_BYTES).unwrap_or_default(),
        false => Vec::new(),
    };
    loop {
        let summary = of(pipeline)?;
        let bytes = text::json_pretty(&summary)?.into_bytes();
        if bytes == written {
            return Ok((path, summary));
        }
        publish_bytes(&path, &bytes)?;
        written = bytes;
    }
}
