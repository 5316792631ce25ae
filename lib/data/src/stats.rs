//! Statistics of a data set, from its training split alone.
//!
//! Every trajectory is reduced by itself in f64 (mean first, then squares about it); the results are
//! merged in the order of the manifest (Chan, Golub and LeVeque 1979). So the numbers do not depend on
//! the number of threads.

use crate::parameter::Parameter;
use crate::split::SplitName;
use crate::split_set::TrajectorySet;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::path::Path;
use unix::publish::publish_bytes;
use unix::{Error, Result, small};

/// Moments and range of some numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Statistics {
    /// How many numbers.
    pub count: u64,
    /// Their mean.
    pub mean: f64,
    /// Standard deviation of the population.
    pub std: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
    /// Root of the mean square: the scale of relative errors.
    pub rms: f64,
}

/// The statistics of one parameter value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RegimeStatistics {
    /// The regime.
    pub parameter: Parameter,
    /// Over all its training trajectories and channels.
    pub statistics: Statistics,
}

/// A line of a table of statistics.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StatsRecord {
    /// `all`, `channel 0`, `nu=0.001`, …
    pub of: String,
    /// Of these numbers.
    #[serde(flatten)]
    pub statistics: Statistics,
}

/// The file `stats.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// `longhaul-stats`.
    pub format: String,
    /// Version of the format, 1.
    pub version: u32,
    /// BLAKE3 of the split manifest they were made from.
    pub split: String,
    /// Trajectories of the training split.
    pub trajectories: usize,
    /// Over everything.
    pub overall: Statistics,
    /// One for each channel.
    pub channels: Vec<Statistics>,
    /// One for each parameter value, in the order of the manifest.
    pub regimes: Vec<RegimeStatistics>,
}

const FORMAT: &str = "longhaul-stats";
const VERSION: u32 = 1;
/// Largest file, in bytes.
const MAX_BYTES: u64 = 64 << 20;

impl Stats {
    /// Reads the whole training split.
    ///
    /// Errors: 65 when it is empty or holds numbers that are not finite.
    pub fn of(set: &TrajectorySet) -> Result<Self> {
        if set.name() != SplitName::Train || set.is_empty() {
            return Err(Error::data(format!(
                "statistics are made from a training split with trajectories; this is {} with {}",
                set.name(),
                set.len()
            )));
        }
        let channels = set.shape().channels;
        let moments: Vec<Vec<Moments>> = (0..set.len())
            .into_par_iter()
            .map_init(
                || vec![0.0; set.shape().trajectory_len()],
                |values, i| {
                    set.read(i, values)?;
                    (0..channels).map(|channel| moments_of(set, i, values, channel)).collect()
                },
            )
            .collect::<Result<_>>()?;
        let mut of_channel = vec![Moments::default(); channels];
        let mut regimes: Vec<(&Parameter, Moments)> = Vec::new();
        for (i, of_trajectory) in moments.iter().enumerate() {
            let parameter = set.entry(i).parameter;
            let known = regimes.iter().position(|(p, _)| p.is_same_regime(parameter));
            let at = known.unwrap_or_else(|| {
                regimes.push((parameter, Moments::default()));
                regimes.len() - 1
            });
            for (all, one) in of_channel.iter_mut().zip(of_trajectory) {
                all.merge(one);
                regimes[at].1.merge(one);
            }
        }
        let mut overall = Moments::default();
        of_channel.iter().for_each(|channel| overall.merge(channel));
        Ok(Self {
            format: FORMAT.into(),
            version: VERSION,
            split: set.manifest_hash().into(),
            trajectories: set.len(),
            overall: overall.statistics(),
            channels: of_channel.iter().map(Moments::statistics).collect(),
            regimes: regimes
                .into_iter()
                .map(|(parameter, moments)| RegimeStatistics {
                    parameter: parameter.clone(),
                    statistics: moments.statistics(),
                })
                .collect(),
        })
    }

