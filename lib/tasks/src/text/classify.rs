//! The task `classify`: one class for each text or pair of texts, or any number of labels.

use super::batch::{Text, TextEncoder};
use super::encoder::EncoderConfig;
use super::head::{Head, HeadConfig};
use super::loss::{ClassLoss, ClassifyLoss};
use super::sets::{Sets, TextData};
use data::inputs::InputFile;
use data::loader::Buckets;
use data::text::{TokenInfo, TokenSet};
use learn::adapt::Lora;
use learn::config::Config;
use learn::forward::Forward;
use learn::params::{Builder, ParamSet};
use learn::score::Scores;
use learn::task::{Batch, Buffers, ConfigOf, Define, Direction, Loss, Predictions, Spec, Task};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::Path;
use tensor::Var;
use unix::config::{Violations, within};
use unix::{Error, Result};

/// The model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ClassifyModel {
    /// Encoder; its vocabulary is that of the tokens.
    pub encoder: EncoderConfig,
    /// Pooling and layers after the encoder.
    pub head: HeadConfig,
    /// Low-rank adaptation of the encoder, whose own weights are frozen. Null: all weights are trained.
    pub lora: Option<Lora>,
}

/// The configuration of the task.
pub type ClassifyConfig = Config<TextData, ClassifyModel, ClassifyLoss>;

/// Classification of texts.
pub struct ClassifyTask {
    model: Classifier,
    loss: ClassLoss,
    sets: Sets,
}

/// Encoder and head.
#[derive(Clone, Debug)]
pub struct Classifier {
    encoder: TextEncoder,
    head: Head,
}

impl Classifier {
    /// For tokens and labels of this kind.
    pub fn new(b: &mut Builder, config: &ClassifyModel, info: &TokenInfo) -> Self {
        Self {
            encoder: TextEncoder::new(b, &config.encoder, config.lora.as_ref(), info),
            head: Head::new(b, &config.encoder, &config.head, info.labels.len()),
        }
    }

    /// A batch of texts.
    pub fn batch(&self, texts: &[Text]) -> Batch {
        self.encoder.add(Batch::new(texts.len() as f64), "", texts)
    }

    /// Logits [B, classes].
    pub fn forward(&self, forward: &Forward, batch: &Batch) -> Result<Var> {
        let states = self.encoder.forward(forward, batch, "")?;
        forward.to_param_dtype(&self.head.forward(forward, &states)?)
    }
}

/// What does not fit between a model and its tokens. Errors: 78.
pub(super) fn require_fit(model: &ClassifyModel, info: &TokenInfo, folder: &Path) -> Result<()> {
    model.encoder.require_fit(info, folder)?;
    if !info.multi_label {
        require_classes(info, folder)?;
    }
    match info.answers {
        false => Ok(()),
        true => Err(Error::config(format!(
            "{}: texts with a context; train them with task joint",
            folder.display()
        ))),
    }
}

/// Checks that each record has one of several labels. Errors: 78.
pub(super) fn require_classes(info: &TokenInfo, folder: &Path) -> Result<()> {
    if info.multi_label {
        return Err(Error::config(format!(
            "{}: texts have several labels each; task joint learns one label for each text",
            folder.display()
        )));
    }
    if info.labels.len() < 2 {
        let found = info.labels.len();
        let text = format!("{}: {found} labels; two or more are needed", folder.display());
        return Err(Error::config(text));
    }
    Ok(())
}

impl Define for ClassifyTask {
    const SPEC: Spec =
        Spec::new("classify", "macro_f1", Direction::Maximize, include_str!("classify.yaml"));
    type Data = TextData;
    type Model = ClassifyModel;
    type Loss = ClassifyLoss;

    fn violations(config: &ClassifyConfig) -> Violations {
        let mut violations: Violations =
            within("model.encoder", config.model.encoder.violations(config.keeps_frozen()))
                .collect();
        violations.extend(within("model.head", config.model.head.violations()));
        violations.extend(Lora::violations(config.model.lora.as_ref(), config));
        violations.extend(within("loss", config.loss.violations()));
        violations
    }

    fn open(config: &ConfigOf<Self>) -> Result<(Self, ParamSet)> {
        let ClassifyConfig { data, model, loss, .. } = config;
        let sets = Sets::open(data)?;
        require_fit(model, sets.info(), &data.tokens)?;
        let mut builder = Builder::of(config);
        let classifier = Classifier::new(&mut builder, model, sets.info());
        builder.check()?;
        let loss = ClassLoss::new(loss, &sets, &data.tokens)?;
        Ok((Self { model: classifier, loss, sets }, builder.finish()))
    }
}

