//! Trained models of texts.

use super::classify::Classifier;
use super::joint::Joint;
use super::sets::{BUFFER, identity};
use super::span::{Decoded, SpanFinder, decode};
use super::task::{BATCH, DefineText, TextModel, WindowLogits, require_fit, window_logits};
use crate::trained::{Opener, TrainedModel};
use data::text::{RecordTokens, TokenInfo, TokenSet, Window};
use learn::init::InitFrom;
use learn::params::Builder;
use learn::trained::{Origin, Parts, Trained};
use serde_json::{Value, json};
use std::path::Path;
use unix::text::matches;
use unix::{Context, Error, Exit, Result};

/// Parameters of the heads that transformers has.
const HEADS: [&str; 3] = ["classifier.weight", "classifier.out_proj.weight", "qa_outputs.weight"];
/// Answers that are kept for each record.
const CANDIDATES: usize = 5;

/// A model with its weights.
#[derive(Debug)]
pub struct TrainedText {
    trained: Model,
    task: String,
    /// `data.train_on` of its training.
    trained_on: Value,
    info: TokenInfo,
}

/// What a model predicts for records.
#[derive(Clone, Debug, Default)]
pub struct TextOutputs {
    /// Logits [records, classes]; nothing of a model without classes.
    pub classes: Vec<f32>,
    /// The answers to each record; nothing of a model that gives none.
    pub answers: Vec<Decoded>,
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

/// Checks that the checkpoint that training starts from, if it is one, was trained with the tokenizer and the labels of
/// the tokens in `folder`, unless the head is new. Errors: 78.
pub(super) fn require_origin(init: &InitFrom, info: &TokenInfo, folder: &Path) -> Result<()> {
    let is_head = |pattern: &String| HEADS.iter().any(|name| matches(pattern, name));
    if !init.from.is_dir() || init.names.keep.iter().any(is_head) {
        return Ok(());
    }
    // A resumed run may no longer need it; a new one reports what is wrong when it reads the values.
    let parts = Parts::read(&init.from, init.weights);
    let Ok(recorded) = parts.and_then(|parts| parts.buffer(BUFFER)) else { return Ok(()) };
    let kinds = [(false, false), (false, true), (true, false), (true, true)];
    let is_same = kinds.into_iter().any(|(pairs, answers)| {
        let own = identity(&TokenInfo { pairs, answers, ..info.clone() });
        own.iter().map(|x| f64::from(*x)).eq(recorded.iter().copied())
    });
    match is_same {
        true => Ok(()),
        false => Err(Error::config(format!(
            "{}: another tokenizer, or other labels or the same in another order, than those that {} was trained with; use \
             its tokenizer and its labels, or start with a new head: init.names.keep=[classifier.*, qa_outputs.*]",
            folder.display(),
            init.from.display()
        ))),
    }
}

/// Models of texts predict no fields.
pub(crate) fn refuse(_: &Parts, _: &Opener) -> Result<Box<dyn TrainedModel>> {
    Err(Error::usage(
        "the model reads texts: give evaluate score a folder of ds-prep tokenize as --data, and evaluate predict a file \
         -o FILE.jsonl or -",
    ))
}

type Model = Trained<Box<dyn TextModel>>;
type Restore = fn(&Parts, &Opener, &TokenInfo, &Path) -> Result<Model>;

/// Restores the model of a task.
fn restored<M: DefineText>(
    parts: &Parts,
    opener: &Opener,
    info: &TokenInfo,
    folder: &Path,
) -> Result<Model> {
    let checkpoint = || parts.origin.checkpoint.display().to_string();
    let config: M::Config = parts.section("model").context(checkpoint)?;
    require_tokens_of(parts, info, folder)?;
    require_fit::<M>(&config, info, folder)?;
    let build = |b: &mut Builder| {
        let model: Box<dyn TextModel> = Box::new(M::new(b, &config, info));
        b.check().map(|()| model)
    };
    parts.restore(opener.device, build).context(checkpoint)
}

/// How the model of a checkpoint is restored. Errors: 2 for a model that reads no texts.
fn restore_of(parts: &Parts) -> Result<Restore> {
    let task = parts.task.as_str();
    if task == Classifier::SPEC.name {
        Ok(restored::<Classifier>)
    } else if task == SpanFinder::SPEC.name {
        Ok(restored::<SpanFinder>)
    } else if task == Joint::SPEC.name {
        Ok(restored::<Joint>)
    } else {
        let checkpoint = parts.origin.checkpoint.display();
        Err(Error::usage(format!("{checkpoint}: a model of task {task} reads no texts")))
    }
}

impl TrainedText {
    /// Restores the model of a checkpoint for tokens in `folder`.
    ///
    /// Errors: 2 for a model that reads no texts; 65 when it is damaged, or its tokenizer or labels are not those of the
    /// tokens; 78 when it cannot read them.
    pub fn restore(
        parts: &Parts,
        opener: &Opener,
        info: &TokenInfo,
        folder: &Path,
    ) -> Result<Self> {
        let trained = restore_of(parts)?(parts, opener, info, folder)?;
        let trained_on = parts.config["data"]["train_on"].clone();
        Ok(Self { trained, task: parts.task.clone(), trained_on, info: info.clone() })
    }

