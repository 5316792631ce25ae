//! The evaluation of a classifier of texts.

use super::baselines::{BagOfWords, Targets, constant, stratified};
use super::classify::ClassifyTask;
use super::metrics::{
    Classification, Outcomes, Resampling, macro_f1_by_group, predicted_classes, softmax,
};
use data::text::{Similar, TokenSet};
use learn::task::Define;
use serde_json::{Map, Value, json};
use std::collections::{BTreeSet, HashMap};
use unix::{Error, Result};

/// The scores of a classifier and of baselines on one split.
pub struct TextScores {
    labels: Vec<String>,
    truth: Vec<usize>,
    /// Name and probabilities [texts, classes] of each method, the classifier first.
    methods: Vec<(&'static str, Vec<f64>)>,
    groups: Option<Vec<usize>>,
    /// The criteria in alphabetical order, and the number of that of each text.
    criteria: Option<(Vec<String>, Vec<usize>)>,
}

impl TextScores {
    /// Of the logits for `set`; the baselines learn from `train`, the bag of words with `validation`.
    pub fn of(set: &TokenSet, [train, validation]: [&TokenSet; 2], logits: &[f32]) -> Self {
        let labels = set.info().labels.clone();
        let classes = labels.len();
        let [truth, of_train, of_validation] = [set, train, validation].map(super::classes);
        let [known, chosen] =
            [&of_train, &of_validation].map(|truth| Targets::Classes { classes, truth });
        let [texts, train, validation] = [set, train, validation].map(texts);
        let words = BagOfWords::fit((&train, &known), (&validation, &chosen));
        let methods = vec![
            (ClassifyTask::SPEC.name, softmax(logits, classes, 1.0)),
            ("bag of words", words.predict(&texts)),
            ("constant", constant(&known, truth.len())),
            ("stratified", stratified(&known, truth.len(), 0)),
        ];
        Self { labels, truth, methods, groups: groups(set), criteria: criteria(set) }
    }

    fn classification(&self, probabilities: &[f64]) -> Classification {
        let predicted = predicted_classes(probabilities, self.labels.len());
        let outcomes = Outcomes { probabilities, truth: &self.truth, predicted: &predicted };
        let resampling = match &self.groups {
            Some(groups) => Resampling::Groups(groups),
            None => Resampling::Samples,
        };
        Classification::of(&outcomes, &self.labels, resampling)
    }

    /// The rows of the table, and the content of evaluation_results.json: the metrics of the classifier, and under
    /// `baselines` those of the others.
    pub fn results(&self, protocol: &Value) -> Result<(Vec<Value>, Value)> {
        let (mut rows, mut baselines, mut all) = (Vec::new(), Map::new(), Map::new());
        all.insert("format".into(), "longhaul-classification".into());
        all.insert("version".into(), 1.into());
        all.insert("protocol".into(), protocol.clone());
        for (at, (name, probabilities)) in self.methods.iter().enumerate() {
            let found = self.classification(probabilities);
            let metric = |name: &str| found.metrics.get(name);
            rows.push(json!({
                "model": name, "accuracy": metric("accuracy"), "f1_macro": metric("f1_macro"),
                "precision_macro": metric("precision_macro"), "recall_macro": metric("recall_macro"),
                "auroc": metric("auroc"), "log_loss": metric("log_loss"), "ece": metric("ece"),
            }));
            let value = serde_json::to_value(&found).map_err(Error::bug)?;
            match (at, value) {
                (0, Value::Object(own)) => all.extend(own),
                (_, value) => _ = baselines.insert((*name).into(), value),
            }
        }
        // The model comes last, as in the tables of other families.
        rows.rotate_left(1);
        all.insert("baselines".into(), baselines.into());
        if let Some((names, of_texts)) = &self.criteria {
            all.insert("by_criterion".into(), self.by_criterion(names, of_texts));
        }
        Ok((rows, all.into()))
    }

