//! The task `joint`: the class of a text, and the answer in a context that belongs to it.
//!
//! One encoder reads the text, another one the context; the vector of the text, through a linear layer and GELU, is added
//! to the state of every token of the context. With `share`, one encoder reads both, and nothing is added.

use super::batch::{States, Text, TextEncoder};
use super::classify::{class, cross_entropy, largest, require_classes};
use super::encoder::EncoderConfig;
use super::head::{Head, HeadConfig};
use super::loss::{ClassLoss, ClassifyLoss};
use super::sets::{Sets, TextData};
use super::span::{
    SpanHead, SpanHeadConfig, Windows, add_windows, require_answers, rows, span_loss, with_answers,
};
use data::inputs::InputFile;
use data::loader::Buckets;
use data::text::{TokenInfo, TokenSet, Window};
use learn::adapt::Lora;
use learn::config::Config;
use learn::forward::Forward;
use learn::nn::Linear;
use learn::params::{Builder, ParamSet};
use learn::score::Scores;
use learn::task::{Batch, Buffers, ConfigOf, Define, Direction, Loss, Predictions, Spec, Task};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::Path;
use tensor::Var;
use tensor::ops::activation::Activation;
use tensor::ops::binary::Binary;
use tensor::ops::weighted_sum::WeightedSum;
use unix::config::{Violations, within};
use unix::{Error, Result, warn};

/// The names of the tensors of texts in a batch begin with it; those of contexts have no prefix.
const TEXT: &str = "text_";

/// The model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct JointModel {
    /// The encoder of texts and that of contexts.
    pub encoder: EncoderConfig,
    /// Whether one encoder reads both. Contexts then learn nothing of the text.
    pub share: bool,
    /// Pooling and layers for the class of the text.
    pub head: HeadConfig,
    /// Layers for the answer in the context; their dropout is also that of the vector of the text that is added.
    pub span: SpanHeadConfig,
    /// Low-rank adaptation of the encoders, whose own weights are frozen. Null: all weights are trained.
    pub lora: Option<Lora>,
}

/// The loss: the weighted sum of that of the classes and that of the answers.
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
pub struct JointTask {
    model: Joint,
    loss: ClassLoss,
    /// Weights of the losses of classes and answers.
    weights: [f64; 2],
    windows: Windows,
}

/// Encoders and heads.
#[derive(Clone, Debug)]
pub struct Joint {
    text: TextEncoder,
    head: Head,
    /// The encoder of contexts, unless that of texts reads them, and the layer of what is added to its states.
    context: Option<(TextEncoder, Linear)>,
    span: SpanHead,
    longest: usize,
    dropout: f64,
}

/// What the model computes of a batch.
pub struct JointOutputs {
    /// Logits of the classes, [B, classes].
    pub classes: Var,
    /// Logits of first and last token, [B, T, 2].
    pub spans: Var,
    /// The states of the tokens of contexts.
    pub states: States,
}

impl Joint {
    /// For tokens and labels of this kind.
    pub fn new(b: &mut Builder, config: &JointModel, info: &TokenInfo) -> Self {
        let JointModel { encoder, lora, .. } = config;
        let width = encoder.hidden_size;
        let new = |b: &mut Builder| TextEncoder::new(b, encoder, lora.as_ref(), info);
        Self {
            text: new(b),
            head: Head::new(b, encoder, &config.head, info.labels.len()),
            context: (!config.share).then(|| {
                let fusion = |b: &mut Builder| Linear::new(b, "fusion", width, width);
                (b.scope("context", new), fusion(b).then(Activation::Gelu))
            }),
            span: SpanHead::new(b, width, &config.span),
            longest: config.span.max_answer,
            dropout: config.span.dropout,
        }
    }

    /// Longest answer, in tokens.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// A batch of windows of contexts, and the texts of their records.
    pub fn batch(&self, windows: &[(&TokenSet, &Window)]) -> Batch {
        let texts: Vec<Text> =
            windows.iter().map(|(set, window)| set.of_text(window.record)).collect();
        let batch = self.text.add(Batch::new(windows.len() as f64), TEXT, &texts);
        add_windows(&self.text, batch, windows)
    }

    /// Logits of the classes and of the tokens.
    pub fn forward(&self, forward: &Forward, batch: &Batch) -> Result<JointOutputs> {
        let text = self.text.forward(forward, batch, TEXT)?;
        let pooled = self.head.pool(forward, &text)?;
        let classes = forward.to_param_dtype(&self.head.output(forward, &pooled)?)?;
        let mut states = match &self.context {
            None => self.text.forward(forward, batch, "")?,
            Some((encoder, _)) => encoder.forward(forward, batch, "")?,
        };
        if let Some((_, fusion)) = &self.context {
            let added = fusion.forward(forward, &forward.dropout(&pooled, self.dropout)?)?;
            let added = added.reshape(&[added.shape()[0], 1, added.shape()[1]]);
            states.states = forward.apply(Binary::Add, &[&states.states, &added])?;
        }
        let spans = self.span.forward(forward, &states.states)?;
        Ok(JointOutputs { classes, spans, states })
    }
}

/// What does not fit between a model and its tokens. Errors: 78.
pub(super) fn require_fit(model: &JointModel, info: &TokenInfo, folder: &Path) -> Result<()> {
    require_answers(info, folder)?;
    if !info.is_joint() {
        return Err(Error::config(format!(
            "{}: records have no labels; name `text` and `label` in columns.yaml, or train with task span",
            folder.display()
        )));
    }
    model.encoder.require_fit(info, folder)?;
    require_classes(info, folder)
}

