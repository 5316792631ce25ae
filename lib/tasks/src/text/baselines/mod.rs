//! Baselines of classification that need no encoder. Each returns probabilities, so that the metrics of a model apply:
//! [texts, classes], or [texts, labels] of a multi-label problem.

mod bag_of_words;
pub(crate) mod features;
mod logistic;
#[cfg(test)]
mod tests;

pub use bag_of_words::BagOfWords;

use tensor::random::{Philox, Purpose};

/// The classes or labels of some texts.
#[derive(Clone, Copy, Debug)]
pub enum Targets<'a> {
    /// One class for each text.
    Classes {
        /// Number of classes.
        classes: usize,
        /// The class of each text.
        truth: &'a [usize],
    },
    /// Any number of labels for each text.
    Labels {
        /// Number of labels.
        labels: usize,
        /// [texts, labels].
        truth: &'a [bool],
    },
}

impl Targets<'_> {
    /// Number of classes or labels.
    pub fn width(&self) -> usize {
        match self {
            Self::Classes { classes, .. } => *classes,
            Self::Labels { labels, .. } => *labels,
        }
    }

    /// Number of texts.
    pub fn texts(&self) -> usize {
        match self {
            Self::Classes { truth, .. } => truth.len(),
            Self::Labels { labels, truth } => truth.len() / labels,
        }
    }

    /// Whether a text is of this class or has this label.
    fn has(&self, text: usize, at: usize) -> bool {
        match self {
            Self::Classes { truth, .. } => truth[text] == at,
            Self::Labels { labels, truth } => truth[text * labels + at],
        }
    }

    /// The share of texts of each class or with each label; without texts 0.
    fn shares(&self) -> Vec<f64> {
        let texts = self.texts();
        let count = |at: usize| (0..texts).filter(|text| self.has(*text, at)).count();
        (0..self.width()).map(|at| count(at) as f64 / texts.max(1) as f64).collect()
    }
}

/// The most frequent class of the training texts for every one of `texts` texts, or each label if at least half of the
/// training texts have it. The probabilities are the shares in the training texts, so that their log loss and their
/// calibration are meaningful.
pub fn constant(train: &Targets, texts: usize) -> Vec<f64> {
    train.shares().repeat(texts)
}

/// A class drawn for each of `texts` texts with the shares in the training texts, or each label with its share. The
/// probability of what is drawn is 1.
pub fn stratified(train: &Targets, texts: usize, seed: u64) -> Vec<f64> {
    let random = Philox::new(seed, Purpose::Sampling);
    let shares = train.shares();
    let draw = |text: u64| -> Vec<f64> {
        let mut drawn = vec![0.0; shares.len()];
        match train {
            Targets::Classes { .. } => {
                let mut rest = random.uniform64(text, 0);
                let class = shares.iter().position(|share| {
                    rest -= share;
                    rest < 0.0
                });
                // Rounding of the shares may leave a rest beyond the last class that occurs.
                let last = shares.iter().rposition(|share| *share > 0.0).unwrap_or(0);
                drawn[class.unwrap_or(last)] = 1.0;
            }
            Targets::Labels { .. } => {
                for (label, share) in (0..).zip(&shares) {
                    drawn[label as usize] = f64::from(random.uniform64(text, label) < *share);
                }
            }
        }
        drawn
    };
    (0..texts as u64).flat_map(draw).collect()
}
