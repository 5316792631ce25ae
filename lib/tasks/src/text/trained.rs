//! A trained classifier of texts, and its evaluation.

use super::baselines::{BagOfWords, Targets, constant, stratified};
use super::classify::{Classifier, ClassifyModel, ClassifyTask, require_fit};
use super::metrics::{Classification, Outcomes, Resampling, predicted_classes, softmax};
use crate::trained::{Opener, TrainedModel};
use data::split::SplitName;
use data::text::{Similar, TokenInfo, TokenSet};
use learn::task::{Buffers, Define};
use learn::trained::{Origin, Parts, Trained};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::path::Path;
use tensor::Tensor;
use unix::{Context, Error, Result};

/// Texts per forward run.
const BATCH: usize = 32;
/// The buffer with the hash of tokenizer and labels.
const BUFFER: &str = "tokenizer_and_labels";

/// A classifier with its weights.
#[derive(Clone, Debug)]
pub struct TrainedClassifier {
    trained: Trained<Classifier>,
    classes: usize,
}

/// The hash of tokenizer and labels as numbers that a checkpoint stores.
fn identity(info: &TokenInfo) -> Vec<f32> {
    let text = format!("{}\n{}", info.tokenizer_hash, info.labels.join("\n"));
    blake3::hash(text.as_bytes()).as_bytes().iter().map(|byte| f32::from(*byte)).collect()
}

/// The buffers of a classifier for such tokens.
pub(super) fn buffers(info: &TokenInfo) -> Buffers {
    let values = identity(info);
    vec![(BUFFER.into(), Tensor::from_slice(&values, &[values.len()]))]
}

/// Checks that the tokens in `folder` have the tokenizer and labels that a model was trained with. Errors: 65.
pub(super) fn require_tokens_of(parts: &Parts, info: &TokenInfo, folder: &Path) -> Result<()> {
    let checkpoint = || parts.origin.checkpoint.display().to_string();
    let recorded = parts.buffer(BUFFER).context(checkpoint)?;
    if recorded == identity(info).iter().map(|x| f64::from(*x)).collect::<Vec<_>>() {
        return Ok(());
    }
    Err(Error::data(format!(
        "{}: another tokenizer or other labels than those that {} was trained with; run ds-prep tokenize with the same \
         tokenizer",
        folder.display(),
        checkpoint()
    )))
}

/// Models of texts predict no fields.
pub(crate) fn refuse(_: &Parts, _: &Opener) -> Result<Box<dyn TrainedModel>> {
    Err(Error::usage(
        "the model classifies texts: give evaluate score a folder of ds-prep tokenize as --data, and evaluate predict a file \
         -o FILE.jsonl or -",
    ))
}

impl TrainedClassifier {
    /// Restores the model of a checkpoint, or of the best one of a run, for tokens in `folder`.
    ///
    /// Errors: 66 when there is no checkpoint; 65 when it is damaged, or its tokenizer or labels are not those of the
    /// tokens; 2 when it is no classifier.
    pub fn open(path: &Path, opener: &Opener, info: &TokenInfo, folder: &Path) -> Result<Self> {
        let parts = Parts::read(path, opener.weights)?;
        Self::require_task(&parts)?;
        Self::restore(&parts, opener, info, folder)
    }

    /// Errors: 2 when the model is no classifier.
    pub(super) fn require_task(parts: &Parts) -> Result<()> {
        if parts.task == ClassifyTask::SPEC.name {
            return Ok(());
        }
        let checkpoint = parts.origin.checkpoint.display();
        Err(Error::usage(format!("{checkpoint}: a model of task {} reads no texts", parts.task)))
    }

