//! The task `joint`: the class of a text, and the answer in a context that belongs to it.
//!
//! One encoder reads the text, another one the context; the vector of the text, through a linear layer and GELU, is
//! added to the state of every token of the context. With `share`, one encoder reads both, and nothing is added.

use super::batch::{EncodedText, TextEncoder};
use super::classify::require_classes;
use super::encoder::EncoderConfig;
use super::head::{Head, HeadConfig};
use super::loss::{ClassLoss, ClassifyLoss};
use super::sets::{Sets, TextData};
use super::span::{SpanHead, SpanHeadConfig, require_answers};
use super::task::{DefineText, Objective, Outputs, TextModel, TextTask};
use data::text::{RecordTokens, TokenInfo, TokenSet, Window};
use learn::adapt::Lora;
use learn::config::Config;
use learn::forward::Forward;
use learn::nn::Linear;
use learn::params::Builder;
use learn::score::Direction;
use learn::task::{Batch, Spec};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::Path;
use tensor::ops::activation::Activation;
use tensor::ops::binary::Binary;
use unix::config::{Violations, within};
use unix::{Error, Result, warn};

/// Prefix of the names of the text's tensors in a batch; those of the context have none.
const TEXT_PREFIX: &str = "text_";

/// The model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct JointModel {
    /// Configuration of the text encoder and of the context encoder, which are alike.
    pub encoder: EncoderConfig,
    /// Whether one encoder reads both the text and the context. If so, no text vector is added to the context states,
    /// and the answer does not depend on the text.
    pub share: bool,
    /// Pooling and layers for the class of the text.
    pub head: HeadConfig,
    /// Layers that find the answer in the context. Their dropout also applies to the text vector before the fusion
    /// layer.
    pub span: SpanHeadConfig,
    /// Low-rank adaptation of the encoders, whose own weights are frozen. Null: all weights are trained.
    pub lora: Option<Lora>,
}

/// The loss: the weighted sum of the class loss and the answer loss.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct JointLoss {
    /// Weight of the loss of the classes.
    pub class_weight: f64,
    /// Weight of the loss of the answers.
    pub answer_weight: f64,
    /// The loss of the classes. Weights of classes are divided by their mean over the training records.
    pub classes: ClassifyLoss,
}

impl Default for JointLoss {
    fn default() -> Self {
        Self { class_weight: 1.0, answer_weight: 1.0, classes: ClassifyLoss::default() }
    }
}

/// The configuration of the task.
pub type JointConfig = Config<TextData, JointModel, JointLoss>;

/// Classes of texts and answers in contexts.
pub type JointTask = TextTask<Joint>;

/// Encoders and heads.
#[derive(Clone, Debug)]
pub struct Joint {
    text: TextEncoder,
    head: Head,
    /// The context encoder and the fusion layer, whose output is added to its states; None if the text encoder also
    /// reads contexts.
    context: Option<(TextEncoder, Linear)>,
    span: SpanHead,
    longest: usize,
    dropout: f64,
}

impl Joint {
    /// Builds the model for the tokenizer and labels described by `info`.
    pub fn new(b: &mut Builder, config: &JointModel, info: &TokenInfo) -> Self {
        let JointModel { encoder, lora, .. } = config;
        let width = encoder.hidden_size;
        let new = |b: &mut Builder| TextEncoder::new(b, encoder, lora.as_ref(), info);
        Self {
            text: new(b),
            head: Head::new(b, encoder, lora.as_ref(), &config.head, info.labels.len()),
            context: (!config.share).then(|| {
                let fusion = |b: &mut Builder| Linear::new(b, "fusion", width, width);
                (b.scope("context", new), fusion(b).then(Activation::Gelu))
            }),
            span: SpanHead::new(b, width, &config.span),
            longest: config.span.max_answer,
            dropout: config.span.dropout,
        }
    }
}

impl TextModel for Joint {
    /// Windows of contexts, and the texts of their records.
    fn batch(&self, windows: &[(RecordTokens, &Window)]) -> Batch {
        let texts: Vec<EncodedText> = windows.iter().map(|(record, _)| record.of_text).collect();
        self.text.add(self.text.windows(windows), TEXT_PREFIX, &texts)
    }

