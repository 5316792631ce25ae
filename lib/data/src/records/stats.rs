//! Statistics of records, computed in one pass over the training split only and merged in order (Chan, Golub and
//! LeVeque 1979).

use super::{Description, RecordSet, Records, ValueShape};
use crate::fields::stats::{Moments, Statistics, StatsRecord};
use crate::seal::SealedFile;
use crate::split::Source;
use crate::split::SplitName;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::path::Path;
use unix::{Error, Result};

/// Number of records whose moments are computed at once, which bounds the memory.
const BLOCK: usize = 4096;

/// The content of `stats.json` for records.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordStats {
    /// BLAKE3 hash of the manifest that the statistics were computed from.
    pub split: String,
    /// Number of records in the training split.
    pub records: usize,
    /// Statistics of each input channel.
    pub input: Vec<Statistics>,
    /// Statistics of each target channel.
    pub target: Vec<Statistics>,
}

/// Computes the moments of each channel.
fn moments(values: &[f32], channels: usize) -> Vec<Moments> {
    let channel = |c: usize| values.iter().skip(c).step_by(channels).copied();
    (0..channels).map(|c| Moments::of(channel(c))).collect()
}

/// Returns one row for each channel of `name`.
fn rows(name: &'static str, channels: impl Iterator<Item = Statistics>) -> Vec<StatsRecord> {
    let row = |(i, statistics)| StatsRecord { of: format!("{name} {i}"), statistics };
    channels.enumerate().map(row).collect()
}

/// Computes one row for each channel of record `i` of a store. Errors (2): there is no such record.
pub fn of_record(store: &Records, i: usize) -> Result<Vec<StatsRecord>> {
    if i >= store.len() {
        let (store, count) = (store.path().display(), store.len());
        return Err(Error::usage(format!("{store}: no record {i}, there are {count} (from 0)")));
    }
    let Description { input, target, .. } = store.description();
    let of = |name, side: &ValueShape, values: &[f32]| {
        rows(name, moments(values, side.channels).iter().map(Moments::statistics))
    };
    Ok([of("input", input, store.input(i)), of("target", target, store.target(i))].concat())
}

const FILE: SealedFile = SealedFile {
    format: "longhaul-record-stats",
    version: 1,
    made_by: "ds-prep stats",
    max_bytes: 64 << 20,
};

impl RecordStats {
    /// Computes the statistics of the training split, reading all of it. Errors (65): the split is empty.
    pub fn of(set: &RecordSet) -> Result<Self> {
        if set.name() != SplitName::Train || set.is_empty() {
            return Err(Error::data(format!(
                "statistics are made from a training split with records; this is {} with {}",
                set.name(),
                set.len()
            )));
        }
        let [input, target] = set.sides().each_ref().map(|side| side.channels);
        let side = |read: for<'a> fn(&'a RecordSet, usize) -> &'a [f32], channels: usize| {
            let mut all = vec![Moments::default(); channels];
            for first in (0..set.len()).step_by(BLOCK) {
                let block = first..set.len().min(first + BLOCK);
                let of_record = |i: usize| moments(read(set, i), channels);
                let some: Vec<Vec<Moments>> = block.into_par_iter().map(of_record).collect();
                some.iter().for_each(|one| {
                    all.iter_mut().zip(one).for_each(|(all, one)| all.merge(one));
                });
            }
            all.iter().map(Moments::statistics).collect()
        };
        Ok(Self {
            split: set.manifest_hash().into(),
            records: set.len(),
            input: side(RecordSet::input, input),
            target: side(RecordSet::target, target),
        })
    }

    /// Reads the statistics of a training split; the second value is the BLAKE3 hash of the file.
    ///
    /// Errors: 66 when the file cannot be read; 65 when it was edited or damaged, or belongs to another manifest.
    pub fn load(path: &Path, train: &RecordSet) -> Result<(Self, String)> {
        let (stats, hash) = FILE.read::<Self>(path)?;
        let channels = [&stats.input, &stats.target].map(Vec::len);
        let expected = train.sides().each_ref().map(|side| side.channels);
        if stats.split != train.manifest_hash()
            || (stats.records, channels) != (train.len(), expected)
        {
            return Err(Error::data(format!(
                "{}: made from split {}, but split {} is in use; run `ds-prep stats` again",
                path.display(),
                stats.split,
                train.manifest_hash()
            )));
        }
        let sides = [("input", &stats.input), ("target", &stats.target)];
        for (name, side) in sides {
            for (i, channel) in side.iter().enumerate() {
                channel
                    .require_finite(&format!("{name}[{i}]"))
                    .map_err(|e| e.context(path.display()))?;
            }
        }
        Ok((stats, hash))
    }

    /// Returns one row for each channel.
    pub fn rows(&self) -> Vec<StatsRecord> {
        let sides = [("input", &self.input), ("target", &self.target)];
        sides.into_iter().flat_map(|(name, side)| rows(name, side.iter().copied())).collect()
    }

    /// Writes the statistics atomically.
    pub fn save(&self, path: &Path) -> Result<()> {
        FILE.write(path, self)
    }

    /// Returns the content of the file, including its seal.
    pub fn text(&self) -> Result<String> {
        FILE.text(self)
    }
}
