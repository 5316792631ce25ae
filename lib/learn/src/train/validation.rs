//! Evaluates a model on the validation split during training.

use super::step::numerics;
use super::sync::gather;
use crate::config::Training;
use crate::forward::Forward;
use crate::params::ParamSet;
use crate::score::{Metrics, Scores};
use crate::task::{ConfiguredTask, Task};
use dist::Collective;
use tensor::Tape;
use unix::Result;

/// Computes the metrics of `params` on `training.validation_samples` samples, spread evenly over the validation split,
/// or on all samples for 0. Batches are distributed over the ranks and their scores are merged in batch order, so the
/// result is bit-identical for any number of ranks. `amp_on_cpu` is that of the run's progress.
pub fn validate(
    task: &dyn Task,
    params: &ParamSet,
    training: &Training,
    amp_on_cpu: bool,
    ranks: &dyn Collective,
) -> Result<Metrics> {
    let samples = spread(task.validation_samples(), training.validation_samples);
    let batches: Vec<&[u64]> = samples.chunks(training.validation_batch_size as usize).collect();
    let (amp, device) = (training.validation_amp, params.trained.device());
    let dtype = numerics::dtype(amp && training.amp, training.precision, device);
    let rounding = numerics::Products::new(training, amp, device, amp_on_cpu).set();
    let mut own = Vec::new();
    for batch in batches.iter().skip(ranks.rank()).step_by(ranks.size()) {
        let mut scores = Scores::default();
        let tape = Tape::without_gradients();
        let forward = Forward::evaluation(&tape, params).computing_in(dtype)?;
        task.evaluate(&forward, batch, &mut scores)?;
        own.push(scores);
    }
    drop(rounding);
    let by_rank = gather(ranks, own)?;
    let mut all = Scores::default();
    for number in 0..batches.len() {
        let of_rank = &by_rank[number % by_rank.len()];
        of_rank.get(number / by_rank.len()).into_iter().for_each(|scores| all.merge(scores));
    }
    Ok(all.metrics())
}

/// Evaluates validation samples until `training.monitor` has a value, or all of them; without a monitor, only one
/// batch.
pub fn probe(task: &dyn Task, params: &ParamSet, training: &Training) -> Result<Metrics> {
    let monitor = training.monitor.as_ref().map(|monitor| &monitor.metric);
    let (total, batch) = (task.validation_samples(), training.validation_batch_size);
    let (mut scores, mut metrics, mut first) = (Scores::default(), Metrics::new(), 0);
    while first < total {
        // Usually the first sample has all metrics.
        let next = total.min(if first == 0 && monitor.is_some() { 1 } else { first + batch });
        let tape = Tape::without_gradients();
        let forward = Forward::evaluation(&tape, params);
        task.evaluate(&forward, &(first..next).collect::<Vec<_>>(), &mut scores)?;
        (metrics, first) = (scores.metrics(), next);
        if monitor.is_none_or(|name| metrics.contains_key(name)) {
            break;
        }
    }
    Ok(metrics)
}

/// Returns the metric names of a task. Errors: as in [`ConfiguredTask::open`] and [`ConfiguredTask::check_monitor`].
pub fn metric_names(configured: &ConfiguredTask) -> Result<Vec<String>> {
    let (task, mut params) = configured.open()?;
    configured.init(&mut params, None)?;
    let training = &configured.config.training;
    let metrics = tensor::parallel::inside(|| probe(&*task, &params, training))?;
    configured.check_monitor(&metrics)?;
    Ok(metrics.into_keys().collect())
}

/// Returns `count` of `total` indices, spread evenly; all of them if `count` is 0.
fn spread(total: u64, count: u64) -> Vec<u64> {
    let count = if count == 0 { total } else { count.min(total) };
    (0..count).map(|i| i * total / count).collect()
}
