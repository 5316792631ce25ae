//! Predicts the labels of new texts and the answers in new contexts.

use super::class_scores::{prediction_fields, probabilities};
use super::sets::{Sets, trained_tokens};
use super::span::answer_fields;
use super::task::DefineText;
use super::trained::{TextOutput, TrainedText};
use crate::evaluation::PredictRequest;
use clap::FromArgMatches;

use data::text::{Columns, Encoded, Needs, NewText, NewTexts, RecordTokens, TokenInfo, Tokenizer};
use learn::evaluate::{JsonLines, Prediction, Predictor};
use serde_json::{Map, json};
use std::path::{Path, PathBuf};
use unix::publish::hash_file;
use unix::{Context, Error, Result};

/// Texts per block.
const BLOCK: usize = 512;

/// The options of `evaluate predict` for models of texts.
#[derive(clap::Args, Clone, Debug)]
pub struct TextOptions {
    /// columns.yaml, as for ds-prep import, which names the columns of the inputs [default: text, text2, context and
    /// id]
    #[arg(long, value_name = "FILE")]
    columns: Option<PathBuf>,
}

/// The input and output streams of rank 0.
struct Stream {
    rows: NewTexts,
    lines: JsonLines,
}

/// A text model with the tokenizer that it was trained with.
struct TextPredictor {
    model: TrainedText,
    tokenizer: Tokenizer,
    /// The same without a maximum length, for contexts.
    unlimited: Tokenizer,
    info: TokenInfo,
    /// Whether contexts have questions.
    questions: bool,
    /// The no-answer threshold: an answer is predicted if its margin over no answer is at least this. None: always.
    threshold: Option<f64>,
    /// The file of inputs, for messages.
    inputs: String,
    stream: Option<Stream>,
}

/// The context of a record, after the question if it has one.
fn context(text: &NewText, has_question: bool) -> [Option<&str>; 2] {
    match has_question {
        true => [text.text.as_deref(), text.context.as_deref()],
        false => [text.context.as_deref(), None],
    }
}

/// Restores the model, and the tokenizer from the folder of tokens that it was trained on: that of its configuration,
/// or of `--with tokens=FOLDER`. Opens the inputs and the output.
///
/// Errors: 2 without inputs, and for an output that is not JSON lines; those of [`TrainedText::restore`]; 66 when there
/// are no tokens or inputs; 73, 75.
pub(super) fn open<M: DefineText>(request: &PredictRequest) -> Result<Box<dyn Prediction>> {
    let (parts, opener, to) = (request.parts, request.opener, request.to);
    if to != Path::new("-") && to.extension().is_none_or(|ending| ending != "jsonl") {
        return Err(Error::usage(format!(
            "-o {}: predictions for texts are written to FILE.jsonl, or to - for stdout",
            to.display()
        )));
    }
    let inputs = request.inputs.ok_or_else(|| {
        Error::usage(
            "--inputs: name a .csv, .tsv, .jsonl or .json file, or one with a text on each line, or - for stdin",
        )
    })?;
    let (data, set) = trained_tokens(parts, opener)?;
    let info = set.info().clone();
    let tokenizer = Tokenizer::open(&data.tokens, info.max_length)?;
    let mut predictor = TextPredictor {
        model: TrainedText::restore::<M>(parts, opener, &info, &data.tokens)?,
        unlimited: tokenizer.unlimited(),
        tokenizer,
        questions: info.answers && !info.is_joint() && set.texts(0)[0].is_some(),
        threshold: if info.answers { Sets::open(&data)?.threshold() } else { None },
        info,
        inputs: inputs.display().to_string(),
        stream: None,
    };
    if request.ranks.rank() == 0 {
        let options = TextOptions::from_arg_matches(request.options).map_err(Error::bug)?;
        let columns = options.columns.as_deref().map(Columns::load).transpose()?;
        let mut rows = NewTexts::open(inputs, predictor.needs(), columns.as_ref())?;
        let lines = request.lines(|| {
            let hash = (inputs != Path::new("-")).then(|| hash_file(inputs)).transpose()?;
            Ok(hash.map(|hash| format!("{hash} {columns:?}")))
        })?;
        for _ in 0..lines.done() {
            rows.read()?;
        }
        predictor.stream = Some(Stream { rows, lines });
    }
    Ok(Box::new(predictor))
}

impl TextPredictor {
    /// The columns that the model requires.
    fn needs(&self) -> Needs {
        let (classes, answers) = (self.model.has_classes(), self.model.finds_answers());
        Needs {
            text: classes || self.questions,
            text2: classes && self.info.pairs,
            context: answers,
        }
    }

    /// One row per record: its `line` in the input, and its `id` if it has one. Models with classes add the `predicted`
    /// label or labels, the `probabilities` of all labels, and whether the text was `truncated`; models that find
    /// answers add the context, `predicted_span` with its character range, and the best candidates.
    ///
    /// Errors: 65 for a question that leaves no room for its context, with its line.
    fn rows(&self, texts: &[NewText]) -> Result<Vec<Map<String, serde_json::Value>>> {
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
        let outputs = self.model.outputs(&records, 0)?;
        let row = |(i, (text, TextOutput { classes: logits, answer })): (
            usize,
            (&NewText, &TextOutput),
        )| {
            let mut row = Map::from_iter([("line".to_string(), json!(text.line))]);
            text.id.iter().for_each(|id| _ = row.insert("id".into(), json!(id)));
            if classes {
                row.extend(prediction_fields(&probabilities(logits, &self.info), &self.info));
                row.insert("truncated".into(), json!(of_texts[i].truncated));
            }
            if answers {
                row.extend(answer_fields(&records[i], answer, self.threshold));
            }
            row
        };
        Ok(texts.iter().zip(&outputs).enumerate().map(row).collect())
    }

    /// Errors: a bug on a rank other than 0.
    fn stream(&mut self) -> Result<&mut Stream> {
        self.stream.as_mut().ok_or_else(|| Error::bug("only rank 0 reads and writes"))
    }
}

impl Predictor for TextPredictor {
    type Input = Vec<NewText>;
    type Output = String;

    fn noun(&self) -> &'static str {
        "texts"
    }

    fn done(&self) -> u64 {
        self.stream.as_ref().map_or(0, |stream| stream.lines.done())
    }

    fn resumes(&self) -> bool {
        self.stream.as_ref().is_none_or(|stream| stream.lines.resumes())
    }

    fn read(&mut self) -> Result<Option<(Vec<NewText>, u64)>> {
        let rows = &mut self.stream()?.rows;
        let mut texts = Vec::new();
        while texts.len() < BLOCK
            && let Some(text) = rows.read()?
        {
            texts.push(text);
        }
        let count = texts.len() as u64;
        Ok((count > 0).then_some((texts, count)))
    }

    fn predict(&self, texts: Vec<NewText>) -> Result<String> {
        let line = |row| Ok(serde_json::to_string(&row).map_err(Error::bug)? + "\n");
        let rows = self.rows(&texts).context(|| &self.inputs)?;
        rows.into_iter().map(line).collect()
    }

    fn write(&mut self, lines: Vec<String>, done: u64) -> Result<()> {
        self.stream()?.lines.write(lines.concat().as_bytes(), done)
    }

    fn publish(&mut self) -> Result<()> {
        self.stream()?.lines.publish()
    }
}
