//! Statistics of a data set, computed from its training split only.
//!
//! The data are read in a single pass: each trajectory is reduced separately, in blocks of frames, in f64 (first the
//! mean, then the squared deviations from it), and blocks and trajectories are merged in order (Chan, Golub and LeVeque
//! 1979). The result does not depend on the number of threads, and memory use does not depend on the size of the data.

use crate::fields::field::{Regime, Shape, grouped};
use crate::fields::parameter::Parameter;
use crate::fields::split::SplitName;
use crate::fields::split_set::TrajectorySet;
use crate::seal::SealedFile;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::Path;
use unix::{Error, Result};

/// Moments and range of a set of values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Statistics {
    /// Number of values.
    pub count: u64,
    /// Mean.
    pub mean: f64,
    /// Population standard deviation.
    pub std: f64,
    /// Minimum.
    pub min: f64,
    /// Maximum.
    pub max: f64,
    /// Root mean square: the scale of relative errors.
    pub rms: f64,
}

/// The statistics of one regime.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RegimeStatistics {
    /// The regime.
    pub parameter: Parameter,
    /// Statistics over all training trajectories and channels of the regime.
    pub statistics: Statistics,
}

/// A row of the statistics table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StatsRecord {
    /// Subject of the row: `all`, `channel u`, `nu=0.001`, …
    pub of: String,
    /// Statistics of the subject.
    #[serde(flatten)]
    pub statistics: Statistics,
}

/// Contents of the file `stats.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// BLAKE3 hash of the split manifest from which the statistics were computed.
    pub split: String,
    /// BLAKE3 hashes of the manifest's data files, in manifest order.
    pub files: Vec<String>,
    /// Number of trajectories in the training split.
    pub trajectories: usize,
    /// Statistics over all trajectories and channels.
    pub overall: Statistics,
    /// Statistics of each channel.
    pub channels: Vec<Statistics>,
    /// Names of the channels.
    #[serde(default)]
    pub channel_names: Vec<String>,
    /// Statistics of each regime, in manifest order.
    pub regimes: Vec<RegimeStatistics>,
}

const FILE: SealedFile = SealedFile {
    format: "longhaul-stats",
    version: 1,
    made_by: "ds-prep stats",
    max_bytes: 64 << 20,
};

impl Stats {
    /// Computes the statistics of the whole training split.
    ///
    /// Errors: 65 when the split is empty, has non-finite values, or has a constant channel.
    pub fn of(set: &TrajectorySet) -> Result<Self> {
        if set.name() != SplitName::Train || set.is_empty() {
            return Err(Error::data(format!(
                "statistics are made from a training split with trajectories; this is {} with {}",
                set.name(),
                set.len()
            )));
        }
        let channels = set.shape().channels;
        let moments = moments_of(set.shape(), |i, frames, out| set.read_frames(i, frames, out))?;
        let not_finite = |of: &Vec<Moments>| of.iter().any(|channel| !channel.m2.is_finite());
        if let Some(i) = moments.iter().position(not_finite) {
            let entry = set.entry(i);
            return Err(Error::data(format!(
                "{}: trajectory {} has values that are not finite; see `ds-prep check`",
                entry.file.display(),
                entry.sample
            )));
        }
        let mut of_channel = vec![Moments::default(); channels];
        for of_trajectory in &moments {
            of_channel.iter_mut().zip(of_trajectory).for_each(|(all, one)| all.merge(one));
        }
        let parameters = (0..set.len()).map(|i| Some(set.entry(i).parameter.clone()));
        let of_regime = |Regime { parameter, samples }| {
            let mut all = Moments::default();
            samples.iter().flat_map(|i: &usize| &moments[*i]).for_each(|one| all.merge(one));
            Some(RegimeStatistics { parameter: parameter?, statistics: all.statistics() })
        };
        let mut overall = Moments::default();
        of_channel.iter().for_each(|channel| overall.merge(channel));
        let stats = Self {
            split: set.manifest_hash().into(),
            files: set.file_hashes(),
            trajectories: set.len(),
            overall: overall.statistics(),
            channels: of_channel.iter().map(Moments::statistics).collect(),
            channel_names: set.channels().to_vec(),
            regimes: grouped(parameters.enumerate()).into_iter().filter_map(of_regime).collect(),
        };
        stats.require_consistent(set)?;
        Ok(stats)
    }

    /// Loads the statistics of the training split `train`; the second value is the BLAKE3 hash of the file.
    ///
    /// Errors: 66 when the file cannot be read; 65 when it was edited or damaged, belongs to a different manifest or
    /// different data files, or has counts or deviations that do not fit the split.
    pub fn load(path: &Path, train: &TrajectorySet) -> Result<(Self, String)> {
        let (stats, hash) = FILE.read::<Self>(path)?;
        if stats.split != train.manifest_hash() || stats.files != train.file_hashes() {
            return Err(Error::data(format!(
                "{}: made from split {}, but split {} is in use; run `ds-prep stats` again",
                path.display(),
                stats.split,
                train.manifest_hash()
            )));
        }
        stats.require_consistent(train).map_err(|error| error.context(path.display()))?;
        Ok((stats, hash))
    }

