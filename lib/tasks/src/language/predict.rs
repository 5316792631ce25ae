//! `evaluate predict`: answers to new prompts. A prompt that cannot be read has an error in its place; the others are answered.

use super::options::LanguagePredictOptions;
use super::record_patches::RecordPatches;
use super::trained::{Answer, TrainedLanguage};
use super::vision::Images;
use crate::evaluation::PredictRequest;
use crate::text::trained_tokens;
use clap::FromArgMatches;
use data::text::chat::Messages;
use data::text::{NewPrompt, NewPrompts, open_images};
use learn::evaluate::{JsonLines, Prediction, Predictor};
use learn::generate::{Generation, Prompt};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::cmp::Ordering;
use std::path::{Path, PathBuf};
use unix::{Context, Error, Exit, Result, warn};

/// Prompts per block. An interruption loses the block that is being generated.
const BLOCK: usize = 32;
/// Maximum number of prompts that cannot be read and are listed on stderr.
const LISTED: usize = 20;

/// A prompt with its number, from 0, which its random draws depend on.
type Numbered = (u64, NewPrompt);

struct LanguagePredictor {
    model: TrainedLanguage,
    generation: Generation,
    /// The file or folder of inputs.
    inputs: PathBuf,
    /// Input and output, on rank 0.
    stream: Option<(NewPrompts, JsonLines)>,
    next: u64,
    /// Number of prompts that could not be read, and how many of them this attempt had to list.
    failed: u64,
    listed: usize,
}

/// What is written for a block of prompts.
#[derive(Default, Serialize, Deserialize)]
struct Answered {
    /// A line for each prompt.
    lines: String,
    /// Why prompts could not be read.
    problems: Vec<String>,
}

/// Opens the prediction of the prompts in a file.
///
/// Errors: 2 without a file, for an output that is not JSON lines, and for options without effect; those of
/// [`TrainedLanguage::restore`]; 66, 73, 75.
pub(super) fn open(request: &PredictRequest) -> Result<Box<dyn Prediction>> {
    let to = request.to;
    if to != Path::new("-") && to.extension().is_none_or(|ending| ending != "jsonl") {
        return Err(Error::usage(format!(
            "-o {}: answers are written to FILE.jsonl, or to - for stdout",
            to.display()
        )));
    }
    let inputs = request.inputs.ok_or_else(|| {
        Error::usage("--inputs: name a file with a prompt on each line, or - for stdin")
    })?;
    let options = LanguagePredictOptions::from_arg_matches(request.options).map_err(Error::bug)?;
    let (data, set) = trained_tokens(request.parts, request.opener)?;
    let model = TrainedLanguage::restore(request.parts, request.opener, set.info(), &data.tokens)?;
    let model = model.compact();
    let generation = options.generation(model.stops.clone())?;
    let mut predictor = LanguagePredictor {
        model,
        generation,
        inputs: inputs.into(),
        stream: None,
        next: 0,
        failed: 0,
        listed: 0,
    };
    if request.ranks.rank() == 0 {
        let mut prompts = NewPrompts::open(inputs)?;
        let lines = request.lines(|| {
            let file = (inputs != Path::new("-")).then(|| NewPrompts::identity(inputs));
            Ok(file.transpose()?.map(|hash| format!("{hash} {:?}", predictor.generation)))
        })?;
        (predictor.next, predictor.failed) = (lines.done(), lines.failed());
        for _ in 0..predictor.next {
            prompts.read()?;
        }
        predictor.stream = Some((prompts, lines));
    }
    Ok(Box::new(predictor))
}

impl LanguagePredictor {
    /// The ids of a prompt and its images. Errors: 2 when it has images, but the model reads none; 65 and 66 for an image that
    /// cannot be read; 65 also for messages that the template refuses, or that leave no room for an answer; 74.
    fn encode(&self, messages: &Messages) -> Result<(Vec<i32>, RecordPatches)> {
        let images = self.images(messages)?;
        Ok((self.model.prompt(messages, &images)?, images))
    }

    fn images(&self, messages: &Messages) -> Result<RecordPatches> {
        let images = open_images(messages, NewPrompts::folder_of(&self.inputs))?;
        let tokens = self.model.chat.images.as_ref().filter(|_| self.model.reads_images());
        match tokens {
            Some(tokens) => RecordPatches::of_new(&images, tokens),
            None if images.is_empty() => Ok(RecordPatches::default()),
            None => Err(Error::usage(
                "it has images, but the model was trained without any; remove them, or name another RUN",
            )),
        }
    }

