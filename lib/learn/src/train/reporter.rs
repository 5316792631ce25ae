//! What a run says: to its log, its status file, and the person in front of the terminal.

use super::job::Job;
use super::learner::Step;
use super::progress::Progress;
use super::spent::{Spent, Total};
use super::trouble::Trouble;
use super::verify::Mismatch;
use super::watch::Spike;
use crate::checkpoint::{Done, Saved};
use crate::config::Training;
use crate::score::Metrics;
use data::inputs::Summary;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use unix::budget::Budget;
use unix::lease::Lease;
use unix::log::Log;
use unix::progress::Progress as Bar;
use unix::run_dir::RunDir;
use unix::status::{State, Status, StatusWriter};
use unix::{Error, Exit, Result};

/// What a run says.
pub(super) struct Reporter {
    /// None on ranks that keep quiet: the first one speaks for all.
    log: Option<Log>,
    log_trouble: Trouble,
    status: Option<StatusWriter>,
    status_trouble: Trouble,
    now: Status,
    bar: Option<Bar>,
    log_every: u64,
    ranks: usize,
    samples_per_update: u64,
    updates: u64,
    began: Instant,
    first_update_seen: bool,
    inputs_recorded: bool,
    total: Total,
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
    pub fn start(
        job: &Job,
        run: &RunDir,
        lease: &Lease,
        progress: &Progress,
        accepted: &[String],
        budget: &Budget,
        parameters: usize,
    ) -> Result<Self> {
        let training = &job.task.config.training;
        let (attempt, fence) = (lease.attempt(), lease.fence());
        let mut log = Log::open(&run.log(), attempt)?.fenced(fence.clone());
        log.write(
            "start",
            &json!({
                "update": progress.update,
                "passed_over": progress.passed_over,
                "stage": job.task.spec.name,
                "updates": training.updates,
                "parameters": parameters,
                "device": job.device.to_string(),
                "threads": tensor::parallel::threads(),
                "ranks": job.ranks.size(),
                "time_left": budget.to_string(),
                "accepted": accepted,
                // Attempts in vain are counted from here.
                "anew": job.retry || !accepted.is_empty(),
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
        let mut status = StatusWriter::new(run.status()).fenced(fence.clone());
        let now = Status {
            stage: job.task.spec.name.into(),
            state: State::Running,
            update: progress.update,
            updates: Some(training.updates),
            best: progress.best.clone(),
            cost: progress.cost(),
            attempt,
            reason: None,
            held: false,
            in_vain: 0,
            time: String::new(),
        };
        status.update(&now)?;
        Ok(Self {
            log: Some(log),
            log_trouble: Trouble::default(),
            status: Some(status),
            status_trouble: Trouble::default(),
            now,
            bar: Some(bar),
            log_every: training.log_every,
            ranks: job.ranks.size(),
            samples_per_update: training.samples_per_update(),
            updates: training.updates,
            began: Instant::now(),
            first_update_seen: false,
            inputs_recorded: false,
            total: Total::default(),
        })
    }

    /// What another rank than the first says: nothing.
    pub fn silent(training: &Training) -> Self {
        Self {
            log: None,
            log_trouble: Trouble::default(),
            status: None,
            status_trouble: Trouble::default(),
            now: Status::default(),
            bar: None,
            log_every: training.log_every,
            ranks: 1,
            samples_per_update: 0,
            updates: training.updates,
            began: Instant::now(),
            first_update_seen: false,
            inputs_recorded: false,
            total: Total::default(),
        }
    }

    /// Warns a person.
    pub fn say(&self, text: &str) {
        if self.log.is_some() {
            unix::warn!("{text}");
        }
    }

    fn note(&self, text: &str) {
        if self.log.is_some() {
            unix::note!("{text}");
        }
    }

    /// Writes a record; a log that cannot be written (a full disk) does not end the run.
    fn record(&mut self, kind: &str, fields: &Value) {
        if let Some(log) = &mut self.log {
            self.log_trouble.tell(&log.write(kind, fields));
        }
    }

    fn stand(&mut self, state: State, progress: &Progress, reason: Option<&str>) {
        self.now.state = state;
        self.now.update = progress.update;
        self.now.best = progress.best.clone();
        self.now.cost = progress.cost();
        self.now.reason = reason.map(str::to_string);
        if let Some(status) = &mut self.status {
            self.status_trouble.tell(&status.update(&self.now));
        }
    }

    pub fn update(&mut self, progress: &Progress, step: &Step, spent: &Spent) -> Result<()> {
        self.total.add(spent);
        if !self.first_update_seen {
            self.first_update_seen = true;
            let seconds = unix::time::process_start().elapsed().as_secs_f64();
            self.record(
                "first_update",
                &json!({"update": progress.update, "since_exec": seconds, "step": spent.took.as_secs_f64()}),
            );
        }
        let done = progress.update;
        if done.is_multiple_of(self.log_every) || done == self.updates || !step.applied {
            let mut fields = json!({
                    "update": done,
                    "samples": progress.samples,
                    "loss": step.loss,
                    "gradient_norm": step.gradient_norm,
                    "learning_rate": step.learning_rate,
                    "skipped": progress.skipped,
            });
            if let Some(fields) = fields.as_object_mut() {
                if !step.terms.is_empty() {
                    fields.insert("loss_terms".into(), json!(step.terms));
                }
                spent.tell(self.ranks, fields);
            }
            self.record("update", &fields);
        }
        if !step.applied {
            self.warn(
                done,
                &format!(
                    "update {done} skipped: loss {}, gradient norm {}",
                    step.loss, step.gradient_norm
                ),
            );
        }
        if let Some(bar) = &mut self.bar {
            bar.message(format!("loss {:.3e}", step.loss));
            bar.set(done);
        }
        self.stand(State::Running, progress, None);
        Ok(())
    }

    /// All input files are verified; recorded once.
    pub fn inputs(&mut self, progress: &Progress, summary: Summary) {
        if !self.inputs_recorded {
            self.inputs_recorded = true;
            self.record("inputs", &with("update", progress.update, &summary));
        }
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
        self.say(&format!(
            "{told}: back to update {} and on with samples after it (rewind {})",
            progress.update, progress.rewinds
        ));
        if let Some(bar) = &mut self.bar {
            bar.resume_at(progress.update);
        }
        self.stand(State::Running, progress, None);
    }

    /// Two computations of update number `update` differ.
    pub fn machine(&mut self, update: u64, rank: usize, host: &str, mismatch: &Mismatch) {
        let mut fields = with("update", update, mismatch);
        if let Some(map) = fields.as_object_mut() {
            map.insert("rank".into(), rank.into());
            map.insert("host".into(), host.into());
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
        self.say(text);
        self.record("warning", &json!({"update": update, "text": text}));
    }

    fn end(&mut self, state: State, progress: &Progress, reason: &str) {
        let mut fields = json!({
            "update": progress.update,
            "state": state,
            "reason": reason,
            "seconds": self.began.elapsed().as_secs_f64(),
            "device_waits": tensor::kernel::waits(),
        });
        if let Some(fields) = fields.as_object_mut() {
            self.total.tell(self.ranks, self.samples_per_update, fields);
        }
        self.record("stop", &fields);
        if let Some(Err(error)) = self.log.as_ref().map(Log::sync) {
            unix::warn!("{error}");
        }
        self.stand(state, progress, Some(reason));
    }

    pub fn finished(&mut self, progress: &Progress, reason: &str) {
        self.end(State::Finished, progress, reason);
        let best = progress.best.as_ref().map_or(String::new(), |best| {
            format!("; best {} {:.4} at update {}", best.metric, best.value, best.update)
        });
        self.note(&format!("finished at update {}: {reason}{best}", progress.update));
    }

    pub fn stopped(&mut self, progress: &Progress, reason: &str) {
        self.end(State::Stopped, progress, reason);
        self.note(&format!(
            "stopped at update {} of {}: {reason}; run the same command again to go on",
            progress.update, self.updates
        ));
    }

    /// Failed because an input file is not what was recorded; such attempts do not count as ones without progress.
    pub fn refused(&mut self, progress: &Progress, reason: &str) {
        self.record("refused", &json!({"update": progress.update}));
        self.failed(progress, reason);
        if self.log.is_some() {
            unix::diagnostics::say(reason);
        }
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
