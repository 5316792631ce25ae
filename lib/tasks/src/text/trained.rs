//! Trained models of texts.

use super::batch::Text;
use super::classify::{Classifier, ClassifyModel, ClassifyTask};
use super::joint::{Joint, JointModel, JointTask};
use super::sets::{BUFFER, identity};
use super::span::{Decoded, SpanFinder, SpanModel, SpanTask, decode, rows};
use crate::trained::{Opener, TrainedModel};
use data::text::{TokenInfo, TokenSet, Window};
use learn::forward::Forward;
use learn::params::Builder;
use learn::task::Define;
use learn::trained::{Origin, Parts, Trained};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::path::Path;
use unix::{Context, Error, Result};

/// Texts or windows per forward run.
const BATCH: usize = 32;
/// Answers that are kept for each record.
const CANDIDATES: usize = 5;

/// A model of a task of texts, as it is restored.
pub trait TextModel: Sized {
    /// Section `model` of the configuration.
    type Config: DeserializeOwned;
    /// The name of the task.
    const TASK: &'static str;

    /// Registers its parameters.
    fn build(b: &mut Builder, config: &Self::Config, info: &TokenInfo) -> Self;

    /// Checks that it can read tokens of this kind, which are in `folder`. Errors: 78.
    fn require_fit(config: &Self::Config, info: &TokenInfo, folder: &Path) -> Result<()>;
}

impl TextModel for Classifier {
    type Config = ClassifyModel;
    const TASK: &'static str = ClassifyTask::SPEC.name;

    fn build(b: &mut Builder, config: &Self::Config, info: &TokenInfo) -> Self {
        Self::new(b, config, info)
    }

    fn require_fit(config: &Self::Config, info: &TokenInfo, folder: &Path) -> Result<()> {
        super::classify::require_fit(config, info, folder)
    }
}

impl TextModel for SpanFinder {
    type Config = SpanModel;
    const TASK: &'static str = SpanTask::SPEC.name;

    fn build(b: &mut Builder, config: &Self::Config, info: &TokenInfo) -> Self {
        Self::new(b, config, info)
    }

    fn require_fit(config: &Self::Config, info: &TokenInfo, folder: &Path) -> Result<()> {
        super::span::require_fit(config, info, folder)
    }
}

impl TextModel for Joint {
    type Config = JointModel;
    const TASK: &'static str = JointTask::SPEC.name;

    fn build(b: &mut Builder, config: &Self::Config, info: &TokenInfo) -> Self {
        Self::new(b, config, info)
    }

    fn require_fit(config: &Self::Config, info: &TokenInfo, folder: &Path) -> Result<()> {
        super::joint::require_fit(config, info, folder)
    }
}

/// A model with its weights.
#[derive(Clone, Debug)]
pub struct TrainedText<M> {
    trained: Trained<M>,
    classes: usize,
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
        "the model reads texts: give evaluate score a folder of ds-prep tokenize as --data, and evaluate predict a file \
         -o FILE.jsonl or -",
    ))
}

impl<M: TextModel> TrainedText<M> {
    /// Restores the model of a checkpoint for tokens in `folder`.
    ///
    /// Errors: 65 when it is damaged, or its tokenizer or labels are not those of the tokens; 78 when it cannot read them.
    pub fn restore(
        parts: &Parts,
        opener: &Opener,
        info: &TokenInfo,
        folder: &Path,
    ) -> Result<Self> {
        let checkpoint = || parts.origin.checkpoint.display().to_string();
        let config: M::Config = parts.section("model").context(checkpoint)?;
        require_tokens_of(parts, info, folder)?;
        M::require_fit(&config, info, folder)?;
        let build = |b: &mut Builder| {
            let model = M::build(b, &config, info);
            b.check().map(|()| model)
        };
        let trained = parts.restore(opener.device, build).context(checkpoint)?;
        Ok(Self { trained, classes: info.labels.len() })
    }

    /// Where the weights come from.
    pub fn origin(&self) -> &Origin {
        &self.trained.origin
    }

    /// The protocol of an evaluation on `set`.
    pub fn protocol(&self, set: &TokenSet) -> Value {
        let origin = self.origin();
        let mut protocol = json!({
            "task": M::TASK, "tokens": set.folder(), "on": set.name(), "tokens_hash": set.hash(),
            "records": set.len(), "truncated": set.truncated(),
        });
        protocol[M::TASK] = json!({
            "checkpoint": origin.checkpoint, "update": origin.update, "weights": origin.weights,
            "blake3": origin.blake3, "data": origin.data, "parameters": self.trained.params.count(),
        });
        protocol
    }

