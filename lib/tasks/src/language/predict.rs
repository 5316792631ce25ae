//! `evaluate predict`: answers to new prompts.

use super::options::LanguagePredictOptions;
use super::record_images::RecordImages;
use super::trained::{Answer, TrainedLanguage};
use super::vision::Images;
use crate::evaluation::PredictRequest;
use crate::text::trained_tokens;
use clap::FromArgMatches;
use data::text::chat::Messages;
use data::text::{NewPrompt, NewPrompts, open_images};
use learn::evaluate::{JsonLines, Prediction, Predictor};
use learn::generate::{Generation, Prompt};
use serde_json::{Map, json};
use std::path::{Path, PathBuf};
use unix::cli::Output;
use unix::out::Out;
use unix::{Context, Error, Result};

/// Prompts per block. An interruption loses the block that is being generated.
const BLOCK: usize = 32;

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
}

/// Opens the prediction of the prompts in a file.
///
/// Errors: 2 without a file, for an output that is not JSON lines, and for options without effect; those of
/// [`TrainedLanguage::restore`]; 66, 73, 75.
pub(super) fn open(request: &PredictRequest) -> Result<Box<dyn Prediction>> {
    let to = request.to;
    let to_stdout = to == Path::new("-");
    if !to_stdout && to.extension().is_none_or(|ending| ending != "jsonl") {
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
    let mut predictor =
        LanguagePredictor { model, generation, inputs: inputs.into(), stream: None, next: 0 };
    if request.ranks.rank() == 0 {
        let mut prompts = NewPrompts::open(inputs)?;
        let lines = match to_stdout {
            true => JsonLines::Pipe(Out::stdout(Output::default())),
            false => {
                // stdin cannot be reread, so its predictions cannot be resumed.
                let file = (inputs != Path::new("-")).then(|| NewPrompts::identity(inputs));
                let file = file.transpose()?;
                let origin = &request.parts.origin.blake3;
                let identity =
                    file.map(|hash| format!("{hash} {origin} {:?}", predictor.generation));
                JsonLines::open(to, request.replace, identity.as_deref())?
            }
        };
        predictor.next = lines.done();
        for _ in 0..predictor.next {
            prompts.read()?;
        }
        predictor.stream = Some((prompts, lines));
    }
    Ok(Box::new(predictor))
}

impl LanguagePredictor {
    /// The images of messages. Errors: 65 for an image that cannot be read; 74.
    fn images(&self, messages: &Messages) -> Result<RecordImages> {
        let images = open_images(messages, NewPrompts::folder_of(&self.inputs))?;
        let tokens = self.model.chat.images.as_ref().filter(|_| self.model.reads_images());
        match tokens {
            Some(tokens) => RecordImages::of_new(&images, tokens),
            None if images.is_empty() => Ok(RecordImages::default()),
            None => Err(Error::data("it has images, but the model was trained without any")),
        }
    }

    /// Errors: a bug on a rank other than 0.
    fn stream(&mut self) -> Result<&mut (NewPrompts, JsonLines)> {
        self.stream.as_mut().ok_or_else(|| Error::bug("only rank 0 reads and writes"))
    }
}

impl Predictor for LanguagePredictor {
    type Input = Vec<Numbered>;
    type Output = String;

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
    /// `finish`, why it ended: `stop`, `length` or `repetition`.
    fn predict(&self, prompts: Vec<Numbered>) -> Result<String> {
        let read = prompts.iter().map(|(_, own)| {
            let at = || format!("{}: line {}", self.inputs.display(), own.line);
            let images = self.images(&own.messages).context(at)?;
            Ok((self.model.prompt(&own.messages, &images).context(at)?, images))
        });
        let read = read.collect::<Result<Vec<_>>>()?;
        let own: Vec<(Prompt, Images)> = read
            .iter()
            .zip(&prompts)
            .map(|((ids, images), (number, _))| (Prompt { ids, number: *number }, images.images()))
            .collect();
        let answers = self.model.answers(&own, &self.generation)?;
        let line = |((_, prompt), Answer { text, tokens, finish }): (&Numbered, Answer)| {
            let mut row = Map::from_iter([("line".to_string(), json!(prompt.line))]);
            prompt.id.iter().for_each(|id| _ = row.insert("id".into(), json!(id)));
            row.insert("text".into(), text.into());
            row.insert("tokens".into(), tokens.into());
            row.insert("finish".into(), json!(finish));
            Ok(serde_json::to_string(&row).map_err(Error::bug)? + "\n")
        };
        prompts.iter().zip(answers).map(line).collect()
    }

    fn write(&mut self, lines: Vec<String>, done: u64) -> Result<()> {
        self.stream()?.1.write(lines.concat().as_bytes(), done)
    }

    fn publish(&mut self) -> Result<()> {
        self.stream()?.1.publish()
    }
}
