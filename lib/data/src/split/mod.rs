//! Training, validation and test splits: divides trajectories or records ([`divide`]), lists them in a manifest
//! ([`Split`]), reads those of one split ([`SplitSet`]), and reports problems ([`check`]).
//!
//! Samples are trajectories or records. They come from sources: files of trajectories, or stores of records.

pub mod check;
mod divide;
mod groups;
mod manifest;
mod set;

pub use divide::{DivideRequest, SameGroup, divide};
pub use manifest::{Divisible, Listed, Source, Split};
pub use set::SplitSet;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::str::FromStr;
use strum::Display;

/// The name of a split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ValueEnum, Display)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lower")]
#[strum(serialize_all = "lowercase")]
pub enum SplitName {
    /// Trains the model; the statistics for normalization are computed from it.
    Train,
    /// For model selection.
    Validation,
    /// For the final scores.
    Test,
}

impl SplitName {
    /// All splits.
    pub const ALL: [Self; 3] = [Self::Train, Self::Validation, Self::Test];
}

/// The part of every stratum that a split gets.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Share {
    /// Fraction of the records of a stratum, 0 to 1.
    Fraction(f64),
    /// Number of records of a stratum.
    Count(usize),
}

impl Share {
    /// Whether the split gets nothing.
    pub fn is_zero(self) -> bool {
        matches!(self, Self::Count(0) | Self::Fraction(0.0))
    }
}

impl FromStr for Share {
    type Err = String;
    /// Parses a percentage (`80%`) or a count.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is neither a percentage (80%) nor a count (200)");
        match text.strip_suffix('%') {
            Some(number) => {
                let percent: f64 = number.trim().parse().map_err(|_| wrong())?;
                let valid = (0.0..=100.0).contains(&percent);
                valid.then_some(Self::Fraction(percent / 100.0)).ok_or_else(wrong)
            }
            None => text.parse().map(Self::Count).map_err(|_| wrong()),
        }
    }
}

/// The unit that is divided among the splits.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum, Display,
)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lower")]
#[strum(serialize_all = "lowercase")]
pub enum By {
    /// Trajectories, every regime in the same proportions; or records.
    #[default]
    Trajectory,
    /// Regimes, by parameter value: the smallest for training, the largest for the test, which then tests
    /// extrapolation.
    Parameter,
    /// Files or record stores.
    File,
    /// Records in their order: the first ones for training, the last ones for the test.
    Index,
    /// Records in the order of torch.randperm with the same seed, whatever their groups and labels: the split of
    /// torch.utils.data.random_split with the same counts.
    Torch,
}

/// Which trajectories always share a split.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum, Display,
)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lower")]
#[strum(serialize_all = "lowercase")]
pub enum GroupBy {
    /// Those with the same initial state, or with the same input of a steady problem, under any parameters. Where the
    /// first frame is constant or not finite: those with identical values in all frames.
    #[default]
    State,
    /// Those with identical values in all frames.
    Content,
}

/// Samples of one source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SourceSamples {
    /// Index of the source.
    pub file: usize,
    /// Indices of the samples in the source.
    pub samples: Vec<usize>,
}

/// The folder of a manifest.
pub(crate) fn folder_of(manifest: &Path) -> &Path {
    manifest.parent().unwrap_or(Path::new(""))
}
