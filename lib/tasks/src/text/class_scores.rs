//! Scores the classes or labels that a model predicts and compares them with baselines.

use super::baselines::{BagOfWords, Targets, constant, stratified};
use super::calibrated::{Logits, calibrated};
use super::classify::{class, classes};
use super::metrics::{
    ClassificationMetrics, LabelOutcomes, Metrics, MultiLabel, Outcomes, Resampling,
    best_thresholds, log_loss, macro_f1_by_group, predicted_classes, sigmoid, softmax,
};
use super::mistakes;
use data::text::{Similar, TokenInfo, TokenSet};
use indexmap::IndexMap;
use report::document::Document;
use report::evaluation::{Group, Metric, MetricsByName, Scores};
use serde_json::{Map, Value, json};
use std::collections::{BTreeSet, HashMap};
use unix::{Error, Result};

/// Texts with this similarity or more are counted as leaked, as in ds-prep audit.
const SIMILAR: f64 = 0.8;
/// The columns of the results table for single-label and for multi-label classification.
const COLUMNS: [&[&str]; 2] = [
    &["accuracy", "f1_macro", "precision_macro", "recall_macro", "auroc", "log_loss", "ece"],
    &["accuracy", "f1_macro", "f1_micro", "auroc", "log_loss", "ece"],
];
/// Metrics that depend on the thresholds.
const DECIDED: [&str; 4] = ["accuracy", "f1_macro", "f1_micro", "f1_weighted"];

/// The scores of one kind of output: classes or answers.
#[derive(Default)]
pub(super) struct PartScores {
    /// By method, the model first.
    pub methods: IndexMap<String, MetricsByName>,
    /// The rows of the table; the model is last, as in the tables of other tasks.
    pub rows: Vec<Value>,
    pub details: Map<String, Value>,
    pub groups: Vec<Group>,
}

impl PartScores {
    /// Adds the scores of the answers. If `apart` is set, i.e. if the model also predicts classes, their details are
    /// stored under `answers`.
    pub fn merge(&mut self, other: Self, apart: bool) {
        for (method, metrics) in other.methods {
            self.methods.entry(method).or_default().extend(metrics);
        }
        self.rows.extend(other.rows);
        self.groups.extend(other.groups);
        match apart {
            true => _ = self.details.insert("answers".into(), other.details.into()),
            false => self.details.extend(other.details),
        }
    }
}

/// The ground truth of a set: one class per text, or any number of labels, [texts, labels].
enum Truth {
    Classes(Vec<usize>),
    Labels(Vec<bool>),
}

impl Truth {
    fn of(set: &TokenSet) -> Self {
        match set.info().multi_label {
            false => Self::Classes(classes(set)),
            true => {
                let all = (0..set.len()).flat_map(|i| set.label(i));
                Self::Labels(all.map(|has| *has == 1).collect())
            }
        }
    }

    fn targets(&self, width: usize) -> Targets<'_> {
        match self {
            Self::Classes(truth) => Targets::Classes { classes: width, truth },
            Self::Labels(truth) => Targets::Labels { labels: width, truth },
        }
    }

    /// The metrics of the probabilities [texts, classes or labels], and their entries in `details` of metrics.json.
    fn measure(
        &self,
        probabilities: &[f64],
        labels: &[String],
        resampling: Resampling,
    ) -> (Metrics, Value) {
        let (metrics, matrix, report, reliability) = match self {
            Self::Classes(truth) => {
                let predicted = predicted_classes(probabilities, labels.len());
                let outcomes = Outcomes { probabilities, truth, predicted: &predicted };
                let found = ClassificationMetrics::of(&outcomes, labels, resampling);
                let matrix = json!(found.confusion_matrix);
                (found.metrics, matrix, found.classification_report, found.reliability)
            }
            Self::Labels(truth) => {
                let predicted: Vec<bool> = probabilities.iter().map(|p| *p >= 0.5).collect();
                let outcomes = LabelOutcomes { probabilities, truth, predicted: &predicted };
                let found = MultiLabel::of(&outcomes, labels, resampling);
                let matrix = json!(found.confusion_matrix);
                (found.metrics, matrix, found.classification_report, found.reliability)
            }
        };
        let details = json!({
            "confusion_matrix": matrix, "classification_report": report, "reliability": reliability,
        });
        (metrics, details)
    }
}