    /// Accuracy and macro F1 of the texts of each criterion, and the mean of the macro F1.
    fn by_criterion(&self, names: &[String], of_texts: &[usize]) -> Value {
        let (probabilities, classes) = (self.probabilities(), self.labels.len());
        let predicted = predicted_classes(probabilities, classes);
        let outcomes = Outcomes { probabilities, truth: &self.truth, predicted: &predicted };
        let f1 = macro_f1_by_group(&outcomes, classes, of_texts);
        let row = |(number, name): (usize, &String)| {
            let own: Vec<usize> = (0..of_texts.len()).filter(|i| of_texts[*i] == number).collect();
            let right = own.iter().filter(|i| predicted[**i] == self.truth[**i]).count();
            let accuracy = right as f64 / own.len() as f64;
            let row =
                json!({"f1_macro": f1[number], "accuracy": accuracy, "total_samples": own.len()});
            (name.clone(), row)
        };
        let mut all: Map<String, Value> = names.iter().enumerate().map(row).collect();
        let mean = f1.iter().flatten().sum::<f64>() / names.len() as f64;
        all.insert("mean_f1_macro".into(), mean.into());
        all.into()
    }

    /// The probabilities [texts, classes] of the classifier.
    pub fn probabilities(&self) -> &[f64] {
        &self.methods[0].1
    }

    /// Which texts resemble one of `others`, with a similarity of at least `threshold`: their number, and the metrics of
    /// the classifier on the other texts.
    pub fn without_leaks(&self, set: &TokenSet, others: &[&TokenSet], threshold: f64) -> Value {
        let known: Vec<String> = others.iter().flat_map(|other| texts(other)).collect();
        let index = Similar::new(&known);
        let kept: Vec<usize> = (texts(set).iter().enumerate())
            .filter(|(_, text)| index.nearest(text, threshold).is_none())
            .map(|(i, _)| i)
            .collect();
        let classes = self.labels.len();
        let own = self.probabilities();
        let probabilities: Vec<f64> =
            kept.iter().flat_map(|i| &own[i * classes..][..classes]).copied().collect();
        let truth: Vec<usize> = kept.iter().map(|i| self.truth[*i]).collect();
        let predicted = predicted_classes(&probabilities, classes);
        let outcomes =
            Outcomes { probabilities: &probabilities, truth: &truth, predicted: &predicted };
        let found = Classification::of(&outcomes, &self.labels, Resampling::None).metrics;
        json!({
            "threshold": threshold, "leaked": set.len() - kept.len(), "total_samples": kept.len(),
            "without": if kept.is_empty() { Value::Null } else { json!(found) },
        })
    }

    /// One record for each text: id, true and predicted label, and the probability of each label.
    pub fn predictions(&self, set: &TokenSet) -> impl Iterator<Item = Value> {
        let probabilities = &self.methods[0].1;
        let classes = self.labels.len();
        let predicted = predicted_classes(probabilities, classes);
        (0..set.len()).map(move |i| {
            let own = self.labels.iter().zip(&probabilities[i * classes..]);
            let own: Map<String, Value> =
                own.map(|(label, p)| (label.clone(), (*p).into())).collect();
            json!({
                "record": i, "id": set.id(i), "label": self.labels[self.truth[i]],
                "predicted": self.labels[predicted[i]], "probabilities": own,
            })
        })
    }
}

/// Both texts of each record.
pub(super) fn texts(set: &TokenSet) -> Vec<String> {
    let joined = |i: usize| set.texts(i).into_iter().flatten().collect::<Vec<_>>().join("\n");
    (0..set.len()).map(joined).collect()
}

/// The criteria of a set in alphabetical order, and the number of that of each text, if texts have criteria.
fn criteria(set: &TokenSet) -> Option<(Vec<String>, Vec<usize>)> {
    let all: Vec<&str> = (0..set.len()).map(|i| set.criterion(i)).collect::<Option<_>>()?;
    let names: BTreeSet<&str> = all.iter().copied().collect();
    let names: Vec<&str> = names.into_iter().collect();
    let numbers = all.iter().map(|own| names.partition_point(|name| name < own)).collect();
    Some((names.into_iter().map(String::from).collect(), numbers))
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
