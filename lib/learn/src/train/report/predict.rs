//! Predicts the memory of updates and validations from smaller batches.
//!
//! Tensor memory grows linearly with the batch size of a pass once activations outweigh batch-independent tensors such
//! as gradients. Batches are therefore doubled until the growth is constant, and the rest is extrapolated, so that a
//! batch that does not fit is detected without allocating it.

use crate::config::Training;
use crate::task::ConfiguredTask;
use crate::train::step::Trainer;
use crate::train::validation::probe;
use std::time::Instant;
use tensor::Device;
use unix::Result;

/// Relative difference up to which two slopes count as equal.
const TOLERANCE: f64 = 0.02;
/// Memory growth in bytes beyond which no larger batch is tried.
const LARGE: usize = 256 << 20;

/// Predicts the peak tensor memory in bytes of an update or a validation, whichever is larger. Runs updates with small
/// batches on `trainer`. Errors: errors of an update; 78 when validations lack the metric of `training.monitor`.
pub fn predict(
    configured: &ConfiguredTask,
    trainer: &mut Trainer<'_>,
    device: Device,
) -> Result<usize> {
    let training = &configured.config.training;
    let peak_of = |batch: Training, trainer: &mut Trainer<'_>, validates: bool| {
        trainer.set_batches(batch)?;
        device.reset_peak();
        match validates {
            true => trainer.validate().map(drop)?,
            false => trainer.step(0, 0)?.wait(Instant::now()).map(drop)?,
        }
        tensor::kernel::finish(device)?;
        Ok(device.usage().peak)
    };
    let (samples, passes) = (trainer.samples_per_pass(), trainer.passes().min(2));
    let of_update = |samples| Training {
        batch_size: samples,
        accumulation: passes,
        deterministic: false,
        ..training.clone()
    };
    let of_validation = |samples| Training {
        validation_samples: samples,
        validation_batch_size: samples,
        ..of_update(1)
    };
    // The first update also decides which blocks are recomputed.
    peak_of(of_update(1), trainer, false)?;
    let update = extrapolate(samples, |n| peak_of(of_update(n), trainer, false))?;
    let batch = training.validation_batch_size.min(trainer.task.validation_samples());
    let validation = extrapolate(batch, |n| peak_of(of_validation(n), trainer, true))?;
    let metrics = probe(&*trainer.task, &trainer.learner.evaluation_params(), &of_validation(1))?;
    configured.check_monitor(&metrics)?;
    Ok(update.max(validation))
}

/// Returns the value at `target` of a function that is linear beyond some argument: evaluated directly, or extrapolated
/// from the last two of the arguments 1, 2, 4, ...
fn extrapolate(target: u64, mut value: impl FnMut(u64) -> Result<usize>) -> Result<usize> {
    let (mut at, mut values, mut slopes) = (1, vec![value(1)?], Vec::new());
    while at < target {
        let next = (2 * at).min(target);
        values.push(value(next)?);
        let [.., before, last] = values[..] else { break };
        slopes.push((last as f64 - before as f64) / (next - at) as f64);
        at = next;
        let constant = match slopes[..] {
            [.., before, last] => last > 0.0 && (last - before).abs() <= TOLERANCE * last,
            _ => false,
        };
        if constant || last.saturating_sub(values[0]) > LARGE {
            let slope = slopes[slopes.len() - 1].max(0.0);
            return Ok(last.saturating_add((slope * (target - at) as f64) as usize));
        }
    }
    Ok(values[values.len() - 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kinked_line_is_extrapolated_from_few_small_arguments() {
        let mut most = 0;
        let of = |n: u64| (5_000_000 + 1000 * n as usize).max(4_000_000 + 300_000 * n as usize);
        for target in [1, 2, 3, 5, 64, 1 << 20] {
            let found = extrapolate(target, |n| {
                most = most.max(n);
                Ok(of(n))
            });
            assert_eq!(found.unwrap(), of(target), "{target}");
        }
        assert!(most <= 64, "{most}");
    }

    #[test]
    fn an_irregular_function_is_not_followed_beyond_a_quarter_of_a_gibibyte() {
        let mut largest = 0;
        let found = extrapolate(1 << 20, |n| {
            largest = n as usize * (1 << 20) + (n as usize % 3) * (1 << 19);
            Ok(largest)
        });
        let found = found.unwrap();
        assert!(largest < 3 * LARGE, "{largest}");
        assert!((found as f64 / f64::from(2).powi(40) - 1.0).abs() < 0.1, "{found}");
    }
}
