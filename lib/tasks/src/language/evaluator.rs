//! `evaluate score`: the loss of held-out conversations, and the answers to them.

use super::answer_scores::{AnswerScore, answer_metrics, weighted_mean};
use super::baselines::{Unigram, frequent_answer, last_answer};
use super::fit::{image_tokens, require_lengths};
use super::normalise::Normalisation;
use super::options::{AnswersOf, LanguageScoreOptions};
use super::record_patches::Records;
use super::sft::SftTask;
use super::trained::TrainedLanguage;
use crate::evaluation::ScoreRequest;
use crate::text::open_sets;
use clap::FromArgMatches;
use data::images::thumbnail;
use data::inputs::InputFile;
use data::text::TokenSet;
use data::text::chat::ImageTokens;
use indexmap::IndexMap;
use learn::evaluate::{
    Block, Evaluation, Evaluator, Losses, Model, Results, Shown, check_stop, subject,
};
use learn::generate::{Finish, Generation, Prompt};
use learn::score::Bits;
use learn::task::Define;
use rayon::prelude::*;
use report::evaluation::{Group, Metric, MetricsByName, Scores, Subject};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::PathBuf;
use unix::{Error, Result, warn};

/// Conversations per block. An interruption loses the block that is being measured.
const BLOCK: u64 = 64;
/// Longest side of a picture in pixels.
const PICTURE: u32 = 800;
/// Worst conversations that are answered at once.
const WORST_BLOCK: usize = 16;

/// What was measured of a conversation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// Sum of the cross entropies of its labels.
    sum: Bits,
    /// Number of its labels.
    labels: u64,
    /// Its last answer.
    answer: Option<MeasuredAnswer>,
}

/// A true answer, and what was generated instead.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct MeasuredAnswer {
    expected: String,
    text: String,
    /// Why the answer ended; None if the prompt left no room for one.
    finish: Option<Finish>,
}

/// A decoder and the data that it is scored on.
struct LanguageEvaluator {
    model: TrainedLanguage,
    folder: PathBuf,
    /// The split to score and the training split.
    sets: [TokenSet; 2],
    /// How answers are generated; None: no answers.
    generation: Option<Generation>,
    /// The same for those to the worst conversations only, which have no metrics.
    worst_generation: Option<Generation>,
    normalisation: Normalisation,
    /// What images are cut with.
    images: Option<ImageTokens>,
}

/// Opens the evaluation of a decoder.
///
/// Errors: 2 when the data are not tokens; 65 when their tokenizer or template differ from those of the model; 66; 78.
pub(super) fn open(request: &ScoreRequest) -> Result<Box<dyn Evaluation>> {
    if !TokenSet::is_at(request.data) {
        return Err(Error::usage(format!(
            "--data {}: the model reads conversations; name a folder written by ds-prep tokenize",
            request.data.display()
        )));
    }
    request.opener.require_known(request.parts, &[])?;
    let options = LanguageScoreOptions::from_arg_matches(request.options).map_err(Error::bug)?;
    options.check()?;
    let [set, train, _] = open_sets(request.data, request.split)?;
    let folder = request.data.to_path_buf();
    let model = TrainedLanguage::restore(request.parts, request.opener, set.info(), &folder)?;
    let model = model.compact();
    require_lengths(model.config(), &set, &folder)?;
    let generation = options.generation(model.stops.clone());
    let (generation, worst_generation) = match options.answers {
        AnswersOf::All => (generation, None),
        AnswersOf::Worst => (None, generation),
    };
    let images = image_tokens(model.config(), &set)?;
    Ok(Box::new(LanguageEvaluator {
        model,
        folder,
        sets: [set, train],
        generation,
        worst_generation,
        normalisation: options.normalisation(),
        images,
    }))
}

