//! `evaluate score`: the loss of held-out conversations, and the answers to them.

use super::baselines::{Unigram, frequent_answer, last_answer};
use super::fit::{image_tokens, require_lengths};
use super::options::LanguageScoreOptions;
use super::record_images::{RecordImages, Records};
use super::sft::SftTask;
use super::trained::TrainedLanguage;
use crate::evaluation::ScoreRequest;
use crate::text::open_sets;
use clap::FromArgMatches;
use data::inputs::InputFile;
use data::text::TokenSet;
use data::text::chat::ImageTokens;
use indexmap::IndexMap;
use learn::evaluate::{
    Block, Evaluation, Evaluator, Losses, Model, Results, Shown, Stratum, bootstrap, interval,
    subject,
};
use learn::generate::{Finish, Generation, Prompt};
use learn::score::{Bits, edit_distance};
use learn::task::Define;
use report::evaluation::{Group, Metric, MetricsByName, Scores, Subject};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::PathBuf;
use unix::{Error, Result, warn};

/// Conversations per block. An interruption loses the block that is being measured.
const BLOCK: u64 = 64;

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

impl MeasuredAnswer {
    /// Whether the answer is the true one but for white space around it.
    fn is_exact(&self) -> bool {
        self.text.trim() == self.expected.trim()
    }
}

/// A decoder and the data that it is scored on.
struct LanguageEvaluator {
    model: TrainedLanguage,
    folder: PathBuf,
    /// The split to score and the training split.
    sets: [TokenSet; 2],
    /// How answers are generated; None: no answers.
    generation: Option<Generation>,
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
    let [set, train, _] = open_sets(request.data, request.split)?;
    let folder = request.data.to_path_buf();
    let model = TrainedLanguage::restore(request.parts, request.opener, set.info(), &folder)?;
    let model = model.compact();
    require_lengths(model.config(), &set, &folder)?;
    let generation = (options.max_new_tokens > 0).then(|| options.generation(model.stops.clone()));
    let images = image_tokens(model.config(), &set)?;
    let sets = [set, train];
    Ok(Box::new(LanguageEvaluator { model, folder, sets, generation, images }))
}

