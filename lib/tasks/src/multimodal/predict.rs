//! `evaluate predict`: texts from vectors, vectors from texts, and both ways in one.

use super::sample::{LatentSampler, Reveal, TextSampler};
use super::sets::Record;
use super::trained::{TOKENS, TrainedPair};
use crate::evaluation::PredictRequest;
use clap::FromArgMatches;
use data::text::{Columns, Needs, NewText, NewTexts, NewVector, NewVectors};
use learn::evaluate::{JsonLines, Prediction, Predictor};
use serde_json::{Map, Value, json};
use std::path::Path;
use unix::publish::hash_file;
use unix::{Error, Result};

/// Items per block.
const BLOCK: usize = 256;

/// What is predicted from what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum Direction {
    /// Texts from vectors
    L2t,
    /// Vectors from texts
    T2l,
    /// Texts from the vectors of texts
    T2l2t,
    /// Vectors from the texts of vectors
    L2t2l,
    /// Vectors from nothing, and their texts
    Unconditional,
}

impl Direction {
    fn reads_texts(self) -> bool {
        matches!(self, Self::T2l | Self::T2l2t)
    }
}

/// The options of `evaluate predict` for texts and vectors.
#[derive(clap::Args, Clone, Debug)]
pub struct PairPredictOptions {
    /// What to predict from what
    #[arg(long, value_name = "DIRECTION", default_value_t = Direction::L2t)]
    direction: Direction,
    /// Number of steps in which a text is sampled; tokens whose distributions have the least entropy come first
    #[arg(long, value_name = "N", default_value_t = 16)]
    steps: usize,
    /// Number of steps in which a vector is sampled [default: 1; without a text, 50]
    #[arg(long, value_name = "N")]
    latent_steps: Option<usize>,
    /// η of the sampler of vectors: 0 is deterministic (DDIM), 1 adds the noise of ancestral sampling
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    eta: f64,
    /// Divides the logits of tokens; 0 takes the most probable token [default: 0; with drafts, 0.5]
    #[arg(long, value_name = "X")]
    temperature: Option<f64>,
    /// Guidance: how far to move away from the prediction without the condition
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    guidance: f64,
    /// Further steps, each of which predicts a quarter of the tokens again, those with the largest entropy
    #[arg(long, value_name = "N", default_value_t = 0)]
    remask: usize,
    /// Order in which tokens are revealed
    #[arg(long, value_name = "ORDER", default_value_t)]
    reveal: Reveal,
    /// Number of drafts of each text, of which the one is chosen whose vector is closest
    #[arg(long, value_name = "N", default_value_t = 1)]
    drafts: usize,
    /// Number of samples, for the direction unconditional
    #[arg(long, value_name = "N", default_value_t = 10)]
    count: u64,
    /// Seed of the samples
    #[arg(long, value_name = "N", default_value_t = 0)]
    sampling_seed: u64,
}

/// One input.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Item {
    /// Its number, from 0, which its random numbers depend on.
    number: u64,
    /// The line of the input, from 1.
    line: Option<u64>,
    /// The row of an array, from 0.
    row: Option<u64>,
    id: Option<String>,
    text: Option<String>,
    vector: Option<Vec<f32>>,
}

/// The input of rank 0.
enum Source {
    Texts(Box<NewTexts>),
    Vectors(Box<NewVectors>),
    /// Number of samples left.
    Nothing(u64),
}

struct PairPredictor {
    model: TrainedPair,
    direction: Direction,
    texts: TextSampler,
    latents: LatentSampler,
    drafts: usize,
    seed: u64,
    count: u64,
    stream: Option<(Source, JsonLines)>,
    next: u64,
}

