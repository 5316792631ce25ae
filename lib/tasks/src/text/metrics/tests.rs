//! Compares the metrics with scikit-learn (tests/golden/text_metrics.py) and, where there is one, with a closed form.

use super::*;
use serde_json::{Value, json};
use tensor::random::{Philox, Purpose};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/text_metrics.json");

fn golden(kind: &str) -> Vec<Value> {
    let golden: Value = serde_json::from_str(&std::fs::read_to_string(FILE).unwrap()).unwrap();
    golden[kind].as_array().unwrap().clone()
}

fn get<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap()
}

/// Every number of `expected` is in `found`; the order of sums may differ.
fn assert_close(found: &Value, expected: &Value, path: &str) {
    match expected {
        Value::Object(all) => {
            for (key, value) in all {
                assert_close(&found[key], value, &format!("{path}.{key}"));
            }
        }
        Value::Number(number) => {
            let (expected, found) = (number.as_f64().unwrap(), found.as_f64());
            let error = found.map_or(f64::NAN, |found| (found - expected).abs());
            assert!(error < 1e-12 * expected.abs().max(1.0), "{path}: {found:?}, not {expected}");
        }
        _ => assert_eq!(found, expected, "{path}"),
    }
}

fn keys(value: &Value) -> Vec<String> {
    value.as_object().unwrap().keys().cloned().collect()
}

#[test]
fn metrics_of_classes_are_those_of_scikit_learn() {
    for (at, case) in golden("classes").iter().enumerate() {
        let (labels, p): (Vec<String>, Vec<f64>) = (get(&case["labels"]), get(&case["p"]));
        let truth: Vec<usize> = get(&case["truth"]);
        let predicted = predicted_classes(&p, labels.len());
        let outcomes = Outcomes { probabilities: &p, truth: &truth, predicted: &predicted };
        let all = ClassificationMetrics::of(&outcomes, &labels, Resampling::None);
        assert_close(&all.metrics.values(), &case["metrics"], &format!("case {at}"));
        let report = Value::Object(all.classification_report);
        assert_close(&report, &case["report"], &format!("report {at}"));
        assert_eq!(keys(&report), keys(&case["report"]), "case {at}");
        assert_eq!(json!(all.confusion_matrix), case["matrix"], "case {at}");
    }
}

#[test]
fn metrics_of_labels_are_those_of_scikit_learn() {
    for (at, case) in golden("labels").iter().enumerate() {
        let (labels, p): (Vec<String>, Vec<f64>) = (get(&case["labels"]), get(&case["p"]));
        let truth: Vec<bool> = get(&case["truth"]);
        let predicted: Vec<bool> = p.iter().map(|p| *p >= 0.5).collect();
        let outcomes = LabelOutcomes { probabilities: &p, truth: &truth, predicted: &predicted };
        let all = MultiLabel::of(&outcomes, &labels, Resampling::None);
        assert_close(&all.metrics.values(), &case["metrics"], &format!("case {at}"));
        let report = Value::Object(all.classification_report);
        assert_close(&report, &case["report"], &format!("report {at}"));
        assert_eq!(keys(&report), keys(&case["report"]), "case {at}");
        assert_eq!(json!(all.confusion_matrix), case["matrix"], "case {at}");
    }
}

/// Probabilities of two classes for `n` samples, and classes drawn with these probabilities.
fn drawn(n: u64) -> (Vec<f64>, Vec<usize>) {
    let random = Philox::new(test_support::seed(), Purpose::Test);
    let p: Vec<f64> = (0..n).map(|i| random.uniform64(0, i)).collect();
    let truth = (0..n).map(|i| usize::from(random.uniform64(1, i) < p[i as usize])).collect();
    (p.into_iter().flat_map(|p| [1.0 - p, p]).collect(), truth)
}

fn labels() -> Vec<String> {
    ["Negative", "Positive"].map(String::from).into()
}

