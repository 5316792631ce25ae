//! Mixtures: several data sets, each with a sampling weight, that a task reads as one.

use super::normalisation::Normalisation;
use data::fields::split::SplitName;
use data::fields::split_set::{TrajectorySet, Verify};
use data::fields::stats::Stats;
use data::inputs::InputFile;
use data::provenance::{Provenance, shared};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::{Path, PathBuf};
use unix::config::Violations;
use unix::{Error, Result};

/// An additional data set of a mixture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FieldSource {
    /// Split manifest written by `ds-prep split`.
    pub split: PathBuf,
    /// Statistics of its training split, written by `ds-prep stats`.
    pub stats: PathBuf,
    /// Sampling weight of this data set, relative to the weights of the others.
    #[serde(default = "one")]
    pub weight: f64,
}

pub(crate) fn one() -> f64 {
    1.0
}

/// Returns the violations in the weights of the first source and of the other sources.
pub(crate) fn weight_violations(first: f64, others: impl Iterator<Item = f64>) -> Violations {
    let keys = std::iter::once("data.weight".to_string())
        .chain((0..).map(|i| format!("data.additional[{i}].weight")));
    let weights: Vec<f64> = std::iter::once(first).chain(others).collect();
    let alone = weights.len() == 1;
    let wrong = |weight: &f64| !weight.is_finite() || *weight < 0.0;
    let mut violations: Violations = keys
        .zip(&weights)
        .filter(|(_, weight)| wrong(weight))
        .map(|(key, _)| (key, "must be a number that is not negative".into()))
        .collect();
    if violations.is_empty() && (weights.iter().sum::<f64>() == 0.0) {
        let text = if alone { "must be positive" } else { "must not all be 0" };
        violations.push(("data.weight".into(), text.into()));
    }
    violations
}

/// Opens a split for repeated reading. Errors: 65 for an empty split.
pub(crate) fn open_split(manifest: &Path, name: SplitName) -> Result<TrajectorySet> {
    let set = TrajectorySet::open(manifest, name, Verify::Sizes)?;
    if set.is_empty() {
        return Err(unix::Error::data(format!(
            "{}: the {name} split is empty; run ds-prep split again with a share for it",
            manifest.display()
        )));
    }
    set.read_often();
    Ok(set)
}

/// Data sets whose samples are numbered consecutively.
#[derive(Debug)]
pub struct Sources<T> {
    sets: Vec<(T, f64)>,
    /// Index of the first sample of each set, followed by the total number of samples.
    firsts: Vec<u64>,
}

impl<T> Sources<T> {
    /// Combines sets with weights. The first one determines shapes; `samples` returns the number of samples of a set.
    pub fn new(sets: Vec<(T, f64)>, samples: impl Fn(&T) -> u64) -> Self {
        let mut firsts = vec![0];
        for (set, _) in &sets {
            firsts.push(firsts[firsts.len() - 1] + samples(set));
        }
        Self { sets, firsts }
    }

    /// Returns the first set.
    pub fn first(&self) -> &T {
        &self.sets[0].0
    }

    /// Iterates over all sets.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.sets.iter().map(|(set, _)| set)
    }

    /// Total number of samples.
    pub fn samples(&self) -> u64 {
        self.firsts[self.sets.len()]
    }

    /// Number of samples and weight of each set, for [`data::loader::Mixture`].
    pub fn shares(&self) -> Vec<(u64, f64)> {
        let counts = self.firsts.windows(2).map(|ends| ends[1] - ends[0]);
        counts.zip(&self.sets).map(|(count, (_, weight))| (count, *weight)).collect()
    }

    /// Returns the set that contains a sample, and the sample's index within it. Panics if `sample` is out of range.
    pub fn find(&self, sample: u64) -> (&T, u64) {
        let number = self.firsts.partition_point(|first| *first <= sample) - 1;
        (&self.sets[number].0, sample - self.firsts[number])
    }
}

/// The data sets of a task that reads fields.
#[derive(Default)]
pub(crate) struct Fields {
    pub train: Vec<(TrajectorySet, f64)>,
    pub validation: Vec<(TrajectorySet, f64)>,
    /// Statistics of each data set, with its weight.
    pub stats: Vec<(Stats, f64)>,
    /// All files from which the data sets are read.
    pub input_files: Vec<InputFile>,
}

