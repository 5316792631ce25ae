//! Detects spikes in loss and gradient norm. The window is part of every checkpoint, so that a run detects the same
//! spikes regardless of interruptions.

use crate::config::Spikes;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Number of recent updates among which skipped updates are counted.
const RECENT_UPDATES: u64 = 1000;
/// Number of skipped updates among [`RECENT_UPDATES`] that ends the run: one in a hundred.
const MAX_SKIPPED: usize = 10;
/// Minimum deviation relative to the median, so that rounding errors do not count as spikes when all values are equal.
const LEAST_DEVIATION: f64 = 1e-2;

/// Loss and gradient-norm windows over recent updates.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SpikeDetector {
    /// Losses of the last applied updates, newest last.
    losses: VecDeque<f64>,
    /// Gradient norms of the same updates.
    norms: VecDeque<f64>,
    /// Numbers of the skipped updates among the last 1000.
    skipped: VecDeque<u64>,
}

/// A loss or gradient norm far above the preceding values.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Spike {
    /// Affected quantity, `loss` or `gradient_norm`.
    pub of: &'static str,
    /// Value at the spike.
    pub value: f64,
    /// Median of the window.
    pub median: f64,
    /// Spike threshold: median + factor · median absolute deviation.
    pub limit: f64,
}

impl SpikeDetector {
    /// Returns the spike in this loss or gradient norm, if any. Non-finite values do not count, because such updates
    /// are skipped.
    pub fn spike(&self, rule: &Spikes, loss: f64, norm: f64) -> Option<Spike> {
        let finite = loss.is_finite() && norm.is_finite();
        if !finite || 2 * (self.losses.len() as u64) < rule.window {
            return None;
        }
        [("loss", loss, &self.losses), ("gradient_norm", norm, &self.norms)].into_iter().find_map(
            |(of, value, window)| {
                let (median, limit) = limit(window, rule.factor);
                (value > limit).then_some(Spike { of, value, median, limit })
            },
        )
    }

    /// Records update number `update` (from 1), with its loss and gradient norm if the update was applied.
    pub fn note(&mut self, rule: &Spikes, update: u64, applied: Option<(f64, f64)>) {
        match applied {
            Some((loss, norm)) => {
                for (window, value) in [(&mut self.losses, loss), (&mut self.norms, norm)] {
                    window.push_back(value);
                    while window.len() as u64 > rule.window {
                        window.pop_front();
                    }
                }
            }
            None => self.skipped.push_back(update),
        }
        while self.skipped.front().is_some_and(|first| first + RECENT_UPDATES <= update) {
            self.skipped.pop_front();
        }
    }

    /// Returns the mean loss of the last `count` applied updates, if there were as many.
    pub fn mean_loss(&self, count: usize) -> Option<f64> {
        let first = self.losses.len().checked_sub(count)?;
        Some(self.losses.iter().skip(first).sum::<f64>() / count as f64)
    }

    /// Returns the number of skipped updates among the last 1000 after `done` updates, if there are too many.
    pub fn skips_too_often(&self, done: u64) -> Option<usize> {
        let count = self.skipped.len();
        (done >= RECENT_UPDATES && count >= MAX_SKIPPED).then_some(count)
    }
}

/// Returns the median, and median + factor · median absolute deviation.
fn limit(window: &VecDeque<f64>, factor: f64) -> (f64, f64) {
    let mut values: Vec<f64> = window.iter().copied().collect();
    let median = median(&mut values);
    values.iter_mut().for_each(|x| *x = (*x - median).abs());
    let deviation = self::median(&mut values).max(LEAST_DEVIATION * median.abs());
    // If all values are zero, there is no scale.
    let limit = if deviation == 0.0 { f64::INFINITY } else { median + factor * deviation };
    (median, limit)
}

/// Returns the upper median of values without NaN; reorders them.
fn median(values: &mut [f64]) -> f64 {
    let middle = values.len() / 2;
    if values.is_empty() {
        return 0.0;
    }
    *values.select_nth_unstable_by(middle, f64::total_cmp).1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule() -> Spikes {
        Spikes { factor: 10.0, window: 8, ..Spikes::default() }
    }

    fn filled(values: &[f64]) -> SpikeDetector {
        let mut detector = SpikeDetector::default();
        for (update, value) in (1..).zip(values) {
            detector.note(&rule(), update, Some((*value, 2.0 * value)));
        }
        detector
    }

    #[test]
    fn above_median_and_ten_deviations() {
        // Median 5; the absolute deviations are 0 1 1 2 2 3 3 4, whose upper median is 2.
        let detector = filled(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
        assert_eq!(detector.spike(&rule(), 25.0, 50.0), None);
        let spike = detector.spike(&rule(), 25.1, 50.0).unwrap();
        assert_eq!((spike.of, spike.median, spike.limit), ("loss", 5.0, 25.0));
        let spike = detector.spike(&rule(), 0.0, 50.1).unwrap();
        assert_eq!((spike.of, spike.median, spike.limit), ("gradient_norm", 10.0, 50.0));
        assert_eq!(detector.spike(&rule(), f64::NAN, 1e9), None);
        assert_eq!(detector.spike(&rule(), 1e9, f64::INFINITY), None);
    }

    #[test]
    fn a_window_is_trusted_when_half_of_it_is_filled_and_forgets() {
        assert_eq!(filled(&[1.0; 3]).spike(&rule(), 1e9, 1e9), None);
        assert!(filled(&[1.0; 4]).spike(&rule(), 1e9, 1e9).is_some());
        let mut values = vec![1e6; 8];
        values.extend([1.0; 8]);
        assert!(filled(&values).spike(&rule(), 10.0, 1.0).is_some(), "the first eight are gone");
    }

    #[test]
    fn equal_values_have_a_scale_and_zeros_have_none() {
        let detector = filled(&[1.0; 8]);
        assert_eq!(detector.spike(&rule(), 1.0 + 1e-9, 2.0), None);
        assert!(detector.spike(&rule(), 1.2, 2.0).is_some());
        assert_eq!(filled(&[0.0; 8]).spike(&rule(), 1.0, 1.0), None);
        assert_eq!(filled(&[-1.0; 8]).spike(&rule(), -1.0, -2.0), None);
    }

    #[test]
    fn one_in_a_hundred_of_the_last_thousand() {
        let mut detector = SpikeDetector::default();
        for update in 1..=3000 {
            // Nine early skips leave the window one by one; from 2000 on, every 100th update is skipped.
            let skipped = update <= 9 || update >= 2000 && update % 100 == 0;
            detector.note(&rule(), update, (!skipped).then_some((1.0, 1.0)));
            let expected = (update >= 2900).then_some(10);
            assert_eq!(detector.skips_too_often(update), expected, "update {update}");
        }
        let mut detector = SpikeDetector::default();
        for update in 1..=1000 {
            assert_eq!(detector.skips_too_often(update - 1), None, "too early to tell");
            detector.note(&rule(), update, None);
        }
        assert_eq!(detector.skips_too_often(1000), Some(1000));
    }
}
