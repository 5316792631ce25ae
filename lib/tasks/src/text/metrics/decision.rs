//! Decisions from the probability of the positive class: thresholds and policies, fitted on the validation split.

use super::ranking::Ranking;
use serde::{Deserialize, Serialize};

/// Which samples count as positive, given their probabilities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", content = "value")]
pub enum DecisionPolicy {
    /// Those with p ≥ 0.5.
    #[default]
    None,
    /// Those with p ≥ t.
    Threshold(f64),
    /// The fraction r of samples with the highest probabilities, max(1, ⌊n·r⌋) of n; ties are broken by index.
    Ratio(f64),
    /// Those with p ≥ (m + t)/2, where m is the mean probability.
    Calibrated(f64),
}

impl DecisionPolicy {
    /// Which samples with these probabilities count as positive.
    pub fn decide(&self, probabilities: &[f64]) -> Vec<bool> {
        let from = |threshold: f64| probabilities.iter().map(|p| *p >= threshold).collect();
        match self {
            Self::None => from(0.5),
            Self::Threshold(threshold) => from(*threshold),
            Self::Calibrated(threshold) => from((mean(probabilities) + threshold) / 2.0),
            Self::Ratio(ratio) => {
                let count = ((probabilities.len() as f64 * ratio) as usize).max(1);
                let mut decisions = vec![false; probabilities.len()];
                let ranking = Ranking::new(probabilities);
                ranking.highest(count).for_each(|sample| decisions[sample] = true);
                decisions
            }
        }
    }

    /// The policy of the same kind with the parameter that gives the highest F1 of the positive class; the policy
    /// itself if it has none, or if no sample is positive.
    pub fn fit(self, probabilities: &[f64], truth: &[bool]) -> Self {
        let Some((threshold, count)) = best_cut(probabilities, truth) else { return self };
        match self {
            Self::None => self,
            Self::Threshold(_) => Self::Threshold(threshold),
            // In the middle of the ratios that select this many, so that rounding does not matter.
            Self::Ratio(_) => Self::Ratio((count as f64 + 0.5) / probabilities.len() as f64),
            Self::Calibrated(_) => Self::Calibrated(2.0 * threshold - mean(probabilities)),
        }
    }
}

/// The threshold t whose decisions p ≥ t have the highest F1; the largest one on ties. It is the mean of the lowest
/// probability above it and the highest one below it, so that rounding does not matter. 0.5 if no sample is positive.
pub fn best_threshold(probabilities: &[f64], truth: &[bool]) -> f64 {
    best_cut(probabilities, truth).map_or(0.5, |(threshold, _)| threshold)
}

/// The [best threshold](best_threshold) of each label of a multi-label classifier; `probabilities` and `truth` are
/// [samples, labels].
pub fn best_thresholds(probabilities: &[f64], labels: usize, truth: &[bool]) -> Vec<f64> {
    let of_label = |label: usize| {
        let p: Vec<f64> = probabilities.iter().copied().skip(label).step_by(labels).collect();
        let y: Vec<bool> = truth.iter().copied().skip(label).step_by(labels).collect();
        best_threshold(&p, &y)
    };
    (0..labels).map(of_label).collect()
}

/// The [`best_threshold`] and the number of samples above it.
fn best_cut(probabilities: &[f64], truth: &[bool]) -> Option<(f64, usize)> {
    let all = truth.iter().filter(|y| **y).count();
    let mut best: Option<(f64, f64, usize)> = None;
    Ranking::new(probabilities).cuts(
        |i| truth[i],
        |cut| {
            let f1 = 2.0 * cut.positives as f64 / (all + cut.samples) as f64;
            if all > 0 && best.is_none_or(|(most, ..)| f1 > most) {
                let lowest = probabilities[cut.lowest];
                // The mean of adjacent floats may round down to the lower one, which must stay below the threshold.
                let middle = cut.next.map(|next| 0.5 * (lowest + probabilities[next]));
                let between =
                    |middle: &f64| cut.next.is_some_and(|next| *middle > probabilities[next]);
                best = Some((f1, middle.filter(between).unwrap_or(lowest), cut.samples));
            }
        },
    );
    best.map(|(_, threshold, count)| (threshold, count))
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}