/// The probabilities of logits [texts, classes or labels].
pub(super) fn probabilities(logits: &[f32], info: &TokenInfo) -> Vec<f64> {
    match info.multi_label {
        true => sigmoid(logits, 1.0),
        false => softmax(logits, info.labels.len().max(1), 1.0),
    }
}

/// The predicted label or labels, and the probability of every label.
pub(super) fn prediction_fields(probabilities: &[f64], info: &TokenInfo) -> Map<String, Value> {
    let labels = &info.labels;
    let predicted = match info.multi_label {
        true => {
            let has = labels.iter().zip(probabilities).filter(|(_, p)| **p >= 0.5);
            json!(has.map(|(label, _)| label).collect::<Vec<_>>())
        }
        false => json!(labels[predicted_classes(probabilities, labels.len())[0]]),
    };
    let all: Map<String, Value> =
        labels.iter().zip(probabilities).map(|(label, p)| (label.clone(), json!(p))).collect();
    Map::from_iter([("predicted".into(), predicted), ("probabilities".into(), all.into())])
}

/// Record `i` of a set: its id, its true and predicted label or labels, and the probability of every label.
pub(super) fn row(set: &TokenSet, i: usize, logits: &[f32]) -> Map<String, Value> {
    let info = set.info();
    let mut row =
        Map::from_iter([("record".into(), json!(i)), ("id".to_string(), json!(set.id(i)))]);
    match info.multi_label {
        true => {
            let has = info.labels.iter().zip(set.label(i)).filter(|(_, has)| **has == 1);
            let own: Vec<&String> = has.map(|(label, _)| label).collect();
            row.insert("labels".into(), json!(own));
        }
        false => _ = row.insert("label".into(), json!(info.labels[class(set, i)])),
    }
    row.extend(prediction_fields(&probabilities(logits, info), info));
    row
}

/// The log loss of record `i` (with several labels, its mean over them), whether the prediction is entirely correct,
/// and the probability of the predicted class (0 with several labels).
pub(super) fn loss(set: &TokenSet, i: usize, logits: &[f32]) -> (f64, bool, f64) {
    let (info, p) = (set.info(), probabilities(logits, set.info()));
    if info.multi_label {
        let truth = set.label(i).iter().map(|has| *has == 1);
        let pairs = || p.iter().zip(truth.clone());
        let sum: f64 = pairs().map(|(p, y)| log_loss(if y { *p } else { 1.0 - p })).sum();
        return (sum / p.len() as f64, pairs().all(|(p, y)| (*p >= 0.5) == y), 0.0);
    }
    let (truth, predicted) = (class(set, i), predicted_classes(&p, p.len())[0]);
    (log_loss(p[truth]), truth == predicted, p[predicted])
}