/// The class of each text of a set.
pub fn classes(set: &TokenSet) -> Vec<usize> {
    (0..set.len()).map(|i| class(set, i)).collect()
}

/// The class of a text.
pub(super) fn class(set: &TokenSet, i: usize) -> usize {
    set.label(i).first().map_or(0, |class| *class as usize)
}

impl Task for ClassifyTask {
    fn sources(&self) -> Vec<(u64, f64)> {
        vec![(self.sets.records().count() as u64, 1.0)]
    }

    fn buckets(&self) -> Option<Buckets> {
        Some(self.sets.buckets(self.sets.records().map(|(set, i)| set.ids(i).len())))
    }

    fn data_hash(&self) -> String {
        self.sets.hash()
    }

    fn input_files(&self) -> Vec<InputFile> {
        self.sets.input_files()
    }

    fn batch(&self, _micro_batch: u64, _first: u64, samples: &[u64]) -> Result<Batch> {
        let own: Vec<_> = samples.iter().map(|sample| self.sets.record(*sample)).collect();
        let texts: Vec<Text> = own.iter().map(|(set, i)| (set.ids(*i), set.types(*i))).collect();
        let (batch, total) = self.loss.add(self.model.batch(&texts), &own);
        Ok(batch.weighing(total))
    }

    fn loss(&self, forward: &Forward, batch: &Batch) -> Result<Loss> {
        Ok(self.loss.of(forward, batch, &self.model.forward(forward, batch)?)?.into())
    }

    fn validation_samples(&self) -> u64 {
        self.sets.validation.len() as u64
    }

    /// Metrics: accuracy, and macro averages of precision, recall and F1; loss, the mean cross entropy without weights. Of
    /// any number of labels: accuracy, the share of texts with all labels right; macro_f1 and that of each label, `f1[LABEL]`.
    fn evaluate(&self, forward: &Forward, samples: &[u64], scores: &mut Scores) -> Result<()> {
        let set = &self.sets.validation;
        let texts: Vec<Text> =
            samples.iter().map(|i| (set.ids(*i as usize), set.types(*i as usize))).collect();
        let batch = self.model.batch(&texts).to_device(forward.device())?;
        let predictions = self.predict(forward, &batch)?;
        let info = set.info();
        for (sample, logits) in samples.iter().zip(predictions.rows("logits")?) {
            if info.multi_label {
                let own = set.label(*sample as usize);
                let found = logits.iter().map(|z| *z > 0.0);
                let right = own.iter().zip(found.clone()).all(|(has, found)| (*has == 1) == found);
                scores.mean("accuracy", f64::from(u8::from(right)), 1.0);
                for ((label, has), found) in info.labels.iter().zip(own).zip(found) {
                    scores.f1(&format!("f1[{label}]"), *has == 1, found);
                }
                continue;
            }
            let truth = class(set, *sample as usize);
            scores.confusion("", truth, largest(logits));
            scores.mean("loss", cross_entropy(logits, truth), 1.0);
        }
        if info.multi_label {
            let names: Vec<String> =
                info.labels.iter().map(|label| format!("f1[{label}]")).collect();
            scores.mean_of("macro_f1", &names.iter().map(String::as_str).collect::<Vec<_>>());
        }
        Ok(())
    }

    /// Predicts `logits`, [classes].
    fn predict(&self, forward: &Forward, batch: &Batch) -> Result<Predictions> {
        let logits = self.model.forward(forward, batch)?.value().to_host()?;
        let classes = logits.width();
        Ok(Predictions::default().with("logits", classes, logits.read::<f32>().to_vec()))
    }

    fn buffers(&self) -> Buffers {
        self.sets.buffers()
    }
}

/// The index of the largest value, the first of several.
pub(super) fn largest(values: &[f32]) -> usize {
    (0..values.len()).rev().max_by(|a, b| values[*a].total_cmp(&values[*b])).unwrap_or(0)
}

/// -log softmax(logits)[truth].
pub(super) fn cross_entropy(logits: &[f32], truth: usize) -> f64 {
    let most = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|x| (f64::from(*x) - most).exp()).sum();
    most + sum.ln() - f64::from(logits[truth])
}
