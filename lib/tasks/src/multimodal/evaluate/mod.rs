//! `evaluate score` of texts and vectors.
//!
//! Items are the records of the scored split. Every record has a bound and a cosine. The vectors of some records take
//! part in retrieval, and the texts of some of these are sampled: memory and time do not grow with the split.

mod baselines;
mod options;
mod texts;
mod vectors;

pub use options::PairScoreOptions;

use super::measure::Measure;
use super::sample::{LatentSampler, Runner, TextSampler};
use super::sets::{Record, open_split};
use super::trained::{TOKENS, TrainedPair};
use crate::evaluation::ScoreRequest;
use clap::FromArgMatches;
use data::inputs::InputFile;
use data::split::SplitName;
use data::text::TokenSet;
use indexmap::IndexMap;
use learn::evaluate::{Block, Evaluation, Evaluator, Losses, Model, Results, Shown, subject};
use learn::score::Bits;
use report::evaluation::{Metric, MetricsByName, Scores, Subject};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::path::PathBuf;
use texts::TextQuality;
use unix::{Error, Result};
use vectors::{Similarity, VectorScores};

/// Records per block.
const BLOCK: u64 = 250;
/// Maximum number of records among which a vector is retrieved, and of groups within which one is.
const POOL: usize = 1000;
/// Seed of all samples.
const SEED: u64 = 0;

/// What is computed for a record beyond bound and cosine.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Sampled {
    /// The latent of its text, in one evaluation.
    vector: Vec<f32>,
    /// Texts of its vector, by number of steps.
    texts: BTreeMap<usize, Vec<i32>>,
    /// The first draft of its vector, and the best one by the latents of the drafts.
    drafts: Option<[Vec<i32>; 2]>,
    /// The text of the latent of its text.
    text_again: Option<Vec<i32>>,
    /// The latent of the text of its vector.
    vector_again: Vec<f32>,
}

/// Bound and cosine of a record, and its samples if there are any.
#[derive(Serialize, Deserialize)]
struct Measured {
    bound: Bits,
    cosine: Bits,
    sampled: Option<Sampled>,
}

/// Sums over records, and the samples by record.
#[derive(Default, Serialize, Deserialize)]
struct PairSums {
    bounds: Vec<Bits>,
    cosines: Vec<Bits>,
    sampled: BTreeMap<usize, Sampled>,
}

/// A network and the data that it is scored on.
struct PairEvaluator {
    model: TrainedPair,
    folder: PathBuf,
    /// The split to score, the training and the validation split.
    sets: [TokenSet; 3],
    options: PairScoreOptions,
    similarity: Option<Similarity>,
    selection: Selection,
    model_info: Model,
}

/// The records that take part in retrieval.
struct Selection {
    /// The records among which a vector is retrieved: those without a group of their own kind, or the first of each
    /// group.
    pool: Vec<usize>,
    /// The members of groups with several records.
    groups: Vec<Vec<usize>>,
    /// The records of the pool and of all groups.
    kept: HashSet<usize>,
    /// Number of records of the pool whose texts are sampled.
    texts: usize,
}

impl Selection {
    fn of(set: &TokenSet, texts: usize) -> Self {
        let mut members: IndexMap<String, Vec<usize>> = IndexMap::new();
        for i in 0..set.len() {
            let name = set.group(i).map_or_else(|| format!("\0{i}"), String::from);
            members.entry(name).or_default().push(i);
        }
        let (alone, mut groups): (Vec<Vec<usize>>, _) =
            members.into_values().partition(|group| group.len() == 1);
        let mut pool: Vec<usize> = match alone.is_empty() {
            true => groups.iter().map(|group| group[0]).collect(),
            false => alone.concat(),
        };
        pool.truncate(POOL);
        groups.truncate(POOL);
        let texts = texts.min(pool.len());
        let kept = pool.iter().chain(groups.iter().flatten()).copied().collect();
        Self { pool, groups, kept, texts }
    }

    /// Whether the vector of a record is kept, and whether its texts are sampled.
    fn of_record(&self, i: usize) -> [bool; 2] {
        let place = self.pool.binary_search(&i);
        [self.kept.contains(&i), place.is_ok_and(|place| place < self.texts)]
    }
}