/// A single group is drawn once in every resample. Copies of each sample in its group change no interval.
#[test]
fn intervals_resample_whole_groups() {
    let (p, truth) = drawn(120);
    let predicted = predicted_classes(&p, 2);
    let outcomes = Outcomes { probabilities: &p, truth: &truth, predicted: &predicted };
    let of = |resampling| ClassificationMetrics::of(&outcomes, &labels(), resampling).metrics;
    let [single, grouped] = [Resampling::Samples, Resampling::Groups(&[0; 120])].map(of);
    for (metric, certain) in single.0.iter().zip(&grouped.0) {
        let ([low, high], value) = (metric.interval.unwrap(), metric.value.unwrap());
        assert!(low < high, "{}: {low} to {high}", metric.name);
        // The calibration error of a resample is larger: it adds noise to every bin.
        assert!(low < value && value < high || metric.name.contains("ece"), "{metric:?}");
        assert_eq!(certain.value, metric.value);
        let [low, high] = certain.interval.unwrap();
        assert!((high - value).abs() < 1e-12 && (low - value).abs() < 1e-12, "{certain:?}");
    }
    let twice: Vec<usize> = (0..240).map(|i| i / 2).collect();
    let p: Vec<f64> = p.chunks(2).flat_map(|row| [row, row].concat()).collect();
    let [truth, predicted] = [&truth, &predicted]
        .map(|all| -> Vec<usize> { all.iter().flat_map(|class| [*class, *class]).collect() });
    let outcomes = Outcomes { probabilities: &p, truth: &truth, predicted: &predicted };
    let doubled =
        ClassificationMetrics::of(&outcomes, &labels(), Resampling::Groups(&twice)).metrics;
    for (one, two) in single.0.iter().zip(&doubled.0) {
        let ([low, high], [low_of_two, high_of_two]) =
            (one.interval.unwrap(), two.interval.unwrap());
        let error = (low - low_of_two).abs().max((high - high_of_two).abs());
        assert!(error < 1e-12, "{one:?} {two:?}");
    }
}

/// The number of right answers is binomial: of n = 400 with a share of 0.8, ±1.96·√(0.8·0.2/400) = ±0.0392. The
/// quantiles of 1000 resamples scatter by 4 % of the width (standard deviation), and accuracies are multiples of 1/400.
#[test]
fn the_interval_of_an_accuracy_is_binomial() {
    let truth: Vec<usize> = (0..400).map(|i| usize::from(i % 5 == 0)).collect();
    let p = [0.75, 0.25].repeat(400);
    let outcomes = Outcomes { probabilities: &p, truth: &truth, predicted: &[0; 400] };
    let metrics = ClassificationMetrics::of(&outcomes, &labels(), Resampling::Samples).metrics;
    let [low, high] = metrics.0[0].interval.unwrap();
    assert!(
        (0.8 - low - 0.0392).abs() < 0.01 && (high - 0.8 - 0.0392).abs() < 0.01,
        "{low} {high}"
    );
    // Equal probabilities rank at random, whichever samples are drawn.
    let auroc = metrics.0.iter().find(|metric| metric.name == "auroc").unwrap();
    assert_eq!((auroc.value, auroc.interval), (Some(0.5), Some([0.5; 2])));
}

#[test]
fn calibration_errors_are_those_of_the_definition() {
    // Bins: 0 and 1/15 fall into the first, 0.9 and 14/15 into the 14th, 1 into the last.
    let p = [0.0, 1.0 / 15.0, 0.9, 14.0 / 15.0, 1.0];
    let occurred = [true, false, true, false, true];
    let events = p.into_iter().zip(occurred).map(|(p, y)| (p, y, 1));
    let diagram = Reliability::of(events);
    let counts: Vec<u64> = diagram.bins.iter().map(|bin| bin.count).collect();
    assert_eq!(counts, [2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 1]);
    let bins = [(1.0 / 30.0 - 0.5_f64).abs(), (0.9 + 14.0 / 15.0) / 2.0 - 0.5, 0.0];
    let expected = (2.0 * bins[0] + 2.0 * bins[1]) / 5.0;
    assert!((diagram.error().unwrap() - expected).abs() < 1e-15);
    assert_eq!(Reliability::of(std::iter::empty()).error(), None);
}