impl LanguageEvaluator {
    /// Records with their images.
    fn read(&self, records: impl Iterator<Item = usize>) -> Result<Records<'_>> {
        Records::read(records.map(|i| (&self.sets[0], i)), self.images.as_ref())
    }

    /// A picture of the first image of a record, if it has one.
    fn picture(&self, i: usize) -> Result<Option<Vec<u8>>> {
        let images = self.sets[0].images(i)?;
        let Some(image) = images.first() else { return Ok(None) };
        let name = format!("{}: record {i}", self.folder.display());
        thumbnail(&image.decode(&name)?, PICTURE).map(Some)
    }

    /// The true last answers of records, and what the model answers.
    fn answers(
        &self,
        generation: &Generation,
        records: impl Iterator<Item = usize> + Clone,
        read: &Records,
    ) -> Result<Vec<Option<MeasuredAnswer>>> {
        let (chat, stops) = (&self.model.chat, &self.model.stops);
        let known = records.clone().map(|i| last_answer(chat, stops, &self.sets[0], i));
        let known = known.collect::<Result<Vec<_>>>()?;
        let mut prompts = Vec::new();
        for ((i, own), images) in records.zip(&known).zip(read.images()) {
            if let Some((ids, _)) =
                own.as_ref().filter(|(ids, _)| self.model.require_room(ids).is_ok())
            {
                prompts.push((Prompt { ids, number: i as u64 }, images.images()));
            }
        }
        let mut generated = self.model.answers(&prompts, generation)?.into_iter();
        let answer = |own: &Option<(Vec<i32>, String)>| {
            let (ids, expected) = own.as_ref()?;
            let has_room = self.model.require_room(ids).is_ok();
            let found = if has_room { generated.next() } else { None };
            let (text, finish) =
                found.map_or((String::new(), None), |own| (own.text, Some(own.finish)));
            Some(MeasuredAnswer { expected: expected.clone(), text, finish })
        };
        Ok(known.iter().map(answer).collect())
    }

    /// The score of the answer of a conversation.
    fn answer_score(&self, own: &Measured) -> Option<AnswerScore> {
        let own = own.answer.as_ref()?;
        Some(AnswerScore::of(&own.text, &own.expected, &self.normalisation))
    }

    /// The line of predictions.jsonl for a record; with its answer if that has a score.
    fn row(&self, found: &[Measured], i: usize, score: Option<AnswerScore>) -> Map<String, Value> {
        let (set, own) = (&self.sets[0], &found[i]);
        let mut row = Map::from_iter([
            ("record".to_string(), json!(i)),
            ("id".into(), json!(set.id(i))),
            ("loss".into(), json!(own.sum.0 / own.labels as f64)),
            ("labels".into(), own.labels.into()),
        ]);
        if let (Some(answer), Some(score)) = (&own.answer, score) {
            row.insert("answer".into(), answer.expected.clone().into());
            row.insert("text".into(), answer.text.clone().into());
            row.extend(score.fields());
            row.insert("finish".into(), json!(answer.finish));
        }
        row
    }

    /// Why answers ended; warns of those that were cut.
    fn endings(&self, found: &[Measured]) -> Map<String, Value> {
        let count = |finish: Option<Finish>| {
            let answers = found.iter().filter_map(|own| own.answer.as_ref());
            answers.filter(|own| own.finish == finish).count()
        };
        let cut = count(Some(Finish::Length));
        if cut > 0 {
            warn!(
                "{cut} of {} answers were cut after --max-new-tokens or at the longest sequence of the model",
                found.len()
            );
        }
        Map::from_iter([
            ("stop".to_string(), count(Some(Finish::Stop)).into()),
            ("length".into(), cut.into()),
            ("runaway".into(), count(Some(Finish::Runaway)).into()),
            ("no_room".into(), count(None).into()),
            ("no_answer".into(), found.iter().filter(|own| own.answer.is_none()).count().into()),
        ])
    }

    /// The metrics of the conversations `which`, given the scores of all answers.
    fn metrics(
        &self,
        found: &[Measured],
        scores: &[Option<AnswerScore>],
        which: &[usize],
    ) -> MetricsByName {
        let sums: Vec<[f64; 2]> =
            which.iter().map(|i| [found[*i].sum.0, found[*i].labels as f64]).collect();
        let mut metrics = of_losses(&sums);
        if self.generation.is_some() {
            let own: Vec<Option<AnswerScore>> = which.iter().map(|i| scores[*i]).collect();
            metrics.extend(answer_metrics(&own));
        }
        metrics
    }

    /// The scores of the baselines.
    fn baselines(&self, found: &[Measured]) -> Result<IndexMap<String, MetricsByName>> {
        let [set, train] = &self.sets;
        let unigram = Unigram::fit(train)?;
        let sum = |(i, own): (usize, &Measured)| Ok([unigram.loss(set, i)?, own.labels as f64]);
        let sums = found.iter().enumerate().map(sum).collect::<Result<Vec<_>>>()?;
        let mut all = IndexMap::from([("unigram".to_string(), of_losses(&sums))]);
        if self.generation.is_some() {
            let text = frequent_answer(&self.model.chat, &self.model.stops, train)?;
            let score = |own: &Measured| {
                let own = own.answer.as_ref()?;
                Some(AnswerScore::of(&text, &own.expected, &self.normalisation))
            };
            let scores: Vec<Option<AnswerScore>> = found.par_iter().map(score).collect();
            all.insert("most frequent answer".into(), answer_metrics(&scores));
        }
        Ok(all)
    }

    /// The scores of the conversations of each criterion, in alphabetical order, if they have criteria.
    fn by_criterion(&self, found: &[Measured], scores: &[Option<AnswerScore>]) -> Vec<Group> {
        let set = &self.sets[0];
        let names: BTreeSet<&str> = (0..set.len()).filter_map(|i| set.criterion(i)).collect();
        let group = |name: &str| {
            let own: Vec<usize> =
                (0..set.len()).filter(|i| set.criterion(*i) == Some(name)).collect();
            let methods = [(SftTask::SPEC.name.into(), self.metrics(found, scores, &own))].into();
            let scores = Scores { samples: own.len() as u64, methods };
            Group { kind: "criterion".into(), name: name.into(), scores }
        };
        names.into_iter().map(group).collect()
    }
}