    /// Errors: a bug on a rank other than 0.
    fn stream(&mut self) -> Result<&mut (NewPrompts, JsonLines)> {
        self.stream.as_mut().ok_or_else(|| Error::bug("only rank 0 reads and writes"))
    }
}

impl Predictor for LanguagePredictor {
    type Input = Vec<Numbered>;
    type Output = Answered;

    fn noun(&self) -> &'static str {
        "prompts"
    }

    fn done(&self) -> u64 {
        self.next
    }

    fn resumes(&self) -> bool {
        self.stream.as_ref().is_none_or(|(_, lines)| lines.resumes())
    }

    fn read(&mut self) -> Result<Option<(Vec<Numbered>, u64)>> {
        let mut next = self.next;
        let (prompts, _) = self.stream()?;
        let mut found = Vec::new();
        while found.len() < BLOCK
            && let Some(prompt) = prompts.read()?
        {
            found.push((next, prompt));
            next += 1;
        }
        self.next = next;
        let count = found.len() as u64;
        Ok((count > 0).then_some((found, count)))
    }

    /// One line per prompt: its `line`, its `id` if it has one, the `text` of the answer, its number of `tokens`, and
    /// `finish`, why it ended: `stop`, `length` or `runaway`; or, of a prompt that cannot be read, the `error` instead of
    /// these three.
    fn predict(&self, prompts: Vec<Numbered>) -> Result<Answered> {
        let at = |own: &NewPrompt| format!("{}: line {}", self.inputs.display(), own.line);
        let encode = |(_, own): &Numbered| match self.encode(&own.messages) {
            Err(error) if matches!(error.exit, Exit::Data | Exit::NoInput) => Ok(Err(error)),
            found => found.context(|| at(own)).map(Ok),
        };
        let read = prompts.iter().map(encode).collect::<Result<Vec<_>>>()?;
        let readable = read.iter().zip(&prompts).filter_map(|(found, (number, _))| {
            let (ids, images) = found.as_ref().ok()?;
            Some((Prompt { ids, number: *number }, images.images()))
        });
        let own: Vec<(Prompt, Images)> = readable.collect();
        let mut answers = self.model.answers(&own, &self.generation)?.into_iter();
        let mut answered = Answered::default();
        for (found, (_, prompt)) in read.iter().zip(&prompts) {
            let fields: Vec<(&str, Value)> = match found {
                Ok(_) => {
                    let answer = answers.next().ok_or_else(|| Error::bug("too few answers"))?;
                    let Answer { text, tokens, finish } = answer;
                    vec![
                        ("text", text.into()),
                        ("tokens", tokens.into()),
                        ("finish", json!(finish)),
                    ]
                }
                Err(error) => {
                    answered.problems.push(format!("{}: {error}", at(prompt)));
                    vec![("error", error.to_string().into())]
                }
            };
            let id = prompt.id.iter().map(|id| ("id", json!(id)));
            let all = [("line", json!(prompt.line))].into_iter().chain(id).chain(fields);
            let row: Map<String, Value> = all.map(|(key, value)| (key.into(), value)).collect();
            answered.lines += &(serde_json::to_string(&row).map_err(Error::bug)? + "\n");
        }
        Ok(answered)
    }

    fn write(&mut self, blocks: Vec<Answered>, done: u64) -> Result<()> {
        let lines: String = blocks.iter().map(|own| own.lines.as_str()).collect();
        let problems: Vec<&String> = blocks.iter().flat_map(|own| &own.problems).collect();
        for problem in &problems {
            self.listed += 1;
            match self.listed.cmp(&(LISTED + 1)) {
                Ordering::Less => warn!("{problem}"),
                Ordering::Equal => warn!("more prompts cannot be read; see `error` in the output"),
                Ordering::Greater => {}
            }
        }
        self.failed += problems.len() as u64;
        let failed = self.failed;
        self.stream()?.1.write_with_errors(lines.as_bytes(), done, failed)
    }

    fn failed(&self) -> u64 {
        self.failed
    }

    fn publish(&mut self) -> Result<()> {
        self.stream()?.1.publish()
    }
}