/// Scores the logits [texts, classes or labels] of the first set. Those of the last one, the validation split, are used
/// to fit the temperature and the thresholds. Baselines are fitted to the second one, the training split; the bag of
/// words also uses the validation split, to choose its regularisation. Adds sections to `page`.
pub(super) fn scores(
    method: &'static str,
    sets: [&TokenSet; 3],
    [logits, known]: &[Vec<f32>; 2],
    page: &mut Document,
) -> Result<PartScores> {
    let (set, info) = (sets[0], sets[0].info());
    let (labels, texts_of) = (&info.labels, sets.map(texts));
    let truth = sets.map(Truth::of);
    let [_, learned, chosen] = truth.each_ref().map(|truth| truth.targets(labels.len()));
    let words = BagOfWords::fit((&texts_of[1], &learned), (&texts_of[2], &chosen));
    let own = probabilities(logits, info);
    let methods = [
        ("bag of words", words.predict(&texts_of[0])),
        ("constant", constant(&learned, set.len())),
        ("stratified", stratified(&learned, set.len(), 0)),
    ];
    let groups = groups(set);
    let resampling = groups.as_deref().map_or(Resampling::Samples, Resampling::Groups);
    let mut all = PartScores::default();
    for (name, p) in std::iter::once((method, &own)).chain(methods.iter().map(|(n, p)| (*n, p))) {
        let (metrics, details) = truth[0].measure(p, labels, resampling);
        let mut row = json!({"model": name});
        for column in COLUMNS[usize::from(info.multi_label)] {
            row[*column] = json!(metrics.get(column));
        }
        all.rows.push(row);
        all.methods.insert(name.into(), metrics.scored(""));
        if let (true, Value::Object(details)) = (name == method, details) {
            all.details = details;
        }
    }
    all.rows.rotate_left(1);
    all.groups.extend(by_label(method, &all.details["classification_report"], labels));
    match &truth {
        [Truth::Classes(truth), _, Truth::Classes(validated)] => {
            mistakes::add_class_sections(page, set, truth, &own)?;
            let found = calibrated(
                Logits { logits: known, truth: validated },
                Logits { logits, truth },
                labels,
            );
            all.details.insert("calibrated".into(), found);
            all.details.insert("leaks".into(), without_leaks(&sets, &texts_of, truth, &own));
            if let Some(metrics) = all.methods.get_mut(method) {
                let found = by_criterion(method, set, truth, &own);
                let mean = found.iter().map(|group| group.scores.methods[method]["f1_macro"].value);
                let mean = mean.sum::<f64>() / found.len() as f64;
                if !found.is_empty() {
                    metrics.insert("f1_macro_mean_of_criteria".into(), Metric::score(mean));
                }
                all.groups.extend(found);
            }
        }
        [Truth::Labels(truth), _, Truth::Labels(validated)] => {
            mistakes::add_label_sections(
                page,
                &all.methods[method],
                &all.details["classification_report"],
                set,
            );
            let thresholds = best_thresholds(&sigmoid(known, 1.0), labels.len(), validated);
            let decided: Vec<bool> =
                own.iter().zip(thresholds.iter().cycle()).map(|(p, least)| p >= least).collect();
            let outcomes = LabelOutcomes { probabilities: &own, truth, predicted: &decided };
            let metrics = MultiLabel::of(&outcomes, labels, Resampling::None).metrics;
            let thresholds: std::collections::BTreeMap<_, _> =
                labels.iter().zip(&thresholds).collect();
            let mut found = json!({"fitted_on": "validation", "thresholds": thresholds});
            for name in DECIDED {
                found[name] = json!(metrics.get(name));
            }
            all.details.insert("calibrated".into(), found);
        }
        _ => return Err(Error::bug("some splits are multi-label and others are not")),
    }
    Ok(all)
}

/// The scores of the model by true label.
fn by_label(method: &str, report: &Value, labels: &[String]) -> Vec<Group> {
    const NAMES: [(&str, &str); 5] = [
        ("f1", "f1-score"),
        ("precision", "precision"),
        ("recall", "recall"),
        ("auroc", "auroc"),
        ("average_precision", "average_precision"),
    ];
    let group = |label: &String| {
        let own = report.get(label)?;
        let metric = |(name, key): (&str, &str)| {
            Some((name.to_string(), Metric::score(own.get(key)?.as_f64().unwrap_or(f64::NAN))))
        };
        let metrics: MetricsByName = NAMES.into_iter().filter_map(metric).collect();
        let samples = own["support"].as_f64().unwrap_or(0.0) as u64;
        let scores = Scores { samples, methods: [(method.into(), metrics)].into() };
        Some(Group { kind: "label".into(), name: label.clone(), scores })
    };
    labels.iter().filter_map(group).collect()
}

