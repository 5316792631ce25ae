//! `status.json`: the current state of a run, read by people, `ckpt` and the next attempt.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::lease::{Fence, FencedDisk};
use crate::publish::{Publisher, publish_bytes};
use crate::time::now_utc;
use crate::{Error, Result, small, text};

/// Maximum size of a status file in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Minimum time between two writes while the state stays the same, to reduce the load on shared file systems.
const INTERVAL: Duration = Duration::from_secs(5);

/// The state of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Running, or killed before it could write another state: the mtime of the file is then old.
    #[default]
    Running,
    /// Stopped early with a checkpoint; run it again.
    Stopped,
    /// Complete; another attempt ends immediately.
    Finished,
    /// Ended with an error; see `reason` and `blocked`.
    Failed,
}

/// The cause of a failure, for programs; `reason` describes it for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The host or the device ran out of memory.
    OutOfMemory,
    /// Losses or gradients were non-finite too many times.
    Diverged,
    /// The loss or the gradient norm spiked, and the run could not be rewound.
    Spike,
    /// Several consecutive attempts made no progress.
    NoProgress,
}

/// The best value of the monitored metric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// Name of the metric.
    pub metric: String,
    /// Value of the metric.
    pub value: f64,
    /// Number of the update after which the metric was measured.
    pub update: u64,
}

/// The cost of the run so far, over all attempts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Wall-clock hours.
    pub hours: f64,
    /// Wall-clock hours times the number of devices.
    pub device_hours: f64,
}

/// Content of `status.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Kind of the training task.
    pub task: String,
    /// State of the run.
    pub state: State,
    /// Number of completed updates.
    pub update: u64,
    /// Total number of updates, if known.
    pub updates: Option<u64>,
    /// Best metric so far.
    pub best: Option<Best>,
    /// Cost so far.
    #[serde(default)]
    pub cost: Cost,
    /// Number of the attempt that wrote this status, starting at 1.
    #[serde(default)]
    pub attempt: u64,
    /// Time at which the time limit ends the attempt, in seconds since 1970; `None` without a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_time: Option<u64>,
    /// Why the run stopped or failed.
    pub reason: Option<String>,
    /// The cause of a failure, if it is one of the known causes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
    /// Whether the run failed in a way that another attempt would repeat; further attempts end immediately until the
    /// user intervenes.
    #[serde(default)]
    pub blocked: bool,
    /// For work other than training ([`crate::work`]): the number of consecutive attempts, including this one, that
    /// stored nothing a later attempt can use.
    #[serde(default)]
    pub fruitless_attempts: u64,
    /// Time of writing, UTC; set by [`StatusWriter`].
    #[serde(default)]
    pub time: String,
}

/// Reads a status; `None` if there is none yet. Errors: 65 for a damaged file, 66, 74.
pub fn read(path: &Path) -> Result<Option<Status>> {
    small::read_json(path, MAX_BYTES, "move the file away to continue without it")
}

/// Replaces `status.json` when the state changes, and otherwise every few seconds.
#[derive(Debug)]
pub struct StatusWriter {
    path: PathBuf,
    last: Option<(State, Instant)>,
    fence: Option<Fence>,
}

impl StatusWriter {
    /// Creates a writer for this path; writes nothing yet.
    pub fn new(path: PathBuf) -> Self {
        Self { path, last: None, fence: None }
    }

    /// Makes every write first check that this process still holds the lease.
    pub fn fenced(mut self, fence: Fence) -> Self {
        self.fence = Some(fence);
        self
    }

    /// Writes the status if its state changed or the last write was at least five seconds ago.
    pub fn update(&mut self, status: &Status) -> Result<()> {
        let due =
            self.last.is_none_or(|(state, at)| state != status.state || at.elapsed() >= INTERVAL);
        if due { self.write(status) } else { Ok(()) }
    }

    /// Writes the status now. Errors: 73, 74; 75 when the lease was lost.
    pub fn write(&mut self, status: &Status) -> Result<()> {
        self.fence.as_ref().map_or(Ok(()), Fence::check_now)?;
        let stamped = Status { time: now_utc(), ..status.clone() };
        let text = text::json_pretty(&stamped)?;
        crate::fail::point("status.write").map_err(|cause| Error::io(&self.path, cause))?;
        match &self.fence {
            None => publish_bytes(&self.path, text.as_bytes())?,
            Some(fence) => {
                let disk = FencedDisk::new(fence.clone());
                Publisher::new(&disk).bytes(&self.path, text.as_bytes())?;
            }
        }
        self.last = Some((status.state, Instant::now()));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Exit;

    fn status(state: State, update: u64) -> Status {
        Status {
            task: "regress".into(),
            state,
            update,
            updates: Some(100),
            best: Some(Best { metric: "nrmse".into(), value: 0.125, update: 7 }),
            cost: Cost { hours: 1.5, device_hours: 6.0 },
            attempt: 2,
            end_time: None,
            reason: None,
            cause: None,
            blocked: false,
            fruitless_attempts: 0,
            time: String::new(),
        }
    }

    #[test]
    fn written_on_a_change_of_state_and_not_on_every_update() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("status.json");
        assert_eq!(read(&path).unwrap(), None);
        let mut writer = StatusWriter::new(path.clone());
        // Only the first of two updates within the interval is written; retry in case this machine is slow.
        let in_time = (0..20).any(|_| {
            let began = Instant::now();
            writer = StatusWriter::new(path.clone());
            writer.update(&status(State::Running, 1)).unwrap();
            writer.update(&status(State::Running, 2)).unwrap();
            began.elapsed() < INTERVAL
        });
        assert!(in_time, "this machine is too slow");
        let found = read(&path).unwrap().unwrap();
        assert_eq!(found.update, 1, "the second came too early");
        assert!(found.time.ends_with('Z'));
        assert_eq!(Status { time: String::new(), ..found }, status(State::Running, 1));
        writer.update(&status(State::Stopped, 2)).unwrap();
        assert_eq!(read(&path).unwrap().unwrap().update, 2);
    }

    #[test]
    fn a_damaged_status_is_bad_data() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("status.json");
        std::fs::write(&path, "{\"task\": \"reg").unwrap();
        let error = read(&path).unwrap_err();
        assert_eq!(error.exit, Exit::Data);
        assert!(error.to_string().contains("status.json"), "{error}");
    }
}
