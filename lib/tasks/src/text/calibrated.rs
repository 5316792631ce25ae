//! Calibration of a trained classifier on the validation split: the temperature of its softmax and, for two classes,
//! the decision policy.

use super::metrics::{
    ClassificationMetrics, DecisionPolicy, Outcomes, Resampling, fit_temperature,
    predicted_classes, softmax,
};
use serde_json::{Map, Value, json};

/// The logits [texts, classes] of a split, and the class of each text.
#[derive(Clone, Copy, Debug)]
pub struct Logits<'a> {
    /// [texts, classes].
    pub logits: &'a [f32],
    /// The true classes.
    pub truth: &'a [usize],
}

/// Metrics that depend on the decisions.
const DECISION_METRICS: [&str; 5] =
    ["accuracy", "f1_macro", "f1_binary", "precision_binary", "recall_binary"];
/// Metrics that depend on the temperature.
const PROBABILITY_METRICS: [&str; 4] = ["log_loss", "brier", "ece", "ece_top_label"];

/// Fits the temperature to `validation`, and computes the probability metrics of `scored` with it. For two classes, it
/// also fits the parameter of each policy to the highest F1 of class 1 on `validation`, and computes the metrics of the
/// policy's decisions on `scored`.
pub fn calibrated(validation: Logits, scored: Logits, labels: &[String]) -> Value {
    let classes = labels.len();
    let temperature = fit_temperature(validation.logits, classes, validation.truth);
    let probabilities = softmax(scored.logits, classes, temperature);
    let metrics = |predicted: &[usize], names: &[&str]| -> Map<String, Value> {
        let outcomes = Outcomes { probabilities: &probabilities, truth: scored.truth, predicted };
        let found = ClassificationMetrics::of(&outcomes, labels, Resampling::None).metrics;
        names.iter().map(|name| (name.to_string(), json!(found.get(name)))).collect()
    };
    let mut all = metrics(&predicted_classes(&probabilities, classes), &PROBABILITY_METRICS);
    all.insert("fitted_on".into(), "validation".into());
    all.insert("temperature".into(), json!(temperature));
    if classes == 2 {
        let known = softmax(validation.logits, classes, temperature);
        let positive = |all: &[f64]| all.iter().copied().skip(1).step_by(2).collect::<Vec<f64>>();
        let (known, own) = (positive(&known), positive(&probabilities));
        let truth: Vec<bool> = validation.truth.iter().map(|class| *class == 1).collect();
        let kinds = [
            DecisionPolicy::Threshold(0.5),
            DecisionPolicy::Ratio(0.5),
            DecisionPolicy::Calibrated(0.5),
        ];
        let of_kind = |kind: DecisionPolicy| {
            let policy = kind.fit(&known, &truth);
            let predicted: Vec<usize> = policy.decide(&own).into_iter().map(usize::from).collect();
            let mut row = json!(policy);
            for (name, value) in metrics(&predicted, &DECISION_METRICS) {
                row[name] = value;
            }
            row
        };
        all.insert("policies".into(), kinds.map(of_kind).to_vec().into());
    }
    all.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Logits z of class 1 against 0, all twice as large as they should be.
    fn samples() -> (Vec<f32>, Vec<usize>) {
        // At true log odds of ln 3, three of four texts are positive; the logits are twice the log odds.
        let odds = 3.0_f32.ln() * 2.0;
        let all = [(odds, 1), (odds, 1), (odds, 1), (odds, 0)];
        let all = all.into_iter().chain(all.map(|(z, class)| (-z, 1 - class)));
        all.flat_map(|(z, class)| [([0.0, z], class)]).fold(
            (Vec::new(), Vec::new()),
            |(mut logits, mut truth), (z, class)| {
                logits.extend(z);
                truth.push(class);
                (logits, truth)
            },
        )
    }

    #[test]
    fn temperature_and_policies_come_from_the_validation_split() {
        let (logits, truth) = samples();
        let labels = ["no".to_string(), "yes".into()];
        let validation = Logits { logits: &logits, truth: &truth };
        // Another split, in which everything is positive.
        let (others, positive) = ([0.0, 0.1, 0.0, 9.0], [1, 1]);
        let scored = Logits { logits: &others, truth: &positive };
        let found = calibrated(validation, scored, &labels);
        assert!((found["temperature"].as_f64().unwrap() - 2.0).abs() < 1e-6, "{found}");
        let own = calibrated(validation, validation, &labels);
        // Three of four at odds of 3: perfectly calibrated after the division.
        assert!(own["ece"].as_f64().unwrap() < 1e-7, "{own}");
        assert!(own["log_loss"].as_f64().unwrap() < 0.5624, "{own}");
        let policies = own["policies"].as_array().unwrap();
        assert_eq!(policies.len(), 3);
        // Precision and recall 3/4 at every threshold between the two probabilities.
        assert!(policies.iter().all(|row| row["f1_binary"] == 0.75), "{own}");
        assert_eq!(found["policies"][0]["kind"], "threshold");
        assert_eq!(found["policies"][0]["value"], own["policies"][0]["value"]);
        assert_eq!(found["policies"][1]["recall_binary"], 0.5, "{found}");
    }
}
