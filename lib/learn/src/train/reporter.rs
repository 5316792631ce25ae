//! What a run says: to its log, its status file, and the person in front of the terminal.

use super::learner::{Learner, Step};
use super::progress::Progress;
use super::session::Job;
use super::trouble::Trouble;
use super::verify::Mismatch;
use super::watch::Spike;
use crate::checkpoint::{Done, Saved};
use crate::stages::{Metrics, Stage};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use unix::budget::Budget;
use unix::lease::Lease;
use unix::log::Log;
use unix::progress::Progress as Bar;
use unix::run_dir::RunDir;
use unix::status::{Cost, State, Status, StatusWriter};
use unix::{Error, Exit, Result};

/// What a run says.
pub(super) struct Reporter {
    log: Log,
    log_trouble: Trouble,
    status: StatusWriter,
    status_trouble: Trouble,
    now: Status,
    bar: Bar,
    log_every: u64,
    updates: u64,
    began: Instant,
    first_update_seen: bool,
    /// Since the start: time in updates and in waiting for data.
    busy: Duration,
    stalled: Duration,
}

/// The fields of `of`, after one more.
fn with(key: &str, value: u64, of: &impl serde::Serialize) -> Value {
    let mut fields = serde_json::Map::from_iter([(key.to_string(), json!(value))]);
    if let Ok(Value::Object(more)) = serde_json::to_value(of) {
        fields.extend(more);
    }
    Value::Object(fields)
}

impl Reporter {
    pub fn start<S: Stage>(
        job: &Job<S>,
        run: &RunDir,
        lease: &Lease,
        progress: &Progress,
        accepted: &[String],
        budget: &Budget,
        learner: &Learner,
    ) -> Result<Self> {
        let training = &job.config.training;
        let (attempt, fence) = (lease.attempt(), lease.fence());
        let mut log = Log::open(&run.log(), attempt)?.fenced(fence.clone());
        log.write(
            "start",
            &json!({
                "update": progress.update,
                "passed_over": progress.passed_over,
                "stage": S::NAME,
                "updates": training.updates,
                "parameters": learner.params.count(),
                "device": job.device.to_string(),
                "threads": tensor::parallel::threads(),
                "ranks": job.ranks.size(),
                "time_left": budget.to_string(),
                "accepted": accepted,
                // Attempts in vain are counted from here.
                "anew": job.retry || !accepted.is_empty(),
            }),
        )?;
        unix::note!(
            "{}: {} parameters, update {} of {}, {} ({}), {} threads, time: {budget}",
            S::NAME,
            learner.params.count(),
            progress.update,
            training.updates,
            job.device,
            job.why_device,
            tensor::parallel::threads()
        );
        budget.notes.iter().for_each(|note| unix::note!("{note}"));
        let mut bar = Bar::new("updates", training.updates);
        bar.resume_at(progress.update);
        let mut status = StatusWriter::new(run.status()).fenced(fence.clone());
        let now = Status {
            stage: S::NAME.into(),
            state: State::Running,
            update: progress.update,
            updates: Some(training.updates),
            best: progress.best.clone(),
            cost: Cost::default(),
            attempt,
            reason: None,
            held: false,
            time: String::new(),
        };
        status.update(&now)?;
        Ok(Self {
            log,
            log_trouble: Trouble::default(),
            status,
            status_trouble: Trouble::default(),
            now,
            bar,
            log_every: training.log_every,
            updates: training.updates,
            began: Instant::now(),
            first_update_seen: false,
            busy: Duration::ZERO,
            stalled: Duration::ZERO,
        })
    }

    /// Writes a record; a log that cannot be written (a full disk) does not end the run.
    fn record(&mut self, kind: &str, fields: &Value) {
        self.log_trouble.tell(&self.log.write(kind, fields));
    }

    fn stand(&mut self, state: State, progress: &Progress, reason: Option<&str>) {
        self.now.state = state;
        self.now.update = progress.update;
        self.now.best = progress.best.clone();
        self.now.cost = progress.cost();
        self.now.reason = reason.map(str::to_string);
        self.status_trouble.tell(&self.status.update(&self.now));
    }

    pub fn update(
        &mut self,
        progress: &Progress,
        loss: f64,
        step: &Step,
        took: Duration,
        stall: Duration,
    ) -> Result<()> {
        self.busy += took;
        self.stalled += stall;
        if !self.first_update_seen {
            self.first_update_seen = true;
            let seconds = unix::time::process_start().elapsed().as_secs_f64();
            self.record(
                "first_update",
                &json!({"update": progress.update, "since_exec": seconds, "step": took.as_secs_f64()}),
            );
        }
        let done = progress.update;
        if done.is_multiple_of(self.log_every) || done == self.updates || !step.applied {
            self.record(
                "update",
                &json!({
                    "update": done,
                    "samples": progress.samples,
                    "loss": loss,
                    "gradient_norm": step.gradient_norm,
                    "learning_rate": step.learning_rate,
                    "skipped": progress.skipped,
                    "seconds": took.as_secs_f64(),
                    "stall": stall.as_secs_f64(),
                }),
            );
        }
        if !step.applied {
            self.warn(
                done,
                &format!(
                    "update {done} skipped: loss {loss}, gradient norm {}",
                    step.gradient_norm
                ),
            );
        }
        self.bar.message(format!("loss {loss:.3e}"));
        self.bar.set(done);
        self.stand(State::Running, progress, None);
        Ok(())
    }