impl LanguageEvaluator {
    /// The true last answers of records, and what the model answers.
    fn answers(
        &self,
        generation: &Generation,
        records: Range<usize>,
        read: &Records,
    ) -> Result<Vec<Option<MeasuredAnswer>>> {
        let (chat, stops) = (&self.model.chat, &self.model.stops);
        let first = records.start;
        let images: Vec<&RecordImages> = read.images().collect();
        let known = records.clone().map(|i| last_answer(chat, stops, &self.sets[0], i));
        let known = known.collect::<Result<Vec<_>>>()?;
        let mut prompts = Vec::new();
        for (i, own) in records.zip(&known) {
            if let Some((ids, _)) =
                own.as_ref().filter(|(ids, _)| self.model.require_room(ids).is_ok())
            {
                prompts.push((Prompt { ids, number: i as u64 }, images[i - first].images()));
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

    /// The line of predictions.jsonl for a record.
    fn row(&self, found: &[Measured], i: usize) -> Map<String, Value> {
        let (set, own) = (&self.sets[0], &found[i]);
        let mut row = Map::from_iter([
            ("record".to_string(), json!(i)),
            ("id".into(), json!(set.id(i))),
            ("loss".into(), json!(own.sum.0 / own.labels as f64)),
            ("labels".into(), own.labels.into()),
        ]);
        if let Some(answer) = &own.answer {
            row.insert("answer".into(), answer.expected.clone().into());
            row.insert("text".into(), answer.text.clone().into());
            row.insert("exact_match".into(), answer.is_exact().into());
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
            ("repetition".into(), count(Some(Finish::Repetition)).into()),
            ("no_room".into(), count(None).into()),
            ("no_answer".into(), found.iter().filter(|own| own.answer.is_none()).count().into()),
        ])
    }

    /// The metrics of the conversations `which`.
    fn metrics(&self, found: &[Measured], which: &[usize]) -> MetricsByName {
        let sums: Vec<[f64; 2]> =
            which.iter().map(|i| [found[*i].sum.0, found[*i].labels as f64]).collect();
        let mut metrics = of_losses(&sums);
        if self.generation.is_some() {
            let answers: Vec<Option<(&str, &str)>> = which
                .iter()
                .map(|i| found[*i].answer.as_ref().map(|own| (&own.text[..], &own.expected[..])))
                .collect();
            metrics.extend(of_answers(&answers));
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
            let answer = |own: &'_ Measured| own.answer.as_ref().map(|own| own.expected.clone());
            let expected: Vec<Option<String>> = found.iter().map(answer).collect();
            let answers: Vec<Option<(&str, &str)>> =
                expected.iter().map(|own| own.as_deref().map(|own| (&text[..], own))).collect();
            all.insert("most frequent answer".into(), of_answers(&answers));
        }
        Ok(all)
    }

    /// The scores of the conversations of each criterion, in alphabetical order, if they have criteria.
    fn by_criterion(&self, found: &[Measured]) -> Vec<Group> {
        let set = &self.sets[0];
        let names: BTreeSet<&str> = (0..set.len()).filter_map(|i| set.criterion(i)).collect();
        let group = |name: &str| {
            let own: Vec<usize> =
                (0..set.len()).filter(|i| set.criterion(*i) == Some(name)).collect();
            let methods = [(SftTask::SPEC.name.into(), self.metrics(found, &own))].into();
            let scores = Scores { samples: own.len() as u64, methods };
            Group { kind: "criterion".into(), name: name.into(), scores }
        };
        names.into_iter().map(group).collect()
    }
}

/// The mean of `values`, each a sum and a weight, with its interval by bootstrap over samples.
fn mean(values: &[[f64; 2]]) -> (f64, [f64; 2]) {
    let of = |which: &mut dyn Iterator<Item = usize>| {
        let [sum, weight] =
            which.fold([0.0, 0.0], |[sum, weight], i| [sum + values[i][0], weight + values[i][1]]);
        sum / weight
    };
    let stratum = Stratum { number: 0, clusters: values.len() };
    let resampled = bootstrap(&[stratum], |draws| of(&mut draws[0].iter().copied()));
    (of(&mut (0..values.len())), interval(resampled.into_iter()))
}

/// Loss and perplexity, from the sum of the losses and the number of labels of each sample.
fn of_losses(sums: &[[f64; 2]]) -> MetricsByName {
    let (loss, bounds) = mean(sums);
    [
        ("loss".to_string(), Metric::error(loss).with_interval(Some(bounds))),
        ("perplexity".into(), Metric::error(loss.exp()).with_interval(Some(bounds.map(f64::exp)))),
    ]
    .into()
}

/// The share of exact answers, and the character error rate, from answers and true answers. One that is missing is wrong.
fn of_answers(answers: &[Option<(&str, &str)>]) -> MetricsByName {
    let exact =
        |own: &Option<(&str, &str)>| own.is_some_and(|(text, own)| text.trim() == own.trim());
    let exact: Vec<[f64; 2]> =
        answers.iter().map(|own| [f64::from(u8::from(exact(own))), 1.0]).collect();
    let (share, bounds) = mean(&exact);
    let errors = answers.iter().flatten().map(|(text, expected)| {
        let [text, expected] = [text, expected].map(|own| own.trim().chars().collect::<Vec<_>>());
        [edit_distance(&text, &expected) as f64, expected.len() as f64]
    });
    let (rate, rates) = mean(&errors.collect::<Vec<_>>());
    [
        ("exact_match".to_string(), Metric::score(share).with_interval(Some(bounds))),
        ("cer".into(), Metric::error(rate).with_interval(Some(rates))),
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
        let set = &self.sets[0];
        let own = block.start as usize..block.end as usize;
        let read = Records::read(own.clone().map(|i| (set, i)), self.images.as_ref())?;
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
        let mut methods = IndexMap::from([(task.to_string(), self.metrics(found, &all))]);
        methods.extend(self.baselines(found)?);
        let row = |(name, metrics): (&String, &MetricsByName)| {
            let mut row = json!({"model": name});
            for column in ["loss", "perplexity", "exact_match", "cer"] {
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
        for i in 0..found.len() {
            serde_json::to_writer(&mut lines, &self.row(found, i)).map_err(Error::bug)?;
            lines.push(b'\n');
        }
        Ok(Results {
            scores: Scores { samples: set.len() as u64, methods },
            groups: self.by_criterion(found),
            details,
            rows,
            files: vec![("predictions.jsonl".into(), lines)],
            ..Results::default()
        })
    }

    fn show(&self, found: &Vec<Measured>, item: u64) -> Result<Shown> {
        let i = item as usize;
        let mut fields = self.row(found, i);
        fields.remove("loss");
        fields.insert("messages".into(), self.sets[0].all_texts(i).into());
        Ok(Shown { fields, ..Shown::default() })
    }
}