    /// Restores the model of a checkpoint. Errors: 65 as in [`Self::open`].
    pub(super) fn restore(
        parts: &Parts,
        opener: &Opener,
        info: &TokenInfo,
        folder: &Path,
    ) -> Result<Self> {
        let checkpoint = parts.origin.checkpoint.display().to_string();
        let model: ClassifyModel = parts.section("model").context(|| checkpoint.clone())?;
        require_tokens_of(parts, info, folder)?;
        require_fit(&model, info, folder)?;
        let build = |b: &mut learn::params::Builder| {
            let classifier = Classifier::new(b, &model, info);
            b.check().map(|()| classifier)
        };
        let trained = parts.restore(opener.device, build).context(|| checkpoint.clone())?;
        Ok(Self { trained, classes: info.labels.len() })
    }

    /// Where the weights come from.
    pub fn origin(&self) -> &Origin {
        &self.trained.origin
    }

    /// Number of parameters.
    pub fn parameters(&self) -> usize {
        self.trained.params.count()
    }

    /// Logits [texts, classes] of texts, given as token ids and segments; `proceed` is called with the number of texts after
    /// each batch. Texts of similar length share a batch, which does not change their logits.
    pub fn logits(
        &self,
        texts: &[(&[i32], &[u8])],
        mut proceed: impl FnMut(usize) -> Result<()>,
    ) -> Result<Vec<f32>> {
        let mut order: Vec<usize> = (0..texts.len()).collect();
        order.sort_by_key(|i| texts[*i].0.len());
        let mut logits = vec![0.0; texts.len() * self.classes];
        for (number, samples) in order.chunks(BATCH).enumerate() {
            let own: Vec<_> = samples.iter().map(|i| texts[*i]).collect();
            let found = self.trained.run(|forward, model| {
                let batch = model.batch(&own).to_device(forward.device())?;
                model.forward(forward, &batch)?.value().to_host()
            })?;
            for (i, row) in samples.iter().zip(found.read::<f32>().chunks_exact(self.classes)) {
                logits[i * self.classes..][..self.classes].copy_from_slice(row);
            }
            proceed(number * BATCH + samples.len())?;
        }
        Ok(logits)
    }
}

/// The scores of a classifier and of baselines on one split.
pub struct TextScores {
    labels: Vec<String>,
    truth: Vec<usize>,
    /// Name and probabilities [texts, classes] of each method, the classifier first.
    methods: Vec<(&'static str, Vec<f64>)>,
    groups: Option<Vec<usize>>,
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
        Self { labels, truth, methods, groups: groups(set) }
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
        Ok((rows, all.into()))
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
fn texts(set: &TokenSet) -> Vec<String> {
    let joined = |i: usize| set.texts(i).into_iter().flatten().collect::<Vec<_>>().join("\n");
    (0..set.len()).map(joined).collect()
}

/// The group of each text, numbered from 0, if texts have groups.
fn groups(set: &TokenSet) -> Option<Vec<usize>> {
    let mut known = HashMap::new();
    (0..set.len())
        .map(|i| {
            let next = known.len();
            Some(*known.entry(set.group(i)?).or_insert(next))
        })
        .collect()
}

/// The protocol of an evaluation.
pub fn protocol(set: &TokenSet, model: &TrainedClassifier) -> Value {
    let origin = model.origin();
    json!({
        "task": ClassifyTask::SPEC.name, "tokens": set.folder(), "on": set.name(), "tokens_hash": set.hash(),
        "records": set.len(), "truncated": set.truncated(),
        "classify": {
            "checkpoint": origin.checkpoint, "update": origin.update, "weights": origin.weights,
            "blake3": origin.blake3, "data": origin.data, "parameters": model.parameters(),
        },
    })
}

/// The split to score, the training and the validation split, which must have texts.
pub fn open_sets(folder: &Path, name: SplitName) -> Result<[TokenSet; 3]> {
    let [set, train, validation] =
        [name, SplitName::Train, SplitName::Validation].map(|name| TokenSet::open(folder, name));
    let sets = [set?, train?, validation?];
    match sets.iter().find(|set| set.is_empty()) {
        None => Ok(sets),
        Some(empty) => {
            let text = format!("{}: the {} split is empty", folder.display(), empty.name());
            Err(Error::data(text))
        }
    }
}