    /// Checks the statistics against the training split. Errors: 65, naming the key, for counts that differ from the
    /// split, non-finite values, and channels with a standard deviation of 0.
    fn require_consistent(&self, train: &TrajectorySet) -> Result<()> {
        let shape = train.shape();
        let in_channel = (shape.trajectory_len() / shape.channels * train.len()) as u64;
        let in_all = in_channel * shape.channels as u64;
        let equal = |key: &str, found: u64, expected: u64| match found == expected {
            true => Ok(()),
            false => Err(Error::data(format!(
                "{key} is {found}, the training split has {expected}; run `ds-prep stats` again"
            ))),
        };
        equal("trajectories", self.trajectories as u64, train.len() as u64)?;
        equal("the number of channels", self.channels.len() as u64, shape.channels as u64)?;
        equal("overall.count", self.overall.count, in_all)?;
        self.overall.require_finite("overall")?;
        for (i, channel) in self.channels.iter().enumerate() {
            equal(&format!("channels[{i}].count"), channel.count, in_channel)?;
            channel.require_finite(&format!("channels[{i}]"))?;
            if channel.std == 0.0 {
                let name = self.channel_names.get(i).map_or("", String::as_str);
                return Err(Error::data(format!(
                    "channels[{i}].std (channel {name}) is 0: the channel is constant in the training split and \
                     cannot be normalised; leave it out of the data, or split so that it varies"
                )));
            }
        }
        let counts = self.regimes.iter().map(|regime| regime.statistics.count);
        equal("the sum of regimes[..].count", counts.sum(), in_all)?;
        let mut regimes = self.regimes.iter().enumerate();
        regimes.try_for_each(|(i, r)| r.statistics.require_finite(&format!("regimes[{i}]")))
    }

    /// Returns one record for all data, then one for each channel and each regime.
    pub fn records(&self) -> Vec<StatsRecord> {
        let record = |of: String, statistics| StatsRecord { of, statistics };
        let name = |i: usize| self.channel_names.get(i).cloned().unwrap_or_else(|| i.to_string());
        let channels = self.channels.iter().enumerate().map(|(i, channel)| (name(i), channel));
        let regimes = self.regimes.iter();
        std::iter::once(record("all".into(), self.overall))
            .chain(channels.map(|(name, &channel)| record(format!("channel {name}"), channel)))
            .chain(regimes.map(|regime| record(regime.parameter.to_string(), regime.statistics)))
            .collect()
    }

    /// Writes the statistics atomically.
    pub fn save(&self, path: &Path) -> Result<()> {
        FILE.write(path, self)
    }

    /// The content of the statistics file, including its seal.
    pub fn text(&self) -> Result<String> {
        FILE.text(self)
    }
}

/// Computes the root mean square of a split's state channels (without inputs) over all trajectories and frames; NaN for
/// an empty split. Calls `check` before reading each block of frames, and stops if it returns an error.
pub fn rms(set: &TrajectorySet, check: impl Fn() -> Result<()> + Sync) -> Result<f64> {
    let moments = moments_of(set.shape(), |i, frames, out| {
        check()?;
        set.read_frames(i, frames, out)
    })?;
    let mut all = Moments::default();
    moments.iter().flat_map(|channels| &channels[set.inputs()..]).for_each(|one| all.merge(one));
    Ok(all.statistics().rms)
}

impl Statistics {
    /// Checks that all values are finite. Errors: 65, naming the key, for a non-finite value or a negative standard
    /// deviation.
    pub(crate) fn require_finite(&self, key: &str) -> Result<()> {
        let Self { mean, std, min, max, rms, .. } = *self;
        let named = [("mean", mean), ("std", std), ("min", min), ("max", max), ("rms", rms)];
        match named.into_iter().find(|(_, value)| !value.is_finite()) {
            Some((name, value)) => Err(Error::data(format!("{key}.{name} is {value}, not finite"))),
            None if std < 0.0 => Err(Error::data(format!("{key}.std is {std}, below 0"))),
            None => Ok(()),
        }
    }
}

/// Accumulated count, mean, sum of squared deviations from the mean, and range.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Moments {
    pub count: u64,
    mean: f64,
    pub m2: f64,
    min: f64,
    max: f64,
}

impl Default for Moments {
    fn default() -> Self {
        Self { count: 0, mean: 0.0, m2: 0.0, min: f64::INFINITY, max: f64::NEG_INFINITY }
    }
}

impl Moments {
    pub fn of(values: impl Iterator<Item = f32> + Clone) -> Self {
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

    pub fn merge(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        if self.count == 0 {
            return *self = *other;
        }
        let (a, b) = (self.count as f64, other.count as f64);
        let delta = other.mean - self.mean;
        self.mean += delta * b / (a + b);
        self.m2 += other.m2 + delta * delta * a * b / (a + b);
        self.count += other.count;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    pub fn statistics(&self) -> Statistics {
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

/// Computes the moments of each trajectory, per channel; `read` reads frames of one trajectory.
fn moments_of(
    shape: &Shape,
    read: impl Fn(usize, Range<usize>, &mut [f32]) -> Result<()> + Sync,
) -> Result<Vec<Vec<Moments>>> {
    let of_trajectory = |buffer: &mut Vec<f32>, i: usize| {
        let mut moments = vec![Moments::default(); shape.channels];
        for frames in shape.frame_blocks() {
            let values = &mut buffer[..frames.len() * shape.frame_len()];
            read(i, frames, values)?;
            for (channel, moments) in moments.iter_mut().enumerate() {
                let of_channel = values.iter().skip(channel).step_by(shape.channels);
                moments.merge(&Moments::of(of_channel.copied()));
            }
        }
        Ok(moments)
    };
    let all = (0..shape.trajectories).into_par_iter();
    all.map_init(|| vec![0.0; shape.block_len()], of_trajectory).collect()
}