/// Opens the evaluation. Errors: 2 when the data are not tokens; 65 when their tokenizer differs from that of the
/// network; 66; 78.
pub(super) fn open(request: &ScoreRequest) -> Result<Box<dyn Evaluation>> {
    if !TokenSet::is_at(request.data) {
        return Err(Error::usage(format!(
            "--data {}: the model reads texts with vectors; name a folder written by ds-prep tokenize",
            request.data.display()
        )));
    }
    request.opener.require_known(request.parts, &[TOKENS])?;
    let options = PairScoreOptions::from_arg_matches(request.options).map_err(Error::bug)?;
    options.require_valid()?;
    let folder = request.data.to_path_buf();
    let [set, train, validation] = [request.split, SplitName::Train, SplitName::Validation]
        .map(|name| open_split(&folder, name));
    let sets = [set?, train?, validation?];
    let model = TrainedPair::restore(request.parts, request.opener, Some(&folder))?;
    let similarity = options.similarity.as_deref();
    let similarity = similarity.map(|path| Similarity::open(path, &model)).transpose()?;
    let selection = Selection::of(&sets[0], options.texts);
    let model_info = Model {
        task: "cycle-vae",
        origin: model.trained.origin.clone(),
        parameters: model.trained.params.count(),
        data: Some(sets[1].hash().into()),
    };
    Ok(Box::new(PairEvaluator { model, folder, sets, options, similarity, selection, model_info }))
}

impl PairEvaluator {
    /// Samples the texts and vectors of some records.
    fn sample(&self, runner: Runner, records: &[Record], keys: &[u64]) -> Result<Vec<Sampled>> {
        let preparation = &self.model.preparation;
        let (texts, vectors) = (preparation.texts(records), preparation.vectors(records));
        let width = preparation.normalisation.channels();
        let mut all = vec![Sampled::default(); records.len()];
        for steps in &self.options.text_steps {
            let sampler = TextSampler::greedy(*steps);
            let found = runner.texts(Some(&vectors), keys, &sampler, SEED)?;
            all.iter_mut().zip(found).for_each(|(own, ids)| _ = own.texts.insert(*steps, ids));
        }
        let best = self.options.best_steps();
        let sampler = TextSampler::greedy(best);
        let encode = LatentSampler::default();
        let latents = runner.latents(Some(&texts), keys, &encode, SEED)?;
        let again = runner.texts(Some(&latents), keys, &sampler, SEED)?;
        all.iter_mut().zip(again).for_each(|(own, ids)| own.text_again = Some(ids));
        let ids: Vec<i32> = all.iter().flat_map(|own| own.texts[&best].iter().copied()).collect();
        let latents = runner.latents(Some(&ids), keys, &encode, SEED)?;
        let rows = latents.chunks_exact(width);
        all.iter_mut().zip(rows).for_each(|(own, row)| own.vector_again = row.to_vec());
        if self.options.drafts > 0 {
            let drafts = self.options.draft_sampler();
            let found = runner.drafts(&vectors, keys, &drafts, self.options.drafts, SEED)?;
            for (own, drafts) in all.iter_mut().zip(found) {
                own.drafts = Some([drafts.first, drafts.best]);
            }
        }
        Ok(all)
    }

    /// The metrics of the network.
    fn metrics(&self, sums: &PairSums) -> Result<MetricsByName> {
        let mut found = MetricsByName::new();
        let bounds: Vec<f64> = sums.bounds.iter().map(|bound| bound.0).collect();
        let interval = vectors::mean_interval(&bounds);
        found.insert("nelbo".into(), Metric::error(interval.0).with_interval(Some(interval.1)));
        let set = &self.sets[0];
        let pool = &self.selection.pool[..self.selection.texts];
        let quality = TextQuality::new(&self.model, set, pool)?;
        let sampled = |of: &dyn Fn(&Sampled) -> Option<Vec<i32>>| -> Option<Vec<Vec<i32>>> {
            pool.iter().map(|i| sums.sampled.get(i).and_then(of)).collect()
        };
        for steps in &self.options.text_steps {
            let texts = sampled(&|own| own.texts.get(steps).cloned());
            if let Some(texts) = texts {
                found.extend(quality.metrics(&texts, &format!("_{steps}"))?);
            }
        }
        for (which, name) in [(0, "_draft"), (1, "_reranked")] {
            if let Some(texts) = sampled(&|own| own.drafts.as_ref().map(|own| own[which].clone())) {
                found.extend(quality.metrics(&texts, name)?);
            }
        }
        if let Some(texts) = sampled(&|own| own.text_again.clone()) {
            found.extend(quality.metrics(&texts, "_round_trip")?);
        }
        let scores = self.vector_scores();
        found.extend(scores.metrics(|i| sums.sampled.get(&i).map(|own| &own.vector[..])));
        let again = |i: usize| sums.sampled.get(&i).map(|own| &own.vector_again[..]);
        found.extend(scores.round_trip(pool, again));
        if let Some(similarity) = &self.similarity {
            let vectors = self.model.run(|runner| similarity.encode(runner))?;
            found.extend(similarity.metrics(&vectors));
        }
        Ok(found)
    }

