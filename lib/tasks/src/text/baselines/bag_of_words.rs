//! The bag of words: logistic regression on hashed unigrams and bigrams.

use super::Targets;
use super::features::Features;
use super::logistic::{Logistic, Problem};
use crate::text::metrics::{LabelOutcomes, MultiLabel, Resampling, predicted_classes};
use learn::score::Confusion;

/// Candidate values of scikit-learn's `C`, the inverse regularisation strength: the objective is the sum of the losses
/// plus |w|²/(2·C).
const CANDIDATES: [f64; 5] = [0.1, 1.0, 10.0, 100.0, 1000.0];

/// A classifier of texts by the words and pairs of words in them.
#[derive(Clone, Debug)]
pub struct BagOfWords {
    features: Features,
    model: Logistic,
    /// The strength `C` that was chosen.
    pub strength: f64,
}

impl BagOfWords {
    /// Fits the classifier to the training texts, with the `C` that has the highest macro F1 on the validation texts,
    /// the metric by which models are chosen as well. Values are tried in ascending order until one is worse than the
    /// best so far.
    pub fn fit<T: AsRef<str> + Sync>(
        train: (&[T], &Targets),
        validation: (&[T], &Targets),
    ) -> Self {
        let (features, rows) = Features::fit(train.0);
        let validation_rows = features.of(validation.0);
        let problem = Problem::new(&rows, train.1);
        let mut model = problem.start();
        let mut best: Option<(f64, f64, Logistic)> = None;
        for strength in CANDIDATES {
            problem.fit(&mut model, strength);
            let score = macro_f1(&model.predict(&validation_rows), validation.1);
            match &best {
                Some((most, ..)) if score < *most => break,
                Some((most, ..)) if score == *most => {}
                _ => best = Some((score, strength, model.clone())),
            }
        }
        let (strength, model) = best.map_or((CANDIDATES[0], model), |(_, own, model)| (own, model));
        Self { features, model, strength }
    }

    /// Probabilities of the classes or labels of texts.
    pub fn predict<T: AsRef<str> + Sync>(&self, texts: &[T]) -> Vec<f64> {
        self.model.predict(&self.features.of(texts))
    }
}

/// The macro F1 of probabilities; 0 without texts.
fn macro_f1(probabilities: &[f64], targets: &Targets) -> f64 {
    match targets {
        Targets::Classes { classes, truth } => {
            let mut confusion = Confusion::new(*classes);
            let predicted = predicted_classes(probabilities, *classes);
            truth.iter().zip(predicted).for_each(|(truth, own)| confusion.add(*truth, own));
            confusion.macro_average().f1
        }
        Targets::Labels { labels, truth } => {
            let predicted: Vec<bool> = probabilities.iter().map(|p| *p >= 0.5).collect();
            let outcomes = LabelOutcomes { probabilities, truth, predicted: &predicted };
            let labels: Vec<String> = (0..*labels).map(|label| label.to_string()).collect();
            MultiLabel::of(&outcomes, &labels, Resampling::None)
                .metrics
                .get("f1_macro")
                .unwrap_or(0.0)
        }
    }
}
