//! The text tasks: what `classify`, `span` and `joint` have in common.
//!
//! A training sample is a window of a context or, for records without a context, a whole text. Scores are per record.

use super::batch::TextEncoder;
use super::classify::add_class;
use super::encoder::EncoderConfig;
use super::head::HeadConfig;
use super::loss::ClassLoss;
use super::sets::{Sets, TextData};
use super::span::{add_agreement, span_loss, with_answers};
use super::trained::require_origin;
use data::inputs::InputFile;
use data::loader::Buckets;
use data::text::{RecordTokens, TokenInfo, TokenSet, Window};
use learn::adapt::Lora;
use learn::config::Config;
use learn::dependency::Dependencies;
use learn::forward::Forward;
use learn::params::{Builder, ParamSet};
use learn::score::Scores;
use learn::task::{Batch, ConfigOf, Define, Loss, Predictions, Section, Spec, Task};
use std::fmt::Debug;
use std::path::Path;
use tensor::Var;
use tensor::ops::weighted_sum::WeightedSum;
use unix::config::{Violations, within};
use unix::{Error, Result, warn};

/// Windows per batch in evaluation and prediction.
pub(super) const EVAL_BATCH: usize = 32;

/// A text model.
pub trait TextModel: Debug + Send + Sync {
    /// A batch of windows.
    fn batch(&self, windows: &[(RecordTokens, &Window)]) -> Batch;

    /// The logits of a batch.
    fn forward(&self, forward: &Forward, batch: &Batch) -> Result<Outputs>;

    /// Its encoder; of several, the one that reads labelled texts.
    fn text_encoder(&self) -> &TextEncoder;

    /// Whether the model predicts classes.
    fn has_classes(&self) -> bool {
        true
    }

    /// Maximum length of an answer in tokens; 0 if the model predicts no answers.
    fn longest(&self) -> usize {
        0
    }
}

/// The outputs of a model for a batch.
#[derive(Clone, Debug, Default)]
pub struct Outputs {
    /// Logits of the classes of texts, [B, classes].
    pub classes: Option<Var>,
    /// Logits of the first and of the last token of answers, [B, T, 2].
    pub answers: Option<Var>,
}

impl Outputs {
    /// The class logits. Errors: a bug if the model has none.
    pub fn classes(&self) -> Result<&Var> {
        self.classes.as_ref().ok_or_else(|| Error::bug("a model without classes"))
    }

    /// The answer logits. Errors: a bug if the model has none.
    pub fn answers(&self) -> Result<&Var> {
        self.answers.as_ref().ok_or_else(|| Error::bug("a model without answers"))
    }
}

/// A model that is trained by a task of its own.
pub trait DefineText: TextModel + Sized + 'static {
    /// Its task.
    const SPEC: Spec;
    /// Section `model` of the configuration.
    type Config: Section;
    /// Section `loss`.
    type Loss: Section;

    /// The configurations of its encoder and of LoRA.
    fn encoder(config: &Self::Config) -> (&EncoderConfig, Option<&Lora>);

    /// The configuration of its classification head, if it has one.
    fn head(_: &Self::Config) -> Option<&HeadConfig> {
        None
    }

    /// Violations outside the encoder and LoRA that the schema does not express.
    fn violations(model: &Self::Config, loss: &Self::Loss) -> Violations;

    /// Checks that the tokens in `folder`, described by `info`, have the labels or answers that the model is trained
    /// on. Errors: 78.
    fn require_fit(info: &TokenInfo, folder: &Path) -> Result<()>;

    /// Registers its parameters, for the tokenizer and labels described by `info`.
    fn new(b: &mut Builder, config: &Self::Config, info: &TokenInfo) -> Self;

    /// Its objective on the training records of `sets`, which have `windows` windows in total. Errors: 78.
    fn objective(config: &TextConfig<Self>, sets: &Sets, windows: usize) -> Result<Objective>;
}

/// The configuration of the task of a model.
pub type TextConfig<M> = Config<TextData, <M as DefineText>::Config, <M as DefineText>::Loss>;

/// Checks that a model with this configuration can read the tokens in `folder`. Errors: 78.
pub(super) fn require_fit<M: DefineText>(
    config: &M::Config,
    info: &TokenInfo,
    folder: &Path,
) -> Result<()> {
    M::require_fit(info, folder)?;
    M::encoder(config).0.require_fit(info, folder)?;
    M::head(config).map_or(Ok(()), |head| head.require_labels(info, folder))
}

/// What a model learns.
pub enum Objective {
    /// The classes of texts. A sample has the weight of its class.
    Classes(ClassLoss),
    /// The answers in contexts.
    Answers,
    /// Both, with the weights of their losses.
    Both(ClassLoss, [f64; 2]),
}

impl Objective {
    /// The loss of classes, if there is one.
    fn classes(&self) -> Option<&ClassLoss> {
        match self {
            Self::Classes(loss) | Self::Both(loss, _) => Some(loss),
            Self::Answers => None,
        }
    }