    fn vector_scores(&self) -> VectorScores<'_> {
        VectorScores {
            set: &self.sets[0],
            preparation: &self.model.preparation,
            pool: &self.selection.pool,
            groups: &self.selection.groups,
        }
    }
}

impl Evaluator for PairEvaluator {
    type Part = Vec<Measured>;
    type Sums = PairSums;

    fn subject(&self) -> Subject {
        let set = &self.sets[0];
        let mut subject = subject(("cycle-vae", "nelbo"), (&self.folder, set.hash()), set.name());
        subject.description = format!("{} records of the {} split", set.len(), set.name());
        subject.protocol.insert("records".into(), set.len().into());
        subject.protocol.insert("pool".into(), self.selection.pool.len().into());
        subject.protocol.insert("texts".into(), self.selection.texts.into());
        subject.protocol.insert("sampling".into(), json!(self.options.sampling()));
        subject
    }

    fn models(&self) -> Vec<Model> {
        vec![self.model_info.clone()]
    }

    fn noun(&self) -> &'static str {
        "records"
    }

    fn items(&self) -> u64 {
        self.sets[0].len() as u64
    }

    fn block_end(&self, first: u64) -> u64 {
        first + BLOCK
    }

    fn inputs(&self) -> Vec<InputFile> {
        let [set, train, validation] = &self.sets;
        let mut all = [train, validation].map(TokenSet::input_files).concat();
        if set.name() == SplitName::Test {
            all.extend(set.input_files());
        }
        all
    }

    fn loss_name(&self) -> &'static str {
        "nelbo"
    }

    fn measure(&self, block: Range<u64>) -> Result<Block<Vec<Measured>>> {
        let set = &self.sets[0];
        let keys: Vec<u64> = block.collect();
        let records =
            keys.iter().map(|i| Record::of(set, *i as usize)).collect::<Result<Vec<_>>>()?;
        let chosen: Vec<[bool; 2]> =
            keys.iter().map(|i| self.selection.of_record(*i as usize)).collect();
        self.model.run(|runner| {
            let preparation = &self.model.preparation;
            let measure = Measure { runner, preparation };
            let bounds = measure.bounds(&records, &keys)?;
            let latents = measure.latents(&records, &keys)?;
            let cosines = measure.cosines(&records, &latents);
            let with_texts: Vec<usize> = (0..keys.len()).filter(|at| chosen[*at][1]).collect();
            let own: Vec<Record> = with_texts.iter().map(|at| records[*at].clone()).collect();
            let own_keys: Vec<u64> = with_texts.iter().map(|at| keys[*at]).collect();
            let mut sampled = with_texts
                .iter()
                .copied()
                .zip(self.sample(runner, &own, &own_keys)?)
                .collect::<BTreeMap<usize, Sampled>>();
            let width = preparation.normalisation.channels();
            let part = (0..keys.len()).map(|at| {
                let own = chosen[at][0].then(|| {
                    let vector = latents[at * width..][..width].to_vec();
                    Sampled { vector, ..sampled.remove(&at).unwrap_or_default() }
                });
                Measured { bound: Bits(bounds[at]), cosine: Bits(cosines[at]), sampled: own }
            });
            let part = part.collect();
            Ok(Block { part, losses: bounds.iter().map(|bound| (*bound).into()).collect() })
        })
    }

    fn add(&self, sums: &mut PairSums, part: Vec<Measured>) {
        for own in part {
            if let Some(sampled) = own.sampled {
                sums.sampled.insert(sums.bounds.len(), sampled);
            }
            sums.bounds.push(own.bound);
            sums.cosines.push(own.cosine);
        }
    }

    fn finish(&self, sums: &PairSums, _: &Losses) -> Result<Results> {
        let mut methods = IndexMap::from([("cycle-vae".to_string(), self.metrics(sums)?)]);
        methods.extend(baselines::scores(self)?);
        let rows = texts::rows(&methods, self.options.best_steps());
        let samples = self.sets[0].len() as u64;
        Ok(Results { scores: Scores { samples, methods }, rows, ..Results::default() })
    }

    fn show(&self, sums: &PairSums, item: u64) -> Result<Shown> {
        let set = &self.sets[0];
        let mut fields = serde_json::Map::new();
        fields.insert("text".into(), set.texts(item as usize)[0].into());
        let own = sums.sampled.get(&(item as usize));
        if let Some(ids) = own.and_then(|own| own.texts.get(&self.options.best_steps())) {
            fields.insert("sampled".into(), self.model.text(ids)?.into());
        }
        let cosine = sums.cosines.get(item as usize).map(|cosine| cosine.0);
        fields.insert("cosine".into(), json!(cosine));
        Ok(Shown { fields, ..Shown::default() })
    }
}
