//! Problems of files, stores and manifests. A check reports all of them instead of stopping at the first.

use super::SplitName;
use serde::Serialize;
use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::path::{Path, PathBuf};
use unix::{Error, Exit};

/// Maximum number of problems quoted in one error.
const MAX_QUOTED: usize = 10;

/// The kinds of problems.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProblemKind {
    /// The file does not exist or cannot be opened.
    Missing,
    /// The file has no supported layout, or is truncated.
    Unreadable,
    /// The file's content differs from the content that the manifest was made from.
    Changed,
    /// The manifest and the file disagree.
    Mismatch,
    /// The manifest is inconsistent.
    Manifest,
    /// The file has no trajectories, or a split has no samples.
    Empty,
    /// The parameter is missing or not finite.
    Parameter,
    /// Coordinates are missing, too few or too many, not ascending, or differ between trajectories.
    Coordinates,
    /// The coordinates fit a different order of the axes than the assumed one.
    AxisOrder,
    /// A value is NaN or infinite.
    NotFinite,
    /// All values of a trajectory are equal.
    Constant,
    /// A value exceeds the limit.
    TooLarge,
    /// The splits list a sample twice.
    Overlap,
    /// Two trajectories have the same content.
    Duplicate,
    /// A frame of one split also occurs in a trajectory of another.
    SharedFrame,
    /// Two splits have trajectories with almost the same initial state or input, or texts that are nearly equal.
    NearDuplicate,
    /// Two splits have trajectories with the same initial state or input.
    SameInitialState,
    /// A store is missing, incomplete or damaged, or not the one that was divided.
    Store,
    /// A text is empty.
    EmptyText,
    /// A label is not one of the classes.
    Label,
    /// Records of one group are in two splits.
    Group,
    /// Two splits have records with the same input.
    SameInput,
    /// Two splits have records with the same vector.
    SameVector,
}

/// Position of a problem in a file or store, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum ProblemPlace {
    /// In a file of trajectories; `index` counts the values of the frame over points and channels.
    #[allow(missing_docs)]
    Field { trajectory: Option<usize>, frame: Option<usize>, index: Option<usize> },
    /// In a file that records came from, or in a store.
    #[allow(missing_docs)]
    Store { record: Option<usize> },
}

/// A problem and its position.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Problem {
    /// The kind of problem.
    pub kind: ProblemKind,
    /// The file or store.
    pub file: PathBuf,
    /// Position in the file or store.
    #[serde(flatten)]
    pub place: ProblemPlace,
    /// The problem as a message.
    pub message: String,
}

impl Problem {
    /// Creates a problem of a file of trajectories, or of one of its trajectories.
    pub fn new(
        kind: ProblemKind,
        file: &Path,
        trajectory: Option<usize>,
        message: impl ToString,
    ) -> Self {
        let place = ProblemPlace::Field { trajectory, frame: None, index: None };
        Self { kind, file: file.into(), place, message: message.to_string() }
    }

    /// Converts an error about a file to a problem: [`ProblemKind::Missing`] for a missing file, or else `otherwise`.
    pub fn of_error(file: &Path, error: &Error, otherwise: ProblemKind) -> Self {
        let kind = if error.exit == Exit::NoInput { ProblemKind::Missing } else { otherwise };
        Self::new(kind, file, None, error)
    }
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CheckReport {
    /// Number of trajectory files checked.
    pub files: usize,
    /// Number of trajectories read.
    pub trajectories: usize,
    /// Number of records read.
    pub records: usize,
    /// All problems, in the order of the files.
    pub problems: Vec<Problem>,
}

impl CheckReport {
    /// Adds a problem of a file of trajectories; its message begins with the path.
    pub fn add(&mut self, kind: ProblemKind, file: &Path, what: impl fmt::Display) {
        let message = format!("{}: {what}", file.display());
        self.problems.push(Problem::new(kind, file, None, message));
    }

    /// Adds a problem of a record, or of a store as a whole.
    pub fn add_record(
        &mut self,
        kind: ProblemKind,
        file: &Path,
        record: Option<usize>,
        what: impl fmt::Display,
    ) {
        let message = match record {
            Some(record) => format!("{}: record {record}: {what}", file.display()),
            None => what.to_string(),
        };
        let place = ProblemPlace::Store { record };
        self.problems.push(Problem { kind, file: file.into(), place, message });
    }

    /// Adds problems of a manifest, prefixing their messages with its path.
    pub fn add_of(&mut self, manifest: &Path, problems: Vec<Problem>) {
        self.problems.extend(problems.into_iter().map(|problem| Problem {
            message: format!("{}: {}", manifest.display(), problem.message),
            ..problem
        }));
    }

    /// Adds the result of another check.
    pub fn append(&mut self, other: Self) {
        self.files += other.files;
        self.trajectories += other.trajectories;
        self.records += other.records;
        self.problems.extend(other.problems);
    }
}

/// Combines problems into an error (65); `None` if there are none.
pub(crate) fn error(problems: &[Problem]) -> Option<Error> {
    let quoted = problems.iter().take(MAX_QUOTED).map(|problem| problem.message.clone());
    let mut all: Vec<String> = quoted.collect();
    if problems.len() > all.len() {
        all.push(format!("and {} more", problems.len() - all.len()));
    }
    (!problems.is_empty()).then(|| Error::data(all.join("; ")))
}

/// Calls `found` for every sample that shares a key with a sample of another split, with the key, the sample and the
/// first sample that has this key. `samples` yields the split, the place and the keys of each sample.
pub(crate) fn shared<K: Copy + Eq + Hash, P: Copy, Keys: IntoIterator<Item = K>>(
    samples: impl IntoIterator<Item = (SplitName, P, Keys)>,
    mut found: impl FnMut(K, (SplitName, P), (SplitName, P)),
) {
    let mut seen: HashMap<K, (SplitName, P)> = HashMap::new();
    for (name, place, keys) in samples {
        for key in keys {
            let first = *seen.entry(key).or_insert((name, place));
            if first.0 != name {
                found(key, (name, place), first);
            }
        }
    }
}
