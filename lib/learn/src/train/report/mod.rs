//! Reports of a run to its log, its status file and the terminal.

mod absent;
mod check;
mod estimate;
mod log_errors;
mod memory_parts;
mod predict;
mod system;
mod timing;

pub use absent::{Absent, AbsentEstimate, estimate as estimate_absent};
pub use check::{CheckPoint, CheckedEstimate, DryRun, Outcome, check};
pub use estimate::{Estimate, dry_run};

use super::guard::{Mismatch, Spike};
use super::job::TrainJob;
use super::progress::Progress;
use super::step::{Timing, UpdateResult};
use crate::checkpoint::{Done, Saved};
use crate::config::Training;
use crate::score::Metrics;
use data::inputs::Summary;
use log_errors::LogErrors;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use system::UsageSampler;
use timing::{DataWait, TotalTiming};
use unix::budget::Budget;
use unix::lease::Lease;
use unix::log::Log;
use unix::progress::Progress as Bar;
use unix::run_dir::RunDir;
use unix::status::{Cause, State, Status, StatusWriter};
use unix::{Error, Exit, Result};

/// Reports the progress of a run.
#[derive(Default)]
pub(super) struct Reporter {
    /// Log and status file on rank 0; the other ranks report nothing.
    files: Option<(Log, StatusWriter)>,
    log_errors: LogErrors,
    status_errors: LogErrors,
    status: Status,
    bar: Option<Bar>,
    log_every: u64,
    ranks: usize,
    samples_per_update: u64,
    /// Training samples; 0 if they are unknown.
    samples: u64,
    rate_per_hour: f64,
    updates: u64,
    began: Option<Instant>,
    first_update_seen: bool,
    inputs_recorded: bool,
    /// Warnings of the task that were given.
    warned: Vec<String>,
    total: TotalTiming,
    data_wait: DataWait,
    system: UsageSampler,
}

/// Merges the fields of two objects.
pub(super) fn merged(mut fields: Value, more: impl serde::Serialize) -> Value {
    if let (Value::Object(all), Ok(Value::Object(more))) = (&mut fields, serde_json::to_value(more))
    {
        all.extend(more);
    }
    fields
}

/// Assembles the status of an attempt.
pub(super) fn status(job: &TrainJob, state: State, progress: &Progress, attempt: u64) -> Status {
    Status {
        task: job.task.spec.name.into(),
        state,
        update: progress.update,
        updates: Some(job.task.config.training.updates),
        best: progress.best.clone(),
        cost: progress.cost(),
        attempt,
        ..Status::default()
    }
}

impl Reporter {
    /// Opens the log and the status file, and records the start of an attempt.
    pub fn start(
        job: &TrainJob,
        run: &RunDir,
        lease: &Lease,
        progress: &Progress,
        accepted: &[String],
        budget: &Budget,
        [parameters, samples]: [usize; 2],
    ) -> Result<Self> {
        let training = &job.task.config.training;
        let (attempt, fence) = (lease.attempt(), lease.fence());
        let mut log = Log::open(&run.log(), attempt)?.fenced(fence.clone());
        log.write(
            "start",
            &json!({
                "update": progress.update,
                "skipped_samples": progress.skipped_samples,
                "task": job.task.spec.name,
                "name": job.task.name(),
                "updates": training.updates,
                "parameters": parameters,
                "device": job.device.to_string(),
                "threads": tensor::parallel::threads(),
                "ranks": job.ranks.size(),
                "time_left": budget.to_string(),
                "accepted": accepted,
                // Attempts without progress are counted from this record.
                "restart": job.retry || !accepted.is_empty(),
            }),
        )?;
        let threads = tensor::parallel::threads();
        unix::note!(
            "{}: {} parameters, update {} of {}, {} ({}), {threads} thread{}, time: {budget}",
            job.task.spec.name,
            parameters,
            progress.update,
            training.updates,
            job.device,
            job.why_device,
            if threads == 1 { "" } else { "s" }
        );
        budget.notes.iter().for_each(|note| unix::note!("{note}"));
        let mut bar = Bar::new("updates", training.updates);
        bar.resume_at(progress.update);
        let mut writer = StatusWriter::new(run.status()).fenced(fence.clone());
        let end_time = budget.left().map(|left| unix::time::unix_seconds() + left.as_secs());
        let status = Status { end_time, ..status(job, State::Running, progress, attempt) };
        writer.update(&status)?;
        Ok(Self {
            files: Some((log, writer)),
            status,
            bar: Some(bar),
            ranks: job.ranks.size(),
            samples_per_update: training.samples_per_update(),
            samples: samples as u64,
            rate_per_hour: job.rate_per_hour(),
            began: Some(Instant::now()),
            system: UsageSampler::new(job.device),
            ..Self::silent(training)
        })
    }