    /// Errors: 2 for a model that reads no texts.
    pub fn require_task(parts: &Parts) -> Result<()> {
        restore_of(parts).map(|_| ())
    }

    /// Where the weights come from.
    pub fn origin(&self) -> &Origin {
        &self.trained.origin
    }

    /// Whether it gives classes.
    pub fn has_classes(&self) -> bool {
        self.task != SpanFinder::SPEC.name
    }

    /// Whether it finds answers in contexts.
    pub fn finds_answers(&self) -> bool {
        self.trained.model.longest() > 0
    }

    /// The protocol of an evaluation on `set`.
    pub fn protocol(&self, set: &TokenSet) -> Value {
        let origin = self.origin();
        let mut protocol = json!({
            "task": self.task, "tokens": set.folder(), "on": set.name(), "tokens_hash": set.hash(),
            "records": set.len(), "truncated": set.truncated(), "train_on": self.trained_on,
        });
        protocol[self.task.as_str()] = json!({
            "checkpoint": origin.checkpoint, "update": origin.update, "weights": origin.weights,
            "blake3": origin.blake3, "data": origin.data, "parameters": self.trained.params.count(),
        });
        protocol
    }

    /// Errors: 1 for logits that are not finite, which no metric or label may be computed from.
    fn require_finite(&self, window: &Window, logits: &WindowLogits) -> Result<()> {
        match logits.classes.iter().chain(&logits.answers).all(|z| z.is_finite()) {
            true => Ok(()),
            false => Err(Error::new(
                Exit::Failure,
                format!(
                    "{}: the logits of record {} (from 0) are not finite (NaN or infinity), so it has no prediction; use an \
                     earlier checkpoint (ckpt list RUN), or train again with a lower learning rate",
                    self.origin().checkpoint.display(),
                    window.record
                ),
            )),
        }
    }

    /// What the model predicts for all records of `set`; `proceed` as in [`Self::outputs`].
    pub fn outputs_of(
        &self,
        set: &TokenSet,
        proceed: impl FnMut(usize) -> Result<()>,
    ) -> Result<TextOutputs> {
        let records = (0..set.len()).map(|i| set.checked(i)).collect::<Result<Vec<_>>>()?;
        self.outputs(&records, proceed)
    }

    /// What the model predicts for records; `proceed` is called with a number of records after each batch. Windows of similar
    /// length share a batch, which does not change the results.
    pub fn outputs(
        &self,
        records: &[RecordTokens],
        mut proceed: impl FnMut(usize) -> Result<()>,
    ) -> Result<TextOutputs> {
        let of = |(i, record): (usize, &RecordTokens)| record.windows(i, &self.info);
        let windows: Vec<Window> = records.iter().enumerate().flat_map(of).collect();
        let mut order: Vec<usize> = (0..windows.len()).collect();
        order.sort_by_key(|i| records[windows[*i].record].window_len(&windows[*i]));
        let mut found = Vec::with_capacity(windows.len());
        for own in order.chunks(BATCH) {
            let of = |i: &usize| (records[windows[*i].record].clone(), &windows[*i]);
            let own_windows: Vec<_> = own.iter().map(of).collect();
            let logits = self
                .trained
                .run(|forward, model| window_logits(&**model, forward, &own_windows))?;
            for (window, logits) in own_windows.iter().zip(&logits) {
                self.require_finite(window.1, logits)?;
            }
            found.extend(own.iter().copied().zip(logits));
            proceed(found.len() * records.len() / windows.len())?;
        }
        found.sort_by_key(|(i, _)| *i);
        let longest = self.trained.model.longest();
        let mut outputs = TextOutputs::default();
        for own in found.chunk_by(|a, b| windows[a.0].record == windows[b.0].record) {
            // The text with the label is the same in all windows of a record.
            outputs.classes.extend(&own[0].1.classes);
            if longest > 0 {
                let own: Vec<_> =
                    own.iter().map(|(i, logits)| (&windows[*i], &logits.answers[..])).collect();
                outputs.answers.push(decode(&own, longest, CANDIDATES));
            }
        }
        Ok(outputs)
    }
}