/// Restores the network, and opens inputs and output.
///
/// Errors: 2 without inputs, for an output that is not JSON lines, and for options without effect; those of
/// [`TrainedPair::restore`]; 66, 73, 75.
pub(super) fn open(request: &PredictRequest) -> Result<Box<dyn Prediction>> {
    let options = PairPredictOptions::from_arg_matches(request.options).map_err(Error::bug)?;
    let direction = options.direction;
    let to = request.to;
    if to != Path::new("-") && to.extension().is_none_or(|ending| ending != "jsonl") {
        return Err(Error::usage(format!(
            "-o {}: texts and vectors are written to FILE.jsonl, or to - for stdout",
            to.display()
        )));
    }
    // One step from noise gives the mean of all vectors that fit the text; without a text, of all vectors.
    let usual = if direction == Direction::Unconditional { 50 } else { 1 };
    let latent_steps = options.latent_steps.unwrap_or(usual);
    if latent_steps == 0 || options.steps == 0 || options.drafts == 0 {
        return Err(Error::usage("--steps, --latent-steps, --drafts: must be at least 1"));
    }
    let temperature = options.temperature.unwrap_or(if options.drafts > 1 { 0.5 } else { 0.0 });
    if !(temperature >= 0.0 && temperature.is_finite() && options.guidance.is_finite()) {
        return Err(Error::usage(
            "--temperature, --guidance: must be numbers, and the former not negative",
        ));
    }
    request.opener.require_known(request.parts, &[TOKENS])?;
    let model = TrainedPair::restore(request.parts, request.opener, None)?;
    let mut predictor = PairPredictor {
        direction,
        texts: TextSampler {
            steps: options.steps,
            reveal: options.reveal,
            temperature,
            guidance: options.guidance,
            remask: options.remask,
        },
        latents: LatentSampler {
            steps: latent_steps,
            eta: options.eta,
            guidance: options.guidance,
        },
        drafts: options.drafts,
        seed: options.sampling_seed,
        count: options.count,
        model,
        stream: None,
        next: 0,
    };
    if request.ranks.rank() == 0 {
        let identity = format!("{direction} {:?} {:?}", predictor.texts, predictor.latents);
        let identity = format!("{identity} {} {}", predictor.drafts, predictor.seed);
        predictor.open_stream(request, &identity)?;
    }
    Ok(Box::new(predictor))
}

impl PairPredictor {
    fn open_stream(&mut self, request: &PredictRequest, identity: &str) -> Result<()> {
        let inputs = request.inputs;
        let mut source = match (self.direction, inputs) {
            (Direction::Unconditional, None) => Source::Nothing(self.count),
            (Direction::Unconditional, Some(_)) => {
                return Err(Error::usage(
                    "--inputs: the direction unconditional reads none; see --count",
                ));
            }
            (direction, None) => {
                let (what, array) = match direction.reads_texts() {
                    true => ("text", ""),
                    false => ("vector", " or an array of vectors"),
                };
                return Err(Error::usage(format!(
                    "--inputs: name a file with a {what} on each line{array}, or - for stdin"
                )));
            }
            (direction, Some(path)) if direction.reads_texts() => {
                let needs = Needs { text: true, text2: false, context: false };
                Source::Texts(Box::new(NewTexts::open(path, needs, None::<&Columns>)?))
            }
            (_, Some(path)) => {
                let dimension = self.model.preparation.normalisation.channels();
                Source::Vectors(Box::new(NewVectors::open(path, dimension)?))
            }
        };
        let lines = request.lines(|| {
            let file = inputs.filter(|path| *path != Path::new("-"));
            let hash = match &source {
                Source::Vectors(vectors) => vectors.hash()?,
                _ => file.map(hash_file).transpose()?,
            };
            let is_known = hash.is_some() || self.direction == Direction::Unconditional;
            let identity = format!("{} {} {identity}", hash.unwrap_or_default(), self.count);
            Ok(is_known.then_some(identity))
        })?;
        for _ in 0..lines.done() {
            source.read(self.next)?;
            self.next += 1;
        }
        self.stream = Some((source, lines));
        Ok(())
    }

    /// Errors: a bug on a rank other than 0.
    fn stream(&mut self) -> Result<&mut (Source, JsonLines)> {
        self.stream.as_mut().ok_or_else(|| Error::bug("only rank 0 reads and writes"))
    }