    /// Creates the reporter of the other ranks, which reports nothing.
    pub fn silent(training: &Training) -> Self {
        Self { log_every: training.log_every, updates: training.updates, ..Self::default() }
    }

    /// Prints a warning.
    pub fn say(&self, text: &str) {
        if self.files.is_some() {
            unix::warn!("{text}");
        }
    }

    fn note(&self, text: &str) {
        if self.files.is_some() {
            unix::note!("{text}");
        }
    }

    /// Writes a log record. A log that cannot be written, e.g. because the disk is full, does not end the run.
    fn record(&mut self, kind: &str, update: u64, fields: impl serde::Serialize) {
        if let Some((log, _)) = &mut self.files {
            let fields = merged(json!({"update": update}), fields);
            self.log_errors.note(&log.write(kind, &fields));
        }
    }

    fn set_status(&mut self, state: State, progress: &Progress, reason: Option<&str>) {
        self.status.state = state;
        self.status.update = progress.update;
        self.status.best = progress.best.clone();
        self.status.cost = progress.cost();
        self.status.reason = reason.map(str::to_string);
        if let Some((_, writer)) = &mut self.files {
            self.status_errors.note(&writer.update(&self.status));
        }
    }

    /// Reports a completed update.
    pub fn update(&mut self, progress: &Progress, step: &UpdateResult, timing: &Timing) {
        self.total.add(timing);
        if let Some(fraction) = self.data_wait.note(timing, self.total.data_wait()) {
            let text = format!(
                "updates wait for data {:.0} % of the time; raise training.workers, or see what slows the data down",
                100.0 * fraction
            );
            self.warn(progress.update, &text);
        }
        if !self.first_update_seen {
            self.first_update_seen = true;
            let seconds = unix::time::process_start().elapsed().as_secs_f64();
            let fields = json!({"since_exec": seconds, "step": timing.took.as_secs_f64()});
            self.record("first_update", progress.update, fields);
        }
        let done = progress.update;
        if done.is_multiple_of(self.log_every) || done == self.updates || !step.applied {
            let mut fields = json!({
                "samples": progress.samples,
                "loss": step.loss,
                "gradient_norm": step.gradient_norm,
                "learning_rate": step.learning_rate,
                "skipped": progress.skipped,
            });
            if self.samples > 0 {
                fields["epoch"] = json!(progress.samples as f64 / self.samples as f64);
            }
            if self.rate_per_hour > 0.0 {
                fields["cost"] = json!(progress.seconds / 3600.0 * self.rate_per_hour);
            }
            if !step.terms.is_empty() {
                fields = merged(fields, json!({"loss_terms": step.terms}));
            }
            self.record("update", done, merged(fields, timing.record(self.ranks)));
            if self.files.is_some()
                && let Some(fields) = self.system.sample()
            {
                self.record("system", done, fields);
            }
        }
        if !step.applied {
            let UpdateResult { loss, gradient_norm, .. } = step;
            let text = format!("update {done} skipped: loss {loss}, gradient norm {gradient_norm}");
            self.warn(done, &text);
        }
        if let Some(bar) = &mut self.bar {
            bar.message(format!("loss {:.3e}", step.loss));
            bar.set(done);
        }
        self.set_status(State::Running, progress, None);
    }

    /// Records, once, that all input files have been verified.
    pub fn inputs(&mut self, progress: &Progress, summary: Summary) {
        if !self.inputs_recorded {
            self.inputs_recorded = true;
            self.record("inputs", progress.update, summary);
        }
    }

    /// Records a hash of all parameters.
    pub fn hash(&mut self, progress: &Progress, hash: &str) {
        self.record("hash", progress.update, json!({"parameters": hash}));
    }

    /// Records a spike at update number `update`.
    pub fn spike(&mut self, update: u64, spike: &Spike) {
        self.record("spike", update, spike);
    }

    /// Records a rewind. Like a start, it supersedes earlier records of later updates.
    pub fn rewind(
        &mut self,
        progress: &Progress,
        spike_at: u64,
        spike: &Spike,
        superseded: &[String],
        what: &str,
    ) {
        let fields = json!({
            "spike_at": spike_at,
            "spike": spike,
            "rewinds": progress.rewinds,
            "skipped_samples": progress.skipped_samples,
            "superseded": superseded,
        });
        self.record("rewind", progress.update, fields);
        self.say(&format!(
            "{what}: rewound to update {}, continuing with later samples (rewind {})",
            progress.update, progress.rewinds
        ));
        if let Some(bar) = &mut self.bar {
            bar.resume_at(progress.update);
        }
        self.set_status(State::Running, progress, None);
    }

