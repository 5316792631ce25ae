//! The labels of new texts.

use super::classify::{Classifier, ClassifyTask};
use super::metrics::{predicted_classes, sigmoid, softmax};
use super::sets::TextData;
use super::trained::TrainedText;
use crate::trained::Opener;
use data::split::SplitName;
use data::text::{TokenSet, Tokenizer};
use learn::task::Define;
use learn::trained::Parts;
use serde_json::{Map, Value, json};
use std::path::Path;
use unix::{Error, Result};

/// What `--with` calls the folder of tokens.
const TOKENS: &str = "tokens";

/// A new text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewText {
    /// Identifies it in the output.
    pub id: Option<String>,
    /// The text.
    pub text: String,
    /// The second text of a pair.
    pub text2: Option<String>,
}

/// A classifier with the tokenizer of its training.
#[derive(Debug)]
pub struct TextPredictor {
    model: TrainedText<Classifier>,
    tokenizer: Tokenizer,
    labels: Vec<String>,
    pairs: bool,
    multi_label: bool,
}

impl NewText {
    /// Parses a line: a JSON object with `text` and possibly `text2` and `id`, or anything else, which is the text itself.
    pub fn parse(line: &str) -> Self {
        let object =
            line.starts_with('{').then(|| serde_json::from_str::<Map<String, Value>>(line));
        let Some(Ok(object)) = object else { return Self::of(line) };
        let found = |key: &str| match object.get(key)? {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        };
        match found("text") {
            Some(text) => Self { id: found("id"), text, text2: found("text2") },
            None => Self::of(line),
        }
    }

    fn of(text: &str) -> Self {
        Self { text: text.into(), ..Self::default() }
    }
}

impl TextPredictor {
    /// Restores a classifier and the tokenizer beside the tokens that it was trained with: those of its configuration, or
    /// of `--with tokens=FOLDER`.
    ///
    /// Errors: those of [`TrainedText::restore`]; 66 when there is no checkpoint or no tokens; 2 for a model of another task.
    pub fn open(path: &Path, opener: &Opener) -> Result<Self> {
        let parts = Parts::read(path, opener.weights)?;
        let checkpoint = parts.origin.checkpoint.display().to_string();
        if let Some((name, _)) = opener.with.iter().find(|(name, _)| name != TOKENS) {
            return Err(Error::usage(format!(
                "--with {name}: {checkpoint} does not need a {name}"
            )));
        }
        if parts.task != ClassifyTask::SPEC.name {
            let task = &parts.task;
            return Err(Error::usage(format!(
                "{checkpoint}: a model of task {task} labels no texts"
            )));
        }
        let data: TextData = parts.section("data")?;
        let folder = opener.with.first().map_or(&data.tokens, |(_, folder)| folder);
        let set = TokenSet::open(folder, SplitName::Train).map_err(|error| {
            error.context(format!(
                "the tokens that {checkpoint} was trained with; give their new path with --with {TOKENS}=FOLDER"
            ))
        })?;
        let info = set.info();
        let tokenizer = Tokenizer::open(folder, info.max_length)?;
        let model = TrainedText::restore(&parts, opener, info, folder)?;
        let (labels, multi_label) = (info.labels.clone(), info.multi_label);
        Ok(Self { model, tokenizer, labels, pairs: info.pairs, multi_label })
    }

    /// For each text its `id`, if it has one, the `predicted` label or labels, the `probabilities` of all labels, and whether it was
    /// `truncated`.
    ///
    /// Errors: 65 for a pair where the model reads single texts, or the reverse.
    pub fn predict(&self, texts: &[NewText]) -> Result<Vec<Value>> {
        for text in texts {
            if text.text2.is_some() != self.pairs {
                let kind =
                    if self.pairs { "pairs of texts, `text` and `text2`" } else { "single texts" };
                return Err(Error::data(format!(
                    "task {} was trained with {kind}",
                    ClassifyTask::SPEC.name
                )));
            }
        }
        let pairs: Vec<[Option<&str>; 2]> =
            texts.iter().map(|text| [Some(text.text.as_str()), text.text2.as_deref()]).collect();
        let encoded = self.tokenizer.encode_all(&pairs)?;
        let tokens: Vec<(&[i32], &[u8])> =
            encoded.iter().map(|own| (own.ids.as_slice(), own.types.as_slice())).collect();
        let logits = self.model.logits(&tokens, |_| Ok(()))?;
        let probabilities = match self.multi_label {
            true => sigmoid(&logits, 1.0),
            false => softmax(&logits, self.labels.len(), 1.0),
        };
        let predicted = predicted_classes(&probabilities, self.labels.len());
        let rows = texts.iter().zip(&encoded).zip(probabilities.chunks_exact(self.labels.len()));
        let row = |(((text, encoded), own), class): (((&NewText, _), &[f64]), usize)| {
            let encoded: &data::text::Encoded = encoded;
            let all: Map<String, Value> =
                self.labels.iter().zip(own).map(|(label, p)| (label.clone(), json!(p))).collect();
            let mut row = Map::new();
            text.id.iter().for_each(|id| _ = row.insert("id".into(), json!(id)));
            let predicted = match self.multi_label {
                true => {
                    let has = self.labels.iter().zip(own).filter(|(_, p)| **p >= 0.5);
                    json!(has.map(|(label, _)| label).collect::<Vec<_>>())
                }
                false => json!(self.labels[class]),
            };
            row.insert("predicted".into(), predicted);
            row.insert("probabilities".into(), all.into());
            row.insert("truncated".into(), json!(encoded.truncated));
            row.into()
        };
        Ok(rows.zip(predicted).map(row).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_an_object_with_a_text_or_a_text() {
        let found = NewText::parse(r#"{"id": 7, "text": "a", "text2": "b"}"#);
        let expected = NewText { id: Some("7".into()), text: "a".into(), text2: Some("b".into()) };
        assert_eq!(found, expected);
        for line in ["plain", r#"{"other": 1}"#, "{not json", r#"["text"]"#] {
            assert_eq!(NewText::parse(line), NewText::of(line));
        }
    }
}
