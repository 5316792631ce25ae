//! `FOLDER/NAME/step.json`: the stamp of a step, which records for which key the step has run.
//!
//! `timekeep run` writes the stamp without a status before it starts the command, and with the status after the command
//! has ended. A step is up to date if its stamp has the current key and status 0, and every path that the command names
//! and that existed when the command ended still exists.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Pipeline, PipelineStep, paths, summary};
use crate::publish::{create_folder, publish_bytes};
use crate::slurm::Slurm;
use crate::timekeep::Ended;
use crate::{Error, Exit, Result, note, small, status, text, time, warn};

/// Environment variable with the step that `timekeep run` and `timekeep submit` work on; not passed to the command.
pub const STEP_VARIABLE: &str = "LONGHAUL_STEP";

/// Maximum size of a stamp in bytes.
const MAX_BYTES: u64 = 1 << 20;
/// Time that a job waits for the stamp of a step that has just ended on another node, because network file systems
/// cache the absence of a file.
const STAMP_PATIENCE: Duration = Duration::from_secs(60);
/// Maximum size of a result in bytes.
const MAX_RESULT_BYTES: u64 = 16 << 20;

/// Content of `step.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stamp {
    /// The key of the step when its command started.
    pub key: String,
    /// Exit status of the command; `None` while it runs, and after it was killed together with timekeep.
    pub status: Option<u8>,
    /// Run time in seconds of all attempts with this key that timekeep saw end.
    pub seconds: f64,
    /// Number of attempts with this key.
    pub attempts: u64,
    /// The paths named in the command that existed when the command ended.
    pub paths: Vec<PathBuf>,
    /// Time of writing, UTC.
    pub time: String,
}

impl Stamp {
    /// Whether the command failed, as opposed to having been stopped.
    pub fn failed(&self) -> bool {
        self.status.is_some_and(|status| ![0, Exit::Again as u8].contains(&status))
    }
}

/// Reads a stamp; `None` if there is none. Errors: 65, 66, 74.
pub fn read(path: &Path) -> Result<Option<Stamp>> {
    small::read_json(path, MAX_BYTES, "remove it to run the step again")
}

/// The state of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum StepState {
    /// Up to date.
    Done,
    /// The command failed.
    Failed,
    /// The steps that it depends on are up to date, so it can run; it may be running.
    Ready,
    /// It depends on a step that is not up to date.
    Waiting,
}

/// The status of a step.
#[derive(Clone, Debug)]
pub struct StepStatus {
    /// State of the step.
    pub state: StepState,
    /// Current key of the step.
    pub key: String,
    /// Stamp of the step, if it has one with this key.
    pub stamp: Option<Stamp>,
    /// Run time in hours so far, if known.
    pub hours: Option<f64>,
}

impl Pipeline {
    fn stamp_of(&self, at: usize) -> PathBuf {
        self.folder_of(at).join("step.json")
    }

    /// Returns the status of all steps. Errors: 65, 66, 74.
    pub fn step_statuses(&self) -> Result<Vec<StepStatus>> {
        let mut step_statuses = Vec::<StepStatus>::new();
        for (at, key) in self.keys()?.into_iter().enumerate() {
            let stamp = read(&self.stamp_of(at))?;
            let stamp = stamp.filter(|stamp| stamp.key == key);
            let is_done = |stamp: &Stamp| {
                stamp.status == Some(0) && stamp.paths.iter().all(|path| path.exists())
            };
            let mut before = self.steps[at].after.iter();
            let state = match &stamp {
                Some(stamp) if is_done(stamp) => StepState::Done,
                _ if before.any(|at| step_statuses[*at].state != StepState::Done) => {
                    StepState::Waiting
                }
                Some(stamp) if stamp.failed() => StepState::Failed,
                _ => StepState::Ready,
            };
            // The status of a run also counts attempts that were killed.
            let status = status::read(&self.folder_of(at).join("status.json")).ok().flatten();
            let hours = status.map(|status| status.cost.hours).filter(|hours| *hours > 0.0);
            let hours = hours.or(stamp.as_ref().map(|stamp| stamp.seconds / 3600.0));
            step_statuses.push(StepStatus { state, key, stamp, hours });
        }
        Ok(step_statuses)
    }

    /// Like [`Self::step_statuses`], for a step that is about to run: in a job, waits for the stamps of the steps
    /// before it.
    fn step_statuses_for(&self, at: usize) -> Result<Vec<StepStatus>> {
        let patience = Slurm::from_environment().map_or(Duration::ZERO, |_| STAMP_PATIENCE);
        let start = Instant::now();
        loop {
            let step_statuses = self.step_statuses()?;
            if step_statuses[at].state != StepState::Waiting || start.elapsed() >= patience {
                return Ok(step_statuses);
            }
            std::thread::sleep(Duration::from_secs(1));
        }
    }

    /// Returns the result of a step; `None` if it has none, or has not written it yet.
    pub(super) fn result(&self, at: usize) -> Result<Option<Value>> {
        let advice = "the result of a step must be a JSON file";
        match &self.steps[at].result {
            Some(path) => small::read_json(path, MAX_RESULT_BYTES, advice),
            None => Ok(None),
        }
    }
}