impl Fields {
    /// Opens all data sets. Errors: 66 or 65 for missing or damaged files; 65 when grid, channels or inputs differ from
    /// those of the first data set; 78 when a trajectory is in the training split of one data set and the validation
    /// split of another.
    pub fn open(split: &Path, stats: &Path, weight: f64, others: &[FieldSource]) -> Result<Self> {
        let first = FieldSource { split: split.into(), stats: stats.into(), weight };
        let mut all = Self::default();
        for source in std::iter::once(&first).chain(others) {
            let weight = source.weight;
            let train = open_split(&source.split, SplitName::Train)?;
            let validation = open_split(&source.split, SplitName::Validation)?;
            let (stats, stats_hash) = Stats::load(&source.stats, &train)?;
            all.input_files.extend(train.input_files());
            all.input_files.extend(validation.input_files());
            all.input_files.push(InputFile::read_at_start(&source.stats, &stats_hash));
            if let Some((first, _)) = all.train.first() {
                let kind = |set: &TrajectorySet| {
                    (set.shape().grid.clone(), set.channels().to_vec(), set.inputs())
                };
                if kind(first) != kind(&train) {
                    return Err(Error::data(format!(
                        "{}: fields have grid, channels and inputs {:?}, but those of {} have {:?}; \
                         all data sets must have the same",
                        source.split.display(),
                        kind(&train),
                        split.display(),
                        kind(first)
                    )));
                }
            }
            all.train.push((train, weight));
            all.validation.push((validation, weight));
            all.stats.push((stats, weight));
        }
        refuse_overlap([&all.train, &all.validation], |set, number| {
            (format!("{} of {}", set.name(), source_key(number, "split")), set.provenance())
        })?;
        Ok(all)
    }
}

/// Computes the normalisation of a range of channels of a mixture.
pub(crate) fn normalisation(mixture: &[(Stats, f64)], channels: Range<usize>) -> Normalisation {
    let moments = |(stats, weight): &(Stats, f64)| {
        let own = stats.channels.iter().skip(channels.start).take(channels.len());
        (own.map(|c| (c.mean, c.std)).collect(), *weight)
    };
    Normalisation::mixed(&mixture.iter().map(moments).collect::<Vec<_>>())
}

/// Returns the configuration key of a source; all sources but the first are in `data.additional`.
pub(crate) fn source_key(source: usize, key: &str) -> String {
    match source {
        0 => format!("data.{key}"),
        n => format!("data.additional[{}].{key}", n - 1),
    }
}

/// Refuses (78) training and validation data that share a trajectory. `named` returns the name of a source for
/// messages, given its number, and its trajectories.
pub(crate) fn refuse_overlap<T>(
    sources: [&[(T, f64)]; 2],
    named: impl Fn(&T, usize) -> (String, Vec<Provenance>),
) -> Result<()> {
    let all = |sources: &[(T, f64)]| -> Vec<_> {
        (0..).zip(sources).map(|(number, (source, _))| named(source, number)).collect()
    };
    let [train, validation] = sources.map(all);
    for (trained, ours) in &train {
        for (validated, theirs) in &validation {
            if let Some((file, sample)) = shared(ours, theirs) {
                return Err(Error::config(format!(
                    "{trained} and {validated} both contain trajectory {sample} of the data file with BLAKE3 \
                     {file}: a model must not be validated on what it is trained on; split all data at once"
                )));
            }
        }
    }
    Ok(())
}

/// Returns a violation unless the value is positive.
pub(crate) fn positive(key: &str, value: f64) -> Option<(String, String)> {
    (value.is_nan() || value <= 0.0).then(|| (key.into(), "must be a positive number".into()))
}

/// Returns a violation if the value is negative or NaN.
pub(crate) fn not_negative(key: &str, value: f64) -> Option<(String, String)> {
    (value.is_nan() || value < 0.0).then(|| (key.into(), "must not be negative".into()))
}

/// Returns the hash of the training data: the hashes of its sources, joined by `+`.
pub(crate) fn joined<'a>(hashes: impl Iterator<Item = &'a str>) -> String {
    hashes.collect::<Vec<_>>().join("+")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_found_in_their_sources() {
        let sources = Sources::new(vec![("a", 2.0), ("", 1.0), ("bcd", 0.5)], |s| s.len() as u64);
        assert_eq!(sources.samples(), 4);
        assert_eq!(sources.shares(), [(1, 2.0), (0, 1.0), (3, 0.5)]);
        let found: Vec<_> = (0..4).map(|sample| sources.find(sample)).collect();
        assert_eq!(found, [(&"a", 0), (&"bcd", 0), (&"bcd", 1), (&"bcd", 2)]);
    }

    #[test]
    fn weights_that_make_no_mixture_are_faults() {
        let keys = |first: f64, others: &[f64]| -> Vec<String> {
            weight_violations(first, others.iter().copied())
                .into_iter()
                .map(|(key, _)| key)
                .collect()
        };
        assert!(keys(1.0, &[]).is_empty() && keys(0.0, &[0.5]).is_empty());
        assert_eq!(keys(0.0, &[0.0]), ["data.weight"]);
        assert_eq!(keys(-1.0, &[1.0, f64::NAN]), ["data.weight", "data.additional[1].weight"]);
    }
}