    /// The texts, as token ids, and the latents that are predicted for items.
    fn rows(&self, items: &[Item]) -> Result<(Vec<Vec<i32>>, Vec<f32>)> {
        let preparation = &self.model.preparation;
        let keys: Vec<u64> = items.iter().map(|item| item.number).collect();
        let texts: Vec<_> = items.iter().map(|item| [item.text.as_deref(), None]).collect();
        let ids = match self.direction.reads_texts() {
            true => self.model.tokenizer.encode_all(&texts)?,
            false => Vec::new(),
        };
        let ids: Vec<i32> = ids.iter().flat_map(|own| preparation.padded(&own.ids)).collect();
        let of = |item: &'_ Item| item.vector.clone();
        let vectors: Vec<Option<Vec<f32>>> = items.iter().map(of).collect();
        let records: Vec<Record> =
            vectors.iter().map(|own| Record { ids: None, vector: own.as_deref() }).collect();
        let given = preparation.vectors(&records);
        self.model.run(|runner| {
            let encode = |ids: Option<&[i32]>| runner.latents(ids, &keys, &self.latents, self.seed);
            let decode = |latents: &[f32]| -> Result<Vec<Vec<i32>>> {
                if self.drafts == 1 {
                    return runner.texts(Some(latents), &keys, &self.texts, self.seed);
                }
                let all = runner.drafts(latents, &keys, &self.texts, self.drafts, self.seed)?;
                Ok(all.into_iter().map(|drafts| drafts.best).collect())
            };
            Ok(match self.direction {
                Direction::L2t => (decode(&given)?, Vec::new()),
                Direction::T2l => (Vec::new(), encode(Some(&ids))?),
                Direction::T2l2t => {
                    let latents = encode(Some(&ids))?;
                    (decode(&latents)?, latents)
                }
                Direction::L2t2l => {
                    let texts = decode(&given)?;
                    let latents = encode(Some(&texts.concat()))?;
                    (texts, latents)
                }
                Direction::Unconditional => {
                    let latents = encode(None)?;
                    (decode(&latents)?, latents)
                }
            })
        })
    }
}

impl Source {
    /// Reads the next input, whose number is given.
    fn read(&mut self, number: u64) -> Result<Option<Item>> {
        let empty = Item { number, line: None, row: None, id: None, text: None, vector: None };
        match self {
            Self::Texts(texts) => {
                let of =
                    |NewText { line, id, text, .. }| Item { line: Some(line), id, text, ..empty };
                Ok(texts.read()?.map(of))
            }
            Self::Vectors(lines) => {
                let of = |NewVector { line, row, id, vector }| Item {
                    line,
                    row,
                    id,
                    vector: Some(vector),
                    ..empty
                };
                Ok(lines.read()?.map(of))
            }
            Self::Nothing(left) => {
                let item = (*left > 0).then_some(empty);
                *left = left.saturating_sub(1);
                Ok(item)
            }
        }
    }
}

impl Predictor for PairPredictor {
    type Input = Vec<Item>;
    type Output = String;

    fn noun(&self) -> &'static str {
        if self.direction.reads_texts() { "texts" } else { "vectors" }
    }

    fn done(&self) -> u64 {
        self.next
    }

    fn resumes(&self) -> bool {
        self.stream.as_ref().is_none_or(|(_, lines)| lines.resumes())
    }

    fn read(&mut self) -> Result<Option<(Vec<Item>, u64)>> {
        let mut next = self.next;
        let (source, _) = self.stream()?;
        let mut items = Vec::new();
        while items.len() < BLOCK
            && let Some(item) = source.read(next)?
        {
            items.push(item);
            next += 1;
        }
        self.next = next;
        let count = items.len() as u64;
        Ok((count > 0).then_some((items, count)))
    }

    /// One line per input: its `line` or `row`, its `id` if it has one, the `text` and the `vector` that are predicted.
    fn predict(&self, items: Vec<Item>) -> Result<String> {
        let (texts, latents) = self.rows(&items)?;
        let normalisation = &self.model.preparation.normalisation;
        let width = normalisation.channels();
        let mut lines = String::new();
        for (i, item) in items.iter().enumerate() {
            let mut row = Map::new();
            item.line.iter().for_each(|line| _ = row.insert("line".into(), json!(line)));
            item.row.iter().for_each(|own| _ = row.insert("row".into(), json!(own)));
            item.id.iter().for_each(|id| _ = row.insert("id".into(), json!(id)));
            if let Some(ids) = texts.get(i) {
                row.insert("text".into(), self.model.text(ids)?.into());
            }
            if let Some(latent) = latents.chunks_exact(width).nth(i) {
                let mut vector = vec![0.0; width];
                normalisation.invert(latent, &mut vector);
                row.insert("vector".into(), json!(vector));
            }
            lines += &serde_json::to_string(&Value::from(row)).map_err(Error::bug)?;
            lines.push('\n');
        }
        Ok(lines)
    }

    fn write(&mut self, lines: Vec<String>, done: u64) -> Result<()> {
        self.stream()?.1.write(lines.concat().as_bytes(), done)
    }

    fn publish(&mut self) -> Result<()> {
        self.stream()?.1.publish()
    }
}