/// Multiplying the logits by 3 multiplies the best temperature by 3.
#[test]
fn the_temperature_undoes_a_factor() {
    let (p, truth) = drawn(4000);
    let logits: Vec<f32> = p.iter().map(|p| p.ln() as f32).collect();
    let scaled: Vec<f32> = logits.iter().map(|z| 3.0 * z).collect();
    let [calibrated, hot] = [&logits, &scaled].map(|z| fit_temperature(z, 2, &truth));
    // These classes were drawn with these probabilities; the temperature of 4000 samples scatters by about 0.03.
    assert!((calibrated - 1.0).abs() < 0.15, "{calibrated}");
    assert!((hot / calibrated - 3.0).abs() < 1e-5, "{hot} {calibrated}");
    let loss = |temperature: f64| {
        let p = softmax(&scaled, 2, temperature);
        p.chunks(2).zip(&truth).map(|(row, class)| log_loss(row[*class])).sum::<f64>()
    };
    assert!(loss(hot) < loss(0.99 * hot) && loss(hot) < loss(1.01 * hot));
    // Without a best temperature: separable, equal logits, no samples.
    assert!((fit_temperature(&[0.0, 1.0, 1.0, 0.0], 2, &[1, 0]) - 0.01).abs() < 1e-3);
    assert_eq!(fit_temperature(&[1.0, 1.0], 2, &[1]), 1.0);
    assert_eq!(fit_temperature(&[], 2, &[]), 1.0);
}

#[test]
fn thresholds_and_policies_have_the_best_f1_of_validation() {
    let p = [0.1, 0.4, 0.35, 0.8, 0.35, 0.7];
    let truth = [false, true, true, true, false, false];
    let f1 = |decisions: &[bool]| {
        let hits = truth.iter().zip(decisions).filter(|(y, d)| **y && **d).count();
        let called = decisions.iter().filter(|d| **d).count();
        2.0 * hits as f64 / (3 + called) as f64
    };
    // All but the lowest: 3 of 5 right, F1 = 6/8; no other threshold reaches it.
    assert!((best_threshold(&p, &truth) - 0.225).abs() < 1e-15);
    let policies = [
        DecisionPolicy::Threshold(0.0),
        DecisionPolicy::Ratio(0.0),
        DecisionPolicy::Calibrated(0.0),
    ];
    for policy in policies {
        let fitted = policy.fit(&p, &truth);
        assert_eq!(f1(&fitted.decide(&p)), 0.75, "{fitted:?}");
        // Without positives there is nothing to fit.
        assert_eq!(policy.fit(&p, &[false; 6]), policy);
    }
    assert_eq!(DecisionPolicy::None.fit(&p, &truth), DecisionPolicy::None);
    let decided = |policy: DecisionPolicy| -> Vec<usize> {
        let decisions = policy.decide(&p);
        (0..6).filter(|i| decisions[*i]).collect()
    };
    assert_eq!(decided(DecisionPolicy::None), [3, 5]);
    assert_eq!(decided(DecisionPolicy::Threshold(0.35)), [1, 2, 3, 4, 5]);
    // ⌊6·0.7⌋ = 4, of the equal ones the first; at least one.
    assert_eq!(decided(DecisionPolicy::Ratio(0.7)), [1, 2, 3, 5]);
    assert_eq!(decided(DecisionPolicy::Ratio(0.0)), [3]);
    // The mean is 0.45: p ≥ 0.5·(0.45 + 0.9) = 0.675.
    assert_eq!(decided(DecisionPolicy::Calibrated(0.9)), [3, 5]);
    // Each label has its own threshold.
    let both: Vec<f64> = p.iter().flat_map(|p| [*p, 1.0 - p]).collect();
    let of_both: Vec<bool> = truth.iter().flat_map(|y| [*y, !y]).collect();
    let found = best_thresholds(&both, 2, &of_both);
    assert!((found[0] - 0.225).abs() < 1e-15 && (found[1] - 0.25).abs() < 1e-15, "{found:?}");
    // No number lies between neighbours, and the lower one must not count.
    let neighbours = [1.0, 1.0_f64.next_up()];
    assert_eq!(best_threshold(&neighbours, &[false, true]), neighbours[1]);
}

#[test]
fn scores_by_group_are_those_of_its_samples() {
    let (truth, predicted) = ([0, 1, 1, 0, 1], [0, 1, 0, 1, 1]);
    let outcomes = Outcomes { probabilities: &[], truth: &truth, predicted: &predicted };
    let found = macro_f1_by_group(&outcomes, 2, &[0, 0, 2, 2, 0]);
    assert_eq!(found, [Some(1.0), None, Some(0.0)]);
}