    /// What `run` computes of items with these lengths, in their order; `proceed` is called with the number of items after
    /// each batch. Items of similar length share a batch, which does not change the results.
    fn outputs<T>(
        &self,
        lengths: &[usize],
        run: impl Fn(&Forward, &M, &[usize]) -> Result<Vec<T>>,
        mut proceed: impl FnMut(usize) -> Result<()>,
    ) -> Result<Vec<T>> {
        let mut order: Vec<usize> = (0..lengths.len()).collect();
        order.sort_by_key(|i| lengths[*i]);
        let mut outputs = Vec::with_capacity(order.len());
        for own in order.chunks(BATCH) {
            let found = self.trained.run(|forward, model| run(forward, model, own))?;
            outputs.extend(own.iter().copied().zip(found));
            proceed(outputs.len())?;
        }
        outputs.sort_by_key(|(i, _)| *i);
        Ok(outputs.into_iter().map(|(_, output)| output).collect())
    }

    /// What `run` computes of all windows of `set`, by record; `proceed` as in [`Self::outputs`], with a number of records.
    fn of_windows<T>(
        &self,
        set: &TokenSet,
        run: impl Fn(&Forward, &M, &[(&TokenSet, &Window)]) -> Result<Vec<T>>,
        mut proceed: impl FnMut(usize) -> Result<()>,
    ) -> Result<Vec<Vec<(Window, T)>>> {
        let windows: Vec<Window> = (0..set.len()).flat_map(|i| set.windows(i)).collect();
        let lengths: Vec<usize> = windows.iter().map(|window| window.tokens.len()).collect();
        let run = |forward: &Forward, model: &M, own: &[usize]| {
            let own: Vec<_> = own.iter().map(|i| (set, &windows[*i])).collect();
            run(forward, model, &own)
        };
        let records = |done: usize| done * set.len() / windows.len();
        let found = self.outputs(&lengths, run, |done| proceed(records(done)))?;
        let mut by_record: Vec<Vec<(Window, T)>> = Vec::with_capacity(set.len());
        for (window, output) in windows.into_iter().zip(found) {
            match by_record.last_mut() {
                Some(own) if own[0].0.record == window.record => own.push((window, output)),
                _ => by_record.push(vec![(window, output)]),
            }
        }
        Ok(by_record)
    }
}

/// The answers in windows, each with its logits.
fn decoded(windows: &[(Window, Vec<f32>)], longest: usize) -> Decoded {
    let windows: Vec<_> =
        windows.iter().map(|(window, logits)| (window, logits.as_slice())).collect();
    decode(&windows, longest, CANDIDATES)
}

impl TrainedText<Classifier> {
    /// Logits [texts, classes] of texts; `proceed` is called with the number of texts after each batch.
    pub fn logits(
        &self,
        texts: &[Text],
        proceed: impl FnMut(usize) -> Result<()>,
    ) -> Result<Vec<f32>> {
        let lengths: Vec<usize> = texts.iter().map(|(ids, _)| ids.len()).collect();
        let run = |forward: &Forward, model: &Classifier, own: &[usize]| {
            let own: Vec<Text> = own.iter().map(|i| texts[*i]).collect();
            let batch = model.batch(&own).to_device(forward.device())?;
            rows(&model.forward(forward, &batch)?)
        };
        Ok(self.outputs(&lengths, run, proceed)?.concat())
    }
}

impl TrainedText<SpanFinder> {
    /// The answers to all records; `proceed` is called with a number of records after each batch.
    pub fn answers(
        &self,
        set: &TokenSet,
        proceed: impl FnMut(usize) -> Result<()>,
    ) -> Result<Vec<Decoded>> {
        let run = |forward: &Forward, model: &SpanFinder, own: &[(&TokenSet, &Window)]| {
            let batch = model.batch(own).to_device(forward.device())?;
            rows(&model.forward(forward, &batch)?.0)
        };
        let longest = self.trained.model.longest();
        let found = self.of_windows(set, run, proceed)?;
        Ok(found.iter().map(|windows| decoded(windows, longest)).collect())
    }
}

impl TrainedText<Joint> {
    /// Logits [records, classes] of the texts, and the answers in the contexts; `proceed` is called with a number of records
    /// after each batch.
    pub fn outputs_of(
        &self,
        set: &TokenSet,
        proceed: impl FnMut(usize) -> Result<()>,
    ) -> Result<(Vec<f32>, Vec<Decoded>)> {
        let run = |forward: &Forward, model: &Joint, own: &[(&TokenSet, &Window)]| {
            let batch = model.batch(own).to_device(forward.device())?;
            let found = model.forward(forward, &batch)?;
            Ok(rows(&found.classes)?.into_iter().zip(rows(&found.spans)?).collect())
        };
        let longest = self.trained.model.longest();
        let (mut logits, mut answers) = (Vec::with_capacity(set.len() * self.classes), Vec::new());
        for windows in self.of_windows(set, run, proceed)? {
            // The text of a record is the same in all its windows.
            logits.extend(&windows[0].1.0);
            let spans: Vec<_> =
                windows.into_iter().map(|(window, (_, spans))| (window, spans)).collect();
            answers.push(decoded(&spans, longest));
        }
        Ok((logits, answers))
    }
}
