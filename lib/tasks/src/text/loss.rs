//! The classification loss: cross entropy with class weights and label smoothing, or a focal loss.

use super::classify::class;
use super::sets::Sets;
use data::text::{TokenSet, Window, lacking};
use learn::forward::Forward;
use learn::task::Batch;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::Path;
use tensor::ops::concat::Concat;
use tensor::ops::cross_entropy::CrossEntropy;
use tensor::{Tensor, Var};
use unix::config::Violations;
use unix::{Error, Result, warn};

/// Weights of the classes. The loss is Σ w(y)·l / Σ w(y), with the loss l of each text and its class y.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum ClassWeights {
    /// Equal weights.
    #[default]
    None,
    /// N/(C·n) for a class with n of the N texts of the training split, C classes (scikit-learn's `balanced`).
    Balanced,
    /// (1 - β)/(1 - βⁿ), scaled to a mean of 1 (Cui et al. 2019, the effective number of samples).
    Effective {
        /// β, at least 0 and less than 1.
        #[serde(default = "beta")]
        beta: f64,
    },
}

fn beta() -> f64 {
    0.999
}

/// A focal loss (Lin et al. 2017): -α(y)·(1 - p)^γ·log p with the probability p of the class y.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Focal {
    /// γ, at least 0: how strongly well-classified texts are down-weighted.
    #[serde(default = "gamma")]
    pub gamma: f64,
    /// α of the second of two classes, that of the first being 1 - α. Null: 1 for all classes.
    #[serde(default)]
    pub alpha: Option<f64>,
}

fn gamma() -> f64 {
    2.0
}

impl Focal {
    /// α of each of `classes` classes.
    pub fn factors(&self, classes: usize) -> Vec<f64> {
        match self.alpha {
            Some(alpha) if classes == 2 => vec![1.0 - alpha, alpha],
            _ => vec![1.0; classes],
        }
    }
}

/// The loss.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ClassifyLoss {
    /// Share of the target probability that is spread over all classes (Szegedy et al. 2016).
    pub label_smoothing: f64,
    /// Weights of the classes.
    pub class_weights: ClassWeights,
    /// Focal loss instead of cross entropy. Null: cross entropy.
    pub focal: Option<Focal>,
}

impl ClassifyLoss {
    /// Violations that the schema does not express.
    pub fn violations(&self) -> Violations {
        let mut violations = Violations::new();
        if !(0.0..1.0).contains(&self.label_smoothing) {
            violations
                .push(("label_smoothing".into(), "must be at least 0 and less than 1".into()));
        }
        if let Some(Focal { gamma, alpha }) = self.focal {
            if !(gamma >= 0.0 && gamma.is_finite()) {
                violations.push(("focal.gamma".into(), "must not be negative".into()));
            }
            if alpha.is_some_and(|alpha| !(0.0..=1.0).contains(&alpha)) {
                violations.push(("focal.alpha".into(), "must lie in [0, 1], or be null".into()));
            }
            if self.label_smoothing > 0.0 {
                let text = "must be 0 with a focal loss".into();
                violations.push(("label_smoothing".into(), text));
            }
        }
        if let ClassWeights::Effective { beta } = self.class_weights
            && !(0.0..1.0).contains(&beta)
        {
            let text = "must be at least 0 and less than 1".into();
            violations.push(("class_weights.beta".into(), text));
        }
        violations
    }
}

impl ClassWeights {
    /// The weight of each class, given the number of training texts of each. A class without texts has weight 0.
    pub fn of(self, counts: &[usize]) -> Vec<f64> {
        let total: usize = counts.iter().sum();
        let weight = |count: f64| match self {
            Self::None => 1.0,
            Self::Balanced => total as f64 / (counts.len() as f64 * count),
            Self::Effective { beta } => (1.0 - beta) / (1.0 - beta.powf(count)),
        };
        let all: Vec<f64> =
            counts.iter().map(|n| if *n == 0 { 0.0 } else { weight(*n as f64) }).collect();
        let Self::Effective { .. } = self else { return all };
        let present = counts.iter().filter(|count| **count > 0).count();
        let mean = all.iter().sum::<f64>() / present as f64;
        all.iter().map(|weight| weight / mean).collect()
    }
}

/// The classification loss with class weights computed from the training records.
pub struct ClassLoss {
    op: CrossEntropy,
    /// Weight of each class, and an additional factor of its loss (α of the focal loss).
    weights: Vec<f64>,
    factors: Vec<f64>,
    mean: f64,
    /// The mean number of windows of a record.
    windows: f64,
    /// Number of labels, if a record may have any number of them.
    labels: Option<usize>,
}