/// Accuracy and macro F1 of the texts of each criterion, in alphabetical order, if texts have criteria.
fn by_criterion(method: &str, set: &TokenSet, truth: &[usize], own: &[f64]) -> Vec<Group> {
    let all: Option<Vec<&str>> = (0..set.len()).map(|i| set.criterion(i)).collect();
    let Some(all) = all else { return Vec::new() };
    let names: Vec<&str> = all.iter().copied().collect::<BTreeSet<_>>().into_iter().collect();
    let numbers: Vec<usize> =
        all.iter().map(|own| names.partition_point(|name| name < own)).collect();
    let classes = set.info().labels.len();
    let predicted = predicted_classes(own, classes);
    let outcomes = Outcomes { probabilities: own, truth, predicted: &predicted };
    let f1 = macro_f1_by_group(&outcomes, classes, &numbers);
    let group = |(number, name): (usize, &&str)| {
        let own: Vec<usize> = (0..numbers.len()).filter(|i| numbers[*i] == number).collect();
        let right = own.iter().filter(|i| predicted[**i] == truth[**i]).count();
        let metrics: MetricsByName = [
            ("f1_macro".to_string(), Metric::score(f1[number].unwrap_or(f64::NAN))),
            ("accuracy".to_string(), Metric::score(right as f64 / own.len() as f64)),
        ]
        .into();
        let scores =
            Scores { samples: own.len() as u64, methods: [(method.into(), metrics)].into() };
        Group { kind: "criterion".into(), name: (*name).into(), scores }
    };
    names.iter().enumerate().map(group).collect()
}

/// The number of texts that resemble a text of another split, and the metrics of the model on the remaining texts.
fn without_leaks(
    sets: &[&TokenSet; 3],
    texts: &[Vec<String>; 3],
    truth: &[usize],
    own: &[f64],
) -> Value {
    let others = (1..3).filter(|i| sets[*i].name() != sets[0].name());
    let known: Vec<&String> = others.flat_map(|i| &texts[i]).collect();
    let index = Similar::new(&known);
    let kept: Vec<usize> =
        (0..truth.len()).filter(|i| index.nearest(&texts[0][*i], SIMILAR).is_none()).collect();
    let labels = &sets[0].info().labels;
    let classes = labels.len();
    let probabilities: Vec<f64> =
        kept.iter().flat_map(|i| &own[i * classes..][..classes]).copied().collect();
    let truth: Vec<usize> = kept.iter().map(|i| truth[*i]).collect();
    let predicted = predicted_classes(&probabilities, classes);
    let outcomes = Outcomes { probabilities: &probabilities, truth: &truth, predicted: &predicted };
    let found = ClassificationMetrics::of(&outcomes, labels, Resampling::None).metrics;
    json!({
        "threshold": SIMILAR, "leaked": sets[0].len() - kept.len(), "total_samples": kept.len(),
        "without": if kept.is_empty() { Value::Null } else { found.values() },
    })
}

/// The text of each record; the two texts of a pair are joined by a newline.
fn texts(set: &TokenSet) -> Vec<String> {
    let joined = |i: usize| set.texts(i).into_iter().flatten().collect::<Vec<_>>().join("\n");
    (0..set.len()).map(joined).collect()
}

/// The group of each text, numbered from 0, if texts have groups. A text without one is a group of its own.
pub(super) fn groups(set: &TokenSet) -> Option<Vec<usize>> {
    let mut known = HashMap::new();
    let mut number = |i: usize| {
        let (next, group) = (known.len(), set.group(i));
        *known.entry(group.ok_or(i)).or_insert(next)
    };
    set.has_groups().then(|| (0..set.len()).map(&mut number).collect())
}
