//! The labels of new texts, and the answers in new contexts.

use super::metrics::{predicted_classes, sigmoid, softmax};
use super::sets::{Sets, TextData};
use super::span::described;
use super::trained::{TextOutputs, TrainedText};
use crate::trained::Opener;
use data::split::SplitName;
use data::text::{Encoded, RecordTokens, TokenInfo, TokenSet, Tokenizer};
use learn::trained::Parts;
use serde_json::{Map, Value, json};
use std::path::Path;
use unix::{Context, Error, Result};

/// What `--with` calls the folder of tokens.
const TOKENS: &str = "tokens";

/// A new record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewText {
    /// The line of the input that it is from.
    pub line: u64,
    /// Identifies it in the output.
    pub id: Option<String>,
    /// The text, or the question about the context.
    pub text: Option<String>,
    /// The second text of a pair.
    pub text2: Option<String>,
    /// The context of an answer.
    pub context: Option<String>,
}

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

impl NewText {
    /// Parses a line: a JSON object with `text` or `context`, and possibly `text2` and `id`; anything else is the text
    /// itself, or the context if `is_context`.
    pub fn parse(line: &str, is_context: bool) -> Self {
        let object =
            line.starts_with('{').then(|| serde_json::from_str::<Map<String, Value>>(line));
        let Some(Ok(object)) = object else {
            let (line, none) = (Some(line.to_string()), Self::default());
            return match is_context {
                true => Self { context: line, ..none },
                false => Self { text: line, ..none },
            };
        };
        let found = |key: &str| match object.get(key)? {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        };
        let [id, text, text2, context] = ["id", "text", "text2", "context"].map(found);
        Self { line: 0, id, text, text2, context }
    }

    fn texts(&self) -> [Option<&str>; 2] {
        [self.text.as_deref(), self.text2.as_deref()]
    }

    /// The context, after the question if there is one.
    fn context(&self, has_question: bool) -> [Option<&str>; 2] {
        match has_question {
            true => [self.text.as_deref(), self.context.as_deref()],
            false => [self.context.as_deref(), None],
        }
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

    /// Parses a line, see [`NewText::parse`]. Errors: what the model reads, if that is not what the line has.
    pub fn parse(&self, line: &str) -> std::result::Result<NewText, String> {
        let (classes, answers) = (self.model.has_classes(), self.model.finds_answers());
        let needs = [
            ("text", classes || self.questions),
            ("text2", classes && self.info.pairs),
            ("context", answers),
        ];
        let found = NewText::parse(line, !needs[0].1);
        let has = [&found.text, &found.text2, &found.context].map(Option::is_some);
        if needs.map(|(_, needed)| needed) == has {
            return Ok(found);
        }
        let names = |which: [bool; 3]| {
            let own = needs.iter().zip(which).filter(|(_, own)| *own);
            let own: Vec<String> = own.map(|((name, _), _)| format!("`{name}`")).collect();
            if own.is_empty() { "neither".into() } else { own.join(" and ") }
        };
        Err(format!(
            "the model reads {}, but the line has {}",
            names(needs.map(|(_, needed)| needed)),
            names(has)
        ))
    }

    /// For each record its `id`, if it has one; of a model with classes the `predicted` label or labels, the
    /// `probabilities` of all labels, and whether the text was `truncated`; of one that finds answers the context,
    /// `predicted_span` and its characters, and the best candidates.
    ///
    /// Errors: 65 for a question that leaves no room for its context, with its line.
    pub fn predict(&self, texts: &[NewText]) -> Result<Vec<Value>> {
        let (classes, answers) = (self.model.has_classes(), self.model.finds_answers());
        let pairs: Vec<_> = texts.iter().map(NewText::texts).collect();
        let of_texts = if classes { self.tokenizer.encode_all(&pairs)? } else { Vec::new() };
        let contexts: Vec<_> = texts.iter().map(|text| text.context(self.questions)).collect();
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
            let mut row = Map::new();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_an_object_with_a_text_or_a_text() {
        let found = NewText::parse(r#"{"id": 7, "text": "a", "text2": "b"}"#, false);
        let text = |text: &str| Some(text.to_string());
        let expected =
            NewText { id: text("7"), text: text("a"), text2: text("b"), ..NewText::default() };
        assert_eq!(found, expected);
        let found = NewText::parse(r#"{"context": "c", "text": "a"}"#, true);
        assert_eq!(found, NewText { text: text("a"), context: text("c"), ..NewText::default() });
        assert_eq!(NewText::parse(r#"{"Text": "a"}"#, false), NewText::default());
        for line in ["plain", "{not json", r#"["text"]"#] {
            let plain = NewText { text: text(line), ..NewText::default() };
            assert_eq!(NewText::parse(line, false), plain);
            let plain = NewText { context: text(line), ..NewText::default() };
            assert_eq!(NewText::parse(line, true), plain);
        }
    }
}
