//! Statistics of a data set, from its training split alone.
//!
//! One pass: every trajectory is reduced by itself, block of frames by block, in f64 (mean first, then
//! squares about it), and blocks and trajectories are merged in their order (Chan, Golub and LeVeque
//! 1979). So the numbers do not depend on the number of threads, nor memory on the size of the data.

use crate::fields::moments::{Moments, moments_of};
use crate::fields::parameter::Parameter;
use crate::fields::split::SplitName;
use crate::fields::split_set::TrajectorySet;
use crate::seal::SealedFile;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::Path;
use unix::{Error, Result};

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
    /// `all`, `channel u`, `nu=0.001`, …
    pub of: String,
    /// Of these numbers.
    #[serde(flatten)]
    pub statistics: Statistics,
}

/// The file `stats.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// BLAKE3 of the split manifest they were made from.
    pub split: String,
    /// BLAKE3 of the data files of the manifest, in its order.
    pub files: Vec<String>,
    /// Trajectories of the training split.
    pub trajectories: usize,
    /// Over everything.
    pub overall: Statistics,
    /// One for each channel.
    pub channels: Vec<Statistics>,
    /// Names of the channels.
    #[serde(default)]
    pub channel_names: Vec<String>,
    /// One for each parameter value, in the order of the manifest.
    pub regimes: Vec<RegimeStatistics>,
}

const FILE: SealedFile = SealedFile {
    format: "longhaul-stats",
    version: 1,
    made_by: "ds-prep stats",
    max_bytes: 64 << 20,
};

impl Stats {
    /// Reads the whole training split.
    ///
    /// Errors: 65 when it is empty, has numbers that are not finite, or has a constant channel.
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
            .map_init(|| vec![0.0; set.shape().block_len()], |room, i| moments_in(set, i, room))
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
        let stats = Self {
            split: set.manifest_hash().into(),
            files: set.file_hashes().to_vec(),
            trajectories: set.len(),
            overall: overall.statistics(),
            channels: of_channel.iter().map(Moments::statistics).collect(),
            channel_names: set.channels().to_vec(),
            regimes: regimes
                .into_iter()
                .map(|(parameter, moments)| RegimeStatistics {
                    parameter: parameter.clone(),
                    statistics: moments.statistics(),
                })
                .collect(),
        };
        stats.require_consistent(set)?;
        Ok(stats)
    }

    /// Reads the statistics of a training split; the second value is the BLAKE3 of the file.
    ///
    /// Errors: 66 when the file cannot be read; 65 when it was edited or damaged, belongs to another
    /// manifest or other data files, or has counts or deviations that cannot be those of the split.
    pub fn load(path: &Path, train: &TrajectorySet) -> Result<(Self, String)> {
        let (stats, hash) = FILE.read::<Self>(path)?;
        if stats.split != train.manifest_hash() || stats.files != train.file_hashes() {
            return Err(Error::data(format!(
                "{}: made from split {}, in use is {}; run `ds-prep stats` again",
                path.display(),
                stats.split,
                train.manifest_hash()
            )));
        }
        stats.require_consistent(train).map_err(|error| error.context(path.display()))?;
        Ok((stats, hash))
    }

    /// Errors (65), with the key: counts that are not those of the split, and deviations by which nothing can be
    /// normalised.
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

    /// One record for everything, each channel and each regime.
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

    /// Publishes the statistics.
    pub fn save(&self, path: &Path) -> Result<()> {
        FILE.write(path, self)
    }

    /// The statistics as they are in a file, sealed.
    pub fn text(&self) -> Result<String> {
        FILE.text(self)
    }
}

impl Statistics {
    /// Statistics of some numbers; `None` when there are none.
    pub fn of(values: &[f32]) -> Option<Self> {
        (!values.is_empty()).then(|| Moments::of(values.iter().copied()).statistics())
    }

    /// Errors (65), with the key: a number that is not finite, or a negative deviation.
    fn require_finite(&self, key: &str) -> Result<()> {
        let Self { mean, std, min, max, rms, .. } = *self;
        let named = [("mean", mean), ("std", std), ("min", min), ("max", max), ("rms", rms)];
        match named.into_iter().find(|(_, value)| !value.is_finite()) {
            Some((name, value)) => Err(Error::data(format!("{key}.{name} is {value}, not finite"))),
            None if std < 0.0 => Err(Error::data(format!("{key}.std is {std}, below 0"))),
            None => Ok(()),
        }
    }
}

/// As [`moments_of`], of trajectory `i` of a set. Errors (65): a number is not finite.
fn moments_in(set: &TrajectorySet, i: usize, room: &mut [f32]) -> Result<Vec<Moments>> {
    let read = |frames: Range<usize>, values: &mut [f32]| set.read_frames(i, frames, values);
    let moments = moments_of(set.shape(), room, read)?;
    if moments.iter().all(|channel| channel.m2.is_finite()) {
        return Ok(moments);
    }
    let entry = set.entry(i);
    Err(Error::data(format!(
        "{}: trajectory {} holds numbers that are not finite; see `ds-prep check`",
        entry.file.display(),
        entry.sample
    )))
}
