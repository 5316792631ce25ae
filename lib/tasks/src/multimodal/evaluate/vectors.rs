//! The quality of vectors: cosine, retrieval, and similarity of pairs of texts.

use crate::multimodal::batch::Preparation;
use crate::multimodal::metrics::{
    correlations, paired_cosines, pairwise, ranks, recall, within_groups,
};
use crate::multimodal::sample::{LatentSampler, Runner};
use crate::multimodal::sets::Record;
use crate::multimodal::trained::TrainedPair;
use crate::text::metrics::Resampling;
use data::text::{ScoredPair, TokenSet, scored_pairs};
use learn::evaluate::{Stratum, bootstrap, interval};
use report::evaluation::{Metric, MetricsByName};
use std::collections::BTreeMap;
use std::path::Path;
use unix::Result;

/// The records of a group whose criterion is this are compared with those that have another one.
const BASE: &str = "base";

/// Returns the mean of values with its 95 % confidence interval.
pub fn mean_interval(values: &[f64]) -> (f64, [f64; 2]) {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let stratum = Stratum { number: 0, clusters: values.len() };
    let means = bootstrap(&[stratum], |draws| {
        draws[0].iter().map(|i| values[*i]).sum::<f64>() / values.len() as f64
    });
    (mean, interval(means.into_iter()))
}

/// Returns the mean of values, larger ones being better, with its interval.
pub fn mean_score(values: &[f64]) -> Metric {
    let (mean, interval) = mean_interval(values);
    Metric::score(mean).with_interval((!values.is_empty()).then_some(interval))
}

fn shares(found: impl IntoIterator<Item = bool>) -> Vec<f64> {
    found.into_iter().map(|found| f64::from(u8::from(found))).collect()
}

/// Scores the vectors that are computed from texts.
#[derive(Clone, Copy)]
pub struct VectorScores<'a> {
    /// The scored split.
    pub set: &'a TokenSet,
    /// Normalises the true vectors.
    pub preparation: &'a Preparation,
    /// The records among which a vector is retrieved.
    pub pool: &'a [usize],
    /// The members of groups with several records.
    pub groups: &'a [Vec<usize>],
}

