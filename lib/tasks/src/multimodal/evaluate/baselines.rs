//! The baselines beside the network, all fitted to the training split.

use super::PairEvaluator;
use super::texts::{TextQuality, meaning};
use crate::multimodal::baselines::{LinearSlots, TextFeatures, TextRidge, Unigram, nearest};
use crate::multimodal::sets::Record;
use crate::multimodal::trained::TrainedPair;
use data::text::TokenSet;
use data::text::sentences::{Language, Meaning, SLOTS};
use indexmap::IndexMap;
use report::evaluation::{Metric, MetricsByName};
use std::collections::BTreeMap;
use unix::Result;

/// Maximum number of records that baselines are fitted to.
const MOST: usize = 50_000;

/// Texts without special tokens, and normalised vectors, of records with both.
struct Pairs {
    texts: Vec<Vec<i32>>,
    vectors: Vec<f32>,
}

impl Pairs {
    /// Reads at most [`MOST`] records, spread evenly over a set.
    fn of(model: &TrainedPair, set: &TokenSet) -> Result<Self> {
        let (mut texts, mut records) = (Vec::new(), Vec::new());
        for k in 0..set.len().min(MOST) {
            let record = Record::of(set, k * set.len() / set.len().min(MOST))?;
            if let Record { ids: Some(ids), vector: Some(_) } = record {
                texts.push(model.words(ids));
                records.push(record);
            }
        }
        Ok(Self { texts, vectors: model.preparation.vectors(&records) })
    }

    /// The meanings of the texts and the vectors of those that have one.
    fn meanings(
        &self,
        model: &TrainedPair,
        language: Language,
    ) -> Result<(Vec<f32>, Vec<Meaning>)> {
        let width = model.preparation.normalisation.channels();
        let (mut vectors, mut meanings) = (Vec::new(), Vec::new());
        for (ids, vector) in self.texts.iter().zip(self.vectors.chunks_exact(width)) {
            if let Some(found) = meaning(language, &model.text(ids)?) {
                meanings.push(found);
                vectors.extend_from_slice(vector);
            }
        }
        Ok((vectors, meanings))
    }
}

/// Returns the metrics of each baseline: chance; the text of another record; ridge regression from the counts of words, and of words and pairs of
/// words, to the vector; the text of the nearest training vector; the slots by linear regression from the vector; and
/// the most frequent token at each position.
pub(super) fn scores(evaluator: &PairEvaluator) -> Result<IndexMap<String, MetricsByName>> {
    let (model, [set, train, validation]) = (&evaluator.model, &evaluator.sets);
    let [train, validation] = [Pairs::of(model, train)?, Pairs::of(model, validation)?];
    let width = model.preparation.normalisation.channels();
    let selection = &evaluator.selection;
    let steps = format!("_{}", evaluator.options.best_steps());
    let mut all = IndexMap::new();
    all.insert("chance".to_string(), chance(evaluator));
    let scores = evaluator.vector_scores();
    for (name, features) in
        [("ridge_words", TextFeatures::Tokens), ("ridge_bigrams", TextFeatures::TokensAndBigrams)]
    {
        let ridge = TextRidge::fit(
            features,
            width,
            (&train.texts, &train.vectors),
            (&validation.texts, &validation.vectors),
        )?;
        let mut kept = selection.pool.clone();
        kept.extend(selection.groups.concat());
        kept.sort_unstable();
        kept.dedup();
        let texts: Vec<Vec<i32>> = kept.iter().map(|i| model.words(set.ids(*i))).collect();
        let found = ridge.predict(&texts);
        let rows: BTreeMap<usize, &[f32]> =
            kept.iter().copied().zip(found.chunks_exact(width)).collect();
        let mut metrics = scores.metrics(|i| rows.get(&i).copied());
        if let Some(similarity) = &evaluator.similarity {
            let texts: Vec<_> = similarity.texts.iter().map(|ids| model.words(ids)).collect();
            metrics.extend(similarity.metrics(&ridge.predict(&texts)));
        }
        all.insert(name.into(), metrics);
    }
    let pool = &selection.pool[..selection.texts];
    if pool.is_empty() {
        return Ok(all);
    }
    let quality = TextQuality::new(model, set, pool)?;
    let records: Vec<Record> =
        pool.iter().map(|i| Record { ids: None, vector: set.vector(*i) }).collect();
    let vectors = model.preparation.vectors(&records);
    // Half the pool away: another record, which is not of the same group or document.
    let other = (0..pool.len()).map(|k| pool[(k + pool.len().div_ceil(2)) % pool.len()]);
    let others: Vec<Vec<i32>> = other.map(|i| model.words(set.ids(i))).collect();
    all.insert("other_text".into(), quality.metrics(&others, &steps)?);
    let near = nearest(&vectors, &train.vectors, width);
    let texts: Vec<Vec<i32>> = near.iter().map(|i| train.texts[*i].clone()).collect();
    all.insert("nearest_text".into(), quality.metrics(&texts, &steps)?);
    if let Some(language) = quality.language() {
        let [own, other] = [&train, &validation].map(|pairs| pairs.meanings(model, language));
        let (own, other) = (own?, other?);
        let linear = LinearSlots::<SLOTS>::fit(width, (&own.0, &own.1), (&other.0, &other.1))?;
        all.extend(
            quality
                .of_meanings(&linear.predict(&vectors), &steps)
                .map(|metrics| ("linear_slots".to_string(), metrics)),
        );
        let floor = MetricsByName::from_iter([("nelbo".into(), Metric::plain(language.entropy()))]);
        all.insert("entropy".into(), floor);
    }
    let unigram = Unigram::fit(&train.texts);
    let texts: Vec<Vec<i32>> = pool.iter().map(|i| model.words(set.ids(*i))).collect();
    let share = Metric::score(unigram.equal_share(&texts));
    all.insert("unigram".into(), MetricsByName::from_iter([(format!("tokens{steps}"), share)]));
    Ok(all)
}

/// What a random choice reaches.
fn chance(evaluator: &PairEvaluator) -> MetricsByName {
    let pool = evaluator.selection.pool.len() as f64;
    let mut all = MetricsByName::new();
    all.insert("cosine".into(), Metric::score(0.0));
    for k in [1.0, 10.0] {
        all.insert(format!("recall_{k}"), Metric::score((k / pool).min(1.0)));
    }
    let groups = &evaluator.selection.groups;
    let members: usize = groups.iter().map(Vec::len).sum();
    if members > 0 {
        let share = groups.len() as f64 / members as f64;
        all.insert("group_recall_1".into(), Metric::score(share));
    }
    all
}