/// Loss and perplexity, from the sum of the losses and the number of labels of each sample.
fn of_losses(sums: &[[f64; 2]]) -> MetricsByName {
    let (loss, bounds) = weighted_mean(sums);
    [
        ("loss".to_string(), Metric::error(loss).with_interval(Some(bounds))),
        ("perplexity".into(), Metric::error(loss.exp()).with_interval(Some(bounds.map(f64::exp)))),
    ]
    .into()
}

impl Evaluator for LanguageEvaluator {
    type Part = Vec<Measured>;
    type Sums = Vec<Measured>;

    fn subject(&self) -> Subject {
        let set = &self.sets[0];
        let metric = if self.generation.is_some() { "exact_match" } else { "loss" };
        let mut subject =
            subject((SftTask::SPEC.name, metric), (&self.folder, set.hash()), set.name());
        subject.description = format!("{} conversations of the {} split", set.len(), set.name());
        subject.protocol.insert("records".into(), set.len().into());
        let tokens = self.generation.as_ref().map_or(0, |own| own.max_new_tokens);
        subject.protocol.insert("max_new_tokens".into(), tokens.into());
        subject.settings.insert("truncated".into(), set.truncated().into());
        let name = self.normalisation.name().map(Value::from);
        if let Some(generation) = &self.worst_generation {
            subject.settings.insert("answers".into(), "worst".into());
            subject.settings.insert("max_new_tokens".into(), generation.max_new_tokens.into());
            name.map(|name| subject.settings.insert("normalise".into(), name));
        } else {
            name.map(|name| subject.protocol.insert("normalise".into(), name));
        }
        subject
    }

    fn models(&self) -> Vec<Model> {
        vec![self.model.model(self.sets[1].hash())]
    }