    /// Reports that two computations of the gradients of update number `update` differ.
    pub fn machine(&mut self, update: u64, rank: usize, host: &str, mismatch: &Mismatch) {
        self.record("machine", update, merged(json!({"rank": rank, "host": host}), mismatch));
    }

    /// Reports the metrics of a validation and its duration `took`.
    pub fn validation(
        &mut self,
        progress: &Progress,
        metrics: &Metrics,
        best: bool,
        took: Duration,
    ) {
        let fields = json!({"best": best, "seconds": took.as_secs_f64()});
        self.record("validation", progress.update, merged(fields, metrics));
    }

    /// Records that a save was started and blocked training for `blocked`.
    pub fn checkpoint(&mut self, progress: &Progress, saved: &Saved, blocked: Duration) {
        if let Some(Err(error)) = &saved.previous {
            // The warning has already been printed to stderr.
            self.record("warning", progress.update, json!({"text": error.to_string()}));
        }
        let fields = json!({
            "bytes": saved.bytes,
            "blocked_s": blocked.as_secs_f64(),
            "snapshot_s": saved.snapshot.as_secs_f64(),
            "wait_s": saved.waited.as_secs_f64(),
        });
        self.record("checkpoint", progress.update, fields);
    }

    /// Reports that a checkpoint was saved and verified.
    pub fn saved(&mut self, done: &Done) {
        let (fsync, seconds) = (done.durable.as_secs_f64(), done.took.as_secs_f64());
        let fields = json!({"fsync_s": fsync, "seconds": seconds, "removed": done.removed});
        self.record("saved", done.update, fields);
    }

    /// Reports a failed save after which the run continues. A lost lease is not reported here, because it ends the run.
    pub fn unsaved(&mut self, progress: &Progress, error: &Error) {
        if error.exit != Exit::Again {
            self.warn(progress.update, &format!("checkpoint not saved: {error}"));
        }
    }

    /// Prints and logs a warning.
    pub fn warn(&mut self, update: u64, text: &str) {
        self.say(text);
        self.record("warning", update, json!({"text": text}));
    }

    /// Prints and logs a warning that this attempt has not given yet.
    pub fn warn_once(&mut self, update: u64, text: String) {
        if !self.warned.contains(&text) {
            self.warn(update, &text);
            self.warned.push(text);
        }
    }

    fn end(&mut self, state: State, progress: &Progress, reason: &str) {
        let fields = json!({
            "state": state,
            "reason": reason,
            "seconds": self.began.map_or(0.0, |began| began.elapsed().as_secs_f64()),
            "device_waits": tensor::kernel::waits(),
            "read_retries": unix::retry::count(),
        });
        let fields = merged(fields, self.total.record(self.ranks, self.samples_per_update));
        self.record("stop", progress.update, fields);
        if let Some(Err(error)) = self.files.as_ref().map(|(log, _)| log.sync()) {
            unix::warn!("{error}");
        }
        self.set_status(state, progress, Some(reason));
    }

    /// Reports a finished run: all updates are done, or early stopping ended it.
    pub fn finished(&mut self, progress: &Progress, reason: &str) {
        self.end(State::Finished, progress, reason);
        let best = progress.best.as_ref().map_or(String::new(), |best| {
            format!("; best {} {:.4} at update {}", best.metric, best.value, best.update)
        });
        self.note(&format!("finished at update {}: {reason}{best}", progress.update));
    }

    /// Reports a stop with a checkpoint to resume from.
    pub fn stopped(&mut self, progress: &Progress, reason: &str) {
        self.end(State::Stopped, progress, reason);
        self.note(&format!(
            "stopped at update {} of {}: {reason}; run the same command again to resume",
            progress.update, self.updates
        ));
    }

    /// Reports a failure because an input file does not match its record. The attempt does not count as one without
    /// progress.
    pub fn refused(&mut self, progress: &Progress, reason: &str) {
        self.record("refused", progress.update, json!({}));
        self.failed(progress, reason, None);
        if self.files.is_some() {
            unix::diagnostics::say(reason);
        }
    }

    /// Reports a failure that would recur in another attempt.
    pub fn blocked(&mut self, progress: &Progress, reason: &str, cause: Cause) {
        self.status.blocked = true;
        self.failed(progress, reason, Some(cause));
    }

    /// Reports a failure.
    pub fn failed(&mut self, progress: &Progress, reason: &str, cause: Option<Cause>) {
        self.status.cause = cause;
        self.end(State::Failed, progress, reason);
    }
}