    fn text_encoder(&self) -> &TextEncoder {
        &self.text
    }

    fn forward(&self, forward: &Forward, batch: &Batch) -> Result<Outputs> {
        let text = self.text.forward(forward, batch, TEXT_PREFIX)?;
        let pooled = self.head.pool(forward, &text)?;
        let classes = forward.to_param_dtype(&self.head.output(forward, &pooled)?)?;
        let states = match &self.context {
            None => self.text.forward(forward, batch, "")?.states,
            Some((encoder, fusion)) => {
                let states = encoder.forward(forward, batch, "")?.states;
                let added = fusion.forward(forward, &forward.dropout(&pooled, self.dropout)?)?;
                let added = added.reshape(&[added.shape()[0], 1, added.shape()[1]]);
                forward.apply(Binary::Add, &[&states, &added])?
            }
        };
        let answers = self.span.forward(forward, &states)?;
        Ok(Outputs { classes: Some(classes), answers: Some(answers) })
    }

    fn longest(&self) -> usize {
        self.longest
    }
}

/// Warns if the texts of most records are the answers themselves.
fn warn_of_leak(sets: &Sets, folder: &Path) {
    let is_answer = |(set, i): &(&TokenSet, usize)| {
        let answer = set.answer(*i).map(|characters| set.record(*i).text_of_characters(characters));
        answer
            .is_some_and(|answer| set.texts(*i)[0].is_some_and(|text| text.trim() == answer.trim()))
    };
    let (all, same) = (sets.records().count(), sets.records().filter(is_answer).count());
    if 2 * same > all {
        warn!(
            "{}: in {same} of {all} training records the text with the label is the answer itself, so the model is given what \
             it has to find; with model.share=true answers are found from the context alone",
            folder.display()
        );
    }
}

impl DefineText for Joint {
    const SPEC: Spec =
        Spec::new("joint", "joint_score", Direction::Maximize, include_str!("joint.yaml"));
    type Config = JointModel;
    type Loss = JointLoss;

    fn encoder(config: &JointModel) -> (&EncoderConfig, Option<&Lora>) {
        (&config.encoder, config.lora.as_ref())
    }

    fn head(config: &JointModel) -> Option<&HeadConfig> {
        Some(&config.head)
    }

    fn violations(model: &JointModel, loss: &JointLoss) -> Violations {
        let mut violations: Violations = within("model.head", model.head.violations()).collect();
        violations.extend(within("model.span", model.span.violations()));
        violations.extend(within("loss.classes", loss.classes.violations()));
        for (key, weight) in
            [("loss.class_weight", loss.class_weight), ("loss.answer_weight", loss.answer_weight)]
        {
            if !(weight.is_finite() && weight >= 0.0) {
                violations.push((key.into(), "must not be negative".into()));
            }
        }
        violations
    }

    fn require_fit(info: &TokenInfo, folder: &Path) -> Result<()> {
        require_answers(info, folder)?;
        let folder_name = folder.display();
        if !info.is_joint() {
            return Err(Error::config(format!(
                "{folder_name}: records have no labels; name `text` and `label` in columns.yaml, or train with task span"
            )));
        }
        if info.multi_label {
            return Err(Error::config(format!(
                "{folder_name}: texts have several labels each; task joint learns one label for each text"
            )));
        }
        require_classes(info, folder)
    }

    fn new(b: &mut Builder, config: &JointModel, info: &TokenInfo) -> Self {
        Self::new(b, config, info)
    }

    fn objective(config: &JointConfig, sets: &Sets, windows: usize) -> Result<Objective> {
        let JointConfig { data, model, loss, .. } = config;
        if !model.share {
            warn_of_leak(sets, &data.tokens);
        }
        let classes = ClassLoss::new(&loss.classes, sets, &data.tokens, windows)?;
        let weights = [loss.class_weight / classes.mean(), loss.answer_weight];
        Ok(Objective::Both(classes, weights))
    }
}