    /// Adds the targets of these windows to a batch.
    fn add(&self, batch: Batch, windows: &[(&TokenSet, &Window)]) -> Batch {
        match self {
            Self::Classes(loss) => {
                let (batch, total) = loss.add(batch, windows);
                batch.weighing(total)
            }
            Self::Answers => with_answers(batch, windows),
            Self::Both(loss, _) => loss.add(with_answers(batch, windows), windows).0,
        }
    }

    /// The loss of the outputs; with both objectives, it has the terms `classes` and `answers`.
    fn of(&self, forward: &Forward, batch: &Batch, outputs: &Outputs) -> Result<Loss> {
        let classes = |loss: &ClassLoss| loss.of(forward, batch, outputs.classes()?);
        let answers = || span_loss(forward, batch, outputs.answers()?);
        match self {
            Self::Classes(loss) => Ok(classes(loss)?.into()),
            Self::Answers => Ok(answers()?.into()),
            Self::Both(loss, weights) => {
                let (classes, answers) = (classes(loss)?, answers()?);
                let terms = [("classes", &classes), ("answers", &answers)];
                Ok(Loss {
                    sum: forward.apply(WeightedSum(weights.to_vec()), &[&classes, &answers])?,
                    terms: terms.map(|(name, sum)| (name, sum.value().clone()).into()).into(),
                })
            }
        }
    }
}

/// The task that trains a text model.
pub struct TextTask<M> {
    model: M,
    objective: Objective,
    sets: Sets,
    /// The set and the window of each sample.
    samples: Vec<(usize, Window)>,
    /// The no-answer threshold in validation, see [`Sets::threshold`].
    threshold: Option<f64>,
}

impl<M: DefineText> Define for TextTask<M> {
    const SPEC: Spec = M::SPEC;
    type Data = TextData;
    type Model = M::Config;
    type Loss = M::Loss;

    fn violations(config: &TextConfig<M>) -> Violations {
        let (encoder, lora) = M::encoder(&config.model);
        let mut violations: Violations =
            within("model.encoder", encoder.violations(config.keeps_frozen())).collect();
        violations.extend(Lora::violations(lora, config));
        violations.extend(M::violations(&config.model, &config.loss));
        violations
    }

    fn open(config: &ConfigOf<Self>) -> Result<(Self, ParamSet)> {
        let sets = Sets::open(&config.data)?;
        require_fit::<M>(&config.model, sets.info(), &config.data.tokens)?;
        M::encoder(&config.model).0.require_segments(sets.segments(), &config.data.tokens)?;
        if let Some(init) = &config.init {
            require_origin(init, sets.info(), &config.data.tokens)?;
        }
        let mut builder = Builder::of(config);
        let model = M::new(&mut builder, &config.model, sets.info());
        builder.check()?;
        let windows = |(number, i): (usize, usize)| {
            sets.train[number].windows(i).into_iter().map(move |window| (number, window))
        };
        let samples: Vec<_> = sets.numbered().flat_map(windows).collect();
        let objective = M::objective(config, &sets, samples.len())?;
        warn_of_lost_answers(&sets, &samples, model.longest(), &config.data.tokens);
        let threshold = sets.threshold();
        Ok((Self { model, objective, sets, samples, threshold }, builder.finish()))
    }
}

/// Warns if training records have answers that the model cannot predict, because they are too long or in no window.
fn warn_of_lost_answers(sets: &Sets, samples: &[(usize, Window)], longest: usize, folder: &Path) {
    let answers = sets.records().filter_map(|(set, i)| set.answer_tokens(i));
    let lengths: Vec<usize> = answers.map(|[first, last]| last + 1 - first).collect();
    let long = lengths.iter().filter(|length| **length > longest).count();
    let (all, folder) = (lengths.len(), folder.display());
    if longest > 0 && long > 0 {
        warn!(
            "{folder}: {long} of the {all} answers in training have more than {longest} tokens, the largest length of a \
             predicted answer; raise max_answer"
        );
    }
    let is_whole = |(set, window): &&(usize, Window)| {
        let found = sets.train[*set].answer_tokens(window.record);
        found.is_some_and(|tokens| tokens.iter().all(|token| window.place(*token).is_some()))
    };
    let mut whole: Vec<_> =
        samples.iter().filter(is_whole).map(|(set, window)| (*set, window.record)).collect();
    whole.dedup();
    let lost = all - whole.len();
    if longest > 0 && lost > 0 {
        warn!(
            "{folder}: {lost} of the {all} answers in training are not completely inside any window, so their windows are trained \
             as having no answer; run ds-prep tokenize with a larger --stride or --max-length"
        );
    }
}

impl<M: DefineText> Task for TextTask<M> {
    fn sources(&self) -> Vec<(u64, f64)> {
        vec![(self.samples.len() as u64, 1.0)]
    }

    fn buckets(&self) -> Option<Buckets> {
        let length = |(set, window): &(usize, Window)| {
            self.sets.train[*set].record(window.record).window_len(window)
        };
        Some(self.sets.buckets(self.samples.iter().map(length)))
    }

