//! Split manifests: which trajectory of which file is used for training, validation and test.
//!
//! Every trajectory carries its provenance: path and content of the file, index in the file, regime.
//! [`crate::fields::divide`] makes manifests.

use crate::fields::check::Kind;
use crate::fields::check::manifest::{error, in_itself};
use crate::fields::field::{Shape, grouped};
use crate::fields::parameter::Parameter;
use crate::seal::SealedFile;
pub use crate::split::{By, Part, SplitName};
use crate::split::{Share, folder_of, missed_shares};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use strum::Display;
use unix::Result;

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

/// The manifest, the content of `split.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Split {
    /// Seed of the random assignment.
    #[serde(with = "unix::decimal")]
    pub seed: u64,
    /// What was divided.
    pub by: By,
    /// Which trajectories were kept together.
    pub group_by: GroupBy,
    /// The requested shares of train, validation and test.
    pub shares: [Share; 3],
    /// Frames per trajectory.
    pub frames: usize,
    /// Points along each spatial axis.
    pub grid: Vec<usize>,
    /// Values per point.
    pub channels: usize,
    /// Names of the channels, inputs first.
    pub channel_names: Vec<String>,
    /// How many of the channels are inputs, given and not predicted.
    pub inputs: usize,
    /// The files; parts refer to them by index.
    pub files: Vec<Source>,
    /// Trajectories for training, ascending within each file.
    pub train: Vec<Part>,
    /// Trajectories for validation.
    pub validation: Vec<Part>,
    /// Trajectories for the test.
    pub test: Vec<Part>,
}

/// A file of a manifest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Source {
    /// Path, relative to the manifest's folder if possible.
    pub path: PathBuf,
    /// Size in bytes.
    pub bytes: u64,
    /// BLAKE3 hash of the file.
    pub blake3: String,
    /// Trajectories in the file, used or not.
    pub trajectories: usize,
    /// Its regime.
    pub parameter: Parameter,
}

/// The size limit suffices for about eight million trajectories.
const FILE: SealedFile = SealedFile {
    format: "longhaul-split",
    version: 1,
    made_by: "ds-prep split",
    max_bytes: 64 << 20,
};

impl Split {
    /// Reads a manifest; the second value is the BLAKE3 hash of its bytes, which identifies it.
    ///
    /// Errors: 66 when it cannot be read; 65 when it is not a manifest, was edited or is inconsistent.
    pub fn load(path: &Path) -> Result<(Self, String)> {
        Self::load_allowing(path, None)
    }

    /// Like [`load`](Self::load), but ignores one kind of violation.
    pub(crate) fn load_allowing(path: &Path, allowed: Option<Kind>) -> Result<(Self, String)> {
        let (split, hash) = Self::parse(path)?;
        let mut violations = in_itself(&split, path);
        violations.retain(|violation| Some(violation.kind) != allowed);
        match error(&violations) {
            None => Ok((split, hash)),
            Some(error) => Err(error.context(path.display())),
        }
    }

    /// Reads a manifest without checking its consistency. Errors otherwise as [`load`](Self::load).
    pub(crate) fn parse(path: &Path) -> Result<(Self, String)> {
        FILE.read(path)
    }

    /// Every listed trajectory: split, index of the file, index in the file.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (SplitName, usize, usize)> {
        SplitName::ALL.into_iter().flat_map(move |name| {
            self.parts(name).iter().flat_map(move |part| {
                part.samples.iter().map(move |&sample| (name, part.file, sample))
            })
        })
    }

    /// Writes the manifest atomically.
    pub fn save(&self, path: &Path) -> Result<()> {
        FILE.write(path, self)
    }

    /// The content of the manifest file, including its seal.
    pub fn text(&self) -> Result<String> {
        FILE.text(self)
    }

    /// The trajectories of one split.
    pub fn parts(&self, name: SplitName) -> &[Part] {
        match name {
            SplitName::Train => &self.train,
            SplitName::Validation => &self.validation,
            SplitName::Test => &self.test,
        }
    }

    /// The shape of the trajectories; their number is that of one split.
    pub fn shape(&self, name: SplitName) -> Shape {
        Shape {
            trajectories: self.parts(name).iter().map(|part| part.samples.len()).sum(),
            frames: self.frames,
            grid: self.grid.clone(),
            channels: self.channels,
        }
    }

    /// Which splits miss their share of the trajectories by far, see [`missed_shares`]; numbers of trajectories are met exactly.
    pub fn missed_shares(&self) -> Vec<String> {
        if self.by != By::Trajectory {
            return Vec::new();
        }
        let placed = SplitName::ALL.map(|name| self.shape(name).trajectories);
        let all: usize = self.files.iter().map(|source| source.trajectories).sum();
        let wanted = self.shares.map(|share| match share {
            Share::Fraction(part) if part > 0.0 => Some((part * all as f64).round() as usize),
            _ => None,
        });
        let because = match self.group_by {
            GroupBy::State => {
                "trajectories that begin alike stay together, and some of these groups are large"
            }
            GroupBy::Content => "copies stay together, and some groups of them are large",
        };
        missed_shares(placed, wanted, "trajectories", because)
    }

    /// The path of file `number`, for a manifest at `manifest`.
    pub fn file_path(&self, number: usize, manifest: &Path) -> PathBuf {
        folder_of(manifest).join(&self.files[number].path)
    }
}

/// The files of each regime, in order of first appearance.
pub(crate) fn regimes(files: &[Source]) -> Vec<Vec<usize>> {
    let parameters = files.iter().map(|source| Some(source.parameter.clone()));
    grouped(parameters.enumerate()).into_iter().map(|regime| regime.samples).collect()
}
