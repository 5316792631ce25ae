//! Advice on the configuration of a run: each rule names the key to change and the numbers that justify the change.

use super::analysis::Analysis;
use report::axis::plain;
use serde::Serialize;
use serde_json::Value;
use unix::status::State;

/// A suggested configuration change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// Configuration key to change.
    pub key: &'static str,
    /// Finding and recommended action.
    pub text: String,
}

/// Minimum improvement of the loss or the metric, in percent, for which more updates are suggested.
const STILL_IMPROVES: f64 = 2.0;
/// Maximum percentage of updates with clipped gradients.
const CLIPPED: f64 = 50.0;
/// Ratio of the largest gradient norm to the median above which clipping is suggested.
const OUTLIER: f64 = 20.0;
/// Maximum degradation of the metric since its best value, in percent.
const MAX_DEGRADATION: f64 = 5.0;
/// Maximum percentages of the time spent waiting for data, in validation, and blocked by checkpoints.
const MAX_DATA_WAIT_PERCENT: f64 = 10.0;
const MAX_VALIDATION_PERCENT: f64 = 20.0;
const MAX_SAVE_PERCENT: f64 = 5.0;
/// Maximum number of spikes per update.
const SPIKES: f64 = 1e-3;

/// Returns the advice for a run.
pub(super) fn of(run: &Analysis) -> Vec<Advice> {
    let rules = [
        updates,
        overfitting,
        constant_rate,
        clipping,
        outliers,
        non_finite,
        spikes,
        data,
        validation,
        saving,
    ];
    rules.iter().filter_map(|rule| rule(run)).collect()
}

fn advice(key: &'static str, text: String) -> Option<Advice> {
    Some(Advice { key, text })
}

fn training<'r>(run: &'r Analysis, key: &str) -> &'r Value {
    &run.config["training"][key]
}

/// Improvement of the metric from the previous to the newest validation, in percent; negative if it became worse.
fn last_improvement(run: &Analysis) -> Option<f64> {
    let [.., (_, before), (_, last)] = run.validation[..] else { return None };
    let sign = if run.direction.is_better(last, before) { 1.0 } else { -1.0 };
    (before != 0.0).then(|| sign * 100.0 * ((last - before) / before).abs())
}

fn updates(run: &Analysis) -> Option<Advice> {
    let planned = training(run, "updates").as_f64()?;
    let is_complete = run.state == Some(State::Finished) && run.get("updates") == Some(planned);
    let metric = run.metric.as_deref().unwrap_or("the metric");
    let is_best_last = run.get("validation, best at update") == run.validation.last().map(|v| v.0);
    let text = match (last_improvement(run), run.get("loss, change over last tenth (%)")) {
        _ if !is_complete => return None,
        (Some(better), _) if is_best_last && better > STILL_IMPROVES => {
            format!(
                "{metric} was best at the end, {better:.1} % better than at the validation before"
            )
        }
        (None, Some(change)) if change < -STILL_IMPROVES => {
            format!("the loss fell by {:.1} % over the last tenth of the updates", -change)
        }
        _ => return None,
    };
    advice("training.updates", format!("{text}: raise training.updates (now {planned})"))
}

fn overfitting(run: &Analysis) -> Option<Advice> {
    let (best, last) = (run.get("validation, best")?, run.get("validation, last")?);
    let at = run.get("validation, best at update")?;
    let worse = 100.0 * ((last - best) / best).abs();
    let mean_after = |from: f64, to: f64| {
        let inside = run.loss.iter().filter(|(update, _)| (from..=to).contains(update));
        let (sum, count) =
            inside.fold((0.0, 0u32), |(sum, count), (_, loss)| (sum + loss, count + 1));
        (count > 0).then(|| sum / f64::from(count))
    };
    let end = run.get("updates")?;
    let falls = mean_after(0.9 * at, at)? > mean_after(at + 0.9 * (end - at), end)?;
    if !falls || worse < MAX_DEGRADATION || !run.direction.is_better(best, last) {
        return None;
    }
    let mut keys = Vec::new();
    if training(run, "early_stopping_patience").is_null() {
        keys.push("set training.early_stopping_patience".to_string());
    }
    let augmentation = ["random_shift", "random_reflection"].iter();
    let off = augmentation.filter(|key| run.config["data"][**key] == false);
    keys.extend(off.map(|key| format!("switch on data.{key}")));
    keys.push("raise optimizer.weight_decay".into());
    let metric = run.metric.as_deref().unwrap_or("the metric");
    let text = format!(
        "{metric} was best at update {at} and then became {worse:.1} % worse while the training loss fell \
         (overfitting): {}",
        keys.join(", or ")
    );
    advice("training.early_stopping_patience", text)
}