impl ClassLoss {
    /// `windows` is the number of windows of all training records. Every record has the same total weight, however many
    /// windows it has.
    ///
    /// Errors (78): `focal.alpha` unless there are two classes, and `class_weights` if a record may have several
    /// labels.
    pub fn new(config: &ClassifyLoss, sets: &Sets, folder: &Path, windows: usize) -> Result<Self> {
        let labels = sets.info().multi_label.then_some(sets.info().labels.len());
        // With several labels per text, each label is a binary decision.
        let classes = labels.map_or(sets.info().labels.len(), |_| 2);
        let mut counts = vec![0; classes];
        match labels {
            None => sets.records().for_each(|(set, i)| counts[class(set, i)] += 1),
            Some(_) => sets
                .records()
                .flat_map(|(set, i)| set.label(i))
                .for_each(|has| counts[*has as usize] += 1),
        }
        let info = sets.info();
        let mut of_labels = vec![0; info.labels.len()];
        for (set, i) in sets.records() {
            info.kind().classes_of(set.label(i)).for_each(|class| of_labels[class] += 1);
        }
        for lack in lacking(&info.labels, &[("train".into(), of_labels)]) {
            warn!("{}: {lack}", folder.display());
        }
        if labels.is_some() && config.class_weights != ClassWeights::None {
            return Err(Error::config(format!(
                "loss.class_weights: must be of kind none, because records of {} have several labels each; use \
                 loss.focal.alpha to weight present labels against absent ones",
                folder.display()
            )));
        }
        if config.focal.is_some_and(|focal| focal.alpha.is_some()) && classes != 2 {
            return Err(Error::config(format!(
                "loss.focal.alpha is for two labels, but {} has {classes}; use loss.class_weights",
                folder.display()
            )));
        }
        let op = CrossEntropy {
            smoothing: config.label_smoothing,
            gamma: config.focal.map_or(0.0, |focal| focal.gamma),
            ..CrossEntropy::default()
        };
        let weights = config.class_weights.of(&counts);
        let factors = config.focal.map_or(vec![1.0; classes], |focal| focal.factors(classes));
        let total: f64 = counts.iter().zip(&weights).map(|(n, weight)| *n as f64 * weight).sum();
        let mean = total / counts.iter().sum::<usize>() as f64;
        let windows = windows as f64 / sets.records().count() as f64;
        Ok(Self { op, weights, factors, mean, windows, labels })
    }

    /// The mean weight over the records.
    pub fn mean(&self) -> f64 {
        self.mean
    }

    /// Adds the classes and weights of these windows to a batch, and returns it with the sum of the weights, by which
    /// the loss is divided.
    pub fn add(&self, batch: Batch, windows: &[(&TokenSet, &Window)]) -> (Batch, f64) {
        let records = windows.iter().map(|(set, window)| (set, window.record));
        let classes: Vec<i32> = match self.labels {
            None => records.map(|(set, i)| class(set, i) as i32).collect(),
            Some(_) => records.flat_map(|(set, i)| set.label(i)).copied().collect(),
        };
        let of = |all: &[f64]| -> Vec<f32> {
            classes.iter().map(|class| all[*class as usize] as f32).collect()
        };
        let share = self.labels.map_or(1.0, |labels| 1.0 / labels as f32);
        let of_window = |(set, window): &(&TokenSet, &Window)| {
            let share = share * (self.windows / set.windows(window.record).len() as f64) as f32;
            std::iter::repeat_n(share, self.labels.unwrap_or(1))
        };
        let shares = windows.iter().flat_map(of_window);
        let (weights, factors) = (of(&self.weights), of(&self.factors));
        let weights: Vec<f32> = weights.iter().zip(shares).map(|(w, share)| w * share).collect();
        let total = weights.iter().map(|weight| f64::from(*weight)).sum();
        let weights: Vec<f32> = weights.iter().zip(factors).map(|(w, factor)| w * factor).collect();
        let batch = batch
            .with("classes", Tensor::from_slice(&classes, &[classes.len()]))
            .with("weights", Tensor::from_slice(&weights, &[weights.len()]));
        (batch, total)
    }

    /// The weighted sum of the losses of the logits [B, classes]. With several labels per text, the loss of a text is
    /// its mean binary cross entropy over the labels, each computed as the cross entropy of the logits (0, z).
    pub fn of(&self, forward: &Forward, batch: &Batch, logits: &Var) -> Result<Var> {
        let [classes, weights] =
            [batch.input(forward, "classes")?, batch.input(forward, "weights")?];
        if self.labels.is_none() {
            return forward.apply(self.op, &[logits, &classes, &weights]);
        }
        let decisions = logits.shape().iter().product();
        let zeros = forward.constant(&Tensor::zeros(&[decisions, 1], logits.value().dtype()))?;
        let logits = logits.reshape(&[decisions, 1]);
        let pairs = forward.apply(Concat { axis: 1 }, &[&zeros, &logits])?;
        forward.apply(self.op, &[&pairs, &classes, &weights])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_of_classes() {
        assert_eq!(ClassWeights::None.of(&[3, 0, 1]), [1.0, 0.0, 1.0]);
        assert_eq!(ClassWeights::Balanced.of(&[6, 2]), [8.0 / 12.0, 2.0]);
        // (1 - 0.5)/(1 - 0.25) and (1 - 0.5)/(1 - 0.5), before they are scaled.
        let found = ClassWeights::Effective { beta: 0.5 }.of(&[2, 1]);
        let expected = [0.8, 1.2];
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{found:?}");
    }
}
