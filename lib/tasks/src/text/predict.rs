//! The labels of new texts, and the answers in new contexts.

use super::metrics::{predicted_classes, sigmoid, softmax};
use super::sets::{Sets, TextData};
use super::span::described;
use super::trained::{TextOutputs, TrainedText};
use crate::trained::Opener;
use data::split::SplitName;
use data::text::{Encoded, Needs, NewText, RecordTokens, TokenInfo, TokenSet, Tokenizer};
use learn::trained::Parts;
use serde_json::{Map, Value, json};
use std::path::Path;
use unix::{Context, Error, Result};

/// What `--with` calls the folder of tokens.
const TOKENS: &str = "tokens";

/// A model of texts with the tokenizer of its training.
#[derive(Debug)]
pub struct TextPredictor {
    model: TrainedText,
    tokenizer: Tokenizer,
    /// The same without a largest length, for contexts.
    unlimited: Tokenizer,
    info: TokenInfo,
    /// Whether contexts have questions.
    questions: bool,
    /// The least margin over no answer with which an answer is predicted; None: there always is one.
    threshold: Option<f64>,
}

/// The context of a record, after the question if it has one.
fn context(text: &NewText, has_question: bool) -> [Option<&str>; 2] {
    match has_question {
        true => [text.text.as_deref(), text.context.as_deref()],
        false => [text.context.as_deref(), None],
    }
}

impl TextPredictor {
    /// Restores a model and the tokenizer beside the tokens that it was trained with: those of its configuration, or of
    /// `--with tokens=FOLDER`.
    ///
    /// Errors: those of [`TrainedText::restore`]; 66 when there is no checkpoint or no tokens.
    pub fn open(path: &Path, opener: &Opener) -> Result<Self> {
        let parts = Parts::read(path, opener.weights)?;
        TrainedText::require_task(&parts)?;
        let checkpoint = parts.origin.checkpoint.display().to_string();
        if let Some((name, _)) = opener.with.iter().find(|(name, _)| name != TOKENS) {
            return Err(Error::usage(format!(
                "--with {name}: {checkpoint} does not need a {name}"
            )));
        }
        let mut data: TextData = parts.section("data").context(|| checkpoint.clone())?;
        if let Some((_, folder)) = opener.with.first() {
            data.tokens.clone_from(folder);
        }
        let set = TokenSet::open(&data.tokens, SplitName::Train).map_err(|error| {
            error.context(format!(
                "the tokens that {checkpoint} was trained with; give their new path with --with {TOKENS}=FOLDER"
            ))
        })?;
        let info = set.info().clone();
        let tokenizer = Tokenizer::open(&data.tokens, info.max_length)?;
        let unlimited = tokenizer.unlimited();
        let model = TrainedText::restore(&parts, opener, &info, &data.tokens)?;
        let questions = info.answers && !info.is_joint() && set.texts(0)[0].is_some();
        let threshold = if info.answers { Sets::open(&data)?.threshold() } else { None };
        Ok(Self { model, tokenizer, unlimited, info, questions, threshold })
    }

    /// What the model reads of a record.
    pub fn needs(&self) -> Needs {
        let (classes, answers) = (self.model.has_classes(), self.model.finds_answers());
        Needs {
            text: classes || self.questions,
            text2: classes && self.info.pairs,
            context: answers,
        }
    }

    /// For each record its `line` in the input, and its `id`, if it has one; of a model with classes the `predicted` label or labels, the
    /// `probabilities` of all labels, and whether the text was `truncated`; of one that finds answers the context,
    /// `predicted_span` and its characters, and the best candidates.
    ///
    /// Errors: 65 for a question that leaves no room for its context, with its line.
    pub fn predict(&self, texts: &[NewText]) -> Result<Vec<Value>> {
        let (classes, answers) = (self.model.has_classes(), self.model.finds_answers());
        let pairs: Vec<_> =
            texts.iter().map(|own| [own.text.as_deref(), own.text2.as_deref()]).collect();
        let of_texts = if classes { self.tokenizer.encode_all(&pairs)? } else { Vec::new() };
        let contexts: Vec<_> = texts.iter().map(|text| context(text, self.questions)).collect();
        let of_contexts = match answers {
            true => self.unlimited.encode_all(&contexts)?,
            false => Vec::new(),
        };
        let record = |i: usize| {
            let context = texts[i].context.as_deref().unwrap_or_default();
            let text: Option<&Encoded> = of_texts.get(i);
            let of_text = text.map_or((&[][..], &[][..]), |own| (&own.ids[..], &own.types[..]));
            match of_contexts.get(i) {
                Some(encoded) => RecordTokens::of(encoded, context, of_text, &self.info),
                None => RecordTokens::of(&of_texts[i], context, (&[], &[]), &self.info),
            }
        };
        let failed =
            |i: usize, what| Error::data(format!("line {}: {what}; shorten it", texts[i].line));
        let records: Vec<RecordTokens> = (0..texts.len())
            .map(|i| record(i).map_err(|what| failed(i, what)))
            .collect::<Result<_>>()?;
        let TextOutputs { classes: logits, answers: decoded } =
            self.model.outputs(&records, |_| Ok(()))?;
        let probabilities = match self.info.multi_label {
            true => sigmoid(&logits, 1.0),
            false => softmax(&logits, self.info.labels.len().max(1), 1.0),
        };
        let row = |(i, text): (usize, &NewText)| {
            let mut row = Map::from_iter([("line".to_string(), json!(text.line))]);
            text.id.iter().for_each(|id| _ = row.insert("id".into(), json!(id)));
            if classes {
                let count = self.info.labels.len();
                let own = &probabilities[i * count..][..count];
                row.extend(self.labelled(own));
                row.insert("truncated".into(), json!(of_texts[i].truncated));
            }
            if let Some(decoded) = decoded.get(i)
                && let Value::Object(own) = described(&records[i], decoded, self.threshold)
            {
                row.extend(own);
            }
            row.into()
        };
        Ok(texts.iter().enumerate().map(row).collect())
    }

    /// The predicted label or labels, and the probability of each.
    fn labelled(&self, probabilities: &[f64]) -> Map<String, Value> {
        let labels = &self.info.labels;
        let predicted = match self.info.multi_label {
            true => {
                let has = labels.iter().zip(probabilities).filter(|(_, p)| **p >= 0.5);
                json!(has.map(|(label, _)| label).collect::<Vec<_>>())
            }
            false => json!(labels[predicted_classes(probabilities, labels.len())[0]]),
        };
        let all: Map<String, Value> =
            labels.iter().zip(probabilities).map(|(label, p)| (label.clone(), json!(p))).collect();
        Map::from_iter([("predicted".into(), predicted), ("probabilities".into(), all.into())])
    }
}