/// Warns if the texts of most records are the answers themselves.
fn warn_of_leak(sets: &Sets, folder: &Path) {
    let is_answer = |(set, i): &(&TokenSet, usize)| {
        let answer = set.answer(*i).map(|characters| set.text_of_characters(*i, characters));
        answer
            .is_some_and(|answer| set.texts(*i)[0].is_some_and(|text| text.trim() == answer.trim()))
    };
    let (all, same) = (sets.records().count(), sets.records().filter(is_answer).count());
    if 2 * same > all {
        warn!(
            "{}: in {same} of {all} training records the text with the label is the answer itself, which the model is told \
             before it looks for it; model.share keeps it from the answer",
            folder.display()
        );
    }
}

impl Define for JointTask {
    const SPEC: Spec =
        Spec::new("joint", "joint_score", Direction::Maximize, include_str!("joint.yaml"));
    type Data = TextData;
    type Model = JointModel;
    type Loss = JointLoss;

    fn violations(config: &JointConfig) -> Violations {
        let JointConfig { model, loss, .. } = config;
        let mut violations: Violations =
            within("model.encoder", model.encoder.violations(config.keeps_frozen())).collect();
        violations.extend(within("model.head", model.head.violations()));
        violations.extend(within("model.span", model.span.violations()));
        violations.extend(Lora::violations(model.lora.as_ref(), config));
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

    fn open(config: &ConfigOf<Self>) -> Result<(Self, ParamSet)> {
        let JointConfig { data, model, loss, .. } = config;
        let sets = Sets::open(data)?;
        require_fit(model, sets.info(), &data.tokens)?;
        let mut builder = Builder::of(config);
        let joint = Joint::new(&mut builder, model, sets.info());
        builder.check()?;
        if !model.share {
            warn_of_leak(&sets, &data.tokens);
        }
        let classes = ClassLoss::new(&loss.classes, &sets, &data.tokens)?;
        let weights = [loss.class_weight / classes.mean(), loss.answer_weight];
        let windows = Windows::of(sets);
        Ok((Self { model: joint, loss: classes, weights, windows }, builder.finish()))
    }
}

impl Task for JointTask {
    fn sources(&self) -> Vec<(u64, f64)> {
        vec![(self.windows.len() as u64, 1.0)]
    }

    fn buckets(&self) -> Option<Buckets> {
        Some(self.windows.buckets())
    }

    fn data_hash(&self) -> String {
        self.windows.sets.hash()
    }

    fn input_files(&self) -> Vec<InputFile> {
        self.windows.sets.input_files()
    }

    fn batch(&self, _micro_batch: u64, _first: u64, samples: &[u64]) -> Result<Batch> {
        let own = self.windows.pick(samples);
        let records: Vec<_> = own.iter().map(|(set, window)| (*set, window.record)).collect();
        Ok(self.loss.add(with_answers(self.model.batch(&own), &own), &records).0)
    }

    /// Terms: `classes` and `answers`.
    fn loss(&self, forward: &Forward, batch: &Batch) -> Result<Loss> {
        let found = self.model.forward(forward, batch)?;
        let classes = self.loss.of(forward, batch, &found.classes)?;
        let answers = span_loss(forward, batch, &found.spans, &found.states)?;
        let terms = [("classes", &classes), ("answers", &answers)];
        Ok(Loss {
            sum: forward.apply(WeightedSum(self.weights.to_vec()), &[&classes, &answers])?,
            terms: terms.map(|(name, sum)| (name, sum.value().clone()).into()).into(),
        })
    }

    fn validation_samples(&self) -> u64 {
        self.windows.sets.validation.len() as u64
    }

    /// The metrics of tasks classify, named `class_...`, and span; and `joint_score`, the mean of the F1 of the second of two
    /// classes (of more: `class_macro_f1`) and of `exact_match`.
    fn evaluate(&self, forward: &Forward, samples: &[u64], scores: &mut Scores) -> Result<()> {
        let set = &self.windows.sets.validation;
        let run = |windows: &[(&TokenSet, &Window)]| {
            let batch = self.model.batch(windows).to_device(forward.device())?;
            self.model.forward(forward, &batch)
        };
        let firsts: Vec<Window> =
            samples.iter().filter_map(|i| set.windows(*i as usize).into_iter().next()).collect();
        let two = self.windows.sets.info().labels.len() == 2;
        for windows in firsts.chunks(32) {
            let own: Vec<_> = windows.iter().map(|window| (set, window)).collect();
            for (window, logits) in windows.iter().zip(rows(&run(&own)?.classes)?) {
                let (truth, found) = (class(set, window.record), largest(&logits));
                scores.confusion("class_", truth, found);
                if two {
                    scores.f1("class_f1", truth == 1, found == 1);
                }
                scores.mean("class_loss", cross_entropy(&logits, truth), 1.0);
            }
        }
        let of_spans = |windows: &[(&TokenSet, &Window)]| run(windows).map(|found| found.spans);
        self.windows.evaluate(samples, self.model.longest, scores, of_spans)?;
        let of_classes = if two { "class_f1" } else { "class_macro_f1" };
        scores.mean_of("joint_score", &[of_classes, "exact_match"]);
        Ok(())
    }

    /// Predicts `classes`, [classes], and `spans`, the logits of the first and of the last token, [tokens, 2].
    fn predict(&self, forward: &Forward, batch: &Batch) -> Result<Predictions> {
        let found = self.model.forward(forward, batch)?;
        let mut predictions = Predictions::default();
        for (name, logits) in [("classes", &found.classes), ("spans", &found.spans)] {
            let width = logits.shape()[1..].iter().product();
            let values = logits.value().to_host()?.read::<f32>().to_vec();
            predictions = predictions.with(name, width, values);
        }
        Ok(predictions)
    }

    fn buffers(&self) -> Buffers {
        self.windows.sets.buffers()
    }
}