    fn data_hash(&self) -> String {
        self.sets.hash()
    }

    fn input_files(&self) -> Vec<InputFile> {
        self.sets.input_files()
    }

    fn batch(&self, _micro_batch: u64, _first: u64, samples: &[u64]) -> Result<Batch> {
        let of = |sample: &u64| {
            let (set, window) = &self.samples[*sample as usize];
            (&self.sets.train[*set], window)
        };
        let own: Vec<(&TokenSet, &Window)> = samples.iter().map(of).collect();
        let windows = own.iter().map(|(set, w)| Ok((set.checked(w.record)?, *w)));
        let windows = windows.collect::<Result<Vec<_>>>()?;
        Ok(self.objective.add(self.model.batch(&windows), &own))
    }

    fn loss(&self, forward: &Forward, batch: &Batch) -> Result<Loss> {
        self.objective.of(forward, batch, &self.model.forward(forward, batch)?)
    }

    fn validation_samples(&self) -> u64 {
        self.sets.validation.len() as u64
    }

    /// Metrics of classes, see [`add_class`], and of answers, see [`Agreement`](super::span::Agreement). With both, the
    /// metrics of classes are named `class_...`, and `joint_score` is the mean of `exact_match` and of `class_f1` for
    /// two classes or `class_macro_f1` for more.
    fn evaluate(&self, forward: &Forward, samples: &[u64], scores: &mut Scores) -> Result<()> {
        let set = &self.sets.validation;
        let windows: Vec<Window> = samples.iter().flat_map(|i| set.windows(*i as usize)).collect();
        let mut logits = Vec::with_capacity(windows.len());
        for own in windows.chunks(EVAL_BATCH) {
            let own = own.iter().map(|w| Ok((set.checked(w.record)?, w)));
            let own = own.collect::<Result<Vec<_>>>()?;
            logits.extend(window_logits(&self.model, forward, &own)?);
        }
        let both = matches!(self.objective, Objective::Both(..));
        let prefix = if both { "class_" } else { "" };
        let all: Vec<_> = windows.iter().zip(&logits).collect();
        for own in all.chunk_by(|a, b| a.0.record == b.0.record) {
            let record = own[0].0.record;
            if self.objective.classes().is_some() {
                add_class(scores, prefix, set, record, &own[0].1.classes);
            }
            if self.model.longest() > 0 {
                let windows: Vec<_> =
                    own.iter().map(|(w, found)| (*w, &found.answers[..])).collect();
                add_agreement(scores, set, &windows, self.model.longest(), self.threshold);
            }
        }
        let labels = &set.info().labels;
        if both {
            let of_classes = if labels.len() == 2 { "class_f1" } else { "class_macro_f1" };
            scores.mean_of("joint_score", &[of_classes, "exact_match"]);
        } else if set.info().multi_label {
            let names: Vec<String> = labels.iter().map(|label| format!("f1[{label}]")).collect();
            scores.mean_of("macro_f1", &names.iter().map(String::as_str).collect::<Vec<_>>());
        }
        Ok(())
    }

    /// Predicts `classes`, [classes], and `answers`, the logits of the first and of the last token, [tokens, 2].
    fn predict(&self, forward: &Forward, batch: &Batch) -> Result<Predictions> {
        let Outputs { classes, answers } = self.model.forward(forward, batch)?;
        let mut predictions = Predictions::default();
        for (name, logits) in [("classes", classes), ("answers", answers)] {
            let Some(logits) = logits else { continue };
            let width = logits.shape()[1..].iter().product();
            let values = logits.value().to_host()?.read::<f32>().to_vec();
            predictions = predictions.with(name, width, values);
        }
        Ok(predictions)
    }

    fn dependencies(&self) -> Dependencies {
        self.sets.dependencies()
    }
}

/// The logits of a window, on the host.
#[derive(Clone, Debug, Default)]
pub(super) struct WindowLogits {
    /// [classes], or nothing.
    pub classes: Vec<f32>,
    /// [T, 2], or nothing.
    pub answers: Vec<f32>,
}

/// The logits of each window.
pub(super) fn window_logits(
    model: &dyn TextModel,
    forward: &Forward,
    windows: &[(RecordTokens, &Window)],
) -> Result<Vec<WindowLogits>> {
    let batch = model.batch(windows).to_device(forward.device())?;
    let Outputs { classes, answers } = model.forward(forward, &batch)?;
    let mut all = vec![WindowLogits::default(); windows.len()];
    for (found, own) in all.iter_mut().zip(rows(classes)?) {
        found.classes = own;
    }
    for (found, own) in all.iter_mut().zip(rows(answers)?) {
        found.answers = own;
    }
    Ok(all)
}

/// The rows of a tensor, on the host; empty without a tensor.
fn rows(x: Option<Var>) -> Result<Vec<Vec<f32>>> {
    let Some(x) = x else { return Ok(Vec::new()) };
    let width = x.shape()[1..].iter().product();
    Ok(x.value().to_host()?.read::<f32>().chunks_exact(width).map(<[f32]>::to_vec).collect())
}