    /// Reads statistics and compares them with the manifest in use, given by its BLAKE3.
    ///
    /// Errors: 66 when the file cannot be read, 65 when it is none or belongs to another manifest.
    pub fn load(path: &Path, manifest_hash: &str) -> Result<Self> {
        let bytes = small::read(path, MAX_BYTES)?;
        let bad = |what: String| Error::data(format!("{}: {what}", path.display()));
        let stats: Self = serde_json::from_slice(&bytes)
            .map_err(|cause| bad(format!("no statistics: {cause}")))?;
        if stats.format != FORMAT || stats.version != VERSION {
            return Err(bad(format!("format `{}` version {}", stats.format, stats.version)));
        }
        if stats.split != manifest_hash {
            return Err(bad(format!(
                "made from split {}, in use is {manifest_hash}; run `ds-prep stats` again",
                stats.split
            )));
        }
        Ok(stats)
    }

    /// One record for everything, each channel and each regime.
    pub fn records(&self) -> Vec<StatsRecord> {
        let record = |of: String, statistics| StatsRecord { of, statistics };
        let channels = self.channels.iter().enumerate();
        let regimes = self.regimes.iter();
        std::iter::once(record("all".into(), self.overall))
            .chain(channels.map(|(i, &statistics)| record(format!("channel {i}"), statistics)))
            .chain(regimes.map(|regime| record(regime.parameter.to_string(), regime.statistics)))
            .collect()
    }

    /// Publishes the statistics.
    pub fn save(&self, path: &Path) -> Result<()> {
        let mut text = serde_json::to_string_pretty(self).map_err(Error::bug)?;
        text.push('\n');
        publish_bytes(path, text.as_bytes())
    }
}

impl Statistics {
    /// Statistics of some numbers; `None` when there are none.
    pub fn of(values: &[f32]) -> Option<Self> {
        (!values.is_empty()).then(|| Moments::of(values.iter().copied()).statistics())
    }
}

fn moments_of(set: &TrajectorySet, i: usize, values: &[f32], channel: usize) -> Result<Moments> {
    let of_channel = values.iter().skip(channel).step_by(set.shape().channels).copied();
    let moments = Moments::of(of_channel);
    if moments.m2.is_finite() {
        return Ok(moments);
    }
    let entry = set.entry(i);
    Err(Error::data(format!(
        "{}: trajectory {} holds numbers that are not finite; see `ds-prep check`",
        entry.file.display(),
        entry.sample
    )))
}

/// Count, mean, sum of squares about the mean, and range.
#[derive(Clone, Copy, Debug)]
struct Moments {
    count: u64,
    mean: f64,
    m2: f64,
    min: f64,
    max: f64,
}

impl Default for Moments {
    fn default() -> Self {
        Self { count: 0, mean: 0.0, m2: 0.0, min: f64::INFINITY, max: f64::NEG_INFINITY }
    }
}

impl Moments {
    fn of(values: impl Iterator<Item = f32> + Clone) -> Self {
        let mut all = Self::default();
        let mut sum = 0.0;
        for value in values.clone().map(f64::from) {
            all.count += 1;
            sum += value;
            all.min = all.min.min(value);
            all.max = all.max.max(value);
        }
        all.mean = if all.count > 0 { sum / all.count as f64 } else { 0.0 };
        all.m2 = values.map(|value| (f64::from(value) - all.mean).powi(2)).sum();
        all
    }

    fn merge(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        let (a, b) = (self.count as f64, other.count as f64);
        let delta = other.mean - self.mean;
        self.mean += delta * b / (a + b);
        self.m2 += other.m2 + delta * delta * a * b / (a + b);
        self.count += other.count;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    fn statistics(&self) -> Statistics {
        let variance = self.m2 / self.count as f64;
        Statistics {
            count: self.count,
            mean: self.mean,
            std: variance.sqrt(),
            min: self.min,
            max: self.max,
            rms: (variance + self.mean * self.mean).sqrt(),
        }
    }
}