    /// A hash of all parameters.
    pub fn hash(&mut self, progress: &Progress, hash: &str) {
        self.record("hash", &json!({"update": progress.update, "parameters": hash}));
    }

    /// Update number `update` has a spike, whatever is done about it.
    pub fn spike(&mut self, update: u64, spike: &Spike) {
        self.record("spike", &with("update", update, spike));
    }

    /// The run went back. For readers the record is like that of a start: what the log tells of later
    /// updates before it does not count any more.
    pub fn rewind(
        &mut self,
        progress: &Progress,
        spike_at: u64,
        spike: &Spike,
        superseded: &[String],
        told: &str,
    ) {
        self.record(
            "rewind",
            &json!({
                "update": progress.update,
                "spike_at": spike_at,
                "spike": spike,
                "rewinds": progress.rewinds,
                "passed_over": progress.passed_over,
                "superseded": superseded,
            }),
        );
        unix::warn!(
            "{told}: back to update {} and on with samples after it (rewind {})",
            progress.update,
            progress.rewinds
        );
        self.bar.resume_at(progress.update);
        self.stand(State::Running, progress, None);
    }

    /// Two computations of update number `update` differ.
    pub fn machine(&mut self, update: u64, host: &str, device: &str, mismatch: &Mismatch) {
        let mut fields = with("update", update, mismatch);
        if let Some(map) = fields.as_object_mut() {
            map.insert("host".into(), host.into());
            map.insert("device".into(), device.into());
        }
        self.record("machine", &fields);
    }

    pub fn validation(
        &mut self,
        progress: &Progress,
        metrics: &Metrics,
        best: bool,
        took: Duration,
    ) -> Result<()> {
        let mut fields = json!({
            "update": progress.update,
            "best": best,
            "seconds": took.as_secs_f64(),
        });
        if let Some(map) = fields.as_object_mut() {
            map.extend(metrics.iter().map(|(k, v)| (k.clone(), json!(v))));
        }
        self.record("validation", &fields);
        Ok(())
    }

    /// A save was begun; `stall` is how long training stood still for it.
    pub fn checkpoint(&mut self, progress: &Progress, saved: &Saved, stall: Duration) {
        if let Some(Err(error)) = &saved.previous {
            // Said on stderr already.
            self.record("warning", &json!({"update": progress.update, "text": error.to_string()}));
        }
        self.record(
            "checkpoint",
            &json!({
                "update": progress.update,
                "bytes": saved.bytes,
                "stall": stall.as_secs_f64(),
                "snapshot": saved.snapshot.as_secs_f64(),
                "waited": saved.waited.as_secs_f64(),
            }),
        );
    }

    /// A checkpoint is on the disk, and was read back.
    pub fn saved(&mut self, done: &Done) {
        self.record(
            "saved",
            &json!({
                "update": done.update,
                "durable": done.durable.as_secs_f64(),
                "seconds": done.took.as_secs_f64(),
                "removed": done.removed,
            }),
        );
    }

    /// A save failed, and the run does not depend on it. A lost lease ends the run, and is told there.
    pub fn unsaved(&mut self, progress: &Progress, error: &Error) {
        if error.exit != Exit::Again {
            self.warn(progress.update, &format!("checkpoint not saved: {error}"));
        }
    }

    pub fn warn(&mut self, update: u64, text: &str) {
        unix::warn!("{text}");
        self.record("warning", &json!({"update": update, "text": text}));
    }

    fn end(&mut self, state: State, progress: &Progress, reason: &str) {
        let busy = self.busy.as_secs_f64();
        let stalled = self.stalled.as_secs_f64() / busy.max(1e-9);
        self.record(
            "stop",
            &json!({
                "update": progress.update,
                "state": state,
                "reason": reason,
                "seconds": self.began.elapsed().as_secs_f64(),
                "stall_share": stalled,
            }),
        );
        if let Err(error) = self.log.sync() {
            unix::warn!("{error}");
        }
        self.stand(state, progress, Some(reason));
    }

    pub fn finished(&mut self, progress: &Progress, reason: &str) {
        self.end(State::Finished, progress, reason);
        let best = progress.best.as_ref().map_or(String::new(), |best| {
            format!("; best {} {:.4} at update {}", best.metric, best.value, best.update)
        });
        unix::note!("finished at update {}: {reason}{best}", progress.update);
    }

    pub fn stopped(&mut self, progress: &Progress, reason: &str) {
        self.end(State::Stopped, progress, reason);
        unix::note!(
            "stopped at update {} of {}: {reason}; run the same command again to go on",
            progress.update,
            self.updates
        );
    }

    /// Failed in a way that another start would repeat.
    pub fn held(&mut self, progress: &Progress, reason: &str) {
        self.now.held = true;
        self.failed(progress, reason);
    }

    pub fn failed(&mut self, progress: &Progress, reason: &str) {
        self.end(State::Failed, progress, reason);
    }
}
