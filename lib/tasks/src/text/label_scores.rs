//! The evaluation of a classifier of texts with any number of labels.

use super::baselines::{BagOfWords, Targets, constant, stratified};
use super::classify::ClassifyTask;
use super::metrics::{LabelOutcomes, MultiLabel, Resampling, best_thresholds, sigmoid};
use super::mistakes::beginning;
use super::scores::{groups, texts};
use data::text::TokenSet;
use learn::task::Define;
use report::axis::short;
use report::document::{Cell, Document, Table};
use serde_json::{Map, Value, json};
use unix::{Error, Result};

/// Mistakes that are listed.
const LISTED: usize = 40;
/// Characters of a text that are shown.
const SHOWN: usize = 240;
/// The metrics that thresholds change.
const DECIDED: [&str; 4] = ["accuracy", "f1_macro", "f1_micro", "f1_weighted"];

/// The scores of a classifier and of baselines on one split.
pub struct LabelScores<'a> {
    set: &'a TokenSet,
    truth: Vec<bool>,
    /// Name and probabilities [texts, labels] of each method, the classifier first.
    methods: Vec<(&'static str, Vec<f64>)>,
    /// The threshold of each label with the highest F1 on the validation split.
    thresholds: Vec<f64>,
}

/// Whether each text has each label, [texts, labels].
fn truth(set: &TokenSet) -> Vec<bool> {
    (0..set.len()).flat_map(|i| set.label(i)).map(|has| *has == 1).collect()
}

