//! The task `classify`: one class for each text or pair of texts, or any number of labels.

use super::batch::TextEncoder;
use super::encoder::EncoderConfig;
use super::head::{Head, HeadConfig};
use super::loss::{ClassLoss, ClassifyLoss};
use super::sets::{Sets, TextData};
use super::task::{DefineText, Objective, Outputs, TextModel, TextTask};
use data::text::{RecordTokens, TokenInfo, TokenSet, Window};
use learn::adapt::Lora;
use learn::config::Config;
use learn::forward::Forward;
use learn::params::Builder;
use learn::score::Direction;
use learn::score::Scores;
use learn::task::{Batch, Spec};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::Path;
use unix::config::{Violations, within};
use unix::{Error, Result};

/// The model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ClassifyModel {
    /// Encoder; its vocabulary is that of the tokenizer.
    pub encoder: EncoderConfig,
    /// Pooling and layers after the encoder.
    pub head: HeadConfig,
    /// Low-rank adaptation of the encoder, whose own weights are frozen. Null: all weights are trained.
    pub lora: Option<Lora>,
}

/// The configuration of the task.
pub type ClassifyConfig = Config<TextData, ClassifyModel, ClassifyLoss>;

/// Classification of texts.
pub type ClassifyTask = TextTask<Classifier>;

/// Encoder and head.
#[derive(Clone, Debug)]
pub struct Classifier {
    encoder: TextEncoder,
    head: Head,
}

impl Classifier {
    /// Builds the model for the tokenizer and labels described by `info`.
    pub fn new(b: &mut Builder, config: &ClassifyModel, info: &TokenInfo) -> Self {
        Self {
            encoder: TextEncoder::new(b, &config.encoder, config.lora.as_ref(), info),
            head: Head::new(
                b,
                &config.encoder,
                config.lora.as_ref(),
                &config.head,
                info.labels.len(),
            ),
        }
    }
}

impl TextModel for Classifier {
    fn batch(&self, windows: &[(RecordTokens, &Window)]) -> Batch {
        self.encoder.windows(windows)
    }

    fn text_encoder(&self) -> &TextEncoder {
        &self.encoder
    }

    fn forward(&self, forward: &Forward, batch: &Batch) -> Result<Outputs> {
        let states = self.encoder.forward(forward, batch, "")?;
        let logits = forward.to_param_dtype(&self.head.forward(forward, &states)?)?;
        Ok(Outputs { classes: Some(logits), answers: None })
    }
}

/// Checks that there are at least two classes, or one label if texts may have several. Errors: 78.
pub(super) fn require_classes(info: &TokenInfo, folder: &Path) -> Result<()> {
    let (found, least) = (info.labels.len(), if info.multi_label { 1 } else { 2 });
    match found >= least {
        true => Ok(()),
        false => Err(Error::config(format!(
            "{}: {found} labels; at least {least} are needed",
            folder.display()
        ))),
    }
}

impl DefineText for Classifier {
    const SPEC: Spec =
        Spec::new("classify", "macro_f1", Direction::Maximize, include_str!("classify.yaml"));
    type Config = ClassifyModel;
    type Loss = ClassifyLoss;

    fn encoder(config: &ClassifyModel) -> (&EncoderConfig, Option<&Lora>) {
        (&config.encoder, config.lora.as_ref())
    }

    fn head(config: &ClassifyModel) -> Option<&HeadConfig> {
        Some(&config.head)
    }

    fn violations(model: &ClassifyModel, loss: &ClassifyLoss) -> Violations {
        let mut violations: Violations = within("model.head", model.head.violations()).collect();
        violations.extend(within("loss", loss.violations()));
        violations
    }

    fn require_fit(info: &TokenInfo, folder: &Path) -> Result<()> {
        if info.answers {
            let (folder, task) = (folder.display(), if info.is_joint() { "joint" } else { "span" });
            let text = format!("{folder}: the records have contexts; use task {task}");
            return Err(Error::config(text));
        }
        require_classes(info, folder)
    }

    fn new(b: &mut Builder, config: &ClassifyModel, info: &TokenInfo) -> Self {
        Self::new(b, config, info)
    }

    fn objective(config: &ClassifyConfig, sets: &Sets, windows: usize) -> Result<Objective> {
        let loss = ClassLoss::new(&config.loss, sets, &config.data.tokens, windows)?;
        Ok(Objective::Classes(loss))
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

/// Adds the metrics of record `i`, given its logits, under names that begin with `prefix`. One class per text:
/// accuracy; macro-averaged precision, recall and F1; with two classes, the F1 of the second; and `loss`, the
/// unweighted cross entropy. Several labels per text: accuracy, the share of texts with all labels correct, and the F1
/// of each label, `f1[LABEL]`.
pub(super) fn add_class(
    scores: &mut Scores,
    prefix: &str,
    set: &TokenSet,
    i: usize,
    logits: &[f32],
) {
    let info = set.info();
    scores.check_finite(logits);
    if info.multi_label {
        let own = set.label(i);
        let found = logits.iter().map(|z| *z > 0.0);
        let right = own.iter().zip(found.clone()).all(|(has, found)| (*has == 1) == found);
        scores.mean("accuracy", f64::from(u8::from(right)), 1.0);
        for ((label, has), found) in info.labels.iter().zip(own).zip(found) {
            scores.f1(&format!("f1[{label}]"), *has == 1, found);
        }
        return;
    }
    let (truth, found) = (class(set, i), argmax(logits));
    scores.confusion(prefix, truth, found);
    if info.labels.len() == 2 {
        scores.f1(&format!("{prefix}f1"), truth == 1, found == 1);
    }
    scores.mean(&format!("{prefix}loss"), cross_entropy(logits, truth), 1.0);
}

/// The index of the largest value; the first one on ties.
fn argmax(values: &[f32]) -> usize {
    (0..values.len()).rev().max_by(|a, b| values[*a].total_cmp(&values[*b])).unwrap_or(0)
}

/// -log softmax(logits)[truth].
fn cross_entropy(logits: &[f32], truth: usize) -> f64 {
    let most = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|x| (f64::from(*x) - most).exp()).sum();
    // Subtracting first keeps precision when the logits are large.
    sum.ln() - (f64::from(logits[truth]) - most)
}