    fn noun(&self) -> &'static str {
        "conversations"
    }

    fn items(&self) -> u64 {
        self.sets[0].len() as u64
    }

    fn block_end(&self, first: u64) -> u64 {
        first + BLOCK
    }

    fn inputs(&self) -> Vec<InputFile> {
        self.sets.iter().flat_map(TokenSet::input_files).collect()
    }

    fn loss_name(&self) -> &'static str {
        "loss"
    }

    fn measure(&self, block: Range<u64>) -> Result<Block<Vec<Measured>>> {
        let own = block.start as usize..block.end as usize;
        let read = self.read(own.clone())?;
        let sequences = read.labelled();
        let sums = self.model.losses(&sequences, own.start)?;
        let answers = match &self.generation {
            Some(generation) => self.answers(generation, own, &read)?,
            None => vec![None; sequences.len()],
        };
        let all = sequences.iter().zip(sums).zip(answers);
        let part: Vec<Measured> = all
            .map(|((sequence, sum), answer)| Measured {
                sum: Bits(sum),
                labels: sequence.labels().count() as u64,
                answer,
            })
            .collect();
        let losses = part.iter().map(|own| (own.sum.0 / own.labels as f64).into()).collect();
        Ok(Block { part, losses })
    }

    fn add(&self, sums: &mut Vec<Measured>, part: Vec<Measured>) {
        sums.extend(part);
    }

    fn finish(&self, found: &Vec<Measured>, _: &Losses) -> Result<Results> {
        let (set, task) = (&self.sets[0], SftTask::SPEC.name);
        let all: Vec<usize> = (0..found.len()).collect();
        let score = |own: &Measured| self.generation.as_ref().and_then(|_| self.answer_score(own));
        let scores: Vec<Option<AnswerScore>> = found.par_iter().map(score).collect();
        let mut methods = IndexMap::from([(task.to_string(), self.metrics(found, &scores, &all))]);
        methods.extend(self.baselines(found)?);
        let row = |(name, metrics): (&String, &MetricsByName)| {
            let mut row = json!({"model": name});
            for column in ["loss", "perplexity", "exact_match", "cer", "wer", "value_cer"] {
                row[column] = json!(metrics.get(column).map(|metric| metric.value));
            }
            row
        };
        let mut rows: Vec<Value> = methods.iter().map(row).collect();
        rows.rotate_left(1);
        let mut details = Map::new();
        if self.generation.is_some() {
            details.insert("answers".into(), self.endings(found).into());
        }
        let mut lines = Vec::new();
        for (i, score) in scores.iter().enumerate() {
            serde_json::to_writer(&mut lines, &self.row(found, i, *score)).map_err(Error::bug)?;
            lines.push(b'\n');
        }
        Ok(Results {
            scores: Scores { samples: set.len() as u64, methods },
            groups: self.by_criterion(found, &scores),
            details,
            rows,
            files: vec![("predictions.jsonl".into(), lines)],
            ..Results::default()
        })
    }

    fn complete(&self, found: &mut Vec<Measured>, worst: &[u64]) -> Result<()> {
        let Some(generation) = &self.worst_generation else { return Ok(()) };
        for block in worst.chunks(WORST_BLOCK) {
            let block = block.iter().map(|i| *i as usize);
            // An earlier attempt may have answered them.
            if block.clone().any(|i| found[i].answer.is_some()) {
                continue;
            }
            check_stop()?;
            let read = self.read(block.clone())?;
            for (i, answer) in block.clone().zip(self.answers(generation, block, &read)?) {
                found[i].answer = answer;
            }
        }
        Ok(())
    }

    fn show(&self, found: &Vec<Measured>, item: u64) -> Result<Shown> {
        let i = item as usize;
        let mut fields = self.row(found, i, self.answer_score(&found[i]));
        fields.shift_remove("loss");
        let messages = self.sets[0].all_texts(i);
        fields.insert("messages".into(), serde_json::from_str(&messages).map_err(Error::bug)?);
        let texts = found[i]
            .answer
            .as_ref()
            .map(|own| [&own.expected, &own.text].map(|text| self.normalisation.text(text)));
        Ok(Shown { fields, texts, picture: self.picture(i)? })
    }
}
