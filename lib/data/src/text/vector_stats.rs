//! Statistics of the vectors of a split, by dimension.

use super::TextSet;
use crate::fields::stats::{Moments, Statistics, StatsRecord};
use crate::seal::SealedFile;
use crate::split::SplitName;
use serde::{Deserialize, Serialize};
use std::path::Path;
use unix::{Error, Result};

/// Mean and deviation of the vectors of a split.
#[derive(Clone, Debug, PartialEq)]
pub struct VectorStatistics {
    /// Number of vectors.
    pub count: u64,
    /// Mean of each dimension.
    pub mean: Vec<f64>,
    /// Population standard deviation of each dimension; 0 where it is constant.
    pub deviation: Vec<f64>,
}

impl VectorStatistics {
    /// Merges the moments of parts of the vectors, by dimension, in order. None without moments.
    pub(super) fn merged<'a>(parts: impl Iterator<Item = &'a [Moments]>) -> Option<Self> {
        let mut all: Vec<Moments> = Vec::new();
        for part in parts {
            all.resize(part.len(), Moments::default());
            all.iter_mut().zip(part).for_each(|(all, one)| all.merge(one));
        }
        let count = all.first()?.count;
        let (mean, deviation) =
            all.iter().map(Moments::statistics).map(|one| (one.mean, one.std)).unzip();
        Some(Self { count, mean, deviation })
    }
}

/// Returns the moments of each dimension of some vectors of length `length`, one after the other.
pub(super) fn moments(values: &[f32], length: usize) -> Vec<Moments> {
    let of = |d: usize| Moments::of(values.iter().skip(d).step_by(length).copied());
    (0..length).map(of).collect()
}

/// The content of `stats.json` for texts with vectors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VectorStats {
    /// BLAKE3 hash of the manifest that the statistics were computed from.
    pub split: String,
    /// Number of records in the training split.
    pub records: usize,
    /// Statistics of each dimension.
    pub vector: Vec<Statistics>,
}

/// Number of vectors whose moments are computed at once, which bounds the memory.
const BLOCK: usize = 4096;

const FILE: SealedFile = SealedFile {
    format: "longhaul-vector-stats",
    version: 1,
    made_by: "ds-prep stats",
    max_bytes: 256 << 20,
};

impl VectorStats {
    /// Computes the statistics of the training split, reading all of it. Errors (65): the split is empty or has no
    /// vectors.
    pub fn of(set: &TextSet) -> Result<Self> {
        let length = set.content().vector;
        if set.name() != SplitName::Train || set.is_empty() || length == 0 {
            return Err(Error::data(format!(
                "statistics are made from a training split with vectors; this is {} with {} records",
                set.name(),
                set.len()
            )));
        }
        let mut all = vec![Moments::default(); length];
        for first in (0..set.len()).step_by(BLOCK) {
            let block = first..set.len().min(first + BLOCK);
            let values: Vec<f32> = block
                .flat_map(|i| {
                    let (store, record) = set.locate(i);
                    store.vector(record).unwrap_or_default()
                })
                .copied()
                .collect();
            all.iter_mut().zip(moments(&values, length)).for_each(|(all, one)| all.merge(&one));
        }
        Ok(Self {
            split: set.manifest_hash().into(),
            records: set.len(),
            vector: all.iter().map(Moments::statistics).collect(),
        })
    }

    /// Returns one row for each dimension.
    pub fn rows(&self) -> Vec<StatsRecord> {
        let row = |(d, one): (usize, &Statistics)| StatsRecord {
            of: format!("vector {d}"),
            statistics: *one,
        };
        self.vector.iter().enumerate().map(row).collect()
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