fn constant_rate(run: &Analysis) -> Option<Advice> {
    let is_empty = |key: &str| match &run.config[key] {
        Value::Array(phases) => phases.is_empty(),
        other => other.is_null(),
    };
    let stalled = run.get("loss, change over last tenth (%)")? >= 0.0;
    if !(stalled && is_empty("schedule") && is_empty("plateau")) {
        return None;
    }
    let text = "the learning rate was constant and the loss no longer falls: let it decay with schedule or plateau";
    advice("schedule", text.into())
}

fn clipping(run: &Analysis) -> Option<Advice> {
    let (clipped, median) = (run.get("clipped updates (%)")?, run.get("gradient norm, median")?);
    let limit = training(run, "clip_grad_norm").as_f64()?;
    let text = format!(
        "{clipped:.0} % of the logged updates were clipped: raise training.clip_grad_norm (now {}; the median norm is \
         {}), or lower optimizer.learning_rate",
        plain(limit),
        plain(median)
    );
    (clipped > CLIPPED).then_some(())?;
    advice("training.clip_grad_norm", text)
}

fn outliers(run: &Analysis) -> Option<Advice> {
    let (largest, median) = (run.get("gradient norm, largest")?, run.get("gradient norm, median")?);
    let is_off = training(run, "clip_grad_norm").is_null();
    if !(is_off && median > 0.0 && largest > OUTLIER * median) {
        return None;
    }
    let text = format!(
        "the largest gradient norm, {}, is {:.0} times the median: set training.clip_grad_norm, for example to {}",
        plain(largest),
        largest / median,
        plain(4.0 * median)
    );
    advice("training.clip_grad_norm", text)
}

fn non_finite(run: &Analysis) -> Option<Advice> {
    let skipped = run.get("skipped updates").filter(|count| *count > 0.0)?;
    let is_half = training(run, "amp") == true && training(run, "precision") == "f16";
    let more = if is_half { ", or set training.precision to bf16" } else { "" };
    let text = format!(
        "{skipped} updates were skipped because loss or gradient were not finite: lower optimizer.learning_rate{more}"
    );
    advice("optimizer.learning_rate", text)
}

fn spikes(run: &Analysis) -> Option<Advice> {
    let (spikes, updates) = (run.get("spikes")?, run.get("updates")?);
    if spikes < 3.0 || spikes < SPIKES * updates || training(run, "on_spike") != "record" {
        return None;
    }
    let text = format!(
        "{spikes} spikes of loss or gradient norm in {updates} updates: lower optimizer.learning_rate, clip with \
         training.clip_grad_norm, or set training.on_spike to rewind"
    );
    advice("training.on_spike", text)
}

fn data(run: &Analysis) -> Option<Advice> {
    let waiting = run.get("waiting for data (%)").filter(|share| *share > MAX_DATA_WAIT_PERCENT)?;
    let text = format!(
        "{waiting:.0} % of the time of an update was spent waiting for data: raise training.workers (now {}) and \
         training.prefetch (now {})",
        training(run, "workers"),
        training(run, "prefetch")
    );
    advice("training.workers", text)
}

fn validation(run: &Analysis) -> Option<Advice> {
    let share = run.get("validating (%)").filter(|share| *share > MAX_VALIDATION_PERCENT)?;
    let text = format!(
        "{share:.0} % of the time was spent in validation: raise training.validate_every (now {}) or lower \
         training.validation_samples (now {})",
        training(run, "validate_every"),
        training(run, "validation_samples")
    );
    advice("training.validate_every", text)
}