impl VectorScores<'_> {
    /// Returns the normalised vectors of records.
    fn truth(&self, records: &[usize]) -> Vec<f32> {
        let of = |i: &usize| Record { ids: None, vector: self.set.vector(*i) };
        self.preparation.vectors(&records.iter().map(of).collect::<Vec<_>>())
    }

    fn width(&self) -> usize {
        self.preparation.normalisation.channels()
    }

    /// Cosine, recall among the pool and within groups, and choices between two records of a group, of the vector that
    /// `found` returns for a record. Records without one are left out.
    pub fn metrics<'v>(&self, found: impl Fn(usize) -> Option<&'v [f32]>) -> MetricsByName {
        let width = self.width();
        let mut all = MetricsByName::new();
        let pool: Vec<usize> = self.pool.iter().copied().filter(|i| found(*i).is_some()).collect();
        let of = |records: &[usize]| -> Vec<f32> {
            records.iter().filter_map(|i| found(*i)).flatten().copied().collect()
        };
        let (vectors, truth) = (of(&pool), self.truth(&pool));
        all.insert("cosine".into(), mean_score(&paired_cosines(&vectors, &truth, width)));
        let ranks = ranks(&vectors, &truth, width);
        for k in [1, 10] {
            let hits = shares(ranks.iter().map(|rank| *rank <= k));
            all.insert(format!("recall_{k}"), mean_score(&hits));
        }
        let members: Vec<usize> = self.groups.concat();
        let members: Vec<usize> = members.into_iter().filter(|i| found(*i).is_some()).collect();
        if members.is_empty() {
            return all;
        }
        let number: BTreeMap<usize, usize> = (0..)
            .zip(self.groups)
            .flat_map(|(number, group)| group.iter().map(move |i| (*i, number)))
            .collect();
        let numbers: Vec<usize> = members.iter().map(|i| number[i]).collect();
        let (vectors, truth) = (of(&members), self.truth(&members));
        let hits = within_groups(&vectors, &truth, width, &numbers);
        all.insert("group_recall_1".into(), mean_score(&shares(hits)));
        for (kind, pairs) in self.pairs(&members) {
            let hits = pairwise(&vectors, &truth, width, &pairs).concat();
            all.insert(format!("choice_{kind}"), mean_score(&shares(hits)));
        }
        all
    }

    /// The pairs of a base record and another of its group, by the criterion of the latter, as places among `members`.
    fn pairs(&self, members: &[usize]) -> BTreeMap<String, Vec<[usize; 2]>> {
        let place: BTreeMap<usize, usize> =
            members.iter().enumerate().map(|(place, i)| (*i, place)).collect();
        let mut pairs: BTreeMap<String, Vec<[usize; 2]>> = BTreeMap::new();
        for group in self.groups {
            let is_base = |i: &&usize| self.set.criterion(**i) == Some(BASE);
            let Some(base) = group.iter().find(is_base).and_then(|i| place.get(i)) else {
                continue;
            };
            for i in group {
                let (Some(kind), Some(own)) = (self.set.criterion(*i), place.get(i)) else {
                    continue;
                };
                if kind != BASE {
                    pairs.entry(kind.into()).or_default().push([*base, *own]);
                }
            }
        }
        pairs
    }

    /// Cosine and recall of vectors that went through a text, beside their own: the pool is the same.
    pub fn round_trip<'v>(
        &self,
        pool: &[usize],
        found: impl Fn(usize) -> Option<&'v [f32]>,
    ) -> MetricsByName {
        let own: Vec<usize> =
            pool.iter().copied().filter(|i| found(*i).is_some_and(|v| !v.is_empty())).collect();
        let vectors: Vec<f32> = own.iter().filter_map(|i| found(*i)).flatten().copied().collect();
        if own.is_empty() {
            return MetricsByName::new();
        }
        let others = self.pool.iter().copied().filter(|i| !own.contains(i));
        let all: Vec<usize> = own.iter().copied().chain(others).collect();
        let truth = self.truth(&all);
        let width = self.width();
        let cosines = paired_cosines(&vectors, &truth[..vectors.len()], width);
        let hit = recall(&ranks(&vectors, &truth, width), 1);
        MetricsByName::from_iter([
            ("cosine_round_trip".to_string(), mean_score(&cosines)),
            ("recall_1_round_trip".to_string(), Metric::score(hit)),
        ])
    }
}

/// Pairs of texts with a score of their similarity.
pub struct Similarity {
    pairs: Vec<ScoredPair>,
    /// Token ids of both texts of each pair, with padding, one text after the other.
    ids: Vec<i32>,
    /// The same without padding.
    pub texts: Vec<Vec<i32>>,
    width: usize,
}

impl Similarity {
    /// Reads the pairs of a file. Errors: 66; 65 with the line.
    pub fn open(path: &Path, model: &TrainedPair) -> Result<Self> {
        let pairs = scored_pairs(path)?;
        let texts: Vec<_> =
            pairs.iter().flat_map(|pair| &pair.texts).map(|text| [Some(&**text), None]).collect();
        let texts: Vec<Vec<i32>> =
            model.tokenizer.encode_all(&texts)?.into_iter().map(|own| own.ids).collect();
        let ids = texts.iter().flat_map(|ids| model.preparation.padded(ids)).collect();
        let width = model.preparation.normalisation.channels();
        Ok(Self { pairs, ids, texts, width })
    }

    /// Returns the vectors of all texts.
    pub fn encode(&self, runner: Runner) -> Result<Vec<f32>> {
        let keys: Vec<u64> = (0..self.texts.len() as u64).collect();
        runner.latents(Some(&self.ids), &keys, &LatentSampler::default(), super::SEED)
    }

    /// The correlations of the cosines of these vectors with the scores.
    pub fn metrics(&self, vectors: &[f32]) -> MetricsByName {
        let rows: Vec<&[f32]> = vectors.chunks_exact(self.width).collect();
        let [first, second] = [0, 1]
            .map(|which| rows[which..].iter().step_by(2).copied().collect::<Vec<_>>().concat());
        let cosines = paired_cosines(&first, &second, self.width);
        let gold: Vec<f64> = self.pairs.iter().map(|pair| pair.score).collect();
        correlations(&cosines, &gold, Resampling::Samples).scored("similarity_")
    }
}
