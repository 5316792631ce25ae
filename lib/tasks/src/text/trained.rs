//! Trained text models.

use super::sets::{recorded_tokenizer, tokenizer_hash};
use super::span::{Decoded, decode};
use super::task::{DefineText, EVAL_BATCH, TextModel, WindowLogits, require_fit, window_logits};
use crate::trained::Opener;
use data::text::{RecordTokens, TokenInfo, Window};
use learn::evaluate::Model;
use learn::init::InitFrom;
use learn::params::Builder;
use learn::trained::{Parts, TrainedModel};
use serde::{Deserialize, Serialize};
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
    trained: TrainedModel<Box<dyn TextModel>>,
    task: &'static str,
    info: TokenInfo,
}

/// What a model predicts for a record.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TextOutput {
    /// Logits [classes]; empty if the model predicts no classes.
    pub classes: Vec<f32>,
    /// The best answers; empty if the model predicts no answers.
    pub answer: Decoded,
}

/// Checks that the tokens in `folder` have the tokenizer and labels that a model was trained with. Errors: 65.
pub(super) fn require_tokens_of(parts: &Parts, info: &TokenInfo, folder: &Path) -> Result<()> {
    let checkpoint = || parts.origin.checkpoint.display().to_string();
    if recorded_tokenizer(parts).context(checkpoint)? == tokenizer_hash(info) {
        return Ok(());
    }
    Err(Error::data(format!(
        "{}: the tokenizer or the labels differ from those that {} was trained with; run ds-prep tokenize with the same \
         tokenizer",
        folder.display(),
        checkpoint()
    )))
}

/// If training starts from a checkpoint and keeps its head, checks that it was trained with the tokenizer and the
/// labels of the tokens in `folder`. Errors: 78.
pub(super) fn require_origin(init: &InitFrom, info: &TokenInfo, folder: &Path) -> Result<()> {
    let is_head = |pattern: &String| HEADS.iter().any(|name| matches(pattern, name));
    if !init.from.is_dir() || init.names.keep.iter().any(is_head) {
        return Ok(());
    }
    // An unreadable checkpoint is no error here: a resumed run may not need it any more, and a new run reports the
    // problem when it loads the weights.
    let parts = Parts::read(&init.from, init.weights);
    let Ok(recorded) = parts.and_then(|parts| recorded_tokenizer(&parts)) else { return Ok(()) };
    let kinds = [(false, false), (false, true), (true, false), (true, true)];
    let is_same = kinds.into_iter().any(|(pairs, answers)| {
        recorded == tokenizer_hash(&TokenInfo { pairs, answers, ..info.clone() })
    });
    match is_same {
        true => Ok(()),
        false => Err(Error::config(format!(
            "{}: the tokenizer, the labels or their order differ from those that {} was trained with; use its tokenizer and \
             labels, or start with a new head: init.names.keep=[classifier.*, qa_outputs.*]",
            folder.display(),
            init.from.display()
        ))),
    }
}

impl TrainedText {
    /// Restores the model of a checkpoint of task `M` for tokens in `folder`.
    ///
    /// Errors: 65 when it is damaged, or its tokenizer or labels are not those of the tokens; 78 when it cannot read
    /// them.
    pub fn restore<M: DefineText>(
        parts: &Parts,
        opener: &Opener,
        info: &TokenInfo,
        folder: &Path,
    ) -> Result<Self> {
        let checkpoint = || parts.origin.checkpoint.display().to_string();
        let config: M::Config = parts.section("model").context(checkpoint)?;
        require_tokens_of(parts, info, folder)?;
        require_fit::<M>(&config, info, folder)?;
        let build = |b: &mut Builder| {
            let model: Box<dyn TextModel> = Box::new(M::new(b, &config, info));
            b.check().map(|()| model)
        };
        let trained = parts.restore(opener.mode, build).context(checkpoint)?;
        Ok(Self { trained, task: M::SPEC.name, info: info.clone() })
    }

    /// Its task.
    pub fn task(&self) -> &'static str {
        self.task
    }

    /// Where it comes from; `data` is the hash of the tokens that it must have been trained on.
    pub fn model(&self, data: &str) -> Model {
        let (origin, parameters) = (self.trained.origin.clone(), self.trained.params.count());
        Model { task: self.task, origin, parameters, data: Some(data.into()) }
    }

    /// Whether it gives classes.
    pub fn has_classes(&self) -> bool {
        self.trained.model.has_classes()
    }

    /// Whether it finds answers in contexts.
    pub fn finds_answers(&self) -> bool {
        self.trained.model.longest() > 0
    }

    /// Errors: 1 for logits that are not finite, which no metric or label may be computed from.
    fn require_finite(&self, record: usize, logits: &WindowLogits) -> Result<()> {
        match logits.classes.iter().chain(&logits.answers).all(|z| z.is_finite()) {
            true => Ok(()),
            false => Err(Error::new(
                Exit::Failure,
                format!(
                    "{}: the logits of record {record} (from 0) are not finite (NaN or infinity), so it has no prediction; \
                     use an earlier checkpoint (ckpt list RUN), or train again with a lower learning rate",
                    self.trained.origin.checkpoint.display()
                ),
            )),
        }
    }

    /// What the model predicts for records, which are numbered from `first` in messages. Windows of similar length
    /// share a batch, which does not change the results.
    pub fn outputs(&self, records: &[RecordTokens], first: usize) -> Result<Vec<TextOutput>> {
        let of = |(i, record): (usize, &RecordTokens)| record.windows(i, &self.info);
        let windows: Vec<Window> = records.iter().enumerate().flat_map(of).collect();
        let mut order: Vec<usize> = (0..windows.len()).collect();
        order.sort_by_key(|i| records[windows[*i].record].window_len(&windows[*i]));
        let mut found = Vec::with_capacity(windows.len());
        for own in order.chunks(EVAL_BATCH) {
            let of = |i: &usize| (records[windows[*i].record].clone(), &windows[*i]);
            let own_windows: Vec<_> = own.iter().map(of).collect();
            let logits = self
                .trained
                .run(|forward, model| window_logits(&**model, forward, &own_windows))?;
            for (window, logits) in own_windows.iter().zip(&logits) {
                self.require_finite(first + window.1.record, logits)?;
            }
            found.extend(own.iter().copied().zip(logits));
        }
        found.sort_by_key(|(i, _)| *i);
        let longest = self.trained.model.longest();
        let of_record = |own: &[(usize, WindowLogits)]| {
            let answers: Vec<_> =
                own.iter().map(|(i, logits)| (&windows[*i], &logits.answers[..])).collect();
            TextOutput {
                // The text with the label is the same in all windows of a record.
                classes: own[0].1.classes.clone(),
                answer: match longest {
                    0 => Decoded::default(),
                    _ => decode(&answers, longest, CANDIDATES),
                },
            }
        };
        let is_same = |a: &(usize, _), b: &(usize, _)| windows[a.0].record == windows[b.0].record;
        Ok(found.chunk_by(is_same).map(of_record).collect())
    }
}