fn saving(run: &Analysis) -> Option<Advice> {
    let share = run.get("blocked by checkpoints (%)").filter(|share| *share > MAX_SAVE_PERCENT)?;
    let text = format!(
        "checkpoints blocked training for {share:.0} % of the time: raise checkpoint.every (now {})",
        run.config["checkpoint"]["every"]
    );
    advice("checkpoint.every", text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::score::Direction;
    use report::history::History;
    use serde_json::json;
    use unix::log::Log;
    use unix::status::{Cost, Status};

    /// A finished run of 1000 updates, every tenth of which is logged, that needs no advice.
    struct Run {
        config: Value,
        records: Vec<Value>,
        /// Values of the metric at updates 200, 400, ...
        validations: Vec<f64>,
    }

    impl Run {
        fn good() -> Self {
            let config = json!({
                "data": {"random_shift": false, "random_reflection": true},
                "training": {
                    "updates": 1000, "clip_grad_norm": null, "early_stopping_patience": null, "on_spike": "record",
                    "amp": false, "workers": 1, "prefetch": 4, "validate_every": 200, "validation_samples": 64,
                },
                "schedule": [{"kind": "cosine"}],
                "plateau": null,
                "checkpoint": {"every": 500},
            });
            let record = |n: u64| {
                json!({
                    "kind": "update", "update": 10 * n, "loss": 1.0 + 0.01 * (n % 2) as f64, "gradient_norm": 0.5,
                    "learning_rate": 1e-3, "skipped": 0, "seconds": 0.1, "data_wait_s": 0.005,
                })
            };
            let records = (1..=100).map(record).collect();
            Self { config, records, validations: vec![0.5, 0.3, 0.25, 0.24, 0.239] }
        }

        fn field(mut self, name: &str, value: impl Fn(u64) -> f64) -> Self {
            for (n, record) in (1..).zip(&mut self.records) {
                record[name] = json!(value(n));
            }
            self
        }

        fn record(mut self, record: Value) -> Self {
            self.records.push(record);
            self
        }

        fn key(mut self, section: &str, key: &str, value: Value) -> Self {
            self.config[section][key] = value;
            self
        }

        /// Returns the keys named by the advice, and all its texts.
        fn advice(self) -> (Vec<&'static str>, String) {
            let validation = |(n, value): (u64, f64)| {
                let update = 200 * n;
                json!({"kind": "validation", "update": update, "nrmse": value, "seconds": 1.0})
            };
            let validations = (1..).zip(self.validations).map(validation);
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("log.jsonl");
            let mut log = Log::open(&path, 1).unwrap();
            for mut record in self.records.into_iter().chain(validations) {
                let kind = record.as_object_mut().unwrap().remove("kind").unwrap();
                log.write(kind.as_str().unwrap(), &record).unwrap();
            }
            let status = Status {
                state: State::Finished,
                cost: Cost { hours: 105.0 / 3600.0, device_hours: 0.0 },
                time: "now".into(),
                ..Status::default()
            };
            let history = History::read(&path).unwrap();
            let monitor = Some(("nrmse".to_string(), Direction::Minimize));
            let run = Analysis::of("run".into(), history, self.config, &status, monitor);
            let texts: Vec<&str> = run.advice.iter().map(|advice| advice.text.as_str()).collect();
            (run.advice.iter().map(|advice| advice.key).collect(), texts.join("\n"))
        }
    }

    #[test]
    fn a_run_without_problems_gets_none() {
        assert_eq!(Run::good().advice(), (vec![], String::new()));
    }

    #[test]
    fn every_rule_names_its_key_and_its_numbers() {
        let good = Run::good;
        let improving = Run { validations: vec![0.5, 0.4, 0.3], ..good() };
        let falling =
            Run { validations: vec![], ..good() }.field("loss", |n| 2.0 - 0.015 * n as f64);
        let overfitting = Run { validations: vec![0.5, 0.2, 0.3, 0.4, 0.5], ..good() };
        let overfitting = overfitting.field("loss", |n| 1.0 / n as f64);
        let clipped = good().key("training", "clip_grad_norm", json!(0.25));
        let outlier = good().field("gradient_norm", |n| if n == 50 { 40.0 } else { 0.5 });
        let spike = |run: Run| run.record(json!({"kind": "spike", "update": 500}));
        let constant = Run {
            config: {
                let mut c = good().config;
                c["schedule"] = json!([]);
                c
            },
            ..good()
        };
        let slow = good().record(json!({"kind": "checkpoint", "update": 500, "blocked_s": 10.5}));
        let validating =
            good().record(json!({"kind": "validation", "update": 1000, "seconds": 26.0}));
        for (run, key, words) in [
            (improving, "training.updates", "25.0 % better"),
            (falling, "training.updates", "now 1000"),
            (
                overfitting,
                "training.early_stopping_patience",
                "update 400 and then became 150.0 % worse",
            ),
            (clipped, "training.clip_grad_norm", "100 % of the logged updates"),
            (outlier, "training.clip_grad_norm", "80 times the median"),
            (good().field("skipped", |_| 2.0), "optimizer.learning_rate", "2 updates were skipped"),
            (spike(spike(spike(good()))), "training.on_spike", "3 spikes"),
            (constant, "schedule", "plateau"),
            (good().field("data_wait_s", |_| 0.03), "training.workers", "30 % of the time"),
            (validating, "training.validate_every", "30 % of the time"),
            (slow, "checkpoint.every", "10 % of the time"),
        ] {
            let (keys, text) = run.advice();
            assert_eq!(keys, [key], "{text}");
            assert!(text.contains(words) && text.contains(key), "{text}");
        }
    }

    #[test]
    fn augmentation_that_is_off_is_suggested_against_overfitting() {
        let run = Run { validations: vec![0.2, 0.3, 0.4, 0.5, 0.6], ..Run::good() };
        let (_, text) = run.field("loss", |n| 1.0 / n as f64).advice();
        assert!(
            text.contains("data.random_shift") && !text.contains("random_reflection"),
            "{text}"
        );
    }
}