/// Reads the pipeline `FILE` and finds the step `NAME` of `FILE:NAME`. Errors: 2, 66, 78.
fn open(step: &str) -> Result<(Pipeline, usize)> {
    let (file, name) = step
        .rsplit_once(':')
        .filter(|(file, name)| !file.is_empty() && !name.is_empty())
        .ok_or_else(|| Error::usage(format!("step {step}: expected FILE:NAME")))?;
    let pipeline = Pipeline::load(Path::new(file))?;
    let at = pipeline.find(name)?;
    Ok((pipeline, at))
}

/// Whether the step `FILE:NAME` is up to date. Errors: 2, 65, 66, 74, 78.
pub fn is_done(step: &str) -> Result<bool> {
    let (pipeline, at) = open(step)?;
    Ok(pipeline.step_statuses()?[at].state == StepState::Done)
}

/// A step that `timekeep run` works on.
#[derive(Debug)]
pub struct Attempt {
    pipeline: Pipeline,
    at: usize,
    stamp: Stamp,
}

impl Attempt {
    /// Prepares to run the step `FILE:NAME`. A non-empty `command` is run instead of the step's own command, and must
    /// end with its words. Returns the command, or `None` if the step is up to date. Errors: 1 if a step that it
    /// depends on is not up to date; 2, 65, 66, 73, 74, 78.
    pub fn begin(step: &str, command: Vec<OsString>) -> Result<Option<(Self, Vec<OsString>)>> {
        let (pipeline, at) = open(step)?;
        let (file, PipelineStep { name, words, after, result, .. }) =
            (pipeline.file.display(), &pipeline.steps[at]);
        if !command.is_empty()
            && !command.ends_with(&words.iter().map(OsString::from).collect::<Vec<_>>())
        {
            return Err(Error::config(format!(
                "{file}: the command of step {name} has changed since this one was given; cancel the job if it is \
                 one, and run pipeline.sh again"
            )));
        }
        let step_statuses = pipeline.step_statuses_for(at)?;
        if step_statuses[at].state == StepState::Done {
            note!("{file}: step {name} is up to date");
            summary::write(&pipeline)?;
            return Ok(None);
        }
        if let Some(before) = after.iter().find(|at| step_statuses[**at].state != StepState::Done) {
            return Err(Error::failure(format!(
                "{file}: step {name} comes after {}, which is not up to date; run pipeline.sh again",
                pipeline.steps[*before].name
            )));
        }
        let command = match command.is_empty() {
            true => words.iter().map(OsString::from).collect(),
            false => command,
        };
        // Remove the old result; otherwise the summary would show it for a command that fails.
        if let Some(path) = result.as_ref().filter(|path| path.is_file()) {
            std::fs::remove_file(path).map_err(|cause| Error::io(path, cause))?;
        }
        let StepStatus { key, stamp: earlier, .. } = step_statuses[at].clone();
        let (seconds, attempts) = earlier.map_or((0.0, 0), |e| (e.seconds, e.attempts));
        let (attempts, paths) = (attempts + 1, Vec::new());
        let stamp = Stamp { key, status: None, seconds, attempts, paths, time: time::now_utc() };
        let attempt = Self { pipeline, at, stamp };
        attempt.write(&attempt.stamp)?;
        Ok(Some((attempt, command)))
    }

    /// Records how the command ended, and rewrites the summary. Errors: 65, 66 for a damaged or missing result of a
    /// command that succeeded; 73, 74.
    pub fn end(&self, ended: &Ended) -> Result<()> {
        let (pipeline, step) = (&self.pipeline, &self.pipeline.steps[self.at]);
        let recorded = if ended.status == 0 { self.succeed(ended) } else { self.stamp(ended) };
        match recorded.and_then(|()| summary::write(pipeline).map(drop)) {
            // The exit status of a stopped command determines what happens next, so return it even if the disk is full.
            Err(error) if ended.status != 0 => {
                warn!("step {} is not recorded: {error}", step.name);
                Ok(())
            }
            other => other,
        }
    }

    fn succeed(&self, ended: &Ended) -> Result<()> {
        let (pipeline, name) = (&self.pipeline, &self.pipeline.steps[self.at].name);
        if let Some(path) = &pipeline.steps[self.at].result
            && pipeline.result(self.at)?.is_none()
        {
            let what = format_args!("step {name} has not written its result");
            return Err(Error::open(path, what).context(pipeline.file.display()));
        }
        if pipeline.keys()?[self.at] != self.stamp.key {
            warn!(
                "a file that step {name} names has changed while it ran, so it will run again; write its outputs to {}",
                pipeline.folder_of(self.at).display()
            );
        }
        self.stamp(ended)
    }

    fn stamp(&self, ended: &Ended) -> Result<()> {
        let named = paths(&self.pipeline.steps[self.at].words).map(PathBuf::from);
        let mut paths: Vec<PathBuf> = named.filter(|path| path.exists()).collect();
        paths.sort();
        paths.dedup();
        let (status, time) = (Some(ended.status), time::now_utc());
        let seconds = self.stamp.seconds + ended.seconds;
        self.write(&Stamp { status, seconds, paths, time, ..self.stamp.clone() })
    }

    fn write(&self, stamp: &Stamp) -> Result<()> {
        create_folder(&self.pipeline.folder_of(self.at))?;
        let text = text::json_pretty(stamp)?;
        publish_bytes(&self.pipeline.stamp_of(self.at), text.as_bytes())
    }
}