impl<'a> LabelScores<'a> {
    /// Of the logits [texts, labels] for `set` and for `validation`; the baselines learn from `train`, the bag of words with
    /// `validation`.
    pub fn of([set, train, validation]: [&'a TokenSet; 3], [logits, known]: [&[f32]; 2]) -> Self {
        let labels = set.info().labels.len();
        let [own, of_train, of_validation] = [set, train, validation].map(truth);
        let [learned, chosen] =
            [&of_train, &of_validation].map(|truth| Targets::Labels { labels, truth });
        let words = BagOfWords::fit((&texts(train), &learned), (&texts(validation), &chosen));
        let methods = vec![
            (ClassifyTask::SPEC.name, sigmoid(logits, 1.0)),
            ("bag of words", words.predict(&texts(set))),
            ("constant", constant(&learned, set.len())),
            ("stratified", stratified(&learned, set.len(), 0)),
        ];
        let thresholds = best_thresholds(&sigmoid(known, 1.0), labels, &of_validation);
        Self { set, truth: own, methods, thresholds }
    }

    fn decided(&self, probabilities: &[f64], thresholds: &[f64]) -> Vec<bool> {
        let all = probabilities.iter().zip(thresholds.iter().cycle());
        all.map(|(p, threshold)| p >= threshold).collect()
    }

    fn scored(
        &self,
        probabilities: &[f64],
        thresholds: &[f64],
        resampling: Resampling,
    ) -> MultiLabel {
        let predicted = self.decided(probabilities, thresholds);
        let outcomes = LabelOutcomes { probabilities, truth: &self.truth, predicted: &predicted };
        MultiLabel::of(&outcomes, &self.set.info().labels, resampling)
    }

    /// The rows of the table, and the content of evaluation_results.json: the metrics of the classifier with a threshold of
    /// 0.5, under `baselines` those of the others, and under `calibrated` those with the thresholds of the validation split.
    pub fn results(&self, protocol: &Value) -> Result<(Vec<Value>, Value)> {
        let labels = &self.set.info().labels;
        let half = vec![0.5; labels.len()];
        let groups = groups(self.set);
        let resampling = groups.as_deref().map_or(Resampling::Samples, Resampling::Groups);
        let (mut rows, mut baselines, mut all) = (Vec::new(), Map::new(), Map::new());
        all.insert("format".into(), "longhaul-multi-label".into());
        all.insert("version".into(), 1.into());
        all.insert("protocol".into(), protocol.clone());
        for (at, (name, probabilities)) in self.methods.iter().enumerate() {
            let found = self.scored(probabilities, &half, resampling);
            let metric = |name: &str| found.metrics.get(name);
            rows.push(json!({
                "model": name, "accuracy": metric("accuracy"), "f1_macro": metric("f1_macro"),
                "f1_micro": metric("f1_micro"), "auroc": metric("auroc"), "log_loss": metric("log_loss"),
                "ece": metric("ece"),
            }));
            match (at, serde_json::to_value(&found).map_err(Error::bug)?) {
                (0, Value::Object(own)) => all.extend(own),
                (_, value) => _ = baselines.insert((*name).into(), value),
            }
        }
        // The model comes last, as in the tables of other families.
        rows.rotate_left(1);
        all.insert("baselines".into(), baselines.into());
        let found = self.scored(&self.methods[0].1, &self.thresholds, Resampling::None).metrics;
        let mut calibrated = json!({
            "fitted_on": "validation",
            "thresholds": labels.iter().zip(&self.thresholds).collect::<std::collections::BTreeMap<_, _>>(),
        });
        for name in DECIDED {
            calibrated[name] = json!(found.get(name));
        }
        all.insert("calibrated".into(), calibrated);
        Ok((rows, all.into()))
    }

    /// One record for each text: id, true and predicted labels, and the probability of each label.
    pub fn predictions(&self) -> impl Iterator<Item = Value> {
        let labels = &self.set.info().labels;
        let probabilities = &self.methods[0].1;
        let named = |has: &dyn Fn(usize) -> bool| -> Vec<&String> {
            labels.iter().enumerate().filter(|(k, _)| has(*k)).map(|(_, label)| label).collect()
        };
        (0..self.set.len()).map(move |i| {
            let at = |k: usize| i * labels.len() + k;
            let own: Map<String, Value> = (labels.iter().enumerate())
                .map(|(k, label)| (label.clone(), probabilities[at(k)].into()))
                .collect();
            json!({
                "record": i, "id": self.set.id(i), "labels": named(&|k| self.truth[at(k)]),
                "predicted": named(&|k| probabilities[at(k)] >= 0.5), "probabilities": own,
            })
        })
    }

    /// The page that shows where the classifier is wrong: by label, and its most confident mistakes.
    pub fn mistakes(&self) -> Document {
        let (set, probabilities) = (self.set, &self.methods[0].1);
        let labels = &set.info().labels;
        let found = self.scored(probabilities, &vec![0.5; labels.len()], Resampling::None);
        let mut page = Document::new(format!("Mistakes on the {} split", set.name()));
        page.paragraph(format!(
            "{} texts, {} labels. All labels are right for a share of {} of the texts; macro F1 {}.",
            set.len(),
            labels.len(),
            short(found.metrics.get("accuracy").unwrap_or(f64::NAN)),
            short(found.metrics.get("f1_macro").unwrap_or(f64::NAN))
        ));
        page.heading("By label");
        let mut table = Table::new(["label", "texts", "precision", "recall", "F1"]);
        for label in labels {
            let own = &found.classification_report[label];
            let number = |key: &str| own[key].as_f64().map_or(String::new(), short);
            table.row([
                Cell::text(label),
                Cell::number(own["support"].to_string()),
                Cell::number(number("precision")),
                Cell::number(number("recall")),
                Cell::number(number("f1-score")),
            ]);
        }
        page.table(table);
        page.heading("Most confident mistakes");
        let error = |at: usize| (f64::from(u8::from(self.truth[at])) - probabilities[at]).abs();
        let mut wrong: Vec<usize> = (0..self.truth.len()).filter(|at| error(*at) > 0.5).collect();
        wrong.sort_by(|a, b| error(*b).total_cmp(&error(*a)));
        let mut table = Table::new(["record", "id", "label", "is there", "probability", "text"]);
        for at in wrong.into_iter().take(LISTED) {
            let (i, label) = (at / labels.len(), at % labels.len());
            let shown = beginning(&set.all_texts(i), SHOWN);
            table.row([
                Cell::number(i.to_string()),
                Cell::text(set.id(i).unwrap_or("")),
                Cell::text(&labels[label]),
                Cell::text(if self.truth[at] { "yes" } else { "no" }),
                Cell::number(short(probabilities[at])),
                Cell::text(shown),
            ]);
        }
        page.table(table);
        page
    }
}
