//! Statistics of a data set, from its training split alone.
//!
//! One pass: every trajectory is reduced by itself, block of frames by block, in f64 (mean first, then
//! squares about it), and blocks and trajectories are merged in their order (Chan, Golub and LeVeque
//! 1979). So the numbers do not depend on the number of threads, nor memory on the size of the data.

use crate::moments::{Moments, moments_of};
use crate::parameter::Parameter;
use crate::split::SplitName;
use crate::split_set::TrajectorySet;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::ops::Range;
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
    /// `all`, `channel u`, `nu=0.001`, …
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
    /// Names of the channels.
    #[serde(default)]
    pub channel_names: Vec<String>,
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
        Ok(Self {
            format: FORMAT.into(),
            version: VERSION,
            split: set.manifest_hash().into(),
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
        publish_bytes(path, self.text()?.as_bytes())
    }

    /// The statistics as they are in a file.
    pub fn text(&self) -> Result<String> {
        let mut text = serde_json::to_string_pretty(self).map_err(Error::bug)?;
        text.push('\n');
        Ok(text)
    }
}

impl Statistics {
    /// Statistics of some numbers; `None` when there are none.
    pub fn of(values: &[f32]) -> Option<Self> {
        (!values.is_empty()).then(|| Moments::of(values.iter().copied()).statistics())
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
